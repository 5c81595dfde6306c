//! `gyrus bench` with a constraint or log-probabilities: what they cost, against requests without, in the same run.
//!
//! One sequence decodes in turns with and without. Of several, half ask and half do not; the speed of those that do not is
//! compared with that among sequences none of which ask. A constrained answer that ends early begins anew; answers beside
//! others may be twice as long, since a prompt that is read again would count against the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gyrus::constrain::Source;
use gyrus::{Event, Model, Request};
use serde::Serialize;

use super::report::{Cell, Column, TableRow, median, table};
use super::sampler;
use crate::cli::{AskedArgs, BenchArgs};
use crate::load;
use crate::text::ratio;

const PROMPT: &str = "Write a record of a person with a name, an age and a list of friends as JSON.\n";
/// More than the prompt has with any vocabulary.
pub(super) const PROMPT_TOKENS: usize = 64;

/// What the requests ask for.
pub(super) struct Asked {
    constraint: Option<(String, Source)>,
    logprobs: Option<usize>,
}

#[derive(Debug, Serialize)]
struct Row {
    sequences: usize,
    /// Tokens per second of a sequence, if none asks: the median over the repetitions.
    plain: f64,
    /// That of a sequence that asks.
    asking: f64,
    /// Of the two in each repetition: the median.
    ratio: f64,
    /// The speed of a sequence that does not ask beside as many that do, relative to that where none does.
    beside: Option<f64>,
    device: String,
}

impl Asked {
    /// `None` if nothing is asked for.
    pub(super) fn read(args: &AskedArgs) -> Result<Option<Asked>> {
        let asked = Asked { constraint: args.constraint.read()?, logprobs: args.logprobs.map(Into::into) };
        Ok((asked.constraint.is_some() || asked.logprobs.is_some()).then_some(asked))
    }

    pub(super) fn run(&self, model: &Model, args: &BenchArgs) -> Result<()> {
        ensure!(
            self.constraint.is_none() || model.tokenizer().is_some(),
            "the model has no vocabulary; --vocabulary FILE gives one to a synthetic model"
        );
        let tokens = args.gen_tokens.first().copied().unwrap_or(128).max(2);
        let depth = args.depth.first().copied().unwrap_or(0);
        let plain = self.request(model, tokens, depth, args.sampled, false)?;
        let asking = self.request(model, tokens, depth, args.sampled, true)?;
        let beside = asking.clone().max_tokens(2 * tokens);
        let mut rows = Vec::new();
        for sequences in args.sequences.iter().map(|n| usize::from(*n)) {
            let half = if sequences > 1 { sequences / 2 } else { 0 };
            // Requests of several clients run as in a server.
            let _driver = (half > 0).then(|| model.drive()).transpose()?;
            let both = || -> Result<[Speeds; 2]> {
                let all = measure(model, tokens, (&plain, sequences), (&asking, 0))?;
                let asking = if half > 0 { &beside } else { &asking };
                let mixed = measure(model, tokens, (&plain, half), (asking, sequences - half))?;
                Ok([all, mixed])
            };
            both()?;
            let runs = (0..args.repetitions).map(|_| both()).collect::<Result<Vec<_>>>()?;
            let of = |speed: fn(&[Speeds; 2]) -> f64| median(&runs.iter().map(speed).collect::<Vec<_>>());
            rows.push(Row {
                sequences,
                plain: of(|[all, _]| all.plain),
                asking: of(|[_, mixed]| mixed.asking),
                ratio: of(|[all, mixed]| ratio(mixed.asking, all.plain)),
                beside: (half > 0).then(|| of(|[all, mixed]| ratio(mixed.plain, all.plain))),
                device: load::device(model.device()),
            });
        }
        table(&rows, args.report.output)
    }

    fn request(
        &self,
        model: &Model,
        tokens: usize,
        depth: usize,
        sampled: bool,
        asks: bool,
    ) -> Result<Request> {
        let vocab = model.plan().vocab;
        // Any ids will do if they differ.
        let mut ids: Vec<u32> = (0..depth.max(1)).map(|i| (i * 7919 % vocab) as u32).collect();
        if model.tokenizer().is_some() {
            ids.extend(model.prompt_tokens(&Request::text(PROMPT))?);
        }
        let mut request = Request::ids(ids).max_tokens(tokens).sampler(sampler(sampled)).ignore_end(true);
        if let (true, Some(n)) = (asks, self.logprobs) {
            request = request.logprobs(true).top_logprobs(n);
        }
        if let (true, Some((_, source))) = (asks, &self.constraint) {
            // A grammar that is complete ends.
            request = request.constraint(source.clone()).ignore_end(false);
        }
        Ok(request)
    }
}

/// Tokens per second of a sequence of each kind; 0 without one.
#[derive(Debug, Clone, Copy)]
struct Speeds {
    plain: f64,
    asking: f64,
}

/// Decodes both kinds of sequences at once, requests and their number each. Those that ask go on until the others have
/// ended or, without others, until they have had `tokens` tokens.
fn measure(
    model: &Model,
    tokens: usize,
    (plain, plain_count): (&Request, usize),
    (asking, asking_count): (&Request, usize),
) -> Result<Speeds> {
    let ended = AtomicBool::new(false);
    let alone = plain_count == 0;
    std::thread::scope(|scope| {
        let one = |_| scope.spawn(|| Pace::default().add(model, plain, || false));
        let plain: Vec<_> = (0..plain_count).map(one).collect();
        let several = |_| {
            scope.spawn(|| -> Result<Pace> {
                let mut pace = Pace::default();
                while if alone { pace.tokens + 1 < tokens } else { !ended.load(Ordering::Relaxed) } {
                    let before = pace.tokens;
                    pace = pace.add(model, asking, || !alone && ended.load(Ordering::Relaxed))?;
                    ensure!(
                        pace.tokens > before || !alone,
                        "an answer has fewer than two tokens: there is no time between tokens to measure"
                    );
                }
                Ok(pace)
            })
        };
        let asking: Vec<_> = (0..asking_count).map(several).collect();
        let plain = joined(plain);
        ended.store(true, Ordering::Relaxed);
        let asking = joined(asking);
        Ok(Speeds { plain: plain?, asking: asking? })
    })
}

/// The mean speed of a kind.
fn joined(threads: Vec<std::thread::ScopedJoinHandle<'_, Result<Pace>>>) -> Result<f64> {
    let count = threads.len();
    let mut sum = 0.0;
    for thread in threads {
        // A thread that panicked has said so.
        let pace = thread.join().ok().context("a sequence was not decoded")??;
        sum += ratio(pace.tokens as f64, pace.time.as_secs_f64());
    }
    Ok(if count == 0 { 0.0 } else { sum / count as f64 })
}

/// Tokens behind the first ones of answers, and their time.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    tokens: usize,
    time: Duration,
}

impl Pace {
    /// With an answer to a request, until it ends or `stops`.
    fn add(mut self, model: &Model, request: &Request, stops: impl Fn() -> bool) -> Result<Pace> {
        let mut answer = model.answer(request.clone())?;
        let mut last: Option<Instant> = None;
        while let Some(event) = answer.next()? {
            if !matches!(event, Event::Token { .. }) {
                continue;
            }
            let now = Instant::now();
            if let Some(before) = last.replace(now) {
                self.tokens += 1;
                self.time += now - before;
            }
            if stops() {
                break;
            }
        }
        Ok(self)
    }
}

impl TableRow for Row {
    const COLUMNS: &'static [Column] = &[
        Column::Number("sequences", "sequences"),
        Column::Number("plain", "tokens/s"),
        Column::Number("asking", "asking, tokens/s"),
        Column::Number("ratio", "ratio"),
        Column::Number("beside", "others beside them"),
    ];

    fn device(&self) -> &str {
        &self.device
    }

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::plain(&self.sequences.to_string()),
            Cell::number(self.plain, 3, 1),
            Cell::number(self.asking, 3, 1),
            Cell::number(self.ratio, 4, 3),
            self.beside.map_or_else(|| Cell::plain("-"), |beside| Cell::number(beside, 4, 3)),
        ]
    }
}
