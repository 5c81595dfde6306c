//! Instructions for models whose template knows no tools.

use std::fmt::Write;

use serde_json::json;

use crate::Tools;

/// Whether a chat template writes the tools of a request into the prompt. If not, [`tool_prompt`] goes into the system
/// message.
pub fn knows_tools(template: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    template.match_indices("tools").any(|(at, word)| {
        let (before, after) =
            (template[..at].chars().next_back(), template[at + word.len()..].chars().next());
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// A section for the system message: the tools, and how to call them in [`Format::Generic`](crate::Format::Generic).
pub fn tool_prompt(tools: &Tools) -> String {
    let mut text = String::from("# Tools\n\nYou can call these tools:\n");
    for tool in tools.iter() {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n## {}\n", tool.name);
        if !tool.description.is_empty() {
            let _ = writeln!(text, "{}", tool.description);
        }
        let _ = writeln!(text, "Parameters: {}", tool.parameters);
    }
    let example = json!({ "name": "TOOL", "arguments": { "PARAMETER": "VALUE" } });
    let _ = write!(
        text,
        "\nTo call a tool, answer with nothing but its name and arguments as JSON between two tags:\n\
         <tool_call>\n{example}\n</tool_call>\n\
         For several calls, repeat the tags. If no tool is needed, answer as usual."
    );
    text
}
