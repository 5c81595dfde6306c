//! `gyrus serve`: models over HTTP.

mod details;
mod settings;
mod source;

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use gyrus_server::log::{self, LogFormat};
use gyrus_server::{Config, Server, Source as _};

use self::source::Models;
use crate::cli::{LogArg, ServerArgs};
use crate::environment::Environment;
use crate::{diagnostics, interrupt, text};

pub(crate) fn run(args: ServerArgs) -> Result<()> {
    let args = match &args.config {
        Some(path) => settings::with_file(path)?,
        None => args,
    };
    let models = Models::new(&args, Environment::of_process())?;
    let listed = models.list();
    let has_first = !args.model.is_empty() || args.synthetic.is_some();
    let preload: Vec<String> =
        listed.iter().take(usize::from(has_first)).map(|one| one.name.clone()).collect();
    if !listed.iter().any(|one| one.is_present) {
        bail!("there is no model to serve: name one, or a folder with --models");
    }
    for (alias, name) in &args.alias {
        if !listed.iter().any(|one| one.name == *name) {
            bail!("--alias {alias}={name}: there is no model {name:?}");
        }
    }
    if args.check {
        models.check()?;
    }
    let server = Server::new(config(&args), Arc::new(models))?;
    if args.check {
        if let Some(problem) = server.unknown_models(&listed).first() {
            bail!("--keys: {problem}");
        }
        report(&args, &server, &listed);
        return Ok(());
    }
    let format = match args.log {
        LogArg::Pretty => LogFormat::Pretty,
        LogArg::Json => LogFormat::Json,
    };
    log::start(format, &args.log_level).map_err(|error| anyhow!("--log-level: {error}"))?;
    let scheme = if args.tls_key.is_some() { "https" } else { "http" };
    server
        .run(preload, interrupt::first_signal(), |address| {
            if args.log == LogArg::Pretty {
                let url = format!("{scheme}://{address}");
                diagnostics::aside(format!("serving at {url}/v1 · chat at {url} · Ctrl-C stops"));
            }
        })
        .context("the server stopped")
}

fn config(args: &ServerArgs) -> Config {
    Config {
        listen: args.listen,
        insecure: args.insecure,
        keys: args.keys.clone(),
        api_key: args.api_key.clone(),
        tls_certificate: args.tls_certificate.clone(),
        tls_key: args.tls_key.clone(),
        cors: args.cors.clone(),
        hosts: args.host_name.clone(),
        parallel: args.parallel.into(),
        queue: args.queue as usize,
        max_tokens: args.max_tokens,
        max_body: usize::try_from(args.max_body).unwrap_or(usize::MAX),
        connections: args.connections as usize,
        header_timeout: args.header_timeout,
        body_timeout: args.body_timeout,
        write_timeout: args.write_timeout,
        request_timeout: args.request_timeout,
        drain: args.drain,
        keep_alive: args.keep_alive,
        memory: args.memory,
        aliases: args.alias.iter().cloned().collect(),
        manage: !args.no_manage,
        threads: args.server_threads.into(),
        log_prompts: args.log_prompts,
    }
}

/// Says what `--check` has found.
fn report(args: &ServerArgs, server: &Server, listed: &[gyrus_server::Listed]) {
    let keys = match server.keys() {
        0 => "no API keys".to_owned(),
        1 => "1 API key".to_owned(),
        n => format!("{n} API keys"),
    };
    let tls = if args.tls_key.is_some() { ", HTTPS" } else { "" };
    diagnostics::aside(format!("the settings are sound: {}, {keys}{tls}", args.listen));
    for one in listed.iter().filter(|one| one.is_present) {
        diagnostics::aside(format!(
            "{} · {}",
            crate::foreign::one_line(&one.name, 80),
            text::bytes(one.bytes)
        ));
    }
}
