use super::weight_slots;
use crate::launch::{AXIS, Access, Launch, LaunchError, Slot, grid};
use crate::params::EmbedParams;
use crate::shader::{Rungs, Variant};
use crate::weights::WeightLayout;

/// Rows of an embedding: `y[r] = scale·table[offset + tokens[r]]`, or `+=`.
///
/// Buffers: the planes of the table (or of this part of it), `tokens`, `y`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbedCall {
    /// The table, or a range of its rows.
    pub table: WeightLayout,
    /// Rows of the whole table; token ids beyond them are clamped to the last.
    pub vocab: u32,
    /// The first row of this part.
    pub first: u32,
    /// Number of tokens.
    pub tokens: u32,
    /// Factor on the values.
    pub scale: f32,
    /// Elements from one row of the output to the next.
    pub y_stride: u32,
    /// Whether to add to `y`.
    pub add: bool,
    /// Added to each id.
    pub offset: u32,
    /// Words from one id to the next.
    pub token_stride: u32,
}

impl EmbedCall {
    /// A whole table, output rows contiguous.
    pub fn new(table: WeightLayout, tokens: u32, scale: f32) -> EmbedCall {
        EmbedCall {
            table,
            vocab: table.rows(),
            first: 0,
            tokens,
            scale,
            y_stride: table.cols(),
            add: false,
            offset: 0,
            token_stride: 1,
        }
    }

    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        const WORKGROUP: u32 = 64;
        let name = if self.add { "embed_add" } else { "embed" };
        let kernel = || name.to_owned();
        let (rows, dim) = (self.table.rows(), self.table.cols());
        for (name, value) in [
            ("the number of tokens", self.tokens),
            ("rows", rows),
            ("dim", dim),
            ("token_stride", self.token_stride),
        ] {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), name });
            }
        }
        let last = u64::from(self.first) + u64::from(rows);
        if u64::from(self.vocab) < last {
            return Err(LaunchError::TooLow {
                kernel: kernel(),
                name: "vocab",
                value: self.vocab,
                least: last,
            });
        }
        let (name, value) = ("y_stride", self.y_stride);
        if value < dim {
            return Err(LaunchError::TooLow { kernel: kernel(), name, value, least: dim.into() });
        }
        if !value.is_multiple_of(4) {
            return Err(LaunchError::NotMultiple { kernel: kernel(), name, value, of: 4 });
        }
        let y = (u64::from(self.tokens) - 1) * u64::from(value) + u64::from(dim);
        let units = u64::from(self.tokens) * u64::from(dim.div_ceil(self.table.unit()));
        for (what, count) in [("elements of y", y), ("units", units + AXIS * u64::from(WORKGROUP))] {
            if count > u64::from(u32::MAX) {
                return Err(LaunchError::Large { kernel: kernel(), what, count });
            }
        }
        let mut slots = weight_slots(name, &self.table)?;
        slots.push(Slot {
            name: "tokens",
            binding: 3,
            access: Access::Read,
            bytes: 4 * ((u64::from(self.tokens) - 1) * u64::from(self.token_stride) + 1),
        });
        slots.push(Slot { name: "y", binding: 4, access: Access::ReadWrite, bytes: 4 * y });
        let params = EmbedParams {
            tokens: self.tokens,
            dim,
            vocab: self.vocab,
            first: self.first,
            rows,
            y_stride: value,
            scale: self.scale,
            offset: self.offset,
        };
        Ok(Launch {
            groups: grid(name, units.div_ceil(u64::from(WORKGROUP)))?,
            variant: Variant {
                name: kernel(),
                file: "embed.wgsl",
                constants: vec![
                    ("WEIGHT", self.table.constant()),
                    ("ADD", u32::from(self.add).to_string()),
                    ("TOKEN_STRIDE", format!("{}u", self.token_stride)),
                    ("IMMEDIATES", u32::from(rungs.immediates).to_string()),
                    ("SUBGROUPS", "0".to_owned()),
                ],
                overrides: vec![("WORKGROUP", f64::from(WORKGROUP))],
            },
            slots,
            uniforms: Vec::new(),
            rope: None,
            params: Some((5, bytemuck::bytes_of(&params).to_vec())),
        })
    }
}
