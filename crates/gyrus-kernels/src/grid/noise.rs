use crate::call::Storage;
use crate::scalar;

/// Numbers that look random and are the same everywhere: a hash of a counter.
#[derive(Debug, Clone)]
pub struct Noise(u64);

impl Noise {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// The next 32 bits.
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        z = (z ^ (z >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (z >> 32) as u32
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        self.bits() % n
    }

    /// A number from −1 to 1.
    pub fn number(&mut self) -> f64 {
        f64::from(self.bits()) / 2f64.powi(31) - 1.0
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u32) as usize]
    }

    /// Words of arbitrary bits.
    pub fn words(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| self.bits()).collect()
    }

    /// Words of elements from −2 to 2, some of them zero, tiny or large. What is longer than a few megabytes
    /// repeats itself.
    pub fn elements(&mut self, storage: Storage, words: usize) -> Vec<u32> {
        const PERIOD: usize = 1_000_003;
        if words > PERIOD {
            let some = self.elements(storage, PERIOD);
            return some.iter().copied().cycle().take(words).collect();
        }
        let mut buffer = vec![0; words];
        for at in 0..words * (4 / storage.bytes() as usize) {
            let value = match self.below(64) {
                0 => 0.0,
                1 => self.number() * 1e-6,
                2 => self.number() * 1e4,
                _ => self.number() * 2.0,
            };
            scalar::set(&mut buffer, storage, at, value);
        }
        buffer
    }
}
