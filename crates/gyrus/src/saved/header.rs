//! The header of a saved session: what it is of, and how large its parts are.

use gyrus_kernels::{KV_BLOCK, KvGroup, MAX_KV_GROUPS, Plan, Precision};
use serde_json::{Value, json};

use super::SessionFileError;
use super::fingerprint::Fingerprint;
use super::hash::Digest;

/// Blocks are checked and copied in batches of about this many bytes.
const BATCH_BYTES: u64 = 8 << 20;

/// What a session's cache depends on beside its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) model: Fingerprint,
    pub(crate) precision: String,
    /// The block format that weights were quantised to while they were loaded.
    pub(crate) quantize: String,
    /// The backend, and the name of a GPU.
    pub(crate) device: String,
    /// The element type of the KV cache.
    pub(crate) elements: String,
    /// The KV groups, and bytes of a record of states.
    pub(crate) groups: Vec<KvGroup>,
    pub(crate) record_bytes: u64,
}

/// A header. What it says fits together, and every size is below that of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) identity: Identity,
    /// Tokens of the session.
    pub(crate) tokens: u64,
    /// Positions whose keys and values are in the file.
    pub(crate) positions: u64,
    /// Positions of which it is known what rows computed them.
    pub(crate) known: u64,
    /// The length for which the ropes' frequencies were chosen.
    pub(crate) length: u32,
    /// The first block of each KV group that is in the file: earlier ones have left the window.
    pub(crate) first_blocks: Vec<u64>,
    /// Bytes of what the caller has attached.
    pub(crate) attachment: u64,
    /// Whether a record of states follows.
    pub(crate) has_record: bool,
}

impl Identity {
    /// Bytes of a block of a group; `None` if they are too many.
    fn block_bytes(&self, group: usize) -> Option<u64> {
        let KvGroup { layers, kv_heads, head_dim, .. } = self.groups[group];
        let element = if self.elements == "f32" { 4 } else { 2 };
        [layers, kv_heads, head_dim]
            .into_iter()
            .try_fold(2 * KV_BLOCK as u64 * element, |all, n| all.checked_mul(u64::try_from(n).ok()?))
    }

    /// Whether a session of another identity can go on with this one: an error that names what differs.
    pub(crate) fn check(&self, saved: &Identity) -> Result<(), SessionFileError> {
        let of = |model: &Fingerprint| {
            let hex: String = model.digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
            format!("'{}' ({hex})", model.name.escape_default())
        };
        if self.model.digest != saved.model.digest {
            return Err(SessionFileError::Model { saved: of(&saved.model), here: of(&self.model) });
        }
        let settings = [
            ("precision", &saved.precision, &self.precision),
            ("quantisation while loading", &saved.quantize, &self.quantize),
            ("device", &saved.device, &self.device),
            ("element type", &saved.elements, &self.elements),
        ];
        for (what, saved, here) in settings {
            if saved != here {
                let saved = saved.escape_default().to_string();
                return Err(SessionFileError::Setting { what, saved, here: here.clone() });
            }
        }
        if self.groups != saved.groups || self.record_bytes != saved.record_bytes {
            let what = "shape of the cache";
            let of = |of: &Identity| format!("{:?} and records of {} bytes", of.groups, of.record_bytes);
            return Err(SessionFileError::Setting { what, saved: of(saved), here: of(self) });
        }
        Ok(())
    }
}

impl Header {
    /// Blocks of a group that are in the file.
    pub(crate) fn blocks(&self, group: usize) -> u64 {
        self.positions.div_ceil(KV_BLOCK as u64) - self.first_blocks[group]
    }

    /// Bytes of a block of a group.
    pub(crate) fn block_bytes(&self, group: usize) -> u64 {
        self.identity.block_bytes(group).unwrap_or(u64::MAX)
    }

    /// Blocks of a group that have a checksum together.
    pub(crate) fn batch(&self, group: usize) -> u64 {
        (BATCH_BYTES / self.block_bytes(group).max(1)).max(1)
    }

    /// Words of bits that tell what rows computed the positions.
    pub(crate) fn kind_words(&self) -> u64 {
        self.known.div_ceil(KV_BLOCK as u64)
    }

    /// Bytes of all parts behind the header, with a checksum of `sum` bytes each; `None` if they are too many.
    pub(crate) fn bytes_behind(&self, sum: u64) -> Option<u64> {
        let words = self.tokens.checked_add(self.kind_words())?.checked_mul(4)?;
        let mut all = words.checked_add(sum)?.checked_add(self.attachment)?.checked_add(sum)?;
        if self.has_record {
            all = all.checked_add(self.identity.record_bytes)?.checked_add(sum)?;
        }
        for group in 0..self.identity.groups.len() {
            let (blocks, one) = (self.blocks(group), self.identity.block_bytes(group)?);
            let sums = blocks.div_ceil(self.batch(group)).checked_mul(sum)?;
            all = all.checked_add(blocks.checked_mul(one)?)?.checked_add(sums)?;
        }
        Some(all)
    }

    /// Bytes of each part behind the header, for a file that has them all.
    pub(crate) fn parts(&self) -> impl Iterator<Item = u64> + '_ {
        let words = 4 * (self.tokens + self.kind_words());
        let record = self.has_record.then_some(self.identity.record_bytes);
        let groups = (0..self.identity.groups.len()).flat_map(move |group| {
            let (blocks, batch) = (self.blocks(group), self.batch(group));
            let firsts = (0..blocks).step_by(usize::try_from(batch).unwrap_or(usize::MAX));
            firsts.map(move |first| (blocks - first).min(batch) * self.block_bytes(group))
        });
        [words, self.attachment].into_iter().chain(record).chain(groups)
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let Identity { model, precision, quantize, device, elements, groups, record_bytes } = &self.identity;
        let digest: String = model.digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let group = |(group, first): (&KvGroup, &u64)| {
            let KvGroup { layers, kv_heads, head_dim, window } = group;
            json!({ "layers": layers, "heads": kv_heads, "dim": head_dim, "window": window, "first": first })
        };
        let groups: Vec<Value> = groups.iter().zip(&self.first_blocks).map(group).collect();
        let document = json!({
            "model": digest, "name": model.name, "precision": precision, "quantize": quantize,
            "device": device, "elements": elements, "groups": groups, "record_bytes": record_bytes,
            "tokens": self.tokens, "positions": self.positions, "known": self.known, "length": self.length,
            "attachment": self.attachment, "record": self.has_record,
        });
        document.to_string().into_bytes()
    }

    /// Reads a header. What it says fits together; sizes are yet to be compared with that of the file.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Header, SessionFileError> {
        let document: Value = serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
        let fields = Fields(&document);
        let mut groups = Vec::new();
        let mut first_blocks = Vec::new();
        let listed = document["groups"].as_array().ok_or_else(|| malformed("'groups' is no list"))?;
        if listed.len() > MAX_KV_GROUPS {
            return Err(malformed(format!("{} KV groups, at most {MAX_KV_GROUPS} are known", listed.len())));
        }
        for group in listed {
            let own = Fields(group);
            let size =
                |name| usize::try_from(own.number(name)?).map_err(|_| malformed("a size is too large"));
            let window = match &group["window"] {
                Value::Null => None,
                _ => Some(own.small("window")?),
            };
            groups.push(KvGroup {
                layers: size("layers")?,
                kv_heads: size("heads")?,
                head_dim: size("dim")?,
                window,
            });
            first_blocks.push(own.number("first")?);
        }
        let elements = fields.text("elements")?;
        if !["f32", "f16"].contains(&&*elements) {
            return Err(malformed(format!("the element type '{}' is unknown", elements.escape_default())));
        }
        let header = Header {
            identity: Identity {
                model: Fingerprint { name: fields.text("name")?, digest: digest_of(&fields.text("model")?)? },
                precision: fields.text("precision")?,
                quantize: fields.text("quantize")?,
                device: fields.text("device")?,
                elements,
                groups,
                record_bytes: fields.number("record_bytes")?,
            },
            tokens: fields.number("tokens")?,
            positions: fields.number("positions")?,
            known: fields.number("known")?,
            length: fields.small("length")?,
            first_blocks,
            attachment: fields.number("attachment")?,
            has_record: document["record"]
                .as_bool()
                .ok_or_else(|| malformed("'record' is no truth value"))?,
        };
        header.check()?;
        Ok(header)
    }

    /// Whether its numbers fit together.
    fn check(&self) -> Result<(), SessionFileError> {
        let Header { tokens, positions, known, .. } = *self;
        if tokens > u64::from(u32::MAX) || positions > known || known > tokens {
            return Err(malformed(format!("{positions} of {known} known positions of {tokens} tokens")));
        }
        let record = self.identity.record_bytes;
        if !record.is_multiple_of(4) || self.has_record != (record > 0 && positions > 0) {
            return Err(malformed(format!("a record of {record} bytes for {positions} positions")));
        }
        for (number, (group, first)) in self.identity.groups.iter().zip(&self.first_blocks).enumerate() {
            let needed = group.first_needed(positions as usize) / KV_BLOCK;
            if *first > positions.div_ceil(KV_BLOCK as u64) || (positions > 0 && *first > needed as u64) {
                return Err(malformed(format!("KV group {number} lacks blocks of its window")));
            }
        }
        Ok(())
    }

    /// What this model's sessions depend on.
    pub(crate) fn identity(plan: &Plan, model: Fingerprint, quantize: String, device: String) -> Identity {
        let elements = plan.precision.kv_storage().name().to_owned();
        Identity {
            model,
            precision: match plan.precision {
                Precision::Exact => "exact".to_owned(),
                Precision::Fast => "fast".to_owned(),
            },
            quantize,
            device,
            elements,
            groups: plan.kv.clone(),
            record_bytes: plan.record_bytes() as u64,
        }
    }
}

/// The fields of a JSON object.
struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn text(&self, name: &str) -> Result<String, SessionFileError> {
        let text = self.0[name].as_str().map(str::to_owned);
        text.ok_or_else(|| malformed(format!("'{name}' is no text")))
    }

    fn number(&self, name: &str) -> Result<u64, SessionFileError> {
        self.0[name].as_u64().ok_or_else(|| malformed(format!("'{name}' is no number")))
    }

    fn small(&self, name: &str) -> Result<u32, SessionFileError> {
        u32::try_from(self.number(name)?).map_err(|_| malformed(format!("'{name}' is too large")))
    }
}

fn digest_of(hex: &str) -> Result<Digest, SessionFileError> {
    let mut digest = [0; 16];
    let is_hex = hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    for (byte, at) in digest.iter_mut().zip((0..hex.len()).step_by(2)).filter(|_| is_hex) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).unwrap_or(0);
    }
    if is_hex { Ok(digest) } else { Err(malformed("'model' is no fingerprint")) }
}

pub(super) fn malformed(what: impl Into<String>) -> SessionFileError {
    SessionFileError::Header(what.into())
}
