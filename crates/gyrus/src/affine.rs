//! Assembles the blocks of a weight in affine groups from its three tensors, in parallel.

use gyrus_formats::{Checkpoint, TensorView};
use gyrus_kernels::WeightSpec;
use gyrus_tensor::AffineRows;

/// The fewest bytes that are worth a thread.
const THREAD_BYTES: usize = 1 << 20;

/// The elements of a weight whose quants are the words of `weight`. Bits and groups follow from the shapes, which were
/// checked when the plan was built. `None` if they contradict each other or memory is short.
pub(crate) fn assemble(model: &Checkpoint, spec: &WeightSpec, weight: &TensorView<'_>) -> Option<Vec<u8>> {
    let stem = spec.name.strip_suffix(".weight")?;
    let scales = model.tensor(&format!("{stem}.scales"))?;
    let biases = model.tensor(&format!("{stem}.biases"))?;
    let (rows, cols) = (spec.shape.rows(), spec.shape.row());
    let row_bytes = |tensor: &TensorView<'_>| tensor.data.len().checked_div(tensor.shape.rows());
    let widths = [row_bytes(weight)?, row_bytes(&scales)?, row_bytes(&biases)?];
    let rows_of = |first: usize, count: usize| {
        let first = spec.first_row.checked_add(first)?;
        let affine = AffineRows {
            bits: (8 * widths[0]).checked_div(cols)?,
            group: cols.checked_div(scales.shape.row())?,
            scale: scales.dtype,
            quants: rows_of_tensor(weight, widths[0], first, count)?,
            scales: rows_of_tensor(&scales, widths[1], first, count)?,
            biases: rows_of_tensor(&biases, widths[2], first, count)?,
        };
        (affine.dtype()? == spec.dtype).then_some(affine)
    };
    let bytes = spec.dtype.bytes_of(&spec.shape).ok()?;
    let mut out = Vec::new();
    out.try_reserve_exact(bytes).ok()?;
    out.resize(bytes, 0);
    if bytes > 0 {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let count = rows.div_ceil(threads.min(bytes / THREAD_BYTES).max(1));
        let jobs: Option<Vec<_>> = out
            .chunks_mut(count * (bytes / rows))
            .enumerate()
            .map(|(i, out)| Some((rows_of(i * count, count.min(rows - i * count))?, out)))
            .collect();
        let jobs = jobs?;
        std::thread::scope(|scope| {
            let run = |(rows, out): (AffineRows<'_>, &mut [u8])| rows.assemble(out).is_ok();
            let threads: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || run(job))).collect();
            threads.into_iter().all(|thread| thread.join().unwrap_or(false))
        })
        .then_some(())?;
    }
    for tensor in [weight, &scales, &biases] {
        model.release(tensor.shard, tensor.at, tensor.data.len());
    }
    Some(out)
}

/// The bytes of some rows.
fn rows_of_tensor<'a>(
    tensor: &TensorView<'a>,
    row_bytes: usize,
    first: usize,
    count: usize,
) -> Option<&'a [u8]> {
    let start = first.checked_mul(row_bytes)?;
    tensor.data.get(start..start.checked_add(count.checked_mul(row_bytes)?)?)
}
