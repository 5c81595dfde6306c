//! Files that declare lengths and counts that they do not have. The decoders would reserve memory by them.

use gyrus_audio::{Limits, Waveform};
use gyrus_testkit::repository;

fn file(name: &str) -> Vec<u8> {
    std::fs::read(repository().join("tests/data/audio").join(name)).unwrap()
}

fn message(bytes: Vec<u8>) -> String {
    Waveform::decode(bytes, &Limits::default()).unwrap_err().to_string()
}

/// Where a box begins.
fn at(bytes: &[u8], name: &[u8; 4]) -> usize {
    bytes.windows(4).position(|four| four == name).unwrap() - 4
}

/// The test file with other bytes at an offset from the beginning of a box.
fn m4a(name: &[u8; 4], offset: usize, other: &[u8]) -> Vec<u8> {
    let mut bytes = file("speech.m4a");
    let place = at(&bytes, name) + offset;
    bytes[place..place + other.len()].copy_from_slice(other);
    bytes
}

#[test]
fn tables_of_an_m4a_have_the_entries_that_they_declare() {
    for (name, each) in [(b"stts", 8), (b"stsc", 12), (b"stco", 4)] {
        let error = message(m4a(name, 12, &[0xff; 4]));
        let name = name.escape_ascii();
        let expected = format!("malformed M4A data: 4294967295 entries of {each} bytes each in the ");
        assert!(error.starts_with(&expected) && error.contains(&format!("'{name}'")), "{error}");
    }
    let mut co64 = m4a(b"stco", 12, &[0, 0, 1, 0]);
    let place = at(&co64, b"stco");
    co64[place + 4..place + 8].copy_from_slice(b"co64");
    assert!(message(co64).contains("256 entries of 8 bytes each in the 4 bytes of the box 'co64'"));
    assert!(message(m4a(b"stsz", 16, &[0xff; 4])).contains("4294967295 entries of 4 bytes each"));
    let error = message(m4a(b"stsz", 20, &[0xff; 4]));
    assert!(
        error.contains("a sample of 4294967295 bytes in a file of 7309 bytes in the box 'stsz'"),
        "{error}"
    );
    let error = message(m4a(b"stsz", 12, &[0xff; 4]));
    assert!(
        error.starts_with("the file is truncated: it declares 66 samples of 4294967295 bytes each"),
        "{error}"
    );
}

#[test]
fn boxes_of_an_m4a_end_within_their_parents() {
    let error = message(m4a(b"hdlr", 0, &[0x7f, 0xff, 0xff, 0xff]));
    assert!(error.contains("box 'hdlr' of 2147483647 bytes at byte 6611, of which 637 are left"), "{error}");
    let long = [&[0, 0, 0, 1][..], b"hdlr", &(1u64 << 40).to_be_bytes()].concat();
    assert!(message(m4a(b"hdlr", 0, &long)).contains("box 'hdlr' of 1099511627776 bytes"));
    assert!(message(m4a(b"hdlr", 0, &[0, 0, 0, 20])).contains("12 bytes, 24 are needed, in the box 'hdlr'"));
    assert!(
        message(m4a(b"moov", 0, &[0, 1, 0, 0]))
            .starts_with("the file is truncated: it declares a box 'moov'")
    );
    assert!(message(m4a(b"trak", 0, &[0, 0, 0, 0])).contains("box 'trak' of 0 bytes"));
    // The first of the descriptor's lengths.
    let error = message(m4a(b"esds", 13, &[0xff, 0xff, 0xff, 0x7f]));
    assert!(error.contains("descriptor 3 of 268435455 bytes"), "{error}");
    let mut deep = file("speech.m4a");
    let boxes = (0..20u32).rev().flat_map(|n| [&(8 * (n + 1)).to_be_bytes()[..], b"moov"].concat());
    deep.extend(boxes);
    assert!(message(deep).contains("boxes within more than 16 others"));
}

#[test]
fn tags_of_an_m4a_are_not_read() {
    let whole = Waveform::decode(file("speech.m4a"), &Limits::default()).unwrap();
    let damaged = m4a(b"meta", 8, &[0xff; 40]);
    assert_eq!(Waveform::decode(damaged, &Limits::default()).unwrap(), whole);
}

#[test]
fn the_length_of_an_m4a_is_in_its_own_unit_of_time() {
    let whole = Waveform::decode(file("speech.m4a"), &Limits::default()).unwrap();
    // A unit of 1/90000 s, a duration in it, and the encoder's delay of 1,024 samples.
    let units = [90_000u32.to_be_bytes(), 135_000u32.to_be_bytes()].concat();
    let mut in_units = m4a(b"mdhd", 20, &units);
    let edits = at(&in_units, b"elst");
    in_units[edits + 20..edits + 24].copy_from_slice(&2_090u32.to_be_bytes());
    for bytes in [in_units, m4a(b"mdhd", 24, &[0xff; 4])] {
        assert_eq!(Waveform::decode(bytes, &Limits::default()).unwrap(), whole);
    }
    let error = message(m4a(b"mdhd", 24, &[0, 0x7f, 0xff, 0xff]));
    assert!(error.starts_with("the file is truncated: it declares "), "{error}");
}

/// The test file with another table of times.
fn with_times(entries: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = file("speech.m4a");
    let place = at(&bytes, b"stts");
    let length = u32::from_be_bytes(*bytes[place..].first_chunk().unwrap()) as usize;
    let mut table = [0, entries.len() as u32].map(u32::to_be_bytes).concat();
    table.extend(entries.iter().flat_map(|(count, each)| [*count, *each]).flat_map(u32::to_be_bytes));
    let header = [&(table.len() as u32 + 8).to_be_bytes()[..], b"stts"].concat();
    let grown = (table.len() + 8 - length) as u32;
    bytes.splice(place..place + length, [header, table].concat());
    // The boxes around it. The samples come before them.
    for name in [b"moov", b"trak", b"mdia", b"minf", b"stbl"] {
        let place = at(&bytes, name);
        assert!(place > at(&bytes, b"mdat"));
        let length = u32::from_be_bytes(*bytes[place..].first_chunk().unwrap()) + grown;
        bytes[place..place + 4].copy_from_slice(&length.to_be_bytes());
    }
    bytes
}

#[test]
fn times_of_an_m4a_decide_nothing_that_is_decoded() {
    let whole = Waveform::decode(file("speech.m4a"), &Limits::default()).unwrap();
    let each: Vec<(u32, u32)> = (0..66).flat_map(|n| [(0, n), (1, 1000 + n)]).collect();
    assert_eq!(Waveform::decode(with_times(&each), &Limits::default()).unwrap(), whole);
}

/// The reader looks through the table of times for each sample: 5,000 samples and two million entries took it minutes.
#[test]
fn a_long_table_of_times_takes_no_time() {
    const SAMPLES: u32 = 5_000;
    let mut entries = vec![(0, 1); 2_000_000];
    entries.push((SAMPLES, 1024));
    let mut bytes = with_times(&entries);
    let number = |bytes: &[u8], name, offset| {
        u32::from_be_bytes(*bytes[at(bytes, name) + offset..].first_chunk().unwrap())
    };
    // The first packet again and again, after the samples of the file.
    let (size, place) = (number(&bytes, b"stsz", 20), number(&bytes, b"stco", 16) as usize);
    let packets = bytes[place..place + size as usize].repeat(SAMPLES as usize);
    let (mdat, chunk) = (at(&bytes, b"mdat"), at(&bytes, b"moov"));
    let length = number(&bytes, b"mdat", 0) + packets.len() as u32;
    bytes[mdat..mdat + 4].copy_from_slice(&length.to_be_bytes());
    bytes.splice(chunk..chunk, packets);
    for (name, offset, numbers) in
        [(b"stsz", 12, &[size, SAMPLES][..]), (b"stsc", 12, &[1, 1, SAMPLES]), (b"stco", 16, &[chunk as u32])]
    {
        let numbers: Vec<u8> = numbers.iter().copied().flat_map(u32::to_be_bytes).collect();
        let place = at(&bytes, name) + offset;
        bytes[place..place + numbers.len()].copy_from_slice(&numbers);
    }
    let started = std::time::Instant::now();
    let found = Waveform::decode(bytes, &Limits::default()).unwrap();
    let expected = f64::from(SAMPLES) * 1024.0 / 44_100.0;
    assert!((found.seconds() - expected).abs() < 1.0, "{} s", found.seconds());
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

#[test]
fn an_m4a_of_very_many_tracks_is_refused() {
    let mut bytes = file("speech.m4a");
    let tracks = [&8u32.to_be_bytes()[..], b"trak"].concat().repeat(100);
    bytes.extend((tracks.len() as u32 + 8).to_be_bytes());
    bytes.extend(b"moov");
    bytes.extend(tracks);
    assert_eq!(message(bytes), "malformed M4A data: 101 tracks; a file may have 64");
}

/// The length of a comment of 4 GiB in each place where comments are.
#[test]
fn comments_are_not_read() {
    let comments = [&[0, 0, 0, 0][..], &[1, 0, 0, 0], &[0xff; 4]].concat();
    let flac = file("speech.flac");
    let plain = Waveform::decode(flac.clone(), &Limits::default()).unwrap();
    let mut with_comments = b"fLaC".to_vec();
    with_comments.extend([flac[4] & 0x7f, 0, 0, 34]);
    with_comments.extend(&flac[8..42]);
    with_comments.extend([4, 0, 0, comments.len() as u8]);
    with_comments.extend(&comments);
    // A picture whose type has 4 GiB.
    with_comments.extend([
        if flac[4] & 0x80 != 0 { 0x86 } else { 6 },
        0,
        0,
        8,
        0,
        0,
        0,
        3,
        0xff,
        0xff,
        0xff,
        0xff,
    ]);
    with_comments.extend(&flac[42..]);
    assert_eq!(Waveform::decode(with_comments, &Limits::default()).unwrap(), plain);

    let mut tagged = b"ID3\x04\0\0\0\0\0\x0a".to_vec();
    tagged.extend(b"TIT2\x0f\xff\xff\xff\0\0");
    tagged.extend(file("speech.mp3"));
    let plain = Waveform::decode(file("speech.mp3"), &Limits::default()).unwrap();
    assert_eq!(Waveform::decode(tagged, &Limits::default()).unwrap(), plain);
}

#[test]
fn a_rate_that_audio_does_not_have_is_found_before_decoding() {
    let rate = |rate: u32| m4a(b"stsd", 48, &(rate << 16).to_be_bytes());
    assert_eq!(message(rate(500)), "a sample rate of 500 Hz, which must be from 1000 to 768000");
    // A rate beyond 65,535 Hz is written as zero.
    assert!(Waveform::decode(rate(0), &Limits::default()).is_ok());
    let limit = Limits { seconds: 0.5 };
    let error = Waveform::decode(file("speech.flac"), &limit).unwrap_err().to_string();
    assert!(error.starts_with("the audio is longer than "), "{error}");
}
