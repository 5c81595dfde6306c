//! `gyrus bench`: tokens per second, the way others measure it.

#[cfg(feature = "gpu")]
mod decode;
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
#[cfg(feature = "gpu")]
mod tiles;

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use gyrus::{Event, Model, Precision, Prompt, Request, Sampler, Session};

use crate::cli::BenchArgs;
use crate::load::load;
use crate::progress::Progress;
use crate::text::ratio;
use crate::usage::usage;
use report::Measurement;

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    #[cfg(feature = "gpu")]
    if let Some(part) = &args.kernels {
        return match part.as_str() {
            "flash" => flash::run(args),
            part if tiles::wanted(part) => tiles::run(part, args),
            part => kernels::run(part, args),
        };
    }
    if let (Some(model), Some(path)) = (&args.subject.synthetic, &args.write) {
        return model.write(path);
    }
    let tests = tests(args);
    if tests.is_empty() && !args.prompts {
        return Err(usage("nothing to measure: both -p and -n are 0"));
    }
    let source = args.subject.source()?;
    let mut options = args.model_options.options(Precision::Fast);
    let most = args.sequences.iter().copied().max().unwrap_or(1);
    if most > 1 {
        // Room for so many texts, and no longer than they become.
        options.sessions = most.into();
        options.context = options.context.or(tests.iter().filter_map(Test::context).max());
    }
    let model = load(&source, &options, args.report.quiet)?;
    if args.prompts {
        return prompts::run(&model, source.name(), args);
    }
    let warmups = usize::from(!args.no_warmup);
    let runs = (tests.len() * (args.repetitions + warmups)) as u64;
    let progress = (!args.report.quiet).then(|| Progress::new("measuring"));
    let mut done = 0;
    let mut measured = Vec::new();
    for test in tests {
        // The first run warms caches and page tables and is not counted.
        let mut speeds = Vec::new();
        for repetition in 0..args.repetitions + warmups {
            let speed = test.run(&model).with_context(|| test.name())?;
            if repetition >= warmups {
                speeds.push(speed);
            }
            if let Some(progress) = &progress {
                done += 1;
                progress.set(done, runs);
            }
        }
        measured.push(Measurement::new(test.name(), &speeds, source.name(), &model));
    }
    drop(progress);
    report::print(&measured, args.report.output)
}

/// All tests that were asked for.
fn tests(args: &BenchArgs) -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    for &depth in &args.depth {
        let test = |kind, n| Test { kind, n, depth, sampled: args.sampled };
        tests.extend(args.prompt_tokens.iter().filter(|n| **n > 0).map(|&n| test(Kind::Prompt, n)));
        for &n in args.gen_tokens.iter().filter(|n| **n > 0) {
            tests.extend(args.sequences.iter().map(|&texts| match texts {
                1 => test(Kind::Generate, n),
                texts => test(Kind::Together(texts.into()), n),
            }));
        }
    }
    tests
}

#[derive(Clone, Copy)]
enum Kind {
    Prompt,
    Generate,
    /// So many texts at once.
    Together(usize),
}

/// One thing to time: `n` tokens read or written behind `depth` tokens.
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
            Kind::Prompt => "pp",
            Kind::Generate | Kind::Together(_) => "tg",
        };
        let texts = if let Kind::Together(texts) = self.kind { format!("x{texts}") } else { String::new() };
        let depth = if self.depth > 0 { format!("@d{}", self.depth) } else { String::new() };
        let sampled = if self.sampled && kind == "tg" { " sampled" } else { "" };
        format!("{kind}{}{texts}{depth}{sampled}", self.n)
    }

    /// Tokens of the sequence before the timed ones. Generation starts from a token, so at least one is needed for it.
    fn before(&self) -> usize {
        if matches!(self.kind, Kind::Prompt) { self.depth } else { self.depth.max(1) }
    }

    /// Tokens of context that it needs, if they can be counted.
    fn context(&self) -> Option<usize> {
        self.before().checked_add(self.n)
    }

    /// Tokens per second, once.
    fn run(&self, model: &Model) -> Result<f64> {
        let context = model.context().tokens;
        let needed = self.context().context("needs more tokens of context than can be counted")?;
        ensure!(needed <= context, "needs {needed} tokens of context, there are {context}");
        let vocab = model.plan().vocab;
        // Any ids will do, as long as they differ.
        let ids = |n: usize| -> Vec<u32> { (0..n).map(|i| (i * 7919 % vocab) as u32).collect() };
        let sampler = if self.sampled {
            Sampler { temperature: 0.8, top_k: 40, top_p: 0.95, ..Sampler::default() }
        } else {
            Sampler::default()
        };
        if let Kind::Together(texts) = self.kind {
            return self.together(model, &vec![sampler; texts], ids(self.before()));
        }
        let mut session = model.session();
        session.prefill(&ids(self.before()))?;
        let start = Instant::now();
        match self.kind {
            Kind::Prompt => session.prefill(&ids(self.n))?,
            Kind::Generate | Kind::Together(_) => generate(&mut session, self.n, sampler)?,
        }
        Ok(ratio(self.n as f64, start.elapsed().as_secs_f64()))
    }

    /// Tokens per second of all texts together, once.
    fn together(&self, model: &Model, samplers: &[Sampler], ids: Vec<u32>) -> Result<f64> {
        let mut sessions: Vec<Session> = samplers.iter().map(|_| model.session()).collect();
        for (n, session) in sessions.iter_mut().enumerate() {
            let mut ids = ids.clone();
            // Texts that differ, or they would be one.
            ids[0] = n as u32;
            session.prefill(&ids)?;
        }
        let start = Instant::now();
        Session::decode_together(&mut sessions, samplers, self.n, |_| true)?;
        Ok(ratio((sessions.len() * self.n) as f64, start.elapsed().as_secs_f64()))
    }
}

/// Generates `n` tokens, whatever they are. The last token of the sequence is computed again for the logits of the
/// first, so `n` tokens take `n` passes.
fn generate(session: &mut Session, n: usize, sampler: Sampler) -> Result<()> {
    let request = Request::new(Prompt::Continue).max_tokens(n).ignore_end(true).sampler(sampler);
    let mut generation = session.generate(request)?;
    while let Some(event) = generation.next()? {
        if let Event::Stop { usage, .. } = event {
            ensure!(
                usage.generated_tokens == n,
                "the context ends after {} of {n} tokens",
                usage.generated_tokens
            );
        }
    }
    Ok(())
}
