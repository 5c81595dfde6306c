//! A long prompt joins sequences that decode: how long their tokens wait for it, and how long it waits for them.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use gyrus::{Cancel, Event, Model, Precision, Request, Sampler};
use serde::Serialize;

use super::load::tokens;
use super::quantiles::Quantiles;
use super::report::{Subject, milliseconds};
use crate::cli::BenchArgs;
use crate::interrupt::{Interrupted, on_ctrl_c};
use crate::options::BenchOutput;
use crate::text::ratio;
use crate::usage::usage;
use crate::{json, load};

/// Tokens that each sequence decodes before times count, and those that are then timed before the prompt joins.
const SETTLE: usize = 16;
const BEFORE: usize = 64;
/// Tokens that the long prompt generates after it was read.
const AFTER: usize = 8;
/// How many of the longest times between tokens are reported.
const LONGEST: usize = 12;
/// Tokens that running sequences may need while the long prompt is read, for each of its tokens: with chunks of 16 rows
/// one step comes with each chunk.
const PROMPT_TOKENS_PER_STEP: usize = 8;

/// What random tokens are for.
const ALONE: u64 = 1 << 40;
const JOINING: u64 = 2 << 40;
const RUNNING: u64 = 3 << 40;

/// The results.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    subject: Subject,
    running: usize,
    /// Tokens of the running sequences' prompts, and of the one that joins.
    prompt_tokens: usize,
    join_tokens: usize,
    /// Times between tokens of the running sequences before the prompt joins, and while it is read.
    before_seconds: Quantiles,
    during_seconds: Quantiles,
    /// The time to the long prompt's first token if nothing else runs, and beside the others.
    alone_seconds: f64,
    joined_seconds: f64,
    /// When the parts of the long prompt were read, from when it was sent.
    read_seconds: Vec<f64>,
    /// The longest times between tokens of one of the running sequences, and when they ended.
    longest: Vec<Wait>,
}

/// A time between two tokens.
#[derive(Debug, Serialize)]
struct Wait {
    at_seconds: f64,
    seconds: f64,
}

pub(super) fn run(args: &BenchArgs, join_tokens: usize) -> Result<()> {
    let source = args.subject.source()?;
    let mut options = args.model_options.options(Precision::Fast);
    let (running, prompt_tokens) = (usize::from(args.load.running), args.load.prompt_length.mean());
    let needed = needed_context(prompt_tokens, join_tokens);
    options.sessions = running + 1;
    options.context = options.context.or(Some(needed));
    let model = load::load(&source, &options, args.report.quiet)?;
    let context = model.context().tokens;
    if needed > context {
        return Err(usage(format!(
            "--join {join_tokens} with --prompt-length {prompt_tokens} needs a context of {needed} tokens, the context \
             is {context} (--ctx sets it)"
        )));
    }
    let driver = model.drive()?;
    super::warm_up(&model)?;
    let scenario = Scenario {
        model: &model,
        seed: args.load.seed,
        sampler: super::super::sampler(args.sampled),
        cancel: on_ctrl_c(),
    };
    // Twice, because the first may be slower.
    scenario.long_prompt(join_tokens, ALONE)?;
    let alone = scenario.long_prompt(join_tokens, ALONE + 1)?.first;
    let measured = scenario.join(running, prompt_tokens, join_tokens)?;
    drop(driver);
    if scenario.cancel.is_cancelled() {
        return Err(Interrupted.into());
    }
    let report = Report {
        subject: Subject::new(source.name(), &model),
        running,
        prompt_tokens,
        join_tokens,
        before_seconds: Quantiles::new(&measured.before),
        during_seconds: Quantiles::new(&measured.during),
        alone_seconds: alone.as_secs_f64(),
        joined_seconds: measured.prompt.first.as_secs_f64(),
        read_seconds: measured.prompt.read.iter().map(Duration::as_secs_f64).collect(),
        longest: measured.longest,
    };
    report.print(args.report.output)
}

/// The context that holds the long prompt, and the running sequences until it was read.
fn needed_context(prompt: usize, join: usize) -> usize {
    let steps = SETTLE + BEFORE + AFTER + 64 + join / PROMPT_TOKENS_PER_STEP;
    (join + AFTER).max(prompt + steps)
}

/// What all requests have in common.
struct Scenario<'a> {
    model: &'a Model,
    seed: u64,
    sampler: Sampler,
    cancel: Cancel,
}

/// Times in seconds.
struct Joined {
    before: Vec<f64>,
    during: Vec<f64>,
    longest: Vec<Wait>,
    prompt: LongPrompt,
}

/// When a long prompt was sent, and how long after that its parts were read and its first token came.
struct LongPrompt {
    sent: Instant,
    read: Vec<Duration>,
    first: Duration,
}

impl Scenario<'_> {
    fn request(&self, n: usize, purpose: u64, cancel: &Cancel) -> Request {
        let ids = tokens(self.seed, purpose, n, self.model.plan().vocab);
        let sampler = Sampler { seed: purpose, ..self.sampler.clone() };
        Request::ids(ids).ignore_end(true).sampler(sampler).cancel(cancel.clone())
    }

    /// Computes the long prompt and a few tokens.
    fn long_prompt(&self, join_tokens: usize, purpose: u64) -> Result<LongPrompt> {
        let mut session = self.model.session();
        let request = self.request(join_tokens, purpose, &self.cancel).max_tokens(AFTER);
        let sent = Instant::now();
        let mut generation = session.generate(request)?;
        let (mut read, mut first) = (Vec::new(), None);
        while let Some(event) = generation.next()? {
            match event {
                Event::PrefillProgress { .. } => read.push(sent.elapsed()),
                Event::Token { .. } if first.is_none() => first = Some(sent.elapsed()),
                _ => {}
            }
        }
        match first {
            Some(first) => Ok(LongPrompt { sent, read, first }),
            None if self.cancel.is_cancelled() => Err(Interrupted.into()),
            None => Err(anyhow!("the long prompt has no token")),
        }
    }

    fn join(&self, running: usize, prompt_tokens: usize, join_tokens: usize) -> Result<Joined> {
        let counts: Vec<AtomicUsize> = (0..running).map(|_| AtomicUsize::new(0)).collect();
        let ended = AtomicUsize::new(0);
        let all_times = Mutex::new(Vec::new());
        let stop = Cancel::new();
        let decode = |number: usize| -> Result<()> {
            let mut session = self.model.session();
            let request = self.request(prompt_tokens, RUNNING + number as u64, &stop);
            let mut generation = session.generate(request)?;
            let mut times = Vec::with_capacity(self.model.context().tokens);
            while let Some(event) = generation.next()? {
                if matches!(event, Event::Token { .. }) {
                    times.push(Instant::now());
                    counts[number].store(times.len(), Ordering::Relaxed);
                }
            }
            all_times.lock().map_err(|_| anyhow!("a client panicked"))?.push(times);
            Ok(())
        };
        let reached = |tokens: usize| -> Result<Instant> {
            while counts.iter().any(|count| count.load(Ordering::Relaxed) < tokens) {
                if self.cancel.is_cancelled() {
                    return Err(Interrupted.into());
                }
                if ended.load(Ordering::Relaxed) > 0 {
                    bail!("a running sequence ended before the prompt joined");
                }
                thread::sleep(Duration::from_millis(1));
            }
            Ok(Instant::now())
        };
        let (settled, prompt) = thread::scope(|scope| {
            let clients: Vec<_> = (0..running)
                .map(|number| {
                    let (ended, decode) = (&ended, &decode);
                    scope.spawn(move || {
                        let done = decode(number);
                        ended.fetch_add(1, Ordering::Relaxed);
                        done
                    })
                })
                .collect();
            let measured = reached(SETTLE).and_then(|settled| {
                reached(SETTLE + BEFORE)?;
                let prompt = self.long_prompt(join_tokens, JOINING)?;
                if ended.load(Ordering::Relaxed) > 0 {
                    bail!("a running sequence ended while the prompt was read: --ctx sets a longer context");
                }
                Ok((settled, prompt))
            });
            stop.cancel();
            for client in clients {
                client.join().map_err(|_| anyhow!("a client panicked"))??;
            }
            measured
        })?;
        let all_times = all_times.into_inner().context("a client panicked")?;
        let gaps = |from: Instant, to: Instant| -> Vec<f64> {
            let pairs = all_times.iter().flat_map(|times| times.windows(2));
            let within = pairs.filter(|pair| pair[1] > from && pair[1] <= to);
            within.map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()
        };
        let (sent, end) = (prompt.sent, prompt.sent + prompt.first);
        let mut longest: Vec<Wait> = all_times
            .iter()
            .take(1)
            .flat_map(|times| times.windows(2))
            .filter(|pair| pair[1] > sent && pair[1] <= end)
            .map(|pair| Wait {
                at_seconds: (pair[1] - sent).as_secs_f64(),
                seconds: (pair[1] - pair[0]).as_secs_f64(),
            })
            .collect();
        longest.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        longest.truncate(LONGEST);
        Ok(Joined { before: gaps(settled, sent), during: gaps(sent, end), longest, prompt })
    }
}

impl Report {
    fn print(&self, output: BenchOutput) -> Result<()> {
        let mut out = std::io::stdout().lock();
        // What the requirement on both is: a multiple of the time without the other.
        let slower = ratio(self.during_seconds.p99, self.before_seconds.p50);
        let later = ratio(self.joined_seconds, self.alone_seconds);
        match output {
            BenchOutput::Json => json::pretty(&mut out, self)?,
            BenchOutput::Csv => {
                writeln!(
                    out,
                    "running,prompt_tokens,join_tokens,before_p50,during_p50,during_p99,first_token_alone,first_token_joined"
                )?;
                writeln!(
                    out,
                    "{},{},{},{:.6},{:.6},{:.6},{:.6},{:.6}",
                    self.running,
                    self.prompt_tokens,
                    self.join_tokens,
                    self.before_seconds.p50,
                    self.during_seconds.p50,
                    self.during_seconds.p99,
                    self.alone_seconds,
                    self.joined_seconds
                )?;
            }
            BenchOutput::Md => {
                self.subject.print(&mut out)?;
                let Report { running, prompt_tokens, join_tokens, .. } = self;
                writeln!(
                    out,
                    "{running} sequences decode after prompts of {prompt_tokens} tokens; one of {join_tokens} tokens joins\n"
                )?;
                writeln!(
                    out,
                    "| time between tokens | p50 | p90 | p99 | max | mean |\n|---|---:|---:|---:|---:|---:|"
                )?;
                for (name, times) in
                    [("before it joins", &self.before_seconds), ("while it is read", &self.during_seconds)]
                {
                    let [p50, p90, p99, max, mean] =
                        [times.p50, times.p90, times.p99, times.max, times.mean].map(milliseconds);
                    writeln!(out, "| {name} | {p50} | {p90} | {p99} | {max} | {mean} |")?;
                }
                writeln!(out, "\np99 while it is read: {slower:.2} × the p50 before")?;
                let [alone, joined] = [self.alone_seconds, self.joined_seconds].map(milliseconds);
                writeln!(out, "its first token after {joined}, alone after {alone}: {later:.2} ×")?;
            }
        }
        Ok(())
    }
}
