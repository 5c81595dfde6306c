use std::fmt;
use std::sync::OnceLock;

/// The instruction set that the kernels use, detected once.
///
/// Only [`Isa::detect`] and [`Isa::supported`] make a value above [`Isa::PORTABLE`], so such a value proves
/// that the CPU has the instructions. Every `unsafe` call of a `#[target_feature]` function relies on that.
/// All instruction sets give bit-equal results and differ in speed only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

/// The supported levels in ascending order; each includes the instructions of those before it. A new level
/// needs a variant here, lines in `LEVELS`, `name`, `best` and `named`, and an integer kernel in `panel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Rust without intrinsics.
    Portable,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2 and AVX-512 F, BW, VL and VNNI: int8 dot products of four elements per lane.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// NEON, which every 64-bit ARM CPU has.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON and `dotprod`: int8 dot products of four elements per lane.
    #[cfg(target_arch = "aarch64")]
    NeonDot,
    /// NEON, `dotprod` and `i8mm`: int8 products of 2×8 with 8×2 matrices.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
}

impl Isa {
    /// Rust without intrinsics, which runs on every CPU.
    pub const PORTABLE: Isa = Isa(Level::Portable);

    /// The best level of this CPU, or the level that the environment variable `GYRUS_ISA` names
    /// (`portable`, `avx2`, `neon`, `dotprod`) if it is lower.
    pub fn detect() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(|| {
            let requested = std::env::var("GYRUS_ISA").ok().and_then(|name| named(&name));
            Isa(requested.map_or(best(), |requested| requested.min(best())))
        })
    }

    /// Every level up to [`Isa::detect`]'s in ascending order, for tests that compare them.
    pub fn supported() -> impl Iterator<Item = Isa> {
        LEVELS.iter().filter(|&&level| level <= Isa::detect().0).map(|&level| Isa(level))
    }

    /// The display name.
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

    /// Without registers of 16 lanes.
    pub(crate) fn narrow(self) -> Isa {
        #[cfg(target_arch = "x86_64")]
        return Isa(self.0.min(Level::Avx2));
        #[cfg(not(target_arch = "x86_64"))]
        return self;
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

/// Every level of this architecture in ascending order.
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

/// The level that a value of `GYRUS_ISA` names.
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
