//! Compiles kernels in advance: those of the first token at load, those of several rows in the background, so that the
//! second sequence does not wait for them. Binds them in advance, too, while a prompt is read.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use gyrus_kernels::call::SELECT_ROWS;
use gyrus_kernels::{KvSize, LOGITS, Launch, LaunchError, Plan};

use super::slot::Needs;
use super::{ROW_CLASSES, SlotPool, row_class};
use crate::backend::GpuBackend;
use crate::buffers::{MATVEC_ROWS, MAX_ROWS, most_rows};
use crate::device::Gpu;
use crate::error::GpuError;
use crate::lower::Call;
use crate::recorder::Recorder;
use crate::tables::Tables;

/// Steps that are returned before the background compiles, unless several slots are open. The first tokens need the CPU
/// themselves, and a process that generates a few tokens should not wait for a compiler when it ends.
const STEPS_BEFORE: usize = 16;

/// The most threads that compile in the background. Half of the CPUs are left to others.
const THREADS: usize = 8;

/// Kernels of a group that are bound in advance whenever the scheduler looks for results.
const BOUND_AHEAD: usize = 4;

/// The least rows of a tile, and how many of them a chunk that is not the longest has: the shape of tiles changes with it.
const TILE_ROWS: u32 = 32;
const CHUNK_ROWS: Range<u32> = 1..(MAX_ROWS as u32 / TILE_ROWS);

/// Compiles what the first token needs, on all CPU threads: chunks of prompts, decoding one sequence and sampling.
/// `vulkan`: for the Vulkan recorder instead of wgpu. The pipeline cache is written later.
pub(crate) fn compile_first(
    gpu: &Gpu,
    tables: &Tables,
    plan: &Plan,
    kv: &KvSize,
    vulkan: bool,
) -> Result<(), GpuError> {
    let rungs = gpu.rungs();
    // The products of prefill take longest to compile, so they come first. A short prompt has smaller tiles.
    let prefill = [most_rows(plan, kv), MATVEC_ROWS].into_iter().flat_map(|rows| {
        let steps = tables.encode.iter().flatten().chain(&tables.chunks.prefill);
        steps.filter_map(move |step| step.launch(rungs, rows as u32))
    });
    let decode = tables.decode.iter().filter_map(|step| step.launch(rungs, 1));
    let mut launches = prefill.chain(decode).collect::<Result<Vec<_>, _>>()?;
    if plan.output(LOGITS).is_some() {
        launches.extend(sampling(gpu, plan.vocab, kv.positions)?);
    }
    gpu.compile_launches(&launches, vulkan)
}

impl GpuBackend {
    /// Begins to compile in the background once the first tokens were returned or several slots are open.
    pub(super) fn compile_later(&mut self) {
        let pool = &mut self.slots;
        if pool.compiler.is_some() {
            return;
        }
        let submitted: usize = pool.groups.iter().flatten().map(|group| group.steps as usize).sum();
        let is_alone = pool.slots.iter().filter(|slot| slot.open).count() < 2;
        if is_alone && submitted < STEPS_BEFORE + pool.flights.steps() {
            return;
        }
        // Drafts are chunks of generated rows.
        let tables = &self.tables;
        let steps = tables.sequences.iter().chain(&tables.logits_of_all).chain(&tables.chunks.short_chunk);
        let calls = steps.map(|step| step.call.clone()).collect();
        let prompts = tables.chunks.prefill.iter().map(|step| step.call.clone()).collect();
        let vulkan = pool.recorder.as_ref().is_some_and(Recorder::is_vulkan);
        pool.compiler = Some(Compiler::start(Arc::clone(&self.gpu), [calls, prompts], vulkan));
    }

    /// Binds kernels of groups that will compute more rows: a slot whose prompt is read will decode. A few at a time, because
    /// all of them together would hold up the tokens of the other slots. Those that are not compiled yet are bound when they
    /// are needed.
    pub(super) fn bind_ahead(&mut self) -> Result<(), GpuError> {
        let GpuBackend { gpu, slots: SlotPool { groups, slots, recorder, after_wgpu, .. }, .. } = self;
        if !slots.iter().any(|slot| slot.open && slot.decoding.is_none()) {
            return Ok(());
        }
        let vulkan = recorder.as_ref().is_some_and(Recorder::is_vulkan);
        for (group, slots) in groups.iter_mut().zip(slots.chunks_exact(MATVEC_ROWS)) {
            let Some(kernels) = group.as_mut().and_then(|group| group.kernels.as_mut()) else { continue };
            let open = (0..).zip(slots).fold(0, |bits, (row, slot)| bits | u16::from(slot.open) << row);
            let rows = row_class(open);
            if rows == 1 {
                continue;
            }
            let steps = kernels.sequences.iter_mut().chain(&mut kernels.logits);
            for step in steps.filter(|step| !step.is_bound(rows)).take(BOUND_AHEAD) {
                if !step.bind_ahead(gpu, rows, vulkan)? {
                    break;
                }
                *after_wgpu = true;
            }
        }
        Ok(())
    }
}

/// A thread that compiles, with others. They end after the kernels at hand when this is dropped.
#[derive(Debug)]
pub(super) struct Compiler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Compiler {
    /// Compiles the first calls for all numbers of rows that groups of slots have, then those of prompts for the numbers of
    /// rows that chunks have: the shape of tiles depends on it. `vulkan`: for the Vulkan recorder instead of wgpu. What
    /// cannot be compiled is an error when it is needed.
    pub(super) fn start(gpu: Arc<Gpu>, [calls, prompts]: [Vec<Call>; 2], vulkan: bool) -> Compiler {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            // What was compiled for the first token.
            gpu.store_pipelines();
            let of_slots = ROW_CLASSES.into_iter().flat_map(|rows| launches(&gpu, &calls, rows));
            let of_prompts = CHUNK_ROWS.flat_map(|tiles| launches(&gpu, &prompts, tiles * TILE_ROWS));
            let mut keys = HashSet::new();
            let launches: Vec<Launch> =
                of_slots.chain(of_prompts).filter(|launch| keys.insert(launch.variant().key())).collect();
            let next = AtomicUsize::new(0);
            let compile = || {
                while let Some(launch) = launches.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if stopped.load(Ordering::Relaxed) || gpu.compile_launch(launch, vulkan).is_err() {
                        return;
                    }
                }
            };
            let cpus = std::thread::available_parallelism().map_or(1, usize::from);
            std::thread::scope(|scope| {
                for _ in 1..(cpus / 2).min(THREADS) {
                    let thread = std::thread::Builder::new().name("gyrus-compile".to_owned());
                    // Without it, this one compiles more.
                    let _ = thread.spawn_scoped(scope, compile);
                }
                compile();
            });
            if !stopped.load(Ordering::Relaxed) {
                gpu.store_pipelines();
            }
        };
        let thread = std::thread::Builder::new().name("gyrus-compile".to_owned()).spawn(work);
        Compiler { stop, thread: thread.ok() }
    }
}

/// The launches of calls for this many rows.
fn launches(gpu: &Gpu, calls: &[Call], rows: u32) -> Vec<Launch> {
    let rungs = gpu.rungs();
    let runs = calls.iter().filter(|call| call.runs_for(rows));
    runs.filter_map(|call| call.launch(rungs, rows).ok()).collect()
}

/// The launches that sample: greedily, or as samplers do with and without penalties and top-k. Only draws without top-k have
/// other kernels for many rows.
fn sampling(gpu: &Gpu, vocab: usize, length: usize) -> Result<Vec<Launch>, LaunchError> {
    let (rungs, tuning) = (gpu.rungs(), gpu.capabilities().select_tuning());
    let mut launches = Vec::new();
    for (greedy, penalties) in [(true, false), (false, false), (false, true)] {
        for (whole, rows) in [(false, 1), (true, 1), (true, SELECT_ROWS)] {
            if greedy && whole {
                continue;
            }
            let call = Needs { greedy, penalties, whole, ..Needs::NONE }.call(rows, vocab, length);
            launches.extend(call.tuned(rungs, tuning)?);
            launches.extend(call.count(rungs)?);
        }
    }
    Ok(launches)
}

impl Drop for Compiler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, nothing depends on it.
            let _ = thread.join();
        }
    }
}
