//! NEON, which every 64-bit ARM CPU has: two registers hold eight lanes.

use std::arch::aarch64::*;

use half::f16;

use super::{Registers, Simd};

pub(crate) struct Neon;

type F = [float32x4_t; 2];
type I = [int32x4_t; 2];
type B = [uint8x16_t; 2];

// The contract of `Simd` covers every block: the CPU has the instructions and pointers are valid.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Registers for Neon {
    const N: usize = 8;
    type F = F;
    type I = I;
    type B = B;

    #[inline(always)]
    unsafe fn splat(v: f32) -> F {
        unsafe { [vdupq_n_f32(v); 2] }
    }

    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn neg(a: F) -> F {
        unsafe { [vnegq_f32(a[0]), vnegq_f32(a[1])] }
    }

    #[inline(always)]
    unsafe fn splat_i(v: i32) -> I {
        unsafe { [vdupq_n_s32(v); 2] }
    }

    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        unsafe { [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn sub_i(a: I, b: I) -> I {
        unsafe { [vsubq_s32(a[0], b[0]), vsubq_s32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn scale_i(a: I, n: i32) -> I {
        unsafe { [vshlq_s32(a[0], vdupq_n_s32(n)), vshlq_s32(a[1], vdupq_n_s32(n))] }
    }

    #[inline(always)]
    unsafe fn to_f(a: I) -> F {
        unsafe { [vcvtq_f32_s32(a[0]), vcvtq_f32_s32(a[1])] }
    }

    #[inline(always)]
    unsafe fn field(v: B, up: i32, mask: u8) -> B {
        unsafe { [field(v[0], up, mask), field(v[1], up, mask)] }
    }

    #[inline(always)]
    unsafe fn or(a: B, b: B) -> B {
        unsafe { [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], v: B) -> B {
        unsafe {
            let table = vld1q_u8(table.as_ptr());
            [vqtbl1q_u8(table, v[0]), vqtbl1q_u8(table, v[1])]
        }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> F {
        unsafe { [vld1q_f32(p), vld1q_f32(p.add(4))] }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: F) {
        unsafe {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> F {
        unsafe {
            let bits = vreinterpretq_u16_u8(vld1q_u8(p));
            [f16_to_f32(vget_low_u16(bits)), f16_to_f32(vget_high_u16(bits))]
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> F {
        unsafe {
            let bits = vreinterpretq_u16_u8(vld1q_u8(p));
            let low = vshll_n_u16::<16>(vget_low_u16(bits));
            let high = vshll_n_u16::<16>(vget_high_u16(bits));
            [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high)]
        }
    }

    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        unsafe { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        unsafe { [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        unsafe { [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        unsafe {
            [vbslq_f32(vcgtq_f32(a[0], b[0]), a[0], b[0]), vbslq_f32(vcgtq_f32(a[1], b[1]), a[1], b[1])]
        }
    }

    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        unsafe {
            [vbslq_f32(vcltq_f32(a[0], b[0]), a[0], b[0]), vbslq_f32(vcltq_f32(a[1], b[1]), a[1], b[1])]
        }
    }

    #[inline(always)]
    unsafe fn round(a: F) -> F {
        unsafe { [vrndnq_f32(a[0]), vrndnq_f32(a[1])] }
    }

    #[inline(always)]
    unsafe fn to_i(a: F) -> I {
        unsafe { [vcvtq_s32_f32(a[0]), vcvtq_s32_f32(a[1])] }
    }

    #[inline(always)]
    unsafe fn power_of_two(n: I) -> F {
        unsafe { [power_of_two(n[0]), power_of_two(n[1])] }
    }
}

// The contract of `Simd` covers every block: the CPU has the instructions and pointers are valid.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Neon {
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: F) {
        unsafe {
            vst1_u16(p.cast(), vreinterpret_u16_f16(vcvt_f16_f32(v[0])));
            vst1_u16(p.add(4).cast(), vreinterpret_u16_f16(vcvt_f16_f32(v[1])));
        }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> F {
        unsafe {
            let wide = vmovl_s8(vld1_s8(p.cast()));
            let low = vmovl_s16(vget_low_s16(wide));
            let high = vmovl_s16(vget_high_s16(wide));
            [vcvtq_f32_s32(low), vcvtq_f32_s32(high)]
        }
    }

    #[inline(always)]
    unsafe fn select_lanes(a: F, start: i32, end: i32, b: F) -> F {
        unsafe {
            let mut selected = b;
            for half in 0..2 {
                let first = 4 * half as i32;
                let index = vld1q_s32([first, first + 1, first + 2, first + 3].as_ptr());
                let from = vcgeq_s32(index, vdupq_n_s32(start));
                let to = vcltq_s32(index, vdupq_n_s32(end));
                selected[half] = vbslq_f32(vandq_u32(from, to), a[half], b[half]);
            }
            selected
        }
    }

    #[inline(always)]
    unsafe fn reduce_add(a: F) -> f32 {
        unsafe {
            let v = vaddq_f32(a[0], a[1]);
            let v = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(v) + vget_lane_f32::<1>(v)
        }
    }

    #[inline(always)]
    unsafe fn reduce_max(a: F) -> f32 {
        unsafe { vmaxvq_f32(vmaxq_f32(a[0], a[1])) }
    }

    #[inline(always)]
    unsafe fn max_abs_bits(a: [F; 4]) -> u32 {
        unsafe {
            let mut most = vdupq_n_u32(0);
            for a in a {
                for a in a {
                    most = vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(a)));
                }
            }
            vmaxvq_u32(most)
        }
    }

    #[inline(always)]
    unsafe fn to_i8(a: [F; 4]) -> ([i8; 32], [i32; 2]) {
        unsafe {
            let mut bytes = [0i8; 32];
            for (a, bytes) in a.iter().zip(bytes.chunks_exact_mut(8)) {
                let (low, high) = (vcvtq_s32_f32(a[0]), vcvtq_s32_f32(a[1]));
                vst1_s8(bytes.as_mut_ptr(), vqmovn_s16(vcombine_s16(vqmovn_s32(low), vqmovn_s32(high))));
            }
            let first = vaddlvq_s8(vld1q_s8(bytes.as_ptr()));
            let last = vaddlvq_s8(vld1q_s8(bytes.as_ptr().add(16)));
            (bytes, [i32::from(first), i32::from(last)])
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> B {
        unsafe { [vld1q_u8(p), vld1q_u8(p.add(16))] }
    }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn f16_to_f32(bits: uint16x4_t) -> float32x4_t {
    // SAFETY: the caller upholds the contract.
    unsafe { vcvt_f32_f16(vreinterpret_f16_u16(bits)) }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn power_of_two(n: int32x4_t) -> float32x4_t {
    // SAFETY: the caller upholds the contract.
    unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127)))) }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn field(v: uint8x16_t, up: i32, mask: u8) -> uint8x16_t {
    // SAFETY: the caller upholds the contract.
    unsafe { vandq_u8(vshlq_u8(v, vdupq_n_s8(up as i8)), vdupq_n_u8(mask)) }
}
