use crate::Error;

/// The context in force, and why it is not the model's own where it is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextChoice {
    /// Tokens a session can hold.
    pub tokens: usize,
    /// The longest context the model was made for.
    pub model: usize,
    /// Bytes the cache of one session may grow to.
    pub cache_bytes: u64,
    /// Whether memory, not the model or the user, set the limit.
    pub limited_by_memory: bool,
}

/// The part of the free memory that a cache chosen by default may take.
const MEMORY_SHARE: u64 = 2;
/// Where the free memory is not known, a default context stays below this.
const UNKNOWN_MEMORY_CONTEXT: usize = 8192;
/// A default context is never made shorter than this.
const LEAST: usize = 512;

impl ContextChoice {
    /// The user's choice if there is one, else the model's context, else what memory allows.
    pub(crate) fn new(
        asked: Option<usize>,
        model: usize,
        bytes_per_token: usize,
    ) -> Result<ContextChoice, Error> {
        let choice = |tokens: usize, limited_by_memory| ContextChoice {
            tokens,
            model,
            cache_bytes: (tokens as u64).saturating_mul(bytes_per_token as u64),
            limited_by_memory,
        };
        match asked {
            Some(asked) if asked > model => Err(Error::Context { asked, most: model }),
            Some(0) => {
                Err(Error::Dimension { name: "context", value: 0, expected: "it must be at least 1".into() })
            }
            Some(asked) => Ok(choice(asked, false)),
            None => {
                let fits = match available_memory() {
                    Some(free) => (free / MEMORY_SHARE / bytes_per_token.max(1) as u64) as usize,
                    None => UNKNOWN_MEMORY_CONTEXT,
                };
                let tokens = model.min(fits.max(LEAST));
                Ok(choice(tokens, tokens < model))
            }
        }
    }
}

/// Bytes that can be had without swapping, where the system says.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_decides_within_what_the_model_was_made_for() {
        assert_eq!(ContextChoice::new(Some(100), 2048, 1000).unwrap().tokens, 100);
        assert_eq!(ContextChoice::new(None, 2048, 1).unwrap().tokens, 2048);
        let error = ContextChoice::new(Some(4096), 2048, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a context of 4096 tokens is more than the 2048 the model was made for"
        );
        assert!(ContextChoice::new(Some(0), 2048, 1).is_err());
    }

    #[test]
    fn memory_limits_a_default() {
        let choice = ContextChoice::new(None, 1 << 27, 1 << 30).unwrap();
        assert!(choice.limited_by_memory && choice.tokens >= LEAST && choice.tokens < 1 << 27);
    }
}
