//! Models over Ollama's API: lists and descriptions.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::response::Response;
use gyrus::tools::knows_tools;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::failure::{Failure, json_response};
use crate::fields::Fields;
use crate::models::{Details, Listed, Purpose};
use crate::routes::Call;
use crate::time;

/// The version of Ollama whose API is followed. Clients compare it to know what they can ask for, so it is not this
/// server's own.
const API_VERSION: &str = "0.12.0";

/// `/api/version`.
pub(crate) async fn version(_: Call) -> Result<Response, Failure> {
    Ok(json_response(&json!({ "version": API_VERSION, "gyrus": env!("CARGO_PKG_VERSION") })))
}

/// `/api/tags`.
pub(crate) async fn tags(call: Call) -> Result<Response, Failure> {
    let listed = call.state.models.list().await?;
    let allowed =
        |one: &&Listed| one.is_present && call.caller.key.as_ref().is_none_or(|key| key.allows(&one.name));
    let listed: Vec<Listed> = listed.iter().filter(allowed).cloned().collect();
    let details = call.state.models.details(listed.iter().map(|one| one.name.clone()).collect()).await?;
    let models: Vec<Value> = listed
        .iter()
        .zip(&details)
        .map(|(one, details)| {
            let mut value = describe(one, details);
            value["modified_at"] = time::of(one.modified.unwrap_or(UNIX_EPOCH)).into();
            value
        })
        .collect();
    Ok(json_response(&json!({ "models": models })))
}

/// `/api/ps`.
pub(crate) async fn ps(call: Call) -> Result<Response, Failure> {
    let listed = call.state.models.list().await?;
    let mut models = Vec::new();
    for entry in call.state.models.all().into_iter().filter(|entry| call.caller.may_use(&entry.name)) {
        let Some((served, bytes)) = entry.served() else { continue };
        let Some(one) = listed.iter().find(|one| one.name == entry.name) else { continue };
        let details = call.state.models.details(vec![one.name.clone()]).await?;
        let mut value = describe(one, &details.into_iter().next().unwrap_or_default());
        value["size"] = bytes.into();
        value["size_vram"] = match served.device() {
            gyrus::DeviceInfo::Gpu { .. } => bytes.into(),
            _ => 0.into(),
        };
        value["context_length"] = served.tokens().into();
        let left = entry.expires().map(|at| at.saturating_duration_since(Instant::now()));
        value["expires_at"] =
            left.map_or("9999-12-31T23:59:59Z".to_owned(), |left| time::of(SystemTime::now() + left)).into();
        models.push(value);
    }
    Ok(json_response(&json!({ "models": models })))
}

/// The model of a request. Ollama's own client writes the older `name`, and an empty `model` beside it.
pub(super) fn take_name(fields: &mut Fields) -> Result<String, Failure> {
    let names = [fields.string("model")?, fields.string("name")?];
    let given = names.into_iter().flatten().find(|name| !name.is_empty());
    given.ok_or_else(|| fields.wrong("model", "it is missing"))
}

/// The model that `/api/show` is asked for. Ollama's own client writes all fields, also those that it leaves empty.
fn parse_show(body: &[u8]) -> Result<String, Failure> {
    let mut fields = Fields::parse(body)?;
    let name = take_name(&mut fields)?;
    fields.refuse(&["system", "template", "options"])?;
    fields.ignore(&["verbose"]);
    fields.finish()?;
    Ok(name)
}

/// `/api/show`.
pub(crate) async fn show(call: Call) -> Result<Response, Failure> {
    let name = parse_show(&call.body)?;
    let listed = call.state.find(&call.caller, &name).await?;
    let details = call.state.models.details(vec![listed.name.clone()]).await?;
    let details = details.into_iter().next().unwrap_or_default();
    let described = describe(&listed, &details);
    let mut value = json!({
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": described["details"],
        "model_info": {
            "general.architecture": details.family,
            "general.size": listed.bytes,
            "general.description": listed.description,
        },
        "modified_at": time::of(listed.modified.unwrap_or(UNIX_EPOCH)),
    });
    if details.parameters > 0 {
        value["model_info"]["general.parameter_count"] = details.parameters.into();
    }
    let loaded = call.state.models.known(&listed.name).and_then(|entry| entry.served());
    let purpose = loaded.as_ref().map(|(served, _)| served.purpose()).or(details.purpose);
    let mut template = None;
    let mut can_infill = false;
    if let Some(model) = loaded.as_ref().and_then(|(served, _)| served.model()) {
        let architecture = model.config().architecture.clone();
        template = model.chat_format().ok().map(|format| format.source().to_owned());
        let special = model.tokenizer().map(|tokenizer| tokenizer.special_ids());
        can_infill = special.is_some_and(|ids| {
            ids.fim_prefix.is_some() && ids.fim_suffix.is_some() && ids.fim_middle.is_some()
        });
        value["model_info"]["general.architecture"] = architecture.clone().into();
        value["model_info"][format!("{architecture}.context_length")] = model.context().model.into();
    } else if listed.is_present {
        let source = call.state.models.source();
        let read = tokio::task::spawn_blocking(move || source.template(&listed.name));
        template = read.await.ok().flatten();
    }
    value["capabilities"] = match purpose.unwrap_or(Purpose::Text) {
        Purpose::Text => capabilities(template.as_deref().unwrap_or_default(), can_infill),
        Purpose::Embeddings => vec!["embedding"],
        // Ollama has no words for these.
        Purpose::Ranks | Purpose::Transcripts => Vec::new(),
    }
    .into();
    value["template"] = template.unwrap_or_default().into();
    Ok(json_response(&value))
}

/// What a language model can do, by its chat template: `tools` if it writes tools into the prompt, `thinking` if it can switch
/// reasoning; `insert` if there are tokens to fill a gap with.
fn capabilities(template: &str, can_infill: bool) -> Vec<&'static str> {
    let thinks = ["enable_thinking", "reasoning_effort"].iter().any(|name| template.contains(name));
    [("completion", true), ("tools", knows_tools(template)), ("thinking", thinks), ("insert", can_infill)]
        .into_iter()
        .filter_map(|(name, can)| can.then_some(name))
        .collect()
}

/// A model in a list. What is not known of it is empty.
fn describe(listed: &Listed, details: &Details) -> Value {
    let family = &details.family;
    json!({
        "name": listed.name,
        "model": listed.name,
        "size": listed.bytes,
        "digest": digest(listed, details),
        "details": {
            "parent_model": "",
            "format": details.format,
            "family": family,
            "families": if family.is_empty() { Vec::new() } else { vec![family] },
            "parameter_size": parameter_size(details.parameters),
            "quantization_level": details.quantization,
        },
    })
}

/// The SHA-256 of a model's file if it is known, else one of its name, size and time, which tells versions of a model apart.
/// Ollama's own client cuts it without asking how long it is.
pub(super) fn digest(listed: &Listed, details: &Details) -> String {
    let of_listed = || {
        let modified = listed.modified.unwrap_or(UNIX_EPOCH).duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut hash = Sha256::new();
        hash.update(listed.name.as_bytes());
        // No name has this byte, so that no two lists of parts make the same text.
        hash.update([0xff]);
        hash.update(listed.bytes.to_le_bytes());
        hash.update(modified.as_nanos().to_le_bytes());
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    details.digest.clone().unwrap_or_else(of_listed)
}

/// A number of weights as Ollama writes it: `7.2B`, `134.52M`, `260K`. Empty if it is not known.
fn parameter_size(parameters: u64) -> String {
    let n = parameters as f64;
    match parameters {
        0 => String::new(),
        1_000_000_000.. => format!("{:.1}B", n / 1e9),
        1_000_000.. => format!("{:.2}M", n / 1e6),
        1_000.. => format!("{:.0}K", n / 1e3),
        _ => parameters.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bodies are those that Ollama's own client writes.
    #[test]
    fn fields_that_are_empty_ask_for_nothing() {
        let body = r#"{"model":"","system":"","template":"","verbose":false,"options":null,"name":"tales"}"#;
        assert_eq!(parse_show(body.as_bytes()).unwrap(), "tales");
        for (name, value) in
            [("system", json!("Hi")), ("template", json!("x")), ("options", json!({ "seed": 1 }))]
        {
            let error =
                parse_show(json!({ "model": "tales", name: value }).to_string().as_bytes()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(name));
        }
        let error = parse_show(br#"{"model":"","name":""}"#).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("model"), "it is not the default model");
    }

    #[test]
    fn digests_tell_versions_apart() {
        let listed = Listed { name: "m".to_owned(), bytes: 5, ..Listed::default() };
        let details = Details::default();
        let first = digest(&listed, &details);
        assert_eq!((first.len(), first.bytes().all(|byte| byte.is_ascii_hexdigit())), (64, true));
        assert_eq!(first, digest(&listed, &details));
        let changed = [
            Listed { name: "n".to_owned(), ..listed.clone() },
            Listed { bytes: 6, ..listed.clone() },
            Listed { modified: Some(SystemTime::now()), ..listed.clone() },
        ];
        changed.iter().for_each(|other| assert_ne!(digest(other, &details), first));
        let known = Details { digest: Some("ab".repeat(32)), ..details };
        assert_eq!(digest(&listed, &known), "ab".repeat(32));
    }

    #[test]
    fn parameter_sizes_are_ollamas() {
        let sizes = [0, 999, 260_000, 134_515_008, 7_241_732_096].map(parameter_size);
        assert_eq!(sizes, ["", "999", "260K", "134.52M", "7.2B"]);
    }

    #[test]
    fn capabilities_come_from_the_template() {
        assert_eq!(capabilities("", false), ["completion"]);
        assert_eq!(capabilities("{% if tools %}{{ tools }}{% endif %}", false), ["completion", "tools"]);
        assert_eq!(capabilities("{% if enable_thinking %}", true), ["completion", "thinking", "insert"]);
        assert_eq!(capabilities("{{ toolset }}", false), ["completion"]);
    }
}
