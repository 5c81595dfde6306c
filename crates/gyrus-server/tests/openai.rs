//! OpenAI's API: what is answered is what the engine answers.

mod common;

use common::client::{get, post};
use common::{TestSource, config, start, start_with};
use gyrus::{Event, Message, Request, Sampler};
use serde_json::{Value, json};

/// The sampler that a request with this seed and temperature has.
fn sampler(seed: u64) -> Sampler {
    Sampler { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.05, seed, ..Sampler::default() }
}

/// What the library answers.
fn answer(model: &gyrus::Model, request: Request) -> Vec<String> {
    let mut answer = model.answer(request).unwrap();
    let mut texts = vec![String::new(); 128];
    while let Some(event) = answer.next().unwrap() {
        if let Event::Text { choice, text } = event {
            texts[choice].push_str(text);
        }
    }
    texts
}

#[test]
fn chats_equal_the_library_streamed_or_not() {
    let Some(source) = TestSource::tales() else { return };
    let model = source.model();
    let server = start_with(config(), source);
    for seed in 0..4 {
        let n = 1 + seed as usize % 3;
        let request = Request::messages([Message::user("Tell me a story about a fox.")]);
        let expected = answer(&model, request.max_tokens(48).choices(n).sampler(sampler(seed)));
        let mut body = json!({
            "model": "tales",
            "messages": [{ "role": "user", "content": "Tell me a story about a fox." }],
            "max_completion_tokens": 48, "temperature": 0.9, "seed": seed, "n": n,
        });
        let reply = post(server.address, "/v1/chat/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let whole = reply.json();
        for choice in 0..n {
            assert_eq!(whole["choices"][choice]["message"]["content"], expected[choice].as_str());
        }
        assert_eq!(whole["object"], "chat.completion");
        let generated = whole["usage"]["completion_tokens"].as_u64().unwrap();
        assert!((1..=48 * n as u64).contains(&generated), "{whole}");
        body["stream"] = true.into();
        body["stream_options"] = json!({ "include_usage": true });
        let reply = post(server.address, "/v1/chat/completions", &body);
        assert_eq!(reply.header("content-type"), Some("text/event-stream"));
        let chunks = reply.chunks();
        let mut texts = vec![String::new(); n];
        let mut reasons = vec![Value::Null; n];
        for chunk in &chunks[..chunks.len() - 1] {
            assert_eq!((&chunk["id"], &chunk["usage"]), (&chunks[0]["id"], &Value::Null));
            let choice = &chunk["choices"][0];
            let index = choice["index"].as_u64().unwrap() as usize;
            assert!(reasons[index].is_null(), "nothing follows the end of a choice");
            texts[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
            reasons[index] = choice["finish_reason"].clone();
        }
        assert_eq!(texts, expected[..n]);
        assert!(reasons.iter().all(|reason| reason == "length" || reason == "stop"), "{reasons:?}");
        assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], generated);
        assert_eq!(chunks.last().unwrap()["choices"], json!([]));
    }
}

#[test]
fn completions_take_text_ids_and_lists() {
    let Some(source) = TestSource::tales() else { return };
    let model = source.model();
    let server = start_with(config(), source);
    let greedy = |request: Request| answer(&model, request.max_tokens(16))[0].clone();
    let expected = greedy(Request::text("Once upon a time"));
    let body = json!({ "prompt": "Once upon a time", "temperature": 0, "logprobs": 2 });
    let whole = post(server.address, "/v1/completions", &body).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["text"], expected.as_str());
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 16);
    assert_eq!(logprobs["text_offset"][0], 0);
    for (at, token) in logprobs["tokens"].as_array().unwrap().iter().enumerate() {
        let top = logprobs["top_logprobs"][at].as_object().unwrap();
        let best = top.values().filter_map(Value::as_f64).fold(f64::MIN, f64::max);
        assert_eq!(logprobs["token_logprobs"][at].as_f64(), Some(best), "greedy: {token} is the most likely");
    }
    let ids = model.prompt_tokens(&Request::text("Once upon a time")).unwrap();
    let other = greedy(Request::text("The dog"));
    let body = json!({ "prompt": [ids], "temperature": 0 });
    assert_eq!(
        post(server.address, "/v1/completions", &body).json()["choices"][0]["text"],
        expected.as_str()
    );
    let body = json!({ "prompt": ["Once upon a time", "The dog"], "temperature": 0 });
    let whole = post(server.address, "/v1/completions", &body).json();
    assert_eq!(
        (&whole["choices"][0]["text"], &whole["choices"][1]["text"]),
        (&json!(expected), &json!(other))
    );
    assert_eq!(whole["usage"]["completion_tokens"], 32);
    let body = json!({ "prompt": "Once upon a time", "temperature": 0, "stream": true, "logprobs": 0 });
    let chunks = post(server.address, "/v1/completions", &body).chunks();
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, expected);
    let tokens = chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(tokens.flatten().count(), 16);
}

/// A sequence whose events nobody takes holds, so the events of all prompts are taken as they come.
#[test]
fn several_prompts_run_together() {
    let Some(server) = start(config()) else { return };
    post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    let sums = || {
        let text = get(server.address, "/metrics").text().to_owned();
        ["gyrus_first_token_seconds_sum", "gyrus_request_seconds_sum"].map(|name| {
            let line =
                text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{text}"));
            line.trim().parse::<f64>().unwrap()
        })
    };
    let before = sums();
    let body =
        json!({ "prompt": ["Once", "The fox", "A dog", "In a wood"], "max_tokens": 400, "ignore_eos": true });
    let whole = post(server.address, "/v1/completions", &body).json();
    assert_eq!(whole["usage"]["completion_tokens"], 1600, "{whole}");
    let after = sums();
    let (first, all) = (after[0] - before[0], after[1] - before[1]);
    assert!(first < all / 3.0, "first tokens came after {first} s, in {all} s of requests");
}

#[test]
fn stops_end_the_text_before_them() {
    let Some(source) = TestSource::tales() else { return };
    let model = source.model();
    let server = start_with(config(), source);
    let expected = answer(&model, Request::text("Once upon a time").max_tokens(40))[0].clone();
    let stop = expected.split_whitespace().nth(6).unwrap();
    let body = json!({ "prompt": "Once upon a time", "temperature": 0, "max_tokens": 40, "stop": [stop] });
    let whole = post(server.address, "/v1/completions", &body).json();
    let text = whole["choices"][0]["text"].as_str().unwrap();
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(Some(text.len()), expected.find(stop));
}

#[test]
fn answers_keep_to_schemas_regexes_and_grammars() {
    let Some(server) = start(config()) else { return };
    let messages = json!([{ "role": "user", "content": "Who?" }]);
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string", "maxLength": 12 },
        "age": { "type": "integer", "minimum": 1, "maximum": 99 } },
        "required": ["name", "age"], "additionalProperties": false });
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "who", "schema": schema, "strict": true } });
    for (field, value, check) in [
        ("response_format", format, "object"),
        ("response_format", json!({ "type": "json_object" }), "json"),
        ("regex", json!("[0-9]{3}-[0-9]{4}"), "regex"),
        ("grammar", json!("root ::= \"yes\" | \"no\""), "grammar"),
    ] {
        let mut body = json!({ "messages": messages, "seed": 3, "max_tokens": 200 });
        body[field] = value;
        let reply = post(server.address, "/v1/chat/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let whole = reply.json();
        let text = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        match check {
            "object" => {
                let found: Value = serde_json::from_str(&text).unwrap();
                assert!(
                    found["name"].is_string() && (1..=99).contains(&found["age"].as_i64().unwrap()),
                    "{text}"
                );
            }
            // It may be cut by the limit.
            "json" if whole["choices"][0]["finish_reason"] == "length" => assert!(text.starts_with('{')),
            "json" => assert!(serde_json::from_str::<Value>(&text).unwrap().is_object()),
            "regex" => assert!(text.len() == 8 && text.as_bytes()[3] == b'-', "{text}"),
            _ => assert!(text == "yes" || text == "no", "{text}"),
        }
    }
    let body = json!({ "messages": messages, "regex": "a", "grammar": "root ::= \"b\"" });
    assert_eq!(post(server.address, "/v1/chat/completions", &body).json()["error"]["param"], "regex");
    let body = json!({ "messages": messages, "regex": "(" });
    let reply = post(server.address, "/v1/chat/completions", &body);
    assert_eq!(reply.status, 400, "{}", reply.text());
}

#[test]
fn a_tool_that_must_be_called_is_called() {
    let Some(server) = start(config()) else { return };
    let parameters = json!({ "type": "object", "properties": { "city": { "enum": ["Kyoto", "Oslo"] } },
        "required": ["city"], "additionalProperties": false });
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Weather?" }],
        "tools": [{ "type": "function", "function": { "name": "weather", "parameters": parameters } }],
        "tool_choice": { "type": "function", "function": { "name": "weather" } },
        "parallel_tool_calls": false, "seed": 1,
    });
    let whole = post(server.address, "/v1/chat/completions", &body).json();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("weather")));
    let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"] == "Kyoto" || arguments["city"] == "Oslo", "{arguments}");
    assert_eq!(choice["message"]["content"], Value::Null);
    body["stream"] = true.into();
    let chunks = post(server.address, "/v1/chat/completions", &body).chunks();
    let calls: Vec<&Value> =
        chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0]).collect();
    let streamed = calls.iter().find(|call| !call.is_null()).unwrap();
    assert_eq!((&streamed["index"], &streamed["function"]["name"]), (&json!(0), &json!("weather")));
    // The answer is given back, and the conversation goes on.
    body["messages"] = json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": call["id"], "content": "sunny" },
    ]);
    body["tool_choice"] = "none".into();
    body["stream"] = false.into();
    body["max_tokens"] = 8.into();
    let reply = post(server.address, "/v1/chat/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn models_are_listed_and_typos_are_answered_with_names() {
    let mut config = config();
    config.aliases.insert("gpt-4o".to_owned(), "tales".to_owned());
    let Some(server) = start(config) else { return };
    let list = get(server.address, "/v1/models").json();
    let ids: Vec<&str> =
        list["data"].as_array().unwrap().iter().filter_map(|one| one["id"].as_str()).collect();
    let listed = ["tales", "second", "broken", "bert", "ranker", "whisper", "gpt-4o"];
    assert_eq!(ids, listed, "a model that is not there is not listed");
    assert_eq!(list["data"][0]["status"], "unloaded");
    // What a model does is told before it is loaded, as far as its files say it.
    assert_eq!(
        (&list["data"][5]["does"], list["data"][5]["status"].as_str()),
        (&"transcribes speech".into(), Some("unloaded"))
    );
    assert_eq!(get(server.address, "/v1/models/whisper").json()["does"], "transcribes speech");
    assert_eq!(list["data"][0].get("does"), None);
    assert_eq!(list["max_body"], 8 << 20);
    let body = |model: &str| json!({ "model": model, "prompt": "The", "max_tokens": 1 });
    for (model, status, part) in [
        ("gpt-4o", 200, "tales"),
        ("TALES", 200, "tales"),
        ("tales:latest", 200, "tales"),
        ("", 200, "tales"),
        ("talse", 404, "near are tales"),
        ("../tales", 404, "there is no model"),
        ("/etc/passwd", 404, "there is no model"),
        ("tales\u{0}", 404, "there is no model"),
        ("remote", 404, "has to be downloaded"),
        ("broken", 500, "the file is damaged"),
    ] {
        let reply = post(server.address, "/v1/completions", &body(model));
        assert_eq!(reply.status, status, "{model}: {}", reply.text());
        assert!(reply.text().contains(part), "{model}: {}", reply.text());
    }
    assert_eq!(get(server.address, "/v1/models/tales").json()["status"], "ready");
    assert_eq!(get(server.address, "/v1/models/talse").status, 404);
    let reply = post(server.address, "/v1/embeddings", &json!({ "model": "tales", "input": "x" }));
    assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (400, Some("model")));
    let reply = post(server.address, "/v1/completions", &body("bert"));
    assert_eq!((reply.status, reply.json()["error"]["param"].as_str()), (400, Some("model")));
}

#[test]
fn responses_equal_the_library_streamed_or_not() {
    let Some(source) = TestSource::tales() else { return };
    let model = source.model();
    let server = start_with(config(), source);
    let request = Request::messages([Message::system("Be brief."), Message::user("Tell me of a fox.")]);
    let expected = answer(&model, request.max_tokens(24).sampler(sampler(5)))[0].clone();
    let mut body = json!({ "model": "tales", "instructions": "Be brief.", "input": "Tell me of a fox.",
        "max_output_tokens": 24, "temperature": 0.9, "seed": 5 });
    let whole = post(server.address, "/v1/responses", &body).json();
    assert_eq!(whole["output"][0]["content"][0]["text"], expected.as_str(), "{whole}");
    assert_eq!(whole["status"], "incomplete");
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(whole["usage"]["output_tokens"], 24);
    assert_eq!(
        (&whole["temperature"], &whole["top_p"], &whole["instructions"], &whole["max_output_tokens"]),
        (&json!(0.9), &Value::Null, &json!("Be brief."), &json!(24))
    );
    assert_eq!((&whole["tool_choice"], &whole["tools"]), (&json!("auto"), &json!([])));
    body["stream"] = true.into();
    let events = post(server.address, "/v1/responses", &body).events();
    let parsed: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    for (at, ((name, _), value)) in events.iter().zip(&parsed).enumerate() {
        assert_eq!((&value["type"], &value["sequence_number"]), (&json!(name), &json!(at)));
    }
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added"
        ]
    );
    assert_eq!(names.last(), Some(&"response.incomplete"));
    let deltas = parsed.iter().filter(|event| event["type"] == "response.output_text.delta");
    let text: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(text, expected);
    let refused =
        post(server.address, "/v1/responses", &json!({ "input": "x", "previous_response_id": "resp_1" }));
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
}

/// What a response says of its request is the request's own.
#[test]
fn responses_repeat_their_requests() {
    let Some(server) = start(config()) else { return };
    let body = json!({
        "input": "Hello", "max_output_tokens": 3, "top_p": 0.5, "parallel_tool_calls": false, "tool_choice": "none",
        "tools": [{ "type": "function", "name": "f", "parameters": { "type": "object" } }],
        "metadata": { "a": "b" }, "text": { "format": { "type": "json_object" } },
    });
    let whole = post(server.address, "/v1/responses", &body).json();
    for name in
        ["top_p", "parallel_tool_calls", "tool_choice", "tools", "metadata", "text", "max_output_tokens"]
    {
        assert_eq!(whole[name], body[name], "{name}: {whole}");
    }
    assert_eq!(whole["store"], false);
}

/// Log-probabilities come with each piece of text, and whole at its end.
#[test]
fn responses_have_logprobs_of_their_text() {
    let folder = gyrus_testkit::tempfile::tempdir().unwrap();
    let template = "{{ messages[-1].content }}{# <think> </think> #}";
    let Some(source) = TestSource::with_template(template, folder.path()) else { return };
    let server = start_with(config(), source);
    let mut body = json!({ "input": "A colour?", "regex": "<think>red</think>green", "temperature": 0,
        "top_logprobs": 2, "include": ["message.output_text.logprobs"] });
    let whole = post(server.address, "/v1/responses", &body).json();
    let part = &whole["output"][1]["content"][0];
    let tokens = part["logprobs"].as_array().unwrap_or_else(|| panic!("{whole}"));
    assert_eq!((&part["text"], whole["top_logprobs"].as_u64()), (&json!("green"), Some(2)), "{whole}");
    assert!(text_of(tokens).ends_with("green") && !text_of(tokens).contains("red"), "{whole}");
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2), "{whole}");
    body["stream"] = true.into();
    let events = post(server.address, "/v1/responses", &body).events();
    let events: Vec<Value> = events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let deltas = of("response.output_text.delta");
    let deltas = deltas.iter().flat_map(|event| event["logprobs"].as_array().unwrap());
    let deltas: Vec<Value> = deltas.cloned().collect();
    assert!(!deltas.is_empty() && tokens.starts_with(&deltas), "{deltas:?}");
    assert_eq!(of("response.output_text.done")[0]["logprobs"], part["logprobs"]);
    for (field, value) in [("include", json!(["file_search_call.results"])), ("top_logprobs", json!(2))] {
        let mut body = json!({ "input": "x" });
        body[field] = value;
        assert_eq!(post(server.address, "/v1/responses", &body).json()["error"]["param"], field);
    }
}

#[test]
fn tokens_of_reasoning_are_counted() {
    let folder = gyrus_testkit::tempfile::tempdir().unwrap();
    let template = "{{ messages[-1].content }}{% if enable_thinking %}\n<think>\n{% endif %}{# </think> #}";
    let Some(source) = TestSource::with_template(template, folder.path()) else { return };
    let server = start_with(config(), source);
    let mut body = json!({ "messages": [{ "role": "user", "content": "A colour?" }], "max_tokens": 12,
        "ignore_eos": true, "chat_template_kwargs": { "enable_thinking": true } });
    let whole = post(server.address, "/v1/chat/completions", &body).json();
    assert!(!whole["choices"][0]["message"]["reasoning_content"].as_str().unwrap().is_empty(), "{whole}");
    assert_eq!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 12, "{whole}");
    // Reasoning that ends, and the answer behind it.
    body = json!({ "messages": body["messages"], "regex": "<think>red</think>green" });
    let whole = post(server.address, "/v1/chat/completions", &body).json();
    let message = &whole["choices"][0]["message"];
    assert_eq!(
        (&message["reasoning_content"], &message["content"]),
        (&json!("red"), &json!("green")),
        "{whole}"
    );
    let counted = whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(counted > 0 && counted < whole["usage"]["completion_tokens"].as_u64().unwrap(), "{whole}");
    // Reasoning that is cut off within white space, which is not told.
    let cut = json!({ "messages": body["messages"], "regex": "<think>red\\n{60}", "max_tokens": 30 });
    let whole = post(server.address, "/v1/chat/completions", &cut).json();
    assert_eq!(whole["choices"][0]["message"]["reasoning_content"], "red", "{whole}");
    assert_eq!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 30, "{whole}");
    let body = json!({ "input": "A colour?", "regex": "<think>red</think>green" });
    let whole = post(server.address, "/v1/responses", &body).json();
    assert_eq!(whole["usage"]["output_tokens_details"]["reasoning_tokens"], counted, "{whole}");
    let shown = post(server.address, "/api/show", &json!({ "model": "tales" })).json();
    assert_eq!(shown["capabilities"], json!(["completion", "thinking"]));
}

/// The text of tokens with their log-probabilities.
fn text_of(tokens: &[Value]) -> String {
    let bytes = tokens.iter().flat_map(|token| token["bytes"].as_array().unwrap());
    let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
    String::from_utf8(bytes).unwrap()
}

/// Log-probabilities are those of the text, and the same whether the answer streams.
#[test]
fn logprobs_leave_out_reasoning_and_calls() {
    let folder = gyrus_testkit::tempfile::tempdir().unwrap();
    let template = "{{ messages[-1].content }}{# <think> </think> #}";
    let Some(source) = TestSource::with_template(template, folder.path()) else { return };
    let server = start_with(config(), source);
    let messages = json!([{ "role": "user", "content": "A colour?" }]);
    let parameters = json!({ "type": "object", "properties": { "x": { "enum": ["red"] } }, "required": ["x"],
        "additionalProperties": false });
    let tools = json!([{ "type": "function", "function": { "name": "paint", "parameters": parameters } }]);
    for (more, text) in [
        (json!({ "regex": "<think>red</think>green" }), Some("green")),
        (json!({ "regex": "<think>red", "max_tokens": 8 }), None),
        (json!({ "tools": tools, "tool_choice": "required", "parallel_tool_calls": false }), None),
    ] {
        let mut body = json!({ "messages": messages, "logprobs": true, "top_logprobs": 2, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = post(server.address, "/v1/chat/completions", &body).json();
        let tokens =
            whole["choices"][0]["logprobs"]["content"].as_array().unwrap_or_else(|| panic!("{whole}"));
        let told = text_of(tokens);
        match text {
            Some(text) => assert!(told.ends_with(text) && !told.contains("red"), "{told}: {whole}"),
            None => assert!(tokens.is_empty(), "{told}: {whole}"),
        }
        body["stream"] = true.into();
        let chunks = post(server.address, "/v1/chat/completions", &body).chunks();
        let streamed =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
        assert_eq!(&streamed.flatten().cloned().collect::<Vec<Value>>(), tokens);
    }
    let mut body = json!({ "model": "tales", "messages": messages, "logprobs": true, "stream": false,
        "options": { "temperature": 0, "regex": "<think>red</think>green" } });
    let whole = post(server.address, "/api/chat", &body).json();
    let told = text_of(whole["logprobs"].as_array().unwrap_or_else(|| panic!("{whole}")));
    assert!(told.ends_with("green") && !told.contains("red"), "{told}: {whole}");
    body["stream"] = true.into();
    let reply = post(server.address, "/api/chat", &body);
    let lines = reply.text().lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let streamed: Vec<Value> =
        lines.filter_map(|mut line| line["logprobs"].as_array_mut().cloned()).flatten().collect();
    assert_eq!(Some(&streamed), whole["logprobs"].as_array());
}

#[test]
fn speculation_changes_no_token_and_breakers_reach_the_sampler() {
    let Some(source) = TestSource::tales() else { return };
    let model = source.model();
    let server = start_with(config(), source);
    let ask = |more: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "Tell me of a fox." }], "max_tokens": 100,
            "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let whole = post(server.address, "/v1/chat/completions", &body).json();
        let text = whole["choices"][0]["message"]["content"].as_str().map(str::to_owned);
        (text.unwrap_or_else(|| panic!("{whole}")), whole)
    };
    let plain = ask(json!({}));
    assert_eq!(plain.1["timings"]["draft_n"], 0);
    let speculative = ask(json!({ "speculate": true }));
    assert_eq!(plain.0, speculative.0);
    let dry = json!({ "dry_multiplier": 5.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["zebra"] });
    let mut greedy =
        Sampler { top_k: 40, top_p: 0.95, min_p: 0.05, penalty_window: 64, ..Sampler::default() };
    (greedy.temperature, greedy.dry.multiplier, greedy.dry.allowed_length) = (0.0, 5.0, 1);
    let request = Request::messages([Message::user("Tell me of a fox.")]).max_tokens(100).sampler(greedy);
    let expected = answer(&model, request.clone().dry_breakers(["zebra".to_owned()]))[0].clone();
    assert_eq!(ask(dry).0, expected);
    assert_ne!(expected, answer(&model, request)[0], "the breakers make no difference here");
    let wrong = json!({ "messages": [{ "role": "user", "content": "x" }], "dry_multiplier": 1.0, "dry_sequence_breakers": [""] });
    assert_eq!(post(server.address, "/v1/chat/completions", &wrong).status, 400);
}

#[test]
fn a_draft_model_is_loaded_and_changes_no_token() {
    let Some(source) = TestSource::tales() else { return };
    let server = start_with(config(), source);
    let ask = |more: Value| {
        let mut body = json!({ "model": "tales", "messages": [{ "role": "user", "content": "Tell me of a fox." }], "max_tokens": 120,
            "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        post(server.address, "/v1/chat/completions", &body)
    };
    let text = |whole: &Value| whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    // How many of its guesses are in time depends on the machine.
    let loaded = |model: &str| {
        let metrics = get(server.address, "/v1/metrics").json();
        metrics["models"][model]["memory_bytes"].as_u64().unwrap_or(0)
    };
    let plain = ask(json!({})).json();
    assert_eq!(loaded("second"), 0);
    for sampled in [json!({ "temperature": 0 }), json!({ "temperature": 0.8, "seed": 3 })] {
        let mut fields = sampled.clone();
        let plain = ask(sampled).json();
        fields["draft_model"] = "second".into();
        let drafted = ask(fields).json();
        assert_eq!(text(&drafted), text(&plain));
        assert!(loaded("second") > 0);
    }
    // An empty name is none.
    assert_eq!(text(&ask(json!({ "draft_model": "" })).json()), text(&plain));
    for (name, status, part) in
        [("secnd", 404, "near are second"), ("tales", 400, "it is the model that answers")]
    {
        let refused = ask(json!({ "draft_model": name }));
        let whole = refused.json();
        assert_eq!(
            (refused.status, whole["error"]["param"].as_str()),
            (status, Some("draft_model")),
            "{whole}"
        );
        assert!(whole["error"]["message"].as_str().unwrap().contains(part), "{whole}");
    }
    assert_eq!(ask(json!({ "draft_model": 3 })).status, 400);
    // Both models are given back.
    for model in ["second", "tales"] {
        let unloaded = post(server.address, "/v1/models/unload", &json!({ "model": model }));
        assert_eq!(unloaded.status, 200, "{}", unloaded.text());
    }
}
