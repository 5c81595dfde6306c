//! Steady decoding allocates nothing.

use gyrus::{Event, Model, Options, Request, Sampler};
use gyrus_testkit::{Counting, data};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

#[test]
fn steady_decoding_allocates_nothing() {
    let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
    let model = Model::open(&path, &Options { threads: Some(2), ..Options::default() }).unwrap();
    let sampled = Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 1, ..Sampler::default() };
    for sampler in [Sampler::default(), sampled] {
        let mut session = model.session();
        let request = Request::text("Once upon a time").sampler(sampler).max_tokens(600).ignore_end(true);
        let mut generation = session.generate(request).unwrap();
        let mut before = 0;
        let mut tokens = 0;
        while let Some(event) = generation.next().unwrap() {
            if matches!(event, Event::Token { .. }) {
                tokens += 1;
            }
            // By now every kernel, including those for long contexts, has run on every thread.
            if tokens == 300 {
                before = ALLOCATOR.allocations();
            }
            if tokens == 600 {
                break;
            }
        }
        let during = ALLOCATOR.allocations() - before;
        assert_eq!(during, 0, "allocations in 300 steps");
    }
}
