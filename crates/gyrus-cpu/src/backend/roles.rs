//! What each matrix of a plan is for, which decides how it is stored.

use gyrus_kernels::{LOGITS, Op, Plan};

/// What a matrix is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Products of any number of rows.
    Any,
    /// Products of the many rows of an encoder.
    ManyRows,
    /// Look-ups alone.
    Table,
}

/// What each weight is for. Rows of language models may come one by one, so that their weights stay as they are; those of
/// encoders come by hundreds.
pub(super) fn roles(plan: &Plan) -> Vec<Role> {
    let mut roles = vec![Role::Any; plan.weights.len()];
    let is_language_model = plan.output(LOGITS).is_some();
    let encoder = if is_language_model { &plan.encode } else { &plan.forward };
    for op in encoder {
        if let Op::Embed { table, .. } | Op::AddPositions { table, .. } | Op::AddTypes { table, .. } = op {
            roles[table.0 as usize] = Role::Table;
        }
    }
    for op in encoder {
        if let Op::MatMul { weights, .. } = op {
            weights.iter().for_each(|id| roles[id.0 as usize] = Role::ManyRows);
        }
    }
    if is_language_model {
        // What both passes of a plan use is for any number of rows.
        for op in &plan.forward {
            match op {
                Op::MatMul { weights, .. } => {
                    weights.iter().for_each(|id| roles[id.0 as usize] = Role::Any);
                }
                Op::Embed { table, .. } | Op::AddPositions { table, .. } | Op::AddTypes { table, .. } => {
                    roles[table.0 as usize] = Role::Any;
                }
                _ => {}
            }
        }
    }
    roles
}
