//! Any bytes as the body of a request, in every wire format: refused or understood, within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| gyrus_server::fuzzing::requests(body));
