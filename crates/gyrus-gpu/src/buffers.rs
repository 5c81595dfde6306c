//! A plan's buffers on a device, apart from its weights.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use gyrus_kernels::call::engine::{self, MOST_SPLITS, Paged};
use gyrus_kernels::call::{Experts, F16RowsCall, Tile};
use gyrus_kernels::{
    Batch, BufferId, DeltaLayer, KV_BLOCK, KvGroup, KvLayer, KvShape, KvSize, LOGITS, Op, Plan, Precision,
    Rope, RopeId, Rows,
};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::lower::{F16Plane, Int8Plane, Int8Rows, Operand};

/// The most rows of one batch of a decoder.
pub const MAX_ROWS: usize = 512;

/// The most rows of one batch of an encoder. Convolutions have two for each, and a grid's axis has 65,535 workgroups.
const MAX_ENCODER_ROWS: usize = 32_767;

/// The most rows of a mat-vec, which reads the weights once for all of them. Their sums have the order that one row's
/// have.
pub(crate) const MATVEC_ROWS: usize = 16;

/// Whether rows of a pass attend to others than those before them.
pub(crate) fn is_encoder(plan: &Plan) -> bool {
    let mut ops = plan.encode.iter().chain(&plan.forward);
    ops.any(|op| matches!(op, Op::Attention { span, .. } if span.reads_extents()))
}

/// The KV groups of which some ops see the extent, ascending.
pub(crate) fn span_groups(ops: &[Op]) -> BTreeSet<u8> {
    let group = |op: &Op| match op {
        Op::Attention { kv, span, .. } if span.reads_extents() => Some(kv.group),
        _ => None,
    };
    ops.iter().filter_map(group).collect()
}

/// The most rows of one batch. The keys of all rows of an encoder's batch are in the cache together, since no sequence is
/// divided: so it takes as many as the cache has positions for. So does a decoder whose hidden rows are the result.
pub(crate) fn most_rows(plan: &Plan, kv: &KvSize) -> usize {
    let of_blocks = |blocks: Option<&usize>| {
        blocks.map_or(0, |blocks| blocks.saturating_mul(KV_BLOCK).min(MAX_ENCODER_ROWS))
    };
    if plan.output(LOGITS).is_none() {
        return of_blocks(kv.blocks.iter().max()).max(MAX_ROWS);
    }
    let writes =
        |op: &Op, group: u8| matches!(op, Op::RopeWrite { kv, write: true, .. } if kv.group == group);
    let of_pass = |ops: &[Op]| {
        let own = span_groups(ops).into_iter().filter(|group| ops.iter().any(|op| writes(op, *group)));
        of_blocks(own.filter_map(|group| kv.blocks.get(usize::from(group))).max())
    };
    of_pass(&plan.encode).max(of_pass(&plan.forward)).max(MAX_ROWS)
}

/// The most rows of a batch whose results are computed at a time: logits are wide, so that they are computed for few rows,
/// and the outputs of encoders for all.
pub(crate) fn result_rows(plan: &Plan, kv: &KvSize) -> usize {
    if plan.output(LOGITS).is_some() { MATVEC_ROWS } else { most_rows(plan, kv) }
}

/// Every buffer that kernels of a plan with a cache of this size may use, apart from weights, and its bytes: what is
/// allocated, and what [`MemoryNeed`](crate::MemoryNeed) sums.
pub(crate) fn sizes(plan: &Plan, kv: &KvSize) -> Vec<(Operand, u64)> {
    let words = |count: usize| (count as u64).saturating_mul(4);
    let most = most_rows(plan, kv);
    // Only what has logits is decoded in slots.
    let has_slots = plan.output(LOGITS).is_some();
    let mut sizes = Vec::new();
    for (spec, id) in plan.buffers.iter().zip(0..).map(|(spec, id)| (spec, BufferId(id))) {
        let encodes = plan.encode.iter().any(|op| op.writes() == id);
        let decodes = plan.forward.iter().any(|op| op.writes() == id);
        let (rows, slot_rows) = match spec.rows {
            Rows::Batch => (most, Some(MATVEC_ROWS)),
            Rows::Slots(used) => (most * usize::from(used), Some(MATVEC_ROWS * usize::from(used))),
            Rows::Logits if encodes => (most, None),
            Rows::Logits => (result_rows(plan, kv), None),
        };
        sizes.push((Operand::Scratch(id), words(rows * spec.width)));
        if let Some(rows) = slot_rows.filter(|_| has_slots && decodes) {
            sizes.push((Operand::SlotScratch(id), words(rows * spec.width)));
        }
    }
    let partials = plan.forward.iter().map(|op| match op {
        Op::Attention { heads, kv, .. } => {
            MATVEC_ROWS * usize::from(*heads) * MOST_SPLITS as usize * (plan.kv_group(*kv).head_dim + 4)
        }
        _ => 0,
    });
    sizes.extend([
        (Operand::Tokens, words(most)),
        (Operand::Rows, words(2 * most)),
        (Operand::LogitRows, words(most)),
        (Operand::Tiles, (most * size_of::<Tile>()) as u64),
        (Operand::Partials, words(partials.max().unwrap_or(0))),
    ]);
    for group in &span_groups(&plan.encode) | &span_groups(&plan.forward) {
        sizes.push((Operand::SpanRows(group), words(2 * most)));
        sizes.push((Operand::SpanTiles(group), (most * size_of::<Tile>()) as u64));
    }
    if plan.encode.iter().chain(&plan.forward).any(|op| matches!(op, Op::AddTypes { .. })) {
        sizes.push((Operand::Types, words(most)));
    }
    if !plan.delta.is_empty() {
        sizes.push((Operand::Runs, words(4 * MAX_ROWS)));
        sizes.push((Operand::RowRuns, words(MAX_ROWS)));
        sizes.push((Operand::CopiedRecords, words(2)));
    }
    let records = u64::from(records(kv));
    for (shape, layer) in plan.delta.iter().zip(0..) {
        let bytes = words(shape.state_elems()).saturating_mul(records);
        sizes.push((Operand::State(DeltaLayer(layer)), bytes));
    }
    for head_dim in plan.kv.iter().map(|group| group.head_dim as u32).collect::<BTreeSet<_>>() {
        sizes.push((Operand::NoRope(head_dim), words(head_dim as usize + 2)));
    }
    for (rope, id) in plan.ropes.iter().zip(0..) {
        let rows = if rope_stride(rope) == 0 { 1 } else { MAX_ROWS };
        sizes.push((Operand::RopeTable(RopeId(id)), words(rows * 2 * (rope.pairs() + 1))));
    }
    let order = plan.forward.iter().map(|op| match op {
        Op::Route { logits, used, .. } => {
            let (count, used) = (plan.buffer(*logits).width as u32, (*used).into());
            let experts = Experts { count, used, shared: true, bias: false, parts: 1, sum: false };
            experts.most_order_words(MAX_ROWS as u32)
        }
        _ => 0,
    });
    if let Some(order) = order.max().filter(|order| *order > 0) {
        sizes.push((Operand::ExpertOrder, 4 * order));
    }
    for (width, slots) in quantized_widths(plan) {
        for normed in [false, true] {
            let elements = MATVEC_ROWS as u64 * u64::from(width);
            sizes.extend(Int8Plane::ALL.map(|plane| {
                let bytes = match plane {
                    Int8Plane::Values => elements,
                    Int8Plane::Scales => elements / 4,
                    Int8Plane::InverseRms => words(MATVEC_ROWS),
                    Int8Plane::SquareSums => elements / 8,
                };
                (Operand::Int8(Int8Rows { width, normed }, plane), bytes)
            }));
        }
        let f16_rows = most * slots;
        let f16 = F16RowsCall { rows: f16_rows as u32, cols: width, x_stride: width, norm: None };
        sizes.push((Operand::F16(width, F16Plane::Values), f16.bytes()));
        sizes.push((Operand::F16(width, F16Plane::Scales), words(f16_rows)));
    }
    for ((spec, blocks), group) in plan.kv.iter().zip(&kv.blocks).zip(0..) {
        sizes.push((Operand::BlockTables(group), words(table_entries(plan, kv))));
        sizes.push((Operand::SlotTables(group), words(padding_table(kv).saturating_add(1))));
        let blocks = (*blocks as u64).saturating_add(PADDING_BLOCKS as u64);
        let cache = blocks.saturating_mul(spec.block_bytes(plan.precision) as u64);
        for index in 0..spec.layers as u16 {
            let layer = KvLayer { group, index };
            sizes.extend([(Operand::Keys(layer), cache), (Operand::Values(layer), cache)]);
        }
    }
    sizes
}

/// Bytes of the buffer that logits are read back through. Those of encoders are read through one of the batch's size.
pub(crate) fn logits_readback_bytes(plan: &Plan) -> u64 {
    if plan.output(LOGITS).is_some() { (MATVEC_ROWS * plan.vocab * 4) as u64 } else { 0 }
}

/// Widths of rows that are converted to int8 or f16, those that matrices multiply in `fast`; and how many such rows each
/// row of a batch has.
fn quantized_widths(plan: &Plan) -> BTreeMap<u32, usize> {
    let mut widths = BTreeMap::new();
    let ops = plan.encode.iter().chain(&plan.forward);
    for op in ops.filter(|_| plan.precision == Precision::Fast) {
        if let Op::MatMul { x, .. } | Op::ExpertMatMul { x, .. } = op {
            let spec = plan.buffer(*x);
            let slots = if let Rows::Slots(used) = spec.rows { used.into() } else { 1 };
            let most = widths.entry(spec.width as u32).or_insert(slots);
            *most = slots.max(*most);
        }
    }
    widths
}

/// Blocks of each KV group that rows without a sequence write to. The caller does not know of them.
pub(crate) const PADDING_BLOCKS: usize = 1;

/// Records on the device: those of the caller, and one that measurements write to.
pub(crate) fn records(kv: &KvSize) -> u32 {
    u32::try_from(kv.records).unwrap_or(u32::MAX).saturating_add(1)
}

/// Slots of a backend.
pub(crate) const SLOTS: usize = gyrus_kernels::MAX_SLOTS;

/// Entries from the block table of one slot to that of the next: those of the longest sequence.
pub(crate) fn slot_stride(kv: &KvSize) -> usize {
    kv.positions.div_ceil(KV_BLOCK).saturating_add(1)
}

/// The first entry of the block table of rows without a sequence, which names the padding block.
pub(crate) fn padding_table(kv: &KvSize) -> usize {
    slot_stride(kv).saturating_mul(SLOTS)
}

/// Entries of all block tables of a batch together: those of the longest sequence for each row that decodes. Sequences may
/// share blocks, so that this can be more than the cache has. Each row of an encoder may be a sequence of its own.
fn table_entries(plan: &Plan, kv: &KvSize) -> usize {
    let decoding = slot_stride(kv).saturating_mul(MATVEC_ROWS);
    if !is_encoder(plan) && plan.output(LOGITS).is_some() {
        return decoding;
    }
    let blocks = kv.blocks.iter().fold(0usize, |sum, blocks| sum.saturating_add(*blocks));
    decoding.max(most_rows(plan, kv).saturating_add(blocks))
}

/// Entries from one row's frequencies to the next in a rope's table: 0 if all sequences have the same. Some ropes have
/// others for long sequences, so that each row has its own.
pub(crate) fn rope_stride(rope: &Rope) -> u32 {
    let same = rope.length_class(usize::MAX) == rope.length_class(0);
    if same { 0 } else { rope.pairs() as u32 + 1 }
}

/// The cache of each KV group's layers and the size of block tables, for no rows.
pub(crate) fn paged(plan: &Plan, size: &KvSize) -> Vec<Paged> {
    let entries = u32::try_from(table_entries(plan, size)).unwrap_or(u32::MAX);
    let cache = |(group, blocks): (&KvGroup, &usize)| {
        KvShape::of(group, plan.precision, blocks.saturating_add(PADDING_BLOCKS))
    };
    plan.kv.iter().zip(&size.blocks).map(|pool| Paged { cache: cache(pool), rows: 0, entries }).collect()
}

/// Overwrites the beginning of a buffer.
pub(crate) type Write<'w> = dyn FnMut(&Buffer, &[u32]) -> Result<(), GpuError> + 'w;

/// The buffers that a plan's kernels read and write.
#[derive(Debug)]
pub(crate) struct Buffers {
    all: HashMap<Operand, Buffer>,
    /// The length classes of sequences whose frequencies each rope's table has, row by row.
    sent_ropes: Vec<RefCell<Vec<usize>>>,
    /// Of each KV group.
    paged: Vec<Paged>,
    table_entries: usize,
    records: u32,
    most_rows: usize,
}

impl Buffers {
    pub(crate) fn new(gpu: &Gpu, plan: &Plan, kv: &KvSize) -> Result<Buffers, GpuError> {
        let mut all = HashMap::new();
        for (operand, bytes) in sizes(plan, kv) {
            all.insert(operand, gpu.buffer(bytes)?);
        }
        let buffers = Buffers {
            all,
            sent_ropes: plan.ropes.iter().map(|_| RefCell::default()).collect(),
            paged: paged(plan, kv),
            table_entries: table_entries(plan, kv),
            records: records(kv),
            most_rows: most_rows(plan, kv),
        };
        for (operand, table) in &buffers.all {
            if let Operand::NoRope(head_dim) = operand {
                gpu.write(table, bytemuck::cast_slice(&engine::no_turns(*head_dim as usize)))?;
            }
        }
        for (blocks, group) in kv.blocks.iter().zip(0..) {
            let table = buffers.get(&Operand::SlotTables(group))?;
            let padding = (*blocks as u32).to_le_bytes();
            gpu.write_at(table, 4 * padding_table(kv) as u64, &padding)?;
        }
        for (rope, id) in plan.ropes.iter().zip(0..).filter(|(rope, _)| rope_stride(rope) == 0) {
            let table = buffers.get(&Operand::RopeTable(RopeId(id)))?;
            gpu.write(table, bytemuck::cast_slice(&engine::turns(rope, 0)))?;
        }
        Ok(buffers)
    }

    pub(crate) fn get(&self, operand: &Operand) -> Result<&Buffer, GpuError> {
        self.all.get(operand).ok_or_else(|| GpuError::internal(format!("{operand:?} was never allocated")))
    }

    /// How many entries all block tables together may have.
    pub(crate) fn table_entries(&self) -> usize {
        self.table_entries
    }

    /// The most rows of a batch.
    pub(crate) fn most_rows(&self) -> usize {
        self.most_rows
    }

    /// Records of states.
    pub(crate) fn records(&self) -> u32 {
        self.records
    }

    /// The cache and block tables of each KV group, for no rows.
    pub(crate) fn paged(&self) -> &[Paged] {
        &self.paged
    }

    /// Writes each row's frequencies, for ropes whose frequencies depend on a sequence's length, unless the device has
    /// them.
    pub(crate) fn write_ropes(
        &self,
        plan: &Plan,
        batch: &Batch<'_>,
        write: &mut Write<'_>,
    ) -> Result<(), GpuError> {
        let ropes = plan.ropes.iter().zip(0..).zip(&self.sent_ropes);
        for ((rope, id), sent) in ropes.filter(|((rope, _), _)| rope_stride(rope) > 0) {
            let class = |sequence: &u32| rope.length_class(batch.lengths[*sequence as usize] as usize);
            let classes = batch.sequences.iter().map(class);
            let mut sent = sent.borrow_mut();
            // Decoding changes nothing here.
            if sent.len() >= batch.rows() && classes.clone().zip(&*sent).all(|(class, sent)| class == *sent) {
                continue;
            }
            sent.clear();
            let mut words = Vec::with_capacity(2 * batch.rows() * rope_stride(rope) as usize);
            for rows in batch.sequences.chunk_by(|a, b| a == b) {
                let of_row = engine::turns(rope, batch.lengths[rows[0] as usize] as usize);
                rows.iter().for_each(|_| words.extend_from_slice(&of_row));
            }
            write(self.get(&Operand::RopeTable(RopeId(id)))?, &words)?;
            sent.extend(classes);
        }
        Ok(())
    }

    /// Forgets which frequencies the device has.
    pub(crate) fn forget_ropes(&self) {
        self.sent_ropes.iter().for_each(|sent| sent.borrow_mut().clear());
    }
}
