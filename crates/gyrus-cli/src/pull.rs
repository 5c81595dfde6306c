//! `gyrus pull`: downloads a model into the cache.

use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::Result;

use crate::catalogue::Named;
use crate::cli::PullArgs;
use crate::diagnostics;
use crate::environment::Environment;
use crate::fetch::{self, Existing};
use crate::foreign;

pub(crate) fn run(args: &PullArgs) -> Result<()> {
    let environment = Environment::of_process();
    let model = Named::parse(&args.name)?;
    let existing = match (args.force, args.verify) {
        (true, _) => Existing::Replace,
        (_, true) => Existing::Verify,
        _ => Existing::Use,
    };
    let pulled = fetch::pull(&model, existing, &environment)?;
    match existing {
        _ if pulled.fresh => {}
        Existing::Verify => diagnostics::about(&args.name, "already in the cache, with the right checksum"),
        _ => diagnostics::about(&args.name, "already in the cache"),
    }
    print(&pulled.path)
}

/// Prints a path: escaped on a terminal, byte by byte elsewhere.
fn print(path: &Path) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        writeln!(out, "{}", foreign::path(path))?;
    } else {
        out.write_all(path.as_os_str().as_encoded_bytes())?;
        writeln!(out)?;
    }
    Ok(())
}
