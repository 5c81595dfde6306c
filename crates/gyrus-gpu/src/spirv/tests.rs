use std::io::ErrorKind;
use std::process::Command;

use super::*;

/// A kernel with int8 and f16 products, bindings with gaps, a loop, an override, an element-wise product that is rounded and
/// one that may be contracted.
const KERNEL: &str = "
enable f16;
enable wgpu_cooperative_matrix;
struct Params { tiles: u32 }
var<immediate> params: Params;
@group(0) @binding(1) var<storage, read_write> left: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> right: array<u32>;
@group(0) @binding(7) var<storage, read> factors: array<f16>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
override STEP: u32 = 1u;
var<workgroup> staged: array<vec4<u32>, 64>;
alias LEFT = coop_mat16x16<f16, A>;
alias RIGHT = coop_mat16x16<f16, B>;
alias SUMS = coop_mat16x16<f32, C>;
@compute @workgroup_size(32)
fn kernel(@builtin(local_invocation_index) lane: u32) {
    for (var tile = 0u; tile < params.tiles; tile += STEP) {
        staged[lane] = left[tile * 32u + lane];
        workgroupBarrier();
        let a = coopLoadT<LEFT>(&staged[0], 2u);
        let b = coopLoad<RIGHT>(&right[tile * 128u], 8u);
        let fa = coopLoadT<LEFT>(&factors[0], 16u);
        let fb = coopLoad<RIGHT>(&factors[256], 16u);
        let factor = coopMultiplyAdd(fa, fb, SUMS());
        let first = coopMultiplyAdd(a, b, SUMS()) - factor;
        let second = coopMultiplyAdd(a, b, SUMS()) - factor;
        coopStoreT(first + second, &out[tile * 256u], 16u);
    }
}
";

fn kernel(text: &str) -> Result<Vec<u32>, String> {
    int8_matrix(text, "kernel", &[("STEP", 2.0)], &[7, 1, 4, 6])
}

/// The kernel with one replacement in its text.
fn changed(from: &str, to: &str) -> Result<Vec<u32>, String> {
    assert_eq!(KERNEL.matches(from).count(), 1, "{from}");
    kernel(&KERNEL.replace(from, to))
}

fn instructions(words: &[u32]) -> Vec<Instruction> {
    decoded(words).unwrap().1
}

fn all(instructions: &[Instruction], op: u32) -> Vec<&[u32]> {
    instructions.iter().filter(|i| i.op == op).map(|i| &i.words[..]).collect()
}

/// Matrix types by bits of a component, whether it is an integer, rows, columns and use.
fn matrices(instructions: &[Instruction]) -> HashMap<[u32; 5], u32> {
    let declared = Declared::of(instructions).unwrap();
    let matrices = declared.matrices.iter().map(|(id, m)| {
        let ((op, number), _) = declared.scalars.iter().find(|(_, id)| **id == m.component).unwrap();
        let integer = u32::from(*op == TYPE_INT);
        assert!(*op == TYPE_FLOAT || number[1] == 1, "an integer without a sign");
        ([number[0], integer, m.rows, m.columns, m.role], *id)
    });
    matrices.collect()
}

#[test]
fn u32_matrices_become_int8_with_int32_sums() {
    let words = kernel(KERNEL).unwrap();
    assert_eq!(words[1], 0x10600, "SPIR-V 1.6");
    let code = instructions(&words);
    assert_eq!(all(&code, CAPABILITY).iter().filter(|words| **words == [INT8]).count(), 1);
    let matrices = matrices(&code);
    let [a, b] = [matrices[&[8, 1, 16, 32, USE_A]], matrices[&[8, 1, 32, 16, USE_B]]];
    let [sums, integers] = [matrices[&[32, 0, 16, 16, USE_SUMS]], matrices[&[32, 1, 16, 16, USE_SUMS]]];
    assert_eq!(matrices.len(), 6, "and two of f16: {matrices:?}");

    const LOAD: u32 = 4457;
    let loads = all(&code, LOAD);
    assert_eq!(loads.iter().filter(|load| load[0] == a || load[0] == b).count(), 2);
    let [left, right] = [a, b].map(|kind| loads.iter().find(|load| load[0] == kind).unwrap()[1]);

    let products = all(&code, MUL_ADD);
    let (int8_products, f16_products): (Vec<&[u32]>, Vec<&[u32]>) =
        products.into_iter().partition(|p| p[0] == integers);
    let &[&[_, _, fa, fb, zero]] = &f16_products[..] else { panic!("{f16_products:?}") };
    assert!(![fa, fb].contains(&left) && ![fa, fb].contains(&right));
    assert!(all(&code, CONSTANT_NULL).contains(&&[sums, zero][..]));
    assert_eq!(int8_products.len(), 2);
    let conversions = all(&code, CONVERT_S_TO_F);
    for product in int8_products {
        let &[_, id, a, b, zero, signs] = product else { panic!("{product:?}") };
        assert_eq!([a, b, signs], [left, right, 0xf]);
        assert!(all(&code, CONSTANT_NULL).contains(&&[integers, zero][..]));
        assert_eq!(conversions.iter().filter(|words| words[0] == sums && words[2] == id).count(), 1);
    }
    assert_eq!(conversions.len(), 2);
}

#[test]
fn differences_become_products_and_the_left_one_is_rounded() {
    let code = instructions(&kernel(KERNEL).unwrap());
    assert!(all(&code, F_SUB).is_empty());
    let products = all(&code, F_MUL);
    assert_eq!(products.len(), 2);
    let conversions: Vec<u32> = all(&code, CONVERT_S_TO_F).iter().map(|words| words[1]).collect();
    assert_eq!(products.iter().map(|product| product[2]).collect::<Vec<_>>(), conversions);
    let &[sum] = &all(&code, F_ADD)[..] else { panic!("one sum of matrices") };
    assert_eq!(sum[2..], [products[0][1], products[1][1]]);
    let rounded: Vec<_> =
        all(&code, DECORATE).into_iter().filter(|words| words[1] == NO_CONTRACTION).collect();
    assert_eq!(rounded, [&[products[0][1], NO_CONTRACTION][..]]);
    // Annotations end where types begin.
    let last = code.iter().rposition(|i| i.op == DECORATE).unwrap();
    assert!(code.iter().position(|i| PLAIN_TYPES.contains(&i.op)).unwrap() > last);

    // A product that is a left and a right operand is rounded. Scalars are still subtracted.
    let code = instructions(&changed("first + second", "first + second + first").unwrap());
    assert_eq!(all(&code, DECORATE).iter().filter(|words| words[1] == NO_CONTRACTION).count(), 1);
    let code = instructions(&changed("workgroupBarrier", "out[lane] -= 1.5; workgroupBarrier").unwrap());
    assert_eq!((all(&code, F_SUB).len(), all(&code, F_MUL).len()), (1, 2));
}

#[test]
fn bindings_are_renumbered_loops_not_unrolled_and_overrides_set() {
    let words = kernel(KERNEL).unwrap();
    let code = instructions(&words);
    const BINDING: u32 = 33;
    let numbers = |code: &[Instruction]| {
        let found = all(code, DECORATE);
        let mut numbers: Vec<u32> = found.iter().filter(|w| w[1] == BINDING).map(|words| words[2]).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(numbers(&code), [0, 1, 2, 3]);
    // Bindings that the kernel does not use are numbered too.
    let more = int8_matrix(KERNEL, "kernel", &[], &[0, 1, 2, 4, 6, 7]).unwrap();
    assert_eq!(numbers(&instructions(&more)), [1, 3, 4, 5]);
    let &[&[_, _, control]] = &all(&code, LOOP_MERGE)[..] else { panic!("one loop") };
    assert_eq!(control, DONT_UNROLL);
    assert_ne!(words, int8_matrix(KERNEL, "kernel", &[], &[1, 4, 6, 7]).unwrap(), "the override counts");
}

/// Every id is defined once, below the bound; types and constants come before their uses.
#[test]
fn ids_are_defined_before_use() {
    for text in [KERNEL.to_owned(), KERNEL.replace("lane: u32) {", "lane: u32) { let i = i32(lane) * 3;")] {
        let words = kernel(&text).unwrap();
        let (head, code) = decoded(&words).unwrap();
        let code = &code[code.iter().position(|i| PLAIN_TYPES.contains(&i.op)).unwrap()..];
        let function = code.iter().position(|i| i.op == 54).unwrap();
        let mut made = HashSet::new();
        for Instruction { op, words } in &code[..function] {
            let (id, used) = match *op {
                TYPE_MATRIX => (words[0], &words[1..]),
                19..=39 => (words[0], &[][..]),
                _ => (words[1], &words[..1]),
            };
            assert!(used.iter().all(|id| made.contains(id)), "{op} {words:?} before its operands");
            assert!(id < head[3] && made.insert(id), "{op} {words:?}");
        }
        for Instruction { op, words } in &code[function..] {
            if [F_MUL, F_ADD, MUL_ADD, CONVERT_S_TO_F].contains(op) {
                assert!(words[2..].iter().all(|id| *id == ALL_SIGNED || made.contains(id)), "{op} {words:?}");
            }
            if words.first().is_some_and(|kind| made.contains(kind)) && words.len() > 1 {
                made.insert(words[1]);
            }
            assert!(words.len() < 2 || ![MUL_ADD, CONVERT_S_TO_F].contains(op) || words[1] < head[3]);
        }
        let integers = all(code, TYPE_INT);
        let kinds: HashSet<_> = integers.iter().map(|words| &words[1..]).collect();
        assert_eq!(kinds.len(), integers.len(), "a type is declared twice");
    }
}

#[test]
fn invalid_kernels_are_refused() {
    let sums = "let second = coopMultiplyAdd(a, b, SUMS())";
    let wrong = [
        (sums, "let second = coopMultiplyAdd(a, b, factor)", "must be added to the constant zero"),
        (sums, "let second = coopMultiplyAdd(a, fb, SUMS())", "one factor"),
        (sums, "let second = coopMultiplyAdd(fa, b, SUMS())", "one factor"),
        (sums, "let both = a + a; let second = coopMultiplyAdd(both, b, SUMS())", "can only be multiplied"),
        (sums, "let c = coopLoad<SUMS>(&right[0], 8u); let second = factor", "use 2, not 16x16"),
        ("let a = coopLoadT<LEFT>", "let a = coopLoadT<coop_mat8x8<f16, A>>", "8x8"),
        ("@binding(4)", "@binding(5)", "binding"),
        ("fn kernel", "fn other", "entry point"),
        ("@binding(6)", "@binding(4)", "conflict with other resource"),
        ("tile += STEP", "tile += 1.5", "line 17 after preprocessing: automatic conversions"),
    ];
    for (from, to, expected) in wrong {
        let refused = changed(from, to).unwrap_err();
        assert!(refused.contains(expected), "{to}: {refused}");
    }
    assert!(int8_matrix(KERNEL, "kernel", &[("STRIDE", 2.0)], &[1, 4, 6, 7]).unwrap_err().contains("STRIDE"));
}

/// Khronos's validator, if it is installed and knows cooperative matrices.
#[test]
fn spirv_val_accepts_the_result() {
    let path = std::env::temp_dir().join(format!("gyrus-{}.spv", std::process::id()));
    std::fs::write(&path, bytemuck::cast_slice(&kernel(KERNEL).unwrap())).unwrap();
    let output = Command::new("spirv-val").args(["--target-env", "vulkan1.3"]).arg(&path).output();
    std::fs::remove_file(&path).unwrap();
    let said = match output {
        Ok(output) if output.status.success() => return,
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return gyrus_testkit::skip(gyrus_testkit::Need::Extra, "no spirv-val");
        }
        Err(error) => panic!("spirv-val: {error}"),
    };
    // Versions before 2023.4 do not know the capability of cooperative matrices.
    if said.contains("Invalid capability operand: 6022") {
        return gyrus_testkit::skip(gyrus_testkit::Need::Extra, "spirv-val is too old");
    }
    panic!("{said}");
}

/// The mat-vec kernel, for every type of weights that it takes.
#[test]
fn mat_vec_kernels_are_rewritten() {
    use gyrus_kernels::call::{Input, MatVecCall, MatVecTuning, Results};
    use gyrus_kernels::shader::Rungs;
    use gyrus_kernels::{Activation, WeightLayout};
    use gyrus_tensor::DType;

    for dtype in [DType::Q4_0, DType::Q5_0, DType::Q8_0, DType::IQ4_NL] {
        let gated = (Input::Int8 { norm: true }, Some(Activation::Silu));
        let squares = (Input::Int8Squares { eps: 1e-5 }, None);
        for (n, k, splits, (input, gate), results) in [
            (16_384, 2048, 1, gated, Results::Int8),
            (40, 4096, 4, gated, Results::F32),
            (2048, 2048, 1, squares, Results::NormedInt8),
        ] {
            let call = MatVecCall {
                input,
                gate,
                y_stride: if gate.is_some() { n as u32 / 2 } else { n as u32 },
                tuning: MatVecTuning { workgroup: 256, columns: 2, splits, passes: 1 },
                ..MatVecCall::new(WeightLayout::new(dtype, n, k).unwrap(), 16)
            };
            let launch = call.launch_int8_matrix(Rungs::ALL, results).unwrap();
            let bindings: Vec<u32> = launch.slots().iter().map(|slot| slot.binding).collect();
            let source = launch.variant().source().unwrap();
            // It requires subgroups of 32, so their size is no input of the kernel.
            assert!(!source.text.contains("@builtin(subgroup_size)"), "{dtype} {k}");
            let words = int8_matrix(&source.text, &launch.variant().name, &[], &bindings).unwrap();
            let code = instructions(&words);
            // A subgroup has four lanes of a team, each with one or two blocks.
            let blocks = 4 * (k / 1024 / splits as usize);
            let int8_products =
                all(&code, MUL_ADD).iter().filter(|words| words.last() == Some(&ALL_SIGNED)).count();
            assert_eq!(int8_products, blocks, "{dtype} {k}");
            let rounded = all(&code, DECORATE).iter().filter(|words| words[1] == NO_CONTRACTION).count();
            assert_eq!(rounded, 4, "{dtype} {k}");
            assert!(all(&code, DECORATE).iter().all(|words| words[1] != NON_WRITABLE));
        }
    }
}

/// Early loads change nothing but the declarations of buffers.
#[test]
fn early_loads_are_from_buffers_that_are_not_read_only() {
    use gyrus_kernels::WeightLayout;
    use gyrus_kernels::call::TileCall;
    use gyrus_kernels::shader::Rungs;
    use gyrus_tensor::DType;
    let weight = WeightLayout::new(DType::Q4_K, 96, 512).unwrap();
    let launch = TileCall::new(weight, 40).launch(Rungs::ALL).unwrap();
    let variant = launch.variant();
    assert!(
        variant.loads_early()
            && !TileCall::new(weight, 40).launch(Rungs::NONE).unwrap().variant().loads_early()
    );
    let bindings: Vec<u32> = launch.slots().iter().map(|slot| slot.binding).collect();
    let text = variant.source().unwrap().text;
    let plain = translated(&text, &variant.name, &variant.overrides, &bindings).unwrap();
    let (_, plain) = decoded(&plain).unwrap();
    let (_, early) =
        decoded(&early_loads(&text, &variant.name, &variant.overrides, &bindings).unwrap()).unwrap();
    let (read_only, others): (Vec<_>, Vec<_>) = plain.into_iter().partition(is_read_only);
    // Quants, scales, x and its scales.
    assert_eq!(read_only.len(), 4);
    assert!(early == others);
}
