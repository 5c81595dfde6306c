//! Chat templates of real models: detection, and calls that are rendered and read back.

mod common;

use gyrus_dialog::{Event, Format, knows_tools};
use gyrus_text::template::{ChatTemplate, Conversation, Inputs};
use serde_json::{Value, json};

/// Templates with their format. `true`: rendered calls are read back.
const TEMPLATES: [(&str, Format, bool); 20] = [
    ("CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja", Format::Cohere, true),
    ("GLM-4.6.jinja", Format::Hermes, true),
    ("HuggingFaceTB-SmolLM3-3B.jinja", Format::Generic, false),
    ("Mistral-Small-3.2-24B-Instruct-2506.jinja", Format::Mistral, true),
    ("NVIDIA-Nemotron-Nano-v2.jinja", Format::Nemotron, true),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja", Format::Hermes, true),
    ("Qwen-Qwen2.5-7B-Instruct.jinja", Format::Hermes, true),
    ("Qwen-Qwen3-0.6B.jinja", Format::Hermes, true),
    ("Qwen3-Coder.jinja", Format::Hermes, true),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja", Format::DeepSeek, true),
    ("deepseek-ai-DeepSeek-V3.1.jinja", Format::DeepSeek, true),
    ("google-gemma-2-2b-it.jinja", Format::Generic, false),
    ("google-gemma-4-31B-it.jinja", Format::Gemma, true),
    ("ibm-granite-granite-4.0.jinja", Format::Hermes, true),
    // Its calls, `>>>name`, are not read.
    ("meetkai-functionary-medium-v3.2.jinja", Format::Generic, false),
    ("meta-llama-Llama-3.1-8B-Instruct.jinja", Format::Llama3, true),
    ("meta-llama-Llama-3.2-3B-Instruct.jinja", Format::Llama3, true),
    ("microsoft-Phi-3.5-mini-instruct.jinja", Format::Generic, false),
    ("mistralai-Mistral-Nemo-Instruct-2407.jinja", Format::Mistral, true),
    ("openai-gpt-oss-120b.jinja", Format::Harmony, true),
];

fn template(name: &str) -> Option<String> {
    let path = gyrus_testkit::data("templates")?.join(name);
    Some(std::fs::read_to_string(path).unwrap())
}

#[test]
fn formats_are_detected() {
    for (name, format, _) in TEMPLATES {
        let Some(text) = template(name) else { return };
        assert_eq!(Format::detect(&text), format, "{name}");
    }
    let knows = |name: &str| knows_tools(&template(name).unwrap());
    assert!(knows("Qwen-Qwen3-0.6B.jinja") && knows("meta-llama-Llama-3.2-3B-Instruct.jinja"));
    assert!(!knows("google-gemma-2-2b-it.jinja") && !knows("microsoft-Phi-3.5-mini-instruct.jinja"));
}

/// What the template writes behind the prompt of a question, for an answer with calls.
fn rendered(source: &str, calls: &Value) -> Result<String, String> {
    let template = ChatTemplate::new(source).map_err(|error| error.to_string())?;
    let user = json!({ "role": "user", "content": "What is the weather?" });
    let answer = json!({ "role": "assistant", "content": "", "tool_calls": calls });
    let tools = json!([{ "type": "function", "function": { "name": "weather", "description": "The weather in a city.",
        "parameters": { "type": "object", "properties": { "city": { "type": "string", "description": "A city." },
        "days": { "type": "integer", "description": "How many." } }, "required": ["city"] } } }]);
    let render = |messages: Value, prompt: bool| {
        let conversation = json!({ "messages": messages, "tools": tools });
        let conversation =
            Conversation::from_json(&conversation.to_string()).map_err(|error| error.to_string())?;
        let mut inputs = Inputs::new(&conversation);
        inputs.add_generation_prompt = prompt;
        inputs.special_tokens.insert("bos_token".into(), "<s>".into());
        inputs.special_tokens.insert("eos_token".into(), "</s>".into());
        template.render(&inputs).map_err(|error| error.to_string())
    };
    let prompt = render(json!([user]), true)?;
    let whole = render(json!([user, answer]), false)?;
    let shared = prompt.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
    let shared = (0..=shared).rev().find(|&at| whole.is_char_boundary(at)).unwrap_or(0);
    // Two tags may begin with the same characters.
    let shared = match (whole[..shared].rfind('<'), whole[..shared].rfind('>')) {
        (Some(open), close) if close.is_none_or(|close| close < open) => open,
        _ => shared,
    };
    Ok(whole[shared..].to_owned())
}

#[test]
fn rendered_calls_are_read_back() {
    let arguments = json!({ "city": "Köln \"am\" Rhein", "days": 3 });
    for (name, format, reads) in TEMPLATES {
        let Some(source) = template(name) else { return };
        if !reads {
            continue;
        }
        let call = json!({ "id": "abcdef123", "type": "function", "function": { "name": "weather", "arguments": arguments } });
        let answer = rendered(&source, &json!([call])).unwrap_or_else(|error| panic!("{name}: {error}"));
        let events = common::every_split(format, false, &answer);
        let calls: Vec<_> = events
            .iter()
            .filter_map(|event| if let Event::Call(call) = event { Some(call) } else { None })
            .collect();
        let [found] = calls.as_slice() else { panic!("{name}: {answer}\n{events:?}") };
        assert_eq!(found.name, "weather", "{name}");
        assert_eq!(serde_json::from_str::<Value>(&found.arguments).unwrap(), arguments, "{name}: {answer}");
        assert!(!events.iter().any(|event| matches!(event, Event::Malformed { .. })), "{name}: {events:?}");
    }
}
