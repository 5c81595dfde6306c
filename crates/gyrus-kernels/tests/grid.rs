//! The grid's comparison accepts what the twin computes and nothing else.

use gyrus_kernels::grid::{Case, CaseBuffer, Rule, RunError, Runner, check, families, largest};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Access, Launch};

/// Writes what the twin computed, with one word changed.
struct Replay {
    buffers: Vec<CaseBuffer>,
    /// The names of each step's buffers, the next step last.
    steps: Vec<Vec<&'static str>>,
    /// The buffer and word that is changed.
    wrong: Option<(&'static str, usize)>,
}

impl Replay {
    fn new(case: &Case, wrong: Option<(&'static str, usize)>) -> Replay {
        let steps = case.steps.iter().rev().map(|step| step.buffers.clone()).collect();
        Replay { buffers: case.buffers(), steps, wrong }
    }
}

impl Runner for Replay {
    fn name(&self) -> String {
        "replay".to_owned()
    }

    fn run(&mut self, launch: &Launch, buffers: &mut [Vec<u32>]) -> Result<(), RunError> {
        let names = self.steps.pop().expect("as many runs as steps");
        for ((slot, name), words) in launch.slots().iter().zip(names).zip(buffers) {
            if slot.access == Access::ReadWrite {
                let after = &self.buffers.iter().find(|buffer| buffer.name == name).unwrap().after;
                words[..after.len()].copy_from_slice(after);
                if let Some((_, at)) = self.wrong.filter(|(wrong, _)| *wrong == name) {
                    // The same after several launches that write the buffer.
                    words[at] = after.get(at).copied().unwrap_or(0) ^ 0x4040_4040;
                }
            }
        }
        Ok(())
    }
}

/// A word that the buffer's rule does not leave open, of those that are written: the one with the least tolerance.
/// Sums that cancel have tolerances as large as themselves.
fn checked(buffer: &CaseBuffer) -> Option<usize> {
    match &buffer.rule {
        Rule::Scratch(_) => None,
        Rule::Near(storage, tolerances) => {
            let closed =
                tolerances.iter().enumerate().filter_map(|(i, t)| Some((i, t.filter(|t| t.is_finite())?)));
            let (element, _) = closed.min_by(|a, b| a.1.total_cmp(&b.1))?;
            Some(element * storage.bytes() as usize / 4)
        }
        Rule::Int8(int8) => {
            // The row whose values are known best.
            let rows = int8.values.chunks(int8.cols).zip(&int8.errors).enumerate();
            let bounds = rows.map(|(row, (values, error))| {
                (row, f64::from(*error) / largest(values).max(f64::from(f32::MIN_POSITIVE)))
            });
            let (row, _) = bounds.min_by(|a, b| a.1.total_cmp(&b.1))?;
            let words = int8.cols / 4;
            (row * words..(row + 1) * words).find(|at| buffer.before[*at] != buffer.after[*at])
        }
        _ => (0..buffer.after.len()).find(|at| buffer.before[*at] != buffer.after[*at]),
    }
}

#[test]
fn wrong_results_and_writes_beyond_the_end_are_found() {
    for family in families() {
        let mut results = 0;
        for case in family.cases(Rungs { int8_matrix: false, ..Rungs::ALL }, 3) {
            check(&mut Replay::new(&case, None), &case).unwrap();
            let written: Vec<&str> = case
                .steps
                .iter()
                .flat_map(|step| step.launch.slots().iter().zip(&step.buffers))
                .filter(|(slot, _)| slot.access == Access::ReadWrite)
                .map(|(_, name)| *name)
                .collect();
            for buffer in case.buffers().iter().filter(|buffer| written.contains(&buffer.name)) {
                let guard = buffer.after.len() + 7;
                for at in checked(buffer).into_iter().chain([guard]) {
                    let found = check(&mut Replay::new(&case, Some((buffer.name, at))), &case);
                    let error = found.expect_err(&format!("{}: {} at {at}", family.name, buffer.name));
                    assert!(error.contains(buffer.name), "{error}");
                    results += usize::from(at != guard);
                }
            }
        }
        // Few devices have int8 matrices, and their cases are large.
        assert!(results > 0 || family.name.contains("int8 matrices"), "{} has no results", family.name);
    }
}

/// Every point of a grid is a case on some device, or a combination that a kernel refuses; most are cases.
#[test]
fn grids_are_large_and_have_cases() {
    for family in families() {
        let found = family.cases(Rungs::ALL, 100).count();
        assert!(found >= family.few.min(100), "{}: {found} of {}", family.name, family.points());
    }
}
