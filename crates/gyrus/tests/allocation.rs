//! Steady decoding allocates nothing.

use gyrus::{Event, Model, Options, Request, Sampler};
use gyrus_testkit::{Counting, data};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

#[test]
fn steady_decoding_allocates_nothing() {
    let _alone = ONE_AT_A_TIME.lock();
    let Some(path) = data("tales/tales-7m-q8_0.gguf") else { return };
    let prompt = || Request::text("Once upon a time");
    check(Model::open(&path, &Options { threads: Some(2), ..Options::default() }).unwrap(), prompt);
}

/// The slots of experts are sorted in buffers that stay.
#[test]
fn steady_decoding_with_experts_allocates_nothing() {
    let _alone = ONE_AT_A_TIME.lock();
    let Some(path) = data("tiny/gpt_oss") else { return };
    let quantize = Some(gyrus::DType::Q8_0);
    let options = Options { threads: Some(2), quantize, ..Options::default() };
    check(Model::open(&path, &options).unwrap(), || Request::ids([5, 6, 7]));
}

/// Tests of one process would count each other's allocations.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn check(model: Model, prompt: impl Fn() -> Request) {
    let sampled = Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 1, ..Sampler::default() };
    for sampler in [Sampler::default(), sampled] {
        let mut session = model.session();
        let request = prompt().sampler(sampler).max_tokens(600).ignore_end(true);
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
