//! Attention and what goes before it: one kernel for rows of different sequences, two or more for others.

use gyrus_kernels::call::engine::{self, Heads, Paged};
use gyrus_kernels::call::{AttendCall, FlashCall, FlashTuning, SplitMode};
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::{BufferId, Precision, RopeId, WeightId};

use super::{Class, Lowering, Pending, Table};
use crate::buffers::{FEW, MAX_ROWS};
use crate::error::GpuError;
use crate::step::{Step, Work};

/// Workgroups that are enough to keep a device busy without dividing rows: from so many on, one workgroup takes all
/// splits of a row and puts them together, which spares the others what each does before its first key, and a kernel.
const GATHERED: u32 = 64;

/// What is written to the cache and attended to in one go.
pub(super) struct Attention {
    pub(super) qkv: BufferId,
    pub(super) layer: u16,
    pub(super) head_norm: Option<(WeightId, WeightId, f32)>,
    pub(super) rope: RopeId,
    pub(super) scale: f32,
    pub(super) window: Option<u32>,
    pub(super) out: BufferId,
}

impl Lowering<'_> {
    /// Attention of many rows in tiles, how it is divided, and how many rows a tile has at most; where it can be.
    pub(crate) fn flash(&self, scale: f32, window: u32) -> Option<(FlashCall, FlashTuning, u32)> {
        let kv = self.plan.kv;
        let (n_heads, n_kv_heads, head_dim) = (kv.heads as u32, kv.kv_heads as u32, kv.head_dim as u32);
        let call = FlashCall {
            n_heads,
            n_kv_heads,
            head_dim,
            q_stride: (n_heads + 2 * n_kv_heads) * head_dim,
            scale,
            window,
            soft_cap: 0.0,
            causal: true,
            tree: false,
            paged: self.buffers.paged(MAX_ROWS as u32),
            tiles: 1,
        };
        let memory = u32::try_from(self.gpu.workgroup_memory()).unwrap_or(u32::MAX);
        let tuning = FlashTuning { memory: Some(memory.min(32 << 10)), ..FlashTuning::default() };
        let fast = self.plan.precision == Precision::Fast;
        let possible = fast && call.launch(self.gpu.rungs(), tuning).is_ok();
        let rows = call.tile_rows(tuning).ok().filter(|_| possible)?;
        Some((call, tuning, rows))
    }
}

impl Table<'_> {
    pub(super) fn attention(&mut self, op: Attention) -> Result<(), GpuError> {
        let rungs = self.on.gpu.rungs();
        let Attention { qkv, layer, head_norm, rope, scale, window, out } = op;
        self.finish(qkv)?;
        self.written(out)?;
        let kv = self.on.plan.kv;
        let (turns, turns_stride) = self.on.buffers.turns(rope.0 as usize);
        let rope = &self.on.plan.ropes[rope.0 as usize];
        let window = window.unwrap_or(0);
        let params = AttendParams {
            n_heads: kv.heads as u32,
            n_kv_heads: kv.kv_heads as u32,
            stride: self.width(qkv),
            window,
            scale,
            soft_cap: 0.0,
            rope_dim: rope.rope_dim() as u32,
            rope_offset: rope.offset() as u32,
            eps: head_norm.map_or(0.0, |(_, _, eps)| eps),
            pass_scale: rope.output_scale() as f32,
            turns_stride,
            position: 0,
        };
        let head_dim = kv.head_dim as u32;
        let heads = Heads { head_dim, pairing: rope.pairing(), norm: head_norm.is_some() };
        let (k, v) = &self.on.buffers.cache[usize::from(layer)];
        let mut buffers = vec![
            ("qkv", self.buffer(qkv)),
            ("k_cache", k.clone()),
            ("v_cache", v.clone()),
            ("rows", self.on.buffers.rows.clone()),
            ("block_table", self.on.buffers.tables.clone()),
            ("partials", self.on.buffers.partials.clone()),
            ("out", self.buffer(out)),
            ("turns", turns.clone()),
        ];
        if let Some((q, k, _)) = head_norm {
            buffers.push(("head_norms", self.vector(&[q, k])?));
        }
        let paged = self.on.buffers.paged(0);
        let rotate = matches!(self.class, Class::One | Class::Each);
        let position = self.has_position_immediate().then_some(0);
        let call =
            AttendCall { params, heads, rotate, mode: SplitMode::Separate { splits: 1 }, position, paged };
        // Heads of other sizes have no splits, nor has a cache of other elements.
        let splits = self.class != Class::Many && self.fits(&call);
        let rotate = splits && rotate;
        if !rotate {
            let work = Work::Row { bytes: 8 * u64::from(params.stride) };
            self.steps.push(Step::new("rope · write", work, buffers.clone(), move |rows| {
                engine::rope_write(rungs, params, heads, Paged { rows, ..paged })
            }));
        }
        let work =
            Work::Cache { bytes: 2 * kv.row() as u64 * paged.kv.bytes(), flops: 4 * kv.q_width() as u64 };
        if splits {
            let name = if rotate { "rope · write · attend" } else { "attend" };
            let (whole, gathered) = self.gathered(call, out).unwrap_or((call.mode, u32::MAX));
            if gathered != u32::MAX {
                let bytes = self.bytes(out, false)?;
                buffers.extend([("q", bytes.q), ("q_scales", bytes.scales)]);
            }
            let step = Step::new(name, work, buffers, move |rows| {
                let mode = if rows < gathered { call.mode } else { whole };
                AttendCall { mode, paged: Paged { rows, ..paged }, ..call }.launch(rungs)
            });
            self.steps.push(step.split(window, gathered).position_immediate(call.position_at()));
            self.pending.insert(self.id(out), Pending::Splits { window, gathered });
        } else if self.class == Class::Many
            && let Some((call, tuning, _)) = self.on.flash(scale, window)
        {
            // Few rows have no tiles, not even where heads are of a size that has no splits.
            buffers.push(("tiles", self.on.buffers.tiles.clone()));
            let step = Step::new("attend", work, buffers, move |rows| {
                FlashCall { paged: Paged { rows, ..paged }, ..call }.launch(rungs, tuning)
            });
            self.steps.push(step.tiled());
        } else {
            self.steps.push(Step::new("attend", work, buffers, move |rows| {
                engine::attention(rungs, params, head_dim, Paged { rows, ..paged })
            }));
        }
        Ok(())
    }

    /// Whether kernels are told where their only row is, rather than fetch it.
    pub(super) fn has_position_immediate(&self) -> bool {
        self.class == Class::One && self.on.gpu.rungs().immediates
    }

    /// Whether there is such a call, and the device has what it takes.
    fn fits(&self, call: &AttendCall) -> bool {
        let gpu = self.on.gpu;
        let launch = AttendCall { paged: Paged { rows: 1, ..call.paged }, ..*call }.launch(gpu.rungs());
        launch.is_ok_and(|launch| gpu.has_room(&launch, call.invocations(), call.workgroup_bytes()))
    }

    /// How rows are attended to by a workgroup for all of their splits, and from how many rows on: if one mat-mul of
    /// bytes reads the result and nobody else, and the device is large enough.
    fn gathered(&self, call: AttendCall, out: BufferId) -> Option<(SplitMode, u32)> {
        let next = self.read_next_alone(out)?;
        let from = GATHERED.div_ceil(call.workgroups());
        let wanted =
            matches!(self.class, Class::Each | Class::Few) && from <= FEW as u32 && self.takes_int8(next);
        // Registers for four tiles are known to be there where matrices of bytes are.
        let most = if self.on.gpu.rungs().int8_matrix { 4 } else { 2 };
        let ways = [(4, true), (4, false), (2, true), (2, false), (1, false)];
        let ways = ways.into_iter().filter(|(tiles, _)| *tiles <= most);
        let mut ways = ways.map(|(tiles, kept)| SplitMode::Gathered { tiles, kept });
        let mode = ways.find(|mode| self.fits(&AttendCall { mode: *mode, ..call }));
        mode.filter(|_| wanted).map(|mode| (mode, from))
    }
}
