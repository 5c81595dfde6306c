//! Sessions in files: their tokens and their part of the cache.
//!
//! A session that is loaded goes on with the bits that it was saved with. So a file names everything that they depend on:
//! the model by a hash of all bytes of its files, the precision, the quantisation while loading, the device, the layout of
//! the cache, and for each position whether a row of a prompt or a generated row computed it. A file comes from outside:
//! it is checked before it is used, and its blocks are never shared with sessions that were not forked from it.

mod error;
mod file;
mod fingerprint;
mod hash;
mod header;
#[cfg(test)]
mod tests;

use std::io::{Read, Write};

use gyrus_kernels::{Backend, CacheContents, KV_BLOCK, KvGroup};

pub use error::SessionFileError;
use file::{Reader, Writer};
pub(crate) use fingerprint::Fingerprint;
use header::{Header, Identity};

use crate::Error;
use crate::device::DeviceInfo;
use crate::model::Model;
use crate::serving::{Outline, Scheduler, SequenceId, SequenceKv};

/// Blocks of the cache that are held while they are read or written, in pieces, between what else the backend does.
struct Held<'m> {
    model: &'m Model,
    kv: SequenceKv,
    /// How often the device had been lost: the blocks hold nothing after another time.
    losses: u64,
}

impl Held<'_> {
    /// Runs `work` with the blocks' contents.
    fn with<T>(
        &self,
        work: impl FnOnce(&SequenceKv, &mut dyn CacheContents) -> Result<T, gyrus_kernels::BackendError>,
    ) -> Result<T, Error> {
        self.model.exclusively(|backend, scheduler| {
            if scheduler.losses() != self.losses {
                return Err(SessionFileError::Lost.into());
            }
            Ok(work(&self.kv, contents(self.model, backend)?)?)
        })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let release = |_: &mut dyn Backend, scheduler: &mut Scheduler| {
            scheduler.release_blocks(&mut self.kv);
            Ok(())
        };
        // If the device cannot be opened again, there are no blocks.
        let _ = self.model.exclusively(release);
    }
}

fn contents<'b>(model: &Model, backend: &'b mut dyn Backend) -> Result<&'b mut dyn CacheContents, Error> {
    backend.contents().ok_or_else(|| SessionFileError::Device(model.device().to_string()).into())
}

/// What sessions of a model depend on.
fn identity(model: &Model) -> Result<Identity, Error> {
    let fingerprint = model.fingerprint().ok_or(SessionFileError::NoFingerprint)?;
    let quantize = model.quantize().map_or_else(|| "none".to_owned(), |dtype| dtype.to_string());
    let device = match model.device() {
        DeviceInfo::Cpu { .. } => "the CPU".to_owned(),
        other => other.to_string(),
    };
    Ok(Header::identity(model.plan(), fingerprint.clone(), quantize, device))
}

/// Saves a sequence: these tokens, and what the cache has of them.
pub(crate) fn save(
    model: &Model,
    id: SequenceId,
    tokens: &[u32],
    out: &mut dyn Write,
    attachment: &[u8],
) -> Result<(), Error> {
    let identity = identity(model)?;
    let record_bytes = model.plan().record_bytes();
    let (held, outline, record) = model.exclusively(|backend, scheduler| {
        // The error of a device comes before blocks are held.
        contents(model, backend)?;
        let (kv, outline, record) = scheduler.hold(id, tokens);
        let held = (kv, scheduler.losses());
        let mut bytes = vec![0; if record.is_some() { record_bytes } else { 0 }];
        let read = match record {
            Some(record) => contents(model, backend)?.read_record(record, &mut bytes),
            None => Ok(()),
        };
        Ok((held, outline, read.map(|()| bytes)))
    })?;
    let held = Held { model, kv: held.0, losses: held.1 };
    let record = record?;
    let header = Header {
        identity,
        tokens: tokens.len() as u64,
        positions: outline.positions as u64,
        known: outline.known as u64,
        length: outline.length,
        first_blocks: outline.first_blocks.iter().map(|first| *first as u64).collect(),
        attachment: attachment.len() as u64,
        has_record: !record.is_empty(),
    };
    let mut writer = Writer::new(out, &header)?;
    let words: Vec<u8> = tokens.iter().chain(&outline.kinds).flat_map(|word| word.to_le_bytes()).collect();
    writer.part(&words)?;
    writer.part(attachment)?;
    if header.has_record {
        writer.part(&record)?;
    }
    let mut bytes = Vec::new();
    for (group, spec) in model.plan().kv.iter().enumerate() {
        let one = header.block_bytes(group) as usize;
        let last = outline.positions.div_ceil(KV_BLOCK);
        for first in (outline.first_blocks[group]..last).step_by(header.batch(group) as usize) {
            let end = last.min(first + header.batch(group) as usize);
            bytes.clear();
            bytes.resize((end - first) * one, 0);
            held.with(|kv, contents| contents.read_blocks(group, &kv.table(group)[first..end], &mut bytes))?;
            // What lies behind the sequence's end is of others.
            if end == last {
                clear_behind(spec, &mut bytes[(end - first - 1) * one..], outline.positions);
            }
            writer.part(&bytes)?;
        }
    }
    Ok(())
}

/// Clears the positions of a block from the sequence's end on.
fn clear_behind(group: &KvGroup, block: &mut [u8], positions: usize) {
    let used = positions - (positions.div_ceil(KV_BLOCK) - 1) * KV_BLOCK;
    let head = block.len() / (2 * group.layers * group.kv_heads).max(1);
    let kept = head / KV_BLOCK * used;
    block.chunks_exact_mut(head.max(1)).for_each(|head| head[kept..].fill(0));
}

/// Loads a sequence: its tokens and what was attached. The cache has it from now on.
pub(crate) fn load(
    model: &Model,
    id: SequenceId,
    input: &mut dyn Read,
    bytes: u64,
) -> Result<(Vec<u32>, Vec<u8>), Error> {
    let identity = identity(model)?;
    let mut reader = Reader::open(input, bytes)?;
    let header = reader.header.clone();
    identity.check(&header.identity)?;
    let (count, context) = (header.tokens as usize, model.context().tokens);
    if count > context {
        return Err(Error::PromptTooLong { tokens: count, context });
    }
    let Parts { tokens, kinds, attachment, record } = Parts::read(&mut reader)?;
    let vocab = model.plan().vocab;
    if let Some(&id) = tokens.iter().find(|id| **id as usize >= vocab) {
        return Err(Error::TokenId { id, vocab });
    }
    let outline = Outline {
        positions: header.positions as usize,
        first_blocks: header.first_blocks.iter().map(|first| *first as usize).collect(),
        kinds,
        known: header.known as usize,
        length: header.length,
    };
    let (kv, losses) = model.exclusively(|backend, scheduler| {
        contents(model, backend)?;
        if !scheduler.kinds_differ() && outline.kinds.iter().any(|kinds| *kinds != 0) {
            return Err(header::malformed("this device has no generated rows").into());
        }
        Ok((scheduler.take_blocks(id, &outline, tokens.len())?, scheduler.losses()))
    })?;
    let mut held = Held { model, kv, losses };
    let mut part = Vec::new();
    for group in 0..header.first_blocks.len() {
        let (first, count) = (outline.first_blocks[group], header.blocks(group) as usize);
        for at in (0..count).step_by(header.batch(group) as usize) {
            let end = count.min(at + header.batch(group) as usize);
            next_blocks(&mut reader, group, first + at..first + end, &mut part)?;
            held.with(|kv, contents| {
                contents.write_blocks(group, &kv.table(group)[first + at..first + end], &part)
            })?;
        }
    }
    let kv = &mut held.kv;
    model.exclusively(|backend, scheduler| {
        if scheduler.losses() != losses {
            return Err(SessionFileError::Lost.into());
        }
        let kv = std::mem::take(kv);
        scheduler
            .restore(id, &tokens, kv, &outline, |to| Ok(contents(model, backend)?.write_record(to, &record)?))
    })?;
    Ok((tokens, attachment))
}

/// Reads the next blocks of a KV group.
fn next_blocks(
    reader: &mut Reader<'_>,
    group: usize,
    blocks: std::ops::Range<usize>,
    part: &mut Vec<u8>,
) -> Result<(), SessionFileError> {
    let bytes = reader.header.block_bytes(group) * blocks.len() as u64;
    reader.part(bytes, part, || {
        let positions = blocks.start * KV_BLOCK..blocks.end * KV_BLOCK;
        format!("the cache of KV group {group} at positions {} to {}", positions.start, positions.end - 1)
    })
}

/// The parts before the blocks.
struct Parts {
    tokens: Vec<u32>,
    kinds: Vec<u32>,
    attachment: Vec<u8>,
    record: Vec<u8>,
}

impl Parts {
    fn read(reader: &mut Reader<'_>) -> Result<Parts, SessionFileError> {
        let header = reader.header.clone();
        let (mut words, mut attachment, mut record) = (Vec::new(), Vec::new(), Vec::new());
        reader.part(4 * (header.tokens + header.kind_words()), &mut words, || "the list of tokens".into())?;
        let (words, _) = words.as_chunks::<4>();
        let mut tokens: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let kinds = tokens.split_off(header.tokens as usize);
        if let (Some(last), known @ 1..) = (kinds.last(), header.known % KV_BLOCK as u64)
            && last >> known != 0
        {
            return Err(header::malformed("it has kinds of rows behind the known positions"));
        }
        reader.part(header.attachment, &mut attachment, || "the attachment".into())?;
        if header.has_record {
            reader.part(header.identity.record_bytes, &mut record, || "the record of states".into())?;
        }
        Ok(Parts { tokens, kinds, attachment, record })
    }
}

/// Gives a file the checksums that it must have, for tests of what other checks find.
#[doc(hidden)]
pub fn seal_session_file(file: &mut [u8]) {
    file::seal(file);
}

/// Reads a whole file without a model, and returns how many tokens and positions it has: what can be told of it alone.
#[doc(hidden)]
pub fn check_session_file(input: &mut dyn Read, bytes: u64) -> Result<(usize, usize), SessionFileError> {
    let mut reader = Reader::open(input, bytes)?;
    let header = reader.header.clone();
    let parts = Parts::read(&mut reader)?;
    let mut part = Vec::new();
    for group in 0..header.first_blocks.len() {
        let (first, count) = (header.first_blocks[group] as usize, header.blocks(group) as usize);
        for at in (0..count).step_by(header.batch(group) as usize) {
            let end = count.min(at + header.batch(group) as usize);
            next_blocks(&mut reader, group, first + at..first + end, &mut part)?;
        }
    }
    Ok((parts.tokens.len(), header.positions as usize))
}
