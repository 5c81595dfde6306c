//! Observes a batch: runs its kernels one by one and reads back what they write.
//!
//! The kernels are those of [`Backend::forward`](gyrus_kernels::Backend::forward), so a result that is fused away is not
//! there to be read, and the observer is told why. Splits of attention are merged for the observer by the merge kernel.

use std::collections::HashMap;

use gyrus_kernels::call::engine;
use gyrus_kernels::observe::{INT8_ROUNDING, Observation, Observer, OpResult, Seen, columns, rounding};
use gyrus_kernels::scalar::{QuantizedRows, element};
use gyrus_kernels::{BackendError, Batch, BufferId, KV_BLOCK, KvLayer, Op, Plan};

use crate::backend::GpuBackend;
use crate::buffer::Buffer;
use crate::buffers::MATVEC_ROWS;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::lower::{Call, Int8Plane, Int8Rows, Kernel, Lowering, Operand, RowsSeen, Segments};
use crate::step::{BatchShape, Step};

/// What a call leaves of the result of its last op.
enum Left {
    /// f32 in a buffer of the plan.
    F32(BufferId),
    /// Q in this buffer, K and V in the cache.
    Cache(BufferId),
    /// Splits of attention.
    Splits { head_dim: u32, window: u32, seen: RowsSeen },
    /// int8 rows.
    Int8(Int8Rows),
    /// Nothing that can be shown, for this reason.
    Nothing(&'static str),
}

impl Call {
    /// What it leaves of the result of its last op, for a batch of this many rows.
    fn left(&self, rows: u32) -> Left {
        match &self.kernel {
            Kernel::Embed { out, .. }
            | Kernel::Unfold { out, .. }
            | Kernel::LayerNorm { out, .. }
            | Kernel::Activate { x: out, .. }
            | Kernel::Norm { out, .. }
            | Kernel::NormAdd { out, .. }
            | Kernel::NormColumns { x: out, .. }
            | Kernel::Add { out, .. }
            | Kernel::Bias { out, .. }
            | Kernel::Scale { x: out, .. }
            | Kernel::GateBy { x: out, .. }
            | Kernel::MulBy { x: out, .. }
            | Kernel::DeltaConv { out, .. }
            | Kernel::DeltaRule { out, .. }
            | Kernel::Merge { out, .. }
            | Kernel::MatVec { out, .. }
            | Kernel::Tiles { out, .. }
            | Kernel::MatMul { out, .. }
            | Kernel::Flash { out, .. }
            | Kernel::Attention { out, .. }
            | Kernel::Gate { out, .. }
            | Kernel::Gather { out, .. } => Left::F32(*out),
            Kernel::Int8MatVec(mat_vec) => Left::F32(mat_vec.out),
            Kernel::RopeWrite { on, .. } => Left::Cache(on.qkv),
            Kernel::Attend { gathered: Some(gathered), .. } if rows >= gathered.from_rows => {
                Left::Int8(gathered.out)
            }
            Kernel::Attend { on, call, .. } => {
                let (head_dim, window) = (call.paged.cache.head_dim, call.params.window);
                Left::Splits { head_dim, window, seen: on.seen }
            }
            Kernel::Expert(kernel) => match kernel.out() {
                Some(out) => Left::F32(out),
                None => Left::Nothing("is sorted by expert"),
            },
            Kernel::Quantize(_) => Left::Nothing("exists in int8 only"),
            Kernel::F16Rows { .. } => Left::Nothing("exists in f16 only"),
        }
    }
}

impl GpuBackend {
    /// Runs a batch that was sent, one kernel at a time, and shows the results of ops in their order.
    pub(crate) fn replay_observed(
        &mut self,
        batch: &Batch<'_>,
        tiles: u32,
        observer: &mut Observer<'_>,
    ) -> Result<(), BackendError> {
        let wanted = batch.logits.len();
        if wanted > MATVEC_ROWS {
            return Err(BackendError::TooManyRows { rows: wanted, most: MATVEC_ROWS });
        }
        let GpuBackend { gpu, plan, tables, buffers, weights, tuning, sent, .. } = self;
        let shape = BatchShape {
            rows: batch.rows() as u32,
            positions: batch.positions,
            tiles,
            runs: batch.runs().count() as u32,
            spans: sent.spans(),
            splits: &[],
        };
        let logits_shape = BatchShape { rows: wanted as u32, ..shape };
        let (layers, logits) = tables.of_batch(batch, wanted);
        for step in layers.iter_mut() {
            step.prepare(gpu, shape)?;
        }
        for (i, step) in logits.iter_mut().enumerate() {
            let dispatch = step.prepare(gpu, logits_shape)?;
            // The first step gathers rows from the first on.
            if let (0, Some(dispatch)) = (i, dispatch) {
                gpu.patch(dispatch, engine::GATHER_FIRST, 0);
            }
        }
        // Ops of the logits' steps are counted from the gather on.
        let gather = Segments::of(plan).layers.len();
        let steps: Vec<(usize, &Step)> = (layers.iter().map(|step| (0, step)))
            .chain(logits.iter().map(|step| (gather, step)))
            .filter(|(_, step)| step.dispatch().is_some())
            .collect();
        let mut last_steps = HashMap::new();
        for (i, (first, step)) in steps.iter().enumerate() {
            last_steps.extend(step.call.ops.iter().map(|op| (first + op, (i, *first, &step.call))));
        }
        let lowering = Lowering { gpu, plan, weights, buffers, tuning, replaced: &[] };
        let mut view = View { lowering, batch, shape, last_steps: &last_steps, next: 0, observer };
        for (i, (first, step)) in steps.iter().enumerate() {
            gpu.run(&step.dispatch().into_iter().collect::<Vec<_>>())?;
            for &op in &step.call.ops {
                // An op is shown after the last kernel that computes a part of it.
                if last_steps.get(&(first + op)).is_some_and(|(last, ..)| *last == i) {
                    view.show(first + op, &step.call, Some(&op) == step.call.ops.last())?;
                }
            }
        }
        view.skip_to(plan.forward.len());
        Ok(())
    }
}

/// What an observer is shown of a batch.
struct View<'a, 'o> {
    lowering: Lowering<'a>,
    batch: &'a Batch<'a>,
    shape: BatchShape<'a>,
    /// For each op that a kernel computes the number of the last such step, what its ops are counted from, and its call.
    last_steps: &'a HashMap<usize, (usize, usize, &'a Call)>,
    /// The next op to show.
    next: usize,
    observer: &'o mut Observer<'o>,
}

impl View<'_, '_> {
    /// Shows an op that `call` has completed. `is_last`: it is the last op of the call.
    fn show(&mut self, op: usize, call: &Call, is_last: bool) -> Result<(), GpuError> {
        // A pending norm may be computed after an op that follows it. Results are shown in the order of ops, so it was
        // passed over.
        if op < self.next {
            return Ok(());
        }
        self.skip_to(op);
        self.next = op + 1;
        let plan = self.lowering.plan;
        let rows = self.shape.rows;
        let left = match &call.kernel {
            Kernel::Attend { on, .. } if !is_last => Left::Cache(on.qkv),
            _ if is_last => call.left(rows),
            _ => {
                self.hide(op, &fused_into(call));
                return Ok(());
            }
        };
        match left {
            Left::Nothing(why) => self.hide(op, why),
            Left::F32(id) => self.show_buffer(op, id)?,
            Left::Int8(rows) => self.show_int8(op, rows)?,
            Left::Splits { head_dim, window, seen } => {
                let out = plan.forward[op].writes();
                self.merge(op, head_dim, window, seen, out)?;
                self.show_buffer(op, out)?;
            }
            Left::Cache(qkv) => self.show_attended(op, call, is_last, qkv)?,
        }
        Ok(())
    }

    /// Shows the results of rotation: queries, and keys and values where they are written. A kernel that attends too, so
    /// that rotation is not its last op, does not write the queries.
    fn show_attended(
        &mut self,
        op: usize,
        call: &Call,
        is_last: bool,
        qkv: BufferId,
    ) -> Result<(), GpuError> {
        let plan = self.lowering.plan;
        let rounding = rounding(plan.precision.kv_storage());
        for result in plan.forward[op].results() {
            match result {
                OpResult::Queries if is_last => {
                    let stride = plan.buffer(qkv).width;
                    let width = plan.result_width(&plan.forward[op], result);
                    let all = self.read(qkv, self.shape.rows as usize * stride)?;
                    self.see(op, result, &mut columns(&all, stride, width), 0.0);
                }
                OpResult::Queries => self.hide_result(op, result, &fused_into(call)),
                OpResult::Keys(layer) => {
                    let mut keys = self.cached(layer, Operand::Keys(layer))?;
                    self.see(op, result, &mut keys, rounding);
                }
                OpResult::Values(layer) => {
                    let mut values = self.cached(layer, Operand::Values(layer))?;
                    self.see(op, result, &mut values, rounding);
                }
                OpResult::Buffer(_) => {}
            }
        }
        Ok(())
    }

    /// Says of all ops before this one that were not shown why.
    fn skip_to(&mut self, op: usize) {
        for skipped in self.next..op {
            let why = match (self.last_steps.get(&skipped), &self.lowering.plan.forward[skipped]) {
                (Some((_, first, call)), _) if call.ops.last() == Some(&(skipped - first)) => {
                    format!("its kernel '{}' runs after that of a later op", call.name)
                }
                (Some((.., call)), _) => fused_into(call),
                (None, _) if self.batch.logits.is_empty() => "no row wants logits".to_owned(),
                (None, Op::Gather { .. }) => "no kernel: every row wants logits".to_owned(),
                (None, _) => "fused into the kernel of another op".to_owned(),
            };
            self.hide(skipped, &why);
        }
        self.next = self.next.max(op);
    }

    fn hide(&mut self, op: usize, why: &str) {
        for result in self.lowering.plan.forward[op].results() {
            self.hide_result(op, result, why);
        }
    }

    fn hide_result(&mut self, op: usize, result: OpResult, why: &str) {
        (self.observer)(Observation { op, result, seen: Seen::Hidden(why), rounding: 0.0 });
    }

    fn see(&mut self, op: usize, result: OpResult, values: &mut [f32], rounding: f32) {
        (self.observer)(Observation { op, result, seen: Seen::Values(values), rounding });
    }

    /// Shows the buffer that an op writes, which a kernel may know by another name.
    fn show_buffer(&mut self, op: usize, id: BufferId) -> Result<(), GpuError> {
        let plan = self.lowering.plan;
        for result in plan.forward[op].results() {
            let width = plan.result_width(&plan.forward[op], result);
            let count = plan.result_rows(result, self.batch) * width;
            let mut values = self.read(id, count)?;
            self.see(op, result, &mut values, 0.0);
        }
        Ok(())
    }

    /// Shows int8 rows, dequantised.
    fn show_int8(&mut self, op: usize, int8: Int8Rows) -> Result<(), GpuError> {
        let Lowering { gpu, plan, buffers, .. } = self.lowering;
        let (rows, cols) = (self.shape.rows as usize, int8.width as usize);
        let read = |plane, bytes: usize| -> Result<Vec<u32>, GpuError> {
            let read = gpu.read_part(buffers.get(&Operand::Int8(int8, plane))?, 0..bytes as u64)?;
            Ok(bytemuck::pod_collect_to_vec(&read))
        };
        let (q, scales) = (read(Int8Plane::Values, rows * cols)?, read(Int8Plane::Scales, rows * cols / 4)?);
        let quantized = QuantizedRows::from_words(cols, q, scales);
        let mut values: Vec<f32> = (0..rows).flat_map(|row| quantized.values(row)).collect();
        for result in plan.forward[op].results() {
            self.see(op, result, &mut values, INT8_ROUNDING);
        }
        Ok(())
    }

    /// The first elements of a buffer of the plan.
    fn read(&self, id: BufferId, count: usize) -> Result<Vec<f32>, GpuError> {
        let Lowering { gpu, buffers, .. } = self.lowering;
        let bytes = gpu.read_part(buffers.get(&Operand::Scratch(id))?, 0..4 * count as u64)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Merges splits of attention into the buffer of the op's result, which no kernel uses until the op writes it again.
    fn merge(
        &self,
        op: usize,
        head_dim: u32,
        window: u32,
        seen: RowsSeen,
        out: BufferId,
    ) -> Result<(), GpuError> {
        let width = self.lowering.plan.buffer(out).width as u32;
        let kernel = Kernel::Merge { head_dim, window, seen, width, out };
        let call = Call { name: "merge".to_owned(), kernel, slots: 1, ops: vec![op] };
        let mut step = self.lowering.bind(call)?;
        match step.prepare(self.lowering.gpu, self.shape)? {
            Some(dispatch) => self.lowering.gpu.run(&[&*dispatch]),
            None => Ok(()),
        }
    }

    /// Keys or values of the batch's rows, from the cache.
    fn cached(&self, layer: KvLayer, operand: Operand) -> Result<Vec<f32>, GpuError> {
        let Lowering { gpu, plan, buffers, .. } = self.lowering;
        cached(gpu, plan, buffers.get(&operand)?, layer, self.batch)
    }
}

fn fused_into(call: &Call) -> String {
    format!("fused into the kernel '{}'", call.name)
}

/// The rows of a batch in a layer's keys or values, `[rows, kv_heads·head_dim]`. A block of the cache is
/// `[kv_heads, KV_BLOCK, head_dim]`.
fn cached(
    gpu: &Gpu,
    plan: &Plan,
    buffer: &Buffer,
    layer: KvLayer,
    batch: &Batch<'_>,
) -> Result<Vec<f32>, GpuError> {
    let (group, storage) = (plan.kv_group(layer), plan.precision.kv_storage());
    let (n, bytes) = (group.head_dim, group.block_bytes(plan.precision) as u64);
    let mut blocks: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut rows = Vec::with_capacity(batch.rows() * group.row());
    for row in 0..batch.rows() {
        let position = batch.positions[row] as usize;
        let number = batch.table(row, layer.group)[position / KV_BLOCK];
        let words = match blocks.entry(number) {
            std::collections::hash_map::Entry::Occupied(read) => read.into_mut(),
            std::collections::hash_map::Entry::Vacant(unread) => {
                let first = u64::from(number) * bytes;
                let read = gpu.read_part(buffer, first..first + bytes)?;
                unread.insert(bytemuck::pod_collect_to_vec(&read))
            }
        };
        for head in 0..group.kv_heads {
            let first = (head * KV_BLOCK + position % KV_BLOCK) * n;
            rows.extend((first..first + n).map(|at| element(words, storage, at) as f32));
        }
    }
    Ok(rows)
}
