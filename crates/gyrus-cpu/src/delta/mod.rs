//! Gated DeltaNet: records of states, and the ops that read and write them.

mod kernel;
#[cfg(test)]
mod tests;

use gyrus_kernels::{Batch, CONV_TAPS, DeltaShape, L2_EPS};

use crate::CpuError;
use crate::exp::exp;
use crate::norm::squares;
use crate::pool::Pool;
use crate::slab::SlabBytes;
use crate::storage::Disjoint;
use kernel::{COLUMNS, DeltaRow, advance, conv_row, predict};

/// Records of the states of all layers, in `f32`. A layer of a record has the last inputs of its convolution,
/// `[CONV_TAPS - 1, channels]`, and its matrices in blocks of columns, `[value_heads, value_dim / COLUMNS, key_dim, COLUMNS]`.
pub(crate) struct StateStore {
    bytes: Option<SlabBytes>,
    /// Elements of a record.
    record: usize,
    records: usize,
    /// The first element of each layer in a record.
    offsets: Vec<usize>,
    /// Zeros: the inputs before a sequence's beginning.
    zeros: Vec<f32>,
}

impl StateStore {
    pub(crate) fn new(shapes: &[DeltaShape], records: usize) -> Result<StateStore, CpuError> {
        let mut record = 0;
        let mut offsets = Vec::with_capacity(shapes.len());
        for shape in shapes {
            offsets.push(record);
            record += shape.state_elems();
        }
        let bytes = match record.checked_mul(4 * records).filter(|n| isize::try_from(*n).is_ok()) {
            Some(0) => None,
            Some(bytes) => Some(SlabBytes::zeroed(bytes)?),
            None => return Err(CpuError::Memory { bytes: usize::MAX }),
        };
        let zeros = vec![0.0; shapes.iter().map(DeltaShape::conv_elems).max().unwrap_or(0)];
        Ok(StateStore { bytes, record, records, offsets, zeros })
    }

    /// Bytes of all records.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.as_ref().map_or(0, |bytes| bytes.as_slice().len())
    }

    /// Records of the pool.
    pub(crate) fn records(&self) -> usize {
        self.records
    }

    fn elems(&self) -> &[f32] {
        bytemuck::cast_slice(self.bytes.as_ref().map_or(&[][..], SlabBytes::as_slice))
    }

    fn elems_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(self.bytes.as_mut().map_or(&mut [][..], SlabBytes::as_mut_slice))
    }

    /// The last inputs of a layer's convolution.
    fn inputs(&self, record: Option<u32>, layer: usize, shape: &DeltaShape) -> &[f32] {
        match record {
            Some(record) => &self.elems()[self.at(record, layer)..][..shape.conv_elems()],
            None => &self.zeros[..shape.conv_elems()],
        }
    }

    /// Copies a record, or zeros.
    pub(crate) fn copy(&mut self, from: Option<usize>, to: usize) {
        let n = self.record;
        match from {
            Some(from) => self.elems_mut().copy_within(from * n..(from + 1) * n, to * n),
            None => self.elems_mut()[to * n..(to + 1) * n].fill(0.0),
        }
    }

    /// Reads a record: the inputs and the matrices of each layer, matrices by columns, `[value_heads, value_dim, key_dim]`.
    pub(crate) fn read_record(&self, shapes: &[DeltaShape], record: u32, out: &mut [f32]) {
        let stored = &self.elems()[record as usize * self.record..][..self.record];
        record_places(shapes).zip(out).for_each(|(at, out)| *out = stored[at]);
    }

    /// Writes a record, as [`StateStore::read_record`] reads it.
    pub(crate) fn write_record(&mut self, shapes: &[DeltaShape], record: u32, values: &[f32]) {
        let (first, elems) = (record as usize * self.record, self.record);
        let stored = &mut self.elems_mut()[first..][..elems];
        record_places(shapes).zip(values).for_each(|(at, value)| stored[at] = *value);
    }

    /// The first element of a layer in a record.
    fn at(&self, record: u32, layer: usize) -> usize {
        record as usize * self.record + self.offsets[layer]
    }
}

/// The place in a record of each element of the layout that [`StateStore::read_record`] reads.
fn record_places(shapes: &[DeltaShape]) -> impl Iterator<Item = usize> + '_ {
    let mut first = 0;
    shapes.iter().flat_map(move |shape| {
        let at = first;
        first += shape.state_elems();
        let (matrices, n, columns) = (at + shape.conv_elems(), shape.key_dim, shape.value_width());
        let column = move |column: usize| {
            let block = matrices + column / COLUMNS * n * COLUMNS;
            (0..n).map(move |i| block + i * COLUMNS + column % COLUMNS)
        };
        (at..matrices).chain((0..columns).flat_map(column))
    })
}

/// The rows of each sequence of a batch, in memory that is reused.
#[derive(Default)]
pub(crate) struct SequenceRows {
    /// Rows, sequence by sequence.
    rows: Vec<u32>,
    /// Where each sequence begins in `rows`, and the end of the last.
    starts: Vec<usize>,
    /// For each row its index among those of its sequence.
    index: Vec<u32>,
}

impl SequenceRows {
    /// Collects the rows of a batch.
    pub(crate) fn collect(&mut self, batch: &Batch<'_>) {
        let SequenceRows { rows, starts, index } = self;
        starts.clear();
        starts.resize(batch.records.len() + 1, 0);
        index.clear();
        for &sequence in batch.sequences {
            let count = &mut starts[sequence as usize + 1];
            index.push(*count as u32);
            *count += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        rows.clear();
        rows.resize(batch.rows(), 0);
        for (row, &sequence) in batch.sequences.iter().enumerate() {
            rows[starts[sequence as usize] + index[row] as usize] = row as u32;
        }
    }

    fn of(&self, sequence: usize) -> &[u32] {
        &self.rows[self.starts[sequence]..self.starts[sequence + 1]]
    }
}

/// The weights of the convolution and of the gates.
pub(crate) struct ConvWeights<'a> {
    /// `[CONV_TAPS, channels]`, the oldest first.
    pub(crate) taps: &'a [f32],
    pub(crate) a: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) a_is_log: bool,
}

/// Taps of `[channels, CONV_TAPS]` as kernels read them: `[CONV_TAPS, channels]`.
pub(crate) fn transposed(taps: &[f32]) -> Vec<f32> {
    let channels = taps.len() / CONV_TAPS;
    (0..taps.len()).map(|i| taps[i % channels * CONV_TAPS + i / channels]).collect()
}

/// What both ops read.
pub(crate) struct DeltaContext<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) shape: DeltaShape,
    /// The index of the layer.
    pub(crate) layer: usize,
    pub(crate) batch: &'a Batch<'a>,
    pub(crate) rows: &'a SequenceRows,
    /// Rows of projections.
    pub(crate) x: &'a [f32],
}

impl<'a> DeltaContext<'a> {
    fn input(&self, row: u32) -> &'a [f32] {
        let width = self.shape.projected_width();
        &self.x[row as usize * width..][..width]
    }

    /// The channels of the row `back` rows before the `index`-th of a sequence. `inputs` are those of the state.
    fn channels(&self, sequence: usize, index: usize, back: usize, inputs: &'a [f32]) -> &'a [f32] {
        let n = self.shape.channels();
        match index.checked_sub(back) {
            Some(index) => &self.input(self.rows.of(sequence)[index])[..n],
            // The state has the newest input last.
            None => &inputs[(CONV_TAPS - 1 + index - back) * n..][..n],
        }
    }
}

/// [`Op::DeltaConv`](gyrus_kernels::Op::DeltaConv).
pub(crate) fn delta_conv(
    on: &DeltaContext<'_>,
    weights: &ConvWeights<'_>,
    states: &StateStore,
    out: &mut [f32],
) {
    let (shape, isa) = (&on.shape, on.pool.isa());
    let (width, channels, heads) = (shape.prepared_width(), shape.channels(), shape.value_heads);
    let taps: [&[f32]; CONV_TAPS] = std::array::from_fn(|t| &weights.taps[t * channels..][..channels]);
    let query_scale = 1.0 / (shape.key_dim as f32).sqrt();
    let (rows, elems) = (on.batch.rows(), out.len());
    let parts = Disjoint::new(out);
    on.pool.run_rows(rows, elems, |row| {
        let (sequence, index) = (on.batch.sequences[row] as usize, on.rows.index[row] as usize);
        let inputs = states.inputs(on.batch.records[sequence].from, on.layer, shape);
        let inputs = std::array::from_fn(|t| on.channels(sequence, index, CONV_TAPS - 1 - t, inputs));
        // SAFETY: each task writes its own row only.
        let out = unsafe { parts.part(row * width..(row + 1) * width) };
        let (values, factors) = out.split_at_mut(channels);
        conv_row(isa, taps, inputs, values);
        for (i, head) in values[..2 * shape.key_width()].chunks_exact_mut(shape.key_dim).enumerate() {
            let scale = if i < shape.key_heads { query_scale } else { 1.0 };
            let factor = scale / (squares(isa, head) + L2_EPS).sqrt();
            head.iter_mut().for_each(|x| *x *= factor);
        }
        let gates = &on.input(row as u32)[channels + shape.value_width()..];
        factors[2 * heads..].fill(0.0);
        let (betas, decays) = factors.split_at_mut(heads);
        for head in 0..heads {
            betas[head] = 1.0 / (1.0 + exp(-gates[head]));
            let a = if weights.a_is_log { -exp(weights.a[head]) } else { weights.a[head] };
            let x = gates[heads + head] + weights.bias[head];
            // Beyond this, e⁻ˣ is below the last bit of x.
            let softplus = if x > 20.0 { x } else { exp(x).ln_1p() };
            decays[head] = exp(a * softplus);
        }
    });
}

/// [`Op::DeltaRule`](gyrus_kernels::Op::DeltaRule).
pub(crate) fn delta_rule(on: &DeltaContext<'_>, prepared: &[f32], states: &mut StateStore, out: &mut [f32]) {
    let (shape, isa) = (&on.shape, on.pool.isa());
    let (width, out_width) = (shape.prepared_width(), shape.value_width());
    let (key_width, n) = (shape.key_width(), shape.key_dim);
    let blocks = out_width / COLUMNS;
    let (outs, record, conv) = (Disjoint::new(out), states.record, shape.conv_elems());
    let offset = states.offsets[on.layer] + conv;
    let all = Disjoint::new(states.elems_mut());
    on.pool.run(on.batch.records.len() * blocks, &|task| {
        let (sequence, block) = (task / blocks, task % blocks);
        let (rows, records) = (on.rows.of(sequence), on.batch.records[sequence]);
        let Some(&first) = rows.first() else { return };
        let elems = n * COLUMNS;
        let at = |record_of: u32| record_of as usize * record + offset + block * elems;
        let to = at(records.to);
        // SAFETY: no other task has this block of the record, and no other sequence reads or writes the record.
        let state = unsafe { all.part(to..to + elems) };
        match records.from.filter(|from| *from != records.to) {
            // SAFETY: no task writes a record that another sequence reads.
            Some(from) => state.copy_from_slice(unsafe { all.part(at(from)..at(from) + elems) }),
            None if records.from.is_none() => state.fill(0.0),
            None => {}
        }
        let (state, _) = state.as_chunks_mut::<COLUMNS>();
        let head = block * COLUMNS / shape.value_dim;
        let key_at = key_width + shape.key_head(head) * n;
        let row_of = |row: u32| &prepared[row as usize * width..][..width];
        let key_of = |row: u32| &row_of(row)[key_at..][..n];
        let mut predicted = [0.0; COLUMNS];
        predict(isa, state, key_of(first), &mut predicted);
        for (i, &row) in rows.iter().enumerate() {
            let prepared = row_of(row);
            let factors = &prepared[shape.channels()..];
            let values = &prepared[2 * key_width + block * COLUMNS..];
            let Some(value) = values.first_chunk::<COLUMNS>() else { return };
            let step = DeltaRow {
                query: &prepared[key_at - key_width..][..n],
                key: key_of(row),
                value,
                beta: factors[head],
                decay: factors[shape.value_heads + head],
            };
            let at = row as usize * out_width + block * COLUMNS;
            // SAFETY: each task writes its own columns only.
            let (out, _) = unsafe { outs.part(at..at + COLUMNS) }.as_chunks_mut::<COLUMNS>();
            // After the last row there is nothing to predict; any key will do.
            let next = key_of(rows.get(i + 1).copied().unwrap_or(row));
            advance(isa, state, step, next, &mut predicted, &mut out[0]);
        }
    });
    write_inputs(on, states);
}

/// Writes the last inputs of the convolution.
fn write_inputs(on: &DeltaContext<'_>, states: &mut StateStore) {
    let n = on.shape.channels();
    for (sequence, records) in on.batch.records.iter().enumerate() {
        let rows = on.rows.of(sequence);
        if rows.is_empty() {
            continue;
        }
        let to = states.at(records.to, on.layer);
        let kept = (CONV_TAPS - 1).saturating_sub(rows.len());
        if kept > 0 {
            // The newest inputs of the state before become the oldest.
            let moved = (CONV_TAPS - 1 - kept) * n;
            match records.from.map(|from| states.at(from, on.layer)) {
                Some(from) => states.elems_mut().copy_within(from + moved..from + moved + kept * n, to),
                None => states.elems_mut()[to..to + kept * n].fill(0.0),
            }
        }
        let inputs = &mut states.elems_mut()[to + kept * n..to + (CONV_TAPS - 1) * n];
        let last = &rows[rows.len() - (CONV_TAPS - 1 - kept)..];
        for (input, row) in inputs.chunks_exact_mut(n).zip(last) {
            input.copy_from_slice(&on.input(*row)[..n]);
        }
    }
}
