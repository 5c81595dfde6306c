//! Tools as a request describes them.

use serde_json::Value;

use crate::Error;

/// A tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name: letters, digits, `_`, `-` and `.`, at most 64.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The JSON schema of its arguments, an object.
    pub parameters: Value,
}

/// The tools of a request, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tools(Vec<Tool>);

const MAX_TOOLS: usize = 512;

impl Tools {
    /// Reads the list `tools` of a chat request: objects with `type` and `function`, or functions alone.
    pub fn from_json(text: &str) -> Result<Tools, Error> {
        let value = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line().max(1), error.column().max(1));
            let message = error.to_string().split(" at line ").next().unwrap_or_default().to_owned();
            Error::Syntax { line, column, message }
        })?;
        Tools::from_value(&value)
    }

    /// Reads the list from JSON that was parsed.
    pub fn from_value(value: &Value) -> Result<Tools, Error> {
        let refused = |message: &str| Error::List { message: message.into() };
        let list = value.as_array().ok_or_else(|| refused("not an array of tools"))?;
        if list.len() > MAX_TOOLS {
            return Err(refused("there are more than 512"));
        }
        let mut tools: Vec<Tool> = Vec::new();
        for (index, tool) in list.iter().enumerate() {
            let function = tool.get("function").unwrap_or(tool);
            let name = function.get("name").and_then(Value::as_str);
            let fail = |message: &str| {
                let name = name.map(str::to_owned);
                Error::Tool { index, name, message: message.into() }
            };
            if tool.get("type").is_some_and(|kind| kind != "function") {
                return Err(fail("its type must be \"function\""));
            }
            let name = name.ok_or_else(|| fail("it has no name"))?;
            let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
            if name.is_empty() || name.len() > 64 || !name.bytes().all(valid) {
                return Err(fail("its name must be 1 to 64 letters, digits, \"_\", \"-\" or \".\""));
            }
            if tools.iter().any(|known| known.name == name) {
                return Err(fail("its name is that of another tool"));
            }
            let parameters = match function.get("parameters") {
                None | Some(Value::Null) => serde_json::json!({ "type": "object", "properties": {} }),
                Some(parameters @ Value::Object(_)) => parameters.clone(),
                Some(_) => return Err(fail("its parameters must be a JSON schema, an object")),
            };
            let description =
                function.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
            tools.push(Tool { name: name.to_owned(), description, parameters });
        }
        Ok(Tools(tools))
    }

    /// A tool by its name.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.name == name)
    }

    /// All tools.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.0.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The list `tools` of a chat request, as chat templates take it.
    pub fn to_json(&self) -> Vec<Value> {
        let function = |tool: &Tool| {
            let Tool { name, description, parameters } = tool;
            serde_json::json!({ "type": "function", "function":
                { "name": name, "description": description, "parameters": parameters } })
        };
        self.0.iter().map(function).collect()
    }

    /// The names, for errors.
    pub(crate) fn names(&self) -> String {
        self.0.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>().join(", ")
    }
}
