//! Anthropic's, Ollama's and llama.cpp's APIs, and the description of all routes.

mod common;

use common::client::{get, post, receive, send};
use common::{TestSource, config, start, start_with};
use gyrus::{Event, Message, Request, Sampler, StopReason};
use serde_json::{Value, json};

fn answer(model: &gyrus::Model, request: Request) -> String {
    ended(model, request).0
}

/// The text, the generated tokens, and whether the limit ended it.
fn ended(model: &gyrus::Model, request: Request) -> (String, usize, bool) {
    let mut answer = model.answer(request).unwrap();
    let (mut all, mut tokens, mut is_cut) = (String::new(), 0, false);
    while let Some(event) = answer.next().unwrap() {
        match event {
            Event::Text { text, .. } => all.push_str(text),
            Event::Stop { reason, usage, .. } => {
                (tokens, is_cut) = (usage.generated_tokens, reason == StopReason::MaxTokens);
            }
            _ => {}
        }
    }
    (all, tokens, is_cut)
}

fn sampler() -> Sampler {
    Sampler { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.05, seed: 11, ..Sampler::default() }
}

fn story() -> Request {
    Request::messages([Message::system("Be kind."), Message::user("Tell me of a fox.")])
        .max_tokens(32)
        .sampler(sampler())
}

#[test]
fn anthropic_messages_equal_the_library() {
    let Some(source) = TestSource::tales() else { return };
    let model = source.model();
    let (expected, generated, is_cut) = ended(&model, story());
    let tokens = model.prompt_tokens(&story()).unwrap().len();
    let server = start_with(config(), source);
    let mut body = json!({ "model": "tales", "max_tokens": 32, "system": "Be kind.", "temperature": 0.9, "seed": 11,
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Tell me of a fox." }] }] });
    let whole = post(server.address, "/v1/messages", &body).json();
    assert_eq!(whole["content"], json!([{ "type": "text", "text": expected }]));
    let reason = if is_cut { "max_tokens" } else { "end_turn" };
    assert_eq!(
        (&whole["stop_reason"], &whole["usage"]["output_tokens"]),
        (&json!(reason), &json!(generated))
    );
    body["stream"] = true.into();
    let events = post(server.address, "/v1/messages", &body).events();
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names[0], names[1]), ("message_start", "content_block_start"));
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let parsed: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let text: String = parsed.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(text, expected);
    let start = &parsed[0]["message"]["usage"];
    let counted =
        start["input_tokens"].as_u64().unwrap() + start["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted, tokens as u64);
    body.as_object_mut().unwrap().retain(|name, _| ["model", "messages", "system"].contains(&name.as_str()));
    let count = post(server.address, "/v1/messages/count_tokens", &body).json();
    assert_eq!(count["input_tokens"], tokens);
    for (body, part) in [
        (json!({ "messages": [{ "role": "user", "content": "x" }] }), "max_tokens"),
        (
            json!({ "max_tokens": 1, "messages": [{ "role": "assistant", "content": "x" }] }),
            "the last message",
        ),
        (
            json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
            "image",
        ),
    ] {
        let reply = post(server.address, "/v1/messages", &body);
        assert_eq!((reply.status, reply.json()["type"].as_str()), (400, Some("error")));
        assert!(reply.text().contains(part), "{}", reply.text());
    }
}

#[test]
fn anthropic_tools_are_called() {
    let Some(server) = start(config()) else { return };
    let schema = json!({ "type": "object", "properties": { "city": { "enum": ["Kyoto", "Oslo"] } },
        "required": ["city"], "additionalProperties": false });
    let mut body = json!({ "max_tokens": 200, "messages": [{ "role": "user", "content": "Weather?" }],
        "tools": [{ "name": "weather", "description": "the weather", "input_schema": schema }],
        "tool_choice": { "type": "tool", "name": "weather", "disable_parallel_tool_use": true } });
    let whole = post(server.address, "/v1/messages", &body).json();
    let call = whole["content"].as_array().unwrap().iter().find(|block| block["type"] == "tool_use").unwrap();
    assert_eq!((&whole["stop_reason"], &call["name"]), (&json!("tool_use"), &json!("weather")));
    assert!(call["input"]["city"].is_string(), "{whole}");
    body["messages"] = json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": [call] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": call["id"], "content": "sunny" }] },
    ]);
    body["tool_choice"] = json!({ "type": "none" });
    body["max_tokens"] = 8.into();
    let reply = post(server.address, "/v1/messages", &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn ollama_answers_equal_the_library() {
    let Some(source) = TestSource::tales() else { return };
    let model = source.model();
    let (expected, generated, is_cut) = ended(&model, story());
    let reason = if is_cut { "length" } else { "stop" };
    let raw = answer(&model, Request::text("Once upon a time").max_tokens(12));
    let server = start_with(config(), source);
    let options = json!({ "temperature": 0.9, "seed": 11, "num_predict": 32, "num_ctx": 2048 });
    let messages = json!([{ "role": "system", "content": "Be kind." }, { "role": "user", "content": "Tell me of a fox." }]);
    let mut body = json!({ "model": "tales:latest", "messages": messages, "options": options });
    let lines = post(server.address, "/api/chat", &body).lines();
    let text: String = lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    let last = lines.last().unwrap();
    assert_eq!((text, &last["done"], &last["done_reason"]), (expected.clone(), &json!(true), &json!(reason)));
    assert_eq!(last["eval_count"], generated);
    body["stream"] = false.into();
    let whole = post(server.address, "/api/chat", &body).json();
    assert_eq!(
        (whole["message"]["content"].as_str(), &whole["done"]),
        (Some(expected.as_str()), &json!(true))
    );
    let body = json!({ "model": "tales", "prompt": "Tell me of a fox.", "system": "Be kind.", "options": options, "stream": false });
    assert_eq!(post(server.address, "/api/generate", &body).json()["response"], expected.as_str());
    let body = json!({ "model": "tales", "prompt": "Once upon a time", "raw": true, "stream": false,
        "options": { "temperature": 0, "num_predict": 12 } });
    assert_eq!(post(server.address, "/api/generate", &body).json()["response"], raw.as_str());
    let body = json!({ "model": "tales", "messages": [{ "role": "user", "content": "Who?" }], "stream": false,
        "format": { "type": "object", "properties": { "yes": { "type": "boolean" } }, "required": ["yes"], "additionalProperties": false } });
    let whole = post(server.address, "/api/chat", &body).json();
    let found: Value = serde_json::from_str(whole["message"]["content"].as_str().unwrap()).unwrap();
    assert!(found["yes"].is_boolean(), "{whole}");
    // Log-probabilities, in all lines together as in one answer.
    let mut body = json!({ "model": "tales", "prompt": "Once upon a time", "raw": true, "stream": false, "logprobs": true,
        "top_logprobs": 2, "options": { "temperature": 0, "num_predict": 12 } });
    let whole = post(server.address, "/api/generate", &body).json();
    let logprobs = whole["logprobs"].as_array().unwrap();
    assert_eq!((logprobs.len(), whole["response"].as_str()), (12, Some(raw.as_str())), "{whole}");
    for token in logprobs {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(
            (top.len(), &top[0]["token"], &top[0]["logprob"]),
            (2, &token["token"], &token["logprob"])
        );
        assert!(token["bytes"].is_array() && token["logprob"].as_f64().unwrap() <= 0.0, "{token}");
    }
    body["stream"] = true.into();
    let lines = post(server.address, "/api/generate", &body).lines();
    let streamed: Vec<Value> =
        lines.iter().filter_map(|line| line["logprobs"].as_array()).flatten().cloned().collect();
    assert_eq!(&streamed, logprobs);
    let alone = json!({ "model": "tales", "prompt": "a", "top_logprobs": 2 });
    assert!(post(server.address, "/api/generate", &alone).text().contains("top_logprobs"));
    // Models.
    let tags = get(server.address, "/api/tags").json();
    assert_eq!(
        (&tags["models"][0]["name"], &tags["models"][0]["size"]),
        (&json!("tales"), &json!(7_533_216))
    );
    // What the source knows of a model, and nothing that it does not.
    let described = json!({ "parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"],
        "parameter_size": "7.00M", "quantization_level": "Q8_0" });
    let unknown = json!({ "parent_model": "", "format": "", "family": "", "families": [],
        "parameter_size": "", "quantization_level": "" });
    assert_eq!((&tags["models"][0]["details"], &tags["models"][1]["details"]), (&described, &unknown));
    assert_eq!(tags["models"][0]["digest"], "ab".repeat(32));
    for one in tags["models"].as_array().unwrap() {
        // Ollama's own client cuts it after twelve digits.
        assert_eq!(one["digest"].as_str().map(str::len), Some(64), "{one}");
    }
    let ps = get(server.address, "/api/ps").json();
    assert_eq!(
        (&ps["models"][0]["details"], &ps["models"][0]["digest"]),
        (&described, &tags["models"][0]["digest"])
    );
    assert_eq!(
        (ps["models"].as_array().unwrap().len(), &ps["models"][0]["context_length"]),
        (1, &json!(512))
    );
    let show = post(server.address, "/api/show", &json!({ "model": "tales" })).json();
    assert!(
        show["model_info"]["general.architecture"].is_string() && show["capabilities"].is_array(),
        "{show}"
    );
    assert_eq!(
        (&show["details"], &show["model_info"]["general.parameter_count"]),
        (&described, &json!(7_000_000))
    );
    let version = get(server.address, "/api/version").json();
    assert!(version["version"].is_string());
    assert_eq!(version["gyrus"], env!("CARGO_PKG_VERSION"));
    let pulled = post(server.address, "/api/pull", &json!({ "model": "remote" })).lines();
    assert_eq!((&pulled[0]["status"], &pulled[1]["total"]), (&json!("pulling manifest"), &json!(100)));
    assert!(pulled.last().unwrap()["error"].as_str().unwrap().contains("cannot be had"));
    let there = post(server.address, "/api/pull", &json!({ "model": "tales", "stream": false })).json();
    assert_eq!(there["status"], "success");
    assert_eq!(post(server.address, "/api/pull", &json!({ "model": "../x" })).status, 404);
    let refused = post(server.address, "/api/embed", &json!({ "model": "tales", "input": "x" }));
    assert_eq!((refused.status, refused.json()["error"].is_string()), (400, true));
    let images =
        json!({ "model": "tales", "messages": [{ "role": "user", "content": "x", "images": ["aGk="] }] });
    assert!(post(server.address, "/api/chat", &images).text().contains("images"));
    // An empty request loads, or unloads.
    let loaded = post(server.address, "/api/chat", &json!({ "model": "second" })).json();
    assert_eq!(loaded["done_reason"], "load");
    let unloaded =
        post(server.address, "/api/generate", &json!({ "model": "second", "keep_alive": 0 })).json();
    assert_eq!(unloaded["done_reason"], "unload");
}

#[test]
fn fields_of_thinking_are_checked() {
    let Some(server) = start(config()) else { return };
    let status = |thinking: Value| {
        let body = json!({ "model": "tales", "max_tokens": 1, "thinking": thinking,
            "messages": [{ "role": "user", "content": "hi" }] });
        let reply = post(server.address, "/v1/messages", &body);
        (reply.status, reply.text().to_owned())
    };
    assert_eq!(status(json!({ "type": "enabled", "budget_tokens": 1024 })).0, 200);
    assert_eq!(status(json!({ "type": "disabled" })).0, 200);
    for (thinking, name) in [
        (json!({ "type": "enabled", "budget_token": 1024 }), "thinking.budget_token"),
        (json!({ "type": "enabled", "budget_tokens": "many" }), "thinking.budget_tokens"),
        (json!({ "type": "adaptive", "display": "omitted" }), "thinking.display"),
    ] {
        let (status, text) = status(thinking);
        assert_eq!((status, text.contains(name)), (400, true), "{text}");
    }
}

#[test]
fn llama_cpp_routes_answer_as_its_server_does() {
    let Some(source) = TestSource::tales() else { return };
    let model = source.model();
    let expected = answer(&model, Request::text("Once upon a time").max_tokens(12));
    let ids = model.prompt_tokens(&Request::text("Once upon a time")).unwrap();
    let server = start_with(config(), source);
    let mut body = json!({ "prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "n_probs": 3, "cache_prompt": true });
    let whole = post(server.address, "/completion", &body).json();
    assert_eq!((whole["content"].as_str(), &whole["stop_type"]), (Some(expected.as_str()), &json!("limit")));
    assert_eq!(
        (&whole["tokens_predicted"], whole["completion_probabilities"].as_array().unwrap().len()),
        (&json!(12), 12)
    );
    body["stream"] = true.into();
    let events = post(server.address, "/completion", &body).events();
    let parsed: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let text: String = parsed.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!((text, &parsed.last().unwrap()["stop"]), (expected, &json!(true)));
    let probabilities: Vec<Value> = parsed
        .iter()
        .filter_map(|event| event["completion_probabilities"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(json!(probabilities), whole["completion_probabilities"]);
    for (name, value) in [("t_max_predict_ms", json!("5")), ("post_sampling_probs", json!(true))] {
        let reply = post(server.address, "/completion", &json!({ "prompt": "a", name: value }));
        assert_eq!((reply.status, reply.text().contains(name)), (400, true), "{}", reply.text());
    }
    let off = json!({ "prompt": "a", "n_predict": 1, "t_max_predict_ms": -1, "n_indent": 0, "post_sampling_probs": false });
    assert_eq!(post(server.address, "/completion", &off).status, 200);
    let tokens =
        post(server.address, "/tokenize", &json!({ "content": "Once upon a time", "add_special": true }))
            .json();
    assert_eq!(tokens["tokens"], json!(ids));
    let plain = post(server.address, "/tokenize", &json!({ "content": "Once upon a time" })).json();
    assert_eq!(post(server.address, "/detokenize", &plain).json()["content"], "Once upon a time");
    assert_eq!(post(server.address, "/detokenize", &json!({ "tokens": [999_999_999] })).status, 400);
    let own =
        post(server.address, "/v1/tokenize", &json!({ "model": "tales", "text": "Once upon a time" })).json();
    assert_eq!(own["count"].as_u64(), own["tokens"].as_array().map(|tokens| tokens.len() as u64));
    let messages = json!([{ "role": "user", "content": "Hello there" }]);
    let prompt = post(server.address, "/apply-template", &json!({ "messages": messages })).json();
    assert!(prompt["prompt"].as_str().unwrap().contains("Hello there"));
    let props = get(server.address, "/props").json();
    assert_eq!(
        (&props["default_generation_settings"]["n_ctx"], &props["total_slots"]),
        (&json!(512), &json!(16))
    );
    let slots = get(server.address, "/slots").json();
    assert_eq!((slots.as_array().unwrap().len(), &slots[15]["n_ctx"]), (16, &json!(512)));
    let gap = json!({ "input_prefix": "def f():", "input_suffix": "return x" });
    let reply = post(server.address, "/infill", &gap);
    assert_eq!(
        (reply.status, reply.text().contains("no tokens to fill in")),
        (400, true),
        "{}",
        reply.text()
    );
}

#[test]
fn the_description_has_the_routes_that_there_are() {
    let Some(server) = start(config()) else { return };
    let described = get(server.address, "/openapi.json").json();
    assert_eq!(described["openapi"], "3.1.0");
    let paths = described["paths"].as_object().unwrap();
    assert!(paths.len() > 30, "{}", paths.len());
    let mut ids = Vec::new();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            ids.push(operation["operationId"].as_str().unwrap().to_owned());
            let path = path.replace("{id}", "tales").replace("{file}", "chat.js");
            let reply = receive(send(server.address, &method.to_uppercase(), &path, &[], b"{\"x\": 1}"));
            // A route that is there refuses the body, or answers; none is unknown.
            assert!(
                ![404, 405, 500].contains(&reply.status),
                "{method} {path}: {} {}",
                reply.status,
                reply.text()
            );
            // The other method is not there, unless it is described too.
            let other = if method == "get" { "post" } else { "get" };
            if methods.get(other).is_none() && !path.starts_with("/v1/models/") {
                let reply = receive(send(server.address, &other.to_uppercase(), &path, &[], b""));
                assert_eq!(reply.status, 405, "{other} {path}");
            }
        }
    }
    for (path, kind, other) in [
        ("/v1/audio/transcriptions", "multipart/form-data", "application/json"),
        ("/v1/audio/translations", "multipart/form-data", "application/json"),
        ("/v1/chat/completions", "application/json", "multipart/form-data"),
    ] {
        let content = &paths[path]["post"]["requestBody"]["content"];
        assert!(content[kind].is_object() && content[other].is_null(), "{path}: {content}");
    }
    let file =
        &paths["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"];
    assert_eq!(
        (&file["required"], &file["properties"]["file"]["format"]),
        (&json!(["file"]), &json!("binary"))
    );
    // What is described as a number is read, and must be one.
    let mut described = 0;
    for (path, methods) in paths {
        let schema = &methods["post"]["requestBody"]["content"]["application/json"]["schema"];
        let properties = schema["properties"].as_object().into_iter().flatten();
        for (name, _) in properties.filter(|(_, schema)| schema["type"] == "number") {
            let mut body = json!({ "model": "tales", "prompt": "a", "input": "a", "input_prefix": "a", "input_suffix": "b",
                "max_tokens": 1, "mirostat": 2, "messages": [{ "role": "user", "content": "a" }] });
            body.as_object_mut().unwrap().retain(|field, _| {
                schema["required"].as_array().unwrap().iter().any(|required| required == field)
            });
            body[name] = "many".into();
            let reply = post(server.address, path, &body);
            assert_eq!(
                (reply.status, reply.text().contains(name.as_str())),
                (400, true),
                "{path}: {}",
                reply.text()
            );
            described += 1;
        }
    }
    assert!(described > 100, "{described}");
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count, "ids are unique");
}
