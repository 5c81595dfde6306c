//! Measures the speed of encoding and decoding on one core.
//!
//! `cargo bench -p gyrus-text -- VOCABULARY.gguf TEXT...` prints one line for each text file: its name, the MB/s of
//! encoding and of decoding (CPU time, best of several runs) and the number of tokens. Two synthetic texts follow: a
//! megabyte of one letter, and one of spaces. `scripts/bench-tokenizers` runs it next to other tokenizers.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use gyrus_text::{Special, Tokenizer};

/// The CPU time of this thread if the system reports it, else the time since `start`. CPU time excludes other
/// processes.
fn clock(start: Instant) -> f64 {
    let own = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = own.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    nanoseconds.map_or_else(|| start.elapsed().as_secs_f64(), |nanoseconds| nanoseconds * 1e-9)
}

/// The shortest time of a few runs, in seconds. A run repeats the work until the coarse clock can measure it.
fn best(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    work();
    let repeats = (0.05 / start.elapsed().as_secs_f64()).ceil() as u32;
    let mut best = f64::INFINITY;
    for run in 0.. {
        let begin = clock(start);
        (0..repeats).for_each(|_| work());
        best = best.min((clock(start) - begin) / f64::from(repeats));
        if run >= 3 && start.elapsed().as_secs_f64() > 2.0 {
            break;
        }
    }
    best
}

fn measure(tokenizer: &Tokenizer, name: &str, text: &str) {
    let mut ids = Vec::new();
    let encode = best(|| {
        ids.clear();
        tokenizer.encode_into(black_box(text), Special::Parse, false, &mut ids);
    });
    let decode = best(|| {
        black_box(tokenizer.decode_bytes(black_box(&ids), false));
    });
    let rate = |seconds: f64| text.len() as f64 / seconds / 1e6;
    println!("{name} {:.1} {:.1} {}", rate(encode), rate(decode), ids.len());
}

fn main() {
    let paths: Vec<_> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    let [vocabulary, texts @ ..] = paths.as_slice() else {
        eprintln!("skipped: no vocabulary named");
        return;
    };
    let data = common::load(Path::new(vocabulary));
    let start = Instant::now();
    let begin = clock(start);
    let tokenizer = Tokenizer::new(data.into_data().expect("known names")).expect("a vocabulary");
    eprintln!("built in {:.0} ms", (clock(start) - begin) * 1e3);
    for path in texts {
        let text = std::fs::read_to_string(path).expect("text");
        let name = Path::new(path)
            .file_stem()
            .map_or_else(|| path.clone(), |stem| stem.to_string_lossy().into_owned());
        measure(&tokenizer, &name, &text);
    }
    measure(&tokenizer, "letters", &"a".repeat(1 << 20));
    measure(&tokenizer, "spaces", &" ".repeat(1 << 20));
}
