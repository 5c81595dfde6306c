//! A vocabulary of single bytes, so that any text can be fed to a constraint.

#![allow(dead_code, unreachable_pub)]

use gyrus_constrain::{Constraint, Error, Limits, Piece, Source, Vocabulary};

pub const END: u32 = 256;

/// 256 single bytes and an end token.
pub fn bytes() -> Vocabulary {
    let all: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let pieces = all.iter().map(|byte| Piece::Text(byte)).chain([Piece::Control(b"<end>")]);
    Vocabulary::new(pieces, &[END], None, Limits::default()).unwrap()
}

pub fn compile(source: Source) -> Result<Constraint, Error> {
    bytes().compile(&source)
}

/// Whether the constraint accepts the text as a whole.
pub fn accepts(constraint: &Constraint, text: &str) -> bool {
    let mut state = constraint.start();
    text.bytes().all(|byte| state.commit(u32::from(byte)).is_ok()) && state.is_complete()
}
