//! How a kernel reads a panel, or two panels side by side.

use crate::simd::{Registers, Simd};

/// [`Registers`] with loads from one or more panels of eight rows.
///
/// # Safety
/// Pointers are valid for the bytes read, in each panel; otherwise the contract of [`Registers`].
pub(super) trait Loads: Registers {
    /// A place, the same in each panel.
    type Place: Copy;

    unsafe fn skip(p: Self::Place, bytes: usize) -> Self::Place;
    /// Eight f16 of each panel.
    unsafe fn f16s(p: Self::Place) -> Self::F;
    /// Eight bf16 of each panel.
    unsafe fn bf16s(p: Self::Place) -> Self::F;
    /// Eight int8 of each panel.
    unsafe fn i8s(p: Self::Place) -> Self::F;
    /// 32 bytes of each panel.
    unsafe fn bytes(p: Self::Place) -> Self::B;
    /// Stores the lanes.
    unsafe fn put(p: *mut f32, v: Self::F);
}

// The contract of `Loads` covers every block.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<S: Simd> Loads for S {
    type Place = *const u8;

    #[inline(always)]
    unsafe fn skip(p: *const u8, bytes: usize) -> *const u8 {
        unsafe { p.add(bytes) }
    }

    #[inline(always)]
    unsafe fn f16s(p: *const u8) -> S::F {
        unsafe { S::load_f16(p) }
    }

    #[inline(always)]
    unsafe fn bf16s(p: *const u8) -> S::F {
        unsafe { S::load_bf16(p) }
    }

    #[inline(always)]
    unsafe fn i8s(p: *const u8) -> S::F {
        unsafe { S::load_i8(p) }
    }

    #[inline(always)]
    unsafe fn bytes(p: *const u8) -> S::B {
        unsafe { S::load_u8(p) }
    }

    #[inline(always)]
    unsafe fn put(p: *mut f32, v: S::F) {
        unsafe { S::store(p, v) }
    }
}
