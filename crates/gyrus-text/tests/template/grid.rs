//! Conversations that cover the branches of real templates.

use serde_json::{Value as Json, json};

/// Conversations, each with tools or without.
fn conversations() -> Vec<Json> {
    let call = |arguments: Json| {
        json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}]})
    };
    let result = json!({"role": "tool", "tool_call_id": "call00001", "name": "get_weather",
                        "content": "{\"temperature\": 21.5, \"unit\": \"°C\"}"});
    let user = |text: &str| json!({"role": "user", "content": text});
    let assistant = |text: &str| json!({"role": "assistant", "content": text});
    let system = json!({"role": "system", "content": "You are terse."});
    let arguments = json!({"city": "Zürich <&> \"K\"", "days": 3, "exact": true, "ratio": 0.1, "none": null,
                           "nested": {"b": [1, 2.0, -3e-7], "a": {}}, "list": []});
    vec![
        json!([]),
        json!([user("Hello")]),
        json!([system, user("Hello")]),
        json!([user("Hello"), assistant("Hi."), user("And now?")]),
        json!([system, user("Hello"), assistant("Hi."), user("And now?"), assistant("Nothing.")]),
        json!([user("  spaces \n around\t ")]),
        json!([user("")]),
        json!([user("Hello"), assistant(""), user("again")]),
        json!([user("Hello"), {"role": "assistant", "content": null}, user("again")]),
        json!([user("Hello"), {"role": "assistant"}, user("again")]),
        json!([{"role": "user"}]),
        json!([user("日本語 naïve café 👩\u{200d}👩\u{200d}👧 \u{200b}\u{301} \u{202e} \u{1c}x\u{85}")]),
        json!([user("<b>&amp;\"'</b> {{ x }} {% if %} \\n \u{0} \u{7f}")]),
        json!([system, system, user("two systems")]),
        json!([user("a"), user("b")]),
        json!([assistant("first")]),
        json!([{"role": "developer", "content": "Be brief."}, user("Hello")]),
        json!([{"role": "critic", "content": "Unknown role."}]),
        json!([{"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": " two"}]}]),
        json!([{"role": "system", "content": [{"type": "text", "text": "sys part"}]},
               {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]},
               {"role": "assistant", "content": [{"type": "text", "text": "a cat"}]}, user("sure?")]),
        json!([{"role": "user", "content": []}]),
        json!([system, user("Weather?"), call(arguments.clone()), result]),
        json!([user("Weather?"), call(arguments.clone()), result, assistant("21.5 °C."), user("Thanks")]),
        json!([user("Weather?"), call(json!(arguments.to_string())), result, assistant("21.5 °C.")]),
        json!([user("Weather?"), call(json!({})), result, result, user("ok")]),
        json!([user("Two"), {"role": "assistant", "content": "Calling.", "tool_calls": [
                {"id": "call00001", "type": "function", "function": {"name": "a", "arguments": {"x": 1}}},
                {"id": "call00002", "type": "function", "function": {"name": "b", "arguments": {"y": "z"}}}]},
               {"role": "tool", "tool_call_id": "call00001", "name": "a", "content": "1"},
               {"role": "tool", "tool_call_id": "call00002", "name": "b", "content": "2"}]),
        json!([user("No id"), {"role": "assistant", "tool_calls": [
                {"type": "function", "function": {"name": "a", "arguments": {"x": [true, null]}}}]},
               {"role": "tool", "content": "{\"not\": \"text\"}"}]),
        json!([user("Flat call"), {"role": "assistant", "content": null, "tool_calls": [
                {"name": "a", "arguments": {"x": 1}}]}, {"role": "tool", "content": "1"}]),
        json!([user("Think"), {"role": "assistant", "content": "Done.", "reasoning_content": "Step by step."}]),
        json!([user("Think"), {"role": "assistant", "content": "Done.", "thinking": "Hm."}, user("More")]),
        json!([user("Think"), {"role": "assistant", "content": "Done.", "reasoning": "Ah."}, user("More"),
               {"role": "assistant", "content": "Again.", "reasoning_content": ""}]),
        json!([user("Think"), assistant("<think>\nin text\n</think>\n\nDone."), user("More")]),
        json!([user("Think"), {"role": "assistant", "content": "<think>a</think>b", "tool_calls": [
                {"id": "call00001", "type": "function", "function": {"name": "a", "arguments": {}}}]},
               {"role": "tool", "tool_call_id": "call00001", "content": [{"type": "text", "text": "part"}]}]),
        json!([user("/no_think quick"), assistant("ok"), user("/think slow")]),
        json!([{"role": "system", "content": "/no_think\nCustom Instructions"}, user("x")]),
        json!([{"role": "user", "content": "named", "name": "Ann"}, {"role": "ipython", "content": "out"}]),
    ]
}

/// Tools that every template with tools support can print.
fn simple_tools() -> Json {
    json!([{"type": "function", "function": {"name": "add", "description": "Adds & <subtracts>.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "description": "é"}, "b": {"type": "number"}},
        "required": ["a", "b"]}}}])
}

fn tools() -> Json {
    json!([
        {"type": "function", "function": {"name": "get_weather", "description": "Weather of a <city> & \"more\"",
            "parameters": {"type": "object", "required": ["city"], "properties": {
                "city": {"type": "string", "description": "Name, e.g. Zürich"},
                "days": {"type": "integer", "default": 1, "minimum": 0.5},
                "unit": {"type": "string", "enum": ["°C", "°F"], "nullable": true},
                "where": {"type": "array", "items": {"type": "object", "properties": {
                    "lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
                    "required": ["lat"]}},
                "kind": {"type": ["string", "null"]},
                "choice": {"oneOf": [{"type": "string", "default": "a"}, {"type": "integer"}]}}},
            "return": {"type": "object", "properties": {"temperature": {"type": "number"}}}}},
        {"type": "function", "function": {"name": "no_args", "description": "", "parameters": {
            "type": "object", "properties": {}}}}
    ])
}

/// Every combination: conversation, tools, generation prompt, thinking.
pub(crate) fn inputs() -> Vec<Json> {
    let mut inputs = Vec::new();
    for messages in conversations() {
        for tools in [Json::Null, simple_tools(), tools()] {
            for (generation, thinking) in
                [(true, None), (false, Some(true)), (true, Some(false)), (false, None)]
            {
                let mut input = json!({"messages": messages, "add_generation_prompt": generation,
                    "variables": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}});
                if tools.is_array() {
                    input["tools"] = tools.clone();
                }
                if let Some(thinking) = thinking {
                    input["variables"]["enable_thinking"] = json!(thinking);
                    input["variables"]["thinking"] = json!(thinking);
                    input["variables"]["builtin_tools"] = json!(["code_interpreter", "browser"]);
                    input["documents"] = json!([{"title": "T", "text": "Body", "doc_id": 1}]);
                }
                inputs.push(input);
            }
        }
    }
    inputs
}
