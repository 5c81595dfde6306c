use crate::launch::{Access, Launch, LaunchError, Slot};
use crate::params::{SelectParams, SlotState};
use crate::sampler::Sampler;
use crate::shader::{Rungs, Variant};
use crate::slots::MAX_TOP;

/// The most rows of a step that chooses its tokens on the device.
pub const SELECT_ROWS: u32 = 16;
/// Steps whose tokens are stored for reading back.
pub const SELECT_EMITTED: u32 = 64;
/// What is emitted instead of a token if a row's logits are not all finite.
pub const SELECT_NOT_FINITE: u32 = u32::MAX;
/// Words of a row's log-probabilities: that of the token, then pairs of a token and its log-probability.
pub const SELECT_LOGPROBS: u32 = 1 + 2 * MAX_TOP as u32;
/// What is emitted instead of a token if a row holds.
pub const SELECT_HELD: u32 = u32::MAX - 1;

/// Logits that one run of neighbouring invocations reads.
const RUN: u32 = 256;
const SLICES: u32 = 64;
/// Largest keys of chunks, then largest keys of slices, then smallest keys or sums of slices.
const PARTIALS: u32 = SLICES * RUN / 8 + 2 * SLICES;
/// Counters and cuts, masses of runs of bins and of bins, and tokens that were gathered.
const BIN_WORDS: u32 = 20 + 2 * (256 + 16_384) + 2 * 1024;
/// Logits that a workgroup of the kernels of bins reads at once.
const BLOCK: u32 = 4 * RUN;
/// Workgroups of a kernel of bins, for all rows together.
const BLOCK_GROUPS: u32 = 512;
/// Logits from which on masses of bins are added for the runs alone that decide: below, one more launch takes longer.
const MANY_LOGITS: u32 = 1 << 19;
/// Far above every vocabulary; indices and fixed-point sums do not overflow up to it.
const MOST_VOCAB: u32 = 1 << 22;
/// Above every context; indices do not overflow up to it.
const MOST_HISTORY: u32 = 1 << 24;

/// Draws tokens from logits with [`Sampler`]s on the device, and advances the slots of the rows, or holds them.
///
/// A row advances if [`SlotState::advances`] with its position. Its token is that of [`Sampler::draw`] with the position
/// plus one as the step, where logits of tokens that are not allowed are -infinity. If it is an end token, or if a logit
/// is not finite, or no token is allowed, the row has ended. A row that holds changes nothing but its step. Buffers, by
/// slot name:
///
/// | name | contents |
/// |---|---|
/// | `logits` | `[rows, vocab]` f32, not changed |
/// | `slots` | `[rows]` of [`SlotState`]; every step is advanced by one, and `ENDED` is set |
/// | `tokens` | `[rows]` u32: the chosen token, which is the next step's input |
/// | `rows` | `[rows]` of (position of the token just computed, first entry of its block table); the position is advanced by one |
/// | `emitted` | `[SELECT_EMITTED, SELECT_ROWS]` u32: the token also goes to `emitted[step % SELECT_EMITTED][row]`, or [`SELECT_NOT_FINITE`], or [`SELECT_HELD`] |
/// | `history` | `[rows, history]` u32: tokens by position modulo its length; with penalties |
/// | `counts` | `[rows, vocab]` u32: how often each token occurred in the window; with penalties |
/// | `masks` | `[rows, ceil(vocab / 32)]` u32: bit `i % 32` of word `i / 32` is set if token `i` may be chosen; with masks, for rows with `MASKED` |
/// | `logprobs` | `[SELECT_EMITTED, SELECT_ROWS, SELECT_LOGPROBS]` u32: log-probabilities of the token and of the `top` most likely ones go to `logprobs[step % SELECT_EMITTED][row]`; with log-probabilities, of rows with `LOGPROBS` that advanced |
/// | `kept` | `[rows, vocab]` f32: the logits of rows with `HOST`; with rows that the host samples |
/// | `partials`, `adjusted`, `surveyed` | scratch between a list's launches |
///
/// When a sequence with penalties begins, the host fills `history` and runs [`count`](SelectCall::count) before the first
/// step; each step then slides the window. A row's token does not depend on the other rows.
///
/// Candidates are in the CPU's order, by descending logit, then by id, and the random numbers are the CPU's.
/// Exponentials are in f32: if a sum of probabilities is within about a millionth of the number drawn, of a cut or of
/// its neighbour, the two may differ. Zeros of either sign are equal here.
///
/// Log-probabilities are of the logits before penalties, masks and temperature; equal ones are in the order of ids.
/// `(u32::MAX, -infinity)` stands for tokens beyond the vocabulary.
///
/// Two launches, and two more for log-probabilities. Rows that keep at most 256 tokens read a few thousand logits in the
/// second. With [`whole`](SelectCall::whole) there are two or three more before it for rows without top-k: a histogram by
/// many workgroups finds the few tokens that decide. Without, for a top-k above 256, and if more than a thousand logits at a cut
/// are equal, such rows read their logits several times in one workgroup, which is slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SelectCall {
    /// Rows, at most [`SELECT_ROWS`].
    pub rows: u32,
    /// Logits of a row.
    pub vocab: u32,
    /// Whether every row is greedy: cheaper. Temperatures are not read then.
    pub greedy: bool,
    /// Whether some row has penalties.
    pub penalties: bool,
    /// With penalties: tokens of a row's history, a power of two. Longer penalty windows are cut to it, so it must be at
    /// least the smaller of the longest window and the longest sequence.
    pub history: u32,
    /// Whether some row is masked.
    pub masks: bool,
    /// Whether some row wants log-probabilities.
    pub logprobs: bool,
    /// Whether some row draws without a top-k, so that a draw among many tokens must be fast.
    pub whole: bool,
    /// Whether the host samples some row, so that its logits are kept.
    pub keeps: bool,
}

/// Tuning; `None` chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SelectTuning {
    /// Invocations of the workgroup that draws: a power of two from 256 on.
    pub workgroup: Option<u32>,
    /// Whether a launch of its own adds the masses of bins, after those of runs of bins are known.
    pub refine: Option<bool>,
}

impl SelectCall {
    /// The call for these samplers, one a row, for sequences of up to `length` tokens.
    pub fn of<'a>(
        samplers: impl IntoIterator<Item = &'a Sampler>,
        vocab: u32,
        length: u32,
    ) -> Result<SelectCall, LaunchError> {
        let mut call = SelectCall { vocab, greedy: true, ..SelectCall::default() };
        for sampler in samplers {
            call.rows += 1;
            call.greedy &= sampler.is_greedy();
            call.whole |= draws_from_all(sampler);
            if sampler.has_penalties() {
                call.penalties = true;
                call.history = call.history.max(sampler.penalty_window.min(length));
            }
        }
        if call.penalties {
            call.history = call.history.min(MOST_HISTORY + 1).next_power_of_two();
        }
        call.check()?;
        Ok(call)
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
        let mut launches = if self.greedy {
            vec![
                self.launch(
                    rungs,
                    ("select_argmax", "select/argmax.wgsl"),
                    2,
                    [slices, self.rows],
                    &[
                        ("logits", 0, Access::Read),
                        ("partials", 1, Access::ReadWrite),
                        ("slots", 3, Access::Read),
                        ("counts", 4, Access::Read),
                        ("masks", 5, Access::Read),
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
                        ("slots", 5, Access::ReadWrite),
                        ("history", 6, Access::ReadWrite),
                        ("counts", 7, Access::ReadWrite),
                    ],
                ),
            ]
        } else {
            let logits = if self.has_adjusted() { "adjusted" } else { "logits" };
            let mut draw = self.launch(
                rungs,
                ("select_draw", "select/draw.wgsl"),
                6,
                [self.rows, 1],
                &[
                    (logits, 0, Access::Read),
                    ("slots", 1, Access::ReadWrite),
                    ("partials", 2, Access::Read),
                    ("tokens", 3, Access::ReadWrite),
                    ("rows", 4, Access::ReadWrite),
                    ("emitted", 5, Access::ReadWrite),
                    ("history", 7, Access::ReadWrite),
                    ("counts", 8, Access::ReadWrite),
                ],
            );
            draw.variant.overrides = vec![("WORKGROUP", workgroup.into())];
            let mut launches = vec![self.survey(rungs, false)];
            if self.whole {
                launches.extend(self.bins(rungs, tuning.refine));
            }
            launches.push(draw);
            launches
        };
        if self.logprobs {
            let raw = SelectCall { penalties: false, masks: false, whole: false, ..*self };
            // It shares no buffer that is written with the launches that choose tokens, and is first, so that a device can
            // run it beside them.
            launches.insert(0, raw.survey(rungs, true));
            launches.push(raw.launch(
                rungs,
                ("select_logprobs", "select/logprobs.wgsl"),
                4,
                [self.rows, 1],
                &[
                    ("logits", 0, Access::Read),
                    ("slots", 1, Access::Read),
                    ("surveyed", 2, Access::Read),
                    ("emitted", 3, Access::Read),
                    ("logprobs", 5, Access::ReadWrite),
                ],
            ));
        }
        if self.keeps {
            launches.push(self.launch(
                rungs,
                ("select_keep", "select/keep.wgsl"),
                3,
                [slices, self.rows],
                &[("logits", 0, Access::Read), ("slots", 1, Access::Read), ("kept", 2, Access::ReadWrite)],
            ));
        }
        Ok(launches)
    }

    /// The launches that find the tokens that decide, for rows without top-k.
    fn bins(&self, rungs: Rungs, refine: Option<bool>) -> Vec<Launch> {
        let logits = if self.has_adjusted() { "adjusted" } else { "logits" };
        let buffers = [
            (logits, 0, Access::Read),
            ("slots", 1, Access::Read),
            ("partials", 2, Access::ReadWrite),
            ("rows", 4, Access::Read),
        ];
        let grid = [self.vocab.div_ceil(BLOCK).min(BLOCK_GROUPS / self.rows), self.rows];
        let refine = refine.unwrap_or(self.rows.saturating_mul(self.vocab) > MANY_LOGITS);
        let mut histogram =
            self.launch(rungs, ("select_histogram", "select/histogram.wgsl"), 3, grid, &buffers[..3]);
        histogram.variant.constants.push(("FINE", u32::from(!refine).to_string()));
        let mut launches = vec![histogram];
        if refine {
            launches.push(self.launch(rungs, ("select_refine", "select/refine.wgsl"), 3, grid, &buffers));
        }
        launches.push(self.launch(rungs, ("select_gather", "select/gather.wgsl"), 3, grid, &buffers));
        launches
    }

    /// `raw`: for log-probabilities.
    fn survey(&self, rungs: Rungs, raw: bool) -> Launch {
        let mut launch = self.launch(
            rungs,
            ("select_survey", "select/survey.wgsl"),
            3,
            [self.params().slices, self.rows],
            &[
                ("logits", 0, Access::Read),
                ("slots", 1, Access::Read),
                (if raw { "surveyed" } else { "partials" }, 2, Access::ReadWrite),
                ("counts", 4, Access::Read),
                ("adjusted", 5, Access::ReadWrite),
                ("masks", 6, Access::Read),
            ],
        );
        launch.variant.constants.push(("RAW", u32::from(raw).to_string()));
        launch
    }

    /// The launch that counts the penalty windows of rows with the flag `COUNT`, from `history` and the rows' positions,
    /// and clears the flag; `None` without penalties.
    pub fn count(&self, rungs: Rungs) -> Result<Option<Launch>, LaunchError> {
        self.check()?;
        let buffers = [
            ("slots", 0, Access::ReadWrite),
            ("rows", 1, Access::Read),
            ("history", 2, Access::Read),
            ("counts", 3, Access::ReadWrite),
        ];
        let kernel = ("select_count", "select/count.wgsl");
        Ok(self.penalties.then(|| self.launch(rungs, kernel, 4, [self.rows, 1], &buffers)))
    }

    fn check(&self) -> Result<(), LaunchError> {
        let kernel = || "select".to_owned();
        if self.penalties && !self.history.is_power_of_two() {
            let (value, needed) = (self.history, "a power of two");
            return Err(LaunchError::Tuning { kernel: kernel(), name: "history", value, needed });
        }
        for (name, value) in [("rows", self.rows), ("vocab", self.vocab)] {
            if value == 0 {
                return Err(LaunchError::Zero { kernel: kernel(), name });
            }
        }
        for (what, count, most) in [
            ("rows", self.rows, SELECT_ROWS),
            ("logits of a row", self.vocab, MOST_VOCAB),
            ("tokens of a history", self.history, MOST_HISTORY),
        ] {
            if count > most {
                return Err(LaunchError::Large { kernel: kernel(), what, count: count.into() });
            }
        }
        Ok(())
    }

    /// Whether draws are from other logits than the model's.
    fn has_adjusted(&self) -> bool {
        self.penalties || self.masks
    }

    fn params(&self) -> SelectParams {
        let each = self.vocab.div_ceil(SLICES * RUN);
        SelectParams {
            vocab: self.vocab,
            slices: self.vocab.div_ceil(each * RUN),
            each,
            history: self.history,
        }
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
            "partials" if self.whole && !self.greedy => Some(4 * rows * u64::from(PARTIALS + BIN_WORDS)),
            "partials" => Some(4 * rows * u64::from(PARTIALS)),
            "surveyed" if self.logprobs => Some(4 * rows * u64::from(PARTIALS)),
            "slots" => Some(rows * size_of::<SlotState>() as u64),
            "logprobs" if self.logprobs => {
                Some(4 * u64::from(SELECT_EMITTED * SELECT_ROWS * SELECT_LOGPROBS))
            }
            "counts" if self.penalties => Some(logits),
            "adjusted" if self.has_adjusted() => Some(logits),
            "kept" if self.keeps => Some(logits),
            "masks" if self.masks => Some(4 * rows * u64::from(self.vocab.div_ceil(32))),
            "history" if self.penalties => Some(4 * rows * u64::from(self.history)),
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
                    flag("MASKS", self.masks),
                    flag("WHOLE", self.whole && !self.greedy),
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

/// Whether a sampler draws from all tokens, so that candidates may not suffice.
pub fn draws_from_all(sampler: &Sampler) -> bool {
    !sampler.is_greedy() && sampler.top_k == 0
}
