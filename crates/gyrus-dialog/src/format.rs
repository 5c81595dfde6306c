//! How families of models write reasoning and tool calls.

use crate::formats::{self, Fixed, Table};

/// A way to write reasoning and tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// `<tool_call>` with JSON, after the prompt of [`tool_prompt`](crate::tool_prompt), or JSON alone.
    Generic,
    /// `<tool_call>` with JSON, with `<function=…>` (Qwen3-Coder) or with `<arg_key>` (GLM).
    Hermes,
    /// JSON alone, or behind `<|python_tag|>`.
    Llama3,
    /// `[TOOL_CALLS]` with an array, or with names and `[ARGS]`.
    Mistral,
    /// `<｜tool▁calls▁begin｜>`, of R1, V3 and V3.1.
    DeepSeek,
    /// `<|tool_call>call:name{…}`, of Gemma 4, and `<start_function_call>`, of FunctionGemma.
    Gemma,
    /// The channels of gpt-oss.
    Harmony,
    /// `<TOOLCALL>` with an array.
    Nemotron,
    /// `<|START_ACTION|>` with an array.
    Cohere,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 9] = [
        Format::Harmony,
        Format::DeepSeek,
        Format::Gemma,
        Format::Mistral,
        Format::Cohere,
        Format::Nemotron,
        Format::Hermes,
        Format::Llama3,
        Format::Generic,
    ];

    /// The format of a model with this chat template. Markers decide; a template without any is [`Format::Generic`].
    pub fn detect(template: &str) -> Format {
        let fits = |format: &Format| {
            format.table().markers.iter().any(|all| all.iter().all(|one| template.contains(one)))
        };
        Format::ALL.into_iter().find(fits).unwrap_or(Format::Generic)
    }

    pub(crate) fn table(self) -> &'static Table {
        match self {
            Format::Generic => &formats::generic::TABLE,
            Format::Hermes => &formats::hermes::TABLE,
            Format::Llama3 => &formats::llama3::TABLE,
            Format::Mistral => &formats::mistral::TABLE,
            Format::DeepSeek => &formats::deepseek::TABLE,
            Format::Gemma => &formats::gemma::TABLE,
            Format::Harmony => &formats::harmony::TABLE,
            Format::Nemotron => &formats::nemotron::TABLE,
            Format::Cohere => &formats::cohere::TABLE,
        }
    }

    /// The name of the format.
    pub fn name(self) -> &'static str {
        self.table().name
    }

    /// The header that the answer's text begins with, in formats where each message has one: what tells it from the headers
    /// of other messages, and the rest of it. A constraint on the text begins behind it.
    pub fn answer_header(self) -> Option<(&'static str, &'static str)> {
        (self == Format::Harmony).then_some(formats::harmony::FINAL)
    }

    /// The text that ends the reasoning. A constraint on the answer begins after it, or behind [`Format::answer_header`].
    pub fn reasoning_end(self) -> &'static str {
        match self {
            Format::Harmony => formats::harmony::END,
            other => other.table().reasoning.1,
        }
    }

    /// Whether reasoning or calls are written with this control token. Others are no part of the output.
    pub fn is_written_with(self, control: &str) -> bool {
        let table = self.table();
        let (open, close) = table.reasoning;
        let in_frame = |fixed: &Fixed| matches!(fixed, Fixed::Marker(name) if *name == control);
        let listed = table.opens.iter().chain(table.controls).any(|name| *name == control);
        !control.is_empty()
            && (listed
                || open.contains(control)
                || close.contains(control)
                || table.frame.iter().any(|frame| frame.iter().any(in_frame)))
    }

    /// The text that begins the reasoning.
    pub fn reasoning_start(self) -> &'static str {
        self.table().reasoning.0
    }

    /// Whether a prompt ends inside the reasoning, so that the output begins with it.
    pub fn begins_in_reasoning(self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.table().reasoning.0.trim_end())
    }
}
