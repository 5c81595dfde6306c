//! Any bytes as a file of keys: refused or understood, within bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| gyrus_server::fuzzing::keys(file));
