//! Compiles kernels in advance: those of the first token at load, those of several rows in the background, so that the
//! second sequence does not wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{KvSize, Launch, LaunchError, Plan};

use super::ROW_CLASSES;
use super::slot::Needs;
use crate::backend::GpuBackend;
use crate::buffers::{MATVEC_ROWS, MAX_ROWS};
use crate::device::Gpu;
use crate::error::GpuError;
use crate::lower::Call;
use crate::recorder::Recorder;
use crate::tables::Tables;

/// Steps that are returned before the background compiles. The first tokens need the CPU themselves, and a process that
/// generates a few tokens should not wait for a compiler when it ends.
const STEPS_BEFORE: usize = 16;

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
    let prefill = [MAX_ROWS, MATVEC_ROWS].into_iter().flat_map(|rows| {
        tables.chunks.prefill.iter().filter_map(move |step| step.launch(rungs, rows as u32))
    });
    let decode = tables.decode.iter().filter_map(|step| step.launch(rungs, 1));
    let mut launches = prefill.chain(decode).collect::<Result<Vec<_>, _>>()?;
    launches.extend(sampling(rungs, plan.vocab, kv.positions)?);
    gpu.compile_launches(&launches, vulkan)
}

impl GpuBackend {
    /// Begins to compile in the background once the first tokens were returned.
    pub(super) fn compile_later(&mut self) {
        let pool = &mut self.slots;
        if pool.compiler.is_some() {
            return;
        }
        let submitted: usize = pool.groups.iter().flatten().map(|group| group.steps as usize).sum();
        if submitted < STEPS_BEFORE + pool.flights.steps() {
            return;
        }
        // Drafts are chunks of generated rows.
        let tables = &self.tables;
        let steps = tables.sequences.iter().chain(&tables.logits_of_all).chain(&tables.chunks.short_chunk);
        let calls = steps.map(|step| step.call.clone()).collect();
        let vulkan = pool.recorder.as_ref().is_some_and(Recorder::is_vulkan);
        pool.compiler = Some(Compiler::start(Arc::clone(&self.gpu), calls, vulkan));
    }
}

/// A thread that compiles. It ends after the kernel at hand when this is dropped.
#[derive(Debug)]
pub(super) struct Compiler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Compiler {
    /// Compiles these calls for all numbers of rows that groups of slots have. `vulkan`: for the Vulkan recorder instead of
    /// wgpu. What cannot be compiled is an error when it is needed.
    pub(super) fn start(gpu: Arc<Gpu>, calls: Vec<Call>, vulkan: bool) -> Compiler {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work = move || {
            // What was compiled for the first token.
            gpu.store_pipelines();
            for rows in ROW_CLASSES {
                for launch in launches(&gpu, &calls, rows) {
                    if stopped.load(Ordering::Relaxed) || gpu.compile_launch(&launch, vulkan).is_err() {
                        return;
                    }
                }
            }
            gpu.store_pipelines();
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

/// The launches that sample: greedily, or as samplers do with and without penalties and top-k. All numbers of rows have the
/// same kernels.
fn sampling(rungs: Rungs, vocab: usize, length: usize) -> Result<Vec<Launch>, LaunchError> {
    let mut launches = Vec::new();
    let kinds = [(true, false), (false, false), (false, true)];
    for (greedy, penalties, whole) in kinds.iter().flat_map(|(g, p)| [(*g, *p, false), (*g, *p, !*g)]) {
        let call = Needs { greedy, penalties, whole, ..Needs::NONE }.call(1, vocab, length);
        launches.extend(call.launches(rungs)?);
        launches.extend(call.count(rungs)?);
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
