//! A walk through the masks of a constraint over single bytes.

use std::sync::OnceLock;

use gyrus_constrain::{Constraint, Error, Limits, Piece, Vocabulary};

const END: u32 = 256;

/// 256 single bytes and an end token. Limits are smaller than the defaults, so that the fuzzer meets them.
pub fn bytes() -> &'static Vocabulary {
    static VOCABULARY: OnceLock<Vocabulary> = OnceLock::new();
    VOCABULARY.get_or_init(|| {
        let all: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
        let pieces = all.iter().map(|byte| Piece::Text(byte)).chain([Piece::Control(b"<end>")]);
        let mut limits = Limits::default();
        limits.compile_work = 200_000;
        Vocabulary::new(pieces, &[END], None, limits).unwrap()
    })
}

/// Draws tokens from the masks. The end is allowed exactly where the text is complete, and there is always a token.
pub fn walk(constraint: &Constraint, mut seed: u64) {
    let (mut state, mut mask) = (constraint.start(), [0u32; 9]);
    for _ in 0..64 {
        match state.mask(&mut mask) {
            Ok(()) => {}
            Err(Error::Limit { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        let allowed: Vec<u32> = (0..=END).filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).collect();
        assert!(!allowed.is_empty());
        assert_eq!(allowed.contains(&END), state.is_complete());
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let token = allowed[(seed >> 33) as usize % allowed.len()];
        match state.commit(token) {
            Ok(()) if token == END => return,
            Ok(()) | Err(Error::Limit { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
