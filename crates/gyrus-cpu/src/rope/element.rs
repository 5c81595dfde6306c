use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx512, Lanes};

/// A storage type of tensor elements.
pub(super) trait Element: bytemuck::Pod + Send {
    fn to_f32(self) -> f32;

    /// Rounds to nearest, ties to even.
    fn from_f32(value: f32) -> Self;

    /// Loads and converts a vector.
    ///
    /// # Safety
    /// The contract of [`Lanes`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn load<L: Lanes>(p: *const Self) -> L::V;

    /// Rounds like [`Element::from_f32`] and stores a vector.
    ///
    /// # Safety
    /// The contract of [`Lanes`].
    #[cfg(target_arch = "x86_64")]
    unsafe fn store<L: Lanes>(p: *mut Self, v: L::V);

    /// Rounds two vectors and passes them to `send` as cache lines of 64 bytes: two lines of f32, or one
    /// of f16 or bf16.
    ///
    /// # Safety
    /// The contract of [`Lanes`], for AVX-512.
    #[cfg(target_arch = "x86_64")]
    unsafe fn lines(
        a: <Avx512 as Lanes>::V,
        b: <Avx512 as Lanes>::V,
        send: impl FnMut(std::arch::x86_64::__m512i),
    );
}

macro_rules! element {
    ($type:ty, $load:ident, $store:ident, $lines:ident, $to_f32:expr, $from_f32:expr) => {
        impl Element for $type {
            #[inline(always)]
            fn to_f32(self) -> f32 {
                $to_f32(self)
            }

            #[inline(always)]
            fn from_f32(value: f32) -> $type {
                $from_f32(value)
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn load<L: Lanes>(p: *const $type) -> L::V {
                // SAFETY: the caller upholds the contract.
                unsafe { L::$load(p.cast()) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn store<L: Lanes>(p: *mut $type, v: L::V) {
                // SAFETY: the caller upholds the contract.
                unsafe { L::$store(p.cast(), v) }
            }

            #[cfg(target_arch = "x86_64")]
            #[inline(always)]
            unsafe fn lines(
                a: <Avx512 as Lanes>::V,
                b: <Avx512 as Lanes>::V,
                send: impl FnMut(std::arch::x86_64::__m512i),
            ) {
                // SAFETY: the caller upholds the contract.
                unsafe { Avx512::$lines(a, b, send) }
            }
        }
    };
}

element!(f32, load_f32, store_f32, lines_f32, |v| v, |v| v);
element!(f16, load_f16, store_f16, lines_f16, f16::to_f32, f16::from_f32);
element!(bf16, load_bf16, store_bf16, lines_bf16, bf16::to_f32, bf16::from_f32);
