//! The published parameter structs: names, fields and offsets that other programs rely on.

pub(super) mod other;
pub(super) mod rope;
