//! What a model is: a hash of all bytes of its files.

use std::sync::atomic::{AtomicUsize, Ordering};

use gyrus_formats::Checkpoint;

use super::hash::{Digest, Hasher, digest};
use crate::Error;

/// Bytes that are hashed together. Threads take such pieces in turn.
const PIECE: usize = 4 << 20;

/// Files beside a SafeTensors model that decide what its tokens are and what it computes.
const BESIDE: [&str; 9] = [
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

/// What tells a model from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    /// The name of its file, for messages.
    pub(crate) name: String,
    /// Of every byte of its files: weights, metadata and tokenizer.
    pub(crate) digest: Digest,
}

impl Fingerprint {
    /// Hashes a model's files with this many threads.
    pub(crate) fn of(checkpoint: &Checkpoint, threads: usize) -> Result<Fingerprint, Error> {
        let files = checkpoint.files();
        let mut pieces: Vec<(usize, u64, usize)> = Vec::new();
        let mut all = Hasher::new(b"model");
        for (shard, (_, bytes)) in files.iter().enumerate() {
            all.update(&bytes.to_le_bytes());
            let starts = (0..*bytes).step_by(PIECE);
            pieces.extend(starts.map(|at| (shard, at, (bytes - at).min(PIECE as u64) as usize)));
        }
        let digests = hash_pieces(&pieces, threads, |(shard, at, bytes)| checkpoint.bytes(shard, at, bytes));
        digests.iter().for_each(|digest| all.update(digest));
        for name in BESIDE {
            if let Some(bytes) = checkpoint.beside(name)? {
                all.update(name.as_bytes());
                all.update(&digest(b"beside", &bytes));
            }
        }
        let name = checkpoint.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Fingerprint { name, digest: all.finish() })
    }
}

/// The hash of each piece.
fn hash_pieces<'a, P: Copy + Sync>(
    pieces: &[P],
    threads: usize,
    bytes: impl Fn(P) -> &'a [u8] + Sync,
) -> Vec<Digest> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own: Vec<(usize, Digest)> = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            match pieces.get(at) {
                Some(piece) => own.push((at, digest(b"piece", bytes(*piece)))),
                None => return own,
            }
        }
    };
    let mut digests = vec![[0; 16]; pieces.len()];
    let threads = threads.clamp(1, pieces.len().max(1));
    let found = std::thread::scope(|scope| {
        let others: Vec<_> =
            (1..threads).filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let mut found = work();
        for other in others {
            match other.join() {
                Ok(own) => found.extend(own),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        found
    });
    found.into_iter().for_each(|(at, digest)| digests[at] = digest);
    digests
}

#[cfg(test)]
mod tests {
    use gyrus_formats::Bytes;
    use gyrus_testkit::data;

    use super::*;

    #[test]
    fn every_byte_of_a_file_counts_and_threads_do_not() {
        let Some(path) = data("stories260K/stories260K.gguf") else { return };
        let whole = std::fs::read(path).unwrap();
        let of = |bytes: Vec<u8>, threads| {
            Fingerprint::of(&Checkpoint::from_gguf("a", Bytes::Owned(bytes)).unwrap(), threads).unwrap()
        };
        let expected = of(whole.clone(), 1);
        assert_eq!(of(whole.clone(), 3), expected);
        // Weights, from the first to the last.
        for at in [whole.len() / 2, whole.len() - 1] {
            let mut other = whole.clone();
            other[at] ^= 1;
            assert_ne!(of(other, 2).digest, expected.digest, "byte {at}");
        }
        let pieces: Vec<u8> = (0..9).collect();
        let bytes = [[1u8; 8], [2; 8]].concat();
        let hashed = |threads| hash_pieces(&pieces, threads, |piece| &bytes[..usize::from(piece)]);
        assert_eq!(hashed(1), hashed(4));
    }
}
