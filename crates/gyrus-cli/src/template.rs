//! `gyrus template`: applies a model's chat template to a conversation.

use std::path::Path;

use anyhow::{Context, Result};
use gyrus::ChatFormat;
use gyrus::text::template::Conversation;

use crate::cli::TemplateArgs;
use crate::diagnostics;
use crate::screen::Screen;
use crate::source;

pub(crate) fn run(args: &TemplateArgs) -> Result<()> {
    let checkpoint = source::open(&args.model)?;
    let tokenizer =
        gyrus::tokenizer::read(&checkpoint)?.with_context(|| source::no_tokenizer(&args.model))?;
    let template = gyrus::tokenizer::template_source(&checkpoint)?;
    let format = ChatFormat::new(template.as_deref(), &tokenizer)?;
    if let Some(name) = format.fallback() {
        diagnostics::note(format!("the model has no chat template, using the {name} template"));
    }
    let messages = args.messages.display();
    let mut conversation =
        Conversation::from_json(&read_text(&args.messages)?).with_context(|| messages.to_string())?;
    if let Some(tools) = &args.tools {
        conversation =
            conversation.with_tools_json(&read_text(tools)?).with_context(|| tools.display().to_string())?;
    }
    let text = format.render(&conversation, !args.no_generation_prompt)?;
    // Exactly the prompt, without a newline at its end.
    Ok(Screen::stdout().text(&text)?)
}

fn read_text(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}
