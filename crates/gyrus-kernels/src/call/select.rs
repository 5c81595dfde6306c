use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::params::{SelectParams, SelectRow};
use crate::select::Sampler;
use crate::shader::{Rungs, Variant};

/// The most rows of a step that chooses its tokens on the device.
pub const SELECT_ROWS: u32 = 16;
/// Steps whose tokens are stored for reading back.
pub const SELECT_EMITTED: u32 = 64;
/// What is emitted instead of a token if a row's logits are not all finite.
pub const SELECT_NOT_FINITE: u32 = u32::MAX;
/// Tokens of a row's history: no penalty window may be longer.
pub const SELECT_HISTORY: u32 = 1024;

/// Logits that one run of neighbouring invocations reads.
const RUN: u32 = 256;
const SLICES: u32 = 64;
/// Largest keys of chunks, then largest key and sum of slices.
const PARTIALS: u32 = SLICES * RUN / 8 + 2 * SLICES;
/// Far above every vocabulary; indices and fixed-point sums do not overflow up to it.
const MOST_VOCAB: u32 = 1 << 22;

/// Draws tokens from logits with [`Sampler`]s on the device, and advances the state of the step.
///
/// The result is that of [`Sampler::draw`] with the row's position plus one as the step. Buffers, by slot name:
///
/// | name | contents |
/// |---|---|
/// | `logits` | `[rows, vocab]` f32, not changed |
/// | `samplers` | `[rows]` of [`SelectRow`] |
/// | `tokens` | `[rows]` u32: the chosen token, which is the next step's input |
/// | `rows` | `[rows]` of (position of the token just computed, first entry of its block table); the position is advanced by one |
/// | `emitted` | `[SELECT_EMITTED, SELECT_ROWS]` u32: the token also goes to `emitted[new position % SELECT_EMITTED][row]`, or [`SELECT_NOT_FINITE`] |
/// | `history` | `[rows, SELECT_HISTORY]` u32: tokens by position modulo its length; with penalties |
/// | `counts` | `[rows, vocab]` u32: how often each token occurred in the window; with penalties |
/// | `partials`, `adjusted` | scratch between a list's launches |
///
/// The host fills `history` and `counts` when a sequence begins; each step then slides the window. A row's token does
/// not depend on the other rows.
///
/// Candidates are in the CPU's order, by descending logit, then by id, and the random numbers are the CPU's.
/// Exponentials are in f32: if a sum of probabilities is within about a millionth of the number drawn, of a cut or of
/// its neighbour, the two may differ. Zeros of either sign are equal here.
///
/// Two launches. Rows that keep at most 256 tokens, or whose draw is among a few hundred, read a few thousand logits in
/// the second; others read their logits several times in one workgroup, which is slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SelectCall {
    /// Rows, at most [`SELECT_ROWS`].
    pub rows: u32,
    /// Logits of a row.
    pub vocab: u32,
    /// Whether every row is greedy: cheaper. Temperatures are not read then.
    pub greedy: bool,
    /// Whether some row has penalties.
    pub penalties: bool,
}

/// Tuning; `None` chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SelectTuning {
    /// Invocations of the workgroup that draws: a power of two from 256 on.
    pub workgroup: Option<u32>,
}

impl SelectCall {
    /// The call for these samplers, one a row. Refuses penalty windows longer than the device's history.
    pub fn of<'a>(
        samplers: impl IntoIterator<Item = &'a Sampler>,
        vocab: u32,
    ) -> Result<SelectCall, LaunchError> {
        let mut call = SelectCall { rows: 0, vocab, greedy: true, penalties: false };
        for sampler in samplers {
            call.rows += 1;
            call.greedy &= sampler.is_greedy();
            call.penalties |= sampler.has_penalties();
            if sampler.has_penalties() && sampler.penalty_window > SELECT_HISTORY {
                return Err(LaunchError::Large {
                    kernel: "select".to_owned(),
                    what: "tokens of a penalty window",
                    count: sampler.penalty_window.into(),
                });
            }
        }
        call.check()?;
        Ok(call)
    }

    /// Whether the launches read `samplers`.
    pub fn has_samplers(&self) -> bool {
        self.penalties || !self.greedy
    }

    /// The contents of the buffer `samplers`.
    pub fn samplers<'a>(samplers: impl IntoIterator<Item = &'a Sampler>) -> Vec<u8> {
        let rows: Vec<SelectRow> = samplers.into_iter().map(SelectRow::from).collect();
        bytemuck::cast_slice(&rows).to_vec()
    }

    /// The launches, to be run one after the other.
    pub fn launches(&self, rungs: Rungs) -> Result<Vec<Launch>, LaunchError> {
        self.tuned(rungs, SelectTuning::default())
    }

    /// The launches with a tuning.
    pub fn tuned(&self, rungs: Rungs, tuning: SelectTuning) -> Result<Vec<Launch>, LaunchError> {
        self.check()?;
        let workgroup = tuning.workgroup.unwrap_or(256);
        if !workgroup.is_power_of_two() || !(256..=1024).contains(&workgroup) {
            let (name, needed) = ("workgroup", "256, 512 or 1024");
            return Err(LaunchError::Tuning {
                kernel: "select_draw".to_owned(),
                name,
                value: workgroup,
                needed,
            });
        }
        let slices = self.params().slices;
        Ok(if self.greedy {
            vec![
                self.launch(
                    rungs,
                    ("select_argmax", "select/argmax.wgsl"),
                    2,
                    [slices, self.rows],
                    &[
                        ("logits", 0, Access::Read),
                        ("partials", 1, Access::ReadWrite),
                        ("samplers", 3, Access::Read),
                        ("counts", 4, Access::Read),
                    ],
                ),
                self.launch(
                    rungs,
                    ("select_take", "select/take.wgsl"),
                    4,
                    [self.rows, 1],
                    &[
                        ("partials", 0, Access::Read),
                        ("tokens", 1, Access::ReadWrite),
                        ("rows", 2, Access::ReadWrite),
                        ("emitted", 3, Access::ReadWrite),
                        ("samplers", 5, Access::Read),
                        ("history", 6, Access::ReadWrite),
                        ("counts", 7, Access::ReadWrite),
                    ],
                ),
            ]
        } else {
            let logits = if self.penalties { "adjusted" } else { "logits" };
            let mut draw = self.launch(
                rungs,
                ("select_draw", "select/draw.wgsl"),
                6,
                [self.rows, 1],
                &[
                    (logits, 0, Access::Read),
                    ("samplers", 1, Access::Read),
                    ("partials", 2, Access::Read),
                    ("tokens", 3, Access::ReadWrite),
                    ("rows", 4, Access::ReadWrite),
                    ("emitted", 5, Access::ReadWrite),
                    ("history", 7, Access::ReadWrite),
                    ("counts", 8, Access::ReadWrite),
                ],
            );
            draw.variant.overrides = vec![("WORKGROUP", workgroup.into())];
            vec![
                self.launch(
                    rungs,
                    ("select_survey", "select/survey.wgsl"),
                    3,
                    [slices, self.rows],
                    &[
                        ("logits", 0, Access::Read),
                        ("samplers", 1, Access::Read),
                        ("partials", 2, Access::ReadWrite),
                        ("counts", 4, Access::Read),
                        ("adjusted", 5, Access::ReadWrite),
                    ],
                ),
                draw,
            ]
        })
    }

    fn check(&self) -> Result<(), LaunchError> {
        let kernel = || "select".to_owned();
        for (name, value) in [("rows", self.rows), ("vocab", self.vocab)] {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), name });
            }
        }
        for (what, count, most) in
            [("rows", self.rows, SELECT_ROWS), ("logits of a row", self.vocab, MOST_VOCAB)]
        {
            if count > most {
                return Err(LaunchError::Large { kernel: kernel(), what, count: count.into() });
            }
        }
        Ok(())
    }

    fn params(&self) -> SelectParams {
        let each = self.vocab.div_ceil(SLICES * RUN);
        SelectParams { vocab: self.vocab, slices: self.vocab.div_ceil(each * RUN), each, _pad0: 0 }
    }

    /// The least size of a buffer in bytes; `None` if this call has no such buffer.
    fn bytes(&self, name: &str) -> Option<u64> {
        let rows = u64::from(self.rows);
        let logits = 4 * rows * u64::from(self.vocab);
        match name {
            "logits" => Some(logits),
            "tokens" => Some(4 * rows),
            "rows" => Some(8 * rows),
            "emitted" => Some(4 * u64::from(SELECT_EMITTED * SELECT_ROWS)),
            "partials" if self.greedy => Some(8 * rows * u64::from(SLICES)),
            "partials" => Some(4 * rows * u64::from(PARTIALS)),
            "samplers" if self.has_samplers() => Some(rows * size_of::<SelectRow>() as u64),
            "counts" | "adjusted" if self.penalties => Some(logits),
            "history" if self.penalties => Some(4 * rows * u64::from(SELECT_HISTORY)),
            _ => None,
        }
    }

    /// A launch with the buffers that this call has.
    fn launch(
        &self,
        rungs: Rungs,
        (name, file): (&str, &'static str),
        binding: u32,
        [x, y]: [u32; 2],
        buffers: &[(&'static str, u32, Access)],
    ) -> Launch {
        let slot = |&(name, binding, access): &(&'static str, u32, Access)| {
            self.bytes(name).map(|bytes| Slot { name, binding, access, bytes })
        };
        let flag = |name, value: bool| (name, u32::from(value).to_string());
        Launch {
            variant: Variant {
                name: name.to_owned(),
                file,
                constants: vec![
                    flag("PENALTIES", self.penalties),
                    flag("IMMEDIATES", rungs.immediates),
                    flag("SUBGROUPS", rungs.subgroups),
                ],
                overrides: Vec::new(),
            },
            slots: buffers.iter().filter_map(slot).collect(),
            uniforms: Vec::new(),
            rope: None,
            params: Some((binding, bytemuck::bytes_of(&self.params()).to_vec())),
            groups: [x, y, 1],
        }
    }
}

impl From<&Sampler> for SelectRow {
    fn from(sampler: &Sampler) -> SelectRow {
        // Larger than any relevant difference of logits; infinity times a difference of 0 would be NaN.
        const MOST: f64 = 1e30;
        let inverse = if sampler.is_greedy() { 0.0 } else { 1.0 / f64::from(sampler.temperature) };
        SelectRow {
            temperature: sampler.temperature,
            top_k: sampler.top_k,
            top_p: sampler.top_p,
            min_p: sampler.min_p,
            repetition_penalty: sampler.repetition_penalty,
            presence_penalty: sampler.presence_penalty,
            frequency_penalty: sampler.frequency_penalty,
            penalty_window: sampler.penalty_window,
            seed_low: sampler.seed as u32,
            seed_high: (sampler.seed >> 32) as u32,
            inverse_temperature: inverse.min(MOST) as f32,
            _pad0: 0,
        }
    }
}
