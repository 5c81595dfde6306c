//! The rotary embedding (rope) kernels of [`gyrus_kernels::call`], with SIMD and threads.
//!
//! A task processes a block of tokens: it computes each token's cosines and sines once and rotates all heads by
//! them. Every element is read once and written once, so large tensors are bound by memory bandwidth. Arithmetic
//! is `f32` without fused multiply-add, so all instruction sets and thread counts give the same bits.

mod angles;
mod cos_sin;
mod element;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod layout;
mod rotate;
mod runner;
#[cfg(target_arch = "x86_64")]
mod stream;

use std::ops::Range;

use gyrus_kernels::call::{RopeCall, RopeKernel, Storage};
use gyrus_kernels::shader::Rungs;
use half::{bf16, f16};

pub use runner::CpuRunner;

use crate::CpuError;
use crate::norm::rms_norm_heads;
use crate::pool::{Pool, SERIAL_ELEMS};
use crate::storage::Disjoint;
use crate::thread_scratch;
use angles::Angles;
use element::Element;
use layout::{Layout, Section};
use rotate::{Phases, Rotation};

/// Elements of a task: enough to amortise its start, few enough to balance the threads.
const TASK_ELEMS: usize = 64 << 10;

/// Cosines and sines that are computed at once for head-major tensors. Many tokens make long contiguous runs, and
/// the L2 cache holds their phases. Token-major tensors compute one token at a time, which is short enough to
/// overlap with the prefetch of the next heads.
const PHASE_ELEMS: usize = 32 << 10;

/// Runs a call on buffers of 32-bit words, in the order of its binding slots. All checks happen before the first
/// write.
pub fn rope(pool: &Pool, call: &RopeCall, buffers: &mut [&mut [u32]]) -> Result<(), CpuError> {
    let launch = call.launch(Rungs::NONE, Default::default())?;
    let bytes: Vec<u64> = buffers.iter().map(|buffer| 4 * buffer.len() as u64).collect();
    // Exclusive borrows cannot alias.
    launch.check_buffers(&bytes, |_, _| false)?;
    let names = launch.slots().iter().map(|slot| slot.name);
    let mut buffers = Buffers(names.zip(buffers.iter_mut().map(|buffer| Some(&mut **buffer))).collect());
    match call.storage {
        Storage::F32 => run::<f32>(pool, call, &mut buffers),
        Storage::F16 => run::<f16>(pool, call, &mut buffers),
        Storage::Bf16 => run::<bf16>(pool, call, &mut buffers),
    }
}

/// A call's buffers by name.
struct Buffers<'a>(Vec<(&'static str, Option<&'a mut [u32]>)>);

impl<'a> Buffers<'a> {
    /// Takes the buffer of that name; empty if the call has none.
    fn take(&mut self, name: &str) -> &'a mut [u32] {
        self.0
            .iter_mut()
            .find(|(of, _)| *of == name)
            .and_then(|(_, buffer)| buffer.take())
            .unwrap_or_default()
    }
}

/// The state that all tasks of a call share.
struct Job<'a, T> {
    pool: &'a Pool,
    layout: Layout,
    angles: Angles<'a>,
    rotation: Rotation,
    /// The tensors in the order of [`Layout::tensors`].
    tensors: Vec<Disjoint<T>>,
    /// The head norm weights of queries and keys.
    norms: [Vec<f32>; 2],
    eps: f32,
    /// Whether the output is written with non-temporal stores.
    #[cfg(target_arch = "x86_64")]
    streamed: bool,
}

fn run<T: Element>(pool: &Pool, call: &RopeCall, buffers: &mut Buffers<'_>) -> Result<(), CpuError> {
    let table = buffers.take("block_table");
    call.check_block_table(table)?;
    let layout = Layout::of(call, table)?;
    let angles = Angles::of(pool.isa(), call, &layout, buffers.take("freqs"), buffers.take("position_ids"));
    let mut weights = |name, plus: f32| -> Vec<f32> {
        let weights: &[T] = bytemuck::cast_slice(buffers.take(name));
        weights.iter().take(layout.head_dim).map(|w| w.to_f32() + plus).collect()
    };
    let (norms, eps) = match call.kernel {
        RopeKernel::HeadNorm { plus_one, eps, .. } => {
            let plus = f32::from(u8::from(plus_one));
            ([weights("q_norm_weight", plus), weights("k_norm_weight", plus)], eps.norm_eps)
        }
        _ => Default::default(),
    };
    let tensor = |name: &&str| Disjoint::new(bytemuck::cast_slice_mut::<u32, T>(buffers.take(name)));
    let tensors = layout.tensors.iter().map(tensor).collect();
    let rotation = Rotation {
        isa: pool.isa(),
        pairing: layout.pairing,
        head_dim: layout.head_dim,
        rope_dim: layout.rope_dim,
        offset: layout.offset,
        scale: layout.scale,
    };

    // Tasks are blocks of tokens, split further by heads if there are too few tokens for all threads.
    let (tokens, heads) = (layout.tokens, layout.heads());
    let row = heads * layout.head_dim;
    // A block has at least the tokens whose phases are computed at once: the phases are the overhead of a block.
    let least = if layout.head_major { PHASE_ELEMS / (2 * rotation.width()) } else { 1 };
    let block = (TASK_ELEMS / row).max(least).clamp(1, tokens);
    let alone = tokens * row <= SERIAL_ELEMS;
    let blocks = if alone { 1 } else { tokens.div_ceil(block) };
    let block = if alone { tokens } else { block };
    let threads = 4 * pool.threads();
    let pieces =
        if alone || blocks >= threads { 1 } else { threads.div_ceil(blocks).min(row.div_ceil(SERIAL_ELEMS)) };
    let piece = heads.div_ceil(pieces);
    let job = Job {
        pool,
        #[cfg(target_arch = "x86_64")]
        streamed: layout.head_major && {
            let bytes = |elements: usize| elements * size_of::<T>();
            stream::is_worthwhile(pool.isa(), bytes(tokens * row), bytes(block * layout.head_dim))
        },
        layout,
        angles,
        rotation,
        tensors,
        norms,
        eps,
    };
    pool.run(blocks * pieces, &|task| {
        let (first, head) = (task / pieces * block, task % pieces * piece);
        job.block(first..tokens.min(first + block), head..heads.min(head + piece));
    });
    Ok(())
}

impl<T: Element> Job<'_, T> {
    /// Processes some heads of a block of tokens.
    fn block(&self, tokens: Range<usize>, heads: Range<usize>) {
        let width = self.rotation.width();
        let at_once =
            if self.layout.head_major { (PHASE_ELEMS / (2 * width)).clamp(1, tokens.len()) } else { 1 };
        let mut cache = self.angles.phase_cache();
        // After the phases, aligned to a cache line: scratch for a normed head or the staging of streamed heads.
        let phase_len = (2 * width * at_once).next_multiple_of(16);
        thread_scratch::with(phase_len + self.scratch_len(), |buffer| {
            let (phases, scratch) = buffer.split_at_mut(phase_len);
            for first in tokens.clone().step_by(at_once) {
                let some = first..tokens.end.min(first + at_once);
                for (token, phases) in some.clone().zip(phases.chunks_exact_mut(2 * width)) {
                    self.angles.phases(self.rotation.isa, &mut cache, token, phases.split_at_mut(width));
                }
                let phases = Phases { values: phases, step: 2 * width };
                if self.layout.head_major {
                    self.head_major(some, heads.clone(), phases, scratch);
                } else {
                    for token in some {
                        let values = &phases.values[(token - first) * phases.step..][..phases.step];
                        self.heads(token, heads.clone(), Phases { values, step: 0 }, scratch);
                    }
                }
            }
        });
    }

    /// Elements of scratch memory in addition to the phases.
    fn scratch_len(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.streamed {
            return stream::scratch::<T>(self.layout.head_dim);
        }
        self.layout.head_dim
    }

    /// Processes some heads of head-major tensors.
    fn head_major(
        &self,
        tokens: Range<usize>,
        heads: Range<usize>,
        phases: Phases<'_>,
        _scratch: &mut [f32],
    ) {
        let len = tokens.len() * self.layout.head_dim;
        for section in &self.layout.sections {
            let source = |head| self.tensor(section.source, section.from.at(tokens.start, head), len);
            let Some((to, rows)) = &section.target else {
                heads.clone().for_each(|head| self.rotation.in_place(source(head), phases));
                continue;
            };
            let target = |head| self.tensor(*to, rows.at(tokens.start, head), len);
            #[cfg(target_arch = "x86_64")]
            if self.streamed {
                let mut left = heads.clone();
                while !left.is_empty() {
                    // The last four heads run as two pairs instead of three and one.
                    let some =
                        if left.len() == stream::MAX_RUNS + 1 { 2 } else { stream::MAX_RUNS.min(left.len()) };
                    let runs = left.by_ref().take(some).map(|head| (&*source(head), target(head)));
                    stream::rotate_runs(&self.rotation, runs, phases, _scratch);
                }
                stream::fence();
                continue;
            }
            heads.clone().for_each(|head| self.rotation.out_of_place(source(head), target(head), phases));
        }
    }

    /// Processes some heads of a token, counted through all sections.
    fn heads(&self, token: usize, heads: Range<usize>, phases: Phases<'_>, normed: &mut [f32]) {
        let mut base = 0;
        for section in &self.layout.sections {
            let (from, to) = (heads.start.max(base), heads.end.min(base + section.heads));
            if from < to {
                self.section(section, token, from - base..to - base, phases, normed);
            }
            base += section.heads;
        }
    }

    fn section(
        &self,
        section: &Section,
        token: usize,
        heads: Range<usize>,
        phases: Phases<'_>,
        normed: &mut [f32],
    ) {
        let n = self.layout.head_dim;
        if section.norm.is_none() && section.target.is_none() {
            let all = self.tensor(section.source, section.from.at(token, heads.start), heads.len() * n);
            self.rotation.in_place(all, phases);
            return;
        }
        for head in heads {
            let source = self.tensor(section.source, section.from.at(token, head), n);
            if let Some(norm) = section.norm {
                normed.iter_mut().zip(&*source).for_each(|(to, from)| *to = from.to_f32());
                rms_norm_heads(self.pool, normed, n, 0, 1, &self.norms[norm], self.eps);
            }
            match (&section.target, section.norm) {
                (None, _) => self.rotation.out_of_place(normed, source, phases),
                (Some((to, rows)), norm) => {
                    let target = self.tensor(*to, rows.at(token, head), n);
                    match norm {
                        Some(_) => self.rotation.out_of_place(normed, target, phases),
                        None if section.rotated => self.rotation.out_of_place(source, target, phases),
                        None => target.copy_from_slice(source),
                    }
                }
            }
        }
    }

    /// A mutable range of a tensor.
    #[allow(clippy::mut_from_ref)]
    fn tensor(&self, tensor: usize, at: usize, len: usize) -> &mut [T] {
        // SAFETY: `rope` borrows the buffers while this runs. Tasks have different tokens or heads, whose ranges
        // in a tensor are disjoint: the launch check ensures that strides are at least a row long, and the check
        // of the block table that no two tokens share a cache slot. A task processes its heads in sequence.
        unsafe { self.tensors[tensor].part(at..at + len) }
    }
}
