//! Comments and pictures in Ogg files.

use std::collections::HashSet;

const MARKER: &[u8; 4] = b"OggS";
const HEADER: usize = 27;
/// Where the checksum of a page is.
const SUM: std::ops::Range<usize> = 22..26;

/// Flags of a page: it begins within a packet, or is the first of its stream.
const CONTINUED: u8 = 1;
const FIRST: u8 = 2;

/// How a Vorbis packet of comments begins, and the first byte of one that readers skip.
const COMMENTS: &[u8] = b"\x03vorbis";
const SKIPPED: u8 = 7;
/// Blocks of FLAC's metadata: padding, comments, a picture; the upper bit marks the last block.
const FLAC_PADDING: u8 = 1;
const FLAC_COMMENTS: u8 = 4;
const FLAC_PICTURE: u8 = 6;
const FLAC_LAST: u8 = 0x80;

/// Gives packets of comments and pictures a type that the reader skips, since it would reserve their declared lengths.
///
/// Pages are found as the reader finds them: after a page that is damaged the search goes on behind its marker.
pub(super) fn hide_comments(bytes: &mut [u8]) {
    let mut flac_streams = HashSet::new();
    let mut at = 0;
    while let Some(start) = find_marker(bytes, at) {
        let Some(header) = bytes.get(start..start + HEADER) else { return };
        let (version, flags) = (header[4], header[5]);
        let serial = [header[14], header[15], header[16], header[17]];
        if version != 0 || flags & 0xf8 != 0 {
            at = start + HEADER;
            continue;
        }
        let body = start + HEADER + usize::from(header[26]);
        let Some(table) = bytes.get(start + HEADER..body) else { return };
        let end = body + table.iter().map(|length| usize::from(*length)).sum::<usize>();
        let starts = packet_starts(table, body, flags & CONTINUED != 0);
        let Some(page) = bytes.get_mut(start..end) else { return };
        if sum_of(page) != page[SUM] {
            at = start + MARKER.len();
            continue;
        }
        at = end;
        let mut changed = false;
        for packet in starts {
            let packet = &mut page[packet - start..];
            if flags & FIRST != 0 && packet.starts_with(b"\x7fFLAC") {
                flac_streams.insert(serial);
            } else if packet.starts_with(COMMENTS) {
                packet[0] = SKIPPED;
                changed = true;
            } else if flac_streams.contains(&serial)
                && let Some(kind @ (FLAC_COMMENTS | FLAC_PICTURE)) = packet.first().map(|k| k & !FLAC_LAST)
            {
                packet[0] ^= kind ^ FLAC_PADDING;
                changed = true;
            }
        }
        if changed {
            let sum = sum_of(page);
            page[SUM].copy_from_slice(&sum);
        }
    }
}

fn find_marker(bytes: &[u8], from: usize) -> Option<usize> {
    let found = bytes.get(from..)?.windows(MARKER.len()).position(|four| four == MARKER);
    found.map(|at| from + at)
}

/// Where packets begin that a page's table of segments lists. A segment of less than 255 bytes ends a packet.
fn packet_starts(table: &[u8], body: usize, is_continued: bool) -> Vec<usize> {
    let (mut at, mut begins, mut starts) = (body, !is_continued, Vec::new());
    for &length in table {
        if begins {
            starts.push(at);
        }
        at += usize::from(length);
        begins = length < 255;
    }
    starts
}

/// The checksum of a page, as it is stored.
fn sum_of(page: &[u8]) -> [u8; 4] {
    let step = |sum: u32, byte: u8| sum << 8 ^ CRC[usize::from((sum >> 24) as u8 ^ byte)];
    let mut sum = page[..SUM.start].iter().fold(0, |sum, byte| step(sum, *byte));
    sum = SUM.fold(sum, |sum, _| step(sum, 0));
    page[SUM.end..].iter().fold(sum, |sum, byte| step(sum, *byte)).to_le_bytes()
}

/// CRC-32 with the polynomial 0x04c11db7, most significant bit first.
const CRC: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut n = 0;
    while n < 256 {
        let (mut sum, mut bit) = ((n as u32) << 24, 0);
        while bit < 8 {
            sum = if sum >> 31 == 1 { sum << 1 ^ 0x04c1_1db7 } else { sum << 1 };
            bit += 1;
        }
        table[n] = sum;
        n += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of one stream with these packets, each shorter than 255 bytes.
    fn page(flags: u8, packets: &[&[u8]]) -> Vec<u8> {
        let mut page = [MARKER.as_slice(), &[0, flags], &[0; 8], &[9; 4], &[0; 8]].concat();
        page.push(packets.len() as u8);
        page.extend(packets.iter().map(|packet| packet.len() as u8));
        page.extend(packets.concat());
        let sum = sum_of(&page);
        page[SUM].copy_from_slice(&sum);
        page
    }

    #[test]
    fn comments_are_hidden_and_the_sum_is_right_again() {
        let mut bytes =
            [page(FIRST, &[b"\x01vorbis"]), page(0, &[b"\x03vorbis\xff\xff", b"\x05vorbis"])].concat();
        hide_comments(&mut bytes);
        let expected =
            [page(FIRST, &[b"\x01vorbis"]), page(0, &[b"\x07vorbis\xff\xff", b"\x05vorbis"])].concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn blocks_of_flac_become_padding_in_streams_of_flac_only() {
        let audio = page(0, &[b"\x04 not FLAC", b"\x86 not FLAC"]);
        let mut other = audio.clone();
        hide_comments(&mut other);
        assert_eq!(other, audio);
        let mut bytes = [page(FIRST, &[b"\x7fFLAC"]), page(CONTINUED, &[b"\x04", b"\x04", b"\x86"])].concat();
        hide_comments(&mut bytes);
        let expected = [page(FIRST, &[b"\x7fFLAC"]), page(CONTINUED, &[b"\x04", b"\x01", b"\x81"])].concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_page_within_a_damaged_one_is_found() {
        let inner = page(0, &[b"\x03vorbis"]);
        let mut outer = page(0, &[&inner]);
        outer[6] ^= 1;
        hide_comments(&mut outer);
        assert!(outer.ends_with(&page(0, &[b"\x07vorbis"])));
        for length in 0..outer.len() {
            hide_comments(&mut outer.clone()[..length]);
        }
    }
}
