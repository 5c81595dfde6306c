//! Templates for models without one, chosen by the special tokens of their vocabulary.

/// A template chosen by [`fallback`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fallback {
    /// The name of the template, to report the choice to the user.
    pub name: &'static str,
    /// Its source, for [`ChatTemplate::new`](super::ChatTemplate::new).
    pub template: &'static str,
}

/// The template whose special tokens the vocabulary has; the plain one if it has none of them.
///
/// `has_token` returns whether a text is one token of the vocabulary. The choice is a guess, so callers should report
/// it on standard error.
pub fn fallback(has_token: impl Fn(&str) -> bool) -> Fallback {
    let fits = |(_, tokens, _): &&(&str, &[&str], &str)| tokens.iter().all(|token| has_token(token));
    match FORMS.iter().find(fits) {
        Some((name, _, template)) => Fallback { name, template },
        None => Fallback { name: "plain", template: PLAIN },
    }
}

impl Fallback {
    /// Every template in the order of the search, the plain one last.
    pub fn all() -> impl Iterator<Item = Fallback> {
        let forms = FORMS.iter().map(|&(name, _, template)| Fallback { name, template });
        forms.chain([Fallback { name: "plain", template: PLAIN }])
    }
}

/// Prepends the macro `text`, which converts content of every kind.
macro_rules! form {
    ($file:literal) => {
        concat!(include_str!("forms/text.jinja"), include_str!(concat!("forms/", $file, ".jinja")))
    };
}

const PLAIN: &str = form!("plain");

/// Name, required tokens, template. More specific tokens come first.
const FORMS: &[(&str, &[&str], &str)] = &[
    ("llama3", &["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], form!("llama3")),
    ("llama4", &["<|header_start|>", "<|header_end|>", "<|eot|>"], form!("llama4")),
    ("gemma", &["<start_of_turn>", "<end_of_turn>"], form!("gemma")),
    ("granite", &["<|start_of_role|>", "<|end_of_role|>"], form!("granite")),
    (
        "command-r",
        &["<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>"],
        form!("command-r"),
    ),
    ("deepseek", &["<｜User｜>", "<｜Assistant｜>"], form!("deepseek")),
    ("harmony", &["<|start|>", "<|message|>", "<|channel|>", "<|end|>"], form!("harmony")),
    ("glm", &["[gMASK]", "<sop>", "<|user|>", "<|assistant|>"], form!("glm")),
    ("phi3", &["<|user|>", "<|assistant|>", "<|end|>"], form!("phi3")),
    ("zephyr", &["<|user|>", "<|assistant|>"], form!("zephyr")),
    ("chatml", &["<|im_start|>", "<|im_end|>"], form!("chatml")),
    ("mistral", &["[INST]", "[/INST]"], form!("mistral")),
    // A SentencePiece vocabulary with byte tokens and no other hint.
    ("llama2", &["<s>", "</s>", "<0x0A>"], form!("llama2")),
];

#[cfg(test)]
mod tests {
    use super::super::{ChatTemplate, Conversation, Inputs};
    use super::*;

    fn chosen(tokens: &[&str]) -> &'static str {
        fallback(|token| tokens.contains(&token)).name
    }

    #[test]
    fn the_vocabulary_decides() {
        assert_eq!(chosen(&["<|im_start|>", "<|im_end|>", "<|endoftext|>"]), "chatml");
        assert_eq!(chosen(&["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]), "llama3");
        assert_eq!(chosen(&["<s>", "</s>", "<0x0A>"]), "llama2");
        assert_eq!(chosen(&["<s>", "</s>", "<0x0A>", "[INST]", "[/INST]"]), "mistral");
        assert_eq!(chosen(&["<s>", "</s>", "<0x0A>", "<|user|>", "<|assistant|>", "<|end|>"]), "phi3");
        assert_eq!(chosen(&["<|im_start|>"]), "plain");
        assert_eq!(chosen(&[]), "plain");
    }

    #[test]
    fn every_form_renders_every_message() {
        let conversation = Conversation::from_json(
            r#"[{"role": "system", "content": "alpha"}, {"role": "user", "content": [{"type": "text", "text": "beta"}]},
                {"role": "assistant", "content": null}, {"role": "user", "content": "gamma"}]"#,
        )
        .unwrap();
        let mut inputs = Inputs::new(&conversation);
        inputs.add_generation_prompt = true;
        for form in Fallback::all() {
            let text = ChatTemplate::new(form.template).unwrap().render(&inputs).unwrap();
            for word in ["alpha", "beta", "gamma"] {
                assert_eq!(text.matches(word).count(), 1, "{}: {text}", form.name);
            }
            assert!(!text.contains("None"), "{}: {text}", form.name);
        }
    }
}
