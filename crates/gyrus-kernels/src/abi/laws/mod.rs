//! Laws of rotary embedding, as functions over any [`Runner`].
//!
//! Each draws `count` random shapes, positions and tensors from `seed` and reports where the law fails. Laws only use
//! calls: unlike [`check`](crate::grid::check), which compares with the twin, they also find a mistake that twin and
//! kernel share.
//!
//! If two kernels must agree, they do so bit for bit on runners that never contract to fma, and nearly so on runners
//! that may ([`Runner::fuses`]): a shader compiler is free to contract in one kernel and not in the other.

mod algebra;
mod bench;
mod fold;
mod frequencies;
mod fused;
mod gradient;
mod refusals;
mod segments;

pub use algebra::{
    adjacent_and_split_are_permutations, backward_undoes_forward, lengths_are_kept,
    position_zero_is_the_identity, positions_add_up, scores_depend_on_the_distance,
};
pub use fold::folded_scales_give_one_attention;
pub use frequencies::{
    llama3_bands_are_continuous, position_ids_are_positions, scale_is_a_change_of_positions,
    tables_and_the_base_agree,
};
pub use fused::{fused_kernels_are_their_parts, only_key_heads_reach_the_cache};
pub use gradient::backward_is_the_adjoint;
pub use refusals::bad_calls_are_refused;
pub use segments::{elements_outside_the_rope_pass, gaps_between_rows_stay};

use crate::grid::Runner;

/// A law: a runner, a seed and a number of cases; the text of an error is the evidence.
pub type Law = fn(&mut dyn Runner, u64, usize) -> Result<(), String>;

/// Every law under its name, in the order of their numbers.
pub fn all() -> &'static [(&'static str, Law)] {
    &[
        ("T1: position zero is the identity", position_zero_is_the_identity),
        ("T2: lengths are kept", lengths_are_kept),
        ("T3: scores depend on the distance", scores_depend_on_the_distance),
        ("T4: positions add up", positions_add_up),
        ("T5: backward undoes forward", backward_undoes_forward),
        ("T6: backward is the adjoint", backward_is_the_adjoint),
        ("T7: adjacent and split are permutations", adjacent_and_split_are_permutations),
        ("T8: fused kernels are their parts", fused_kernels_are_their_parts),
        ("T9: only key heads reach the cache", only_key_heads_reach_the_cache),
        ("T10: tables and the base agree", tables_and_the_base_agree),
        ("T11: scale is a change of positions", scale_is_a_change_of_positions),
        ("T12: position ids are positions", position_ids_are_positions),
        ("T13: llama3 bands are continuous", llama3_bands_are_continuous),
        ("T14: folded scales give one attention", folded_scales_give_one_attention),
        ("T15: elements outside the rope pass", elements_outside_the_rope_pass),
        ("T16: bad calls are refused", bad_calls_are_refused),
        ("T17: gaps between rows stay", gaps_between_rows_stay),
    ]
}
