use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};

use crate::{AudioError, BINS, FRAME, HOP, MelFilters, SAMPLE_RATE};

/// The power below which a band counts as silent.
const LEAST_POWER: f32 = 1e-10;
/// How far below the loudest band values go, in powers of ten.
const RANGE: f32 = 8.0;

/// The log-mel spectrogram of a recording, as Whisper's encoder reads it.
///
/// Frames are centred at multiples of [`HOP`], with the recording reflected at its beginning and followed by silence. A
/// frame of 400 samples under a periodic Hann window is transformed by a real FFT of 400 points (mixed radix, in f32). The
/// logarithm to base 10 of each band is at most 8 below the largest of the whole recording; then 4 is added, and the sum
/// divided by 4.
#[derive(Debug, Clone, PartialEq)]
pub struct LogMel {
    bands: usize,
    /// Frames that begin within the recording. The frames of the silence after it are `silence`.
    frames: usize,
    /// `[computed frames, bands]`.
    values: Vec<f32>,
    silence: f32,
}

impl LogMel {
    /// The spectrogram of samples at 16 kHz, computed by up to this many threads. The energy of samples that are far beyond ±1
    /// may be no finite number, which is an error.
    pub fn new(samples: &[f32], filters: &MelFilters, threads: usize) -> Result<LogMel, AudioError> {
        let bands = filters.bands();
        let frames = samples.len() / HOP;
        // The last frames that have a sample of the recording in them.
        let computed = (samples.len() + FRAME / 2).div_ceil(HOP);
        let mut values = vec![0.0; computed * bands];
        let transform = RealFftPlanner::<f32>::new().plan_fft_forward(FRAME);
        let share = computed.div_ceil(threads.max(1)).max(64);
        let parts = values.chunks_mut(share * bands).enumerate();
        let (mut most, bad) = std::thread::scope(|scope| {
            let all: Vec<_> = parts
                .map(|(n, part)| {
                    let transform = Arc::clone(&transform);
                    let mut work = move || frame_logs(samples, n * share, part, filters, &*transform);
                    // The last part is done here.
                    if (n + 1) * share < computed { Ok(scope.spawn(work)) } else { Err(work()) }
                })
                .collect();
            let done = all.into_iter().map(|part| match part {
                // A thread that panicked has left zeros, which cannot happen: the arithmetic has no panics.
                Ok(thread) => thread.join().unwrap_or((f32::NEG_INFINITY, None)),
                Err(most) => most,
            });
            done.fold((f32::NEG_INFINITY, None), |(most, bad), (other, frame)| {
                (most.max(other), bad.or(frame))
            })
        });
        if let Some(frame) = bad {
            return Err(AudioError::Spectrogram { seconds: (frame * HOP) as f64 / f64::from(SAMPLE_RATE) });
        }
        // The silence after the recording has the least power.
        let quiet = LEAST_POWER.log10();
        most = most.max(quiet);
        let scaled = |log: f32| (log.max(most - RANGE) + 4.0) / 4.0;
        values.iter_mut().for_each(|value| *value = scaled(*value));
        Ok(LogMel { bands, frames, values, silence: scaled(quiet) })
    }

    /// Bands of a frame.
    pub fn bands(&self) -> usize {
        self.bands
    }

    /// Frames of the recording, without the silence that follows it.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// `count` frames from `first` on as `[count, bands]`; silence after the recording.
    pub fn window(&self, first: usize, count: usize) -> Vec<f32> {
        self.window_until(first, count, usize::MAX)
    }

    /// As [`LogMel::window`], with silence from frame `end` on: windows that are decoded on their own end at a pause.
    pub fn window_until(&self, first: usize, count: usize, end: usize) -> Vec<f32> {
        let mut out = vec![self.silence; count * self.bands];
        let computed = (self.values.len() / self.bands).min(end);
        if first < computed {
            let held = (computed - first).min(count) * self.bands;
            out[..held].copy_from_slice(&self.values[first * self.bands..][..held]);
        }
        out
    }
}

/// The logarithms of the bands of some frames, the largest, and the first frame with a band that is not finite.
fn frame_logs(
    samples: &[f32],
    first: usize,
    out: &mut [f32],
    filters: &MelFilters,
    transform: &dyn RealToComplex<f32>,
) -> (f32, Option<usize>) {
    let window = hann();
    let mut input = [0.0f32; FRAME];
    let mut power = [0.0f32; BINS];
    let mut spectrum = [Complex::new(0.0f32, 0.0); BINS];
    let mut scratch = vec![Complex::new(0.0f32, 0.0); transform.get_scratch_len()];
    let (mut most, mut bad) = (f32::NEG_INFINITY, None);
    for (n, bands) in out.chunks_exact_mut(filters.bands()).enumerate() {
        let start = ((first + n) * HOP) as i64 - (FRAME / 2) as i64;
        for (i, (input, weight)) in input.iter_mut().zip(&window).enumerate() {
            // The signal is reflected at its beginning; after its end it is zero.
            let at = (start + i as i64).unsigned_abs() as usize;
            *input = samples.get(at).map_or(0.0, |x| x * weight);
        }
        // The lengths are those of the transform, so it cannot fail.
        if transform.process_with_scratch(&mut input, &mut spectrum, &mut scratch).is_err() {
            return (f32::NEG_INFINITY, None);
        }
        for (power, bin) in power.iter_mut().zip(&spectrum) {
            *power = bin.norm_sqr();
        }
        filters.apply(&power, bands);
        for band in bands {
            if !band.is_finite() {
                bad = bad.or(Some(first + n));
            }
            *band = band.max(LEAST_POWER).log10();
            most = most.max(*band);
        }
    }
    (most, bad)
}

/// The periodic Hann window.
fn hann() -> [f32; FRAME] {
    std::array::from_fn(|n| {
        let phase = 2.0 * std::f64::consts::PI * n as f64 / FRAME as f64;
        (0.5 - 0.5 * phase.cos()) as f32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, in f64, with the Fourier transform as a sum.
    fn reference(samples: &[f32], filters: &[Vec<f64>], frames: usize) -> Vec<f64> {
        use std::f64::consts::PI;
        let mut logs = Vec::new();
        for frame in 0..frames {
            let start = (frame * 160) as i64 - 200;
            let x: Vec<f64> = (0..400)
                .map(|i| {
                    let at = (start + i).unsigned_abs() as usize;
                    let sample = f64::from(samples.get(at).copied().unwrap_or(0.0));
                    sample * (0.5 - 0.5 * (2.0 * PI * i as f64 / 400.0).cos())
                })
                .collect();
            let power: Vec<f64> = (0..201)
                .map(|bin| {
                    let (mut re, mut im) = (0.0, 0.0);
                    for (i, x) in x.iter().enumerate() {
                        let phase = -2.0 * PI * ((bin * i) % 400) as f64 / 400.0;
                        re += x * phase.cos();
                        im += x * phase.sin();
                    }
                    re * re + im * im
                })
                .collect();
            for filter in filters {
                let energy: f64 = filter.iter().zip(&power).map(|(w, p)| w * p).sum();
                logs.push(energy.max(1e-10).log10());
            }
        }
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logs.iter().map(|log| (log.max(most - 8.0) + 4.0) / 4.0).collect()
    }

    fn signal(count: usize) -> Vec<f32> {
        let mut state = 7u32;
        (0..count)
            .map(|n| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let noise = (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
                let t = n as f32 / 16_000.0;
                0.3 * (2764.6 * t).sin() * (t * 3.0).cos() + 0.01 * noise
            })
            .collect()
    }

    #[test]
    fn it_is_the_definition_in_f64_within_a_ten_thousandth() {
        let samples = signal(8_000);
        for bands in [80, 128] {
            let filters = MelFilters::slaney(bands);
            let dense: Vec<Vec<f64>> = (0..bands)
                .map(|band| {
                    (0..BINS)
                        .map(|bin| {
                            let (mut power, mut out) = ([0.0; BINS], vec![0.0; bands]);
                            power[bin] = 1.0;
                            filters.apply(&power, &mut out);
                            f64::from(out[band])
                        })
                        .collect()
                })
                .collect();
            let expected = reference(&samples, &dense, 60);
            let mel = LogMel::new(&samples, &filters, 2).unwrap();
            assert_eq!(mel.frames(), 50);
            let found = mel.window(0, 60);
            for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert!((f64::from(*found) - expected).abs() < 1e-4, "value {n}: {found}, {expected}");
            }
        }
    }

    #[test]
    fn silence_is_a_constant_plane_and_threads_do_not_matter() {
        let filters = MelFilters::slaney(80);
        let mel = LogMel::new(&[0.0; 16_000], &filters, 1).unwrap();
        assert!(mel.window(0, 3000).iter().all(|value| *value == -1.5));
        let samples = signal(40_000);
        let one = LogMel::new(&samples, &filters, 1).unwrap();
        assert_eq!(one, LogMel::new(&samples, &filters, 3).unwrap());
        assert_eq!(one.window(240, 20)[15 * 80..], one.window(255, 5)[..]);
        assert_eq!(one.window_until(0, 10, 4)[4 * 80..], [one.silence; 6 * 80]);
        assert_eq!(LogMel::new(&[0.1], &filters, 4).unwrap().frames(), 0);
    }

    #[test]
    fn energy_that_is_not_finite_is_an_error_with_its_time() {
        let filters = MelFilters::slaney(80);
        for (value, threads) in [(1e20, 1), (1e20, 3), (3e38, 2)] {
            let mut samples = signal(64_000);
            samples[32_000..32_400].fill(value);
            let error = LogMel::new(&samples, &filters, threads).unwrap_err();
            let AudioError::Spectrogram { seconds } = error else { panic!("{error}") };
            assert!((1.98..=2.0).contains(&seconds), "{value}: {seconds}");
        }
    }
}
