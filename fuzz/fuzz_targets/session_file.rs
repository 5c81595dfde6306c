//! Any bytes as a saved session, as they are and with the checksums that they must have: an error or a whole session.
#![no_main]

mod meter;

use gyrus::{check_session_file, seal_session_file};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

fuzz_target!(|data: &[u8]| {
    let mut sealed = data.to_vec();
    seal_session_file(&mut sealed);
    for file in [data, &sealed] {
        meter::within(file.len(), || match check_session_file(&mut &file[..], file.len() as u64) {
            Ok((tokens, positions)) => assert!(positions <= tokens && 4 * tokens <= file.len()),
            Err(error) => assert!(!error.to_string().is_empty()),
        });
    }
});
