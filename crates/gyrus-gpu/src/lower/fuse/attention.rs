//! Attention and the writing of keys before it: one kernel for rows of different sequences, two for others.

use gyrus_kernels::call::engine::{Heads, Paged};
use gyrus_kernels::call::{AttendCall, SplitMode};
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::{BufferId, RopeId, WeightId};

use super::{Fuser, Pending};
use crate::buffers::{MATVEC_ROWS, rope_stride};
use crate::error::GpuError;
use crate::lower::BatchKind;
use crate::lower::call::{AttentionOperands, Gathered, Kernel};
use crate::lower::operand::Int8Rows;

/// Ways for one workgroup to attend to all splits of a row, the fastest first: tiles at once, and whether sums are in
/// workgroup memory.
const GATHERED_MODES: [(u32, bool); 5] = [(4, true), (4, false), (2, true), (2, false), (1, false)];

/// Ops that write keys of a layer and attend to it.
pub(super) struct Attention {
    pub(super) qkv: BufferId,
    pub(super) layer: u16,
    pub(super) head_norm: Option<(WeightId, WeightId, f32)>,
    pub(super) rope: RopeId,
    pub(super) scale: f32,
    pub(super) window: Option<u32>,
    pub(super) out: BufferId,
}

impl Fuser<'_> {
    pub(super) fn attention(&mut self, op: Attention) -> Result<(), GpuError> {
        let Attention { qkv, layer, head_norm, rope, scale, window, out } = op;
        let (write, attend) = (self.current.start, self.current.end - 1);
        self.finish(qkv)?;
        self.before_write(out)?;
        let kv = self.on.plan.kv;
        let spec = &self.on.plan.ropes[usize::from(rope.0)];
        let window = window.unwrap_or(0);
        let params = AttendParams {
            n_heads: kv.heads as u32,
            n_kv_heads: kv.kv_heads as u32,
            stride: self.width(qkv),
            window,
            scale,
            soft_cap: 0.0,
            rope_dim: spec.rope_dim() as u32,
            rope_offset: spec.offset() as u32,
            eps: head_norm.map_or(0.0, |(_, _, eps)| eps),
            pass_scale: spec.output_scale() as f32,
            turns_stride: rope_stride(spec),
            position: 0,
        };
        let head_dim = kv.head_dim as u32;
        let heads = Heads { head_dim, pairing: spec.pairing(), norm: head_norm.is_some() };
        let on = AttentionOperands {
            qkv: self.id(qkv),
            layer,
            rope,
            head_norms: head_norm.map(|(q, k, _)| [q, k]),
        };
        let out = self.id(out);
        let paged = Paged { rows: 1, ..self.on.cache };
        // Where rows are of different sequences, none reads a key that another writes.
        let rotate = matches!(self.kind, BatchKind::Decode | BatchKind::Sequences);
        let position = self.has_position_immediate().then_some(0);
        let call =
            AttendCall { params, heads, rotate, mode: SplitMode::Separate { splits: 1 }, position, paged };
        // Splits need heads of a multiple of 32 elements and a cache in f16.
        let split = self.kind != BatchKind::Prefill && self.on.capabilities.can_attend_split(&call);
        let rotate = split && rotate;
        if !rotate {
            self.push_for([write], "rope · write", Kernel::RopeWrite { on, params, heads, paged });
        }
        if split {
            let (name, first) = if rotate { ("rope · write · attend", write) } else { ("attend", attend) };
            let gathered = self.gathered(call, out);
            self.push_for(first..=attend, name, Kernel::Attend { on, call, gathered });
            self.pending.insert(out, Pending::Splits { window, gathered, op: attend });
        } else if self.kind == BatchKind::Prefill
            && let Some(call) = self.on.flash(scale, window)
        {
            // Tiles are sent for more than 16 rows only.
            let tuning = self.on.capabilities.flash_tuning();
            self.push_for([attend], "attend", Kernel::Flash { on, call, tuning, out });
        } else {
            self.push_for([attend], "attend", Kernel::Attention { on, params, head_dim, paged, out });
        }
        Ok(())
    }

    /// Whether the position of the only row is a parameter, so that no load of it comes before others.
    pub(super) fn has_position_immediate(&self) -> bool {
        self.kind == BatchKind::Decode && self.on.capabilities.has_position_immediate()
    }

    /// How one workgroup attends to all splits of a row and from how many rows on: if one int8 matrix product is the only
    /// reader of the result, and the device can.
    fn gathered(&self, call: AttendCall, out: BufferId) -> Option<Gathered> {
        let reader = self.only_read_by_next(out)?;
        let profile = self.on.tuning.profile(self.on.capabilities.rungs);
        let from_rows = profile.gathered_workgroups.div_ceil(call.workgroups());
        let useful = matches!(self.kind, BatchKind::Sequences | BatchKind::ShortChunk)
            && from_rows <= MATVEC_ROWS as u32
            && self.takes_int8(reader);
        let capabilities = self.on.capabilities;
        let can = |mode: &SplitMode| capabilities.can_attend_split(&AttendCall { mode: *mode, ..call });
        let modes =
            GATHERED_MODES.into_iter().filter(|(tiles, _)| useful && *tiles <= profile.gathered_tiles);
        let mode = modes.map(|(tiles, kept)| SplitMode::Gathered { tiles, kept }).find(can)?;
        Some(Gathered { mode, from_rows, out: Int8Rows { width: self.width(out), normed: false } })
    }
}
