//! A fast hash of 128 bits, against accidents: it tells contents apart and finds damage. It is no signature.

/// Lanes, which are independent so that a processor computes them at once.
const LANES: usize = 8;
/// Bytes of a stripe: a word for each lane.
const STRIPE: usize = 8 * LANES;
/// Odd factors.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
const FINAL: [u64; 2] = [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB];

/// The hash of some bytes.
pub(crate) type Digest = [u8; 16];

/// Hashes bytes in pieces of any size. A word is mixed into its lane by a product of 128 bits, whose high and low words are
/// combined by exclusive or, so that each bit of the word changes about half of the lane's bits.
#[derive(Debug, Clone)]
pub(crate) struct Hasher {
    lanes: [u64; LANES],
    /// Bytes that are no whole stripe yet.
    rest: [u8; STRIPE],
    filled: usize,
    length: u64,
}

impl Hasher {
    /// Hashes of different seeds have nothing in common.
    pub(crate) fn new(seed: &[u8]) -> Hasher {
        let lanes = std::array::from_fn(|lane| (lane as u64 + 1).wrapping_mul(FINAL[1]));
        let mut hasher = Hasher { lanes, rest: [0; STRIPE], filled: 0, length: 0 };
        hasher.update(&(seed.len() as u64).to_le_bytes());
        hasher.update(seed);
        hasher
    }

    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len() as u64;
        if self.filled > 0 {
            let taken = bytes.len().min(STRIPE - self.filled);
            self.rest[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled < STRIPE {
                return;
            }
            absorb(&mut self.lanes, &self.rest);
            self.filled = 0;
        }
        let (stripes, rest) = bytes.as_chunks::<STRIPE>();
        let mut lanes = self.lanes;
        stripes.iter().for_each(|stripe| absorb(&mut lanes, stripe));
        self.lanes = lanes;
        self.rest[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    pub(crate) fn finish(mut self) -> Digest {
        self.rest[self.filled..].fill(0);
        absorb(&mut self.lanes, &self.rest);
        let mut words = [self.length, self.length.wrapping_mul(FACTOR)];
        for (word, factor) in words.iter_mut().zip(FINAL) {
            for lane in self.lanes {
                *word = mixed(*word ^ lane, factor);
            }
        }
        let mut digest = [0; 16];
        digest[..8].copy_from_slice(&words[0].to_le_bytes());
        digest[8..].copy_from_slice(&words[1].to_le_bytes());
        digest
    }
}

fn absorb(lanes: &mut [u64; LANES], stripe: &[u8; STRIPE]) {
    let (words, _) = stripe.as_chunks::<8>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        let product = u128::from(*lane ^ u64::from_le_bytes(*word)) * u128::from(FACTOR);
        // The rotation makes words of a lane count in their order.
        *lane ^= (product as u64 ^ (product >> 64) as u64).rotate_left(29);
    }
}

fn mixed(value: u64, factor: u64) -> u64 {
    let value = (value ^ (value >> 31)).wrapping_mul(factor);
    value ^ (value >> 29)
}

/// The hash of these bytes.
pub(crate) fn digest(seed: &[u8], bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new(seed);
    hasher.update(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn pieces_do_not_matter_and_every_bit_does() {
        let bytes: Vec<u8> = (0..300u32).map(|i| ((i * i) >> 3) as u8).collect();
        let mut seen = HashSet::new();
        for length in 0..=bytes.len() {
            let whole = digest(b"seed", &bytes[..length]);
            assert!(seen.insert(whole), "{length} bytes");
            for piece in [1, 7, 63, 64, 65, 130] {
                let mut hasher = Hasher::new(b"seed");
                bytes[..length].chunks(piece).for_each(|piece| hasher.update(piece));
                assert_eq!(hasher.finish(), whole, "{length} bytes in pieces of {piece}");
            }
        }
        for bit in 0..8 * bytes.len() {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(digest(b"seed", &other)), "bit {bit}");
        }
        assert!(seen.insert(digest(b"", &bytes)) && seen.insert(digest(b"see", &bytes)));
        // Zeros count.
        assert_ne!(digest(b"", &[0; 63]), digest(b"", &[0; 64]));
    }
}
