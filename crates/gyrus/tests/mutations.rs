//! Models with corrupted headers give an error or run, but never panic.

mod small_model;

use gyrus::{Model, Options, Request};
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_testkit::{Rng, cases, data};

#[test]
fn a_corrupted_model_is_an_error_or_runs() {
    let experts = small_model::with_experts(&[], "", None);
    for (name, head) in [
        ("stories260K/stories260K.gguf", 12 << 10),
        ("tales/tales-7m-q8_0.gguf", 1 << 10),
        ("experts", experts.len() - 4),
    ] {
        let whole = match name {
            "experts" => experts.clone(),
            name => match data(name) {
                Some(path) => std::fs::read(path).unwrap(),
                None => return,
            },
        };
        let mut rng = Rng::new(7);
        let mut ran = 0;
        for case in 0..cases(300) {
            let mut bytes = whole.clone();
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(head);
                match rng.below(4) {
                    0 => bytes[at] ^= 1 << rng.below(8),
                    1 => bytes[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff]),
                    2 => bytes[at..at + 4].copy_from_slice(&(rng.u64() as u32).to_le_bytes()),
                    _ => bytes[at..at + 4].copy_from_slice(&(rng.below(300) as u32).to_le_bytes()),
                }
            }
            let Ok(checkpoint) = Checkpoint::from_gguf("damaged", Bytes::Owned(bytes)) else { continue };
            // A small context, so that a corrupted one does not allocate all memory.
            let options = Options { context: Some(16), threads: Some(1), ..Options::default() };
            let Ok(model) = Model::load(checkpoint, &options) else { continue };
            let mut session = model.session();
            let Ok(mut generation) = session.generate(Request::ids([1, 2, 3]).max_tokens(2)) else {
                continue;
            };
            while let Ok(Some(_)) = generation.next() {}
            ran += usize::from(case > 0);
        }
        assert!(ran > 0, "{name}: no case got as far as running");
    }
}
