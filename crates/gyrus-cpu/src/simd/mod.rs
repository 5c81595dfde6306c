//! A SIMD abstraction of eight lanes, so each kernel is written once.
//!
//! [`Simd`] has the operations that the kernels use; `Avx2` and `Neon` implement it. Its functions are
//! `#[inline(always)]` without target features: they are inlined into the function that [`dispatch!`]
//! defines, which enables the features. Every operation is exact or correctly rounded, so a kernel gives the
//! same bits as its portable form on every instruction set.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use half::f16;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;

/// Lanes of a vector, which may span several registers.
pub(crate) const LANES: usize = 8;

/// The operations that kernels need whose lanes do not depend on each other, for any number of lanes.
///
/// # Safety
/// Every function has one contract: the CPU has the instructions, the caller enables their target features,
/// and pointers are valid for the elements accessed. No alignment is required.
pub(crate) trait Registers {
    /// The number of lanes.
    const N: usize;
    /// A lane of each is an `f32`.
    type F: Copy;
    /// A lane of each is an `i32`.
    type I: Copy;
    /// Four bytes per lane.
    type B: Copy;

    unsafe fn splat(v: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    /// Loads f16.
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// Loads bf16.
    unsafe fn load_bf16(p: *const u8) -> Self::F;

    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a·b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn neg(a: Self::F) -> Self::F;
    /// `a` where it is greater, otherwise `b`; also `b` where either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a` where it is less, otherwise `b`; also `b` where either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// Rounds to integers, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;

    unsafe fn splat_i(v: i32) -> Self::I;
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub_i(a: Self::I, b: Self::I) -> Self::I;
    /// `a · 2ⁿ`; a negative `n` is an arithmetic right shift.
    unsafe fn scale_i(a: Self::I, n: i32) -> Self::I;
    unsafe fn to_f(a: Self::I) -> Self::F;
    /// Converts integral values to integers.
    unsafe fn to_i(a: Self::F) -> Self::I;
    /// `2ⁿ` for `n` in −126..=127.
    unsafe fn power_of_two(n: Self::I) -> Self::F;

    /// Shifts each byte left by `up` bits (right if negative) and masks it. `mask` excludes bits that the
    /// shift moved in from outside the byte.
    unsafe fn field(v: Self::B, up: i32, mask: u8) -> Self::B;
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// `table[byte]` for each byte, which must be below 16.
    unsafe fn lookup(table: &[u8; 16], v: Self::B) -> Self::B;
}

/// The vector operations of an instruction set, on eight lanes.
///
/// # Safety
/// Every function has one contract: the CPU has the instructions, the caller enables their target features,
/// and pointers are valid for the elements accessed. No alignment is required.
pub(crate) trait Simd: Registers {
    /// Stores eight f16, rounded to nearest even.
    unsafe fn store_f16(p: *mut f16, v: Self::F);
    /// Loads eight int8 and converts them.
    unsafe fn load_i8(p: *const u8) -> Self::F;

    /// Lanes `start..end` of `a` and the others of `b`; the bounds may be outside `0..8`.
    unsafe fn select_lanes(a: Self::F, start: i32, end: i32, b: Self::F) -> Self::F;
    /// The sum of the lanes: `((0+4)+(2+6)) + ((1+5)+(3+7))`.
    unsafe fn reduce_add(a: Self::F) -> f32;
    /// The largest lane, if none is NaN.
    unsafe fn reduce_max(a: Self::F) -> f32;
    /// The bits of the largest magnitude of 32 lanes; NaN is above all numbers.
    unsafe fn max_abs_bits(a: [Self::F; 4]) -> u32;
    /// Converts 32 integral values in −128..=127 to int8, and sums the first and the last 16.
    unsafe fn to_i8(a: [Self::F; 4]) -> ([i8; 32], [i32; 2]);

    /// Loads 32 bytes, four per lane.
    unsafe fn load_u8(p: *const u8) -> Self::B;
}

/// Defines a function `name(isa, …)` that calls `portable(…)` or, with the target features that `isa` proves,
/// `simd::<S>(…)`. A `wide` kernel is generic over [`Registers`] and also runs with 16 lanes.
macro_rules! dispatch {
    ($(#[$doc:meta])* $vis:vis wide fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? {
        $portable:path, $simd:ident
    }) => {
        $(#[$doc])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
            unsafe fn avx512($($arg: $type),*) $(-> $result)? {
                // SAFETY: the target features are enabled here, and the `Isa` proves that the CPU has them.
                unsafe { $simd::<$crate::simd::Avx512>($($arg),*) }
            }
            $crate::simd::dispatch! {
                fn narrow($($arg: $type),*) $(-> $result)? { $portable, $simd }
            }
            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this level proves that the CPU has the instructions.
                $crate::isa::Level::Avx512Vnni => unsafe { avx512($($arg),*) },
                _ => narrow(isa, $($arg),*),
            }
        }
    };
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? {
        $portable:path, $simd:ident
    }) => {
        $(#[$doc])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2($($arg: $type),*) $(-> $result)? {
                // SAFETY: the target features are enabled here, and the `Isa` proves that the CPU has them.
                unsafe { $simd::<$crate::simd::Avx2>($($arg),*) }
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            unsafe fn neon($($arg: $type),*) $(-> $result)? {
                // SAFETY: the target features are enabled here, and the `Isa` proves that the CPU has them.
                unsafe { $simd::<$crate::simd::Neon>($($arg),*) }
            }
            match isa.level() {
                $crate::isa::Level::Portable => $portable($($arg),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` of this level proves that the CPU has the instructions.
                _ => unsafe { avx2($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: an `Isa` of this level proves that the CPU has the instructions.
                _ => unsafe { neon($($arg),*) },
            }
        }
    };
}
pub(crate) use dispatch;
