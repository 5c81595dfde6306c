use crate::Error;

/// The context of a session, and what determined it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextChoice {
    /// Tokens a session can hold.
    pub tokens: usize,
    /// The maximum context of the model.
    pub model: usize,
    /// Tokens that the KV cache holds in total, for all sessions together.
    pub total_tokens: usize,
    /// Bytes of the KV cache, and of the records of recurrent states.
    pub cache_bytes: u64,
    /// The part of them that is records.
    pub state_bytes: u64,
    /// What determined the context.
    pub limit: ContextLimit,
}

/// What determined a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ContextLimit {
    /// The caller requested it.
    Requested,
    /// It is the maximum context of the model.
    Model,
    /// Memory: the model supports a longer context.
    Memory,
    /// A cautious default: the model supports a longer context, but the free memory is unknown.
    Unknown,
}

/// The default KV cache takes 1/2 of the memory that the weights leave free.
pub(crate) const MEMORY_DIVISOR: u64 = 2;
/// The default context when the free memory is unknown.
const CAUTIOUS: usize = 8192;
/// The shortest default context.
pub(crate) const MIN_DEFAULT: usize = 512;

/// What the memory has to hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    /// Bytes of KV cache for one token, in layers without a window.
    pub(crate) bytes_per_token: usize,
    /// Bytes of KV cache of one session in layers with a window.
    pub(crate) window_bytes: u64,
    /// Bytes of the records of one session.
    pub(crate) state_bytes: u64,
    /// Bytes of the weights.
    pub(crate) weight_bytes: u64,
    /// Sessions with a full context each.
    pub(crate) sessions: usize,
    /// The most tokens in the KV cache of all sessions that the device can address.
    pub(crate) max_tokens: usize,
}

impl Budget {
    /// Bytes of free memory that the default KV cache takes, without what does not grow with the context; `None` if that
    /// alone takes more.
    fn share(&self, free: u64) -> Option<u64> {
        let fixed = self.window_bytes.saturating_add(self.state_bytes);
        let share = free.saturating_sub(self.weight_bytes) / MEMORY_DIVISOR;
        share.checked_sub(fixed.saturating_mul(self.sessions.max(1) as u64))
    }

    /// Bytes of one token for each session.
    fn token_bytes(&self) -> u64 {
        (self.bytes_per_token.max(1) as u64).saturating_mul(self.sessions.max(1) as u64)
    }

    /// Whether the default KV cache holds the shortest default context for each session.
    pub(crate) fn fits(&self, model: usize, free: u64) -> bool {
        let tokens = MIN_DEFAULT.min(model) as u64;
        self.share(free).is_some_and(|share| share / self.token_bytes() >= tokens)
    }
}

impl ContextChoice {
    /// Tokens of the requested context if there is one, else of the model's maximum context or as many as `memory` bytes
    /// allow, and what determined them.
    pub(crate) fn within(
        requested: Option<usize>,
        model: usize,
        budget: Budget,
        memory: Option<u64>,
    ) -> Result<(usize, ContextLimit), Error> {
        let (tokens, limit) = match (requested, memory) {
            (Some(requested), _) if requested > model => {
                return Err(Error::Context { requested, max: model });
            }
            (Some(0), _) => {
                let expected = "it must be at least 1".to_owned();
                return Err(Error::Dimension { name: "context", value: 0, expected });
            }
            (Some(requested), _) => (requested, ContextLimit::Requested),
            (None, Some(free)) => {
                let tokens = budget.share(free).unwrap_or(0) / budget.token_bytes();
                (usize::try_from(tokens).unwrap_or(usize::MAX).max(MIN_DEFAULT), ContextLimit::Memory)
            }
            (None, None) => (CAUTIOUS, ContextLimit::Unknown),
        };
        let max = budget.max_tokens / budget.sessions.max(1);
        let (tokens, limit) = if requested.is_none() && max < tokens {
            (max.max(1), ContextLimit::Memory)
        } else {
            (tokens, limit)
        };
        Ok(if tokens >= model && requested.is_none() {
            (model, ContextLimit::Model)
        } else {
            (tokens, limit)
        })
    }
}

/// Bytes that this process can allocate without swapping; `None` if the system does not report them.
#[cfg(any(target_os = "macos", target_os = "windows"))]
pub(crate) fn available_memory() -> Option<u64> {
    system_memory()
}

/// Bytes that this process can allocate without swapping; `None` if the system does not report them. Linux reports
/// them in files, within the limit of a cgroup.
#[cfg(not(any(target_os = "macos", target_os = "windows")))]
pub(crate) fn available_memory() -> Option<u64> {
    let machine = meminfo_available(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(container_memory().map_or(machine, |left| left.min(machine)))
}

/// The memory that no process uses, as the operating system's own call reports it: free pages and cached files.
///
/// This is not sysinfo's `available_memory`: on macOS that counts active pages too, which other processes are using and
/// which would have to be compressed first.
#[cfg(any(target_os = "macos", target_os = "windows", test))]
fn system_memory() -> Option<u64> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    // Nothing in use means that the call failed.
    let used = Some(system.used_memory()).filter(|used| *used > 0)?;
    system.total_memory().checked_sub(used)
}

/// The available memory in the text of `/proc/meminfo`.
#[cfg(any(not(any(target_os = "macos", target_os = "windows")), test))]
fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The rest of the memory limit of a cgroup, if there is one.
#[cfg(not(any(target_os = "macos", target_os = "windows")))]
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

    fn choose(
        requested: Option<usize>,
        model: usize,
        memory: Option<u64>,
    ) -> Result<(usize, ContextLimit), Error> {
        let budget = Budget {
            bytes_per_token: 1000,
            window_bytes: 0,
            state_bytes: 0,
            weight_bytes: 1_000_000,
            sessions: 2,
            max_tokens: 60_000,
        };
        ContextChoice::within(requested, model, budget, memory)
    }

    #[test]
    fn meminfo_is_read_in_kilobytes() {
        let text = "MemTotal:       16315420 kB\nMemFree:          512000 kB\nMemAvailable:    1024 kB\n";
        assert_eq!(meminfo_available(text), Some(1 << 20));
        for text in ["", "MemFree: 1 kB\n", "MemAvailable: x kB\n", "MemAvailable: 1 MB\n"] {
            assert_eq!(meminfo_available(text), None, "{text}");
        }
        assert_eq!(meminfo_available(&format!("MemAvailable: {} kB", u64::MAX)), None);
    }

    /// The call that macOS and Windows use reports what Linux has in its files.
    #[test]
    fn the_system_reports_its_available_memory() {
        let bytes = system_memory().expect("this system reports its memory");
        assert!(bytes > 1 << 20, "{bytes}");
        // A container's limit may be lower, and other processes allocate meanwhile.
        #[cfg(target_os = "linux")]
        {
            let listed = meminfo_available(&std::fs::read_to_string("/proc/meminfo").unwrap()).unwrap();
            assert!(bytes.abs_diff(listed) < listed / 2 + (1 << 30), "{bytes} and {listed}");
        }
    }

    #[test]
    fn a_requested_context_is_used_up_to_the_model_maximum() {
        assert_eq!(choose(Some(100), 2048, Some(0)).unwrap(), (100, ContextLimit::Requested));
        let error = choose(Some(4096), 2048, None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a context of 4096 tokens is more than the 2048 the model was made for"
        );
        assert!(choose(Some(0), 2048, None).is_err());
    }

    #[test]
    fn the_default_context_is_the_model_maximum_if_memory_allows() {
        let choice = |model, memory| choose(None, model, memory).unwrap();
        assert_eq!(choice(2048, Some(1 << 40)), (2048, ContextLimit::Model));
        // 5 MB free, 1 MB of weights, half of the rest for the KV caches of two sessions, 1 kB for each token.
        assert_eq!(choice(2048, Some(5_000_000)), (1000, ContextLimit::Memory));
        assert_eq!(choice(2048, Some(10)), (MIN_DEFAULT, ContextLimit::Memory));
        assert_eq!(choice(1 << 20, None), (CAUTIOUS, ContextLimit::Unknown));
        // More tokens than the device can address.
        assert_eq!(choice(1 << 20, Some(1 << 40)), (30_000, ContextLimit::Memory));
        assert_eq!(choice(100, Some(0)), (100, ContextLimit::Model));
    }
}
