//! Reasoning, template variables and tools that a chat template knows.

mod completion;

use completion::{Completion, run, tools};
use gyrus::constrain::Source;
use gyrus::tools::ToolChoice;
use gyrus::{Message, Model, Options, Request, StopReason};
use gyrus_testkit::{data, tempfile};

/// Tales with this chat template.
fn tales(template: &str) -> Option<Model> {
    let source = data("tales/model.safetensors")?;
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(source.with_file_name(name), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let options = Options { context: Some(256), access: gyrus::Access::Read, ..Options::default() };
    Some(Model::open(folder.path(), &options).unwrap())
}

fn ask() -> Request {
    Request::messages([Message::user("A colour?")]).max_tokens(12)
}

fn colour() -> Source {
    Source::Regex("red|green".into())
}

fn prompt(model: &Model, request: &Request) -> String {
    model.tokenizer().unwrap().decode(&model.prompt_tokens(request).unwrap(), true)
}

fn one(model: &Model, request: Request) -> Completion {
    run(model, request).unwrap().remove(0)
}

const OPENED: &str = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n";

#[test]
fn a_prompt_that_ends_in_reasoning_is_answered_with_reasoning() {
    let Some(model) = tales(OPENED) else { return };
    let free = one(&model, ask());
    assert!(!free.reasoning.is_empty() && free.text.is_empty(), "{free:?}");
    // The constraint waits for the end of the reasoning, which this model does not write.
    let waits = one(&model, ask().constraint(colour()));
    assert_eq!(waits.reason, Some(StopReason::MaxTokens));
    assert!(!waits.reasoning.is_empty() && waits.text.is_empty(), "{waits:?}");
}

#[test]
fn reasoning_that_is_switched_off_ends_at_once() {
    for template in [OPENED, "{{ messages[0].content + '\\n<think>\\n' }}"] {
        let Some(model) = tales(template) else { return };
        let request = || ask().reasoning(false).constraint(colour());
        let prompt = prompt(&model, &request());
        assert!(prompt.ends_with("<think>\n\n</think>\n\n"), "{prompt:?}");
        let answer = one(&model, request());
        assert!(["red", "green"].contains(&&*answer.text) && answer.reasoning.is_empty(), "{answer:?}");
    }
}

#[test]
fn templates_get_the_variables_of_a_request() {
    let source = "{{ enable_thinking | default('unset') }} {{ thinking | default('unset') }} {{ effort | default(1) }}";
    let Some(model) = tales(source) else { return };
    let shown = |request: Request| prompt(&model, &request).trim().to_owned();
    assert!(shown(ask()).ends_with("unset unset 1"));
    assert!(shown(ask().reasoning(true)).ends_with("True True 1"));
    let both = ask().reasoning(false).variable("thinking", true.into()).variable("effort", "low".into());
    assert!(shown(both).ends_with("False True low"));
}

/// Text that a constraint allows behind a trigger that the model must write.
#[test]
fn reasoning_that_is_switched_on_comes_before_the_constraint() {
    let Some(model) = tales("{{ messages[-1].content }}{# </think> #}") else { return };
    let waits = one(&model, ask().reasoning(true).constraint(colour()));
    assert_eq!((waits.reason, waits.ids.len()), (Some(StopReason::MaxTokens), 12));
    let at_once = one(&model, ask().constraint(colour()));
    assert!(["red", "green"].contains(&&*at_once.text), "{at_once:?}");
}

const HARMONY: &str = "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}\
                       <|start|>assistant{# <|channel|> reasoning_effort #}";
const FINAL: &str = "<|start|>assistant<|channel|>final<|message|>";

/// A constraint must not forbid the header of the answer.
#[test]
fn constrained_text_of_channels_has_its_header() {
    let Some(model) = tales(HARMONY) else { return };
    assert!(prompt(&model, &ask()).ends_with("<|start|>assistant"));
    let without = ask().variable("reasoning_effort", "none".into());
    for request in [ask(), ask().reasoning(false), without] {
        let request = request.constraint(Source::Regex(r"to=x<\|message\|>(red|green)".into()));
        let text = prompt(&model, &request);
        assert!(text.ends_with(FINAL), "{text}");
        // The text is that of a message, even if it looks like a header.
        let answer = one(&model, request.max_tokens(40));
        assert!(answer.text.starts_with("to=x<|message|>") && answer.calls.is_empty(), "{answer:?}");
    }
    // With reasoning the model writes the header itself.
    let asked = [ask().reasoning(true), ask().variable("reasoning_effort", "high".into())];
    for request in asked.map(|request| request.constraint(colour())) {
        assert!(prompt(&model, &request).ends_with("<|start|>assistant"));
        let waits = one(&model, request);
        assert_eq!((waits.reason, waits.ids.len()), (Some(StopReason::MaxTokens), 12));
    }
    // A template may write it, too.
    let Some(model) = tales(&HARMONY.replace("assistant{#", "assistant<|channel|>final<|message|>{#")) else {
        return;
    };
    let request = ask().constraint(colour());
    assert_eq!(prompt(&model, &request).matches("final").count(), 1);
    assert!(["red", "green"].contains(&&*one(&model, request).text));
}

#[test]
fn a_constraint_begins_behind_the_text_of_a_request() {
    let Some(model) = tales("{{ messages[0].content }}") else { return };
    let request = || Request::text("Once upon a time").constraint(Source::Regex(" (red|green)".into()));
    let at_once = one(&model, request());
    let later = one(&model, request().constraint_after("was").max_tokens(60));
    assert!([" red", " green"].contains(&&*at_once.text), "{at_once:?}");
    let (free, constrained) = later.text.split_once("was").unwrap();
    assert!(!free.is_empty() && [" red", " green"].contains(&constrained), "{later:?}");
    let error = run(&model, request().constraint_after("x".repeat(257))).unwrap_err().to_string();
    assert!(error.contains("257 bytes") && error.contains("at most 256"), "{error}");
}

#[test]
fn tools_are_told_as_the_template_or_the_system_message_tells_them() {
    let Some(model) = tales("{{ tools | default('none') | tojson }}<tool_call>{{ messages[0].content }}")
    else {
        return;
    };
    let told = |model: &Model, choice: ToolChoice| prompt(model, &ask().tools(tools()).tool_choice(choice));
    assert!(told(&model, ToolChoice::Auto).contains("\"name\": \"weather\""));
    assert!(!told(&model, ToolChoice::None).contains("weather"));
    let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let Some(model) = tales(source) else { return };
    let text = told(&model, ToolChoice::Auto);
    assert!(
        text.contains("system: # Tools") && text.contains("## weather") && text.contains("user: A"),
        "{text}"
    );
    assert!(!told(&model, ToolChoice::None).contains("weather"));
    let request = Request::messages([Message::system("Be brief."), Message::user("Hello")]).tools(tools());
    assert!(prompt(&model, &request).contains("system: Be brief.\n\n# Tools"));
}
