use gyrus_kernels::WeightSpec;
use gyrus_kernels::{WeightError, WeightLayout, repack};
use gyrus_tensor::dequantize;

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;

/// A weight on the device.
#[derive(Debug)]
pub(crate) enum Weight {
    /// What is multiplied by, divided by rows where the whole is larger than a binding.
    Matrix(Vec<Part>),
    /// A norm, in single precision.
    Vector(Buffer),
}

/// Some rows of a matrix.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) layout: WeightLayout,
    /// The first row.
    pub(crate) first: u32,
    /// Its planes, in the order of their bindings.
    pub(crate) planes: Vec<Buffer>,
}

/// Bytes that are re-laid and uploaded at a time: enough to be quick, little enough not to double a model's size
/// in memory.
const CHUNK: usize = 64 << 20;

impl Weight {
    /// Re-lays and uploads a weight; `uploaded` hears of every piece how many of `bytes` it was.
    pub(crate) fn upload(
        gpu: &Gpu,
        spec: &WeightSpec,
        bytes: &[u8],
        uploaded: &dyn Fn(u64),
    ) -> Result<Weight, GpuError> {
        let refused =
            |error: WeightError| GpuError::Weight { name: spec.name.clone(), reason: error.to_string() };
        if spec.shape.rank() < 2 {
            let mut vector = vec![0.0; spec.shape.elems()];
            dequantize(spec.dtype, bytes, &mut vector).map_err(|error| refused(error.into()))?;
            let buffer = gpu.upload(bytemuck::cast_slice(&vector))?;
            uploaded(bytes.len() as u64);
            return Ok(Weight::Vector(buffer));
        }
        let (rows, cols) = (spec.shape.rows(), spec.shape.row());
        let whole = WeightLayout::new(spec.dtype, rows, cols).map_err(refused)?;
        let most = whole.rows_within(gpu.largest_buffer());
        if most == 0 {
            let wanted = whole.with_rows(1).total_bytes();
            return Err(GpuError::Limit {
                what: format!("a row of '{}'", spec.name),
                wanted,
                most: gpu.largest_buffer(),
            });
        }
        let row_bytes = bytes.len().checked_div(rows).unwrap_or(0);
        let mut parts = Vec::new();
        let mut first = 0;
        while first < whole.rows() {
            let layout = whole.with_rows(most.min(whole.rows() - first));
            let planes: Vec<Buffer> =
                layout.planes().map(|plane| gpu.buffer(layout.bytes(plane))).collect::<Result<_, _>>()?;
            let mut offsets = vec![0; planes.len()];
            let at_once = (CHUNK / row_bytes.max(1)).max(1);
            let (begin, end) = (first as usize, (first + layout.rows()) as usize);
            for from in (begin..end).step_by(at_once) {
                let to = (from + at_once).min(end);
                let some = bytes.get(from * row_bytes..to * row_bytes).unwrap_or_default();
                let repacked = repack(spec.dtype, to - from, cols, some).map_err(refused)?;
                for ((words, buffer), offset) in repacked.words.iter().zip(&planes).zip(&mut offsets) {
                    gpu.write_at(buffer, *offset, bytemuck::cast_slice(words))?;
                    *offset += 4 * words.len() as u64;
                }
                // What is staged is let go of only when it has been copied.
                gpu.flush()?;
                uploaded(some.len() as u64);
            }
            parts.push(Part { layout, first, planes });
            first += layout.rows();
        }
        Ok(Weight::Matrix(parts))
    }
}
