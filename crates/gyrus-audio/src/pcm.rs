use crate::AudioError;

/// How one sample is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pcm {
    /// Unsigned, around 128.
    U8,
    /// Signed 16 bits, little-endian.
    S16,
    /// Signed 24 bits in three bytes, little-endian.
    S24,
    /// Signed 32 bits, little-endian.
    S32,
    /// `f32`, little-endian.
    F32,
    /// `f64`, little-endian.
    F64,
    /// 8-bit A-law of ITU-T G.711.
    ALaw,
    /// 8-bit µ-law of ITU-T G.711.
    MuLaw,
}

/// The layout of raw samples, whose channels are interleaved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PcmFormat {
    /// How a sample is stored.
    pub pcm: Pcm,
    /// Samples a second.
    pub rate: u32,
    /// Channels.
    pub channels: usize,
}

/// The most channels of a file.
const MOST_CHANNELS: usize = 64;

impl Pcm {
    /// Bytes of one sample of one channel.
    pub const fn bytes(self) -> usize {
        match self {
            Pcm::U8 | Pcm::ALaw | Pcm::MuLaw => 1,
            Pcm::S16 => 2,
            Pcm::S24 => 3,
            Pcm::S32 | Pcm::F32 => 4,
            Pcm::F64 => 8,
        }
    }

    /// The value of a sample of [`Pcm::bytes`] bytes, within ±1 unless it is a float.
    fn value(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Pcm::U8, &[a]) => (f32::from(a) - 128.0) / 128.0,
            (Pcm::S16, &[a, b]) => f32::from(i16::from_le_bytes([a, b])) / 32_768.0,
            (Pcm::S24, &[a, b, c]) => (i32::from_le_bytes([0, a, b, c]) >> 8) as f32 / 8_388_608.0,
            (Pcm::S32, &[a, b, c, d]) => i32::from_le_bytes([a, b, c, d]) as f32 / 2_147_483_648.0,
            (Pcm::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Pcm::F64, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32,
            (Pcm::ALaw, &[a]) => f32::from(a_law(a)) / 32_768.0,
            (Pcm::MuLaw, &[a]) => f32::from(mu_law(a)) / 32_768.0,
            // The caller divides the bytes by this type's size.
            _ => 0.0,
        }
    }
}

impl PcmFormat {
    /// Checks the number of channels.
    pub(crate) fn check(&self) -> Result<(), AudioError> {
        check_channels(self.channels)
    }

    /// Bytes of a sample of all channels.
    pub const fn frame_bytes(&self) -> usize {
        self.pcm.bytes() * self.channels
    }

    /// The mean of the channels, sample by sample. A partial sample at the end is left out.
    pub(crate) fn mixed(&self, bytes: &[u8]) -> Vec<f32> {
        let (size, scale) = (self.pcm.bytes(), 1.0 / self.channels as f32);
        let frames = bytes.chunks_exact(self.frame_bytes());
        frames
            .map(|frame| frame.chunks_exact(size).map(|sample| self.pcm.value(sample)).sum::<f32>() * scale)
            .collect()
    }
}

pub(crate) fn check_channels(channels: usize) -> Result<(), AudioError> {
    if (1..=MOST_CHANNELS).contains(&channels) { Ok(()) } else { Err(AudioError::Channels(channels)) }
}

/// G.711: three bits of exponent and four of mantissa, with the even bits inverted.
fn a_law(byte: u8) -> i16 {
    let byte = byte ^ 0x55;
    let (exponent, mantissa) = ((byte >> 4) & 7, i16::from(byte & 15));
    let magnitude = match exponent {
        0 => (mantissa << 4) + 8,
        _ => ((mantissa << 4) + 0x108) << (exponent - 1),
    };
    if byte & 0x80 != 0 { magnitude } else { -magnitude }
}

/// G.711: inverted, with a bias of 132.
fn mu_law(byte: u8) -> i16 {
    let byte = !byte;
    let (exponent, mantissa) = ((byte >> 4) & 7, i16::from(byte & 15));
    let magnitude = (((mantissa << 3) + 0x84) << exponent) - 0x84;
    if byte & 0x80 != 0 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_all_widths_have_the_same_scale() {
        for (pcm, low, high) in [
            (Pcm::U8, vec![0], vec![192]),
            (Pcm::S16, vec![0, 0x80], vec![0, 0x40]),
            (Pcm::S24, vec![0, 0, 0x80], vec![0, 0, 0x40]),
            (Pcm::S32, vec![0, 0, 0, 0x80], vec![0, 0, 0, 0x40]),
            (Pcm::F32, (-1f32).to_le_bytes().to_vec(), 0.5f32.to_le_bytes().to_vec()),
            (Pcm::F64, (-1f64).to_le_bytes().to_vec(), 0.5f64.to_le_bytes().to_vec()),
        ] {
            let format = PcmFormat { pcm, rate: 16_000, channels: 1 };
            assert_eq!(format.mixed(&[low, high].concat()), [-1.0, 0.5], "{pcm:?}");
        }
    }

    #[test]
    fn companded_samples_have_the_values_of_the_standard() {
        assert_eq!([0xd5, 0x55, 0xaa, 0x2a].map(a_law), [8, -8, 32_256, -32_256]);
        assert_eq!([0xff, 0x7f, 0x80, 0x00].map(mu_law), [0, 0, 32_124, -32_124]);
    }

    #[test]
    fn channels_are_averaged() {
        let format = PcmFormat { pcm: Pcm::S16, rate: 8_000, channels: 2 };
        assert_eq!(format.mixed(&[0, 0x40, 0, 0xc0, 0, 0x40, 0, 0]), [0.0, 0.25]);
    }
}
