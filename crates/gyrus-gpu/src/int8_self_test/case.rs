//! Products of the self-test, by mat-vecs and by int8 cooperative matrices.

use std::collections::BTreeMap;
use std::fmt;

use gyrus_kernels::call::{
    Input, MatVecCall, MatVecSizes, MatVecTuning, QuantizeCall, Results, Source, Target,
};
use gyrus_kernels::grid::Noise;
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Access, Activation, Launch, Plane, WeightLayout};
use gyrus_tensor::DType;

use crate::device::Gpu;
use crate::error::GpuError;

/// The types that int8 cooperative matrices multiply.
const DTYPES: [DType; 4] = [DType::Q4_0, DType::Q5_0, DType::Q8_0, DType::IQ4_NL];

/// Row counts: the fewest and the most that are used, and their neighbours.
pub(super) const ROWS: [u32; 4] = [9, 10, 15, 16];

const EPS: f32 = 1e-5;

/// Small matrices still have several tiles in a workgroup.
const SIZES: MatVecSizes = MatVecSizes { int8_matrix_workgroups: 4, ..MatVecSizes::H200 };

/// What is multiplied.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rows {
    Plain,
    /// Normalised by 1 / rms that was computed before.
    Factors,
    /// Normalised by 1 / rms that the matrix kernel computes from sums of squares.
    Squares,
}

/// A product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    dtype: DType,
    form: Form,
}

#[derive(Debug, Clone, Copy)]
struct Form {
    n: usize,
    k: usize,
    splits: u32,
    rows: Rows,
    gate: Option<Activation>,
    accumulate: bool,
    results: Results,
}

/// All kinds of rows and results; one and two blocks a lane, with and without splits; one tile a workgroup and several.
const FORMS: [Form; 6] = [
    PLAIN,
    Form { n: 50, k: 1024, rows: Rows::Factors, ..PLAIN },
    Form { n: 64, k: 4096, splits: 2, gate: Some(Activation::GeluTanh), rows: Rows::Factors, ..PLAIN },
    Form { n: 40, k: 4096, splits: 4, rows: Rows::Squares, accumulate: true, ..PLAIN },
    Form { gate: Some(Activation::Silu), rows: Rows::Squares, results: Results::Int8, ..PLAIN },
    Form { n: 128, k: 1024, accumulate: true, results: Results::NormedInt8, ..PLAIN },
];

/// Two blocks for each lane, so that every operation that can round does.
const PLAIN: Form = Form {
    n: 256,
    k: 2048,
    splits: 1,
    rows: Rows::Plain,
    gate: None,
    accumulate: false,
    results: Results::F32,
};

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Form { n, k, splits, rows, gate, accumulate, results } = self.form;
        write!(f, "{} {n} × {k}, {splits} splits, input {rows:?}, gate {gate:?}, ", self.dtype.name())?;
        write!(f, "{}results {results:?}", if accumulate { "added, " } else { "" })
    }
}

impl Case {
    pub(super) fn all() -> impl Iterator<Item = Case> {
        DTYPES.into_iter().flat_map(|dtype| FORMS.into_iter().map(move |form| Case { dtype, form }))
    }

    fn layout(&self) -> Result<WeightLayout, GpuError> {
        WeightLayout::new(self.dtype, self.form.n, self.form.k)
            .map_err(|error| GpuError::internal(error.to_string()))
    }

    /// Outputs of a row.
    fn width(&self) -> usize {
        if self.form.gate.is_some() { self.form.n / 2 } else { self.form.n }
    }

    /// The kernels of the product for any number of rows that int8 cooperative matrices take.
    pub(super) fn launches(&self, rungs: Rungs) -> Result<Vec<Launch>, GpuError> {
        let [_, .., most] = ROWS;
        let mut launches = vec![self.quantized(most, true).launch(rungs)?];
        launches.push(self.quantized(most, false).launch(rungs)?);
        launches.push(self.call(most, true)?.launch(rungs)?);
        launches.push(self.call(most, false)?.launch_int8_matrix(rungs, self.form.results)?);
        launches.extend(self.results(most).map(|call| call.launch(rungs)).transpose()?);
        Ok(launches)
    }

    /// The kernel that quantises the product's rows, for mat-vecs or for matrices.
    fn quantized(&self, rows: u32, for_vectors: bool) -> QuantizeCall {
        let cols = self.form.k as u32;
        let source = match self.form.rows {
            Rows::Plain => Source::F32 { x_stride: cols },
            Rows::Squares if !for_vectors => Source::Squares { x_stride: cols },
            Rows::Factors | Rows::Squares => Source::Norm { x_stride: cols, eps: EPS },
        };
        QuantizeCall { rows, cols, source, target: Target::Int8 }
    }

    /// The product by mat-vecs or by matrices.
    fn call(&self, rows: u32, by_vectors: bool) -> Result<MatVecCall, GpuError> {
        let Form { splits, gate, accumulate, .. } = self.form;
        let input = match self.form.rows {
            Rows::Plain => Input::Int8 { norm: false },
            Rows::Squares if !by_vectors => Input::Int8Squares { eps: EPS },
            Rows::Factors | Rows::Squares => Input::Int8 { norm: true },
        };
        let tuning = MatVecTuning { workgroup: 256, columns: 2, splits, passes: 1 };
        let (y_stride, new) = (self.width() as u32, MatVecCall::new(self.layout()?, rows));
        Ok(MatVecCall { input, gate, y_stride, accumulate, tuning, sizes: SIZES, ..new })
    }

    /// The kernel that makes of `y` what the epilogue of the matrix kernel writes besides it.
    fn results(&self, rows: u32) -> Option<QuantizeCall> {
        let cols = self.width() as u32;
        let source = match self.form.results {
            Results::F32 => return None,
            Results::Int8 => Source::F32 { x_stride: cols },
            Results::NormedInt8 => Source::Squares { x_stride: cols },
        };
        Some(QuantizeCall { rows, cols, source, target: Target::Int8 })
    }

    /// `y` and what is made of it, by mat-vecs and quantize kernels.
    pub(super) fn by_vectors(&self, bench: &Bench<'_>, rungs: Rungs) -> Result<Vec<Words>, GpuError> {
        let rows = bench.rows;
        let mut buffers = bench.quantized(&self.quantized(rows, true).launch(rungs)?)?;
        bench.run(&self.call(rows, true)?.launch(rungs)?, &mut buffers)?;
        let y = buffers.remove("y").unwrap_or_default();
        let mut found = vec![y.clone()];
        if let Some(call) = self.results(rows) {
            let mut buffers = Buffers::from([("x", y), ("weight", bench.next_norm.clone())]);
            bench.run(&call.launch(rungs)?, &mut buffers)?;
            found.extend(["q", "q_scales", "squares"].into_iter().filter_map(|name| buffers.remove(name)));
        }
        Ok(found)
    }

    /// The same by int8 cooperative matrices.
    pub(super) fn by_matrices(&self, bench: &Bench<'_>, rungs: Rungs) -> Result<Vec<Words>, GpuError> {
        let rows = bench.rows;
        let mut buffers = bench.quantized(&self.quantized(rows, false).launch(rungs)?)?;
        buffers.insert("weight", bench.next_norm.clone());
        let launch = self.call(rows, false)?.launch_int8_matrix(rungs, self.form.results)?;
        bench.run(&launch, &mut buffers)?;
        Ok(["y", "q", "q_scales", "made"].into_iter().filter_map(|name| buffers.remove(name)).collect())
    }
}

/// The contents of a buffer.
type Words = Vec<u32>;

/// Buffers by the names of slots.
type Buffers = BTreeMap<&'static str, Words>;

/// Random inputs of a product.
pub(super) struct Bench<'g> {
    gpu: &'g Gpu,
    rows: u32,
    /// The planes of the weight, and what the product is added to.
    product: Buffers,
    x: Words,
    /// The weights of the norm of the input, and of the norm after the product.
    norm: Words,
    next_norm: Words,
}

impl<'g> Bench<'g> {
    pub(super) fn new(gpu: &'g Gpu, case: &Case, rows: u32, seed: u64) -> Result<Bench<'g>, GpuError> {
        let noise = &mut Noise::new(seed);
        let layout = case.layout()?;
        let mut product = Buffers::new();
        for plane in layout.planes() {
            let words = (0..layout.bytes(plane) / 4).map(|_| match plane {
                // f16 from 2^-7 to 2^-3, and their negatives.
                Plane::Scales => noise.bits() & 0x8fff_8fff | 0x2000_2000,
                _ => noise.bits(),
            });
            product.insert(plane.name(), words.collect());
        }
        let mut floats = |count: usize, most: f64| -> Words {
            (0..count).map(|_| ((most * noise.number()) as f32).to_bits()).collect()
        };
        let (m, k, width) = (rows as usize, case.form.k, case.width());
        product.insert("y", floats(m * width, 8.0));
        // The gate of a large number is the number or zero, so those of a gate are small.
        let most = if case.form.gate.is_some() { 0.02 } else { 1.0 };
        let (x, norm, next_norm) = (floats(m * k, 4.0), floats(k, most), floats(width, 1.0));
        Ok(Bench { gpu, rows, product, x, norm, next_norm })
    }

    /// The buffers of the product, with rows that this kernel has quantised.
    fn quantized(&self, launch: &Launch) -> Result<Buffers, GpuError> {
        let mut rows = Buffers::from([("x", self.x.clone()), ("weight", self.norm.clone())]);
        self.run(launch, &mut rows)?;
        let mut buffers = self.product.clone();
        for (from, to) in
            [("q", "x"), ("q_scales", "x_scales"), ("factors", "factors"), ("squares", "squares")]
        {
            buffers.extend(rows.remove(from).map(|words| (to, words)));
        }
        Ok(buffers)
    }

    /// Runs a launch on the buffers of these names. Those that it writes are replaced; one that is missing is zero before.
    fn run(&self, launch: &Launch, buffers: &mut Buffers) -> Result<(), GpuError> {
        let bound = launch.slots().iter().map(|slot| match buffers.get(slot.name) {
            Some(words) => self.gpu.upload(bytemuck::cast_slice(words)),
            None => self.gpu.buffer(slot.bytes),
        });
        let bound = bound.collect::<Result<Vec<_>, _>>()?;
        self.gpu.run(&[&self.gpu.bind(launch, &bound.iter().collect::<Vec<_>>())?])?;
        for (slot, buffer) in launch.slots().iter().zip(&bound) {
            if slot.access == Access::ReadWrite {
                buffers.insert(slot.name, bytemuck::pod_collect_to_vec(&self.gpu.read(buffer)?));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Every case has kernels, and together they have every kind of product.
    #[test]
    fn cases_cover_every_form() {
        let mut forms = HashSet::new();
        for case in Case::all() {
            assert!(case.launches(Rungs::ALL).unwrap().len() >= 4, "{case}");
            let Form { splits, rows, results, .. } = case.form;
            forms.insert((case.dtype.name(), format!("{} {results:?}", splits > 1)));
            forms.insert((case.dtype.name(), format!("{rows:?}")));
        }
        // Results that are quantised need whole blocks in a workgroup, so there are none with splits.
        let all = ["false F32", "true F32", "false Int8", "false NormedInt8", "Plain", "Factors", "Squares"];
        for form in DTYPES.iter().flat_map(|dtype| all.map(|form| (dtype.name(), form.to_owned()))) {
            assert!(forms.contains(&form), "{form:?}");
        }
        let used = MatVecSizes::H200.int8_matrix_rows();
        assert_eq!((ROWS.first(), ROWS.last()), (Some(used.start()), Some(used.end())));
    }

    /// Mat-vecs, which every device can run, give results that are not trivial and that differ between inputs.
    #[test]
    fn expected_results_are_not_trivial() {
        let software = crate::adapters().into_iter().find(|a| a.kind == crate::AdapterKind::Software);
        let Some(adapter) = software else {
            gyrus_testkit::skip(gyrus_testkit::Need::Gpu, "no software adapter");
            return;
        };
        let options = crate::Options { adapter: Some(adapter.name), ..Default::default() };
        let gpu = Gpu::open(&options).unwrap();
        // All forms of one type, and a small one of the others: the adapter is slow.
        let some = |case: &Case| case.dtype == DType::Q4_0 || case.form.n == 50;
        for (seed, case) in Case::all().filter(some).enumerate() {
            let results = |rows, seed| {
                let bench = Bench::new(&gpu, &case, rows, seed).unwrap();
                case.by_vectors(&bench, gpu.rungs()).unwrap()
            };
            let found = results(9, seed as u64);
            let count = match case.form.results {
                Results::F32 => 1,
                Results::Int8 => 3,
                Results::NormedInt8 => 4,
            };
            assert_eq!(found.len(), count, "{case}");
            let y: Vec<f32> = found[0].iter().map(|word| f32::from_bits(*word)).collect();
            assert_eq!(y.len(), 9 * case.width(), "{case}");
            assert!(y.iter().all(|y| y.is_finite()), "{case}");
            let distinct: HashSet<u32> = found[0].iter().copied().collect();
            assert!(distinct.len() > y.len() * 9 / 10, "{case}: {} of {}", distinct.len(), y.len());
            assert_ne!(found, results(9, seed as u64 + 100), "{case}");
        }
    }
}
