//! How much memory the values of a JSON body take.

use std::mem::size_of;

use serde_json::Value;

/// Bytes of a value of a list. Lists that grow reserve up to twice what they need.
const ENTRY: usize = 2 * size_of::<Value>();
/// Bytes of a member of an object beyond those of an entry: its name, its hash and its place in the index.
const MEMBER: usize = 2 * (size_of::<String>() + 3 * size_of::<usize>());
/// Bytes of the first entries of a list, for which more are reserved than for one.
const LIST: usize = 2 * ENTRY + ALLOCATION;
/// The same of an object.
const OBJECT: usize = 2 * (ENTRY + MEMBER) + 4 * ALLOCATION;
/// Bytes of a string besides its text, and of any other piece of memory.
const ALLOCATION: usize = 32;

/// At least the bytes that the values of a body take when it is parsed. A body that is no JSON takes less: the parser stops
/// at the first error, and what comes before it is counted as the parser reads it.
pub(crate) fn bytes_of_values(body: &[u8]) -> usize {
    // Texts of strings are copied.
    let mut bytes = body.len();
    let mut rest = body.iter();
    while let Some(byte) = rest.next() {
        bytes = bytes.saturating_add(match byte {
            b',' => ENTRY,
            b':' => MEMBER,
            b'[' => LIST,
            b'{' => OBJECT,
            b'"' => {
                // To the end of the string: what is in it makes no values.
                while let Some(inner) = rest.next() {
                    match inner {
                        b'\\' => {
                            rest.next();
                        }
                        b'"' => break,
                        _ => {}
                    }
                }
                ALLOCATION
            }
            _ => 0,
        });
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of memory of a value, besides its own place.
    fn taken(value: &Value) -> usize {
        match value {
            Value::String(text) => text.capacity().max(1).next_multiple_of(16) + 16,
            Value::Array(list) => {
                list.capacity() * size_of::<Value>() + list.iter().map(taken).sum::<usize>()
            }
            Value::Object(map) if map.is_empty() => 0,
            Value::Object(map) => {
                // A power of two of places in the index, of which seven in eight are used; as many members are reserved.
                let places = (map.len() * 8).div_ceil(7).next_power_of_two().max(4);
                let member = size_of::<Value>() + size_of::<String>() + size_of::<usize>();
                let members = map.iter().map(|(name, value)| name.len().max(1) + 31 + taken(value));
                places * (member + size_of::<usize>() + 1) + 16 + members.sum::<usize>()
            }
            _ => 0,
        }
    }

    #[test]
    fn values_take_at_most_what_is_counted() {
        let wide = |entry: &str, count: usize| format!("[{}]", vec![entry; count].join(","));
        let members: Vec<String> = (0..1025).map(|n| format!("\"{n}\":0")).collect();
        for text in [
            wide("0", 4097),
            wide("\"\"", 2049),
            wide("[0]", 1000),
            wide("{\"\":0}", 1000),
            wide("{\"a\":\"b\",\"c\":[]}", 1000),
            wide("\"\\\",,[[{\"", 100),
            format!("{{{}}}", members.join(",")),
            "[[[[[[[[0]]]]]]]]".to_owned(),
            "{\"a\":{\"a\":{\"a\":{\"a\":{}}}}}".to_owned(),
        ] {
            let value: Value = serde_json::from_str(&text).unwrap();
            let (expected, found) = (bytes_of_values(text.as_bytes()), taken(&value) + size_of::<Value>());
            assert!(found <= expected + size_of::<Value>(), "{found} bytes, {expected} expected: {text:.60}");
        }
    }

    #[test]
    fn text_in_strings_makes_no_values() {
        let text = format!("{{\"content\": \"{}\"}}", "a, [b] {c: \\\"d\\\"}, ".repeat(10_000));
        assert!(bytes_of_values(text.as_bytes()) < text.len() + 1000);
        assert!(bytes_of_values(&b"0,".repeat(1 << 20)) > 72 << 20);
        assert_eq!(bytes_of_values(b"\"\\"), 2 + ALLOCATION, "a string that does not end");
    }
}
