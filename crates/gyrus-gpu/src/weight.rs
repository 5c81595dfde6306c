//! Weights on a device.

use std::collections::HashMap;

use gyrus_kernels::{Op, Plan, WeightError, WeightId, WeightLayout, WeightSpec, repack};
use gyrus_tensor::{dequantize, magnitude_bound};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;

/// A plan's weights. Matrices that stand side by side in a mat-mul lie one below the other, if their types are one.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    matrices: HashMap<Vec<WeightId>, Vec<Part>>,
    vectors: HashMap<Vec<WeightId>, Buffer>,
}

/// Some rows of a matrix.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) layout: WeightLayout,
    /// The first row.
    pub(crate) first: u32,
    /// Its planes, in the order of their bindings.
    pub(crate) planes: Vec<Buffer>,
    /// Whether all of its values are in the range of f16.
    pub(crate) fits_f16: bool,
}

/// The largest f16.
const MOST_F16: f32 = 65504.0;

/// Bytes that are re-laid and uploaded at a time: enough to be quick, little enough not to double a model's size
/// in memory.
const CHUNK: usize = 64 << 20;

/// The weights of a mat-mul that lie one below the other.
pub(crate) fn groups<'w>(plan: &Plan, weights: &'w [WeightId]) -> impl Iterator<Item = &'w [WeightId]> {
    weights.chunk_by(|a, b| plan.weight(*a).dtype == plan.weight(*b).dtype)
}

impl Weights {
    /// Re-lays and uploads all weights that a plan's ops name, in their order; `uploaded` hears of every piece how
    /// many of the file's bytes it was.
    pub(crate) fn upload<D: AsRef<[u8]>>(
        gpu: &Gpu,
        plan: &Plan,
        bytes: impl Fn(&WeightSpec) -> Option<D>,
        uploaded: &dyn Fn(u64),
    ) -> Result<Weights, GpuError> {
        let upload = Upload { gpu, plan, bytes, uploaded };
        let mut weights = Weights::default();
        for op in &plan.forward {
            match op {
                Op::Embed { table, .. } => weights.add_matrix(&[*table], &upload)?,
                Op::MatMul { weights: all, .. } => {
                    for group in groups(plan, all) {
                        weights.add_matrix(group, &upload)?;
                    }
                }
                Op::RmsNorm { weight, .. } => weights.add_vector(&[*weight], &upload)?,
                Op::RopeWrite { head_norm: Some((q, k, _)), .. } => weights.add_vector(&[*q, *k], &upload)?,
                _ => {}
            }
        }
        Ok(weights)
    }

    fn add_matrix<D: AsRef<[u8]>, B: Fn(&WeightSpec) -> Option<D>>(
        &mut self,
        ids: &[WeightId],
        upload: &Upload<'_, B>,
    ) -> Result<(), GpuError> {
        if !self.matrices.contains_key(ids) {
            self.matrices.insert(ids.to_vec(), upload.matrix(ids)?);
        }
        Ok(())
    }

    fn add_vector<D: AsRef<[u8]>, B: Fn(&WeightSpec) -> Option<D>>(
        &mut self,
        ids: &[WeightId],
        upload: &Upload<'_, B>,
    ) -> Result<(), GpuError> {
        if !self.vectors.contains_key(ids) {
            self.vectors.insert(ids.to_vec(), upload.vector(ids)?);
        }
        Ok(())
    }

    /// Matrices one below the other, in as many parts as the device's limits demand.
    pub(crate) fn matrix(&self, ids: &[WeightId]) -> &[Part] {
        self.matrices.get(ids).map_or(&[], Vec::as_slice)
    }

    /// Vectors one behind the other, in single precision.
    pub(crate) fn vector(&self, ids: &[WeightId]) -> Option<&Buffer> {
        self.vectors.get(ids)
    }
}

/// Whence weights come and where they go.
struct Upload<'a, B> {
    gpu: &'a Gpu,
    plan: &'a Plan,
    bytes: B,
    uploaded: &'a dyn Fn(u64),
}

impl<D: AsRef<[u8]>, B: Fn(&WeightSpec) -> Option<D>> Upload<'_, B> {
    fn vector(&self, ids: &[WeightId]) -> Result<Buffer, GpuError> {
        let mut all = Vec::new();
        for spec in ids.iter().map(|id| self.plan.weight(*id)) {
            let data = data(spec, &self.bytes)?;
            let mut vector = vec![0.0; spec.shape.elems()];
            dequantize(spec.dtype, data.as_ref(), &mut vector)
                .map_err(|error| refused(spec, error.into()))?;
            all.extend(vector);
            (self.uploaded)(data.as_ref().len() as u64);
        }
        self.gpu.upload(bytemuck::cast_slice(&all))
    }

    fn matrix(&self, ids: &[WeightId]) -> Result<Vec<Part>, GpuError> {
        let Some(first) = ids.first().map(|id| self.plan.weight(*id)) else { return Ok(Vec::new()) };
        let rows = ids.iter().map(|id| self.plan.weight(*id).shape.rows()).sum();
        let whole =
            WeightLayout::new(first.dtype, rows, first.shape.row()).map_err(|error| refused(first, error))?;
        let mut parts = empty_parts(self.gpu, first, whole)?;
        let mut row = 0;
        for spec in ids.iter().map(|id| self.plan.weight(*id)) {
            fill(self.gpu, spec, data(spec, &self.bytes)?.as_ref(), row, &mut parts, self.uploaded)?;
            row += spec.shape.rows() as u32;
        }
        Ok(parts)
    }
}

fn refused(spec: &WeightSpec, error: WeightError) -> GpuError {
    GpuError::Weight { name: spec.name.clone(), reason: error.to_string() }
}

fn data<D>(spec: &WeightSpec, bytes: impl Fn(&WeightSpec) -> Option<D>) -> Result<D, GpuError> {
    bytes(spec).ok_or_else(|| GpuError::Weight {
        name: spec.name.clone(),
        reason: "it is not in the file".to_owned(),
    })
}

/// Room for a matrix, divided by rows where it is larger than a buffer may be.
fn empty_parts(gpu: &Gpu, spec: &WeightSpec, whole: WeightLayout) -> Result<Vec<Part>, GpuError> {
    let most = whole.rows_within(gpu.largest_buffer());
    if most == 0 {
        return Err(GpuError::Limit {
            what: format!("a row of '{}'", spec.name),
            wanted: whole.with_rows(1).total_bytes(),
            most: gpu.largest_buffer(),
        });
    }
    (0..whole.rows())
        .step_by(most as usize)
        .map(|first| {
            let layout = whole.with_rows(most.min(whole.rows() - first));
            let planes = layout.planes().map(|plane| gpu.buffer(layout.bytes(plane)));
            Ok(Part { layout, first, planes: planes.collect::<Result<_, _>>()?, fits_f16: true })
        })
        .collect()
}

/// Re-lays a matrix and uploads it from row `below` on.
fn fill(
    gpu: &Gpu,
    spec: &WeightSpec,
    bytes: &[u8],
    below: u32,
    parts: &mut [Part],
    uploaded: &dyn Fn(u64),
) -> Result<(), GpuError> {
    let (rows, cols) = (spec.shape.rows(), spec.shape.row());
    let row_bytes = bytes.len().checked_div(rows).unwrap_or(0);
    let at_once = (CHUNK / row_bytes.max(1)).max(1);
    for part in parts {
        // The rows of this matrix that belong to this part.
        let begin = part.first.max(below);
        let end = (part.first + part.layout.rows()).min(below + rows as u32);
        for first in (begin..end).step_by(at_once) {
            let count = at_once.min((end - first) as usize);
            let from = (first - below) as usize;
            let some = bytes.get(from * row_bytes..(from + count) * row_bytes).unwrap_or_default();
            let bound = magnitude_bound(spec.dtype, some).map_err(|error| refused(spec, error.into()))?;
            part.fits_f16 &= bound <= MOST_F16;
            let repacked = repack(spec.dtype, count, cols, some).map_err(|error| refused(spec, error))?;
            for (words, buffer) in repacked.words.iter().zip(&part.planes) {
                let row_words = (words.len() / count.max(1)) as u64;
                let offset = 4 * u64::from(first - part.first) * row_words;
                gpu.write_at(buffer, offset, bytemuck::cast_slice(words))?;
            }
            // What is staged is let go of only when it has been copied.
            gpu.flush()?;
            uploaded(some.len() as u64);
        }
    }
    Ok(())
}
