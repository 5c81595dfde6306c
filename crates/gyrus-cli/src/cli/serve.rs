//! Arguments of `gyrus bench --serve`.

use std::path::PathBuf;

use clap::Args;

use crate::bench::{Arrivals, Lengths};

/// The most requests of a load.
const MOST_REQUESTS: u32 = 100_000;

/// A load of requests that arrive whether or not earlier ones are done.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Load options")]
pub(crate) struct ServeArgs {
    /// Measure a load of many requests: throughput, time to first token and between tokens. With the URL of a server that
    /// speaks OpenAI's API, such as http://127.0.0.1:8080, the load is sent there, for the model MODEL of that server
    #[arg(long, value_name = "URL", num_args = 0..=1, default_missing_value = "", value_parser = address, conflicts_with_all = ["prompts", "write", "prompt_tokens", "gen_tokens", "depth", "sequences", "repetitions"])]
    pub(crate) serve: Option<String>,

    /// Requests per second, at random (Poisson) times; `all` for all at once, `one` for one after another
    #[arg(long, value_name = "RATE", default_value_t = Arrivals::AllAtOnce, requires = "serve")]
    pub(crate) rate: Arrivals,

    /// Number of requests
    #[arg(long, value_name = "N", default_value_t = 64, requires = "serve", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_REQUESTS)))]
    pub(crate) requests: u32,

    /// Requests arrive for this long, instead of a number of them
    #[arg(long, value_name = "SECONDS", requires = "serve", conflicts_with = "requests", value_parser = seconds)]
    pub(crate) duration: Option<f64>,

    /// Tokens of a prompt: N, or KIND:MEAN with fixed, uniform, exponential or log-normal
    #[arg(long, value_name = "LENGTH", default_value_t = Lengths::fixed(512), requires = "serve")]
    pub(crate) prompt_length: Lengths,

    /// Tokens to generate, likewise
    #[arg(long, value_name = "LENGTH", default_value_t = Lengths::fixed(128), requires = "serve")]
    pub(crate) output_length: Lengths,

    /// Tokens at the start of a prompt that all requests which share have in common
    #[arg(long, value_name = "TOKENS", default_value_t = 0, requires = "serve", value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    pub(crate) shared_prefix: u32,

    /// The share of requests that have the common prefix, from 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, requires = "shared_prefix", value_parser = share)]
    pub(crate) sharing: f64,

    /// The most requests inside the engine; others wait outside
    #[arg(long, value_name = "N", default_value_t = 256, requires = "serve", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) concurrency: u16,

    /// Seed of arrivals, lengths, prompts and sampling
    #[arg(long, value_name = "N", default_value_t = 1, requires = "serve")]
    pub(crate) seed: u64,

    /// Instead of a load: one prompt of this many tokens joins sequences that decode
    #[arg(long, value_name = "TOKENS", requires = "serve", value_parser = clap::value_parser!(u32).range(1..=1 << 20), conflicts_with_all = ["rate", "requests", "duration", "output_length", "shared_prefix", "concurrency", "svg"])]
    pub(crate) join: Option<u32>,

    /// Sequences that decode while the prompt joins
    #[arg(long, value_name = "N", default_value_t = 8, requires = "join", value_parser = clap::value_parser!(u8).range(1..=127))]
    pub(crate) running: u8,

    /// Draw the times and the throughput into an SVG file
    #[arg(long, value_name = "FILE", requires = "serve")]
    pub(crate) svg: Option<PathBuf>,
}

/// The URL of a server; empty for the library.
fn address(text: &str) -> Result<String, String> {
    let is_url = text.is_empty() || text.starts_with("http://") || text.starts_with("https://");
    let url = is_url.then(|| text.trim_end_matches('/').to_owned());
    url.ok_or_else(|| {
        "a URL such as http://127.0.0.1:8080 is needed; a model comes before --serve".to_owned()
    })
}

fn seconds(text: &str) -> Result<f64, String> {
    let in_range = |seconds: &f64| *seconds > 0.0 && *seconds <= 86_400.0;
    text.parse().ok().filter(in_range).ok_or_else(|| "seconds above 0, at most 86400, are needed".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    let in_range = |share: &f64| (0.0..=1.0).contains(share);
    text.parse().ok().filter(in_range).ok_or_else(|| "a number from 0 to 1 is needed".to_owned())
}

impl ServeArgs {
    /// The most requests that may arrive.
    pub(crate) const MOST_REQUESTS: usize = MOST_REQUESTS as usize;
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        bench: super::super::BenchArgs,
    }

    fn parse(flags: &str) -> Result<ServeArgs, String> {
        let all = ["bench", "m"].into_iter().chain(flags.split_whitespace());
        Flags::try_parse_from(all).map(|flags| flags.bench.load).map_err(|error| error.to_string())
    }

    #[test]
    fn a_load_is_described_by_flags() {
        let args = parse(
            "--serve --rate 2.5 --duration 10 --prompt-length log-normal:300 --output-length uniform:40 \
             --shared-prefix 64 --sharing 0.25 --concurrency 8 --seed 7",
        );
        let args = args.unwrap();
        assert_eq!((args.rate, args.duration), (Arrivals::Poisson(2.5), Some(10.0)));
        assert_eq!(args.prompt_length.to_string(), "log-normal:300");
        assert_eq!((args.shared_prefix, args.sharing, args.concurrency, args.seed), (64, 0.25, 8, 7));
        let join = parse("--serve --join 4000 --running 3 --prompt-length 64").unwrap();
        assert_eq!((join.join, join.running), (Some(4000), 3));
        assert!(parse("").unwrap().serve.is_none());
        let served = parse("--serve http://127.0.0.1:8080/").unwrap();
        assert_eq!(served.serve.as_deref(), Some("http://127.0.0.1:8080"));
    }

    #[test]
    fn wrong_flags_are_named_with_their_values() {
        for (flags, parts) in [
            ("--serve elsewhere", ["--serve", "'elsewhere'"]),
            ("--serve --rate 0", ["--rate", "'0'"]),
            ("--serve --rate nan", ["--rate", "'nan'"]),
            ("--serve --rate both", ["--rate", "'both'"]),
            ("--serve --requests 0", ["--requests", "0 is not in 1..=100000"]),
            ("--serve --requests 100001", ["--requests", "100001"]),
            ("--serve --duration inf", ["--duration", "'inf'"]),
            ("--serve --prompt-length 0", ["--prompt-length", "'0'"]),
            ("--serve --prompt-length normal:9", ["--prompt-length", "'normal:9'"]),
            ("--serve --output-length uniform:", ["--output-length", "'uniform:'"]),
            ("--serve --shared-prefix 9 --sharing 1.1", ["--sharing", "'1.1'"]),
            ("--serve --concurrency 2000", ["--concurrency", "2000"]),
            ("--serve --join 0", ["--join", "0"]),
            ("--serve --duration 1 --requests 4", ["--duration", "--requests"]),
            ("--serve --join 10 --rate 4", ["--join", "--rate"]),
            ("--serve -s 4", ["--serve", "--sequences"]),
            ("--rate 4", ["--serve", "required"]),
            ("--serve --sharing 0.5", ["--shared-prefix", "required"]),
        ] {
            let error = parse(flags).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{flags}: {error}");
        }
    }
}
