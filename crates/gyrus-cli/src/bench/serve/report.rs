//! The results of a load: a table, JSON or a CSV row.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use gyrus::{Model, Statistics};
use serde::Serialize;

use super::client::Served;
use super::load::Load;
use super::quantiles::{Quantiles, gaps};
use crate::cli::ServeArgs;
use crate::load::{self, KvCache};
use crate::options::BenchOutput;
use crate::text::ratio;
use crate::{foreign, json};

/// The model that was measured, and how it was loaded.
#[derive(Debug, Serialize)]
pub(super) struct Subject {
    pub(super) model: String,
    /// Of the library; a server does not tell.
    #[serde(flatten)]
    loaded: Option<Loaded>,
    device: String,
    version: &'static str,
}

/// How the library has loaded a model.
#[derive(Debug, Serialize)]
struct Loaded {
    architecture: String,
    threads: usize,
    precision: String,
    kv_cache: KvCache,
}

impl Subject {
    pub(super) fn new(name: &str, model: &Model) -> Subject {
        Subject {
            model: name.to_owned(),
            loaded: Some(Loaded {
                architecture: model.config().architecture.clone(),
                threads: model.threads(),
                precision: format!("{:?}", model.plan().precision).to_lowercase(),
                kv_cache: KvCache::new(&model.context()),
            }),
            device: load::device(model.device()),
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// A model of a server. What device it has is not known; its address stands there.
    #[cfg(feature = "download")]
    pub(super) fn remote(name: &str, url: &str) -> Subject {
        Subject {
            model: name.to_owned(),
            loaded: None,
            device: url.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    /// The lines above a table.
    pub(super) fn print(&self, out: &mut impl Write) -> Result<()> {
        let Subject { model, loaded, device, .. } = self;
        let (model, device) = (foreign::markdown(model), foreign::markdown(device));
        let Some(Loaded { architecture, threads, precision, kv_cache }) = loaded else {
            return Ok(writeln!(out, "{model} · {device}")?);
        };
        let threads = format!("{threads} thread{}", if *threads == 1 { "" } else { "s" });
        writeln!(out, "{model} · {architecture} · {device} · {threads} · {precision}")?;
        Ok(writeln!(out, "{kv_cache}")?)
    }
}

/// The load as it was asked for.
#[derive(Debug, Serialize)]
struct Asked {
    /// Requests per second, `all` or `one`.
    rate: String,
    prompt_length: String,
    output_length: String,
    shared_prefix: u32,
    /// The share of requests that have the prefix.
    sharing: f64,
    concurrency: u16,
    sampled: bool,
    seed: u64,
    prefix_cache: Option<bool>,
}

/// The results of a load.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    pub(super) subject: Subject,
    load: Asked,
    /// From the start to the end of the last request.
    pub(super) seconds: f64,
    pub(super) requests: usize,
    pub(super) finished: usize,
    /// Requests that were not completed, by kind.
    failures: BTreeMap<&'static str, usize>,
    /// Requests that were made shorter than drawn to fit the context.
    shortened: usize,
    /// Tokens of the prompts of finished requests, and those that were in the KV cache when their requests were admitted.
    prompt_tokens: usize,
    cached_tokens: Option<u64>,
    generated_tokens: usize,
    pub(super) generated_tokens_per_second: f64,
    prompt_tokens_per_second: f64,
    requests_per_second: f64,
    /// From the arrival of a request.
    pub(super) first_token_seconds: Quantiles,
    /// Between two tokens of one request.
    pub(super) between_tokens_seconds: Quantiles,
    /// From the arrival to the admission by the scheduler.
    pub(super) queue_seconds: Quantiles,
    request_seconds: Quantiles,
    /// The share of prompt tokens that were in the KV cache.
    hit_rate: Option<f64>,
    preemptions: Option<u64>,
    steps: Option<u64>,
}

/// What a load was measured with.
pub(super) struct Measured<'a> {
    pub(super) args: &'a ServeArgs,
    pub(super) load: &'a Load,
    pub(super) sampled: bool,
    pub(super) prefix_cache: Option<bool>,
    /// The scheduler's counts before and after the load.
    pub(super) counts: Option<(Statistics, Statistics)>,
}

impl Report {
    pub(super) fn new(subject: Subject, served: &[Served], measured: &Measured<'_>) -> Report {
        let Measured { args, load, sampled, prefix_cache, counts } = measured;
        let finished: Vec<&Served> = served.iter().filter(|one| one.failure.is_none()).collect();
        let mut failures = BTreeMap::new();
        for failure in served.iter().filter_map(|one| one.failure.as_ref()) {
            *failures.entry(failure.kind).or_insert(0) += 1;
        }
        let since_arrival = |time: fn(&Served) -> Option<Duration>| {
            let times = finished.iter().filter_map(|one| Some((one, time(one)?)));
            let times = times.map(|(one, time)| time.saturating_sub(one.arrival).as_secs_f64());
            Quantiles::new(&times.collect::<Vec<_>>())
        };
        let between: Vec<f64> = finished.iter().flat_map(|one| gaps(&one.tokens)).collect();
        let seconds = served.iter().map(|one| one.end.as_secs_f64()).fold(0.0, f64::max);
        let prompt_tokens = finished.iter().map(|one| one.prompt).sum();
        let generated_tokens = finished.iter().map(|one| one.tokens.len()).sum();
        let count =
            |of: fn(&Statistics) -> u64| counts.as_ref().map(|(before, after)| of(after) - of(before));
        let cached_tokens = count(|all| all.cached_tokens);
        Report {
            subject,
            load: Asked {
                rate: args.rate.to_string(),
                prompt_length: args.prompt_length.to_string(),
                output_length: args.output_length.to_string(),
                shared_prefix: args.shared_prefix,
                sharing: args.sharing,
                concurrency: args.concurrency,
                sampled: *sampled,
                seed: args.seed,
                prefix_cache: *prefix_cache,
            },
            seconds,
            requests: served.len(),
            finished: finished.len(),
            failures,
            shortened: load.shortened,
            prompt_tokens,
            cached_tokens,
            generated_tokens,
            generated_tokens_per_second: ratio(generated_tokens as f64, seconds),
            prompt_tokens_per_second: ratio(prompt_tokens as f64, seconds),
            requests_per_second: ratio(finished.len() as f64, seconds),
            first_token_seconds: since_arrival(|one| one.tokens.first().copied()),
            between_tokens_seconds: Quantiles::new(&between),
            queue_seconds: since_arrival(|one| one.admitted),
            request_seconds: since_arrival(|one| Some(one.end)),
            hit_rate: cached_tokens
                .zip(count(|all| all.prompt_tokens))
                .map(|(cached, all)| ratio(cached as f64, all as f64)),
            preemptions: count(|all| all.preemptions),
            steps: count(|all| all.steps),
        }
    }

    /// The load in words.
    pub(super) fn load(&self) -> String {
        let Asked { rate, prompt_length, output_length, shared_prefix, sharing, .. } = &self.load;
        let arrivals = match rate.as_str() {
            "all" => "all at once".to_owned(),
            "one" => "one after another".to_owned(),
            rate => format!("{rate} a second"),
        };
        let shared = match shared_prefix {
            0 => String::new(),
            n => format!(", {n} in common for {:.0} % of them", 100.0 * sharing),
        };
        let how = if self.load.sampled { "temperature 0.8" } else { "greedy" };
        let requests = self.requests;
        format!(
            "{requests} requests, {arrivals} · prompts of {prompt_length} tokens{shared} · {output_length} generated, {how}"
        )
    }

    /// Prints the results.
    pub(super) fn print(&self, output: BenchOutput) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match output {
            BenchOutput::Json => json::pretty(&mut out, self)?,
            BenchOutput::Csv => self.csv(&mut out)?,
            BenchOutput::Md => self.table(&mut out)?,
        }
        Ok(())
    }

    fn table(&self, out: &mut impl Write) -> Result<()> {
        self.subject.print(out)?;
        writeln!(out, "{}\n", self.load())?;
        writeln!(out, "| | |\n|---|---:|")?;
        let failures: Vec<String> = self.failures.iter().map(|(kind, n)| format!("{n} × {kind}")).collect();
        let failures = if failures.is_empty() { "none".to_owned() } else { failures.join(", ") };
        let batch = self.steps.map(|steps| ratio(self.generated_tokens as f64, steps as f64));
        for (name, value) in [
            ("generated tokens/s", format!("{:.1}", self.generated_tokens_per_second)),
            ("prompt tokens/s, cached ones included", format!("{:.1}", self.prompt_tokens_per_second)),
            ("requests/s", format!("{:.2}", self.requests_per_second)),
            ("time in all", format!("{:.2} s", self.seconds)),
            ("finished", format!("{} of {}", self.finished, self.requests)),
            ("failures", failures),
            ("shortened to the context", self.shortened.to_string()),
        ] {
            writeln!(out, "| {name} | {value} |")?;
        }
        for (name, value) in [
            (
                "prompt tokens from the prefix cache",
                self.hit_rate.map(|rate| format!("{:.1} %", 100.0 * rate)),
            ),
            ("preemptions", self.preemptions.map(|n| n.to_string())),
            ("sequences per decode step", batch.map(|batch| format!("{batch:.1}"))),
        ] {
            if let Some(value) = value {
                writeln!(out, "| {name} | {value} |")?;
            }
        }
        writeln!(out, "\n| | p50 | p90 | p99 | max | mean |\n|---|---:|---:|---:|---:|---:|")?;
        for (name, times) in [
            ("time to first token", &self.first_token_seconds),
            ("time between tokens", &self.between_tokens_seconds),
            ("queueing time", &self.queue_seconds),
            ("whole request", &self.request_seconds),
        ] {
            if times.count == 0 {
                continue;
            }
            let Quantiles { p50, p90, p99, max, mean, .. } = *times;
            let [p50, p90, p99, max, mean] = [p50, p90, p99, max, mean].map(milliseconds);
            writeln!(out, "| {name} | {p50} | {p90} | {p99} | {max} | {mean} |")?;
        }
        Ok(())
    }

    fn csv(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "model,device,rate,requests,finished,seconds,generated_tokens_per_second,prompt_tokens_per_second,\
             requests_per_second,hit_rate,preemptions,first_token_p50,first_token_p90,first_token_p99,\
             between_tokens_p50,between_tokens_p90,between_tokens_p99,queue_p50,queue_p90,queue_p99"
        )?;
        let Subject { model, device, .. } = &self.subject;
        let numbers = [
            self.seconds,
            self.generated_tokens_per_second,
            self.prompt_tokens_per_second,
            self.requests_per_second,
            self.hit_rate.unwrap_or(0.0),
        ];
        let times = [&self.first_token_seconds, &self.between_tokens_seconds, &self.queue_seconds];
        let times = times.into_iter().flat_map(|times| [times.p50, times.p90, times.p99]);
        let joined = |values: &mut dyn Iterator<Item = f64>| {
            values.map(|value| format!("{value:.6}")).collect::<Vec<_>>().join(",")
        };
        let (model, device) = (foreign::csv(model), foreign::csv(device));
        let (rate, requests, finished) = (&self.load.rate, self.requests, self.finished);
        let (numbers, times) = (joined(&mut numbers.into_iter()), joined(&mut times.into_iter()));
        let preemptions = self.preemptions.unwrap_or(0);
        Ok(writeln!(out, "{model},{device},{rate},{requests},{finished},{numbers},{preemptions},{times}")?)
    }
}

/// A time in milliseconds, with three digits or more.
pub(super) fn milliseconds(seconds: f64) -> String {
    match seconds * 1e3 {
        ms if ms >= 100.0 => format!("{ms:.0} ms"),
        ms if ms >= 10.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.2} ms"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::client::Failure;
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        bench: crate::cli::BenchArgs,
    }

    /// Two requests of two tokens each that were completed, and one that was refused.
    pub(in super::super) fn example() -> (Report, Vec<Served>) {
        let flags = ["bench", "m", "--serve", "--requests", "3", "--shared-prefix", "4"];
        let args = Flags::parse_from(flags).bench.load;
        let at = Duration::from_secs_f64;
        let one = |arrival: f64, tokens: [f64; 2]| Served {
            arrival: at(arrival),
            admitted: Some(at(arrival + 0.25)),
            tokens: tokens.map(at).to_vec(),
            end: at(tokens[1]),
            prompt: 10,
            failure: None,
        };
        let failure = Some(Failure { kind: "queue full", message: "full".to_owned() });
        let refused = Served { arrival: at(1.0), end: at(1.0), failure, prompt: 10, ..Served::default() };
        let served = vec![one(0.0, [0.5, 1.0]), one(1.0, [2.5, 4.0]), refused];
        let kv_cache = KvCache { bytes: 1 << 20, state_bytes: 0, total_tokens: 64, longest_sequence: 32 };
        let subject = Subject {
            model: "a \"model\"".to_owned(),
            loaded: Some(Loaded {
                architecture: "llama".to_owned(),
                threads: 2,
                precision: "fast".to_owned(),
                kv_cache,
            }),
            device: "cpu".to_owned(),
            version: "0",
        };
        let mut after = Statistics::default();
        (after.prompt_tokens, after.cached_tokens, after.preemptions, after.steps) = (20, 5, 3, 4);
        let load = Load::draw(&args).unwrap();
        let counts = Some((Statistics::default(), after));
        let measured =
            Measured { args: &args, load: &load, sampled: false, prefix_cache: Some(true), counts };
        (Report::new(subject, &served, &measured), served)
    }

    #[test]
    fn a_report_adds_up() {
        let (report, _) = example();
        let json = serde_json::to_value(&report).unwrap();
        for (path, value) in [
            ("/model", "a \"model\"".into()),
            ("/kv_cache/total_tokens", 64.into()),
            ("/load/rate", "all".into()),
            ("/load/prompt_length", "512".into()),
            ("/load/shared_prefix", 4.into()),
            ("/requests", 3.into()),
            ("/finished", 2.into()),
            ("/failures/queue full", 1.into()),
            ("/seconds", 4.0.into()),
            ("/generated_tokens", 4.into()),
            ("/generated_tokens_per_second", 1.0.into()),
            ("/prompt_tokens_per_second", 5.0.into()),
            ("/requests_per_second", 0.5.into()),
            ("/first_token_seconds/p50", 0.5.into()),
            ("/first_token_seconds/p99", 1.5.into()),
            ("/between_tokens_seconds/max", 1.5.into()),
            ("/between_tokens_seconds/count", 2.into()),
            ("/queue_seconds/p90", 0.25.into()),
            ("/request_seconds/max", 3.0.into()),
            ("/hit_rate", 0.25.into()),
            ("/preemptions", 3.into()),
        ] {
            assert_eq!(json.pointer(path), Some::<&serde_json::Value>(&value), "{path}: {json:#}");
        }
        let mut table = Vec::new();
        report.table(&mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        for part in [
            "KV cache: 1.00 MiB, 64 tokens in total, longest sequence 32\n",
            "3 requests, all at once · prompts of 512 tokens, 4 in common for 100 % of them · 128 generated, greedy\n",
            "| failures | 1 × queue full |",
            "| finished | 2 of 3 |",
            "| prompt tokens from the prefix cache | 25.0 % |",
            "| time to first token | 500 ms | 1500 ms | 1500 ms | 1500 ms | 1000 ms |",
        ] {
            assert!(table.contains(part), "{part}: {table}");
        }
        let mut csv = Vec::new();
        report.csv(&mut csv).unwrap();
        let csv = String::from_utf8(csv).unwrap();
        let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [20, 20], "{csv}");
    }
}
