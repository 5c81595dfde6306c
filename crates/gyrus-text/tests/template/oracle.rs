//! Runs the reference, `scripts/oracle/render_templates.py`, and this crate on the same cases.

use std::io::Write;
use std::process::{Command, Stdio};

use gyrus_testkit::{python, repository};
use gyrus_text::template::{ChatTemplate, Conversation, DateTime, Inputs, Rendered, TemplateError};
use serde_json::{Value as Json, json};

/// 2024-07-26 09:05:03, the time that both programs use.
pub(crate) const NOW: i64 = 1_721_984_703;

/// A batch of cases: every template with every input, or the pairs listed.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) templates: Vec<(String, String)>,
    pub(crate) inputs: Vec<Json>,
    pub(crate) pairs: Option<Vec<(usize, usize)>>,
}

impl Batch {
    pub(crate) fn cases(&self) -> Vec<(usize, usize)> {
        match &self.pairs {
            Some(pairs) => pairs.clone(),
            None => {
                (0..self.templates.len()).flat_map(|t| (0..self.inputs.len()).map(move |i| (t, i))).collect()
            }
        }
    }

    pub(crate) fn request(&self) -> Json {
        let templates: serde_json::Map<String, Json> =
            self.templates.iter().map(|(name, source)| (name.clone(), json!(source))).collect();
        assert_eq!(templates.len(), self.templates.len(), "template names must differ");
        let cases: Vec<Json> =
            self.cases().into_iter().map(|(t, i)| json!([self.templates[t].0, i])).collect();
        json!({"now": NOW, "templates": templates, "inputs": self.inputs, "cases": cases})
    }

    /// The results of the reference; `None` if it is not available.
    pub(crate) fn reference(&self) -> Option<Vec<Json>> {
        let python = python("render_templates.py")?;
        let script = repository().join("scripts/oracle/render_templates.py");
        let mut child = Command::new(python)
            .args(["-W", "ignore"])
            .arg(script)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the Python named by GYRUS_ORACLE_PYTHON runs");
        let request = self.request().to_string();
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let writer = std::thread::spawn(move || stdin.write_all(request.as_bytes()));
        let output = child.wait_with_output().expect("the reference ends");
        writer.join().expect("no panic").expect("the reference reads its cases");
        assert!(output.status.success(), "the reference failed");
        Some(serde_json::from_slice(&output.stdout).expect("the reference writes JSON"))
    }

    /// The results of this crate.
    pub(crate) fn results(&self) -> Vec<Result<String, TemplateError>> {
        let parsed: Vec<_> = self.templates.iter().map(|(_, source)| ChatTemplate::new(source)).collect();
        let cases = self.cases().into_iter();
        cases
            .map(|(t, i)| match &parsed[t] {
                Ok(template) => render(template, &self.inputs[i]),
                Err(error) => Err(error.clone()),
            })
            .collect()
    }

    /// Compares both; returns the number of rendered cases and a description of each difference.
    pub(crate) fn compare(&self, reference: &[Json]) -> (usize, Vec<String>) {
        let cases = self.cases();
        let results = self.results();
        assert_eq!(cases.len(), reference.len());
        let mut rendered = 0;
        let mut differences = Vec::new();
        for (((t, i), ours), theirs) in cases.into_iter().zip(results).zip(reference) {
            let text = theirs["text"].as_str();
            rendered += usize::from(text.is_some());
            if ours.as_ref().ok().map(String::as_str) != text {
                let (name, source) = &self.templates[t];
                let shown = if source.len() < 2000 { source.as_str() } else { "" };
                let ours = ours.map_err(|error| error.to_string());
                differences.push(format!(
                    "{name}, input {i}: {shown}\n  input:     {}\n  ours:      {ours:?}\n  reference: {theirs}",
                    self.inputs[i]
                ));
            }
        }
        (rendered, differences)
    }
}

/// Fails with the first differences, if there are any.
pub(crate) fn assert_none(differences: &[String]) {
    let shown = differences.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} differences:\n{shown}", differences.len());
}

pub(crate) fn render(template: &ChatTemplate, input: &Json) -> Result<String, TemplateError> {
    Ok(render_parts(template, input)?.text().to_owned())
}

pub(crate) fn render_parts(template: &ChatTemplate, input: &Json) -> Result<Rendered, TemplateError> {
    let conversation = Conversation::from_json(&input.to_string())?;
    let mut inputs = Inputs::new(&conversation);
    inputs.add_generation_prompt = input["add_generation_prompt"].as_bool().unwrap_or(false);
    if let Some(variables) = input["variables"].as_object() {
        for (name, value) in variables {
            match value.as_str().filter(|_| name.ends_with("_token")) {
                Some(token) => drop(inputs.special_tokens.insert(name.clone(), token.to_owned())),
                None => drop(inputs.variables.insert(name.clone(), value.clone())),
            }
        }
    }
    inputs.now = Some(DateTime::from_unix(NOW));
    template.render_parts(&inputs)
}

/// A small deterministic generator (xorshift with a multiplier).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}
