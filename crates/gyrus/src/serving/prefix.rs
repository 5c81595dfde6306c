//! Chains of hashes: which tokens come before the end of a block, and what rows computed them.

/// A chain of blocks of tokens up to some block.
///
/// Equal tokens give equal hashes. Blocks that are found by a hash are compared token by token, so a collision is
/// harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Link {
    /// Of all tokens so far.
    pub(crate) tokens: u64,
    /// Of what computed each of them: a row of a prompt or a generated one.
    pub(crate) kinds: u64,
}

impl Link {
    /// The beginning of a chain. Chains with different salts have nothing in common: a sequence's frequencies may depend
    /// on its length, and tenants must not see each other's prompts.
    pub(crate) fn first(salt: impl IntoIterator<Item = u64>) -> Link {
        let tokens = salt.into_iter().fold(0x6779_7275_7300_0001, mix);
        Link { tokens, kinds: 0 }
    }

    /// The chain after one more block. `kinds` has a bit for each of its tokens, set if it was a generated row.
    pub(crate) fn next(self, tokens: &[u32], kinds: u32) -> Link {
        let hash = tokens.iter().fold(mix(self.tokens, 0x1f), |hash, token| mix(hash, u64::from(*token)));
        // All-prompt chains keep 0, so that the same prompt has the same kinds however it was cut into chunks.
        let kinds = if kinds == 0 && self.kinds == 0 { 0 } else { mix(self.kinds, u64::from(kinds) + 1) };
        Link { tokens: hash, kinds }
    }
}

/// Mixes a word into a hash: SplitMix64's finaliser.
fn mix(hash: u64, word: u64) -> u64 {
    let mut z = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0xD1B5_4A32_D192_ED03);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_depend_on_every_token_its_place_the_salt_and_the_kinds() {
        let tokens: Vec<u32> = (0..32).collect();
        let chain = |salt: u64, tokens: &[u32], kinds| Link::first([salt]).next(tokens, kinds);
        let plain = chain(1, &tokens, 0);
        assert_eq!(plain, chain(1, &tokens, 0));
        assert_ne!(plain.tokens, chain(2, &tokens, 0).tokens);
        for i in 0..32 {
            let mut other = tokens.clone();
            other[i] += 1;
            assert_ne!(plain.tokens, chain(1, &other, 0).tokens);
            let generated = chain(1, &tokens, 1 << i);
            assert_eq!(plain.tokens, generated.tokens);
            assert_ne!(plain.kinds, generated.kinds);
            // What follows generated tokens differs too.
            assert_ne!(plain.next(&tokens, 0).kinds, generated.next(&tokens, 0).kinds);
        }
        let mut swapped = tokens.clone();
        swapped.swap(3, 4);
        assert_ne!(plain.tokens, chain(1, &swapped, 0).tokens);
        assert_eq!(plain.next(&tokens, 0).kinds, 0);
    }
}
