//! Weights on a device.

use std::collections::HashMap;

use gyrus_kernels::{
    BufferId, FileLayout, HeadNorms, Op, Plan, Plane, WeightError, WeightId, WeightLayout, WeightSpec, repack,
};
use gyrus_tensor::{dequantize, magnitude_bound};

use crate::buffer::Buffer;
use crate::device::Gpu;
use crate::error::GpuError;

/// How the matrices of a plan are laid out in buffers: known before anything is uploaded.
///
/// Matrices that a product multiplies side by side are one matrix if their types are the same: one below the other.
#[derive(Debug, Default)]
pub(crate) struct WeightLayouts {
    matrices: HashMap<Vec<WeightId>, Vec<Part>>,
}

/// Some rows of a matrix: all of them unless it is larger than a buffer may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) layout: WeightLayout,
    /// The first row.
    pub(crate) first: u32,
    /// Whether all of its values are in the range of f16.
    pub(crate) fits_f16: bool,
}

impl WeightLayouts {
    /// The layout of a plan's matrices, with at most this many bytes a buffer. All values are taken to be in the range of
    /// f16 until they are seen.
    pub(crate) fn of(plan: &Plan, largest_buffer: u64) -> Result<WeightLayouts, GpuError> {
        let mut layouts = WeightLayouts::default();
        for op in plan.encode.iter().chain(&plan.forward) {
            match op {
                Op::Embed { table, .. } | Op::AddPositions { table, .. } | Op::AddTypes { table, .. } => {
                    layouts.add(plan, &[*table], largest_buffer)?;
                }
                Op::MatMul { weights, .. } | Op::ExpertMatMul { weights, .. } => {
                    for group in groups(plan, weights) {
                        layouts.add(plan, group, largest_buffer)?;
                    }
                }
                _ => {}
            }
        }
        Ok(layouts)
    }

    fn add(&mut self, plan: &Plan, ids: &[WeightId], largest_buffer: u64) -> Result<(), GpuError> {
        let Some(spec) = ids.first().map(|id| plan.weight(*id)) else { return Ok(()) };
        if self.matrices.contains_key(ids) {
            return Ok(());
        }
        let rows = ids.iter().map(|id| plan.weight(*id).shape.rows()).sum();
        let whole =
            WeightLayout::new(spec.dtype, rows, spec.shape.row()).map_err(|error| refused(spec, error))?;
        let most = whole.rows_within(largest_buffer);
        if most == 0 {
            return Err(GpuError::Limit {
                what: format!("a row of '{}'", spec.name),
                wanted: whole.with_rows(1).total_bytes(),
                most: largest_buffer,
            });
        }
        let parts = (0..whole.rows()).step_by(most as usize).map(|first| {
            let layout = whole.with_rows(most.min(whole.rows() - first));
            Part { layout, first, fits_f16: true }
        });
        self.matrices.insert(ids.to_vec(), parts.collect());
        Ok(())
    }

    /// The parts of a matrix.
    pub(crate) fn matrix(&self, ids: &[WeightId]) -> &[Part] {
        self.matrices.get(ids).map_or(&[], Vec::as_slice)
    }
}

/// A plan's weights on a device.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    layouts: WeightLayouts,
    /// Of each part of a matrix its planes, in the order of their bindings.
    matrices: HashMap<Vec<WeightId>, Vec<Vec<Buffer>>>,
    vectors: HashMap<Vec<WeightId>, Buffer>,
    /// Vectors from some columns on, and the number of columns.
    columns: HashMap<(Vec<(u32, WeightId)>, u32), Buffer>,
}

/// The largest f16.
const MOST_F16: f32 = 65504.0;

/// Bytes that are repacked and uploaded at a time: enough to be fast, few enough not to double a model's size in memory.
const CHUNK: usize = 64 << 20;

/// The weights of a matrix product that form one matrix: neighbours of the same type.
pub(crate) fn groups<'w>(plan: &Plan, weights: &'w [WeightId]) -> impl Iterator<Item = &'w [WeightId]> {
    weights.chunk_by(|a, b| plan.weight(*a).dtype == plan.weight(*b).dtype)
}

/// The norm weights of heads of Q and K in the order that kernels read them. Rows without keys have those of Q twice.
pub(crate) fn head_norms(norms: &HeadNorms) -> [WeightId; 2] {
    [norms.q, norms.k.unwrap_or(norms.q)]
}

/// The biases that the first of these ops and those after it add to neighbouring columns of one buffer: one kernel adds
/// them all.
pub(crate) fn biases(plan: &Plan, ops: &[Op]) -> Vec<WeightId> {
    let (mut ids, mut next) = (Vec::new(), None);
    for op in ops {
        let Op::Bias { x, first, bias } = op else { break };
        if next.is_some_and(|next| next != (*x, *first)) {
            break;
        }
        next = Some((*x, first + plan.weight(*bias).shape.elems() as u32));
        ids.push(*bias);
    }
    ids
}

/// The biases that the first of these ops add to a buffer, each with its first column.
pub(crate) fn column_biases(plan: &Plan, ops: &[Op], to: BufferId) -> Vec<(u32, WeightId)> {
    let mut biases: Vec<(u32, WeightId)> = Vec::new();
    for op in ops {
        let Op::Bias { x, first, bias } = *op else { break };
        // Their columns ascend, so that none is added to twice.
        let end = biases.last().map_or(0, |(at, of)| at + plan.weight(*of).shape.elems() as u32);
        if x != to || first < end {
            break;
        }
        biases.push((first, bias));
    }
    biases
}

impl Weights {
    /// Repacks and uploads all weights of a plan's ops, in their order; `uploaded` is called for every chunk with the number
    /// of the file's bytes it had.
    pub(crate) fn upload<D: AsRef<[u8]>>(
        gpu: &Gpu,
        plan: &Plan,
        bytes: impl Fn(&WeightSpec) -> Option<D>,
        uploaded: &dyn Fn(u64),
    ) -> Result<Weights, GpuError> {
        let upload = Upload { gpu, plan, bytes, uploaded };
        let mut weights =
            Weights { layouts: WeightLayouts::of(plan, gpu.largest_buffer())?, ..Weights::default() };
        weights.add_pass(&plan.encode, &upload)?;
        weights.add_pass(&plan.forward, &upload)?;
        Ok(weights)
    }

    /// Uploads the weights of some ops.
    fn add_pass<D: AsRef<[u8]>, B: Fn(&WeightSpec) -> Option<D>>(
        &mut self,
        ops: &[Op],
        upload: &Upload<'_, B>,
    ) -> Result<(), GpuError> {
        let plan = upload.plan;
        let weights = self;
        for (i, op) in ops.iter().enumerate() {
            match op {
                Op::Embed { table, .. } | Op::AddPositions { table, .. } | Op::AddTypes { table, .. } => {
                    weights.add_matrix(&[*table], upload)?;
                }
                Op::MatMul { weights: all, out, .. } => {
                    for group in groups(plan, all) {
                        weights.add_matrix(group, upload)?;
                    }
                    let biases = column_biases(plan, &ops[i + 1..], *out);
                    if !biases.is_empty() {
                        weights.add_columns(biases, plan.buffer(*out).width as u32, upload)?;
                    }
                }
                Op::LayerNorm { weight, bias, .. } => {
                    for vector in [Some(*weight), *bias].into_iter().flatten() {
                        weights.add_vectors(&[vector], upload)?;
                    }
                }
                Op::ExpertMatMul { weights: all, biases, .. } => {
                    let mut biases = biases.as_slice();
                    for group in groups(plan, all) {
                        weights.add_matrix(group, upload)?;
                        let (own, others) = biases.split_at(group.len().min(biases.len()));
                        biases = others;
                        if !own.is_empty() {
                            weights.add_vectors(own, upload)?;
                        }
                    }
                }
                Op::Route { scale: Some(vector), .. } | Op::Attention { sinks: Some(vector), .. } => {
                    weights.add_vectors(&[*vector], upload)?;
                }
                Op::RmsNorm { weight, .. } | Op::NormColumns { weight, .. } => {
                    weights.add_vectors(&[*weight], upload)?;
                }
                // The first of those that one kernel adds.
                Op::Bias { bias, .. } if i == 0 || !biases(plan, &ops[i - 1..]).contains(bias) => {
                    weights.add_vectors(&biases(plan, &ops[i..]), upload)?;
                }
                Op::DeltaConv { taps, a, bias, .. } => weights.add_vectors(&[*taps, *a, *bias], upload)?,
                Op::RopeWrite { norms: Some(norms), .. } => {
                    weights.add_vectors(&head_norms(norms), upload)?;
                    if let Some(v) = norms.v {
                        weights.add_vectors(&[v], upload)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn add_columns<D: AsRef<[u8]>, B: Fn(&WeightSpec) -> Option<D>>(
        &mut self,
        biases: Vec<(u32, WeightId)>,
        width: u32,
        upload: &Upload<'_, B>,
    ) -> Result<(), GpuError> {
        let mut all = vec![0.0; width as usize];
        for (first, id) in &biases {
            let vector = upload.vector(*id)?;
            if let Some(columns) = all.get_mut(*first as usize..*first as usize + vector.len()) {
                columns.copy_from_slice(&vector);
            }
        }
        self.columns.insert((biases, width), upload.gpu.upload(bytemuck::cast_slice(&all))?);
        Ok(())
    }

    fn add_matrix<D: AsRef<[u8]>, B: Fn(&WeightSpec) -> Option<D>>(
        &mut self,
        ids: &[WeightId],
        upload: &Upload<'_, B>,
    ) -> Result<(), GpuError> {
        if !self.matrices.contains_key(ids) {
            let parts = self.layouts.matrices.get_mut(ids).map_or(&mut [][..], Vec::as_mut_slice);
            let planes = upload.matrix(ids, parts)?;
            self.matrices.insert(ids.to_vec(), planes);
        }
        Ok(())
    }

    fn add_vectors<D: AsRef<[u8]>, B: Fn(&WeightSpec) -> Option<D>>(
        &mut self,
        ids: &[WeightId],
        upload: &Upload<'_, B>,
    ) -> Result<(), GpuError> {
        if !self.vectors.contains_key(ids) {
            self.vectors.insert(ids.to_vec(), upload.vectors(ids)?);
        }
        Ok(())
    }

    pub(crate) fn layouts(&self) -> &WeightLayouts {
        &self.layouts
    }

    /// A plane of a part of a matrix.
    pub(crate) fn plane(&self, ids: &[WeightId], part: usize, plane: Plane) -> Option<&Buffer> {
        let layout = self.layouts.matrix(ids).get(part)?.layout;
        let at = layout.planes().position(|of| of == plane)?;
        self.matrices.get(ids)?.get(part)?.get(at)
    }

    /// Vectors from some columns on, and zeros elsewhere, in f32.
    pub(crate) fn columns(&self, biases: &[(u32, WeightId)], width: u32) -> Option<&Buffer> {
        self.columns.get(&(biases.to_vec(), width))
    }

    /// Vectors one after the other, in f32.
    pub(crate) fn vectors(&self, ids: &[WeightId]) -> Option<&Buffer> {
        self.vectors.get(ids)
    }
}

/// Where weights come from and where they go.
struct Upload<'a, B> {
    gpu: &'a Gpu,
    plan: &'a Plan,
    bytes: B,
    uploaded: &'a dyn Fn(u64),
}

impl<D: AsRef<[u8]>, B: Fn(&WeightSpec) -> Option<D>> Upload<'_, B> {
    fn vectors(&self, ids: &[WeightId]) -> Result<Buffer, GpuError> {
        let mut all = Vec::new();
        for id in ids {
            all.extend(self.vector(*id)?);
            let bytes = self.plan.weight(*id).dtype.bytes_of(&self.plan.weight(*id).shape);
            (self.uploaded)(bytes.unwrap_or(0) as u64);
        }
        self.gpu.upload(bytemuck::cast_slice(&all))
    }

    fn vector(&self, id: WeightId) -> Result<Vec<f32>, GpuError> {
        let spec = self.plan.weight(id);
        let data = data(spec, &self.bytes)?;
        let mut vector = vec![0.0; spec.shape.elems()];
        dequantize(spec.dtype, data.as_ref(), &mut vector).map_err(|error| refused(spec, error.into()))?;
        Ok(vector.into_iter().map(|value| value + spec.plus).collect())
    }

    /// The planes of each part.
    fn matrix(&self, ids: &[WeightId], parts: &mut [Part]) -> Result<Vec<Vec<Buffer>>, GpuError> {
        let planes = |part: &Part| {
            let layout = part.layout;
            layout.planes().map(|plane| self.gpu.buffer(layout.bytes(plane))).collect()
        };
        let planes = parts.iter().map(planes).collect::<Result<Vec<Vec<Buffer>>, GpuError>>()?;
        let mut row = 0;
        for spec in ids.iter().map(|id| self.plan.weight(*id)) {
            // The file may have the experts of a stacked weight in tensors of their own.
            let experts = spec.experts().filter(|_| spec.layout != FileLayout::Rows);
            let expert = |i| experts.and_then(|_| spec.expert(i));
            for one in (0..experts.unwrap_or(1)).map(|i| expert(i).unwrap_or_else(|| spec.clone())) {
                let data = data(&one, &self.bytes)?;
                fill(self.gpu, &one, data.as_ref(), row, parts, &planes, self.uploaded)?;
                row += one.shape.rows() as u32;
            }
        }
        Ok(planes)
    }
}

fn refused(spec: &WeightSpec, error: WeightError) -> GpuError {
    GpuError::Weight { name: spec.name.clone(), error }
}

fn data<D>(spec: &WeightSpec, bytes: impl Fn(&WeightSpec) -> Option<D>) -> Result<D, GpuError> {
    bytes(spec).ok_or_else(|| GpuError::MissingWeight { name: spec.name.clone() })
}

/// Repacks a matrix and uploads it to the rows of `parts` from `below` on.
fn fill(
    gpu: &Gpu,
    spec: &WeightSpec,
    bytes: &[u8],
    below: u32,
    parts: &mut [Part],
    planes: &[Vec<Buffer>],
    uploaded: &dyn Fn(u64),
) -> Result<(), GpuError> {
    let (rows, cols) = (spec.shape.rows(), spec.shape.row());
    let row_bytes = bytes.len().checked_div(rows).unwrap_or(0);
    let at_once = (CHUNK / row_bytes.max(1)).max(1);
    for (part, planes) in parts.iter_mut().zip(planes) {
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
            for (words, buffer) in repacked.words.iter().zip(planes) {
                let row_words = (words.len() / count.max(1)) as u64;
                let offset = 4 * u64::from(first - part.first) * row_words;
                gpu.write_at(buffer, offset, bytemuck::cast_slice(words))?;
            }
            // Staging memory is freed only after the copy.
            gpu.flush()?;
            uploaded(some.len() as u64);
        }
    }
    Ok(())
}
