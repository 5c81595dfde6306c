//! The files of sentence-transformers beside a model: `modules.json`, the configurations of its modules, and prompts.

use std::collections::BTreeMap;

use gyrus_formats::Checkpoint;
use serde_json::Value;

use super::pooling::Pooling;
use super::settings::Settings;
use crate::Error;

/// A file beside the model as JSON.
pub(super) fn json(model: &Checkpoint, name: &str) -> Result<Option<Value>, Error> {
    let Some(bytes) = model.beside(name)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes).map_err(|error| Error::Setting(format!("{name}: {error}")))?;
    Ok(Some(value))
}

/// The name of a module's configuration. The folder of the model itself is empty.
fn config_name(folder: &str) -> String {
    if folder.is_empty() { "config.json".to_owned() } else { format!("{folder}/config.json") }
}

/// A module's configuration.
pub(super) fn config(model: &Checkpoint, folder: &str) -> Result<Option<Value>, Error> {
    json(model, &config_name(folder))
}

/// The modules of a model: the last part of each type's name, and its folder.
pub(super) fn modules(model: &Checkpoint) -> Result<Option<Vec<(String, String)>>, Error> {
    let Some(value) = json(model, "modules.json")? else { return Ok(None) };
    let wrong = || Error::Setting("modules.json: it is not a list of modules".to_owned());
    let module = |module: &Value| {
        let kind = module.get("type")?.as_str()?.rsplit('.').next()?.to_owned();
        let folder = module.get("path").and_then(Value::as_str).unwrap_or("").to_owned();
        Some((kind, folder))
    };
    let modules: Option<Vec<_>> = value.as_array().ok_or_else(wrong)?.iter().map(module).collect();
    let modules = modules.ok_or_else(wrong)?;
    for (_, folder) in &modules {
        // A folder of the model, and no other.
        let is_plain =
            folder.chars().all(|c| c.is_alphanumeric() || "_-.".contains(c)) && !folder.contains("..");
        if !is_plain {
            return Err(Error::Setting(format!("modules.json: '{}' is no folder", folder.escape_debug())));
        }
    }
    Ok(Some(modules))
}

pub(super) fn read(model: &Checkpoint) -> Result<Settings, Error> {
    let mut settings = Settings { include_prompt: true, ..Settings::default() };
    for (kind, folder) in modules(model)?.unwrap_or_default() {
        match kind.as_str() {
            "Transformer" if folder.is_empty() => {}
            "Transformer" => {
                return Err(Error::Unsupported(format!(
                    "modules.json: a model in the folder '{}'",
                    folder.escape_debug()
                )));
            }
            "Pooling" => pooling(model, &folder, &mut settings)?,
            "Normalize" => settings.normalize = true,
            // It changes nothing after training.
            "Dropout" => {}
            // Modules of rerankers.
            "LogitScore" => {}
            other => {
                let other = other.escape_debug();
                return Err(Error::Unsupported(format!("modules.json: a module '{other}'")));
            }
        }
    }
    prompts(model, &mut settings)?;
    if let Some(config) = json(model, "sentence_bert_config.json")? {
        settings.max_tokens = limit(&config["max_seq_length"]);
    }
    if settings.max_tokens.is_none()
        && let Some(config) = json(model, "tokenizer_config.json")?
    {
        settings.max_tokens = limit(&config["model_max_length"]);
    }
    Ok(settings)
}

/// A number of tokens. Tokenizers without a limit have a number beyond any.
fn limit(value: &Value) -> Option<usize> {
    value.as_u64().filter(|tokens| (1..1 << 27).contains(tokens)).map(|tokens| tokens as usize)
}

fn pooling(model: &Checkpoint, folder: &str, settings: &mut Settings) -> Result<(), Error> {
    let name = config_name(folder);
    let Some(config) = json(model, &name)? else {
        return Err(Error::Setting(format!("{name}: the file is missing")));
    };
    let mut modes: Vec<String> = match config.get("pooling_mode") {
        Some(Value::String(mode)) => vec![mode.clone()],
        Some(Value::Array(modes)) => modes.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    if modes.is_empty() {
        let flags = config.as_object().into_iter().flatten();
        let set = flags.filter(|(key, value)| key.starts_with("pooling_mode_") && **value == true);
        modes.extend(set.map(|(key, _)| key["pooling_mode_".len()..].to_owned()));
    }
    settings.pooling = match &modes.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["mean" | "mean_tokens"] => Some(Pooling::Mean),
        ["cls" | "cls_token"] => Some(Pooling::First),
        ["lasttoken" | "last"] => Some(Pooling::Last),
        [] => return Err(Error::Setting(format!("{name}: it names no pooling"))),
        others => {
            let others = others.join(", ");
            return Err(Error::Unsupported(format!("{name}: pooling by {}", others.escape_debug())));
        }
    };
    settings.include_prompt = config.get("include_prompt").and_then(Value::as_bool).unwrap_or(true);
    Ok(())
}

fn prompts(model: &Checkpoint, settings: &mut Settings) -> Result<(), Error> {
    const FILE: &str = "config_sentence_transformers.json";
    let Some(config) = json(model, FILE)? else { return Ok(()) };
    if let Some(prompts) = config.get("prompts").and_then(Value::as_object) {
        let prompts: Option<BTreeMap<String, String>> =
            prompts.iter().map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned()))).collect();
        settings.prompts =
            prompts.ok_or_else(|| Error::Setting(format!("{FILE}: a prompt is not a string")))?;
    }
    if let Some(name) = config.get("default_prompt_name").and_then(Value::as_str) {
        let Some(prompt) = settings.prompts.get(name) else {
            let name = name.escape_debug();
            return Err(Error::Setting(format!("{FILE}: there is no prompt '{name}', the default one")));
        };
        settings.default_prompt = Some(prompt.clone());
    }
    Ok(())
}
