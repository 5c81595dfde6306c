//! Two models run the same batch op by op, so that no more than a few results are in memory.

use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

use gyrus_kernels::observe::{OpResult, Seen};

use super::tolerance::is_on_host;
use super::{Difference, Tolerances, TraceSide, Traced, TracedResult, side};
use crate::Error;

/// One comparison holds the engines of two models, so only one may run: two could wait for each other's engines.
static COMPARING: Mutex<()> = Mutex::new(());

/// A result on its way from the leader to the follower.
struct Sent {
    side: TraceSide,
    rounding: f32,
    values: Vec<f32>,
}

/// Runs `tokens` with both, and compares the results of each op. `isolated`: one run, which is not on a GPU, continues
/// with the results of the other.
pub(super) fn run<'m>(
    ours: &mut Traced<'m>,
    theirs: &mut Traced<'m>,
    tokens: &[u32],
    tolerances: Tolerances,
    isolated: bool,
) -> Result<Vec<TracedResult>, Error> {
    let _alone = COMPARING.lock().unwrap_or_else(PoisonError::into_inner);
    // The follower compares, and takes over the leader's results.
    let we_lead = is_on_host(theirs.model) || !isolated;
    let (leader, follower) = if we_lead { (ours, theirs) } else { (theirs, ours) };
    let plan = follower.model.plan();
    let end = follower.kv.len() + tokens.len();
    let mut results = Vec::new();
    let (sender, receiver) = sync_channel::<Sent>(1);
    std::thread::scope(|scope| {
        let leading = scope.spawn(move || {
            leader.observe(tokens, &mut |observation| {
                let values = match &observation.seen {
                    Seen::Values(values) => values.to_vec(),
                    Seen::Hidden(_) => Vec::new(),
                };
                // An error means that the follower has failed, which is reported below.
                let _ = sender.send(Sent {
                    side: side(&observation.seen),
                    rounding: observation.rounding,
                    values,
                });
                false
            })
        });
        let followed = follower.observe(tokens, &mut |observation| {
            // An error means that the leader has failed.
            let Ok(sent) = receiver.recv() else { return false };
            let (op, result) = (observation.op, observation.result);
            let own = side(&observation.seen);
            let mut difference = None;
            let mut replaced = false;
            if let (TraceSide::Values(_), Seen::Values(values)) = (&sent.side, observation.seen) {
                let width = plan.result_width(&plan.forward[op], result).max(1);
                let each = match result {
                    OpResult::Buffer(id) => plan.buffer(id).rows.of_each(),
                    _ => 1,
                };
                // Rows of logits are the last ones.
                let at = (end - values.len() / width / each, each);
                let rounding = sent.rounding.max(observation.rounding);
                let tolerance = tolerances.of(&plan.forward[op], rounding);
                difference = Some(Difference::between(&sent.values, values, width, at, tolerance));
                if isolated {
                    values.copy_from_slice(&sent.values);
                    replaced = true;
                }
            }
            let (ours, theirs) = if we_lead { (sent.side, own) } else { (own, sent.side) };
            results.push(TracedResult { op, result, ours, theirs: Some(theirs), difference });
            replaced
        });
        // The leader must not wait for a follower that has failed.
        drop(receiver);
        leading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        followed
    })?;
    Ok(results)
}
