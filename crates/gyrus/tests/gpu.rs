//! Whole models on a GPU: batch invariance, steps in flight, memory, lost devices, sampling as on the CPU. In CI the GPU
//! is lavapipe, and its absence a failure.
#![cfg(feature = "gpu")]

mod adapter;
mod short_tales;
mod together;
mod written;

use std::cell::Cell;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use adapter::adapter;
use gyrus::{Device, DeviceInfo, Error, Event, Model, Options, Precision, Prompt, Request, Sampler, Session};
use gyrus_formats::Checkpoint;
use gyrus_gpu::{Gpu, GpuBackend, GpuError, MemoryNeed};
use gyrus_kernels::{
    Backend, Batch, Decode, Instruments, KV_BLOCK, KvSize, Landed, Outcome, Slots, Work, Workload,
};
use gyrus_testkit::data;
use together::decode_together;

fn device() -> Option<Device> {
    adapter().map(|name| Device::Gpu(Some(name)))
}

fn open(path: &str, device: Device, precision: Precision, chunk: usize) -> Option<Model> {
    let options = Options { device, precision, chunk, context: Some(512), ..Options::default() };
    Some(Model::open(&data(path)?, &options).unwrap())
}

/// Tales with its kernels, and as little of everything else as they need.
fn open_short(options: Options) -> Option<Model> {
    Some(Model::load(short_checkpoint()?, &options).unwrap())
}

fn short_checkpoint() -> Option<Checkpoint> {
    short_tales::checkpoint(2, 0)
}

/// Ids of which [`short_tales`] knows all.
fn ids(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 37 + 11) % short_tales::VOCAB).collect()
}

const TALES: &str = "tales/tales-7m-q8_0.gguf";

/// Greedy text and its log-probabilities as bits.
fn story(model: &Model, ids: &[u32], steps: usize) -> Vec<(u32, u32)> {
    let mut session = model.session();
    let request = Request::ids(ids.to_vec()).max_tokens(steps).ignore_end(true).logprobs(true);
    let mut generation = session.generate(request).unwrap();
    let mut all = Vec::new();
    while let Some(event) = generation.next().unwrap() {
        if let Event::Token { id, logprob, .. } = event {
            all.push((id, logprob.unwrap().to_bits()));
        }
    }
    all
}

/// The rows of a prompt are computed by the same kernels, however it is cut into pieces.
#[test]
fn pieces_of_a_prompt_do_not_matter() {
    let Some(device) = device() else { return };
    for precision in [Precision::Exact, Precision::Fast] {
        let mut first = None;
        for chunk in [512, 33, 9] {
            let (device, context) = (device.clone(), Some(512));
            let options = Options { device, precision, chunk, context, ..Options::default() };
            let Some(model) = open_short(options) else { return };
            let got = story(&model, &ids(70), 6);
            let expected = first.get_or_insert_with(|| got.clone());
            assert_eq!(&got, expected, "{precision:?}, pieces of {chunk}");
        }
    }
}

#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    let Some(path) = data(TALES) else { return };
    let options = Options { device: "gpu:Voodoo 2".parse().unwrap(), ..Options::default() };
    let error = Model::open(&path, &options).err().unwrap().to_string();
    assert!(error.starts_with("no GPU is called 'Voodoo 2'"), "{error}");
}

/// A plan on the device without the engine around it, the device itself within reach; also how many bytes of
/// the file were uploaded, by their pieces.
fn backend(
    name: &str,
    checkpoint: fn() -> Option<Checkpoint>,
    precision: Precision,
    blocks: usize,
) -> Option<(GpuBackend, u64)> {
    let options = gyrus_gpu::Options { adapter: Some(name.to_owned()), ..Default::default() };
    backend_on(&options, checkpoint, precision, blocks)
}

fn backend_on(
    options: &gyrus_gpu::Options,
    checkpoint: fn() -> Option<Checkpoint>,
    precision: Precision,
    blocks: usize,
) -> Option<(GpuBackend, u64)> {
    let gpu = Gpu::open(options).unwrap();
    let options = Options { precision, context: Some(64), ..Options::default() };
    let plan = Model::load(checkpoint()?, &options).unwrap().plan().clone();
    let checkpoint = checkpoint()?;
    let uploaded = Cell::new(0);
    let bytes = |spec: &gyrus::WeightSpec| checkpoint.tensor(&spec.name).map(|tensor| tensor.data);
    let backend =
        GpuBackend::new(gpu, plan.clone(), KvSize::full(&plan.kv, blocks * KV_BLOCK), bytes, |bytes| {
            uploaded.set(uploaded.get() + bytes)
        })
        .unwrap();
    Some((backend, uploaded.get()))
}

fn tales() -> Option<Checkpoint> {
    Some(Checkpoint::open(&data(TALES)?).unwrap())
}

/// A batch may have tables of sequences that have no row in it.
#[test]
fn the_only_row_may_be_of_a_later_table() {
    let Some(name) = adapter() else { return };
    let Some((mut backend, _)) = backend(&name, short_checkpoint, Precision::Fast, 4) else { return };
    let mut forward = |token: u32, position: u32, sequence: u32, tables: &[&[u32]]| {
        let lengths = vec![64; tables.len()];
        let (tokens, positions, sequences) = (&[token], &[position], &[sequence]);
        let batch = Batch {
            tokens,
            positions,
            sequences,
            kind: gyrus_kernels::RowKind::Generated,
            logits: &[0],
            tables,
            lengths: &lengths,
            records: &[],
            inputs: Default::default(),
        };
        backend.forward(&batch).unwrap().iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
    };
    forward(7, 0, 0, &[&[2]]);
    forward(11, 0, 0, &[&[1]]);
    let alone = forward(9, 1, 0, &[&[2]]);
    assert_eq!(forward(9, 1, 1, &[&[1], &[2]]), alone);
    assert_ne!(forward(9, 1, 0, &[&[1]]), alone);
}

/// Sequences of one token each begin to decode, with their first blocks.
fn begin_slots(backend: &mut GpuBackend, tokens: &[u32], blocks: &[Vec<u32>], sampler: &Sampler) {
    let slots = backend.slots();
    for (slot, (token, blocks)) in tokens.iter().zip(blocks).enumerate() {
        slots.open(slot, 40).unwrap();
        slots.extend(slot, &[&blocks[..1]], KV_BLOCK as u32).unwrap();
        let (tokens, limit) = (&[*token][..], KV_BLOCK as u32);
        let decode =
            Decode { tokens, limit, sampler, ends: &[], logprobs: None, masked: false, records: [0; 2] };
        slots.start(slot, &decode).unwrap();
    }
}

/// The tokens of the next steps of the first slots.
fn tokens_of(slots: &mut dyn Slots, count: usize, steps: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    for _ in 0..steps {
        let Some(Landed::Step { outcomes, .. }) = slots.poll(Duration::from_secs(60)).unwrap() else {
            panic!("a step is in flight");
        };
        for outcome in &outcomes[..count] {
            match outcome {
                Outcome::Token { id, .. } => tokens.push(*id),
                other => panic!("{other:?}"),
            }
        }
    }
    tokens
}

/// Steps that are recorded past wgpu are those that it records: the same tokens, of one text and of three whose caches
/// grow on the way, and whoever comes behind finds the same caches.
#[test]
fn steps_past_wgpu_are_those_it_records() {
    let Some(name) = adapter() else { return };
    let [vulkan, wgpu] = [true, false].map(|vulkan_recorder| {
        let options = gyrus_gpu::Options {
            adapter: Some(name.clone()),
            vulkan_recorder,
            ..gyrus_gpu::Options::default()
        };
        let (mut backend, _) = backend_on(&options, short_checkpoint, Precision::Fast, 8)?;
        let sampler = gyrus::Sampler { temperature: 2.0, seed: 3, ..Default::default() };
        let mut found: Vec<u32> = Vec::new();
        for texts in [1, 3] {
            let each: Vec<u32> = (0..texts).collect();
            let blocks: Vec<Vec<u32>> = each.iter().map(|n| vec![n + 1, 7 - n]).collect();
            let (tokens, positions) = (each.iter().map(|n| 5 + n).collect::<Vec<_>>(), vec![0; each.len()]);
            let batch = Batch {
                tokens: &tokens,
                positions: &positions,
                sequences: &each,
                kind: gyrus_kernels::RowKind::Generated,
                logits: &each,
                tables: &blocks.iter().map(|blocks| &blocks[..1]).collect::<Vec<_>>(),
                lengths: &vec![40; each.len()],
                records: &[],
                inputs: Default::default(),
            };
            // Nothing was computed before, so that these are the first to use what they use.
            begin_slots(&mut backend, &tokens, &blocks, &sampler);
            let slots = backend.slots();
            for (steps, known) in [(3, 1), (KV_BLOCK - 4, 1), (4, 2)] {
                for (slot, blocks) in blocks.iter().enumerate() {
                    slots.extend(slot, &[&blocks[..known]], (known * KV_BLOCK).min(40) as u32).unwrap();
                }
                slots.submit(&Work { chunks: &[], between: 0, steps }).unwrap();
            }
            found.extend(tokens_of(slots, each.len(), KV_BLOCK));
            slots.reset();
            // The steps that nobody reads have gone the same way.
            let last = Batch {
                positions: &vec![KV_BLOCK as u32 + 4; each.len()],
                tables: &blocks.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                ..batch
            };
            let (measures, start) = (backend.start_busy(), Instant::now());
            found.extend(backend.forward(&last).unwrap().iter().map(|logit| logit.to_bits()));
            // The same steps again, with timestamps.
            begin_slots(&mut backend, &tokens, &blocks, &sampler);
            let slots = backend.slots();
            slots.submit(&Work { chunks: &[], between: 0, steps: 3 }).unwrap();
            slots.submit(&Work { chunks: &[], between: 0, steps: 1 }).unwrap();
            found.extend(tokens_of(slots, each.len(), 4));
            slots.reset();
            let wall = start.elapsed();
            let busy = backend.end_busy().unwrap();
            let has_clock = backend.gpu().has_timestamps();
            assert_eq!([measures, busy.is_some()], [has_clock; 2], "{name}");
            assert!(busy.is_none_or(|busy| !busy.is_zero() && busy <= wall), "{busy:?} of {wall:?}");
            assert_eq!(backend.end_busy().unwrap(), None, "it has ended");
        }
        Some(found)
    });
    assert_eq!(vulkan, wgpu);
    assert!(vulkan.is_none_or(|found| found.iter().collect::<HashSet<_>>().len() > 100), "noise differs");
}

/// What a step of a few texts runs, before there are so many that attention is gathered.
#[test]
fn kernels_of_a_few_texts() {
    let Some(name) = adapter() else { return };
    let Some((mut backend, _)) = backend(&name, short_checkpoint, Precision::Fast, 4) else { return };
    let profile = backend.profile(Workload::Sequences(3), 5, &[&[0, 1, 2, 3]]).unwrap();
    let names: Vec<&str> = profile.entries.iter().map(|entry| entry.name.as_str()).collect();
    let expected = [
        "embed",
        "norm · quantise",
        "attn_q attn_k attn_v",
        "rope · write · attend",
        "merge · quantise",
        "attn_output",
        "ffn_gate ffn_up",
        "quantise",
        "ffn_down",
        "token_embd",
        "sample",
    ];
    assert_eq!(names, expected);
}

#[test]
fn what_is_predicted_is_what_is_taken() {
    let Some(name) = adapter() else { return };
    for (precision, blocks) in [(Precision::Exact, 4), (Precision::Fast, 32)] {
        let Some((backend, uploaded)) = backend(&name, tales, precision, blocks) else { return };
        let plan = backend.plan();
        let file: usize = plan.weights.iter().map(|w| w.dtype.bytes_of(&w.shape).unwrap()).sum();
        assert_eq!(uploaded, file as u64);
        let need = MemoryNeed::new(plan, &KvSize::full(&plan.kv, blocks * KV_BLOCK)).unwrap();
        let Some((used, reserved)) = backend.gpu().used() else {
            gyrus_testkit::skip(
                gyrus_testkit::Need::Extra,
                &format!("{name} does not count its allocations"),
            );
            return;
        };
        println!("{precision:?}: {need}; {used} used of {reserved}");
        let predicted = need.total() - need.spare;
        // Beside them there are parameters and what staged the upload.
        assert!(used <= predicted + predicted / 8 + (1 << 20), "{used} of {predicted}");
        assert!(predicted <= used + used / 8 + (1 << 20), "{used} of {predicted}");
    }
}

#[test]
fn a_model_without_room_is_refused_before_it_is_uploaded() {
    let (Some(device), Some(path)) = (device(), data(TALES)) else { return };
    let open = |gpu_memory: u64, context: Option<usize>, seen: &Cell<u64>| {
        let options =
            Options { device: device.clone(), gpu_memory: Some(gpu_memory), context, ..Options::default() };
        Model::load_with(Checkpoint::open(&path).unwrap(), &options, |done, _| seen.set(done)).map(|_| ())
    };
    let seen = Cell::new(0);
    let error = open(5 << 20, None, &seen).unwrap_err();
    assert!(matches!(error, Error::Gpu(GpuError::InsufficientMemory { fitting: None, .. })), "{error}");
    let said = error.to_string();
    assert!(said.starts_with("the model needs ") && said.contains("(weights 7."), "{said}");
    assert!(said.ends_with("which has 5.0 MiB; the model does not fit with any cache"), "{said}");
    assert_eq!(seen.get(), 0, "nothing was uploaded");
    // With a long context it does not fit, with the one that is named it does.
    let Error::Gpu(GpuError::InsufficientMemory { need, .. }) = error else { panic!() };
    let least = MemoryNeed { cache: 0, ..need }.total() - need.spare;
    let memory = 2 * (least + 3 * need.cache / 16);
    let all = open(memory, Some(1024), &seen).unwrap_err();
    let Error::Gpu(GpuError::InsufficientMemory { fitting: Some(n), .. }) = all else { panic!("{all}") };
    assert!(all.to_string().ends_with(&format!("a cache for {n} tokens would fit")), "{all}");
    assert_eq!(seen.get(), 0, "nothing was uploaded");
    open(memory, Some(n), &seen).unwrap();
    assert!(seen.get() > 0);
}

#[test]
fn a_device_that_is_lost_is_an_error_and_the_next_one_works() {
    let (Some(device), Some(name)) = (device(), adapter()) else { return };
    let Some((mut lost, _)) = backend(&name, short_checkpoint, Precision::Fast, 4) else { return };
    let batch = Batch {
        tokens: &[1, 2, 3],
        positions: &[0, 1, 2],
        sequences: &[0, 0, 0],
        kind: gyrus_kernels::RowKind::Generated,
        logits: &[2],
        tables: &[&[0]],
        lengths: &[3],
        records: &[],
        inputs: Default::default(),
    };
    let before = lost.forward(&batch).unwrap().to_vec();
    lost.gpu().close();
    for _ in 0..3 {
        let error = lost.forward(&batch).unwrap_err().to_string();
        assert_eq!(error, "the GPU was lost: it was closed");
    }
    let (mut next, _) = backend(&name, short_checkpoint, Precision::Fast, 4).unwrap();
    assert_eq!(next.forward(&batch).unwrap(), before);
    drop(lost);
    assert_eq!(next.forward(&batch).unwrap(), before);
    drop(next);
    // And so does a whole model.
    let model = open_short(Options { device, ..Options::default() }).unwrap();
    assert_eq!(story(&model, &[1, 2, 3], 3).len(), 3);
}

/// A GPU in software is slower than the processor it runs on.
#[test]
fn without_a_real_gpu_the_cpu_is_chosen() {
    let Some(model) = open(TALES, Device::Auto, Precision::Fast, 64) else { return };
    let best = gyrus_gpu::adapters().into_iter().next();
    match best.filter(|adapter| adapter.kind != gyrus_gpu::AdapterKind::Software) {
        Some(adapter) => {
            assert!(matches!(model.device(), DeviceInfo::Gpu { name, .. } if *name == adapter.name));
        }
        None => assert_eq!(model.device().to_string(), "the CPU: no GPU was found"),
    }
}

/// Token ids of a text, stopped after each of some numbers of tokens and continued.
fn text(model: &Model, sampler: &Sampler, pieces: &[usize]) -> Vec<u32> {
    let mut session = model.session();
    let mut prompt = Request::ids(ids(30));
    let mut all = Vec::new();
    for &tokens in pieces {
        let request = prompt.sampler(sampler.clone()).max_tokens(tokens).ignore_end(true);
        let mut generation = session.generate(request).unwrap();
        while let Some(event) = generation.next().unwrap() {
            if let Event::Token { id, .. } = event {
                all.push(id);
            }
        }
        prompt = Request::new(Prompt::Continue);
    }
    all
}

/// Steps in flight, and stops among them, change nothing.
#[test]
fn steps_in_flight_are_steps() {
    let Some(device) = device() else { return };
    // Hot, since what is left of Tales repeats itself.
    let sampled = Sampler { temperature: 4.0, top_k: 40, top_p: 0.95, seed: 7, ..Sampler::default() };
    let penalised = Sampler { repetition_penalty: 1.3, penalty_window: 20, ..sampled.clone() };
    // With more tokens than can be in flight at once; that is enough.
    let texts_of: [(Sampler, usize, &[usize]); 3] = [
        (Sampler::default(), 70, &[13, 1, 41, 15]),
        (sampled, 24, &[5, 1, 11, 7]),
        (penalised, 24, &[5, 1, 11, 7]),
    ];
    let mut known: Vec<Vec<u32>> = Vec::new();
    for steps_in_flight in [64, 16, 3, 1] {
        let (device, context) = (device.clone(), Some(512));
        let options = Options { device, context, steps_in_flight, ..Options::default() };
        let Some(model) = open_short(options) else { return };
        // Of few in flight, fewer are more than enough.
        let most = if steps_in_flight < 16 { 16 } else { 70 };
        let texts: Vec<Vec<u32>> =
            texts_of.iter().map(|(sampler, tokens, _)| text(&model, sampler, &[most.min(*tokens)])).collect();
        if known.is_empty() {
            known.clone_from(&texts);
            // A text of one word would be the same in any order.
            assert!(known.iter().all(|text| text.iter().collect::<HashSet<_>>().len() > 8), "{known:?}");
        }
        for ((text, (_, tokens, _)), known) in texts.iter().zip(&texts_of).zip(&known) {
            assert_eq!(text.len(), most.min(*tokens));
            assert_eq!(text, &known[..text.len()], "{steps_in_flight} in flight");
        }
        if steps_in_flight == 16 {
            for ((sampler, _, pieces), known) in texts_of.iter().zip(&known) {
                assert_eq!(&text(&model, sampler, pieces), known, "stopped and continued");
            }
        }
    }
}

/// Several texts at once get what each gets alone, on both devices.
#[test]
fn texts_together_are_as_if_alone() {
    let Some(device) = device() else { return };
    for device in [Device::Cpu, device] {
        let options = Options { device, context: Some(128), sessions: 5, ..Options::default() };
        let Some(model) = open_short(options) else { return };
        let prompt = |n: u32| -> Vec<u32> {
            (0..5 + 9 * n).map(|i| (i * 37 + 11 * n + 3) % short_tales::VOCAB).collect()
        };
        let sampler = |n: u32| Sampler {
            temperature: if n == 0 { 0.0 } else { 0.9 },
            top_k: 20 * (n % 2),
            seed: n.into(),
            ..Sampler::default()
        };
        let alone: Vec<Vec<u32>> = (0..3)
            .map(|n| {
                let mut sessions = [model.session()];
                sessions[0].set_tokens(&prompt(n)).unwrap();
                decode_together(&mut sessions, &[sampler(n)], 12, |_| true).unwrap();
                sessions[0].tokens().to_vec()
            })
            .collect();
        let mut sessions: Vec<Session> = (0..3).map(|_| model.session()).collect();
        for (n, session) in sessions.iter_mut().enumerate() {
            session.set_tokens(&prompt(n as u32)).unwrap();
        }
        let samplers: Vec<Sampler> = (0..3).map(sampler).collect();
        let mut steps = 0;
        decode_together(&mut sessions, &samplers, 12, |tokens| {
            steps += 1;
            tokens.len() == 3
        })
        .unwrap();
        assert_eq!(steps, 12);
        for (session, alone) in sessions.iter().zip(&alone) {
            assert_eq!(session.tokens(), alone, "{}", model.device());
        }
        // Nothing to continue is an error, and the others stay as they were.
        let error = decode_together(&mut [model.session()], &samplers[..1], 1, |_| true).unwrap_err();
        assert!(matches!(error, Error::EmptyPrompt), "{error}");
    }
}

/// Greedy sequences need no samplers on the device; what a sampled one before them left there is too small for them.
#[test]
fn greedy_sequences_follow_a_sampled_one() {
    let Some(device) = device() else { return };
    let options = Options { device, context: Some(128), sessions: 3, ..Options::default() };
    let Some(model) = open_short(options) else { return };
    let sampled = Sampler { temperature: 1.0, ..Sampler::default() };
    text(&model, &sampled, &[4]);
    let mut sessions = [model.session(), model.session()];
    sessions.iter_mut().for_each(|session| session.set_tokens(&ids(5)).unwrap());
    let greedy = [Sampler::default(), Sampler::default()];
    decode_together(&mut sessions, &greedy, 4, |_| true).unwrap();
    assert_eq!(sessions[0].tokens(), sessions[1].tokens());
}

/// What is drawn on the GPU is what the CPU draws from the GPU's logits.
#[test]
fn a_gpu_draws_what_the_cpu_draws() {
    let Some(device) = device() else { return };
    let Some(model) = open_short(Options { device, ..Options::default() }) else { return };
    let expected: Vec<u32> = story(&model, &ids(30), 40).into_iter().map(|(id, _)| id).collect();
    assert_eq!(text(&model, &Sampler::default(), &[40]), expected);
}
