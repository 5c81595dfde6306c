//! Mixtures of experts: routes, products of each slot, and sums over slots.

use gyrus_tensor::DType;
use half::f16;

use super::matmul::{Output, widths};
use super::matvec::{exact_rows, int8_magnitude};
use crate::call::{
    ExpertSumCall, ExpertTilesCall, Experts, F16RowsCall, Input, MatMulCall, MatVecCall, MatVecSizes,
    MatVecTuning, RouteCall, TileCall, add_gated,
};
use crate::grid::case::{Case, CaseBuffer, Rule, Step, UNTOUCHED, words};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::grid::weights::{Weight, dtypes};
use crate::op::{Activation, RouteWeights};
use crate::scalar;
use crate::shader::Rungs;
use crate::weights::WeightLayout;

/// Experts, and those of a row.
const COUNTS: [(u32, u32); 4] = [(4, 2), (3, 3), (7, 1), (16, 4)];

pub(super) fn route(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let (count, used) = point.of(&[(8, 2), (128, 8), (4, 4), (301, 10), (1, 1), (256, 8), (6, 3)]);
    let rows = point.of(&[1, 3, 6]);
    let weights = point.of(&[RouteWeights::All, RouteWeights::Chosen]);
    let scale = point.of(&[false, true]);
    let call = RouteCall { rows, count, used, weights, scale };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let (experts, used) = (count as usize, used as usize);
        let factors = noise.floats(experts, 2.0);
        let (mut all, mut after, mut tolerances) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..rows as usize {
            let mut logits = noise.floats(experts, 8.0);
            match row {
                // Equal logits, among them zeros of either sign.
                0 => logits.iter_mut().for_each(|v| *v = v.round() * 0.5),
                3 => logits[experts / 2] = f32::NAN,
                4 => logits[experts - 1] = f32::NEG_INFINITY,
                _ => {}
            }
            let mut out = vec![0.0; 2 * used];
            scalar::route(&logits, used, weights, scale.then_some(&factors), &mut out);
            tolerances
                .extend((0..2 * used).map(|i| (i >= used).then(|| 4e-6 * f64::from(out[i].abs()) + 1e-9)));
            after.extend(words(&out));
            all.extend(logits);
        }
        let rule = Rule::Near(crate::call::Storage::F32, tolerances);
        let out = CaseBuffer { name: "out", before: vec![UNTOUCHED; after.len()], after, rule };
        vec![CaseBuffer::floats("logits", &all), CaseBuffer::floats("scale", &factors), out]
    };
    Some(Case::new(format!("{call:?}"), call.launch(rungs).ok()?, twin))
}

/// Random experts of rows and their weights, as `route` leaves them.
fn routes(noise: &mut Noise, rows: u32, experts: &Experts) -> Vec<f32> {
    let mut routes = Vec::new();
    for _ in 0..rows {
        let mut ids: Vec<u32> = (0..experts.count).collect();
        for i in (1..ids.len()).rev() {
            ids.swap(i, noise.below(i as u32 + 1) as usize);
        }
        routes.extend(ids.iter().take(experts.used as usize).map(|id| *id as f32));
        routes.extend((0..experts.used).map(|_| 0.25 + noise.number().abs() as f32));
    }
    routes
}

/// The error of a product of these weights and inputs.
type ProductError = fn(&[f32], &[f32]) -> f64;

/// A share of the sum of magnitudes.
fn of_magnitudes(share: f64, w: &[f32], x: &[f32]) -> f64 {
    share * w.iter().zip(x).map(|(w, x)| f64::from(w * x).abs()).sum::<f64>()
}

fn in_f32(w: &[f32], x: &[f32]) -> f64 {
    of_magnitudes(5e-7, w, x)
}

fn in_f16(w: &[f32], x: &[f32]) -> f64 {
    of_magnitudes(2e-6, w, x)
}

fn in_int8(w: &[f32], x: &[f32]) -> f64 {
    5e-7 * int8_magnitude(w, x)
}

/// The random experts of a case, and the routes of its rows.
struct Mixture {
    experts: Experts,
    rows: usize,
    k: usize,
    weight: Weight,
    biases: Vec<f32>,
    routes: Vec<f32>,
    error: ProductError,
}

impl Mixture {
    /// Experts of `n` rows of `k` each.
    fn new(
        noise: &mut Noise,
        (dtype, n, k): (DType, usize, usize),
        experts: Experts,
        rows: u32,
        error: ProductError,
    ) -> Mixture {
        let all = n * experts.count as usize;
        let weight = Weight::new(noise, dtype, all, k);
        let biases = noise.floats(all, 2.0);
        let routes = routes(noise, rows, &experts);
        Mixture { experts, rows: rows as usize, k, weight, biases, routes, error }
    }

    /// Slots of all rows.
    fn slots(&self) -> usize {
        self.rows * self.experts.used as usize
    }

    /// Rows of inputs: one for the slots of a row, or one for each slot.
    fn inputs(&self) -> usize {
        if self.experts.shared { self.rows } else { self.slots() }
    }

    /// The row of inputs of a slot.
    fn input(&self, slot: usize) -> usize {
        if self.experts.shared { slot / self.experts.used as usize } else { slot }
    }

    /// The expert of each slot, and its weight.
    fn routed(&self) -> impl Iterator<Item = (usize, f32)> {
        self.routes.chunks_exact(2 * self.experts.used as usize).flat_map(scalar::routed)
    }

    /// The products of a slot with their tolerances: rows of the expert's matrices, one for each projection.
    fn products(&self, expert: usize, x: &[f32], factor: f64) -> Vec<(f64, f64)> {
        let (k, count) = (self.k, self.experts.count as usize);
        let parts = self.experts.parts as usize;
        let n = self.weight.values.len() / k / count / parts;
        let mut all = Vec::new();
        for part in 0..parts {
            let first = (part * count + expert) * n;
            for row in first..first + n {
                let w = &self.weight.values[row * k..][..k];
                let sum: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let bias = if self.experts.bias { f64::from(self.biases[row]) } else { 0.0 };
                let tolerance = factor * (self.error)(w, x) + 1e-6 * (factor * sum).abs() + 2e-7 * bias.abs();
                all.push((factor * sum + bias, tolerance));
            }
        }
        all
    }

    /// Sets the results of every slot, whose values and their factor `input` returns for a row of inputs.
    fn fill(&self, y: &mut Output, gate: Option<Activation>, input: impl Fn(usize) -> (Vec<f32>, f64)) {
        for (slot, (expert, _)) in self.routed().enumerate() {
            let (x, factor) = input(self.input(slot));
            let products = self.products(expert, &x, factor);
            for (column, (value, tolerance)) in gated(&products, gate).into_iter().enumerate() {
                y.set(slot, column, value as f32, tolerance);
            }
        }
    }

    /// The buffers of the case: weights, its own inputs, routes, biases and results.
    fn buffers(&self, own: Vec<CaseBuffer>, y: Output) -> Vec<CaseBuffer> {
        let mut buffers = self.weight.buffers();
        buffers.extend(own);
        buffers.push(CaseBuffer::floats("routes", &self.routes));
        buffers.push(CaseBuffer::floats("biases", &self.biases));
        buffers.push(y.buffer("y"));
        buffers
    }
}

/// The gate's function of products: the first half are gates.
fn gated(products: &[(f64, f64)], gate: Option<Activation>) -> Vec<(f64, f64)> {
    let Some(activation) = gate else { return products.to_vec() };
    let (gates, ups) = products.split_at(products.len() / 2);
    let one = |(gate, up): (&(f64, f64), &(f64, f64))| {
        let value = scalar::gated(activation, gate.0 as f32, up.0 as f32);
        // No function is steeper than 1.2 nor larger than its argument; the clamped one adds one to its factor.
        let of_gate = 1.2 * gate.1 + 3e-6 * gate.0.abs();
        (f64::from(value), of_gate * (up.0.abs() + up.1 + 1.0) + gate.0.abs() * up.1 + 1e-6)
    };
    gates.iter().zip(ups).map(one).collect()
}

const EPS: f32 = 1e-2;

const fn tuning(workgroup: u32, columns: u32, splits: u32, passes: u32) -> MatVecTuning {
    MatVecTuning { workgroup, columns, splits, passes }
}

/// A device that few workgroups fill, so that each computes several sets of columns.
const SMALL_DEVICE: MatVecSizes =
    MatVecSizes { prologue_workgroups: 1, prologue_workgroup: 32, ..MatVecSizes::H200 };

const TUNINGS: [MatVecTuning; 4] =
    [tuning(64, 2, 1, 1), tuning(128, 2, 2, 2), tuning(256, 4, 4, 1), tuning(64, 8, 1, 1)];

fn quantized() -> Vec<DType> {
    dtypes().into_iter().filter(|dtype| dtype.is_quantized()).collect()
}

/// Inputs whose products with the first matrix are where a gate's function is not linear.
fn gate_sized(weight: &Weight, mut x: Vec<f32>, k: usize) -> Vec<f32> {
    let mut product = vec![0.0; weight.values.len() / k];
    scalar::matmul(&weight.values, &x[..k], false, &mut product);
    let largest = product.iter().fold(0f32, |most, v| most.max(v.abs()));
    let factor = if largest > 0.0 { 2f32.powi(-(largest / 4.0).log2().round() as i32) } else { 1.0 };
    x.iter_mut().for_each(|x| *x *= factor);
    x
}

pub(super) fn matvec(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let dtype = point.of(&quantized());
    let k: usize = point.of(if dtype.block_elems() == 32 { &[96, 32, 1056] } else { &[256, 512, 1280] });
    let n: usize = point.of(&[14, 2, 36]);
    let (count, used) = point.of(&COUNTS);
    let (rows, norm, shared) =
        point.of(&[(1, true, true), (3, false, true), (2, true, true), (2, false, false)]);
    let gate = point.of(&[Some(Activation::Silu), None, Some(Activation::ClampedSwish)]);
    let (bias, stacked) = point.of(&[(true, 2), (false, 1), (true, 1)]);
    let (tuning, sizes) = (point.of(&TUNINGS), point.of(&[MatVecSizes::H200, SMALL_DEVICE]));
    let parts = if gate.is_some() { 2 } else { 1 };
    let width = n / parts;
    let experts = Experts { count, used, shared, bias, parts: stacked, sum: false };
    let call = MatVecCall {
        rows,
        input: if norm { Input::Norm { eps: EPS } } else { Input::F32 },
        gate,
        y_stride: width as u32 + 3,
        y_offset: 2,
        experts: Some(experts),
        tuning,
        sizes,
        ..MatVecCall::new(WeightLayout::new(dtype, n * count as usize, k).ok()?, rows)
    };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let mixture = Mixture::new(&mut noise, (dtype, n, k), experts, rows, in_int8);
        let x = gate_sized(&mixture.weight, exact_rows(&mut noise, mixture.inputs(), k), k);
        // Powers of two, so that products with the weights of a norm are exact.
        let norms: Vec<f32> = (0..k).map(|_| 2f32.powi(noise.below(4) as i32)).collect();
        let given: Vec<f32> =
            x.iter().enumerate().map(|(i, x)| if norm { x / norms[i % k] } else { *x }).collect();
        let mut y = Output::new(&mut noise, mixture.slots(), width + 3, 2, false);
        mixture.fill(&mut y, gate, |at| {
            let factor = if norm { scalar::inverse_rms(&given[at * k..][..k], EPS) } else { 1.0 };
            (scalar::quantize_rows(1, k, k, &x[at * k..][..k]).values(0), factor)
        });
        let own = vec![CaseBuffer::floats("x", &given), CaseBuffer::floats("norm_weight", &norms)];
        mixture.buffers(own, y)
    };
    let launch = call.launch(rungs).ok()?;
    Some(Case { workgroup_bytes: call.workgroup_bytes(), ..Case::new(format!("{call:?}"), launch, twin) })
}

pub(super) fn matvec_sum(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let dtype = point.of(&quantized());
    let k: usize = point.of(if dtype.block_elems() == 32 { &[96, 32, 352] } else { &[256, 512, 768] });
    let n: usize = point.of(&[14, 3, 36]);
    let (count, used) = point.of(&COUNTS);
    let rows = point.of(&[1, 3, 2]);
    let (bias, accumulate) = point.of(&[(false, true), (true, true), (true, false)]);
    let (tuning, sizes) = (point.of(&TUNINGS), point.of(&[MatVecSizes::H200, SMALL_DEVICE]));
    let experts = Experts { count, used, shared: false, bias, parts: 1, sum: true };
    let call = MatVecCall {
        input: Input::F32,
        y_stride: n as u32,
        accumulate,
        experts: Some(experts),
        tuning,
        sizes,
        ..MatVecCall::new(WeightLayout::new(dtype, n * count as usize, k).ok()?, rows)
    };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let mixture = Mixture::new(&mut noise, (dtype, n, k), experts, rows, in_int8);
        let x = exact_rows(&mut noise, mixture.inputs(), k);
        let mut y = Output::new(&mut noise, mixture.rows, n, 0, accumulate);
        let mut slots = mixture.routed().enumerate();
        for row in 0..mixture.rows {
            let mut sums: Vec<(f64, f64)> = (0..n).map(|column| (y.before(row, column), 0.0)).collect();
            for (slot, (expert, weight)) in slots.by_ref().take(used as usize) {
                let x = scalar::quantize_rows(1, k, k, &x[slot * k..][..k]).values(0);
                let products = mixture.products(expert, &x, 1.0);
                for (sum, (value, tolerance)) in sums.iter_mut().zip(products) {
                    sum.0 += f64::from(weight) * value;
                    sum.1 += f64::from(weight) * (tolerance + 1e-6 * value.abs());
                }
            }
            for (column, (value, tolerance)) in sums.into_iter().enumerate() {
                let before = y.before(row, column).abs();
                y.set(row, column, value as f32, tolerance + 1e-6 * before);
            }
        }
        mixture.buffers(vec![CaseBuffer::floats("x", &x)], y)
    };
    let launch = call.launch(rungs).ok()?;
    Some(Case { workgroup_bytes: call.workgroup_bytes(), ..Case::new(format!("{call:?}"), launch, twin) })
}

pub(super) fn matmul(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let dtype = point.of(&dtypes());
    let k = point.of(&widths(dtype));
    let n: usize = point.of(&[5, 17]);
    let (count, used) = point.of(&COUNTS);
    let (rows, shared) = point.of(&[(1, true), (3, true), (2, false)]);
    let (bias, stacked) = point.of(&[(true, 1), (false, 2)]);
    let n = n * stacked as usize;
    let experts = Experts { count, used, shared, bias, parts: stacked, sum: false };
    let weight = WeightLayout::new(dtype, n * count as usize, k).ok()?;
    let call = MatMulCall {
        y_stride: n as u32 + 2,
        y_offset: 1,
        experts: Some(experts),
        ..MatMulCall::new(weight, rows)
    };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let mixture = Mixture::new(&mut noise, (dtype, n, k), experts, rows, in_f32);
        let x = noise.floats(mixture.inputs() * k, 4.0);
        let mut y = Output::new(&mut noise, mixture.slots(), n + 2, 1, false);
        mixture.fill(&mut y, None, |at| (x[at * k..][..k].to_vec(), 1.0));
        mixture.buffers(vec![CaseBuffer::floats("x", &x)], y)
    };
    Some(Case::new(format!("{call:?}"), call.launch(rungs, Default::default()).ok()?, twin))
}

/// Slots are sorted by one kernel and multiplied by the next. The order of slots within an expert is free.
pub(super) fn tiles(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let dtype = point.of(&dtypes());
    let k: usize = point.of(if dtype.block_elems() <= 32 { &[96, 160, 32] } else { &[256, 768, 512] });
    let n: usize = point.of(&[70, 6, 144]);
    let (count, used) = point.of(&COUNTS);
    let rows = point.of(&[17, 70, 1, 150]);
    let shared = point.of(&[true, false]);
    let gate = point.of(&[Some(Activation::Silu), None, Some(Activation::ClampedSwish)]);
    let (bias, stacked) = point.of(&[(true, 2), (false, 1), (true, 1)]);
    let parts = if gate.is_some() { 2 } else { 1 };
    let width = n / parts;
    let experts = Experts { count, used, shared, bias, parts: stacked, sum: false };
    let call = TileCall {
        gate,
        y_stride: width as u32 + 3,
        y_offset: 2,
        experts: Some(experts),
        ..TileCall::new(WeightLayout::new(dtype, n * count as usize, k).ok()?, rows)
    };
    let sort = ExpertTilesCall { rows, experts }.launch(rungs).ok()?;
    let steps = vec![Step::new(sort), Step::new(call.launch(rungs).ok()?)];
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let mut mixture = Mixture::new(&mut noise, (dtype, n, k), experts, rows, in_f16);
        if rungs.cooperative {
            mixture.weight.values.iter_mut().for_each(|w| *w = f16::from_f32(*w).to_f32());
        }
        let x = gate_sized(&mixture.weight, noise.floats(mixture.inputs() * k, 1.0), k);
        let x_rows = mixture.inputs() as u32;
        let of_rows = F16RowsCall { rows: x_rows, cols: k as u32, x_stride: k as u32, norm: None };
        let f16_rows = scalar::f16_rows(&of_rows, &x, &[]);
        let mut y = Output::new(&mut noise, mixture.slots(), width + 3, 2, false);
        mixture.fill(&mut y, gate, |at| (f16_rows.values(at)[..k].to_vec(), f64::from(f16_rows.scales[at])));
        let own = vec![
            CaseBuffer::read("x", f16_rows.h),
            CaseBuffer::floats("x_scales", &f16_rows.scales),
            CaseBuffer::scratch("order", experts.order_words(rows) as usize),
        ];
        mixture.buffers(own, y)
    };
    Some(Case::chain(format!("{call:?}"), steps, twin))
}

/// The weighted sum of slots, and the sum with an expert that every row has.
pub(super) fn sums(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let (count, used) = point.of(&COUNTS);
    let width: usize = point.of(&[7, 300]);
    let rows = point.of(&[1, 3]);
    let (accumulate, is_shared_expert) = point.of(&[(true, false), (false, false), (true, true)]);
    let experts = Experts { count, used, shared: false, bias: false, parts: 1, sum: false };
    let seed = point.seed;
    let launch = match is_shared_expert {
        true => add_gated(rungs, rows, width as u32),
        false => ExpertSumCall { rows, count: width as u32, experts, accumulate }.launch(rungs),
    };
    let twin = move || {
        let mut noise = Noise::new(seed);
        let routes = routes(&mut noise, rows, &experts);
        let (rows, used) = (rows as usize, if is_shared_expert { 1 } else { used as usize });
        let x = noise.floats(rows * used * width, 3.0);
        let gates = noise.floats(rows, 6.0);
        let mut y = Output::new(&mut noise, rows, width, 0, accumulate);
        for row in 0..rows {
            let mut out: Vec<f32> = (0..width).map(|i| y.before(row, i) as f32).collect();
            let x = &x[row * used * width..][..used * width];
            match is_shared_expert {
                true => scalar::add_gated(x, gates[row], &mut out),
                false => {
                    scalar::expert_sum(x, &routes[row * 2 * used..][..2 * used], accumulate, &mut out);
                }
            }
            out.into_iter().enumerate().for_each(|(column, value)| y.set(row, column, value, 1e-5));
        }
        vec![
            CaseBuffer::floats("x", &x),
            CaseBuffer::floats("routes", &routes),
            CaseBuffer::floats("gate", &gates),
            y.buffer("out"),
        ]
    };
    Some(Case::new(format!("{experts:?}, {rows} rows of {width}"), launch.ok()?, twin))
}
