//! The kernels of Gated DeltaNet.
//!
//! Columns of a state matrix do not depend on each other, so that each SIMD lane has a column: a block has [`COLUMNS`] of
//! them, `[key_dim, COLUMNS]`, which stays in the first-level cache for all rows of a chunk. Sums over `key_dim` are in
//! ascending order. A row is one pass over the block: it updates the state, sums the row's output and, for the next row,
//! the product of the state and its key. The product is of the stored values, so that results do not depend on where a
//! chunk ends.

use gyrus_kernels::CONV_TAPS;

use crate::exp::{exp, exp_lanes};
use crate::simd::{LANES, Simd, dispatch};

/// Columns of a block.
pub(crate) const COLUMNS: usize = 16;

/// What a row gives to one block of columns.
#[derive(Clone, Copy)]
pub(crate) struct DeltaRow<'a> {
    pub(crate) query: &'a [f32],
    pub(crate) key: &'a [f32],
    pub(crate) value: &'a [f32; COLUMNS],
    pub(crate) beta: f32,
    pub(crate) decay: f32,
}

dispatch! {
    /// `state · key` of each column.
    pub(crate) fn predict(state: &[[f32; COLUMNS]], key: &[f32], out: &mut [f32; COLUMNS]) {
        portable_predict, simd_predict
    }
}

#[inline(always)]
fn portable_predict(state: &[[f32; COLUMNS]], key: &[f32], out: &mut [f32; COLUMNS]) {
    *out = [0.0; COLUMNS];
    for (state, key) in state.iter().zip(key) {
        out.iter_mut().zip(state).for_each(|(sum, s)| *sum = key.mul_add(*s, *sum));
    }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_predict<S: Simd>(state: &[[f32; COLUMNS]], key: &[f32], out: &mut [f32; COLUMNS]) {
    // SAFETY: the caller upholds the contract; every access is within a row of COLUMNS elements.
    unsafe {
        let (mut low, mut high) = (S::splat(0.0), S::splat(0.0));
        for (state, key) in state.iter().zip(key) {
            let key = S::splat(*key);
            low = S::fma(key, S::load(state.as_ptr()), low);
            high = S::fma(key, S::load(state.as_ptr().add(LANES)), high);
        }
        S::store(out.as_mut_ptr(), low);
        S::store(out.as_mut_ptr().add(LANES), high);
    }
}

dispatch! {
    /// One row of the delta rule. `predicted` is `state · key` of this row's key before it, and of `next` after it.
    pub(crate) fn advance(
        state: &mut [[f32; COLUMNS]],
        row: DeltaRow<'_>,
        next: &[f32],
        predicted: &mut [f32; COLUMNS],
        out: &mut [f32; COLUMNS],
    ) { portable_advance, simd_advance }
}

#[inline(always)]
fn portable_advance(
    state: &mut [[f32; COLUMNS]],
    row: DeltaRow<'_>,
    next: &[f32],
    predicted: &mut [f32; COLUMNS],
    out: &mut [f32; COLUMNS],
) {
    let DeltaRow { query, key, value, beta, decay } = row;
    let u: [f32; COLUMNS] = std::array::from_fn(|c| (-decay).mul_add(predicted[c], value[c]) * beta);
    *out = [0.0; COLUMNS];
    *predicted = [0.0; COLUMNS];
    for (((state, query), key), next) in state.iter_mut().zip(query).zip(key).zip(next) {
        for c in 0..COLUMNS {
            let s = key.mul_add(u[c], state[c] * decay);
            state[c] = s;
            out[c] = query.mul_add(s, out[c]);
            predicted[c] = next.mul_add(s, predicted[c]);
        }
    }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_advance<S: Simd>(
    state: &mut [[f32; COLUMNS]],
    row: DeltaRow<'_>,
    next: &[f32],
    predicted: &mut [f32; COLUMNS],
    out: &mut [f32; COLUMNS],
) {
    let DeltaRow { query, key, value, beta, decay } = row;
    // SAFETY: the caller upholds the contract; every access is within a row of COLUMNS elements.
    unsafe {
        let decays = S::splat(decay);
        let u = [0, LANES].map(|at| {
            let (v, p) = (S::load(value.as_ptr().add(at)), S::load(predicted.as_ptr().add(at)));
            S::mul(S::fma(S::neg(decays), p, v), S::splat(beta))
        });
        let (mut outs, mut sums) = ([S::splat(0.0); 2], [S::splat(0.0); 2]);
        for (((state, query), key), next) in state.iter_mut().zip(query).zip(key).zip(next) {
            let (query, key, next) = (S::splat(*query), S::splat(*key), S::splat(*next));
            for half in 0..2 {
                let at = state.as_mut_ptr().add(half * LANES);
                let s = S::fma(key, u[half], S::mul(S::load(at), decays));
                S::store(at, s);
                outs[half] = S::fma(query, s, outs[half]);
                sums[half] = S::fma(next, s, sums[half]);
            }
        }
        for half in 0..2 {
            S::store(out.as_mut_ptr().add(half * LANES), outs[half]);
            S::store(predicted.as_mut_ptr().add(half * LANES), sums[half]);
        }
    }
}

dispatch! {
    /// The convolution of each channel, and SiLU. `taps` and `inputs` are by tap, the oldest first.
    pub(crate) fn conv_row(taps: [&[f32]; CONV_TAPS], inputs: [&[f32]; CONV_TAPS], out: &mut [f32]) {
        portable_conv, simd_conv
    }
}

#[inline(always)]
fn portable_conv(taps: [&[f32]; CONV_TAPS], inputs: [&[f32]; CONV_TAPS], out: &mut [f32]) {
    for (c, out) in out.iter_mut().enumerate() {
        let sum =
            (1..CONV_TAPS).fold(taps[0][c] * inputs[0][c], |sum, t| taps[t][c].mul_add(inputs[t][c], sum));
        *out = sum / (1.0 + exp(-sum));
    }
}

/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn simd_conv<S: Simd>(taps: [&[f32]; CONV_TAPS], inputs: [&[f32]; CONV_TAPS], out: &mut [f32]) {
    let n = out.len();
    let (taps, inputs) = (taps.map(|all| &all[..n]), inputs.map(|all| &all[..n]));
    let whole = n - n % LANES;
    for c in (0..whole).step_by(LANES) {
        // SAFETY: the caller upholds the contract; `c + LANES` is within all slices.
        unsafe {
            let at = |all: &[f32]| S::load(all.as_ptr().add(c));
            let mut sum = S::mul(at(taps[0]), at(inputs[0]));
            for t in 1..CONV_TAPS {
                sum = S::fma(at(taps[t]), at(inputs[t]), sum);
            }
            let e = exp_lanes::<S>(S::neg(sum));
            S::store(out.as_mut_ptr().add(c), S::div(sum, S::add(S::splat(1.0), e)));
        }
    }
    portable_conv(taps.map(|all| &all[whole..]), inputs.map(|all| &all[whole..]), &mut out[whole..]);
}
