use std::ops::RangeInclusive;

use super::matvec_int8_matrix::INT8_MATRIX_MOST_ROWS;

/// Numbers of mat-vecs that depend on how large a device is: how many workgroups it runs at once, how long a load takes, and
/// how many registers an invocation has. A backend gives those of its device.
///
/// Only the numbers of outputs change bits, through [`MatVecTuning::splits`](super::MatVecTuning::splits), which is the
/// order of sums. So they must not change while a backend lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatVecSizes {
    /// The most outputs of a narrow matrix. One output a lane group still gives fewer lane groups than the device runs at
    /// once, so lane groups share no prologue and compute no second column.
    pub narrow_outputs: u32,
    /// The most outputs of a matrix whose prologue takes a large share of the time. It gets as many workgroups as the
    /// device runs at once and no more, each as large as possible, since each runs the prologue on the whole input.
    pub medium_outputs: u32,
    /// The most outputs for which two columns a lane group are enough. A larger matrix has enough workgroups for more
    /// loads in flight in each.
    pub wide_outputs: u32,
    /// The most outputs of a layer's matrix. Larger ones are of the vocabulary: they have so many workgroups that the
    /// prologue is a small share, and need one pass.
    pub layer_outputs: u32,
    /// Invocations of a workgroup: two such workgroups fill a multiprocessor.
    pub workgroup: u32,
    /// Invocations of a workgroup of a medium matrix with splits: one fills a multiprocessor.
    pub prologue_workgroup: u32,
    /// Workgroups of a medium matrix with splits: those that the device runs at once.
    pub prologue_workgroups: u32,
    /// Invocations of a workgroup for several rows, whose weights stay in registers: small ones leave each more registers.
    pub rows_workgroup: u32,
    /// Outputs times splits from which workgroups compute 16 rows with one read of the weights. Fewer give too few
    /// workgroups, so each computes 8 rows.
    pub row_tile_outputs: u32,
    /// The most unpacked blocks of weights that an invocation keeps in registers while it iterates over rows.
    pub register_blocks: u32,
    /// Words of packed weights that an invocation loads at once: more would not fit its registers.
    pub register_words: u32,
    /// The most outputs for which the factors of a norm are read after the products. Loads of a larger matrix take long,
    /// which leaves time for the factors before the products.
    pub factors_last_outputs: u32,
    /// Workgroups of int8 cooperative matrices: those that the device runs at once. Each stages the activations once for
    /// all of its tiles.
    pub int8_matrix_workgroups: u32,
    /// The fewest rows for which int8 cooperative matrices are faster. A tile has 16 rows, so one row costs as much as 16.
    pub int8_matrix_from_rows: u32,
}

impl MatVecSizes {
    /// What measured well on an H200, which has 132 multiprocessors of 2048 invocations and 65,536 registers.
    pub const H200: MatVecSizes = MatVecSizes {
        narrow_outputs: 1024,
        medium_outputs: 4096,
        wide_outputs: 6144,
        layer_outputs: 32_768,
        workgroup: 512,
        prologue_workgroup: 1024,
        prologue_workgroups: 128,
        rows_workgroup: 128,
        row_tile_outputs: 8192,
        register_blocks: 8,
        register_words: 64,
        factors_last_outputs: 6144,
        int8_matrix_workgroups: 132,
        int8_matrix_from_rows: 9,
    };

    /// Row counts that int8 cooperative matrices multiply.
    pub fn int8_matrix_rows(&self) -> RangeInclusive<u32> {
        self.int8_matrix_from_rows..=INT8_MATRIX_MOST_ROWS
    }

    /// Overrides the number of this name. `None`: there is none, or it cannot have this value.
    pub fn set(&mut self, name: &str, value: u32) -> Option<()> {
        let outputs = value > 0;
        // Products of a number of workgroups and the columns of one stay within 32 bits.
        let workgroups = (1..=65_535).contains(&value);
        let invocations = value.is_power_of_two() && (32..=1024).contains(&value);
        let (number, valid) = match name {
            "narrow_outputs" => (&mut self.narrow_outputs, outputs),
            "medium_outputs" => (&mut self.medium_outputs, outputs),
            "wide_outputs" => (&mut self.wide_outputs, outputs),
            "layer_outputs" => (&mut self.layer_outputs, outputs),
            "workgroup" => (&mut self.workgroup, invocations),
            "prologue_workgroup" => (&mut self.prologue_workgroup, invocations),
            "prologue_workgroups" => (&mut self.prologue_workgroups, workgroups),
            "rows_workgroup" => (&mut self.rows_workgroup, invocations),
            "row_tile_outputs" => (&mut self.row_tile_outputs, outputs),
            "register_blocks" => (&mut self.register_blocks, (1..=16).contains(&value)),
            "register_words" => (&mut self.register_words, (1..=256).contains(&value)),
            "factors_last_outputs" => (&mut self.factors_last_outputs, outputs),
            "int8_matrix_workgroups" => (&mut self.int8_matrix_workgroups, workgroups),
            "int8_matrix_from_rows" => {
                (&mut self.int8_matrix_from_rows, (2..=INT8_MATRIX_MOST_ROWS).contains(&value))
            }
            _ => return None,
        };
        *number = Some(value).filter(|_| valid)?;
        Some(())
    }
}
