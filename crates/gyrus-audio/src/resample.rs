//! Sample rate conversion by a polyphase windowed sinc.
//!
//! The kernel is a sinc of 32 zero crossings to each side under a Kaiser window with β = 10 (100 dB of attenuation). It passes
//! up to 79 % of the lower of the two Nyquist frequencies within 0.1 dB, and stops above 100 %.

use std::f64::consts::PI;
use std::ops::RangeInclusive;

use crate::{AudioError, SAMPLE_RATE};

/// Sample rates that are taken.
pub(crate) const RATES: RangeInclusive<u32> = 1_000..=768_000;

/// Zero crossings of the sinc on each side of its centre.
const CROSSINGS: f64 = 32.0;
/// The shape of the Kaiser window: 100 dB.
const BETA: f64 = 10.0;
/// The middle of the transition band, relative to the lower Nyquist frequency. The band is 2·3.2/32 of it wide in all.
const CUTOFF: f64 = 0.9;
/// The most phases of the kernel that are tabulated. With more of them, neighbouring ones are interpolated.
const MOST_PHASES: usize = 1024;

/// The samples at 16 kHz.
pub(crate) fn to_16_khz(samples: &[f32], rate: u32) -> Result<Vec<f32>, AudioError> {
    let mut resampler = Resampler::new(rate)?;
    let mut out = Vec::new();
    resampler.push(samples, &mut out);
    resampler.finish(&mut out);
    Ok(out)
}

/// Converts samples part by part. The result has the same bits however they are divided.
pub(crate) struct Resampler {
    /// None at 16 kHz.
    kernel: Option<Kernel>,
    /// An output sample n is at n·step/phases of the input.
    step: usize,
    phases: usize,
    /// Samples that outputs to come still need, the first of which is sample `first` of the input.
    kept: Vec<f32>,
    first: usize,
    /// The place of the next output: `whole + part/phases`.
    whole: usize,
    part: usize,
}

impl Resampler {
    /// From this rate.
    pub(crate) fn new(rate: u32) -> Result<Resampler, AudioError> {
        if !RATES.contains(&rate) {
            return Err(AudioError::Rate(rate));
        }
        let common = gcd(rate, SAMPLE_RATE);
        let (step, phases) = ((rate / common) as usize, (SAMPLE_RATE / common) as usize);
        let kernel = (rate != SAMPLE_RATE).then(|| Kernel::new(f64::from(rate), phases.min(MOST_PHASES)));
        Ok(Resampler { kernel, step, phases, kept: Vec::new(), first: 0, whole: 0, part: 0 })
    }

    /// Takes the next samples, and appends the outputs that depend on no later ones.
    pub(crate) fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        let Some(kernel) = &self.kernel else { return out.extend_from_slice(samples) };
        let half = kernel.half;
        self.kept.extend_from_slice(samples);
        // The taps of an output reach `half` samples beyond it.
        let known = self.first + self.kept.len();
        self.outputs(known.saturating_sub(half), out);
        // What no output needs is given up, seldom enough to be cheap.
        let needless = self.whole.saturating_sub(half).saturating_sub(self.first).min(self.kept.len());
        if needless > self.kept.len() / 2 {
            self.kept.drain(..needless);
            self.first += needless;
        }
    }

    /// Appends the last outputs, those within the input.
    pub(crate) fn finish(&mut self, out: &mut Vec<f32>) {
        self.outputs(self.first + self.kept.len(), out);
    }

    /// Appends the outputs before a sample of the input.
    fn outputs(&mut self, before: usize, out: &mut Vec<f32>) {
        let Some(kernel) = &self.kernel else { return };
        while self.whole < before {
            out.push(kernel.at(&self.kept, self.first, self.whole, self.part, self.phases));
            self.part += self.step;
            self.whole += self.part / self.phases;
            self.part %= self.phases;
        }
    }
}

/// The taps of each phase.
struct Kernel {
    /// Taps to each side of the centre.
    half: usize,
    /// `[phases + 1, 2·half]`: those of phase `p` are for an output `p/phases` after an input sample.
    taps: Vec<f32>,
    phases: usize,
}

impl Kernel {
    fn new(rate: f64, phases: usize) -> Kernel {
        // Relative to the input's rate: the sinc is wider if the output has the lower one.
        let scale = (f64::from(SAMPLE_RATE) / rate).min(1.0) * CUTOFF;
        let reach = CROSSINGS / scale;
        let half = reach.ceil() as usize;
        let mut taps = Vec::with_capacity((phases + 1) * 2 * half);
        for phase in 0..=phases {
            let offset = phase as f64 / phases as f64;
            let row = (0..2 * half).map(|tap| {
                let distance = tap as f64 - (half - 1) as f64 - offset;
                scale * sinc(distance * scale) * kaiser(distance / reach)
            });
            let row: Vec<f64> = row.collect();
            // A constant stays what it is in every phase.
            let sum: f64 = row.iter().sum();
            taps.extend(row.iter().map(|tap| (tap / sum) as f32));
        }
        Kernel { half, taps, phases }
    }

    /// The signal `part/parts` of a sample after `whole`. Before its beginning and after its end it is zero. The samples are
    /// those from `start` on.
    fn at(&self, samples: &[f32], start: usize, whole: usize, part: usize, parts: usize) -> f32 {
        if self.phases == parts {
            return self.sum(samples, start, whole, part);
        }
        let place = part as f64 / parts as f64 * self.phases as f64;
        let phase = place as usize;
        let weight = (place - phase as f64) as f32;
        let (a, b) = (self.sum(samples, start, whole, phase), self.sum(samples, start, whole, phase + 1));
        a + (b - a) * weight
    }

    fn sum(&self, samples: &[f32], start: usize, whole: usize, phase: usize) -> f32 {
        let width = 2 * self.half;
        let taps = &self.taps[phase * width..][..width];
        // Tap `half - 1` is at sample `whole`.
        let first = whole as i64 - (self.half as i64 - 1);
        let skip = (-first).clamp(0, width as i64) as usize;
        let from = ((first + skip as i64).max(0) as usize).saturating_sub(start);
        let Some(inputs) = samples.get(from..) else { return 0.0 };
        // Sixteen sums, which the compiler keeps in vector registers.
        let (taps, mut lanes) = (&taps[skip..], [0.0f32; 16]);
        let count = taps.len().min(inputs.len());
        let (taps, inputs) = (&taps[..count], &inputs[..count]);
        let (mut a, mut b) = (taps.chunks_exact(16), inputs.chunks_exact(16));
        for (a, b) in (&mut a).zip(&mut b) {
            for lane in 0..16 {
                lanes[lane] += a[lane] * b[lane];
            }
        }
        let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
        lanes.iter().sum::<f32>() + rest
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

/// The Kaiser window at `x` of ±1.
fn kaiser(x: f64) -> f64 {
    if x.abs() >= 1.0 { 0.0 } else { bessel(BETA * (1.0 - x * x).sqrt()) / bessel(BETA) }
}

/// The modified Bessel function of the first kind and order zero.
fn bessel(x: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for n in 1..60 {
        term *= (x / (2.0 * f64::from(n))).powi(2);
        sum += term;
    }
    sum
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tone of this frequency, and the amplitudes of the same frequency and of all else after conversion.
    fn tone(rate: u32, frequency: f64) -> (f64, f64) {
        let count = rate as usize;
        let wave = (0..count).map(|n| (2.0 * PI * frequency * n as f64 / f64::from(rate)).sin() as f32);
        let out = to_16_khz(&wave.collect::<Vec<_>>(), rate).unwrap();
        assert_eq!(out.len(), 16_000);
        // The ends have the tone's beginning and end.
        let inner = &out[2_000..14_000];
        let phase = |n: usize| 2.0 * PI * frequency * (n + 2_000) as f64 / 16_000.0;
        let (mut sine, mut cosine) = (0.0, 0.0);
        for (n, &x) in inner.iter().enumerate() {
            sine += f64::from(x) * phase(n).sin() * 2.0 / inner.len() as f64;
            cosine += f64::from(x) * phase(n).cos() * 2.0 / inner.len() as f64;
        }
        let rest = inner
            .iter()
            .enumerate()
            .map(|(n, &x)| (f64::from(x) - sine * phase(n).sin() - cosine * phase(n).cos()).abs());
        let rest = gyrus_testkit::largest(rest);
        // In place: no phase shift.
        (if cosine.abs() < 1e-4 { sine } else { f64::NAN }, rest)
    }

    #[test]
    fn tones_below_the_cutoff_pass_and_others_do_not() {
        for rate in [8_000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 44_101] {
            let nyquist = f64::from(rate.min(16_000)) / 2.0;
            for frequency in [100.0, 1_000.0, 3_000.0, 0.79 * nyquist] {
                let (amplitude, rest) = tone(rate, frequency);
                assert!((amplitude - 1.0).abs() < 0.012, "{rate} Hz, {frequency} Hz: {amplitude}");
                assert!(rest < 1e-4, "{rate} Hz, {frequency} Hz: {rest}");
            }
            if rate > 16_000 {
                let count = rate as usize;
                let wave = (0..count).map(|n| (2.0 * PI * 8_400.0 * n as f64 / f64::from(rate)).sin() as f32);
                let out = to_16_khz(&wave.collect::<Vec<_>>(), rate).unwrap();
                let most = out[2_000..14_000].iter().fold(0.0f32, |m, x| m.max(x.abs()));
                assert!(most < 1e-4, "{rate} Hz: {most}");
            }
        }
    }

    #[test]
    fn a_constant_stays_a_constant_at_any_rate() {
        for rate in [8_000, 16_000, 44_100, 44_101, 47_999, 192_000] {
            let out = to_16_khz(&vec![0.5; rate as usize], rate).unwrap();
            assert!(out[4_000..12_000].iter().all(|x| (x - 0.5).abs() < 1e-5), "{rate}");
        }
    }

    #[test]
    fn parts_have_the_bits_of_the_whole() {
        let wave: Vec<f32> = (0..30_011).map(|n| (n as f32 * 0.37).sin()).collect();
        for rate in [8_000, 16_000, 44_100, 44_101, 192_000] {
            for size in [1, 160, 1_152, 20_000] {
                let (mut resampler, mut out) = (Resampler::new(rate).unwrap(), Vec::new());
                for part in wave.chunks(size) {
                    resampler.push(part, &mut out);
                    assert!(resampler.kept.len() < 2 * (size + 1_000), "{rate} Hz in parts of {size}");
                }
                resampler.finish(&mut out);
                assert!(out == to_16_khz(&wave, rate).unwrap(), "{rate} Hz in parts of {size}");
            }
        }
    }

    #[test]
    fn rates_that_no_audio_has_are_refused() {
        for rate in [0, 999, 768_001, u32::MAX] {
            assert_eq!(to_16_khz(&[0.0], rate), Err(AudioError::Rate(rate)));
        }
    }
}
