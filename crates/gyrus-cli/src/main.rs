//! The command line: one thin door to the engine.
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage.

#![forbid(unsafe_code)]

mod cache;
mod catalogue;
mod cli;
mod doctor;
mod environment;
mod fetch;
mod inspect;
mod models;
mod pull;
#[cfg_attr(not(test), expect(dead_code, reason = "the commands that run models are its callers"))]
mod resolve;
mod text;

use std::io;
use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let result = match cli::Cli::parse().command {
        cli::Command::Inspect(args) => inspect::run(&args),
        cli::Command::Pull(args) => pull::run(&args),
        cli::Command::Models(args) => models::run(&args),
        cli::Command::Doctor(args) => doctor::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough (`gyrus inspect … | head`) is no failure.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            anstream::eprintln!("{}error:{} {error:#}", text::BAD.render(), text::BAD.render_reset());
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
