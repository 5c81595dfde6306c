use super::engine::MOST_SPLITS;
use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::params::QuantizeParams;
use crate::shader::{Rungs, Variant};

/// Where the rows of a [`QuantizeCall`] come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Source {
    /// The rows of `x`, `x_stride` elements apart.
    F32 {
        /// Elements from one row to the next.
        x_stride: u32,
    },
    /// The rows of `x` times a norm's `weight`. The kernel also writes 1 / rms of each row to `factors`; the mat-vec
    /// multiplies its results by them.
    Norm {
        /// Elements from one row to the next.
        x_stride: u32,
        /// Added to the mean square.
        eps: f32,
    },
    /// The rows of `x` times a norm's `weight`. The kernel also writes each block's sum of squares to `squares`; a
    /// mat-vec with [`Input::Int8Squares`](super::Input::Int8Squares) computes 1 / rms from them.
    Squares {
        /// Elements from one row to the next.
        x_stride: u32,
    },
    /// The merged splits of attention, from `partials`; `rows` has their positions.
    Merge {
        /// Elements of a head.
        head_dim: u32,
        /// The attention window: positions a row attends to; 0 for all.
        window: u32,
    },
}

/// The output of a [`QuantizeCall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// int8 with one scale per block of 32: `q`, one byte per element, and `q_scales`, 8 bytes per block.
    Int8,
    /// f32: `q`.
    F32,
}

impl Target {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Int8 => "int8",
            Target::F32 => "f32",
        }
    }

    /// `q` and, for int8, `q_scales`, at these bindings.
    pub(crate) fn slots(self, rows: u32, cols: u32, [q, q_scales]: [u32; 2]) -> Vec<Slot> {
        let elements = u64::from(rows) * u64::from(cols);
        let slot = |name, binding, bytes| Slot { name, binding, access: Access::ReadWrite, bytes };
        match self {
            Target::Int8 => vec![slot("q", q, elements), slot("q_scales", q_scales, elements / 4)],
            Target::F32 => vec![slot("q", q, 4 * elements)],
        }
    }
}

/// The longest row whose sums of squares fit in workgroup memory.
const MOST_NORMED: u32 = 1 << 16;

/// Quantises rows of activations for a [mat-vec](super::MatVecCall).
///
/// Buffers: `x` or `partials`; `q`; with [`Target::Int8`] `q_scales`; with [`Source::Norm`] and [`Source::Squares`],
/// which need int8, `weight` and `factors` or `squares`; with [`Source::Merge`] `rows`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizeCall {
    /// Rows.
    pub rows: u32,
    /// Elements of a row, a multiple of 32.
    pub cols: u32,
    /// Where the rows come from.
    pub source: Source,
    /// What is written.
    pub target: Target,
}

impl QuantizeCall {
    /// Contiguous rows to int8.
    pub fn bytes(rows: u32, cols: u32) -> QuantizeCall {
        QuantizeCall { rows, cols, source: Source::F32 { x_stride: cols }, target: Target::Int8 }
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let kernel = || "quantize".to_owned();
        let QuantizeCall { rows, cols, source, target } = *self;
        for (name, value) in [("m", rows), ("k", cols)] {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), name });
            }
        }
        let multiple = |name, value: u32, of: u32| {
            if of == 0 || !value.is_multiple_of(of) {
                return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of });
            }
            Ok(())
        };
        multiple("k", cols, 32)?;
        let (m, k) = (u64::from(rows), u64::from(cols));
        let slot = |name, binding, access, bytes| Slot { name, binding, access, bytes };
        let mut params = QuantizeParams { k: cols, ..Default::default() };
        let mut slots = Vec::new();
        let (mut head, mut groups, mut width) = (4, (cols / 4).div_ceil(128), 0);
        let source = match source {
            Source::F32 { x_stride } | Source::Norm { x_stride, .. } | Source::Squares { x_stride } => {
                multiple("x_stride", x_stride, 4)?;
                if x_stride < cols {
                    let (name, least) = ("x_stride", cols.into());
                    return Err(LaunchError::TooLow { kernel: kernel(), name, value: x_stride, least });
                }
                params.x_stride = x_stride;
                slots.push(slot("x", 0, Access::Read, 4 * ((m - 1) * u64::from(x_stride) + k)));
                let normed = !matches!(source, Source::F32 { .. });
                if normed && target == Target::F32 {
                    let storage = "f32 from normalised rows";
                    return Err(LaunchError::Storage { kernel: kernel(), storage });
                }
                if let Source::Norm { eps, .. } = source {
                    if cols > MOST_NORMED {
                        let what = "elements of a normalised row";
                        return Err(LaunchError::Large { kernel: kernel(), what, count: k });
                    }
                    params.eps = eps;
                    // With a norm a workgroup has a whole row; otherwise four elements for each of 128 invocations.
                    (groups, width) = (1, cols);
                    "norm"
                } else if normed {
                    "squares"
                } else {
                    "f32"
                }
            }
            Source::Merge { head_dim, window } => {
                multiple("k", cols, head_dim)?;
                multiple("head_dim", head_dim, 4)?;
                params.window = window;
                head = head_dim;
                slots.push(slot("partials", 0, Access::Read, partial_bytes(m, cols / head_dim, head_dim)));
                "merge"
            }
        };
        slots.extend(target.slots(rows, cols, [1, 2]));
        match source {
            "norm" => {
                slots.push(slot("weight", 4, Access::Read, 4 * k));
                slots.push(slot("factors", 5, Access::ReadWrite, 4 * m));
            }
            "squares" => {
                slots.push(slot("weight", 4, Access::Read, 4 * k));
                slots.push(slot("squares", 5, Access::ReadWrite, m * k / 8));
            }
            "merge" => slots.push(slot("rows", 6, Access::Read, 8 * m)),
            _ => {}
        }
        if let Some(slot) = slots.iter().find(|slot| slot.bytes / 4 > u64::from(u32::MAX)) {
            return Err(LaunchError::Large { kernel: kernel(), what: slot.name, count: slot.bytes / 4 });
        }
        if rows > 65_535 {
            return Err(LaunchError::Large { kernel: kernel(), what: "rows", count: m });
        }
        Ok(Launch {
            groups: [groups, rows, 1],
            variant: Variant {
                name: kernel(),
                file: "quantize.wgsl",
                constants: vec![
                    ("SOURCE", source.to_owned()),
                    ("TARGET", target.name().to_owned()),
                    ("HEAD_DIM", head.to_string()),
                    ("K", width.to_string()),
                    ("LOADS", (width / 4).div_ceil(256).min(4).to_string()),
                    ("IMMEDIATES", u32::from(rungs.immediates).to_string()),
                    ("SUBGROUPS", u32::from(rungs.subgroups).to_string()),
                ],
                overrides: Vec::new(),
            },
            slots,
            uniforms: Vec::new(),
            rope: None,
            params: Some((3, bytemuck::bytes_of(&params).to_vec())),
        })
    }
}

/// Bytes of the splits of attention: for each row, head and split the sums, the running max and the sum of
/// exponentials.
pub(crate) fn partial_bytes(rows: u64, heads: u32, head_dim: u32) -> u64 {
    rows * u64::from(heads) * u64::from(MOST_SPLITS) * 4 * (u64::from(head_dim) + 4)
}
