//! Formats that put reasoning and calls between markers in the text.

use crate::formats::{Step, Table, begins};
use crate::scan::Scan;
use crate::{Event, Tools};

/// The bytes of the longest call. A longer one is text.
pub(crate) const MAX_CALL: usize = 256 << 10;

/// A parser of one table.
pub(crate) struct Marked {
    table: &'static Table,
    tools: Option<Tools>,
    pending: String,
    /// How far the call in `pending` has been read.
    scan: Scan,
    mode: Mode,
    content: Section,
    reasoning: Section,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Text,
    Reasoning,
    Call,
}

impl Marked {
    pub(crate) fn new(table: &'static Table, tools: Option<Tools>, in_reasoning: bool) -> Marked {
        let mode = if in_reasoning { Mode::Reasoning } else { Mode::Text };
        let (content, reasoning) = (Section::default(), Section::trimmed());
        let (pending, scan) = (String::new(), Scan::default());
        Marked { table, tools, pending, scan, mode, content, reasoning }
    }

    pub(crate) fn is_in_reasoning(&self) -> bool {
        self.mode == Mode::Reasoning
    }

    pub(crate) fn push(&mut self, text: &str, is_end: bool, events: &mut Vec<Event>) {
        self.pending.push_str(text);
        while self.step(is_end, events) {}
        if is_end {
            self.content.finish(events, Event::Content);
        }
    }

    /// Takes a part of the pending text. Returns whether there may be more.
    fn step(&mut self, is_end: bool, events: &mut Vec<Event>) -> bool {
        match self.mode {
            Mode::Text => self.text(is_end, events),
            Mode::Reasoning => self.reason(is_end, events),
            Mode::Call => self.call(is_end, events),
        }
    }

    fn text(&mut self, is_end: bool, events: &mut Vec<Event>) -> bool {
        let opens = if self.tools.is_some() { self.table.opens } else { &[] };
        if self.content.is_fresh() {
            // Reasoning, and calls without a marker, are at the beginning only.
            let text = self.pending.trim_start();
            match begins(text, self.table.reasoning.0) {
                Some(true) => {
                    self.pending.drain(..self.pending.len() - text.len() + self.table.reasoning.0.len());
                    self.mode = Mode::Reasoning;
                    self.reasoning = Section::trimmed();
                    return true;
                }
                None if !is_end => return false,
                _ => {}
            }
            if self.table.bare && self.tools.is_some() && text.starts_with('{') {
                let space = self.pending.len() - text.len();
                let space: String = self.pending.drain(..space).collect();
                self.content.push(&space, events, Event::Content);
                self.mode = Mode::Call;
                return true;
            }
        }
        let open = opens.iter().filter_map(|open| self.pending.find(open)).min();
        let length = match open {
            Some(at) => at,
            None if is_end => self.pending.len(),
            None => self.pending.len() - hold(&self.pending, opens),
        };
        let text: String = self.pending.drain(..length).collect();
        self.content.push(&text, events, Event::Content);
        if open.is_some() {
            self.mode = Mode::Call;
        }
        open.is_some()
    }

    fn reason(&mut self, is_end: bool, events: &mut Vec<Event>) -> bool {
        let (open, close) = self.table.reasoning;
        if self.reasoning.is_fresh() {
            // The prompt may have the opening marker already, and the model repeat it.
            let text = self.pending.trim_start();
            match begins(text, open) {
                Some(true) => drop(self.pending.drain(..self.pending.len() - text.len() + open.len())),
                None if !is_end => return false,
                _ => {}
            }
        }
        let found = self.pending.find(close);
        let length = match found {
            Some(at) => at,
            None if is_end => self.pending.len(),
            None => self.pending.len() - hold(&self.pending, &[close]),
        };
        let text: String = self.pending.drain(..length).collect();
        self.reasoning.push(&text, events, Event::Reasoning);
        if found.is_some() {
            self.pending.drain(..close.len());
            self.content = Section::trimmed();
            self.mode = Mode::Text;
        }
        found.is_some()
    }

    fn call(&mut self, is_end: bool, events: &mut Vec<Event>) -> bool {
        let none = Tools::default();
        let tools = self.tools.as_ref().unwrap_or(&none);
        // Only what a call may have is read, so that a long one does not depend on how the output is cut.
        let is_full = self.pending.len() > MAX_CALL;
        let text = &self.pending[..self.pending.floor_char_boundary(MAX_CALL)];
        let (found, used) = match (self.table.read)(text, tools, is_end && !is_full, &mut self.scan) {
            Step::More if is_full => (vec![too_long(text)], text.len()),
            Step::More => return false,
            Step::Done(events, used) => (events, used),
        };
        self.scan = Scan::default();
        self.mode = Mode::Text;
        if used == 0 {
            // No call: the character that looked like one is text, and so is what follows.
            let length = self.pending.chars().next().map_or(0, char::len_utf8);
            let text: String = self.pending.drain(..length).collect();
            self.content.push(&text, events, Event::Content);
            return length > 0;
        }
        self.pending.drain(..used);
        for event in found {
            if matches!(event, Event::Call(_)) {
                self.content = Section::trimmed();
            } else {
                self.content.finish(events, Event::Content);
                self.content = Section::begun();
            }
            events.push(event);
        }
        true
    }
}

/// The event of a call that is too long, of which this is as much as a call may have.
pub(crate) fn too_long(text: &str) -> Event {
    let reason = format!("the call has more than {MAX_CALL} bytes");
    Event::Malformed { text: text.to_owned(), reason }
}

/// Text of one kind, without the white space that separates it from other kinds.
#[derive(Debug, Default)]
pub(crate) struct Section {
    /// White space that comes out if more text follows.
    space: String,
    begun: bool,
    trim: bool,
}

impl Section {
    /// A section whose leading white space is dropped.
    pub(crate) fn trimmed() -> Section {
        Section { trim: true, ..Section::default() }
    }

    /// A section that continues text before it.
    pub(crate) fn begun() -> Section {
        Section { begun: true, ..Section::default() }
    }

    /// Whether there was no text but white space.
    pub(crate) fn is_fresh(&self) -> bool {
        !self.begun
    }

    pub(crate) fn push(&mut self, text: &str, events: &mut Vec<Event>, event: impl Fn(String) -> Event) {
        self.space.push_str(text);
        let text = self.space.trim_end();
        if text.is_empty() {
            return;
        }
        let end = text.len();
        let text = if self.trim && !self.begun { text.trim_start() } else { text };
        events.push(event(text.to_owned()));
        self.space.drain(..end);
        self.begun = true;
    }

    /// Emits the white space at the end.
    pub(crate) fn finish(&mut self, events: &mut Vec<Event>, event: impl Fn(String) -> Event) {
        let space = std::mem::take(&mut self.space);
        if !space.is_empty() && (self.begun || !self.trim) {
            events.push(event(space));
        }
    }
}

/// The bytes at the end of a text that may be the beginning of a marker.
pub(crate) fn hold(text: &str, markers: &[&str]) -> usize {
    let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
    let from = text.len().saturating_sub(longest);
    let starts = (from..text.len()).filter(|&at| text.is_char_boundary(at));
    let held = starts.map(|at| &text[at..]).find(|end| markers.iter().any(|marker| marker.starts_with(end)));
    held.map_or(0, str::len)
}
