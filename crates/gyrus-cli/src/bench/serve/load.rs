//! A load: when each request arrives, how long its prompt and its completion are, and its tokens.

use std::time::Duration;

use anyhow::Result;

use super::random::{Arrivals, Random};
use crate::cli::ServeArgs;
use crate::usage::usage;

/// Requests in the order of their arrival.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) requests: Vec<Planned>,
    /// Requests that were made shorter than drawn to fit the context.
    pub(super) shortened: usize,
    seed: u64,
    /// Tokens that the requests that share have in common.
    prefix: usize,
}

/// A request of a load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Planned {
    /// Since the start. Zero if it waits for the one before it.
    pub(super) arrival: Duration,
    pub(super) prompt: usize,
    pub(super) output: usize,
    /// Whether its prompt begins with the common prefix.
    pub(super) shares: bool,
}

/// What random numbers are drawn for.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    Arrivals = 1,
    Prompts,
    Outputs,
    Sharing,
    Prefix,
    Tokens,
}

impl Load {
    /// Draws a load.
    pub(super) fn draw(args: &ServeArgs) -> Result<Load> {
        let arrivals = arrivals(args)?;
        let random = |purpose: Purpose| Random::new(args.seed, purpose as u64);
        let (mut prompts, mut outputs) = (random(Purpose::Prompts), random(Purpose::Outputs));
        let mut sharing = random(Purpose::Sharing);
        let prefix = args.shared_prefix as usize;
        let requests = arrivals.into_iter().map(|arrival| {
            let shares = prefix > 0 && sharing.unit() <= args.sharing;
            let prompt = args.prompt_length.draw(&mut prompts);
            // A token of its own follows the prefix.
            let prompt = if shares { prompt.max(prefix + 1) } else { prompt };
            Planned { arrival, prompt, output: args.output_length.draw(&mut outputs), shares }
        });
        Ok(Load { requests: requests.collect(), shortened: 0, seed: args.seed, prefix })
    }

    /// The context that the longest request needs.
    pub(super) fn longest(&self) -> usize {
        self.requests.iter().map(|request| request.prompt + request.output).max().unwrap_or(0)
    }

    /// Makes requests fit the context: a random length may be too long, a mean must not be.
    pub(super) fn fit(&mut self, context: usize, args: &ServeArgs) -> Result<()> {
        let (prompt, output) = (args.prompt_length, args.output_length);
        let means = prompt.mean().max(self.prefix + usize::from(self.prefix > 0)) + output.mean();
        if means > context {
            return Err(usage(format!(
                "--prompt-length {prompt}, --shared-prefix {} and --output-length {output} need a context of {means} \
                 tokens, the context is {context} (--ctx and --kv-memory set it)",
                self.prefix
            )));
        }
        for request in &mut self.requests {
            if request.prompt + request.output > context {
                self.shortened += 1;
                request.prompt = request.prompt.min(context - output.mean());
                request.output = request.output.min(context - request.prompt);
            }
        }
        Ok(())
    }

    /// The tokens of a request's prompt. Those of other requests differ, but for the common prefix.
    pub(super) fn prompt(&self, index: usize, vocab: usize) -> Vec<u32> {
        let request = self.requests[index];
        let prefix = if request.shares { self.prefix.min(request.prompt) } else { 0 };
        let mut ids = tokens(self.seed, Purpose::Prefix as u64, prefix, vocab);
        let own = (Purpose::Tokens as u64) + ((index as u64 + 1) << 8);
        ids.extend(tokens(self.seed, own, request.prompt - prefix, vocab));
        ids
    }
}

/// Random tokens.
pub(super) fn tokens(seed: u64, purpose: u64, n: usize, vocab: usize) -> Vec<u32> {
    let mut random = Random::new(seed, purpose);
    (0..n).map(|_| random.below(vocab) as u32).collect()
}

fn arrivals(args: &ServeArgs) -> Result<Vec<Duration>> {
    let requests = args.requests as usize;
    let Arrivals::Poisson(rate) = args.rate else {
        if let Some(seconds) = args.duration {
            return Err(usage(format!(
                "--duration {seconds} needs requests per second, not --rate {}; --requests sets their number",
                args.rate
            )));
        }
        return Ok(vec![Duration::ZERO; requests]);
    };
    let mut random = Random::new(args.seed, Purpose::Arrivals as u64);
    let mut times = Vec::new();
    let mut at = 0.0;
    while times.len() <= ServeArgs::MOST_REQUESTS {
        at += random.exponential() / rate;
        let goes_on = args.duration.map_or(times.len() < requests, |seconds| at < seconds);
        if !goes_on {
            break;
        }
        times.push(Duration::from_secs_f64(at));
    }
    match times.len() {
        0 => Err(usage(format!(
            "no request arrives within --duration {:?} at --rate {rate}",
            args.duration.unwrap_or(0.0)
        ))),
        n if n > ServeArgs::MOST_REQUESTS => Err(usage(format!(
            "--rate {rate} for --duration {:?} is more than {} requests",
            args.duration.unwrap_or(0.0),
            ServeArgs::MOST_REQUESTS
        ))),
        _ => Ok(times),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        bench: crate::cli::BenchArgs,
    }

    fn args(flags: &str) -> ServeArgs {
        let all = ["bench", "m", "--serve"].into_iter().chain(flags.split_whitespace());
        Flags::try_parse_from(all).unwrap_or_else(|error| panic!("{error}")).bench.load
    }

    #[test]
    fn arrivals_have_their_rate_and_depend_on_the_seed() {
        let flags = "--rate 50 --requests 20000 --seed";
        let times = |seed: &str| arrivals(&args(&format!("{flags} {seed}"))).unwrap();
        let first = times("1");
        assert_eq!(first, times("1"));
        assert_ne!(first, times("2"));
        assert!(first.is_sorted());
        let rate = first.len() as f64 / first.last().unwrap().as_secs_f64();
        assert!((rate / 50.0 - 1.0).abs() < 0.03, "{rate}");
        // Independent arrivals: the deviation of the gaps is their mean.
        let gaps: Vec<f64> = first.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "{mean} and {variance}");
    }

    #[test]
    fn a_duration_bounds_the_arrivals() {
        let times = arrivals(&args("--rate 100 --duration 3")).unwrap();
        assert!((200..400).contains(&times.len()), "{}", times.len());
        assert!(times.iter().all(|at| at.as_secs_f64() < 3.0));
        for (flags, part) in [
            ("--rate all --duration 3", "--duration 3 needs requests per second, not --rate all"),
            ("--rate one --duration 3", "not --rate one"),
            ("--rate 1000000 --duration 86400", "more than 100000 requests"),
            ("--rate 0.000001 --duration 0.001", "no request arrives within --duration 0.001"),
        ] {
            let error = arrivals(&args(flags)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(arrivals(&args("--rate all --requests 3")).unwrap(), [Duration::ZERO; 3]);
    }

    #[test]
    fn prompts_share_their_prefix_only() {
        let args = args("--requests 40 --prompt-length uniform:20 --shared-prefix 32 --sharing 0.5");
        let load = Load::draw(&args).unwrap();
        let sharing = load.requests.iter().filter(|request| request.shares).count();
        assert!((8..32).contains(&sharing), "{sharing}");
        let prompts: Vec<Vec<u32>> = (0..40).map(|index| load.prompt(index, 1000)).collect();
        let prefix = tokens(1, Purpose::Prefix as u64, 32, 1000);
        for (request, prompt) in load.requests.iter().zip(&prompts) {
            assert_eq!(prompt.len(), request.prompt);
            assert!(prompt.iter().all(|id| *id < 1000));
            assert_eq!(prompt.starts_with(&prefix), request.shares);
            assert!(!request.shares || prompt.len() > 32);
        }
        let own = |prompt: &[u32]| prompt[prompt.len() - 1];
        assert!(prompts.iter().any(|prompt| own(prompt) != own(&prompts[0])));
        assert_eq!(load.requests, Load::draw(&args).unwrap().requests, "the same load again");
    }

    #[test]
    fn long_requests_are_shortened_to_the_context() {
        let args = args("--requests 500 --prompt-length exponential:100 --output-length exponential:50");
        let mut load = Load::draw(&args).unwrap();
        assert!(load.longest() > 256);
        load.fit(256, &args).unwrap();
        assert!(load.shortened > 0 && load.shortened < 250, "{}", load.shortened);
        assert!(load.longest() <= 256);
        assert!(load.requests.iter().all(|request| request.prompt > 0 && request.output > 0));
        let error = load.fit(149, &args).unwrap_err().to_string();
        for part in ["--prompt-length exponential:100", "a context of 150 tokens, the context is 149"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
