//! What a file must pass before a reader of `symphonia` sees it.
//!
//! The readers reserve memory by lengths and counts that a file declares. So these are compared with the bytes that are there,
//! and tags, pictures and comments, which no sample needs, are taken out.

mod flac;
mod id3;
mod mp4;
mod ogg;
mod vorbis;

use symphonia::core::errors::Error;
use symphonia::core::formats::{FormatOptions, FormatReader};
use symphonia::core::io::{MediaSourceStream, ReadBytes};
use symphonia::default::formats::{AdtsReader, FlacReader, IsoMp4Reader, MpaReader, OggReader};

pub(crate) use vorbis::check_setup as check_vorbis_setup;

use crate::AudioError;

/// The containers of compressed audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Container {
    Flac,
    Ogg,
    Mp3,
    Adts,
    Mp4,
    /// Something else, in which frames of MP3 may be found.
    Unknown,
}

impl Container {
    /// Finds the container by its first bytes, and makes the file safe to read. Returns also the seconds before the recording
    /// begins, as far as boxes say it.
    pub(crate) fn prepare(bytes: &mut Vec<u8>) -> Result<(Container, f64), AudioError> {
        id3::remove(bytes)?;
        let container = Container::of(bytes);
        let mut delay = 0.0;
        match container {
            Container::Flac => flac::remove_metadata(bytes)?,
            Container::Ogg => ogg::hide_comments(bytes),
            Container::Mp4 => delay = mp4::check(bytes)?,
            Container::Mp3 | Container::Adts | Container::Unknown => {}
        }
        Ok((container, delay))
    }

    fn of(bytes: &[u8]) -> Container {
        match bytes {
            [b'f', b'L', b'a', b'C', ..] => Container::Flac,
            [b'O', b'g', b'g', b'S', ..] => Container::Ogg,
            // A layer of zero, which MPEG audio does not have.
            [0xff, second, ..] if second & 0xf6 == 0xf0 => Container::Adts,
            [0xff, 0xe0..=0xff, ..] => Container::Mp3,
            [_, _, _, _, b'f', b't', b'y', b'p', ..] => Container::Mp4,
            _ => Container::Unknown,
        }
    }

    /// The name of the format in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Container::Flac => "FLAC",
            Container::Ogg => "Ogg",
            Container::Mp3 => "MP3",
            Container::Adts => "AAC",
            Container::Mp4 => "M4A",
            Container::Unknown => "audio",
        }
    }

    /// The reader of the container. The format is not guessed again from bytes further on in the file.
    pub(crate) fn open(self, mut stream: MediaSourceStream) -> Result<Box<dyn FormatReader>, Error> {
        let options = FormatOptions::default();
        Ok(match self {
            Container::Flac => Box::new(FlacReader::try_new(stream, &options)?),
            Container::Ogg => Box::new(OggReader::try_new(stream, &options)?),
            Container::Adts => Box::new(AdtsReader::try_new(stream, &options)?),
            Container::Mp3 | Container::Unknown => Box::new(MpaReader::try_new(stream, &options)?),
            Container::Mp4 => {
                // This reader expects to stand at the name of the first box.
                stream.read_quad_bytes()?;
                Box::new(IsoMp4Reader::try_new(stream, &options)?)
            }
        })
    }
}

/// Malformed data of a container.
fn malformed(format: &'static str, problem: String) -> AudioError {
    AudioError::Malformed { format, problem }
}
