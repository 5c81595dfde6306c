//! The laws of rotary embedding, on the scalar twin.

use gyrus_kernels::grid::{Scalar, identities};

#[test]
fn the_twin_keeps_every_law() {
    let count = gyrus_testkit::cases(600) / 10;
    let broken: Vec<String> = identities::all()
        .iter()
        .enumerate()
        .filter_map(|(seed, (name, law))| {
            Some(format!("{name}: {}", law(&mut Scalar, seed as u64, count).err()?))
        })
        .collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
