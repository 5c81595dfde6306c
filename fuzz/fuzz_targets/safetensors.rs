//! Any bytes as a SafeTensors file and as a shard index: an error or something that can be read whole.
#![no_main]

mod meter;

use gyrus_formats::Bytes;
use gyrus_formats::safetensors::{Index, SafeTensors};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

fuzz_target!(|data: &[u8]| {
    // The copy stands for the mapped file and is not counted against the parser.
    let bytes = Bytes::Owned(data.to_vec());
    meter::within(data.len(), || match SafeTensors::parse(bytes) {
        Ok(file) => {
            let total: usize = file.tensors().map(|tensor| tensor.data.len()).sum();
            assert!(total <= data.len());
            for tensor in file.tensors() {
                assert_eq!(tensor.data.len(), tensor.dtype.bytes_of(&tensor.shape).unwrap());
                assert_eq!(file.tensor(tensor.name).unwrap().at, tensor.at);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    });
    meter::within(data.len(), || match Index::parse(data) {
        Ok(index) => assert!(index.entries().all(|(tensor, file)| index.file_of(tensor) == Some(file))),
        Err(error) => assert!(!error.to_string().is_empty()),
    });
});
