//! The fields of requests and their types, for the description of the routes. Tests hold the tables to what is parsed.

use serde_json::{Map, Value, json};

use crate::sampling::numbers;

/// A field, and the types of JSON that it may have; any, if there are none.
type Field = (&'static str, &'static [&'static str]);

const STRING: &[&str] = &["string"];
const BOOLEAN: &[&str] = &["boolean"];
const INTEGER: &[&str] = &["integer"];
const NUMBER: &[&str] = &["number"];
const ARRAY: &[&str] = &["array"];
const OBJECT: &[&str] = &["object"];
/// A text, or a list.
const TEXTS: &[&str] = &["string", "array"];
/// A word, or an object that says more.
const CHOICE: &[&str] = &["string", "object"];
const TIME: &[&str] = &["string", "number"];
const ANY: &[&str] = &[];

/// Fields of all generations, beside the numbers of samplers.
const GENERATION: &[Field] = &[
    ("seed", INTEGER),
    ("stop", TEXTS),
    ("samplers", TEXTS),
    ("mirostat", INTEGER),
    ("logit_bias", &["object", "array"]),
    ("tfs_z", NUMBER),
    ("length_penalty", NUMBER),
    ("dry_sequence_breakers", TEXTS),
    ("ignore_eos", BOOLEAN),
    ("grammar", STRING),
    ("regex", STRING),
    ("json_schema", ANY),
    ("timeout", NUMBER),
    ("priority", INTEGER),
    ("keep_alive", TIME),
    ("speculate", BOOLEAN),
    ("draft_model", STRING),
    ("parse_special", BOOLEAN),
];

/// Fields of requests that a chat template writes out.
const TEMPLATE: &[Field] = &[("chat_template_kwargs", OBJECT), ("reasoning_effort", STRING)];

/// Fields of OpenAI's requests with tools.
const TOOLS: &[Field] = &[("tools", ARRAY), ("tool_choice", CHOICE), ("parallel_tool_calls", BOOLEAN)];

const CHAT: &[Field] = &[
    ("messages", ARRAY),
    ("stream", BOOLEAN),
    ("stream_options", OBJECT),
    ("n", INTEGER),
    ("max_tokens", INTEGER),
    ("max_completion_tokens", INTEGER),
    ("logprobs", BOOLEAN),
    ("top_logprobs", INTEGER),
    ("response_format", OBJECT),
    ("modalities", TEXTS),
    ("verbosity", STRING),
    ("add_generation_prompt", BOOLEAN),
];

const COMPLETIONS: &[Field] = &[
    ("prompt", TEXTS),
    ("suffix", STRING),
    ("stream", BOOLEAN),
    ("stream_options", OBJECT),
    ("n", INTEGER),
    ("best_of", INTEGER),
    ("max_tokens", INTEGER),
    ("logprobs", &["integer", "boolean"]),
];

const RESPONSES: &[Field] = &[
    ("input", TEXTS),
    ("instructions", STRING),
    ("stream", BOOLEAN),
    ("max_output_tokens", INTEGER),
    ("text", OBJECT),
    ("reasoning", OBJECT),
    ("truncation", STRING),
    ("include", TEXTS),
    ("top_logprobs", INTEGER),
    ("metadata", OBJECT),
];

const MESSAGES: &[Field] = &[
    ("messages", ARRAY),
    ("system", TEXTS),
    ("stream", BOOLEAN),
    ("max_tokens", INTEGER),
    ("stop_sequences", TEXTS),
    ("tools", ARRAY),
    ("tool_choice", OBJECT),
    ("thinking", OBJECT),
    ("output_config", OBJECT),
    ("output_format", OBJECT),
];

const LLAMA_CPP: &[Field] = &[
    ("stream", BOOLEAN),
    ("n_predict", INTEGER),
    ("max_tokens", INTEGER),
    ("n_probs", INTEGER),
    ("n_indent", INTEGER),
    ("t_max_predict_ms", INTEGER),
    ("response_fields", TEXTS),
];

const OLLAMA: &[Field] = &[
    ("stream", BOOLEAN),
    ("format", CHOICE),
    ("think", &["boolean", "string"]),
    ("keep_alive", TIME),
    ("options", OBJECT),
    ("logprobs", BOOLEAN),
    ("top_logprobs", INTEGER),
];

const MODEL: &[Field] = &[("model", STRING)];

/// The fields that requests of a path have, in groups.
fn groups(path: &str) -> Vec<&'static [Field]> {
    let mut groups = vec![MODEL];
    groups.extend_from_slice(match path {
        "/v1/chat/completions" => &[CHAT, TOOLS, TEMPLATE, GENERATION][..],
        "/v1/completions" => &[COMPLETIONS, GENERATION],
        "/v1/responses" => &[RESPONSES, TOOLS, GENERATION],
        "/v1/messages" | "/v1/messages/count_tokens" => &[MESSAGES, TEMPLATE, GENERATION],
        "/completion" => &[&[("prompt", TEXTS)], LLAMA_CPP, GENERATION],
        "/infill" => &[
            &[("input_prefix", STRING), ("input_suffix", STRING), ("input_extra", ARRAY), ("prompt", STRING)],
            LLAMA_CPP,
            GENERATION,
        ],
        "/api/chat" => &[&[("messages", ARRAY), ("tools", ARRAY)], OLLAMA],
        "/api/generate" => {
            &[&[("prompt", STRING), ("system", STRING), ("suffix", STRING), ("raw", BOOLEAN)], OLLAMA]
        }
        "/v1/embeddings" => &[&[
            ("input", TEXTS),
            ("encoding_format", STRING),
            ("prompt_name", STRING),
            ("dimensions", INTEGER),
            ("truncate", BOOLEAN),
        ]],
        "/v1/rerank" => &[&[
            ("query", STRING),
            ("documents", ARRAY),
            ("top_n", INTEGER),
            ("return_documents", BOOLEAN),
            ("truncate", BOOLEAN),
            ("instruction", STRING),
        ]],
        "/embed" => &[&[
            ("inputs", TEXTS),
            ("truncation_direction", STRING),
            ("prompt_name", STRING),
            ("dimensions", INTEGER),
            ("truncate", BOOLEAN),
            ("normalize", BOOLEAN),
        ]],
        "/rerank" => &[&[
            ("query", STRING),
            ("texts", TEXTS),
            ("truncation_direction", STRING),
            ("raw_scores", BOOLEAN),
            ("return_text", BOOLEAN),
            ("truncate", BOOLEAN),
        ]],
        "/tokenize" => &[&[("content", STRING), ("add_special", BOOLEAN), ("parse_special", BOOLEAN)]],
        "/detokenize" => &[&[("tokens", ARRAY)]],
        "/apply-template" => &[&[("messages", ARRAY), ("tools", ARRAY)], TEMPLATE],
        "/v1/tokenize" => &[&[("text", STRING), ("special", BOOLEAN)]],
        _ => &[],
    });
    groups
}

/// The fields of requests of a path.
pub(crate) fn properties(path: &str) -> Map<String, Value> {
    let groups = groups(path);
    let mut properties = of_fields(groups.iter().copied().flatten());
    if groups.contains(&GENERATION) {
        properties.extend(of_numbers());
    }
    if groups.contains(&OLLAMA) {
        let mut options = of_fields(GENERATION.iter().chain(&[("num_predict", INTEGER)]));
        options.extend(of_numbers());
        properties["options"]["properties"] = options.into();
    }
    properties
}

fn of_numbers() -> impl Iterator<Item = (String, Value)> {
    numbers().map(|name| (name.to_owned(), json!({ "type": "number" })))
}

fn of_fields<'a>(fields: impl Iterator<Item = &'a Field>) -> Map<String, Value> {
    fields.map(|(name, types)| ((*name).to_owned(), schema(name, types))).collect()
}

/// The schema of a field: its types, and what is in it as far as all APIs have the same.
fn schema(name: &str, types: &[&str]) -> Value {
    let mut schema = match types {
        [] => json!({}),
        [one] => json!({ "type": one }),
        several => json!({ "type": several }),
    };
    match name {
        "messages" => {
            schema["items"] = json!({ "type": "object", "required": ["role"], "properties": {
                "role": { "type": "string" }, "content": { "type": ["string", "array", "null"] } } });
        }
        "tools" => schema["items"] = json!({ "type": "object" }),
        "stop" | "stop_sequences" | "samplers" | "dry_sequence_breakers" => {
            schema["items"] = json!({ "type": "string" });
        }
        "tokens" => schema["items"] = json!({ "type": "integer", "minimum": 0 }),
        "response_format" => {
            let kinds = ["text", "json_object", "json_schema", "regex", "grammar"];
            schema["properties"] = json!({ "type": { "enum": kinds }, "json_schema": { "type": "object" },
                "schema": {}, "pattern": { "type": "string" }, "grammar": { "type": "string" } });
        }
        _ => {}
    }
    schema
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::failure::Failure;
    use crate::{anthropic, fields, llama_cpp, native, ollama, openai, tei};

    type Parse = fn(&[u8]) -> Result<(), Failure>;

    /// The routes with a body of JSON that is parsed alone, with the least body of each. `true`: every field that is read is
    /// described.
    fn routes() -> [(&'static str, Value, Parse, bool); 17] {
        let messages = json!([{ "role": "user", "content": "a" }]);
        let gap = json!({ "input_prefix": "a", "input_suffix": "b" });
        let counted = json!({ "messages": messages });
        [
            ("/v1/chat/completions", counted.clone(), |body| openai::chat::parse(body).map(drop), true),
            (
                "/v1/completions",
                json!({ "prompt": "a" }),
                |body| openai::completions::parse(body).map(drop),
                true,
            ),
            ("/v1/responses", json!({ "input": "a" }), |body| openai::responses::parse(body).map(drop), true),
            (
                "/v1/messages",
                json!({ "messages": messages, "max_tokens": 1 }),
                |body| anthropic::parse(body, false).map(drop),
                true,
            ),
            (
                "/v1/messages/count_tokens",
                counted.clone(),
                |body| anthropic::parse(body, true).map(drop),
                true,
            ),
            (
                "/completion",
                json!({ "prompt": "a" }),
                |body| llama_cpp::parse_completion(body).map(drop),
                false,
            ),
            ("/infill", gap, |body| llama_cpp::parse_infill(body).map(drop), false),
            (
                "/api/chat",
                json!({ "model": "m", "messages": messages }),
                |body| ollama::parse_chat(body).map(drop),
                false,
            ),
            (
                "/api/generate",
                json!({ "model": "m", "prompt": "a" }),
                |body| ollama::parse_generate(body).map(drop),
                false,
            ),
            (
                "/v1/embeddings",
                json!({ "input": "a" }),
                |body| openai::embeddings::parse(body).map(drop),
                true,
            ),
            (
                "/v1/rerank",
                json!({ "query": "a", "documents": ["b"] }),
                |body| openai::embeddings::parse_ranks(body).map(drop),
                true,
            ),
            ("/embed", json!({ "inputs": "a" }), |body| tei::parse(body).map(drop), true),
            (
                "/rerank",
                json!({ "query": "a", "texts": ["b"] }),
                |body| tei::parse_ranks(body).map(drop),
                true,
            ),
            ("/tokenize", json!({ "content": "a" }), |body| llama_cpp::parse_tokenize(body).map(drop), true),
            (
                "/detokenize",
                json!({ "tokens": [1] }),
                |body| llama_cpp::parse_detokenize(body).map(drop),
                true,
            ),
            ("/apply-template", counted, |body| llama_cpp::parse_template(body).map(drop), true),
            ("/v1/tokenize", json!({ "text": "a" }), |body| native::parse_tokenize(body).map(drop), true),
        ]
    }

    #[test]
    fn what_is_read_is_described() {
        for (path, body, parse, is_exact) in routes() {
            let (parsed, read) = fields::recorded(|| parse(body.to_string().as_bytes()));
            parsed.unwrap_or_else(|failure| panic!("{path}: {failure:?}"));
            let described: BTreeSet<String> = properties(path).keys().cloned().collect();
            let unread: Vec<_> = described.difference(&read).filter(|name| *name != "metadata").collect();
            assert!(unread.is_empty(), "{path} does not read {unread:?}");
            let missing: Vec<_> = read.difference(&described).collect();
            assert!(missing.is_empty() || !is_exact, "{path} reads {missing:?}, which are not described");
        }
    }

    #[test]
    fn other_types_are_refused() {
        let values = [
            ("string", json!("no such word")),
            ("number", json!(3)),
            ("boolean", json!(true)),
            ("array", json!([[]])),
            ("object", json!({ "q": 1 })),
        ];
        let mut tried = 0;
        for (path, body, parse, _) in routes() {
            for (name, schema) in properties(path) {
                let types: Vec<&str> = match &schema["type"] {
                    Value::String(one) => vec![one],
                    Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
                    _ => continue,
                };
                let is_of =
                    |kind: &str| types.contains(&kind) || (kind == "number" && types.contains(&"integer"));
                for (_, value) in values.iter().filter(|(kind, _)| !is_of(kind)) {
                    let mut body = body.clone();
                    body[&name] = value.clone();
                    let Err(failure) = parse(body.to_string().as_bytes()) else {
                        panic!("{path}: {name} may be {value}")
                    };
                    let named = failure.param.unwrap_or_default();
                    assert!(named.starts_with(&name), "{path}: {name} is {value}: {}", failure.message);
                    tried += 1;
                }
            }
        }
        assert!(tried > 500, "{tried}");
    }
}
