//! Gemma 4 and FunctionGemma: `call:name{key:value}` in a notation of their own, between markers.

mod grammar;

use serde_json::{Map, Value};

use super::{Fixed, Step, Table};
use crate::scan::Scan;
use crate::{Call, Tools, call};

/// The markers around a call, and the marker around strings in it.
const MARKERS: [(&str, &str, &str); 2] = [
    ("<|tool_call>", "<tool_call|>", "<|\"|>"),
    ("<start_function_call>", "<end_function_call>", "<escape>"),
];

pub(crate) static TABLE: Table = Table {
    name: "gemma",
    markers: &[&[MARKERS[0].0], &[MARKERS[1].0]],
    reasoning: ("<|channel>thought\n", "<channel|>"),
    opens: &[MARKERS[0].0, MARKERS[1].0],
    bare: false,
    read,
    call: grammar::grammar,
    frame: [
        &[Fixed::Marker(MARKERS[0].0)],
        &[Fixed::Marker(MARKERS[0].1), Fixed::Marker(MARKERS[0].0)],
        &[Fixed::Marker(MARKERS[0].1)],
    ],
    controls: &[MARKERS[0].2, MARKERS[1].1, MARKERS[1].2],
};

/// Nesting of values.
const MAX_DEPTH: usize = 64;

fn read(text: &str, tools: &Tools, is_end: bool, scan: &mut Scan) -> Step {
    let Some((open, close, quote)) = MARKERS.into_iter().find(|(open, ..)| text.starts_with(open)) else {
        return Step::Done(Vec::new(), 0);
    };
    // The end is the first closing marker outside of strings.
    let markers = [quote, close];
    let end = loop {
        let wanted = if scan.in_string { &markers[..1] } else { &markers };
        match scan.seek(text, wanted) {
            Some((at, found)) if found == close => break at,
            Some(_) => scan.in_string = !scan.in_string,
            None if is_end => return Step::malformed(text, text.len(), "the call has no end"),
            None => return Step::More,
        }
    };
    Step::one(call(&text[open.len()..end], quote, tools), text, end + close.len())
}

fn call(body: &str, quote: &str, tools: &Tools) -> Result<Call, String> {
    let body = body.trim().strip_prefix("call:").ok_or("the call does not begin with \"call:\"")?;
    let (name, arguments) = body.split_at(body.find('{').ok_or("the call has no arguments")?);
    let mut reader = Reader { rest: arguments, quote };
    let value = reader.value(0)?;
    if !reader.rest.trim().is_empty() {
        return Err("there is text behind the arguments".into());
    }
    call::new(name.trim().to_owned(), &value.to_string(), None, tools)
}

/// Reads the notation.
struct Reader<'a> {
    rest: &'a str,
    quote: &'a str,
}

impl<'a> Reader<'a> {
    fn eat(&mut self, text: &str) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Text up to one of these characters.
    fn word(&mut self, ends: &[char]) -> &'a str {
        let (word, rest) = self.rest.split_at(self.rest.find(ends).unwrap_or(self.rest.len()));
        self.rest = rest;
        word.trim()
    }

    fn string(&mut self) -> Result<&'a str, String> {
        let (text, rest) = self.rest.split_once(self.quote).ok_or("a string has no end")?;
        self.rest = rest;
        Ok(text)
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err(format!("values are nested more than {MAX_DEPTH} deep"));
        }
        if self.eat(self.quote) {
            return self.string().map(Value::from);
        }
        if self.eat("{") {
            let mut map = Map::new();
            while !self.eat("}") {
                let key = if self.eat(self.quote) { self.string()? } else { self.word(&[':', ',', '}']) };
                if !self.eat(":") {
                    return Err(format!("the key {key:?} has no value"));
                }
                map.insert(key.to_owned(), self.value(depth + 1)?);
                self.separator('}')?;
            }
            return Ok(Value::Object(map));
        }
        if self.eat("[") {
            let mut items = Vec::new();
            while !self.eat("]") {
                items.push(self.value(depth + 1)?);
                self.separator(']')?;
            }
            return Ok(Value::Array(items));
        }
        let word = self.word(&[',', '}', ']']);
        if word.is_empty() {
            return Err("a value is missing".into());
        }
        Ok(serde_json::from_str(word).unwrap_or_else(|_| Value::from(word)))
    }

    fn separator(&mut self, end: char) -> Result<(), String> {
        if self.eat(",") || self.rest.trim_start().starts_with(end) {
            return Ok(());
        }
        Err(format!("expected \",\" or \"{end}\""))
    }
}
