use crate::Error;

/// The context in force, and what set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextChoice {
    /// Tokens a session can hold.
    pub tokens: usize,
    /// The longest context the model was made for.
    pub model: usize,
    /// Bytes the cache of one session may grow to.
    pub cache_bytes: u64,
    /// What set the limit.
    pub limit: ContextLimit,
}

/// What set a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContextLimit {
    /// The caller.
    Asked,
    /// The model's own context.
    Model,
    /// Memory: the model could hold more.
    Memory,
    /// Caution: the model could hold more, but how much memory there is could not be found out.
    Unknown,
}

/// The part of the memory left beside the weights that caches chosen by default may take.
const MEMORY_SHARE: u64 = 2;
/// Where the free memory is not known, a default context stays below this.
const CAUTIOUS: usize = 8192;
/// A default context is never made shorter than this.
const LEAST: usize = 512;

/// What a cache has to share memory with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Bytes of cache a token takes.
    pub(crate) per_token: usize,
    /// Bytes the weights will take.
    pub(crate) weights: u64,
    /// Caches of that size.
    pub(crate) sessions: usize,
    /// Tokens that all caches together can hold on this device, whatever its memory.
    pub(crate) most: usize,
}

impl ContextChoice {
    /// The caller's choice if there is one, else the model's context, else what `memory` bytes allow.
    pub(crate) fn within(
        asked: Option<usize>,
        model: usize,
        budget: Budget,
        memory: Option<u64>,
    ) -> Result<ContextChoice, Error> {
        let (tokens, limit) = match (asked, memory) {
            (Some(asked), _) if asked > model => return Err(Error::Context { asked, most: model }),
            (Some(0), _) => {
                let expected = "it must be at least 1".to_owned();
                return Err(Error::Dimension { name: "context", value: 0, expected });
            }
            (Some(asked), _) => (asked, ContextLimit::Asked),
            (None, Some(free)) => {
                let share = free.saturating_sub(budget.weights) / MEMORY_SHARE;
                let token = (budget.per_token.max(1) as u64).saturating_mul(budget.sessions.max(1) as u64);
                (usize::try_from(share / token).unwrap_or(usize::MAX).max(LEAST), ContextLimit::Memory)
            }
            (None, None) => (CAUTIOUS, ContextLimit::Unknown),
        };
        let most = budget.most / budget.sessions.max(1);
        let (tokens, limit) = if asked.is_none() && most < tokens {
            (most.max(1), ContextLimit::Memory)
        } else {
            (tokens, limit)
        };
        let (tokens, limit) =
            if tokens >= model && asked.is_none() { (model, ContextLimit::Model) } else { (tokens, limit) };
        let cache_bytes = (tokens as u64).saturating_mul(budget.per_token as u64);
        Ok(ContextChoice { tokens, model, cache_bytes, limit })
    }
}

/// Bytes that this process can have without swapping, where the system says.
pub(crate) fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let machine = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)?;
    Some(container_memory().map_or(machine, |left| left.min(machine)))
}

/// What a container still allows, if one sets a limit.
fn container_memory() -> Option<u64> {
    let number = |name: &str| {
        let text = std::fs::read_to_string(format!("/sys/fs/cgroup/memory.{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    number("max")?.checked_sub(number("current")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(asked: Option<usize>, model: usize, memory: Option<u64>) -> Result<ContextChoice, Error> {
        let budget = Budget { per_token: 1000, weights: 1_000_000, sessions: 2, most: 60_000 };
        ContextChoice::within(asked, model, budget, memory)
    }

    #[test]
    fn the_caller_decides_within_what_the_model_was_made_for() {
        let choice = choose(Some(100), 2048, Some(0)).unwrap();
        assert_eq!((choice.tokens, choice.limit), (100, ContextLimit::Asked));
        let error = choose(Some(4096), 2048, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a context of 4096 tokens is more than the 2048 the model was made for"
        );
        assert!(choose(Some(0), 2048, None).is_err());
    }

    #[test]
    fn a_default_is_the_models_own_if_memory_allows() {
        let choice = choose(None, 2048, Some(1 << 40)).unwrap();
        assert_eq!((choice.tokens, choice.limit, choice.cache_bytes), (2048, ContextLimit::Model, 2_048_000));
        // Five megabytes less one for the weights, half of that, for two caches of a kilobyte a token.
        let choice = choose(None, 2048, Some(5_000_000)).unwrap();
        assert_eq!((choice.tokens, choice.limit), (1000, ContextLimit::Memory));
        let choice = choose(None, 2048, Some(10)).unwrap();
        assert_eq!((choice.tokens, choice.limit), (LEAST, ContextLimit::Memory));
        let choice = choose(None, 1 << 20, None).unwrap();
        assert_eq!((choice.tokens, choice.limit), (CAUTIOUS, ContextLimit::Unknown));
        // More than a device can address.
        let choice = choose(None, 1 << 20, Some(1 << 40)).unwrap();
        assert_eq!((choice.tokens, choice.limit), (30_000, ContextLimit::Memory));
        assert_eq!(choose(None, 100, Some(0)).unwrap().limit, ContextLimit::Model);
    }
}
