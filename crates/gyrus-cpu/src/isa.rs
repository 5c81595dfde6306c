use std::fmt;
use std::sync::OnceLock;

/// The instruction set the kernels run on, chosen once.
///
/// A value above [`Isa::PORTABLE`] can only be made by [`Isa::detect`], so holding one proves that the
/// processor has the instructions: every `unsafe` call of a `#[target_feature]` function rests on that.
/// All rungs give bit-equal results; they differ in speed alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

/// The rungs, weakest first. A new one (AVX-512 VNNI, NEON) is a variant here, a line in
/// [`Isa::detect`] and an arm where kernels are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Plain Rust.
    Portable,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// Plain Rust, on every machine.
    pub const PORTABLE: Isa = Isa(Level::Portable);

    /// The best rung this processor has; `GYRUS_ISA=portable` in the environment forces plain Rust.
    pub fn detect() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            if std::env::var("GYRUS_ISA").is_ok_and(|name| name.eq_ignore_ascii_case("portable")) {
                return Isa::PORTABLE;
            }
            Isa(best())
        })
    }

    /// A name for people.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "AVX2+FMA+F16C",
        }
    }

    pub(crate) fn level(self) -> Level {
        self.0
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(target_arch = "x86_64")]
fn best() -> Level {
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
    {
        Level::Avx2
    } else {
        Level::Portable
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best() -> Level {
    Level::Portable
}
