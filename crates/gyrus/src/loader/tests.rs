//! The size of the KV cache, and the fallback to the CPU.

use super::*;
use crate::arch;
#[cfg(feature = "gpu")]
use gyrus_gpu::MemoryNeed;
use gyrus_kernels::{DeltaShape, KvGroup, Precision};

/// The plan of a tiny hybrid with layers of one of nine billion parameters, and its file.
fn hybrid() -> Option<(Arc<Checkpoint>, Plan)> {
    let path = gyrus_testkit::data("tiny/qwen35")?;
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let (_, mut plan) = arch::build(&checkpoint, Precision::Fast, None).unwrap();
    let shape = DeltaShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, tiled: true };
    plan.delta = vec![shape; 24];
    plan.kv = vec![KvGroup { layers: 8, kv_heads: 4, head_dim: 256, window: None }];
    Some((checkpoint, plan))
}

/// What a plan with a context of 262,144 tokens gets beside 5 GiB of weights.
fn sized(
    (checkpoint, plan): &(Arc<Checkpoint>, Plan),
    options: &Options,
    memory: Option<u64>,
) -> Result<(ContextChoice, KvSize), Error> {
    let progress = &|_: u64, _: u64| {};
    let loader = Loader { checkpoint, plan, max_context: 262_144, options, progress, fixed: &[] };
    loader.choose_context(5 << 30, usize::MAX, memory)
}

/// A KV cache of some bytes has records for all sessions, of which each may run at once.
#[test]
fn kv_memory_has_records_for_all_sessions() {
    let Some(model) = hybrid() else { return };
    let of = |gib: f64, sessions, context| {
        let kv_memory = Some((gib * (1u64 << 30) as f64) as u64);
        let options = Options { sessions, kv_memory, context, ..Options::default() };
        sized(&model, &options, None).map(|(choice, size)| {
            assert!(choice.cache_bytes <= options.kv_memory.unwrap(), "{choice:?}");
            assert_eq!(size.blocks[0] * KV_BLOCK, choice.total_tokens);
            (size.records, choice.total_tokens)
        })
    };
    // Far below one full context.
    assert_eq!(of(4.0, 16, None).unwrap().0, 64);
    let (records, tokens) = of(2.0, 16, None).unwrap();
    assert!(records == 32 && tokens > 8192, "{tokens}");
    let (records, tokens) = of(1.0, 16, None).unwrap();
    assert!(records == 16 && tokens > 4096, "{tokens}");
    // What was requested comes first.
    assert_eq!(of(2.0, 16, Some(50_000)).unwrap().0, 8);
    assert_eq!(of(0.25, 16, None).unwrap().0, 4);
    assert_eq!(of(0.125, 16, None).unwrap().0, 2);
    // One session has records for checkpoints, too.
    assert_eq!(of(0.25, 1, None).unwrap().0, 4);
    let error = of(0.05, 16, None).unwrap_err();
    assert!(matches!(error, Error::KvMemory { tokens: 0, requested: 1, .. }), "{error}");
}

#[test]
fn kv_memory_has_windows_for_all_sessions() {
    let Some((checkpoint, mut plan)) = hybrid() else { return };
    plan.delta.clear();
    let group = |layers, window| KvGroup { layers, kv_heads: 4, head_dim: 256, window };
    plan.kv = vec![group(8, None), group(40, Some(1024))];
    let model = (checkpoint, plan);
    let of = |gib: u64, sessions| {
        let options = Options { sessions, kv_memory: Some(gib << 30), ..Options::default() };
        let (choice, size) = sized(&model, &options, None).unwrap();
        assert!(choice.cache_bytes <= gib << 30 && choice.total_tokens < 262_144, "{choice:?}");
        (size.blocks, choice.total_tokens)
    };
    // The window, a tile, a chunk and what can be taken back: 1792 positions.
    let each = 1792 / KV_BLOCK + 1;
    assert_eq!(of(8, 16).0[1], 16 * each);
    assert_eq!(of(8, 1).0[1], each);
    let (blocks, tokens) = of(4, 16);
    assert!(blocks[1] == 8 * each && tokens > 8 * 512, "{blocks:?}, {tokens}");
}

/// The default cache of a hybrid fits the memory: checkpoints are given up first, then sequences.
#[test]
fn the_default_cache_of_a_hybrid_fits_the_memory() {
    let Some(model) = hybrid() else { return };
    let options = Options { sessions: 16, ..Options::default() };
    let of = |free: u64| {
        let (choice, size) = sized(&model, &options, Some((5 << 30) + free))?;
        // Half of what the weights leave.
        assert!(choice.cache_bytes <= free / 2 || size.records == 2, "{choice:?}");
        assert!(choice.total_tokens >= 512, "{choice:?}");
        Ok::<_, Error>(size.records)
    };
    assert_eq!([8 << 30, 4 << 30, 2 << 30].map(|free| of(free).unwrap()), [64, 32, 16]);
    assert_eq!(of(200 << 20).unwrap(), 2);
    let small = sized(&model, &options, Some(100 << 20)).unwrap_err();
    assert!(matches!(small, Error::CacheMemory { available, .. } if available == 100 << 20), "{small}");
    // A limit of the caller counts as the memory does, but not for a context that was requested.
    let limited = Options { memory: Some((5 << 30) + (4 << 30)), ..options.clone() };
    assert_eq!(sized(&model, &limited, Some(1 << 40)).unwrap().1.records, 32);
    assert_eq!(sized(&model, &limited, None).unwrap().1.records, 32);
    let requested = Options { context: Some(8192), ..limited };
    assert_eq!(sized(&model, &requested, Some(1 << 40)).unwrap().1.records, 64);
    // What the weights leave of such a limit.
    let least = Options { memory: Some((5 << 30) + (60 << 20)), ..options.clone() };
    let small = sized(&model, &least, Some(1 << 40)).unwrap_err();
    assert!(matches!(small, Error::CacheMemory { available, .. } if available == 60 << 20), "{small}");
    // Without prefixes there are no checkpoints.
    let alone = Options { prefix_cache: false, ..options };
    assert_eq!(sized(&model, &alone, Some((5 << 30) + (8 << 30))).unwrap().1.records, 32);
}

/// 16 sequences of a hybrid of nine billion parameters at 8,192 tokens: what is predicted is what is allocated.
#[test]
#[cfg(feature = "gpu")]
fn records_of_states_and_their_checkpoints_are_counted_to_the_byte() {
    let Some(model) = hybrid() else { return };
    let plan = &model.1;
    let record = 24 * 4 * (3 * 8192 + 32 * 128 * 128);
    assert_eq!(plan.record_bytes(), record);
    // A record is 50.3 MB of matrices, as llama.cpp has, and 2.4 MB of inputs of convolutions.
    assert_eq!(record, 50_331_648 + 2_359_296);
    let tokens = 8192 * 8 * 2 * 4 * 256 * 2;
    let sized = |options: &Options, memory| sized(&model, options, memory).unwrap();
    let options = Options { sessions: 16, context: Some(8192), ..Options::default() };
    let (choice, size) = sized(&options, None);
    assert_eq!(choice.state_bytes, 16 * 4 * record as u64);
    assert_eq!(choice.cache_bytes, 16 * (tokens + 4 * record) as u64);
    // The device has a block and a record more, which no sequence uses.
    let need = MemoryNeed::new(plan, &size).unwrap();
    assert_eq!(need.states, choice.state_bytes + record as u64);
    assert_eq!(need.cache, choice.cache_bytes + record as u64 + (tokens / 256) as u64);
    assert!(need.to_string().contains("with 3.2 GiB of recurrent states"), "{need}");
    // A budget of these bytes has the same size.
    let budget = Options { kv_memory: Some(choice.cache_bytes), ..options.clone() };
    let (within, size_within) = sized(&budget, None);
    assert_eq!((within.total_tokens, within.cache_bytes), (choice.total_tokens, choice.cache_bytes));
    assert_eq!(size_within, size);
    // The default context leaves the records out of what it divides into tokens.
    let (_, memory) = sized(&Options { context: None, ..options }, Some((5 << 30) + 2 * choice.cache_bytes));
    assert_eq!((memory.positions, memory.records), (16 * 8192, 64));
    assert_eq!(memory.blocks, size.blocks, "a long sequence uses the blocks of the others");
}

/// What the table says of a cache is what the CPU maps, records and their checkpoints included.
#[test]
fn the_cpu_maps_the_bytes_of_the_table() {
    for (name, has_states) in [("qwen35", true), ("qwen35moe", true), ("qwen3next", true), ("gemma3", false)]
    {
        let Some(path) = gyrus_testkit::data(&format!("tiny/{name}")) else { return };
        let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
        for (precision, sessions, context) in [
            (Precision::Exact, 1, Some(100)),
            (Precision::Fast, 16, Some(256)),
            (Precision::Fast, 3, Some(33)),
            (Precision::Exact, 2, None),
        ] {
            let (config, plan) = arch::build(&checkpoint, precision, None).unwrap();
            let options = Options { sessions, context, ..Options::default() };
            let (max_context, progress) = (config.context, &|_: u64, _: u64| {});
            let loader = Loader {
                checkpoint: &checkpoint,
                plan: &plan,
                max_context,
                options: &options,
                progress,
                fixed: &[],
            };
            // Memory for all records and windows, and about a quarter of the model's context.
            let tokens = (max_context / 4).max(MIN_DEFAULT) * plan.kv_bytes_per_token();
            let windows = KvSize::windowed(&plan.kv, sessions, max_context, options.chunk + WINDOW_SLACK)
                .window_bytes(&plan.kv, precision);
            let memory = 2 * ((sessions * (tokens + 4 * plan.record_bytes())) as u64 + windows);
            let (table, size) = loader.choose_context(0, usize::MAX, Some(memory)).unwrap();
            let bytes = |spec: &WeightSpec| spec.data(|name| Some(checkpoint.tensor(name)?.data));
            let backend = CpuBackend::new(plan.clone(), &size, 1, |spec| {
                Arc::new(bytes(spec).map_or(Vec::new(), |bytes| bytes.into_owned()))
            });
            let mapped = backend.unwrap().cache_bytes() as u64;
            assert_eq!(mapped, table.cache_bytes, "{name}, {options:?}");
            let records = if has_states { 4 * sessions * plan.record_bytes() } else { 0 };
            assert_eq!((table.state_bytes, has_states), (records as u64, records > 0), "{name}");
        }
    }
}

/// The fallback of [`Device::Auto`]. A software adapter stands in for a GPU.
#[test]
#[cfg(feature = "gpu")]
fn a_model_that_does_not_fit_the_gpu_falls_back_to_the_cpu() {
    let Some(path) = gyrus_testkit::data("tales/tales-7m-q8_0.gguf") else { return };
    let Some(adapter) = gyrus_gpu::adapters().into_iter().next() else { return };
    let checkpoint = Arc::new(Checkpoint::open(&path).unwrap());
    let (config, plan) = arch::build(&checkpoint, Precision::Fast, None).unwrap();
    let load_fixed = |name: &str, gpu_memory: Option<u64>, context: Option<usize>, fixed: &[KvSize]| {
        let options = Options { gpu_memory, context, ..Options::default() };
        let loader = Loader {
            checkpoint: &checkpoint,
            plan: &plan,
            max_context: config.context,
            options: &options,
            progress: &|_, _| {},
            fixed,
        };
        loader.on_gpu_or_cpu(Some(name)).unwrap()
    };
    let load = |name: &str, gpu_memory, context| load_fixed(name, gpu_memory, context, &[]);
    let gpu = load(&adapter.name, None, Some(64)).device;
    assert!(matches!(&gpu, DeviceInfo::Gpu { name, .. } if *name == adapter.name), "{gpu}");
    assert_eq!(gpu.to_string(), format!("{} ({})", adapter.name, adapter.api()));
    let device = load(&adapter.name, Some(5 << 20), None).device.to_string();
    assert!(device.starts_with("the CPU: the model needs "), "{device}");
    assert!(device.ends_with(&format!("{} has 5.0 MiB", adapter.name)), "{device}");
    let device = load("Voodoo 2", None, None).device.to_string();
    assert!(device.starts_with("the CPU: no GPU is called 'Voodoo 2'"), "{device}");
    // With less memory the default context shrinks before the fallback to the CPU.
    let all = gyrus_gpu::MemoryNeed::new(&plan, &KvSize::full(&plan.kv, config.context)).unwrap();
    let loaded = load(&adapter.name, Some(all.total() - all.cache / 4), None);
    assert!(matches!(loaded.device, DeviceInfo::Gpu { .. }), "{}", loaded.device);
    assert!(loaded.context.tokens < config.context, "{:?}", loaded.context);
    // A cache that cannot shrink, such as that of an encoder.
    let fixed = KvSize::full(&plan.kv, 64 * config.context);
    let device = load_fixed(&adapter.name, Some(64 << 20), None, &[fixed]).device.to_string();
    assert!(device.starts_with("the CPU: the model needs "), "{device}");
    assert!(device.ends_with("bytes of memory are free"), "{device}");
}
