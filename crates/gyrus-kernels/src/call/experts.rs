//! Mixtures of experts: which experts a row has, tiles of slots, and sums over slots.
//!
//! A row has `used` slots, each with an expert. Slot `s` of row `r` is number `r·used + s`. The products themselves are
//! [`MatVecCall`](super::MatVecCall), [`MatMulCall`](super::MatMulCall) and [`TileCall`](super::TileCall) with
//! [`Experts`].

use super::engine::{Kernel, flag, launch, slot};
use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::op::RouteWeights;
use crate::params::{ElementwiseParams, ExpertTilesParams};
use crate::shader::Rungs;
use crate::weights::WeightLayout;

const WORKGROUP: u32 = 256;

/// The most experts of a mixture: logits and exponentials of a row are in workgroup memory.
const MOST_EXPERTS: u32 = 1024;

/// The experts of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Experts {
    /// Experts of the weight.
    pub count: u32,
    /// Experts of a row.
    pub used: u32,
    /// Whether `x` has one row for all slots of a row; otherwise each slot has its own.
    pub shared: bool,
    /// Whether `biases` are added, a value for each row of the weight.
    pub bias: bool,
    /// Weights that form the matrix, of one shape: the first of all experts is above the second of all. A gated product has
    /// two, or one in which each expert has its gate above its up projection.
    pub parts: u32,
    /// Whether the results of a row's slots are multiplied by their weights and added: `y` has a row for each row. Only
    /// mat-vecs of slots with inputs of their own do that.
    pub sum: bool,
}

impl Experts {
    fn check(&self, kernel: &str) -> Result<(), LaunchError> {
        let Experts { count, used, .. } = *self;
        if used == 0 || used > count || count > MOST_EXPERTS {
            let (kernel, name) = (kernel.to_owned(), "experts of a row");
            return Err(LaunchError::Tuning {
                kernel,
                name,
                value: used,
                needed: "from 1 to all experts, of which there are at most 1024,",
            });
        }
        if ![1, 2].contains(&self.parts) || (self.sum && self.parts != 1) {
            let (kernel, name, value) = (kernel.to_owned(), "parts", self.parts);
            return Err(LaunchError::Tuning {
                kernel,
                name,
                value,
                needed: "1 or 2, and 1 for a sum over slots",
            });
        }
        if self.sum && self.shared {
            let (kernel, name, needed) = (kernel.to_owned(), "shared", "0 for a sum over slots");
            return Err(LaunchError::Tuning { kernel, name, value: 1, needed });
        }
        Ok(())
    }

    /// Rows of `x` and of `y` for a batch of `rows`. With a sum over slots a row of `x` has all slots.
    pub(super) fn rows(
        kernel: &str,
        experts: Option<&Experts>,
        rows: u32,
    ) -> Result<(u32, u32), LaunchError> {
        let Some(experts) = experts else { return Ok((rows, rows)) };
        experts.check(kernel)?;
        let what = "slots of rows";
        let slots = rows.checked_mul(experts.used).ok_or_else(|| LaunchError::Large {
            kernel: kernel.to_owned(),
            what,
            count: u64::from(rows) * u64::from(experts.used),
        })?;
        Ok(match (experts.sum, experts.shared) {
            (true, _) => (rows, rows),
            (false, true) => (rows, slots),
            (false, false) => (slots, slots),
        })
    }

    /// Rows of the weight that belong to one expert, which must be a multiple of `projections`.
    pub(super) fn outputs(
        kernel: &str,
        experts: Option<&Experts>,
        weight: &WeightLayout,
        projections: u32,
    ) -> Result<u32, LaunchError> {
        let Some(experts) = experts else { return Ok(weight.rows()) };
        let of = experts.count.max(1) * projections.max(experts.parts);
        if !weight.rows().is_multiple_of(of) {
            let (kernel, name, value) = (kernel.to_owned(), "rows of the weight", weight.rows());
            return Err(LaunchError::NotMultiple { kernel, name, value, of });
        }
        Ok(weight.rows() / experts.count.max(1))
    }

    /// The buffers of a mat-vec or mat-mul of `rows` rows: `routes` and, with biases, `biases`.
    pub(super) fn slots(&self, rows: u32, weight: &WeightLayout, bindings: [u32; 2]) -> Vec<Slot> {
        let mut slots = vec![self.routes(rows, bindings[0])];
        if self.bias {
            slots.push(slot("biases", bindings[1], Access::Read, weight.rows().into()));
        }
        slots
    }

    fn routes(&self, rows: u32, binding: u32) -> Slot {
        slot("routes", binding, Access::Read, 2 * u64::from(rows) * u64::from(self.used))
    }

    /// The preprocessor's constants, which kernels without experts have, too.
    pub(super) fn constants(experts: Option<&Experts>) -> Vec<(&'static str, String)> {
        vec![
            flag("BIAS", experts.is_some_and(|experts| experts.bias)),
            flag("SHARED", experts.is_some_and(|experts| experts.shared)),
            ("PARTS", experts.map_or(1, |experts| experts.parts).to_string()),
            ("USED", format!("{}u", experts.map_or(1, |experts| experts.used))),
            ("EXPERT_COUNT", format!("{}u", experts.map_or(1, |experts| experts.count))),
        ]
    }

    /// Rows of a tile of one expert's slots, for a batch of this many rows: about as many as an expert has on average, so
    /// that tiles are neither mostly padding nor read the weights often.
    pub(super) fn tile_rows(&self, rows: u32) -> u32 {
        match u64::from(rows) * u64::from(self.used) / u64::from(self.count.max(1)) {
            0..=16 => 32,
            17..=96 => 64,
            _ => 128,
        }
    }

    /// The most tiles that the slots of a batch can have: every expert may have one that is not full.
    pub(super) fn most_tiles(&self, rows: u32) -> u32 {
        let slots = rows.saturating_mul(self.used);
        let tile = self.tile_rows(rows);
        (slots / tile).saturating_add(self.count).min(slots)
    }

    /// Words of `order` for a batch of this many rows.
    pub fn order_words(&self, rows: u32) -> u64 {
        4 * u64::from(self.most_tiles(rows)) + u64::from(rows) * u64::from(self.used)
    }

    /// The most words of `order` for a batch of up to this many rows.
    pub fn most_order_words(&self, rows: u32) -> u64 {
        let slots = u64::from(rows) * u64::from(self.used);
        // A smaller batch may have smaller tiles, and so more of them; no more than of 32 rows each.
        4 * (slots / 32 + u64::from(self.count)) + slots
    }
}

/// The experts of rows from their router logits.
///
/// Buffers: `logits`, `out`, and `scale` if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteCall {
    /// Rows.
    pub rows: u32,
    /// Experts.
    pub count: u32,
    /// Experts of a row.
    pub used: u32,
    /// What the weights are a softmax over.
    pub weights: RouteWeights,
    /// Whether weights are multiplied by a factor of each expert.
    pub scale: bool,
}

impl RouteCall {
    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let RouteCall { rows, count, used, weights, scale } = *self;
        let experts = Experts { count, used, shared: true, bias: false, parts: 1, sum: false };
        experts.check("route")?;
        let mut slots = vec![
            slot("logits", 0, Access::Read, u64::from(rows) * u64::from(count)),
            slot("out", 2, Access::ReadWrite, 2 * u64::from(rows) * u64::from(used)),
        ];
        if scale {
            slots.push(slot("scale", 1, Access::Read, count.into()));
        }
        let mut constants = Experts::constants(Some(&experts));
        constants.extend([flag("SCALE", scale), flag("OVER_ALL", weights == RouteWeights::All)]);
        let kernel = Kernel { name: "route", file: "engine/route.wgsl", constants, overrides: Vec::new() };
        launch(kernel, rungs, slots, (3, &ElementwiseParams::default()), [1, rows])
    }
}

/// Sorts the slots of rows by expert into tiles, for a [`TileCall`](super::TileCall).
///
/// Buffers: `routes`; `order`, [`Experts::order_words`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertTilesCall {
    /// Rows.
    pub rows: u32,
    /// The experts.
    pub experts: Experts,
}

impl ExpertTilesCall {
    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let ExpertTilesCall { rows, experts } = *self;
        let name = "expert_tiles";
        let (_, all) = Experts::rows(name, Some(&Experts { sum: false, ..experts }), rows)?;
        let order = slot("order", 1, Access::ReadWrite, experts.order_words(rows));
        let mut constants = Experts::constants(Some(&experts));
        constants.push(("TILE_ROWS", format!("{}u", experts.tile_rows(rows))));
        let kernel = Kernel { name, file: "engine/expert_tiles.wgsl", constants, overrides: Vec::new() };
        let params = ExpertTilesParams { slots: all, most: experts.most_tiles(rows), ..Default::default() };
        // No rows are refused as an empty grid.
        launch(kernel, rungs, vec![experts.routes(rows, 0), order], (2, &params), [1, rows.min(1)])
    }
}

fn elementwise(name: &'static str, file: &'static str, constants: Vec<(&'static str, String)>) -> Kernel {
    Kernel { name, file, constants, overrides: vec![("WORKGROUP", f64::from(WORKGROUP))] }
}

/// The weighted sum of the slots of each row.
///
/// Buffers: `x`, `routes` and `out`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertSumCall {
    /// Rows of `out`.
    pub rows: u32,
    /// Elements of a row.
    pub count: u32,
    /// The experts.
    pub experts: Experts,
    /// Whether to add to `out`.
    pub accumulate: bool,
}

impl ExpertSumCall {
    /// Checks the call and returns its launch.
    pub fn launch(&self, rungs: Rungs) -> Result<Launch, LaunchError> {
        let ExpertSumCall { rows, count, experts, accumulate } = *self;
        let name = "expert_sum";
        let (_, all) = Experts::rows(name, Some(&Experts { sum: false, ..experts }), rows)?;
        let slots = vec![
            slot("x", 0, Access::Read, u64::from(all) * u64::from(count)),
            experts.routes(rows, 1),
            slot("out", 2, Access::ReadWrite, u64::from(rows) * u64::from(count)),
        ];
        let mut constants = Experts::constants(Some(&experts));
        constants.push(flag("ACCUMULATE", accumulate));
        let params = ElementwiseParams { count, ..Default::default() };
        let groups = [count.div_ceil(WORKGROUP), rows];
        let kernel = elementwise(name, "engine/expert_sum.wgsl", constants);
        launch(kernel, rungs, slots, (3, &params), groups)
    }
}

/// `out[r] += sigmoid(gate[r])·x[r]` for rows of `count` elements.
pub fn add_gated(rungs: Rungs, rows: u32, count: u32) -> Result<Launch, LaunchError> {
    let all = u64::from(rows) * u64::from(count);
    let slots = vec![
        slot("x", 0, Access::Read, all),
        slot("gate", 1, Access::Read, rows.into()),
        slot("out", 2, Access::ReadWrite, all),
    ];
    let params = ElementwiseParams { count, ..Default::default() };
    let kernel = elementwise("add_gated", "engine/add_gated.wgsl", Vec::new());
    launch(kernel, rungs, slots, (3, &params), [count.div_ceil(WORKGROUP), rows])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However slots are distributed over experts, their tiles fit the grid and the buffer.
    #[test]
    fn no_distribution_has_more_tiles_than_the_most() {
        for (count, used) in [(1, 1), (4, 2), (16, 4), (128, 8), (32, 4)] {
            let experts = Experts { count, used, shared: true, bias: false, parts: 1, sum: false };
            for rows in [1, 2, 15, 16, 17, 100, 511, 512] {
                let (tile, slots) = (experts.tile_rows(rows), rows * used);
                // As many experts as possible with one slot more than whole tiles.
                for rest in 1..=count.min(slots) {
                    let tiles = (slots - rest) / tile + rest;
                    assert!(tiles <= experts.most_tiles(rows), "{experts:?} {rows} {rest}");
                }
                assert!(experts.order_words(rows) <= experts.most_order_words(512));
            }
        }
    }
}
