//! Measures the time of a mask.
//!
//! `cargo bench -p gyrus-constrain -- VOCABULARY.gguf...` prints for each vocabulary and constraint the time to compile,
//! and the median, 99th percentile and maximum time of a mask and of a commit, in microseconds, and of masking random logits
//! and sampling from them as the CPU does, at temperature 1 without filters and with the filters of `gyrus run`. The next
//! token is drawn at random from the mask, with those of printable ASCII before others, and texts end after 200 tokens.

#[path = "../../gyrus-text/tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use gyrus_constrain::{Constraint, Limits, Piece, Source, Vocabulary};
use gyrus_kernels::{Counts, Sampler};
use gyrus_testkit::Rng;
use gyrus_text::{Special, TokenKind, Tokenizer};

const PERSON: &str = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":40},"age":{"type":"integer",
    "minimum":0,"maximum":150},"email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"enum":["red",
    "green","blue"]},"maxItems":5},"address":{"type":"object","properties":{"street":{"type":"string"},"zip":
    {"type":"string","pattern":"^[0-9]{5}$"}},"required":["street"],"additionalProperties":false}},
    "required":["name","age","tags"],"additionalProperties":false}"#;

const JSON: &str = r#"
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

fn vocabulary(tokenizer: &Arc<Tokenizer>) -> Vocabulary {
    let ids = 0..tokenizer.vocab_size() as u32;
    let pieces = ids.map(|id| match tokenizer.kind(id) {
        Some(TokenKind::Normal | TokenKind::Byte | TokenKind::UserDefined) => {
            Piece::Text(tokenizer.token_bytes(id))
        }
        Some(TokenKind::Control) => Piece::Control(tokenizer.token_text(id).unwrap_or_default().as_bytes()),
        _ => Piece::Unused,
    });
    let encoder = Arc::clone(tokenizer);
    let encode = move |text: &[u8]| {
        let mut ids = Vec::new();
        encoder.encode_bytes_into(text, Special::Literal, false, &mut ids);
        ids
    };
    let ends: Vec<u32> = tokenizer.end_tokens().collect();
    Vocabulary::new(pieces, &ends, Some(Box::new(encode)), Limits::default()).expect("a vocabulary")
}

/// Samplers: without filters, and with the usual ones.
fn samplers() -> [Sampler; 2] {
    let plain = Sampler { temperature: 1.0, seed: 1, ..Sampler::default() };
    [plain.clone(), Sampler { temperature: 0.5, top_k: 40, top_p: 0.95, min_p: 0.05, ..plain }]
}

/// The time of masking logits and drawing a token, in microseconds.
fn sample(sampler: &Sampler, logits: &[f32], words: &[u32], scratch: &mut Scratch) -> f64 {
    let start = Instant::now();
    let Scratch { masked, candidates } = scratch;
    masked.clear();
    masked.extend_from_slice(logits);
    for (logits, word) in masked.chunks_mut(32).zip(words) {
        match *word {
            u32::MAX => {}
            0 => logits.fill(f32::NAN),
            word => {
                let bits = logits.iter_mut().enumerate();
                bits.filter(|(bit, _)| word >> bit & 1 == 0).for_each(|(_, logit)| *logit = f32::NAN);
            }
        }
    }
    let id = sampler.draw(masked, &Counts::default(), 1, candidates);
    assert!(words[id as usize / 32] >> (id % 32) & 1 == 1);
    start.elapsed().as_secs_f64() * 1e6
}

#[derive(Default)]
struct Scratch {
    masked: Vec<f32>,
    candidates: Vec<(f32, u32)>,
}

/// The times of masks, commits and both samplers over a few texts, in microseconds.
fn times(constraint: &Constraint) -> [Vec<f64>; 4] {
    let (mut masks, mut commits) = (Vec::new(), Vec::new());
    let (samplers, mut scratch) = (samplers(), Scratch::default());
    let mut sampled = [Vec::new(), Vec::new()];
    let vocabulary = constraint.vocabulary();
    let mut noise = Rng::new(5);
    // As far apart as SmolLM2's: a standard deviation of 4, the largest 23 above the median, 150 within 12 of it.
    let logit = |noise: &mut Rng| {
        let normal: f32 = (0..6).map(|_| noise.below(1000) as f32 / 180.0 - 2.78).sum();
        if noise.below(330) == 0 { normal + 10.0 } else { normal }
    };
    let logits: Vec<f32> = (0..vocabulary.len()).map(|_| logit(&mut noise)).collect();
    let mut words = vec![0; vocabulary.mask_words()];
    for seed in 0..20 {
        let (mut rng, mut state) = (Rng::new(seed), constraint.start());
        for _ in 0..200 {
            let start = Instant::now();
            state.mask(&mut words).expect("a mask");
            masks.push(start.elapsed().as_secs_f64() * 1e6);
            for (sampler, times) in samplers.iter().zip(&mut sampled) {
                times.push(sample(sampler, &logits, &words, &mut scratch));
            }
            let is_set = |id: &u32| words[*id as usize / 32] >> (id % 32) & 1 == 1;
            let allowed: Vec<u32> = (0..vocabulary.len() as u32).filter(is_set).collect();
            let plain = |id: &&u32| vocabulary.text(**id).iter().all(|byte| (0x20..0x7f).contains(byte));
            let printable: Vec<u32> = allowed.iter().filter(plain).copied().collect();
            let token = *rng.pick(if printable.is_empty() { &allowed } else { &printable });
            let start = Instant::now();
            state.commit(token).expect("a token of the mask");
            commits.push(start.elapsed().as_secs_f64() * 1e6);
            if state.is_finished() {
                break;
            }
        }
    }
    let [plain, filtered] = sampled;
    [masks, commits, plain, filtered]
}

fn figures(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    format!("{:8.1} {:8.1} {:8.1}", at(0.5), at(0.99), at(1.0))
}

fn main() {
    let files: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if files.is_empty() {
        eprintln!("skipped: no vocabulary named");
    }
    let sources = [
        ("schema", Source::Schema(PERSON.into())),
        ("json", Source::Json),
        ("gbnf json", Source::Gbnf(JSON.into())),
        ("regex", Source::Regex(r"[A-Z][a-z]+( [a-z]+){3,30}\.".into())),
    ];
    for file in files {
        let tokenizer = Arc::new(common::tokenizer(Path::new(&file)));
        let start = Instant::now();
        let vocabulary = vocabulary(&tokenizer);
        println!(
            "{file}: {} tokens, prepared in {:.0} ms",
            vocabulary.len(),
            start.elapsed().as_secs_f64() * 1e3
        );
        println!(
            "{:12} {:>10} | mask: median, p99, max [us]  | commit                     | sampling, temperature 1    | \
             sampling, filters",
            "", "compile ms"
        );
        for (name, source) in &sources {
            let start = Instant::now();
            let constraint = vocabulary.compile(source).expect("a constraint");
            let compile = start.elapsed().as_secs_f64() * 1e3;
            let all = times(&constraint).map(figures).join(" | ");
            println!("{name:12} {compile:10.1} | {all}");
        }
    }
}
