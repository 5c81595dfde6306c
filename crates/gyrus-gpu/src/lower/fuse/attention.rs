//! Attention and the writing of keys before it: one kernel for rows of different sequences, two for others.

use gyrus_kernels::call::engine::{Heads, Paged};
use gyrus_kernels::call::{AttendCall, SplitMode};
use gyrus_kernels::params::AttendParams;
use gyrus_kernels::{BufferId, Op, Pairing};

use super::{Fuser, Pending};
use crate::buffers::{MATVEC_ROWS, rope_stride};
use crate::error::GpuError;
use crate::lower::BatchKind;
use crate::lower::call::{AttentionOperands, Gathered, Kernel, RowsSeen};
use crate::lower::operand::Int8Rows;
use crate::weight::head_norms;

/// Ways for one workgroup to attend to all splits of a row, the fastest first: tiles at once, and whether sums are in
/// workgroup memory.
const GATHERED_MODES: [(u32, bool); 5] = [(4, true), (4, false), (2, true), (2, false), (1, false)];

/// Elements of the query heads of a workgroup that the profile's number of workgroups is for: four heads of 64.
const GATHERED_ELEMENTS: u32 = 256;

impl Fuser<'_> {
    /// The two ops of attention: the first rotates heads and writes keys, the second attends. Queries for keys of an
    /// encoder need no first op: they are not rotated, and the keys are written already.
    pub(super) fn attention(&mut self, write: Option<&Op>, attend: &Op) -> Result<(), GpuError> {
        let Op::Attention { qkv, heads: n_heads, kv: layer, span, scale, soft_cap, sinks, out } = attend
        else {
            return Err(GpuError::internal("attention is two ops"));
        };
        let (has_kv, norms, rope) = match write {
            Some(Op::RopeWrite { write, norms, rope, .. }) => (write, norms, rope),
            _ => (&false, &None, &None),
        };
        let (qkv, out, layer) = (*qkv, *out, *layer);
        let (first, second) = (self.current.start, self.current.end - 1);
        self.finish(qkv)?;
        self.before_write(out)?;
        let group = self.on.plan.kv_group(layer);
        let (head_dim, n_heads, n_kv_heads) =
            (group.head_dim as u32, u32::from(*n_heads), group.kv_heads as u32);
        let spec = rope.map(|rope| &self.on.plan.ropes[usize::from(rope.0)]);
        let (window, seen) = (RowsSeen::window(*span, group), RowsSeen::of(*span, layer.group));
        if let Some((weight, eps)) = norms.and_then(|norms| Some((norms.v?, norms.eps))) {
            self.norm_columns(first, qkv, (n_heads + n_kv_heads) * head_dim, n_kv_heads, weight, eps);
        }
        let params = AttendParams {
            n_heads,
            n_kv_heads,
            stride: self.width(qkv),
            window,
            scale: *scale,
            soft_cap: soft_cap.unwrap_or(0.0),
            rope_dim: spec.map_or(head_dim, |spec| spec.rope_dim() as u32),
            rope_offset: spec.map_or(0, |spec| spec.offset() as u32),
            eps: norms.map_or(0.0, |norms| norms.eps),
            pass_scale: spec.map_or(1.0, |spec| spec.output_scale() as f32),
            turns_stride: spec.map_or(0, rope_stride),
            position: 0,
        };
        let pairing = spec.map_or(Pairing::Split, |spec| spec.pairing());
        let heads = Heads { pairing, norm: norms.is_some(), write: *has_kv };
        let on = AttentionOperands {
            qkv: self.id(qkv),
            layer,
            rope: rope.ok_or(head_dim),
            head_norms: norms.as_ref().map(head_norms),
            sinks: *sinks,
            seen,
        };
        let out = self.id(out);
        let paged = Paged { rows: 1, ..self.on.caches[usize::from(layer.group)] };
        // Where rows are of different sequences, none reads a key that another writes.
        let causal = seen == RowsSeen::Causal;
        let rotate = *has_kv && causal && matches!(self.kind, BatchKind::Decode | BatchKind::Sequences);
        let position = (causal && self.has_position_immediate()).then_some(0);
        let (mode, sinks) = (SplitMode::Separate { splits: 1 }, sinks.is_some());
        let call = AttendCall { params, heads, rotate, mode, position, sinks, paged };
        // Splits need heads of a multiple of 32 elements and a cache in f16. They end at a row's position, or with the
        // extent.
        let split = self.kind != BatchKind::Prefill
            && !matches!(seen, RowsSeen::Around(_))
            && self.on.capabilities.can_attend_split(&call);
        let rotate = split && rotate;
        if !rotate && write.is_some() {
            let name = if *has_kv { "rope · write" } else { "rope" };
            self.push_for([first], name, Kernel::RopeWrite { on, params, heads, paged });
        }
        if split {
            let (name, from) = if rotate { ("rope · write · attend", first) } else { ("attend", second) };
            let gathered = self.gathered(call, out);
            self.push_for(from..=second, name, Kernel::Attend { on, call, gathered });
            self.pending.insert(out, Pending::Splits { head_dim, window, seen, gathered, op: second });
        } else if self.kind == BatchKind::Prefill
            && let Some(call) = self.on.flash(attend)
        {
            // Tiles are sent for more than 16 rows only.
            let tuning = self.on.capabilities.flash_tuning();
            self.push_for([second], "attend", Kernel::Flash { on, call, tuning, out });
        } else {
            self.push_for([second], "attend", Kernel::Attention { on, params, paged, out });
        }
        Ok(())
    }

    /// Writes keys and values that no query of the same rows attends to: those of an encoder for a decoder.
    pub(super) fn write_keys(&mut self, write: &Op) -> Result<(), GpuError> {
        let Op::RopeWrite { qkv, kv: layer, norms, rope, .. } = write else {
            return Err(GpuError::internal("keys are written by an op of their own"));
        };
        if norms.is_some() || rope.is_some() {
            return Err(GpuError::UnsupportedOp {
                op: "keys without queries that are normalised or rotated",
            });
        }
        self.finish(*qkv)?;
        let group = self.on.plan.kv_group(*layer);
        let head_dim = group.head_dim as u32;
        let params = AttendParams {
            n_kv_heads: group.kv_heads as u32,
            stride: self.width(*qkv),
            rope_dim: head_dim,
            pass_scale: 1.0,
            ..Default::default()
        };
        let heads = Heads { pairing: Pairing::Split, norm: false, write: true };
        let (qkv, rope) = (self.id(*qkv), Err(head_dim));
        let on = AttentionOperands {
            qkv,
            layer: *layer,
            rope,
            head_norms: None,
            sinks: None,
            seen: RowsSeen::Causal,
        };
        let paged = Paged { rows: 1, ..self.on.caches[usize::from(layer.group)] };
        self.push("write", Kernel::RopeWrite { on, params, heads, paged });
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
        let profile = self.on.profile();
        // A workgroup with more to compute for each position takes longer, so that more of them must share the work.
        let share = call.query_elements().div_ceil(GATHERED_ELEMENTS);
        let from_rows = profile.gathered_workgroups.saturating_mul(share).div_ceil(call.workgroups());
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
