//! The registers of an instruction set, eight lanes wide, so that a kernel is written once.
//!
//! [`Simd`] holds what kernels need and nothing more; `Avx2` and `Neon` are its two forms. Its functions
//! are `#[inline(always)]` without a target feature of their own: they compile into the function that
//! [`dispatch!`] makes, which has it. Every operation is correctly rounded or exact, so a kernel in terms of
//! them gives the bits of its plain form wherever it runs.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

use half::f16;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;

/// Lanes of a register, or of the several that count as one.
pub(crate) const LANES: usize = 8;

/// An instruction set's registers.
///
/// # Safety
/// Every function has one contract: the CPU has the instructions, the caller enables their target features,
/// and pointers are good for the elements named (no alignment is asked for).
pub(crate) trait Simd {
    /// Eight `f32`.
    type F: Copy;
    /// Eight `i32`.
    type I: Copy;
    /// 32 bytes, four to a lane.
    type B: Copy;

    unsafe fn splat(v: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    /// Eight f16 numbers.
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// Eight numbers that are the upper halves of `f32`.
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// Rounds to f16, ties to even.
    unsafe fn store_f16(p: *mut f16, v: Self::F);
    /// Eight signed bytes as numbers.
    unsafe fn load_i8(p: *const u8) -> Self::F;

    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a·b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn neg(a: Self::F) -> Self::F;
    /// `a` where it is greater, else `b`, also where one is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a` where it is less, else `b`, also where one is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// To whole numbers, ties to even.
    unsafe fn round(a: Self::F) -> Self::F;
    /// Lanes from `start` to before `end` of `a`, the others of `b`; the bounds may lie outside the lanes.
    unsafe fn select_lanes(a: Self::F, start: i32, end: i32, b: Self::F) -> Self::F;
    /// `((0+4)+(2+6)) + ((1+5)+(3+7))`.
    unsafe fn reduce_add(a: Self::F) -> f32;
    /// The greatest lane, if none is NaN.
    unsafe fn reduce_max(a: Self::F) -> f32;
    /// The greatest magnitude of all 32 as bits, a NaN being above all numbers.
    unsafe fn max_abs_bits(a: [Self::F; 4]) -> u32;
    /// 32 whole numbers within −128..=127 as bytes, and the sums of the first and the last 16.
    unsafe fn to_i8(a: [Self::F; 4]) -> ([i8; 32], [i32; 2]);

    unsafe fn splat_i(v: i32) -> Self::I;
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn sub_i(a: Self::I, b: Self::I) -> Self::I;
    /// `a · 2ⁿ`; a negative `n` shifts down, with the sign.
    unsafe fn scale_i(a: Self::I, n: i32) -> Self::I;
    unsafe fn to_f(a: Self::I) -> Self::F;
    /// Whole numbers as integers.
    unsafe fn to_i(a: Self::F) -> Self::I;
    /// `2ⁿ` for `n` in −126..=127.
    unsafe fn power_of_two(n: Self::I) -> Self::F;

    unsafe fn load_u8(p: *const u8) -> Self::B;
    /// Each byte shifted up by `up` bits (down if negative), and of that the bits of `mask`, among which
    /// are none that the shift brought in.
    unsafe fn field(v: Self::B, up: i32, mask: u8) -> Self::B;
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// The entry of `table` that each byte (below 16) names.
    unsafe fn lookup(table: &[u8; 16], v: Self::B) -> Self::B;
}

/// Defines a function `name(isa, …)` that calls `plain(…)` or, with the instructions that `isa` proves,
/// `simd::<S>(…)`.
macro_rules! dispatch {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $result:ty)? {
        $plain:path, $simd:ident
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
                $crate::isa::Level::Portable => $plain($($arg),*),
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
