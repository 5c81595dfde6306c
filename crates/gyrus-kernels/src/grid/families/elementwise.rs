//! Copies, gates, gathered rows, norms and embeddings.

use crate::call::engine::{self, AddCall};
use crate::call::{
    Columns, EmbedCall, Norm, NormCall, Storage, UnfoldCall, copy as copy_call, read_sums as read_sums_call,
};
use crate::grid::case::{Case, CaseBuffer, Rule, UNTOUCHED, largest, words};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::grid::weights::{Weight, dtypes};
use crate::launch::{Launch, LaunchError};
use crate::op::Activation;
use crate::scalar;
use crate::shader::Rungs;
use crate::weights::{Planes, WeightLayout};

pub(super) fn copy(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let vectors = point.of(&[1, 255, 65_537]);
    let seed = point.seed;
    let twin = move || {
        let x = Noise::new(seed).words(4 * vectors);
        let y = CaseBuffer::exact("y", vec![UNTOUCHED; x.len()], x.clone());
        vec![CaseBuffer::read("x", x), y]
    };
    Some(Case::new(format!("{vectors} vectors"), copy_call(rungs, 16 * vectors as u64).ok()?, twin))
}

pub(super) fn gate(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let activation = point.of(&ACTIVATIONS);
    let n: usize = point.of(&[1, 70, 255, 256, 1536]);
    let rows: usize = point.of(&[1, 2, 3, 17]);
    let seed = point.seed;
    let twin = move || {
        let mut x = Noise::new(seed).gaussians(rows * 2 * n);
        // Large values of either sign do not overflow.
        (x[0], x[2 * n * (rows - 1)]) = (80.0, -80.0);
        let mut out = vec![0.0; rows * n];
        for (x, out) in x.chunks_exact(2 * n).zip(out.chunks_exact_mut(n)) {
            scalar::gate(activation, x, out);
        }
        let tolerance = |i: usize| 1e-5 * (1.0 + f64::from(out[i].abs()));
        vec![CaseBuffer::floats("x", &x), CaseBuffer::near("out", &out, tolerance)]
    };
    let launch = engine::gate(rungs, rows as u32, n as u32, activation).ok()?;
    Some(Case::new(format!("{activation:?}, {rows} × {n}"), launch, twin))
}

const ACTIVATIONS: [Activation; 5] =
    [Activation::Silu, Activation::GeluTanh, Activation::Gelu, Activation::SquaredRelu, Activation::Sigmoid];

pub(super) fn activate(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let activation = point.of(&[
        Activation::Gelu,
        Activation::Relu,
        Activation::Tanh,
        Activation::Silu,
        Activation::GeluTanh,
        Activation::SquaredRelu,
        Activation::Sigmoid,
        Activation::ClampedSwish,
    ]);
    let n: usize = point.of(&[1537, 70, 256, 1]);
    let rows: usize = point.of(&[17, 3, 1]);
    let twin = move || {
        // A dense grid from -12 to 12, and large values of either sign, which do not overflow.
        let all = rows * n;
        let mut x: Vec<f32> =
            (0..all).map(|i| (24.0 * (i as f64 + 0.5) / all as f64 - 12.0) as f32).collect();
        (x[0], x[all - 1]) = (-80.0, 80.0);
        let out: Vec<f32> = x.iter().map(|x| scalar::activate(activation, *x)).collect();
        // GELU has no built-in function: its approximation is as exact as f32. The twin of the tanh form rounds to f32.
        let most = if activation == Activation::Gelu { 2e-7 } else { 2e-6 };
        let near = CaseBuffer::near("x", &out, |i| most * f64::from(out[i].abs()).max(1.0));
        vec![CaseBuffer { before: words(&x), ..near }]
    };
    let launch = engine::activate(rungs, rows as u32, n as u32, activation).ok()?;
    Some(Case::new(format!("{activation:?}, {rows} × {n}"), launch, twin))
}

/// Several sequences of rows, some of which have a single one.
pub(super) fn unfold(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let channels: usize = point.of(&[1, 80, 129]);
    let taps: usize = point.of(&[3, 1, 7]);
    let (x_slots, out_slots): (usize, usize) = point.of(&[(1, 1), (2, 2), (2, 1), (6, 2)]);
    let lengths: &[usize] = point.of(&[&[7, 1, 1, 12], &[1], &[2, 5]]);
    let rows: usize = lengths.iter().sum();
    let call = UnfoldCall {
        rows: rows as u32,
        x_slots: x_slots as u32,
        out_slots: out_slots as u32,
        channels: channels as u32,
        taps: taps as u32,
    };
    let seed = point.seed;
    let twin = move || {
        let x = Noise::new(seed).gaussians(rows * x_slots * channels);
        let mut out = Vec::new();
        let (mut first, mut of_rows) = (0, Vec::new());
        for length in lengths {
            let own = &x[first * x_slots * channels..][..length * x_slots * channels];
            let mut unfolded = vec![0.0; length * out_slots * channels * taps];
            scalar::unfold(own, channels, x_slots / out_slots, taps, &mut unfolded);
            out.extend(unfolded);
            of_rows.extend((0..*length as u32).flat_map(|position| [position, 7 * first as u32]));
            first += length;
        }
        let written = CaseBuffer::exact("out", vec![UNTOUCHED; out.len()], words(&out));
        vec![CaseBuffer::floats("x", &x), CaseBuffer::read("rows", of_rows), written]
    };
    Some(Case::new(format!("{call:?}, {lengths:?}"), call.launch(rungs).ok()?, twin))
}

pub(super) fn gate_by(point: &mut Point, rungs: Rungs) -> Option<Case> {
    by_columns(point, rungs, engine::gate_by, |activation, x, by| scalar::activate(activation, x) * by)
}

pub(super) fn mul_by(point: &mut Point, rungs: Rungs) -> Option<Case> {
    by_columns(point, rungs, engine::mul_by, |activation, x, by| x * scalar::activate(activation, by))
}

type ByColumns = fn(Rungs, u32, u32, Activation, (u32, u32)) -> Result<Launch, LaunchError>;

fn by_columns(
    point: &mut Point,
    rungs: Rungs,
    call: ByColumns,
    of: fn(Activation, f32, f32) -> f32,
) -> Option<Case> {
    let activation = point.of(&ACTIVATIONS);
    let n: usize = point.of(&[1, 70, 256, 1536]);
    let rows: usize = point.of(&[1, 3, 17]);
    let (first, after) = point.of(&[(0, 0), (5, 0), (256, 31)]);
    let width = first + n + after;
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let (x, by) = (noise.gaussians(rows * n), noise.gaussians(rows * width));
        let each = x.chunks_exact(n).zip(by.chunks_exact(width));
        let out: Vec<f32> = each
            .flat_map(|(x, by)| x.iter().zip(&by[first..]).map(|(x, by)| of(activation, *x, *by)))
            .collect();
        let near = CaseBuffer::near("x", &out, |i| 1e-5 * (1.0 + f64::from(out[i].abs())));
        vec![CaseBuffer { before: words(&x), ..near }, CaseBuffer::floats("by", &by)]
    };
    let launch = call(rungs, rows as u32, n as u32, activation, (width as u32, first as u32)).ok()?;
    Some(Case::new(format!("{activation:?}, {rows} × {n} by columns {first} of {width}"), launch, twin))
}

pub(super) fn add(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let n: usize = point.of(&[1, 70, 256, 1537]);
    let rows: usize = point.of(&[1, 3, 17]);
    let (first, after) = point.of(&[(0, 0), (5, 0), (256, 31)]);
    let bias = point.of(&[false, true]);
    let scale = point.of(&[1.0, -0.4]);
    let width = first + n + after;
    let call = AddCall {
        rows: rows as u32,
        count: n as u32,
        bias,
        out_stride: width as u32,
        first: first as u32,
        scale,
    };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let x = noise.gaussians(if bias { n } else { rows * n });
        let before = noise.gaussians(rows * width);
        let mut after = before.clone();
        let added = x.chunks_exact(n).cycle();
        for (row, x) in after.chunks_exact_mut(width).zip(added) {
            row[first..].iter_mut().zip(x).for_each(|(out, x)| *out += scale * x);
        }
        // One rounding if the device contracts the product and the sum, else two.
        let near = CaseBuffer::near("out", &after, |i| 3e-7 * (1.0 + f64::from(after[i].abs())));
        vec![CaseBuffer::floats("x", &x), CaseBuffer { before: words(&before), ..near }]
    };
    Some(Case::new(format!("{call:?}"), call.launch(rungs).ok()?, twin))
}

pub(super) fn scale(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let n: usize = point.of(&[1, 70, 256, 1537]);
    let rows: usize = point.of(&[1, 3, 17]);
    let factor = point.of(&[1.0, 0.25, -3.0]);
    let cap = point.of(&[None, Some(30.0), Some(0.5)]);
    let seed = point.seed;
    let twin = move || {
        let mut x = Noise::new(seed).gaussians(rows * n);
        // Far beyond the cap.
        (x[0], x[rows * n - 1]) = (1e6, -1e6);
        let capped = |x: f32| cap.map_or(factor * x, |cap| scalar::soft_cap(factor * x, cap));
        let out: Vec<f32> = x.iter().map(|x| capped(*x)).collect();
        let tolerance = |_| cap.map_or(0.0, |cap: f32| 2e-6 * f64::from(cap));
        vec![CaseBuffer { before: words(&x), ..CaseBuffer::near("x", &out, tolerance) }]
    };
    let launch = engine::scale(rungs, rows as u32, n as u32, factor, cap).ok()?;
    Some(Case::new(format!("{rows} × {n} × {factor}, cap {cap:?}"), launch, twin))
}

pub(super) fn read_sums(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let vectors = point.of(&[1, 2047, 2048, 65_537]);
    let seed = point.seed;
    let twin = move || {
        let x = Noise::new(seed).words(4 * vectors);
        let sums = scalar::read_sums(&x);
        vec![CaseBuffer::exact("y", vec![UNTOUCHED; sums.len()], sums), CaseBuffer::read("x", x)]
    };
    Some(Case::new(format!("{vectors} vectors"), read_sums_call(rungs, 16 * vectors as u64).ok()?, twin))
}

/// Norms that are added to another buffer, and norms of columns in place.
pub(super) fn norm_parts(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let dim: usize = point.of(&[1, 33, 64, 576, 4097]);
    let rows: usize = point.of(&[1, 3, 5]);
    let add = point.of(&[Some(0.4), None]);
    let parts: usize = point.of(&[1, 2, 3]);
    let (first, after) = point.of(&[(0, 0), (4, 8), (3, 0)]);
    let (parts, first, after) = if add.is_some() { (1, 0, 0) } else { (parts, first, after) };
    let stride = first + parts * dim + after;
    let (eps, seed) = (1e-5, point.seed);
    let columns = Columns { stride: stride as u32, first: first as u32, parts: parts as u32 };
    let plain = NormCall::new(Norm::Rms, rows as u32, dim as u32, eps);
    let call = match add {
        Some(_) => NormCall { add, ..plain },
        None => NormCall { in_place: true, columns: Some(columns), ..plain },
    };
    let twin = move || {
        let mut noise = Noise::new(seed);
        let (x, weight) = (noise.gaussians(rows * stride), noise.gaussians(dim));
        let before = if add.is_some() { noise.gaussians(rows * dim) } else { x.clone() };
        let mut out = before.clone();
        let mut tolerances = vec![None; out.len()];
        for (row, x) in x.chunks_exact(stride).enumerate() {
            for part in 0..parts {
                let at = row * stride + first + part * dim;
                let mut normed = vec![0.0; dim];
                scalar::rms_norm(&x[first + part * dim..][..dim], &weight, eps, &mut normed);
                let tolerance = 2e-6 * largest(&normed).max(1.0);
                for (i, value) in normed.into_iter().enumerate() {
                    out[at + i] = add.map_or(value, |scale| out[at + i] + scale * value);
                    tolerances[at + i] = Some(tolerance);
                }
            }
        }
        let rule = Rule::Near(Storage::F32, tolerances);
        let changed =
            |name| CaseBuffer { name, before: words(&before), after: words(&out), rule: rule.clone() };
        let mut buffers = vec![CaseBuffer::floats("weight", &weight)];
        match add {
            Some(_) => buffers.extend([CaseBuffer::floats("x", &x), changed("out")]),
            None => buffers.push(changed("x")),
        }
        buffers
    };
    Some(Case::new(format!("{call:?}"), call.launch(rungs).ok()?, twin))
}

pub(super) fn gather(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let rows: u32 = point.of(&[1, 5, 16]);
    let gathered: u32 = point.of(&[1, 3, 16]).min(rows);
    let n: usize = point.of(&[1, 256, 300]);
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let x = noise.words(rows as usize * n);
        let indices: Vec<u32> = (0..rows).map(|_| noise.below(rows)).collect();
        let taken = indices[..gathered as usize].iter().flat_map(|row| &x[*row as usize * n..][..n]);
        let out: Vec<u32> = taken.copied().collect();
        let out = CaseBuffer::exact("out", vec![UNTOUCHED; out.len()], out);
        vec![CaseBuffer::read("x", x), CaseBuffer::read("indices", indices), out]
    };
    let launch = engine::gather(rungs, rows, gathered, n as u32).ok()?;
    Some(Case::new(format!("{gathered} of {rows} × {n}"), launch, twin))
}

const NORMS: [Norm; 4] =
    [Norm::Rms, Norm::RmsPlusOne, Norm::Layer { bias: false }, Norm::Layer { bias: true }];

pub(super) fn norm(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let norm = point.of(&NORMS);
    let dim: usize = point.of(&[1, 33, 64, 576, 4097]);
    let rows: usize = point.of(&[1, 3, 5]);
    let (residual, in_place) = (point.of(&[false, true]), point.of(&[false, true]));
    let workgroup = point.of(&[256, 64, 128]);
    let eps = point.of(&[1e-5, 1e-6]);
    let call =
        NormCall { residual, in_place, workgroup, ..NormCall::new(norm, rows as u32, dim as u32, eps) };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let x = noise.gaussians(rows * dim);
        let [weight, bias] = [(), ()].map(|()| noise.gaussians(dim));
        let added = noise.gaussians(rows * dim);
        // A sum of two numbers is exactly rounded.
        let mut sum = x.clone();
        if residual {
            sum.iter_mut().zip(&added).for_each(|(x, r)| *x += r);
        }
        let mut out = vec![0.0; x.len()];
        for (x, out) in sum.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
            scalar::norm(norm, x, &weight, &bias, eps, out);
        }
        let plain = norm == Norm::Rms && !residual;
        let tolerance = if plain { 1e-6 } else { 2e-6 } * largest(&out);
        let mut buffers = vec![CaseBuffer::floats("weight", &weight)];
        let near = |name| CaseBuffer::near(name, &out, |_| tolerance);
        if in_place {
            buffers.push(CaseBuffer { before: words(&x), ..near("x") });
        } else {
            buffers.push(CaseBuffer::exact("x", words(&x), words(&sum)));
            buffers.push(near("out"));
        }
        if residual {
            buffers.push(CaseBuffer::floats("residual", &added));
        }
        if norm == (Norm::Layer { bias: true }) {
            buffers.push(CaseBuffer::floats("bias", &bias));
        }
        buffers
    };
    Some(Case::new(format!("{call:?}"), call.launch(rungs).ok()?, twin))
}

/// Values are dequantised to the last bit. Tokens beyond the vocabulary are clamped, and a part of a table writes only
/// the rows of its tokens. Positions are every other word, and are added.
pub(super) fn embed(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let dtype = point.of(&dtypes());
    let k: usize = point.of(match dtype.block_elems() {
        1 => &[256, 4, 12, 100],
        32 => &[256, 32, 96, 576],
        _ => &[256, 512, 768, 1024],
    });
    let (first, rows) = point.of(&[(0, 7), (0, 4), (4, 3)]);
    let (scale, padding) = point.of(&[(1.0, 0), (22.627_417, 4)]);
    let (add, offset, token_stride) = point.of(&[(false, 0, 1), (true, 2, 2), (true, 0, 1)]);
    let vocab = 7;
    let tokens = [0u32, 1, 2, 3, 4, 5, 6, 3, 7, u32::MAX, 2];
    let table = WeightLayout::new(dtype, rows, k).ok()?;
    let call = EmbedCall {
        table,
        vocab: vocab as u32,
        first: first as u32,
        y_stride: (k + padding) as u32,
        add,
        offset,
        token_stride,
        ..EmbedCall::new(table, tokens.len() as u32, scale)
    };
    let seed = point.seed;
    let twin = move || {
        let whole = Weight::new(&mut Noise::new(seed), dtype, vocab, k);
        let part = whole.planes.layout.planes().zip(&whole.planes.words).map(|(plane, words)| {
            let width = table.row_words(plane) as usize;
            words[first * width..(first + rows) * width].to_vec()
        });
        let planes = Planes { layout: table, words: part.collect() };
        let mut buffers = Weight { planes, values: Vec::new() }.buffers();
        let count = tokens.len() * (k + padding);
        let before = if add { words(&Noise::new(!seed).gaussians(count)) } else { vec![UNTOUCHED; count] };
        let (mut after, mut tolerances) = (before.clone(), vec![None; count]);
        for (row, token) in tokens.into_iter().enumerate() {
            let entry = (token as usize).saturating_add(offset as usize).min(vocab - 1);
            if (first..first + rows).contains(&entry) {
                for (i, value) in whole.values[entry * k..][..k].iter().enumerate() {
                    let at = row * (k + padding) + i;
                    let earlier = if add { f32::from_bits(before[at]) } else { 0.0 };
                    // A sum with zero would lose the sign of another zero.
                    let sum = if add { earlier + value * scale } else { value * scale };
                    after[at] = sum.to_bits();
                    // One rounding if the device contracts the product and the sum, else two.
                    tolerances[at] =
                        add.then_some(2e-7 * (f64::from(earlier.abs()) + f64::from((value * scale).abs())));
                }
            }
        }
        let ids = tokens.iter().flat_map(|id| [*id, 1 << 20].into_iter().take(token_stride as usize));
        buffers.push(CaseBuffer::read("tokens", ids.collect()));
        let rule = if add { Rule::Near(Storage::F32, tolerances) } else { Rule::Bits };
        buffers.push(CaseBuffer { name: "y", before, after, rule });
        buffers
    };
    Some(Case::new(
        format!("{dtype} × {k}, {rows} rows from {first}, add {add} {offset}"),
        call.launch(rungs).ok()?,
        twin,
    ))
}
