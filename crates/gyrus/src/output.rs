//! From the tokens of a completion to its parts: text, reasoning, tool calls.

use std::collections::VecDeque;
use std::sync::Arc;

use gyrus_dialog::{Call, Event as Piece, Format, Parser};
use gyrus_text::{Detokenizer, TokenKind, Tokenizer};

use crate::prompt::Dialog;
use crate::stop_strings::StopStrings;

/// The initial capacity for a token's text in bytes; few tokens are longer.
const TOKEN_TEXT_BYTES: usize = 256;

/// Decodes tokens, splits the text and looks for stop strings in the answer.
pub(crate) struct Output {
    tokenizer: Option<Arc<Tokenizer>>,
    detokenizer: Option<Detokenizer<Arc<Tokenizer>>>,
    dialog: Option<(Format, Parser)>,
    stop_strings: StopStrings,
    stopped: Option<String>,
    /// Parts that were not taken yet. Without a dialog, `token_text` is the only one.
    pieces: VecDeque<Piece>,
    token_text: String,
    text: String,
    call: Option<Call>,
    has_finished: bool,
    ended_in_reasoning: bool,
}

/// A part of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputPart {
    /// [`Output::text`] is of the answer.
    Text,
    /// [`Output::text`] is of the reasoning.
    Reasoning,
    /// [`Output::call`] is a tool call.
    Call,
}

impl Output {
    pub(crate) fn new(
        tokenizer: Option<Arc<Tokenizer>>,
        dialog: Option<Dialog>,
        stops: Vec<String>,
    ) -> Output {
        let dialog = dialog.map(|dialog| {
            let mut parser = Parser::new(dialog.format, dialog.tools, dialog.in_reasoning);
            // A header has no events of its own.
            dialog.header.iter().for_each(|header| drop(parser.push(header)));
            (dialog.format, parser)
        });
        Output {
            // Reasoning and tool calls may be written with control tokens.
            detokenizer: tokenizer
                .clone()
                .map(|tokenizer| Detokenizer::continuing(tokenizer, dialog.is_some())),
            tokenizer,
            dialog,
            stop_strings: StopStrings::new(stops),
            stopped: None,
            pieces: VecDeque::new(),
            token_text: String::with_capacity(TOKEN_TEXT_BYTES),
            text: String::with_capacity(TOKEN_TEXT_BYTES),
            call: None,
            has_finished: false,
            ended_in_reasoning: false,
        }
    }

    /// Takes the next token.
    pub(crate) fn push(&mut self, id: u32) {
        let hidden =
            self.tokenizer.as_ref().zip(self.dialog.as_ref()).is_some_and(|(tokenizer, (format, _))| {
                let is_control = tokenizer.kind(id) == Some(TokenKind::Control);
                is_control && !format.is_written_with(tokenizer.token_text(id).unwrap_or_default())
            });
        let Some(detokenizer) = self.detokenizer.as_mut().filter(|_| !hidden) else { return };
        match &mut self.dialog {
            None => detokenizer.push_into(id, &mut self.token_text),
            Some((_, parser)) => {
                self.token_text.clear();
                detokenizer.push_into(id, &mut self.token_text);
                self.pieces.extend(parser.push(&self.token_text));
                self.token_text.clear();
            }
        }
    }

    /// The next part that the tokens have completed.
    pub(crate) fn next(&mut self) -> Option<OutputPart> {
        self.text.clear();
        self.call = None;
        if !self.token_text.is_empty() {
            let stop = self.stop_strings.push(&self.token_text, &mut self.text);
            self.stopped = stop.map(str::to_owned);
            self.token_text.clear();
        }
        while self.text.is_empty() && self.stopped.is_none() {
            match self.pieces.pop_front() {
                Some(Piece::Content(text) | Piece::Malformed { text, .. }) => {
                    self.stopped = self.stop_strings.push(&text, &mut self.text).map(str::to_owned);
                }
                Some(Piece::Reasoning(text)) => {
                    self.text = text;
                    return Some(OutputPart::Reasoning);
                }
                Some(Piece::Call(call)) => {
                    // Text before the call cannot begin a stop string that goes on behind it.
                    self.stop_strings.finish(&mut self.text);
                    if !self.text.is_empty() {
                        self.pieces.push_front(Piece::Call(call));
                        break;
                    }
                    self.call = Some(call);
                    return Some(OutputPart::Call);
                }
                Some(_) => {}
                None if self.has_finished => {
                    self.stop_strings.finish(&mut self.text);
                    break;
                }
                None => break,
            }
        }
        if self.stopped.is_some() {
            // What follows the stop string is no part of the completion.
            self.pieces.clear();
            self.detokenizer = None;
        }
        (!self.text.is_empty()).then_some(OutputPart::Text)
    }

    /// The stop string that ended the completion.
    pub(crate) fn stop_string(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// Ends the completion: what was held back comes out.
    pub(crate) fn finish(&mut self) {
        if std::mem::replace(&mut self.has_finished, true) || self.stopped.is_some() {
            return;
        }
        let rest = self.detokenizer.take().map(Detokenizer::finish).unwrap_or_default();
        match self.dialog.take() {
            None => self.token_text.push_str(&rest),
            Some((_, mut parser)) => {
                self.pieces.extend(parser.push(&rest));
                self.ended_in_reasoning = parser.is_in_reasoning();
                self.pieces.extend(parser.finish());
            }
        }
    }

    /// Whether the completion ended inside the reasoning.
    pub(crate) fn ended_in_reasoning(&self) -> bool {
        self.ended_in_reasoning
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn call(&self) -> Option<&Call> {
        self.call.as_ref()
    }
}
