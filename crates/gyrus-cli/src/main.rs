//! The command `gyrus`: a thin layer over the engine.
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 success, 1 failure, 2 wrong usage, 128 plus the
//! number of the signal that ended it: 130 SIGINT, 143 SIGTERM, 129 SIGHUP.

#![forbid(unsafe_code)]
// These macros panic if a stream cannot be written to. Results go through `Write`, the rest through `diagnostics`.
#![deny(clippy::print_stdout, clippy::print_stderr, clippy::disallowed_macros)]

mod answer;
mod bench;
mod cache;
mod catalogue;
mod chat;
mod cli;
mod context_shift;
mod decoding;
mod diagnostics;
mod display;
mod doctor;
mod embed;
mod environment;
mod fetch;
mod foreign;
mod inspect;
mod interrupt;
mod json;
mod load;
mod logits;
mod models;
mod npy;
mod options;
mod output;
mod perplexity;
mod pieces;
mod profile;
mod progress;
mod pull;
mod rerank;
mod resolve;
mod rope;
mod run;
mod samplers;
mod screen;
#[cfg(feature = "serve")]
mod serve;
mod session_file;
mod size;
mod source;
mod svg;
mod synthetic;
mod template;
mod text;
mod tokenize;
mod trace;
mod transcribe;
mod tune;
mod usage;
mod verify;
mod wrap;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches};

fn main() -> ExitCode {
    let done = match parse() {
        Ok(command) => {
            display::hide(&command);
            run(command)
        }
        Err(error) if error.use_stderr() => {
            refuse(&error);
            return ExitCode::from(2);
        }
        // Help and version are results.
        Err(error) => write!(anstream::stdout().lock(), "{}", error.render().ansi()).map_err(Into::into),
    };
    // Output without a final newline is still buffered, and an error of writing it would be lost at exit.
    match done.and_then(|()| Ok(io::stdout().flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        // A closed pipe (`gyrus inspect … | head`) is not a failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) if error.is::<interrupt::Interrupted>() => ExitCode::from(130),
        Err(error) => {
            diagnostics::error(&error);
            if error.is::<usage::Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn parse() -> Result<cli::Command, clap::Error> {
    let mut command = cli::without_empty_variables(cli::Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    cli::Cli::from_arg_matches(&matches).map(|cli| cli.command)
}

/// Prints the error of the argument parser.
fn refuse(error: &clap::Error) {
    let text = error.render();
    // The error quotes arguments. If one has control characters, all of it is escaped and printed without style.
    let is_hostile = |argument: std::ffi::OsString| argument.to_string_lossy().contains(foreign::acts);
    let _ = if std::env::args_os().any(is_hostile) {
        let plain = text.to_string();
        let lines: Vec<String> = plain.lines().map(|line| foreign::Foreign(line).to_string()).collect();
        writeln!(io::stderr().lock(), "{}", lines.join("\n"))
    } else {
        write!(anstream::stderr().lock(), "{}", text.ansi())
    };
}

fn run(command: cli::Command) -> Result<()> {
    match command {
        cli::Command::Run(args) => run::run(&args),
        cli::Command::Complete(args) => run::run(&cli::RunArgs { raw: true, ..args }),
        cli::Command::Chat(args) => chat::run(&args),
        #[cfg(feature = "serve")]
        cli::Command::Serve(args) => serve::run(*args),
        cli::Command::Embed(args) => embed::run(&args),
        cli::Command::Rerank(args) => rerank::run(&args),
        cli::Command::Bench(args) => bench::run(&args),
        cli::Command::Profile(args) => profile::run(&args),
        cli::Command::Tune(args) => tune::run(&args),
        cli::Command::Transcribe(args) => transcribe::run(&args),
        cli::Command::Perplexity(args) => perplexity::run(&args),
        cli::Command::Logits(args) => logits::run(&args),
        cli::Command::Trace(args) => trace::run(&args),
        cli::Command::Inspect(args) => inspect::run(&args),
        cli::Command::Rope(args) => rope::run(&args),
        cli::Command::Tokenize(args) => tokenize::tokenize(&args),
        cli::Command::Detokenize(args) => tokenize::detokenize(&args),
        cli::Command::Template(args) => template::run(&args),
        cli::Command::Pull(args) => pull::run(&args),
        cli::Command::Models(args) => models::run(&args),
        cli::Command::Cache(args) => cache::command::run(&args),
        cli::Command::Doctor(args) => doctor::run(&args),
        cli::Command::Completions(args) => completions(&args),
    }
}

fn completions(args: &cli::CompletionsArgs) -> Result<()> {
    // Written in one piece: the generator panics on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::Cli::command(), "gyrus", &mut script);
    Ok(io::stdout().write_all(&script)?)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
