//! `gyrus bench`: prefill and decode speed in tokens per second, as llama-bench measures it, and loads of many requests.

mod asked;
#[cfg(feature = "gpu")]
mod decode;
#[cfg(feature = "gpu")]
mod encoders;
#[cfg(feature = "gpu")]
mod flash;
#[cfg(feature = "gpu")]
mod kernels;
mod prompts;
mod report;
#[cfg(feature = "gpu")]
mod rows;
#[cfg(feature = "gpu")]
mod select;
mod serve;
mod speculate;
#[cfg(feature = "gpu")]
mod tiles;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use gyrus::{DeviceInfo, Event, Model, Precision, Prompt, Request, Sampler, Session};

use crate::cli::BenchArgs;
use crate::load::load;
use crate::progress::Progress;
#[cfg(feature = "gpu")]
use crate::synthetic::Synthetic;
use crate::text::ratio;
use crate::usage::usage;
use report::Measurement;
pub(crate) use serve::{Arrivals, Lengths};

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    #[cfg(feature = "gpu")]
    if let Some(part) = &args.kernels {
        return match part.as_str() {
            "flash" => flash::run(args, false),
            "flash_default" => flash::run(args, true),
            part if tiles::wanted(part) => tiles::run(part, args),
            part => kernels::run(part, args),
        };
    }
    #[cfg(feature = "gpu")]
    if let Some((dims, dtype)) = args.subject.synthetic.as_ref().and_then(Synthetic::encoder) {
        return encoders::run(dims, dtype, args);
    }
    if let (Some(model), Some(path)) = (&args.subject.synthetic, &args.write) {
        return model.write(path);
    }
    if args.load.serve.is_some() {
        return serve::run(args);
    }
    let asked = asked::Asked::read(&args.asked)?;
    let tests = tests(args);
    if tests.is_empty() && !args.prompts && !args.speculation.speculate {
        return Err(usage("nothing to measure: -p and -n are both 0"));
    }
    let source = args.subject.source_with(args.asked.vocabulary.as_deref())?;
    let mut options = args.model_options.options(Precision::Fast);
    // A prompt that is measured again is computed again.
    options.prefix_cache = false;
    let most = args.sequences.iter().copied().max().unwrap_or(1);
    if most > 1 {
        // A KV cache for each sequence, no longer than the tests need.
        options.sessions = most.into();
        let needed = tests.iter().filter_map(Test::context).max();
        // Answers that ask are twice as long, after a prompt.
        let tokens = args.gen_tokens.iter().copied().max().unwrap_or(0);
        let more = if asked.is_some() { asked::PROMPT_TOKENS + tokens } else { 0 };
        options.context = options.context.or(needed.map(|tokens| tokens + more));
    }
    let model = load(&source, &options, args.report.quiet)?;
    if args.prompts {
        return prompts::run(&model, source.name(), args);
    }
    if args.speculation.speculate {
        return speculate::run(&model, args);
    }
    if let Some(asked) = asked {
        return asked.run(&model, args);
    }
    let runs = (tests.len() * args.repetitions) as u64;
    let progress = (!args.report.quiet).then(|| Progress::new("measuring"));
    let mut done = 0;
    let mut measured = Vec::new();
    for test in tests {
        if !args.no_warmup {
            warm_up(&test, &model)?;
        }
        let mut speeds = Vec::new();
        for _ in 0..args.repetitions {
            let time = test.run(&model, |timed| timed()).with_context(|| test.name())?;
            speeds.push(test.speed(time));
            if let Some(progress) = &progress {
                done += 1;
                progress.set(done, runs);
            }
        }
        let idle = test.gpu_idle(&model).with_context(|| test.name())?;
        measured.push(Measurement::new(test.name(), &speeds, idle, source.name(), &model));
    }
    drop(progress);
    report::print(&measured, args.report.output)
}

/// How long a GPU may take to raise its clock: an H200 that was idle while weights were read took 0.3 s.
const CLOCK: Duration = Duration::from_millis(500);

/// Runs a test before it is measured: once for caches and page tables, and on a GPU until its clock has risen.
fn warm_up(test: &Test, model: &Model) -> Result<()> {
    let begun = Instant::now();
    let is_gpu = matches!(model.device(), DeviceInfo::Gpu { .. });
    loop {
        test.run(model, |timed| timed()).with_context(|| test.name())?;
        if !is_gpu || begun.elapsed() >= CLOCK {
            return Ok(());
        }
    }
}

/// The tests that the arguments ask for.
fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    for &depth in &args.depth {
        let test = |kind, n| Test { kind, n, depth, sampled: args.sampled };
        tests.extend(args.prompt_tokens.iter().filter(|n| **n > 0).map(|&n| test(Kind::Prefill, n)));
        for &n in args.gen_tokens.iter().filter(|n| **n > 0) {
            tests.extend(args.sequences.iter().map(|&sequences| match sequences {
                1 => test(Kind::Decode, n),
                sequences => test(Kind::Parallel(sequences.into()), n),
            }));
        }
    }
    tests
}

#[derive(Clone, Copy)]
enum Kind {
    Prefill,
    Decode,
    /// Decode with this many sequences in a batch.
    Parallel(usize),
}

/// A test: prefill or decode of `n` tokens at depth `depth`.
#[derive(Clone, Copy)]
struct Test {
    kind: Kind,
    n: usize,
    depth: usize,
    sampled: bool,
}

impl Test {
    /// `pp512`, `tg128`, `tg128@d512`, `tg128x16`.
    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Prefill => "pp",
            Kind::Decode | Kind::Parallel(_) => "tg",
        };
        let sequences = if let Kind::Parallel(n) = self.kind { format!("x{n}") } else { String::new() };
        let depth = if self.depth > 0 { format!("@d{}", self.depth) } else { String::new() };
        let sampled = if self.sampled && kind == "tg" { " sampled" } else { "" };
        format!("{kind}{}{sequences}{depth}{sampled}", self.n)
    }

    /// Tokens in the sequence before the timed ones. Decoding starts from a token, so it needs at least one.
    fn before(&self) -> usize {
        if matches!(self.kind, Kind::Prefill) { self.depth } else { self.depth.max(1) }
    }

    /// Context length that the test needs; `None` if that overflows.
    fn context(&self) -> Option<usize> {
        self.before().checked_add(self.n)
    }

    /// Tokens per second, summed over all sequences.
    fn speed(&self, time: Duration) -> f64 {
        let sequences = if let Kind::Parallel(sequences) = self.kind { sequences } else { 1 };
        ratio((sequences * self.n) as f64, time.as_secs_f64())
    }

    /// The share of time in which the GPU is idle, in a run of its own, so that timestamps do not slow the timed ones.
    /// `None` without a GPU that has timestamps.
    fn gpu_idle(&self, model: &Model) -> Result<Option<f64>> {
        if !matches!(model.device(), DeviceInfo::Gpu { .. }) {
            return Ok(None);
        }
        let mut busy = None;
        let time = self.run(model, |timed| {
            let (time, measured) = model.busy_time(timed)?;
            busy = measured;
            Ok(time)
        })?;
        Ok(busy.and_then(|busy| idle_share(busy, time)))
    }

    /// Runs the test once and returns how long it took. `around` calls the timed part.
    fn run(&self, model: &Model, around: impl FnOnce(Timed<'_>) -> Result<Duration>) -> Result<Duration> {
        let context = model.context().tokens;
        let needed = self.context().context("the depth and the token count overflow")?;
        ensure!(
            needed <= context,
            "needs a context of {needed} tokens, the context is {context} (--ctx sets it)"
        );
        let vocab = model.plan().vocab;
        // Any ids will do if they differ.
        let ids = |n: usize| -> Vec<u32> { (0..n).map(|i| (i * 7919 % vocab) as u32).collect() };
        let sampler = sampler(self.sampled);
        if let Kind::Parallel(sequences) = self.kind {
            return self.parallel(model, &vec![sampler; sequences], ids(self.before()), around);
        }
        let mut session = begin(model, &ids(self.before()), self.kind)?;
        around(&mut || {
            let start = Instant::now();
            match self.kind {
                Kind::Prefill => session.prefill(&ids(self.n))?,
                Kind::Decode | Kind::Parallel(_) => {
                    decode_all(std::slice::from_mut(&mut session), self.n, std::slice::from_ref(&sampler))?;
                }
            }
            Ok(start.elapsed())
        })
    }

    /// The same for several sequences at once.
    fn parallel(
        &self,
        model: &Model,
        samplers: &[Sampler],
        ids: Vec<u32>,
        around: impl FnOnce(Timed<'_>) -> Result<Duration>,
    ) -> Result<Duration> {
        let begin = |n: usize| {
            let mut ids = ids.clone();
            // The sequences differ, so that nothing can be shared between them.
            ids[0] = n as u32;
            begin(model, &ids, self.kind)
        };
        let mut sessions = (0..samplers.len()).map(begin).collect::<Result<Vec<_>>>()?;
        around(&mut || {
            let start = Instant::now();
            decode_all(&mut sessions, self.n, samplers)?;
            Ok(start.elapsed())
        })
    }
}

/// The sampler of a measurement.
fn sampler(sampled: bool) -> Sampler {
    match sampled {
        true => Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, ..Sampler::default() },
        false => Sampler::default(),
    }
}

/// The timed part of a test, which returns its time.
type Timed<'t> = &'t mut dyn FnMut() -> Result<Duration>;

/// The share of `wall` in which a device that was busy for `busy` was idle; `None` if there is no such share. The clocks of
/// host and device differ a little, so `busy` may be longer.
fn idle_share(busy: Duration, wall: Duration) -> Option<f64> {
    (!wall.is_zero()).then(|| (1.0 - busy.as_secs_f64() / wall.as_secs_f64()).max(0.0))
}

/// A session of these tokens, computed. The last one of a sequence that decodes is not: the first step computes it.
fn begin(model: &Model, ids: &[u32], kind: Kind) -> Result<Session> {
    let mut session = model.session();
    match (kind, ids) {
        (Kind::Decode | Kind::Parallel(_), [before @ .., _]) => {
            session.prefill(before)?;
            session.set_tokens(ids)?;
        }
        _ => session.prefill(ids)?,
    }
    Ok(session)
}

/// Decodes `n` tokens of each session at once and ignores end tokens. `n` tokens take `n` forward passes.
fn decode_all(sessions: &mut [Session], n: usize, samplers: &[Sampler]) -> Result<()> {
    let request = |sampler: &Sampler| {
        Request::new(Prompt::Continue).max_tokens(n).ignore_end(true).sampler(sampler.clone())
    };
    let begun =
        sessions.iter_mut().zip(samplers).map(|(session, sampler)| session.generate(request(sampler)));
    let mut generations = begun.collect::<Result<Vec<_>, _>>()?;
    // An event of each in turn: whoever waits drives the others, too.
    while !generations.is_empty() {
        let mut failed = Ok(());
        generations.retain_mut(|generation| match generation.next() {
            Ok(Some(Event::Stop { usage, .. })) if usage.generated_tokens < n => {
                failed = Err(anyhow!("the context ends after {} of {n} tokens", usage.generated_tokens));
                false
            }
            Ok(event) => event.is_some(),
            Err(error) => {
                failed = Err(error.into());
                false
            }
        });
        failed?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_what_is_not_busy() {
        let s = Duration::from_secs;
        assert_eq!(idle_share(s(3), s(4)), Some(0.25));
        assert_eq!(idle_share(s(0), s(4)), Some(1.0));
        assert_eq!(idle_share(s(5), s(4)), Some(0.0), "clocks that differ");
        assert_eq!(idle_share(s(0), s(0)), None);
    }

    #[test]
    fn speeds_count_all_sequences() {
        let test = |kind| Test { kind, n: 50, depth: 0, sampled: false };
        let time = Duration::from_millis(500);
        let kinds = [Kind::Prefill, Kind::Decode, Kind::Parallel(4)];
        assert_eq!(kinds.map(|kind| test(kind).speed(time)), [100.0, 100.0, 400.0]);
    }
}
