//! Steady decoding on a GPU allocates nothing, on the host or on the device, where its steps are recorded past wgpu. Where
//! wgpu records them, it allocates on the host for each submission; that must not grow.
#![cfg(feature = "gpu")]

mod adapter;
mod short_tales;
mod together;
mod written;

use std::process::Command;

use adapter::adapter;
use gyrus::{Device, DeviceInfo, Event, Model, Options, Precision, Request, Sampler, Session};
use gyrus_formats::Checkpoint;
use gyrus_gpu::{Gpu, GpuBackend};
use gyrus_kernels::{Backend, Decode, KV_BLOCK, KvSize, Landed, Outcome, Work};
use gyrus_testkit::{Origin, Traced, crate_of, data};

#[global_allocator]
static ALLOCATOR: Traced = Traced::new();

/// Between us and the device.
const BELOW: [&str; 6] = ["wgpu", "wgpu_core", "wgpu_hal", "naga", "ash", "gpu_allocator"];

/// What makes something that lasts on the device, with something on the host to know it by.
const MAKERS: [&str; 5] = [
    "::create_buffer",
    "::create_bind_group",
    "::create_compute_pipeline",
    "::create_shader_module",
    "::create_query_set",
];

/// Tokens until as many are in flight as may be.
const WARM: usize = 24;

/// Whether backtraces are taken by nobody else in this process; if they are, the test has been run in another.
///
/// Where a user asks for backtraces, wgpu takes some in debug builds, and to trace what that allocates is to wait for
/// oneself.
fn is_alone(test: &str) -> bool {
    const ASKED: &str = "RUST_LIB_BACKTRACE";
    if std::env::var(ASKED).as_deref() == Ok("0") {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let output =
        Command::new(program).args([test, "--exact", "--nocapture"]).env(ASKED, "0").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{test} failed in a process of its own");
    false
}

/// Holds the traces of two windows of steady decoding to what they should be. `direct`: wgpu has no part in it.
fn check(what: &str, tokens: usize, direct: bool, windows: &[Vec<Origin>; 2]) {
    let [first, second] = windows.each_ref().map(Vec::len);
    println!("{what}: {first} and {second} allocations below us in {tokens} tokens each");
    if direct {
        let seen: Vec<String> =
            windows.iter().flatten().map(|origin| origin.functions().join("\n")).collect();
        assert!(seen.is_empty(), "{what}: {}", seen.join("\n\n"));
        return;
    }
    for origin in windows.iter().flatten() {
        let functions = origin.functions();
        let whose = functions
            .iter()
            .map(|function| crate_of(function))
            .find(|name| name.starts_with("gyrus") || BELOW.contains(name));
        let all = || functions.join("\n");
        assert!(
            whose.is_some_and(|name| BELOW.contains(&name)),
            "{what}: an allocation of ours in\n{}",
            all()
        );
        let makes = |function: &String| {
            crate_of(function) == "wgpu" && MAKERS.iter().any(|maker| function.ends_with(maker))
        };
        assert!(!functions.iter().any(makes), "{what}: something made on the device in\n{}", all());
    }
    // Not one would mean that nothing was traced. Submissions need not end where windows do.
    assert!(first > 0 && 3 * first.abs_diff(second) <= first, "{what}: {first}, then {second}");
}

fn load(checkpoint: Checkpoint, name: &str) -> Model {
    let device = Device::Gpu(Some(name.to_owned()));
    // So few in flight that a window has several submissions.
    let options =
        Options { device, context: Some(256), sessions: 16, steps_in_flight: 8, ..Options::default() };
    Model::load(checkpoint, &options).unwrap()
}

/// Whether the steps of what a GPU draws are recorded past wgpu, as they are by default where that can be done.
fn is_vulkan(model: &Model) -> bool {
    matches!(model.device(), DeviceInfo::Gpu { api, .. } if api == "Vulkan")
}

/// Runs that are tried. How many submissions are in flight depends on the device's pace, so that on a busy machine one more
/// may be needed for the first time in a window. What every step allocated would be in all runs.
const RUNS: usize = 4;

/// The windows of the first run without an allocation, else those of the last.
fn check_runs(what: &str, window: usize, model: &Model, mut run: impl FnMut() -> [Vec<Origin>; 2]) {
    let direct = is_vulkan(model);
    let mut windows = run();
    for _ in 1..RUNS {
        if !direct || windows.iter().all(Vec::is_empty) {
            break;
        }
        windows = run();
    }
    check(what, window, direct, &windows);
}

/// Decodes for a while, and then for two windows of so many tokens.
fn write(what: &str, model: &Model, sampler: &Sampler, logprobs: bool, window: usize) {
    check_runs(what, window, model, || write_once(model, sampler, logprobs, window));
}

fn write_once(model: &Model, sampler: &Sampler, logprobs: bool, window: usize) -> [Vec<Origin>; 2] {
    let mut session = model.session();
    let request = Request::ids(prompt()).sampler(sampler.clone()).logprobs(logprobs).ignore_end(true);
    let mut generation = session.generate(request).unwrap();
    let mut tokens = |count: usize| {
        let mut left = count;
        while left > 0 {
            let event = generation.next().unwrap();
            left -= usize::from(matches!(event, Some(Event::Token { .. })));
        }
    };
    tokens(WARM);
    [(); 2].map(|()| {
        ALLOCATOR.start();
        tokens(window);
        ALLOCATOR.stop()
    })
}

/// As [`write`], a text for each sampler at once.
fn decode_together(what: &str, model: &Model, samplers: &[Sampler], window: usize) {
    check_runs(what, window, model, || together_once(model, samplers, window));
}

fn together_once(model: &Model, samplers: &[Sampler], window: usize) -> [Vec<Origin>; 2] {
    let mut sessions: Vec<Session> = samplers.iter().map(|_| model.session()).collect();
    sessions.iter_mut().for_each(|session| session.set_tokens(&prompt()).unwrap());
    let (mut windows, mut tokens) = ([Vec::new(), Vec::new()], 0);
    // Asked for more than are looked at, so that steps stay in flight.
    together::decode_together(&mut sessions, samplers, WARM + 4 * window, |_| {
        tokens += 1;
        if tokens == WARM + window || tokens == WARM + 2 * window {
            windows[(tokens - WARM) / window - 1] = ALLOCATOR.stop();
        }
        if tokens == WARM || tokens == WARM + window {
            ALLOCATOR.start();
        }
        tokens < WARM + 2 * window
    })
    .unwrap();
    windows
}

fn prompt() -> Vec<u32> {
    (0..40).map(|i| (i * 37 + 11) % short_tales::VOCAB).collect()
}

#[test]
#[cfg_attr(not(debug_assertions), ignore = "tells functions apart that are not inlined")]
fn steady_decoding_allocates_nothing() {
    if !is_alone("steady_decoding_allocates_nothing") {
        return;
    }
    let Some(name) = adapter() else { return };
    let greedy = Sampler::default();
    let sampled = Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 1, ..Sampler::default() };
    if let Some(path) = data("stories260K/stories260K.gguf") {
        let model = load(Checkpoint::open(&path).unwrap(), &name);
        // Two windows are a block of the cache, so that it grows in one of them.
        write("greedy", &model, &greedy, false, KV_BLOCK / 2);
        write("sampled", &model, &sampled, false, KV_BLOCK / 2);
        write("with log-probabilities", &model, &sampled, true, KV_BLOCK / 8);
        decode_together("together", &model, &[greedy, sampled.clone()], KV_BLOCK / 4);
    }
    // Other kernels, of which each takes longer.
    if let Some(checkpoint) = short_tales::checkpoint(4, 0) {
        let model = load(checkpoint, &name);
        write("tales", &model, &sampled, false, KV_BLOCK / 4);
        // So many that attention is gathered.
        decode_together("tales together", &model, &vec![sampled; 16], KV_BLOCK / 4);
    }
}

/// A backend of the smallest model, with four blocks.
fn tiny_backend() -> Option<GpuBackend> {
    let (Some(name), Some(path)) = (adapter(), data("tiny/llama")) else { return None };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let plan =
        Model::open(&path, &Options { device: Device::Cpu, ..Options::default() }).unwrap().plan().clone();
    assert_eq!(plan.precision, Precision::Fast);
    let options = gyrus_gpu::Options { adapter: Some(name), ..Default::default() };
    let bytes = |spec: &gyrus::WeightSpec| checkpoint.tensor(&spec.name).map(|tensor| tensor.data);
    let kv = KvSize::full(&plan.kv, 128);
    Some(GpuBackend::new(Gpu::open(&options).unwrap(), plan, kv, bytes, |_| {}).unwrap())
}

/// Masks that come while rows are computed ahead, and steps that only sample.
#[test]
fn masked_steps_allocate_nothing() {
    if !is_alone("masked_steps_allocate_nothing") {
        return;
    }
    let Some(mut backend) = tiny_backend() else { return };
    let is_vulkan = backend.gpu().adapter().api() == "Vulkan";
    let words = backend.plan().vocab.div_ceil(32);
    let masks = [0x5555_5555, 0x3333_3333].map(|word: u32| vec![word; words]);
    let sampler = Sampler { temperature: 0.8, top_k: 40, seed: 1, ..Sampler::default() };
    let slots = backend.slots();
    slots.open(0, 128).unwrap();
    slots.extend(0, &[&[2, 0, 3, 1]], 128).unwrap();
    let (logprobs, records) = (Some(2), [0; 2]);
    let decode =
        Decode { tokens: &[7], limit: 128, sampler: &sampler, ends: &[], logprobs, masked: true, records };
    slots.start(0, &decode).unwrap();
    let mut position = 1;
    let mut run = |steps: u32| {
        for _ in 0..steps {
            slots.mask(0, position, &masks[position as usize % 2]).unwrap();
            slots.submit(&Work { chunks: &[], between: 0, steps: 1 }).unwrap();
            assert!(slots.compute_ahead().unwrap());
            let landed = slots.poll(std::time::Duration::from_secs(60)).unwrap();
            let Some(Landed::Step { outcomes, .. }) = landed else { panic!("{landed:?}") };
            let Outcome::Token { id, .. } = outcomes[0] else { panic!("{outcomes:?}") };
            assert_eq!(masks[position as usize % 2][0] >> (id % 32) & 1, 1, "token {id} at {position}");
            position += 1;
        }
    };
    run(WARM as u32);
    let windows = [(); 2].map(|()| {
        ALLOCATOR.start();
        run(16);
        ALLOCATOR.stop()
    });
    check("masked", 16, is_vulkan, &windows);
}

/// Bytes of the device that are in use after so many steps, and after many more.
#[test]
fn steady_decoding_takes_no_memory_of_the_device() {
    let Some(mut backend) = tiny_backend() else { return };
    let blocks = [2, 0, 3, 1];
    let sampler = Sampler { temperature: 0.8, top_k: 40, seed: 1, ..Sampler::default() };
    let slots = backend.slots();
    slots.open(0, 128).unwrap();
    slots.extend(0, &[&blocks[..1]], KV_BLOCK as u32).unwrap();
    let limit = KV_BLOCK as u32;
    let decode = Decode {
        tokens: &[7],
        limit,
        sampler: &sampler,
        ends: &[],
        logprobs: None,
        masked: false,
        records: [0; 2],
    };
    slots.start(0, &decode).unwrap();
    // The table grows as a scheduler would have it grow.
    let mut run = |steps: std::ops::Range<usize>| {
        let slots = backend.slots();
        for first in steps.step_by(8) {
            let table = &blocks[..(first + 9).div_ceil(KV_BLOCK)];
            slots.extend(0, &[table], (table.len() * KV_BLOCK) as u32).unwrap();
            slots.submit(&Work { chunks: &[], between: 0, steps: 4 }).unwrap();
            slots.submit(&Work { chunks: &[], between: 0, steps: 4 }).unwrap();
            for _ in 0..8 {
                let landed = slots.poll(std::time::Duration::from_secs(60)).unwrap();
                assert!(matches!(landed, Some(Landed::Step { .. })));
            }
        }
        backend.gpu().wait().unwrap();
        backend.gpu().used()
    };
    let Some(before) = run(0..16) else {
        gyrus_testkit::skip(gyrus_testkit::Need::Extra, "the API does not count its allocations");
        return;
    };
    assert_eq!(run(16..120), Some(before), "bytes in use, and set aside");
}
