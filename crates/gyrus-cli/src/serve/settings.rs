//! Settings of a server from a TOML file. Each key is the name of a flag, so the file has everything that the flags have.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use clap::{CommandFactory, FromArgMatches};
use toml::{Table, Value};

use crate::cli::{self, Command, ServerArgs};
use crate::usage::usage;

/// The arguments of the process, with those of the file before them, so that flags beat the file.
pub(super) fn with_file(path: &Path) -> Result<ServerArgs> {
    // The command's own name and `serve` come first.
    let own = std::env::args_os().skip(2);
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    merge(&text, own).map_err(|error| error.context(path.display().to_string()))
}

fn merge(text: &str, own: impl Iterator<Item = OsString>) -> Result<ServerArgs> {
    // The parser's own message would quote the line, which may hold a key.
    let table: Table = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count().max(1));
        anyhow!("not TOML, line {line}: {}", error.message())
    })?;
    let mut arguments: Vec<OsString> = ["gyrus", "serve"].map(OsString::from).to_vec();
    arguments.extend(flags(&table)?.into_iter().map(OsString::from));
    arguments.extend(own);
    let mut command = cli::without_empty_variables(cli::Cli::command());
    let matches = command.try_get_matches_from_mut(arguments);
    // Wrong values are wrong usage, wherever they were written.
    let matches = matches.map_err(|error| usage(error.to_string().trim_end()))?;
    match cli::Cli::from_arg_matches(&matches).map(|cli| cli.command) {
        Ok(Command::Serve(args)) => Ok(*args),
        _ => bail!("the settings are not those of `gyrus serve`"),
    }
}

/// The flags that the settings of a file stand for.
fn flags(table: &Table) -> Result<Vec<String>> {
    let command = cli::Cli::command();
    let command = command.find_subcommand("serve").context("there is no `gyrus serve`")?;
    let mut flags = Vec::new();
    for (key, value) in table {
        let name = key.replace('_', "-");
        let is_known =
            command.get_arguments().any(|argument| argument.get_long() == Some(&name)) || name == "model";
        if !is_known || matches!(name.as_str(), "config" | "check" | "help" | "version") {
            return Err(usage(format!("there is no setting {key:?}; `gyrus serve --help` lists them")));
        }
        add(&mut flags, &name, key, value)?;
    }
    Ok(flags)
}

fn add(flags: &mut Vec<String>, name: &str, key: &str, value: &Value) -> Result<()> {
    let text = match value {
        Value::Boolean(true) => {
            flags.push(format!("--{name}"));
            return Ok(());
        }
        Value::Boolean(false) => return Ok(()),
        Value::Array(list) => return list.iter().try_for_each(|value| add(flags, name, key, value)),
        Value::Table(table) => {
            for (name_of, value) in table {
                let Value::String(value) = value else {
                    return Err(usage(format!("{key}.{name_of}: a string is needed")));
                };
                flags.push(format!("--{name}={name_of}={value}"));
            }
            return Ok(());
        }
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Datetime(_) => return Err(usage(format!("{key}: a date is of no use here"))),
    };
    // The models are arguments without a name. One that begins with a dash would be taken for a flag.
    match name {
        "model" if text.starts_with('-') => Err(usage(format!("{key}: {text:?} is no model"))),
        "model" => {
            flags.push(text);
            Ok(())
        }
        _ => {
            flags.push(format!("--{name}={text}"));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(text: &str, own: &[&str]) -> Result<ServerArgs, String> {
        merge(text, own.iter().map(OsString::from)).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn flags_beat_the_file() {
        let text = "
            model = ['tales-7m']
            listen = '127.0.0.1:9000'
            queue = 3
            drain = 1.5
            cors = ['https://a.example', 'https://b.example']
            log_prompts = true
            insecure = false
            max-body = '1MiB'
            [alias]
            gpt-4o = 'tales-7m'
        ";
        let args = merged(text, &["--queue", "5"]).unwrap();
        assert_eq!((args.model.len(), args.listen.port(), args.queue), (1, 9000, 5));
        assert_eq!((args.drain.as_millis(), args.max_body, args.cors.len()), (1500, 1 << 20, 2));
        assert!(args.log_prompts && !args.insecure);
        assert_eq!(args.alias, [("gpt-4o".to_owned(), "tales-7m".to_owned())]);
    }

    #[test]
    fn wrong_settings_are_named() {
        for (text, part) in [
            ("quue = 3", "\"quue\""),
            ("check = true", "\"check\""),
            ("queue = 'many'", "--queue"),
            ("listen = 1979-05-27", "listen"),
            ("model = '--insecure'", "is no model"),
            ("alias = { a = 1 }", "alias.a"),
            ("queue = ", "TOML"),
            ("queue = 1\napi_key = 'sk-0123456789abcdef\nlisten = 2", "line 2"),
            ("api_key = sk-0123456789abcdef", "line 1"),
        ] {
            let error = merged(text, &[]).unwrap_err();
            assert!(error.contains(part) && !error.contains("0123456789"), "{text}: {error}");
        }
    }
}
