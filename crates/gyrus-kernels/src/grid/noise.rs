use std::f64::consts::TAU;

use crate::call::Storage;
use crate::random::random;
use crate::scalar;

/// Random numbers for test inputs, the same on every machine: the sampler's hash of a seed and a counter.
#[derive(Debug, Clone)]
pub struct Noise {
    seed: u64,
    step: u64,
}

impl Noise {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Noise {
        Noise { seed, step: 0 }
    }

    /// The next 32 bits.
    pub fn bits(&mut self) -> u32 {
        self.step += 1;
        (random(self.seed, self.step) >> 32) as u32
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        self.bits() % n
    }

    /// A number from −1 to 1.
    pub fn number(&mut self) -> f64 {
        f64::from(self.bits()) / 2f64.powi(31) - 1.0
    }

    /// Numbers from `-most` to `most`.
    pub fn floats(&mut self, n: usize, most: f64) -> Vec<f32> {
        (0..n).map(|_| (most * self.number()) as f32).collect()
    }

    /// A number of a standard normal distribution, by Box and Muller.
    pub fn gaussian(&mut self) -> f64 {
        let [radius, angle] =
            [1.0 + f64::from(self.bits()), f64::from(self.bits())].map(|v| v / 2f64.powi(32));
        (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()
    }

    /// Numbers of a standard normal distribution.
    pub fn gaussians(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.gaussian() as f32).collect()
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u32) as usize]
    }

    /// Words of arbitrary bits.
    pub fn words(&mut self, n: usize) -> Vec<u32> {
        (0..n).map(|_| self.bits()).collect()
    }

    /// Words of elements from −2 to 2, some of them zero, tiny or large. Buffers over a few megabytes repeat the
    /// sequence.
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
