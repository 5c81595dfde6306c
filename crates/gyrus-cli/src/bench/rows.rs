//! Times kernels of a single launch: norms, KV cache copies and shifts, convolutions.

use std::time::Duration;

use anyhow::Result;
use gyrus_gpu::{AdapterKind, Buffer, Gpu};
use gyrus_kernels::call::engine::turns;
use gyrus_kernels::call::{Conv1dCall, KvCopyCall, KvShiftCall, Norm, NormCall, Storage};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{KV_BLOCK, KvShape, Launch, LaunchError, Pairing, Rope, RopeSpec};

/// A call to time.
pub(super) struct Timed {
    pub(super) name: String,
    pub(super) shape: String,
    /// Bytes that must be read or written at least once.
    pub(super) bytes: u64,
    call: Call,
    chain: u32,
}

enum Call {
    Norm(NormCall),
    Copy(KvCopyCall),
    Shift(KvShiftCall),
    Conv(Conv1dCall),
}

/// Every call. A software GPU gets shorter convolutions.
pub(super) fn timed(software: bool) -> Vec<Timed> {
    let mut all = norms();
    all.extend(caches());
    all.extend(convolutions(if software { 100 } else { 3000 }));
    all
}

/// The norms of one step and of a prompt, with workgroups of several sizes.
fn norms() -> Vec<Timed> {
    let mut all = Vec::new();
    let layer = Norm::Layer { bias: true };
    for (rows, dim, norm, residual) in [
        (1, 2048, Norm::Rms, false),
        (1, 2048, Norm::Rms, true),
        (1, 4096, Norm::Rms, true),
        (512, 2048, Norm::Rms, true),
        (512, 4096, Norm::Rms, false),
        (512, 4096, Norm::Rms, true),
        (512, 2304, Norm::RmsPlusOne, true),
        (1500, 1280, layer, false),
        (1500, 1280, layer, true),
    ] {
        for workgroup in [64, 128, 256, 512, 1024] {
            let call = NormCall { residual, workgroup, ..NormCall::new(norm, rows, dim, 1e-5) };
            // One read and one write; with a residual two of each, since the sum is stored too.
            let passes = if residual { 4 } else { 2 };
            all.push(Timed {
                name: call.name().to_owned(),
                shape: format!("{rows} × {dim}, {norm:?}, workgroup {workgroup}, in a chain"),
                bytes: 4 * u64::from(dim) * (passes * u64::from(rows) + 1),
                call: Call::Norm(call),
                chain: 200,
            });
        }
    }
    all
}

/// One layer of Llama 3.1 8B's cache, 8,192 positions of it.
fn caches() -> Vec<Timed> {
    let mut all = Vec::new();
    for kv in [Storage::F16, Storage::F32] {
        let (blocks, pairs) = (512, 256);
        let cache = KvShape { kv, blocks, n_kv_heads: 8, head_dim: 128 };
        let positions = pairs * KV_BLOCK as u32;
        let of_k = u64::from(positions) * 8 * 128 * kv.bytes();
        all.push(Timed {
            name: "kv_copy".to_owned(),
            shape: format!("{pairs} blocks of 8 × {KV_BLOCK} × 128, {}", kv.name()),
            bytes: 4 * of_k,
            call: Call::Copy(KvCopyCall { cache, pairs }),
            chain: 8,
        });
        for pairing in [Pairing::Split, Pairing::Adjacent] {
            for (in_place, each) in [(true, 1), (true, 2), (true, 4), (true, 8), (false, 4), (false, 8)] {
                let (rope_dim, rope_offset, by) = (128, 0, -(KV_BLOCK as i32));
                let moves = positions;
                let place = if in_place { "in place" } else { "to other slots" };
                all.push(Timed {
                    name: "kv_shift".to_owned(),
                    shape: format!(
                        "{positions} × 8 × 128, {}, {pairing:?}, {place}, {each} at a time",
                        kv.name()
                    ),
                    bytes: if in_place { 2 * of_k } else { 4 * of_k },
                    call: Call::Shift(KvShiftCall {
                        cache,
                        pairing,
                        rope_dim,
                        rope_offset,
                        by,
                        moves,
                        in_place,
                        each,
                    }),
                    chain: 8,
                });
            }
        }
    }
    all
}

/// The two convolutions of Whisper tiny, base and large.
fn convolutions(length: u32) -> Vec<Timed> {
    let mut all = Vec::new();
    for (mels, dim) in [(80, 384), (80, 512), (128, 1280)] {
        for (inputs, stride, rows) in [(mels, 1, false), (dim, 2, true)] {
            for part in [[2, 4], [4, 2], [4, 4], [4, 8], [8, 4], [8, 8]] {
                let call =
                    Conv1dCall { part, rows, ..Conv1dCall::new(inputs, dim, length, stride, Storage::F16) };
                let [read, written] =
                    [u64::from(inputs * length), call.out_length() * u64::from(dim)].map(|n| 4 * n);
                let giga = call.operations() as f64 * 1e-9;
                all.push(Timed {
                    name: "conv1d".to_owned(),
                    shape: format!("{inputs} → {dim} × {length} by {stride}, part {part:?}, {giga:.1} GFLOP"),
                    bytes: read + written + 2 * u64::from(inputs * dim) * 3,
                    call: Call::Conv(call),
                    chain: 4,
                });
            }
        }
    }
    all
}

impl Timed {
    pub(super) fn time(&self, gpu: &Gpu, repetitions: usize) -> Result<Duration> {
        let launch = self.launch(gpu.rungs())?;
        let buffers: Vec<Buffer> = launch
            .slots()
            .iter()
            .map(|slot| match self.contents(slot.name)? {
                Some(words) => {
                    Ok(gpu.upload(&words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>())?)
                }
                None => Ok(gpu.buffer(slot.bytes)?),
            })
            .collect::<Result<_>>()?;
        let dispatch = gpu.bind(&launch, &buffers.iter().collect::<Vec<_>>())?;
        let chain = if gpu.adapter().kind == AdapterKind::Software { 1 } else { self.chain };
        Ok(gpu.median_time(&[&dispatch], chain, repetitions)?)
    }

    fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        match &self.call {
            Call::Norm(call) => call.launch(rungs),
            Call::Copy(call) => call.launch(rungs),
            Call::Shift(call) => call.launch(rungs),
            Call::Conv(call) => call.launch(rungs),
        }
    }

    /// Contents that a buffer needs for a valid call; the other buffers hold zeros.
    fn contents(&self, name: &str) -> Result<Option<Vec<u32>>> {
        Ok(match (&self.call, name) {
            (Call::Copy(call), "pairs") => {
                // From the lower half of the cache to the upper, in a scattered order.
                let half = call.pairs;
                let pairs: Vec<[u32; 2]> = (0..half).map(|i| [i * 37 % half, half + i * 91 % half]).collect();
                Some(call.pairs(&pairs)?)
            }
            (Call::Shift(call), "moves") => {
                let (half, block) = (call.moves / KV_BLOCK as u32, KV_BLOCK as u32);
                let slot = |i: u32| i / block * 37 % half * block + i % block;
                let target = |i| if call.in_place { slot(i) } else { slot(i) + call.moves };
                let moves: Vec<[u32; 2]> = (0..call.moves).map(|i| [slot(i), target(i)]).collect();
                Some(call.moves(&moves)?)
            }
            (Call::Shift(call), "turns") => {
                Some(turns(&Rope::new(RopeSpec::new(call.pairing, call.rope_dim as usize, 5e5))?, 0))
            }
            _ => None,
        })
    }
}
