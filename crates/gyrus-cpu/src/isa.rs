use std::fmt;
use std::sync::OnceLock;

/// The instruction set the kernels run on, chosen once.
///
/// A value above [`Isa::PORTABLE`] is made only by [`Isa::detect`] and [`Isa::supported`], so holding one
/// proves that the processor has the instructions: every `unsafe` call of a `#[target_feature]` function
/// rests on that.
/// All rungs give bit-equal results; they differ in speed alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

/// The rungs, weakest first; each has the instructions of those below it. A new one is a variant here, lines
/// in `LEVELS`, `name`, `best` and `named`, and a kernel of integer sums in `panel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Plain Rust.
    Portable,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Those and AVX-512 F, BW, VL and VNNI: sums of four byte products in one instruction.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// What every 64-bit ARM processor has.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// That and sums of four byte products in one instruction.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// Those and products of 2×8 with 8×2 byte matrices.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
}

impl Isa {
    /// Plain Rust, on every machine.
    pub const PORTABLE: Isa = Isa(Level::Portable);

    /// The best rung this processor has, or the one that `GYRUS_ISA` in the environment names
    /// (`portable`, `avx2`, `neon`, `dotprod`) if that is lower.
    pub fn detect() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let asked = std::env::var("GYRUS_ISA").ok().and_then(|name| named(&name));
            Isa(asked.map_or(best(), |asked| asked.min(best())))
        })
    }

    /// Every rung up to [`Isa::detect`]'s, weakest first: what a comparison between them runs over.
    pub fn supported() -> impl Iterator<Item = Isa> {
        LEVELS.iter().filter(|&&level| level <= Isa::detect().0).map(|&level| Isa(level))
    }

    /// A name for people.
    pub fn name(self) -> &'static str {
        match self.0 {
            Level::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "AVX2+FMA+F16C",
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vnni => "AVX-512 VNNI",
            #[cfg(target_arch = "aarch64")]
            Level::Neon => "NEON",
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => "NEON dotprod",
            #[cfg(target_arch = "aarch64")]
            Level::NeonI8mm => "NEON i8mm",
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

/// Every rung of this architecture, weakest first.
const LEVELS: &[Level] = &[
    Level::Portable,
    #[cfg(target_arch = "x86_64")]
    Level::Avx2,
    #[cfg(target_arch = "x86_64")]
    Level::Avx512Vnni,
    #[cfg(target_arch = "aarch64")]
    Level::Neon,
    #[cfg(target_arch = "aarch64")]
    Level::NeonDot,
    #[cfg(target_arch = "aarch64")]
    Level::NeonI8mm,
];

/// The rung that `GYRUS_ISA` means by a name.
fn named(name: &str) -> Option<Level> {
    match name.to_ascii_lowercase().as_str() {
        "portable" => Some(Level::Portable),
        #[cfg(target_arch = "x86_64")]
        "avx2" => Some(Level::Avx2),
        #[cfg(target_arch = "aarch64")]
        "neon" => Some(Level::Neon),
        #[cfg(target_arch = "aarch64")]
        "dotprod" => Some(Level::NeonDot),
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
fn best() -> Level {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let vnni = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni");
    match (avx2, vnni) {
        (true, true) => Level::Avx512Vnni,
        (true, false) => Level::Avx2,
        (false, _) => Level::Portable,
    }
}

#[cfg(target_arch = "aarch64")]
fn best() -> Level {
    use std::arch::is_aarch64_feature_detected;
    let dot = is_aarch64_feature_detected!("dotprod");
    match (is_aarch64_feature_detected!("neon"), dot, dot && is_aarch64_feature_detected!("i8mm")) {
        (true, _, true) => Level::NeonI8mm,
        (true, true, false) => Level::NeonDot,
        (true, false, false) => Level::Neon,
        (false, ..) => Level::Portable,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn best() -> Level {
    Level::Portable
}
