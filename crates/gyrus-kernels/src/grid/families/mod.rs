//! The families of kernels: one table, whose rows are functions from a point of a grid to a case.

mod attend;
mod attention;
mod cache;
mod conv;
mod delta;
mod elementwise;
mod experts;
mod flash;
mod int8_matrix;
mod matmul;
mod matvec;
mod paged;
mod rows;
mod select;
mod tiles;

use super::family::Family;

pub use matvec::int8_magnitude;

/// Every family. A kernel that none of their cases launches fails `tests/kernels.rs`.
pub fn families() -> &'static [Family] {
    const fn family(
        name: &'static str,
        few: usize,
        case: fn(&mut super::Point, crate::shader::Rungs) -> Option<super::Case>,
    ) -> Family {
        Family { name, few, case }
    }
    const ALL: [Family; 39] = [
        family("rope", 60, crate::abi::cases::case),
        family("copy", 3, elementwise::copy),
        family("gate", 9, elementwise::gate),
        family("activate", 10, elementwise::activate),
        family("unfold", 9, elementwise::unfold),
        family("gate_by", 8, elementwise::gate_by),
        family("mul_by", 8, elementwise::mul_by),
        family("add", 12, elementwise::add),
        family("scale", 9, elementwise::scale),
        family("read_sums", 4, elementwise::read_sums),
        family("gather", 6, elementwise::gather),
        family("norm", 32, elementwise::norm),
        family("norm of columns and sums", 16, elementwise::norm_parts),
        family("embed", 45, elementwise::embed),
        family("matmul", 32, matmul::case),
        family("matvec", 24, matvec::case),
        family("matvec of large matrices", 2, matvec::large),
        family("matvec by int8 matrices", 16, int8_matrix::case),
        family("quantize", 24, rows::quantize),
        family("f16_rows", 10, rows::f16_rows),
        family("tiles", 34, tiles::case),
        family("route", 16, experts::route),
        family("matvec of experts", 24, experts::matvec),
        family("matvec of a sum of experts", 24, experts::matvec_sum),
        family("matmul of experts", 16, experts::matmul),
        family("tiles of experts", 16, experts::tiles),
        family("sums of experts", 8, experts::sums),
        family("conv1d", 12, conv::case),
        family("delta_conv", 8, delta::conv),
        family("delta_rule", 8, delta::rule),
        family("copy_record", 3, delta::copy),
        family("kv_copy", 6, cache::copy),
        family("kv_shift", 12, cache::shift),
        family("rope_write", 10, attention::rope_write),
        family("attention", 14, attention::attention),
        family("attend", 8, attend::separate),
        family("attend_gathered", 3, attend::gathered),
        family("flash", 24, flash::case),
        family("select", 28, select::case),
    ];
    &ALL
}
