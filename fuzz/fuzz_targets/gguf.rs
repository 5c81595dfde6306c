//! Any bytes as a GGUF file: an error or a file whose every part can be read.
#![no_main]

mod meter;

use gyrus_formats::Bytes;
use gyrus_formats::gguf::{Gguf, Value};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

fuzz_target!(|data: &[u8]| {
    // The copy stands for the mapped file and is not counted against the parser.
    let bytes = Bytes::Owned(data.to_vec());
    meter::within(data.len(), || match Gguf::parse(bytes) {
        Ok(file) => {
            for (key, value) in file.metadata().iter() {
                assert!(file.metadata().contains(key));
                if let Value::Array(array) = value {
                    let items = if array.kind().size().is_some() {
                        array.numbers().count()
                    } else {
                        array.strings().count()
                    };
                    assert_eq!(items, array.len());
                }
            }
            for tensor in file.tensors() {
                assert_eq!(tensor.data.len(), tensor.dtype.bytes_of(&tensor.shape).unwrap());
                assert_eq!(file.tensor(tensor.name).unwrap().at, tensor.at);
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    });
});
