//! Any bytes as a tokenizer.json: refused with a reason, or a tokenizer that keeps its promises on any text.
#![no_main]

mod meter;
#[path = "promises.rs"]
mod promises;

use gyrus_text::Tokenizer;
use gyrus_text::hugging_face::{Files, read};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

/// Memory for each byte of the file. A list of empty tokens has three bytes for each, and a token has entries in several
/// tables.
const BYTES_PER_BYTE: usize = 256;

fuzz_target!(|data: &[u8]| {
    // A text to encode may follow the file, after a zero byte.
    let (file, text) = match data.iter().position(|&byte| byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &b""[..]),
    };
    let files = Files { tokenizer: file, ..Files::default() };
    let mut made = None;
    meter::within(BYTES_PER_BYTE * file.len(), || made = Some(read(&files).and_then(Tokenizer::new)));
    let tokenizer = match made.expect("it was made") {
        Ok(tokenizer) => tokenizer,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let own = String::from_utf8_lossy(&file[..file.len().min(2000)]).into_owned();
    let texts = [String::from_utf8_lossy(text).into_owned(), "Hi  e\u{301}\n12 the <s>\u{3000}ﬁ👍🏽'll".into(), own];
    promises::check(&tokenizer, &texts);
});
