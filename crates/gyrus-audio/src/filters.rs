use crate::{BINS, FRAME, SAMPLE_RATE};

/// The most bands of a filter bank.
const MOST_BANDS: usize = 1024;

/// A bank of mel filters: triangles over the frequencies of a frame.
#[derive(Debug, Clone, PartialEq)]
pub struct MelFilters {
    bands: Vec<Band>,
}

/// The weights of a band that are not zero.
#[derive(Debug, Clone, PartialEq)]
struct Band {
    first: usize,
    weights: Vec<f32>,
}

/// Why a filter bank cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterError {
    /// Not the frequencies of frames of 400 samples.
    #[error("a filter bank over {0} frequencies, 201 are expected")]
    Bins(usize),
    /// No bands, or more than any model has.
    #[error("a filter bank of {0} bands, from 1 to {MOST_BANDS} are possible")]
    Bands(usize),
    /// Not as many weights as bands and frequencies need.
    #[error("a filter bank of {0} weights, which is not bands × frequencies")]
    Weights(usize),
    /// A weight that is negative or not finite.
    #[error("band {0} of the filter bank has a weight that is negative or not finite")]
    Weight(usize),
}

impl MelFilters {
    /// The filters of a model's file, `[bands, bins]`.
    pub fn new(bands: usize, bins: usize, weights: &[f32]) -> Result<MelFilters, FilterError> {
        if bins != BINS {
            return Err(FilterError::Bins(bins));
        }
        if !(1..=MOST_BANDS).contains(&bands) {
            return Err(FilterError::Bands(bands));
        }
        if weights.len() != bands * bins {
            return Err(FilterError::Weights(weights.len()));
        }
        let sound = |row: &[f32]| row.iter().all(|w| w.is_finite() && *w >= 0.0);
        match weights.chunks_exact(bins).position(|row| !sound(row)) {
            Some(band) => Err(FilterError::Weight(band)),
            None => Ok(MelFilters { bands: weights.chunks_exact(bins).map(Band::new).collect() }),
        }
    }

    /// Slaney's scale and area normalisation from 0 to 8 kHz, as OpenAI's filters have it.
    ///
    /// # Panics
    /// If there are more than 1024 bands, or none.
    pub fn slaney(bands: usize) -> MelFilters {
        assert!((1..=MOST_BANDS).contains(&bands), "{bands} bands");
        let nyquist = f64::from(SAMPLE_RATE) / 2.0;
        let top = mel_of(nyquist);
        let edges: Vec<f64> = (0..bands + 2).map(|n| hertz_of(top * n as f64 / (bands + 1) as f64)).collect();
        let triangle = |edges: &[f64]| -> Band {
            let (low, centre, high) = (edges[0], edges[1], edges[2]);
            let area = 2.0 / (high - low);
            let row = (0..BINS).map(|bin| {
                let hertz = bin as f64 * f64::from(SAMPLE_RATE) / FRAME as f64;
                let (up, down) = ((hertz - low) / (centre - low), (high - hertz) / (high - centre));
                (up.min(down).max(0.0) * area) as f32
            });
            Band::new(&row.collect::<Vec<_>>())
        };
        MelFilters { bands: edges.windows(3).map(triangle).collect() }
    }

    /// Number of bands.
    pub fn bands(&self) -> usize {
        self.bands.len()
    }

    /// The energy of each band from the power of each frequency.
    pub(crate) fn apply(&self, power: &[f32; BINS], out: &mut [f32]) {
        for (band, out) in self.bands.iter().zip(out) {
            let power = &power[band.first..band.first + band.weights.len()];
            *out = band.weights.iter().zip(power).map(|(w, p)| w * p).sum();
        }
    }
}

impl Band {
    fn new(row: &[f32]) -> Band {
        let first = row.iter().position(|w| *w != 0.0).unwrap_or(0);
        let end = row.iter().rposition(|w| *w != 0.0).map_or(first, |last| last + 1);
        Band { first, weights: row[first..end].to_vec() }
    }
}

/// Linear up to 1 kHz, 15 mel, then logarithmic: 27 mel for a factor of 6.4.
fn mel_of(hertz: f64) -> f64 {
    if hertz < 1000.0 { hertz * 3.0 / 200.0 } else { 15.0 + 27.0 * (hertz / 1000.0).ln() / 6.4f64.ln() }
}

fn hertz_of(mel: f64) -> f64 {
    if mel < 15.0 { mel * 200.0 / 3.0 } else { 1000.0 * (6.4f64.ln() * (mel - 15.0) / 27.0).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn banks_that_do_not_fit_are_refused() {
        assert_eq!(MelFilters::new(80, 257, &[]), Err(FilterError::Bins(257)));
        assert_eq!(MelFilters::new(0, 201, &[]), Err(FilterError::Bands(0)));
        assert_eq!(MelFilters::new(1 << 40, 201, &[]), Err(FilterError::Bands(1 << 40)));
        assert_eq!(MelFilters::new(2, 201, &[0.0; 201]), Err(FilterError::Weights(201)));
        let mut weights = [0.0; 402];
        weights[300] = f32::NAN;
        assert_eq!(MelFilters::new(2, 201, &weights), Err(FilterError::Weight(1)));
    }

    #[test]
    fn every_band_of_whisper_has_a_frequency_and_an_area_of_about_one() {
        for bands in [80, 128] {
            let filters = MelFilters::slaney(bands);
            assert_eq!(filters.bands(), bands);
            for (n, band) in filters.bands.iter().enumerate() {
                assert!(!band.weights.is_empty(), "band {n} of {bands}");
            }
            // The sum over 40 Hz bins is the area under the triangle.
            let last = &filters.bands[bands - 1];
            assert!((last.weights.iter().sum::<f32>() * 40.0 - 1.0).abs() < 0.02);
        }
    }
}
