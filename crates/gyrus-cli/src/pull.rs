//! `gyrus pull`: gets a model into the cache.

use std::io::Write;

use anyhow::Result;

use crate::catalogue::Named;
use crate::cli::PullArgs;
use crate::environment::Environment;
use crate::fetch::{self, Existing, progress::note};

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
        Existing::Verify => note(&args.name, "already in the cache, with the right checksum"),
        _ => note(&args.name, "already in the cache"),
    }
    writeln!(anstream::stdout(), "{}", pulled.path.display())?;
    Ok(())
}
