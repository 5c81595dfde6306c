//! The architectures of encoders, each a description.

use gyrus_formats::Checkpoint;
use gyrus_kernels::Activation;

use super::names::Layout;
use crate::Error;

/// A family of encoders that share a forward pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncoderArch {
    /// `general.architecture` in GGUF.
    pub(super) gguf: &'static str,
    /// `model_type` values in `config.json`.
    pub(super) hugging_face: &'static [&'static str],
    /// The names of tensors in Hugging Face's layout, the newest first: that under which a file has its embedding norm.
    pub(super) layouts: &'static [Layout],
    /// The function of the feed-forward in GGUF files, which do not name it.
    pub(super) activation: Activation,
    /// Whether the feed-forward has a gate.
    pub(super) gated: bool,
    /// Whether norms are before attention and feed-forward.
    pub(super) pre_norms: bool,
    /// How positions are encoded.
    pub(super) positions: Positions,
}

/// How positions are encoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Positions {
    /// A table of learned positions.
    Learned,
    /// A table whose first entries, up to that of the padding token's id, no text has. GGUF files do not have them.
    LearnedAfterPadding,
    /// Rotary embeddings. The base that `config.json` has if it does not name one.
    Rotary { base: f64 },
    /// Rotary embeddings of two bases: layers with a window have the second.
    RotaryWindows,
}

const BERT: EncoderArch = EncoderArch {
    gguf: "bert",
    hugging_face: &["bert"],
    layouts: &[Layout::Bert],
    activation: Activation::Gelu,
    gated: false,
    pre_norms: false,
    positions: Positions::Learned,
};

/// GGUF files of RoBERTa have the architecture `bert`.
const ROBERTA: EncoderArch = EncoderArch {
    hugging_face: &["xlm-roberta", "roberta", "camembert"],
    positions: Positions::LearnedAfterPadding,
    ..BERT
};

const NOMIC_BERT: EncoderArch = EncoderArch {
    gguf: "nomic-bert",
    hugging_face: &["nomic_bert"],
    layouts: &[Layout::Llama, Layout::Nomic],
    activation: Activation::Silu,
    gated: true,
    positions: Positions::Rotary { base: 1000.0 },
    ..BERT
};

const MODERN_BERT: EncoderArch = EncoderArch {
    gguf: "modern-bert",
    hugging_face: &["modernbert"],
    layouts: &[Layout::Modern],
    gated: true,
    pre_norms: true,
    positions: Positions::RotaryWindows,
    ..BERT
};

/// All architectures of encoders.
const ENCODERS: &[EncoderArch] = &[BERT, ROBERTA, NOMIC_BERT, MODERN_BERT];

/// The description of a file's architecture, and the name that the file has for it.
pub(crate) fn find(model: &Checkpoint) -> Result<(&'static EncoderArch, String), Error> {
    let name = architecture(model)?;
    let known = |arch: &&EncoderArch| match model.gguf() {
        Some(_) => arch.gguf == name,
        None => arch.hugging_face.contains(&name.as_str()),
    };
    match ENCODERS.iter().find(known) {
        Some(arch) => Ok((arch, name)),
        None => {
            let names = |arch: &EncoderArch| match model.gguf() {
                Some(_) => vec![arch.gguf],
                None => arch.hugging_face.to_vec(),
            };
            let mut known: Vec<&str> = ENCODERS.iter().flat_map(names).collect();
            known.dedup();
            Err(Error::Architecture { found: name, known: known.join(", ") })
        }
    }
}

/// Whether a file has the architecture of an encoder.
pub(crate) fn is_encoder(model: &Checkpoint) -> bool {
    find(model).is_ok()
}

fn architecture(model: &Checkpoint) -> Result<String, Error> {
    if let Some(metadata) = model.gguf() {
        return Ok(metadata.require::<&str>("general.architecture")?.to_owned());
    }
    let name = model.config().and_then(|config| config.get("model_type")).and_then(|name| name.as_str());
    match name {
        Some(name) => Ok(name.to_owned()),
        None => Err(Error::Config("'model_type' is missing".to_owned())),
    }
}

/// The table of `docs/embeddings.md`: which parts each architecture has.
#[cfg(test)]
fn table() -> String {
    let mut text =
        String::from("| GGUF | config.json | positions | norms | feed-forward |\n|---|---|---|---|---|\n");
    for arch in ENCODERS {
        let names: Vec<String> = arch.hugging_face.iter().map(|name| format!("`{name}`")).collect();
        let positions = match arch.positions {
            Positions::Learned => "learned",
            Positions::LearnedAfterPadding => "learned, after the padding token's",
            Positions::Rotary { .. } => "rotary",
            Positions::RotaryWindows => "rotary, two bases; windows on both sides",
        };
        let norms = if arch.pre_norms { "before" } else { "after" };
        let feed_forward = match (arch.gated, arch.activation) {
            (true, Activation::Silu) => "SiLU gate",
            (true, _) => "GELU gate",
            (false, _) => "GELU",
        };
        text +=
            &format!("| `{}` | {} | {positions} | {norms} | {feed_forward} |\n", arch.gguf, names.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    /// `docs/embeddings.md` has the table that the descriptions give.
    #[test]
    fn the_documentation_lists_the_descriptions() {
        let path = gyrus_testkit::repository().join("docs/embeddings.md");
        let text = std::fs::read_to_string(path).unwrap();
        let table = super::table();
        assert!(text.contains(&table), "docs/embeddings.md needs this table:\n{table}");
    }
}
