//! Any text as a chat template and as a conversation: an error or a prompt, within bounds.
//!
//! The input is the template, a line of three dashes, and the conversation's JSON.
#![no_main]

use gyrus_text::template::{ChatTemplate, Conversation, Inputs, Limits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| {
    let (source, messages) = data.split_once("\n---\n").unwrap_or((data, r#"[{"role":"user","content":"hi"}]"#));
    let conversation = match Conversation::from_json(messages) {
        Ok(conversation) => conversation,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            Conversation::from_json(r#"[{"role":"user","content":"hi"}]"#).unwrap()
        }
    };
    match ChatTemplate::new(source) {
        Ok(template) => {
            // Smaller than the defaults, so that the fuzzer meets them.
            let mut limits = Limits::default();
            limits.fuel = 200_000;
            limits.output = 1 << 20;
            let mut inputs = Inputs::new(&conversation);
            inputs.add_generation_prompt = true;
            match template.with_limits(limits).render_parts(&inputs) {
                Ok(rendered) => {
                    assert!(rendered.text().len() <= 1 << 20);
                    assert_eq!(rendered.parts().map(|(text, _)| text).collect::<String>(), rendered.text());
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        Err(error) => assert!(error.to_string().contains("line") || error.to_string().contains("limit"), "{error}"),
    }
});
