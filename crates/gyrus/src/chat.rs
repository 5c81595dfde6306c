//! Conversations in the form a model was trained on.

use std::collections::BTreeMap;

use gyrus_text::Tokenizer;
use gyrus_text::template::{ChatTemplate, Conversation, Inputs, TemplateError, fallback};

/// A model's chat template with the special tokens it may name.
#[derive(Debug)]
pub struct ChatFormat {
    template: ChatTemplate,
    fallback: Option<&'static str>,
    special_tokens: BTreeMap<String, String>,
}

impl ChatFormat {
    /// The model's own template, or one that fits its vocabulary where it carries none.
    pub fn new(source: Option<&str>, tokenizer: &Tokenizer) -> Result<ChatFormat, TemplateError> {
        let (source, fallback) = match source {
            Some(source) => (source, None),
            None => {
                let form = fallback(|token| tokenizer.id_of(token).is_some());
                (form.template, Some(form.name))
            }
        };
        let ids = tokenizer.special_ids();
        // By the names that templates know from Python.
        let named = [
            ("bos_token", ids.bos),
            ("eos_token", ids.eos),
            ("unk_token", ids.unk),
            ("sep_token", ids.sep),
            ("pad_token", ids.pad),
            ("cls_token", ids.cls),
            ("mask_token", ids.mask),
        ];
        let text = |id: u32| tokenizer.token_text(id).map(str::to_owned);
        let special_tokens =
            named.into_iter().filter_map(|(name, id)| Some((name.to_owned(), text(id?)?))).collect();
        Ok(ChatFormat { template: ChatTemplate::new(source)?, fallback, special_tokens })
    }

    /// The name of the form that was chosen because the model carries no template. It is a guess, so
    /// callers should say so.
    pub fn fallback(&self) -> Option<&'static str> {
        self.fallback
    }

    /// The prompt for a conversation. With `answer` it ends where the model's answer begins.
    pub fn render(&self, conversation: &Conversation, answer: bool) -> Result<String, TemplateError> {
        self.render_with(conversation, answer, &serde_json::Map::new())
    }

    /// As [`ChatFormat::render`], with further variables for the template.
    pub fn render_with(
        &self,
        conversation: &Conversation,
        answer: bool,
        variables: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<String, TemplateError> {
        let mut inputs = Inputs::new(conversation);
        inputs.add_generation_prompt = answer;
        inputs.special_tokens = self.special_tokens.clone();
        inputs.variables = variables.clone();
        self.template.render(&inputs)
    }
}
