//! The codebooks of a Vorbis stream.

use super::malformed;
use crate::AudioError;

/// Bytes of the packet that identifies a stream, which precedes the setup, and of the name of a packet.
const IDENTIFICATION: usize = 30;
const NAME: usize = 7;

const SYNC: u32 = 0x56_4342;

/// The most values of all codebooks: entries times dimensions. Encoders write fewer than a tenth of it.
const MOST_VALUES: u64 = 1 << 22;

/// Checks the codebooks of the packets that a decoder is made from. It makes a table of each, whose size is the product of
/// two declared numbers.
///
/// Where the bits end, or are no codebook, the decoder stops with an error of its own.
pub(crate) fn check_setup(packets: &[u8]) -> Result<(), AudioError> {
    let setup = packets.get(IDENTIFICATION + NAME..).unwrap_or(&[]);
    walk(&mut Bits { bytes: setup, at: 0 }).unwrap_or(Ok(()))
}

/// The result, or nothing where the bits end.
fn walk(bits: &mut Bits<'_>) -> Option<Result<(), AudioError>> {
    let books = bits.take(8)? + 1;
    let mut values = 0u64;
    for book in 0..books {
        if bits.take(24)? != SYNC {
            return None;
        }
        let (dimensions, entries) = (bits.take(16)?, bits.take(24)?);
        values += u64::from(dimensions) * u64::from(entries);
        if dimensions == 0 || entries == 0 || values > MOST_VALUES {
            let problem = format!(
                "codebook {book} has {entries} entries of {dimensions} dimensions; all may have {MOST_VALUES} values"
            );
            return Some(Err(malformed("Vorbis", problem)));
        }
        skip_lengths(bits, entries)?;
        let lookup = bits.take(4)?;
        let count = match lookup {
            0 => continue,
            1 => lookup_values(entries, dimensions),
            2 => u64::from(dimensions) * u64::from(entries),
            _ => return None,
        };
        bits.skip(64);
        let each = u64::from(bits.take(4)?) + 1;
        bits.skip(1 + count * each);
    }
    Some(Ok(()))
}

/// Passes over the lengths of a codebook's words.
fn skip_lengths(bits: &mut Bits<'_>, entries: u32) -> Option<()> {
    let is_ordered = bits.take(1)? == 1;
    if is_ordered {
        bits.skip(5);
        let mut left = entries;
        while left > 0 {
            left = left.checked_sub(bits.take(32 - left.leading_zeros())?)?;
        }
        return Some(());
    }
    let is_sparse = bits.take(1)? == 1;
    if !is_sparse {
        bits.skip(5 * u64::from(entries));
        return Some(());
    }
    for _ in 0..entries {
        if bits.take(1)? == 1 {
            bits.skip(5);
        }
    }
    Some(())
}

/// The largest number whose power by the dimensions is not beyond the entries.
fn lookup_values(entries: u32, dimensions: u32) -> u64 {
    let fits = |value: u64| value.checked_pow(dimensions).is_some_and(|power| power <= u64::from(entries));
    let (mut fitting, mut beyond) = (1, u64::from(entries) + 1);
    while fitting + 1 < beyond {
        let middle = fitting.midpoint(beyond);
        if fits(middle) { fitting = middle } else { beyond = middle }
    }
    fitting
}

/// Bits of a packet, the least significant one of each byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    /// In bits.
    at: u64,
}

impl Bits<'_> {
    /// A number of up to 32 bits.
    fn take(&mut self, count: u32) -> Option<u32> {
        let mut number = 0;
        for n in 0..count {
            let byte = self.bytes.get(usize::try_from(self.at / 8).ok()?)?;
            number |= u32::from(byte >> (self.at % 8) & 1) << n;
            self.at += 1;
        }
        Some(number)
    }

    fn skip(&mut self, count: u64) {
        self.at = self.at.saturating_add(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packets of a stream whose setup begins with these fields of so many bits.
    fn packets(fields: &[(u32, u32)]) -> Vec<u8> {
        let mut out = vec![0; IDENTIFICATION + NAME];
        let bits: Vec<u8> = fields
            .iter()
            .flat_map(|(count, value)| (0..*count).map(move |n| (value >> n & 1) as u8))
            .collect();
        let byte = |bits: &[u8]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | bit);
        out.extend(bits.chunks(8).map(byte));
        out
    }

    #[test]
    fn codebooks_of_too_many_values_are_errors() {
        let book = |dimensions, entries| [(24, SYNC), (16, dimensions), (24, entries)];
        let one = [&[(8, 0)][..], &book(65_535, 0xff_ffff)].concat();
        assert_eq!(
            check_setup(&packets(&one)).unwrap_err().to_string(),
            "malformed Vorbis data: codebook 0 has 16777215 entries of 65535 dimensions; all may have 4194304 values"
        );
        // The second book is found behind the first one: 4 entries of 2 dimensions, in each of the forms.
        let dense = [(1, 0), (1, 0), (20, 0x84210), (4, 1), (32, 0), (32, 0), (4, 2), (1, 0), (2 * 3, 0)];
        let sparse = [(1, 0), (1, 1), (6, 1), (1, 0), (6, 1), (1, 0), (4, 0)];
        let ordered = [(1, 1), (5, 0), (3, 2), (2, 2), (4, 2), (32, 0), (32, 0), (4, 0), (1, 0), (8, 0)];
        for form in [&dense[..], &sparse, &ordered] {
            let two = [&[(8, 1)][..], &book(2, 4), form, &book(0, 9)].concat();
            let error = check_setup(&packets(&two)).unwrap_err().to_string();
            assert!(error.contains("codebook 1 has 9 entries of 0 dimensions"), "{error}");
        }
        assert_eq!(check_setup(&packets(&[(8, 1)])), Ok(()));
        assert_eq!(check_setup(&[]), Ok(()));
        assert_eq!(
            [(8, 3), (9, 2), (26, 3), (6561, 8), (5, 16)].map(|(e, d)| lookup_values(e, d)),
            [2, 3, 2, 3, 1]
        );
    }
}
