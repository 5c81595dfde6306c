//! gpt-oss: messages with channels, `<|channel|>analysis<|message|>…<|end|>`.

use gyrus_constrain::template::Part;

use super::{Fixed, Step, Table, arguments, event};
use crate::marked::{MAX_CALL, Section, hold, too_long};
use crate::scan::Scan;
use crate::{Event, Tools, call};

pub(crate) const END: &str = "<|end|>";
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";

/// The header of the answer's text. A model may write others with `<|constrain|>` before the message.
pub(crate) const FINAL: (&str, &str) = ("<|channel|>final", MESSAGE);

/// What ends a message. A new header may follow without an end.
const ENDS: [&str; 5] = [END, "<|return|>", "<|call|>", START, CHANNEL];

/// What a header begins with.
const BEGINS: [&str; 3] = [START, CHANNEL, "to="];

/// The longest header of a message.
const MAX_HEADER: usize = 400;

pub(crate) static TABLE: Table = Table {
    name: "harmony",
    markers: &[&[CHANNEL, MESSAGE]],
    reasoning: ("<|channel|>analysis<|message|>", END),
    opens: &[],
    bare: false,
    read: |_, _, _, _| Step::Done(Vec::new(), 0),
    call: |tool| {
        let head = vec![
            Part::Text(format!("commentary to=functions.{} ", tool.name)),
            Part::Marker(CONSTRAIN.into()),
        ];
        let body = vec![Part::text("json"), Part::Marker(MESSAGE.into()), arguments(tool)];
        Ok(Part::Sequence([head, body].concat()))
    },
    // `<|call|>` ends the output: it is one of the model's end tokens.
    frame: [&[Fixed::Marker(CHANNEL)], &[], &[]],
    controls: &[START, MESSAGE, CONSTRAIN, "<|return|>", "<|call|>"],
};

/// What comes between the end of the reasoning and the next header, for a grammar.
pub(crate) const AFTER_REASONING: super::Frame = &[Fixed::Marker(START), Fixed::Text("assistant")];

/// A parser of messages.
#[derive(Debug)]
pub(crate) struct Harmony {
    tools: Option<Tools>,
    pending: String,
    /// How far the call in `pending` has been read.
    scan: Scan,
    body: Option<Body>,
    content: Section,
    reasoning: Section,
}

/// The kind of message whose text is being read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Body {
    Content,
    Reasoning,
    /// A call, with its header.
    Call {
        name: String,
        header: String,
    },
}

impl Harmony {
    pub(crate) fn new(tools: Option<Tools>, in_reasoning: bool) -> Harmony {
        let body = in_reasoning.then_some(Body::Reasoning);
        Harmony {
            tools,
            pending: String::new(),
            scan: Scan::default(),
            body,
            content: Section::default(),
            reasoning: Section::default(),
        }
    }

    pub(crate) fn is_in_reasoning(&self) -> bool {
        self.body == Some(Body::Reasoning)
    }

    pub(crate) fn push(&mut self, text: &str, is_end: bool, events: &mut Vec<Event>) {
        self.pending.push_str(text);
        while self.step(is_end, events) {}
        if is_end {
            self.content.finish(events, Event::Content);
        }
    }

    /// Takes a header or a part of a message. Returns whether there may be more.
    fn step(&mut self, is_end: bool, events: &mut Vec<Event>) -> bool {
        let Some(body) = self.body.clone() else { return self.header(is_end, events) };
        let end = self.scan.seek(&self.pending, &ENDS);
        let length = match end {
            Some((at, _)) => at,
            None if is_end => self.pending.len(),
            None => self.pending.len() - hold(&self.pending, &ENDS),
        };
        if matches!(body, Body::Call { .. }) && end.is_none() && !is_end && length <= MAX_CALL {
            // A call is read as a whole.
            return false;
        }
        self.scan = Scan::default();
        if let Body::Call { header, .. } = &body
            && length > MAX_CALL
        {
            // What a call may not have is content.
            let most = self.pending.floor_char_boundary(MAX_CALL);
            let text: String = self.pending.drain(..most).collect();
            events.push(too_long(&format!("{header}{text}")));
            self.content = Section::begun();
            self.body = Some(Body::Content);
            return true;
        }
        let text: String = self.pending.drain(..length).collect();
        match &body {
            Body::Content => self.content.push(&text, events, Event::Content),
            Body::Reasoning => self.reasoning.push(&text, events, Event::Reasoning),
            Body::Call { name, header } => {
                let none = Tools::default();
                let tools = self.tools.as_ref().unwrap_or(&none);
                events.push(event(call::new(name.clone(), &text, None, tools), &format!("{header}{text}")));
            }
        }
        let Some((_, end)) = end else { return false };
        // A marker that begins a header stays for it.
        if end != START && end != CHANNEL {
            self.pending.drain(..end.len());
        }
        self.reasoning = Section::trimmed();
        if body == Body::Content {
            self.content.finish(events, Event::Content);
        }
        self.content = Section::trimmed();
        self.body = None;
        true
    }

    /// Reads a header up to the message. Text that is no header is content.
    fn header(&mut self, is_end: bool, events: &mut Vec<Event>) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let Some(at) = self.pending.find(MESSAGE) else {
            let text = self.pending.trim_start();
            let may_be = BEGINS.iter().any(|begin| text.starts_with(begin) || begin.starts_with(text));
            if may_be && !is_end && self.pending.len() < MAX_HEADER + MESSAGE.len() {
                return false;
            }
            return self.no_header(events);
        };
        let header = self.pending[..at + MESSAGE.len()].to_owned();
        let text = header.trim_start();
        if !BEGINS.iter().any(|begin| text.starts_with(begin)) || at > MAX_HEADER {
            return self.no_header(events);
        }
        self.pending.drain(..header.len());
        let word = |after: &str| {
            let rest = header.split_once(after)?.1.trim_start();
            Some(rest[..rest.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(rest.len())].to_owned())
        };
        self.body = Some(match (word("to="), word(CHANNEL).as_deref()) {
            (Some(recipient), _) if recipient != "user" => {
                let name = recipient.strip_prefix("functions.").unwrap_or(&recipient).to_owned();
                Body::Call { name, header }
            }
            (_, Some("analysis")) => Body::Reasoning,
            _ => Body::Content,
        });
        true
    }

    /// The text is content. Its first character may be that of a marker, which would end the message at once.
    fn no_header(&mut self, events: &mut Vec<Event>) -> bool {
        let length = self.pending.chars().next().map_or(0, char::len_utf8);
        let text: String = self.pending.drain(..length).collect();
        self.content.push(&text, events, Event::Content);
        self.body = Some(Body::Content);
        true
    }
}
