//! The command line: one thin door to the engine.
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130
//! interrupted.

#![forbid(unsafe_code)]

mod answer;
mod bench;
mod cache;
mod catalogue;
mod chat;
mod cli;
mod doctor;
mod environment;
mod fetch;
mod inspect;
mod interrupt;
mod load;
mod logits;
mod models;
mod options;
mod perplexity;
mod profile;
mod progress;
mod pull;
mod resolve;
mod rope;
mod run;
mod source;
mod svg;
mod synthetic;
mod template;
mod text;
mod tokenize;
mod tune;
mod verify;
mod wrap;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

fn main() -> ExitCode {
    let result = match cli::Cli::parse().command {
        cli::Command::Run(args) => run::run(&args),
        cli::Command::Complete(args) => run::run(&cli::RunArgs { raw: true, ..args }),
        cli::Command::Chat(args) => chat::run(&args),
        cli::Command::Bench(args) => bench::run(&args),
        cli::Command::Profile(args) => profile::run(&args),
        cli::Command::Tune(args) => tune::run(&args),
        cli::Command::Perplexity(args) => perplexity::run(&args),
        cli::Command::Logits(args) => logits::run(&args),
        cli::Command::Inspect(args) => inspect::run(&args),
        cli::Command::Rope(args) => rope::run(&args),
        cli::Command::Tokenize(args) => tokenize::tokenize(&args),
        cli::Command::Detokenize(args) => tokenize::detokenize(&args),
        cli::Command::Template(args) => template::run(&args),
        cli::Command::Pull(args) => pull::run(&args),
        cli::Command::Models(args) => models::run(&args),
        cli::Command::Doctor(args) => doctor::run(&args),
        cli::Command::Completions(args) => completions(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough (`gyrus inspect … | head`) is no failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<interrupt::Interrupted>() => ExitCode::from(130),
        Err(error) => {
            anstream::eprintln!("{}error:{} {error:#}", text::BAD.render(), text::BAD.render_reset());
            ExitCode::FAILURE
        }
    }
}

fn completions(args: &cli::CompletionsArgs) -> anyhow::Result<()> {
    // Written in one piece: the generator panics on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::Cli::command(), "gyrus", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
