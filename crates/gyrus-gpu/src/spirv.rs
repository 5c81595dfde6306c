//! Int8 cooperative matrices, which SPIR-V has and WGSL does not.
//!
//! Kernels use WGSL constructs as placeholders, and their SPIR-V is rewritten:
//!
//! | WGSL                                   | becomes                                                            |
//! |----------------------------------------|--------------------------------------------------------------------|
//! | a matrix loaded from words (`u32`)     | an int8 matrix of the same memory: A is 16 × 32, B is 32 × 16      |
//! | `coopMultiplyAdd(a, b, zero)` of these | a product with int32 sums, then converted to the f32 matrix it was |
//! | `a - b` of other matrices              | their element-wise product, which WGSL does not have               |
//! | a loop                                 | a loop that is not unrolled: its body is long                      |
//! | a read-only buffer                     | a writable one                                                     |
//!
//! The last because a driver moves loads from read-only buffers to where their values are used, and these kernels load
//! early on purpose, to hide latency.
//!
//! Element-wise products are rounded as kernels need it. One that is the left operand of a sum, or is multiplied by a
//! scalar, is rounded by itself; one that is the right operand may be contracted with the sum to a fused multiply-add. So
//! `s0 - f0 + (s1 - f1)` is `fma(s1, f1, s0 * f0)`, the order of the scalar code. The operands of a sum are recognised
//! within a function and through `let`, not through a variable or a call.

use std::collections::{HashMap, HashSet};

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{Module, ResourceBinding, ShaderStage};

/// The SPIR-V of a kernel with int8 cooperative matrices. `bindings` are those of its bind group; `overrides` are the
/// values of its override constants, which cannot be set later.
///
/// Nothing is checked at run time, as in [`wgpu::ShaderRuntimeChecks::unchecked`].
pub(crate) fn int8_matrix(
    wgsl: &str,
    entry: &str,
    overrides: &[(&str, f64)],
    bindings: &[u32],
) -> Result<Vec<u32>, String> {
    rewritten(&translated(wgsl, entry, overrides, bindings)?)
}

/// The SPIR-V of a kernel whose read-only buffers are declared as writable, so that a driver leaves its loads where they are.
/// The arguments are those of [`int8_matrix`].
pub(crate) fn early_loads(
    wgsl: &str,
    entry: &str,
    overrides: &[(&str, f64)],
    bindings: &[u32],
) -> Result<Vec<u32>, String> {
    let (head, mut code) = decoded(&translated(wgsl, entry, overrides, bindings)?)?;
    code.retain(|instruction| !is_read_only(instruction));
    Ok(encoded(head, &code))
}

/// A kernel parsed and validated by naga.
pub(crate) fn parsed(wgsl: &str) -> Result<(Module, ModuleInfo), String> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|error| {
        let line = error.location(wgsl).map_or(0, |at| at.line_number);
        format!("line {line} after preprocessing: {}", error.message())
    })?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all())
        .validate(&module)
        .map_err(|error| error.emit_to_string(wgsl))?;
    Ok((module, info))
}

/// The SPIR-V that wgpu would generate for a kernel without checks.
fn translated(
    wgsl: &str,
    entry: &str,
    overrides: &[(&str, f64)],
    bindings: &[u32],
) -> Result<Vec<u32>, String> {
    let (module, info) = parsed(wgsl)?;
    let overrides = overrides.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    let stage = Some((ShaderStage::Compute, entry));
    let (module, info) = naga::back::pipeline_constants::process_overrides(&module, &info, stage, &overrides)
        .map_err(|error| error.to_string())?;
    // wgpu renumbers the entries of a bind group from 0, in the order of their bindings.
    let mut bindings = bindings.to_vec();
    bindings.sort_unstable();
    let numbered = bindings.iter().zip(0..).map(|(&binding, number)| {
        let at = spv::BindingInfo { descriptor_set: 0, binding: number, binding_array_size: None };
        (ResourceBinding { group: 0, binding }, at)
    });
    let options = spv::Options {
        // That of Vulkan 1.3, which every driver with cooperative matrices supports.
        lang_version: (1, 6),
        flags: spv::WriterFlags::empty(),
        fake_missing_bindings: false,
        binding_map: numbered.collect(),
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Unchecked,
            buffer: BoundsCheckPolicy::Unchecked,
            image_load: BoundsCheckPolicy::Unchecked,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        // There are no inputs or outputs between stages, and it would need a capability.
        use_storage_input_output_16: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let entry = spv::PipelineOptions { shader_stage: ShaderStage::Compute, entry_point: entry.to_owned() };
    spv::write_vec(&module, &info, &options, Some(&entry)).map_err(|error| error.to_string())
}

const CAPABILITY: u32 = 17;
const TYPE_INT: u32 = 21;
const TYPE_FLOAT: u32 = 22;
const CONSTANT: u32 = 43;
const CONSTANT_NULL: u32 = 46;
const DECORATE: u32 = 71;
const CONVERT_S_TO_F: u32 = 111;
const F_ADD: u32 = 129;
const F_SUB: u32 = 131;
const F_MUL: u32 = 133;
const MATRIX_TIMES_SCALAR: u32 = 143;
const LOOP_MERGE: u32 = 246;
const TYPE_MATRIX: u32 = 4456;
const MUL_ADD: u32 = 4459;
/// The first type after the annotations is one of these, which depend on no other type.
const PLAIN_TYPES: std::ops::RangeInclusive<u32> = 19..=22;

/// The capability of 8-bit integers.
const INT8: u32 = 39;
/// The decoration of read-only buffers.
const NON_WRITABLE: u32 = 24;
/// The decoration of results that are not contracted to a fused multiply-add.
const NO_CONTRACTION: u32 = 42;
const DONT_UNROLL: u32 = 2;
/// A, B, C and the result are signed.
const ALL_SIGNED: u32 = 0xf;
/// The use of a matrix in a product.
const USE_A: u32 = 0;
const USE_B: u32 = 1;
const USE_SUMS: u32 = 2;

/// Integer types: bits, and whether they are signed.
const I8: [u32; 2] = [8, 1];
const I32: [u32; 2] = [32, 1];
const U32: [u32; 2] = [32, 0];

/// An instruction: its opcode, and its words after the first.
#[derive(Debug, Clone, PartialEq)]
struct Instruction {
    op: u32,
    words: Vec<u32>,
}

fn instruction(op: u32, words: &[u32]) -> Instruction {
    Instruction { op, words: words.to_vec() }
}

/// Whether it declares a buffer as read-only.
fn is_read_only(instruction: &Instruction) -> bool {
    instruction.op == DECORATE && instruction.words.get(1) == Some(&NON_WRITABLE)
}

/// A module's header and instructions.
fn decoded(words: &[u32]) -> Result<([u32; 5], Vec<Instruction>), String> {
    let (head, mut rest) = words.split_first_chunk().ok_or("SPIR-V without a header")?;
    let mut instructions = Vec::new();
    while let Some(first) = rest.first() {
        let (op, len) = (first & 0xffff, (first >> 16) as usize);
        let words = rest.get(1..len).ok_or_else(|| format!("SPIR-V: {len} words of instruction {op}"))?;
        instructions.push(instruction(op, words));
        rest = &rest[len..];
    }
    Ok((*head, instructions))
}

fn encoded(head: [u32; 5], instructions: &[Instruction]) -> Vec<u32> {
    let mut words = head.to_vec();
    for Instruction { op, words: operands } in instructions {
        words.push((operands.len() as u32 + 1) << 16 | op);
        words.extend(operands);
    }
    words
}

/// A cooperative matrix type.
struct Matrix {
    component: u32,
    rows: u32,
    columns: u32,
    role: u32,
}

/// Types and constants of a module.
#[derive(Default)]
struct Declared {
    /// Scalar types, by opcode and operands.
    scalars: HashMap<(u32, Vec<u32>), u32>,
    /// Constants of one word.
    constants: HashMap<u32, u32>,
    /// Null constants.
    nulls: HashSet<u32>,
    matrices: HashMap<u32, Matrix>,
}

impl Declared {
    fn of(code: &[Instruction]) -> Result<Declared, String> {
        let mut declared = Declared::default();
        for Instruction { op, words } in code {
            match (*op, &words[..]) {
                (TYPE_INT | TYPE_FLOAT, [id, number @ ..]) => {
                    declared.scalars.insert((*op, number.to_vec()), *id);
                }
                (CONSTANT, [_, id, value]) => {
                    declared.constants.insert(*id, *value);
                }
                (CONSTANT_NULL, [_, id]) => {
                    declared.nulls.insert(*id);
                }
                (TYPE_MATRIX, [id, component, _, shape @ ..]) => {
                    let numbers: Option<Vec<u32>> =
                        shape.iter().map(|id| declared.constants.get(id).copied()).collect();
                    let Some(&[rows, columns, role]) = numbers.as_deref() else {
                        return Err(format!("the shape of matrix type %{id} is not constant"));
                    };
                    declared.matrices.insert(*id, Matrix { component: *component, rows, columns, role });
                }
                _ => {}
            }
        }
        Ok(declared)
    }

    fn scalar(&self, op: u32, number: &[u32]) -> Option<u32> {
        self.scalars.get(&(op, number.to_vec())).copied()
    }

    /// Matrix types of `u32`, the placeholders of int8.
    fn int8_types(&self) -> Result<HashSet<u32>, String> {
        let [i32_type, u32_type] = [I32, U32].map(|number| self.scalar(TYPE_INT, &number));
        let mut types = HashSet::new();
        for (id, &Matrix { component, rows, columns, role }) in &self.matrices {
            if Some(component) == i32_type {
                return Err("i32 matrices cannot be used in WGSL: int8 products have this type".to_owned());
            }
            if Some(component) != u32_type {
                continue;
            }
            if (rows, columns) != (16, 16) || ![USE_A, USE_B].contains(&role) {
                let what = format!("{rows}x{columns} of use {role}");
                return Err(format!("a u32 matrix is {what}, not 16x16 of use {USE_A} or {USE_B}"));
            }
            types.insert(*id);
        }
        Ok(types)
    }

    /// Whether a type is that of f32 accumulators.
    fn is_sums(&self, id: u32) -> bool {
        self.matrices.get(&id).is_some_and(|matrix| {
            Some(matrix.component) == self.scalar(TYPE_FLOAT, &[32])
                && (matrix.rows, matrix.columns, matrix.role) == (16, 16, USE_SUMS)
        })
    }
}

/// The values that are rewritten.
#[derive(Default)]
struct Survey {
    /// Types of int8 matrices.
    int8_types: HashSet<u32>,
    /// Values of these types.
    int8: HashSet<u32>,
    /// Element-wise products.
    products: HashSet<u32>,
    /// Products that are rounded by themselves.
    rounded: Vec<u32>,
}

impl Survey {
    /// Looks through the instructions after the annotations. Those that begin with a type have a result of that type.
    fn of(code: &[Instruction], declared: &Declared) -> Result<Survey, String> {
        let mut survey = Survey { int8_types: declared.int8_types()?, ..Default::default() };
        for Instruction { op, words } in code {
            let [kind, id, rest @ ..] = &words[..] else { continue };
            if *op == TYPE_MATRIX {
                continue;
            }
            if survey.int8_types.contains(kind) {
                if [F_ADD, F_SUB, MATRIX_TIMES_SCALAR].contains(op) {
                    return Err(format!(
                        "int8 matrices can only be multiplied, but this is instruction {op}"
                    ));
                }
                survey.int8.insert(*id);
            } else if *op == F_SUB && declared.matrices.contains_key(kind) {
                survey.products.insert(*id);
            } else if let (F_ADD | MATRIX_TIMES_SCALAR, Some(left)) = (*op, rest.first())
                && survey.products.contains(left)
                && !survey.rounded.contains(left)
            {
                survey.rounded.push(*left);
            }
        }
        Ok(survey)
    }
}

/// The module with placeholders replaced.
fn rewritten(words: &[u32]) -> Result<Vec<u32>, String> {
    let (mut head, mut preamble) = decoded(words)?;
    let first_type =
        preamble.iter().position(|i| PLAIN_TYPES.contains(&i.op)).ok_or("SPIR-V without types")?;
    let code = preamble.split_off(first_type);
    let declared = Declared::of(&code)?;
    let Survey { int8_types, int8, products, rounded } = Survey::of(&code, &declared)?;
    let mut new_id = || {
        head[3] += 1;
        head[3] - 1
    };

    let mut out = Vec::with_capacity(preamble.len() + code.len() + 16);
    // A module begins with its capabilities.
    let capability = instruction(CAPABILITY, &[INT8]);
    if !preamble.contains(&capability) {
        out.push(capability);
    }
    out.extend(preamble.into_iter().filter(|i| !is_read_only(i)));
    out.extend(rounded.iter().map(|id| instruction(DECORATE, &[*id, NO_CONTRACTION])));
    // A type may be declared only once, so existing integer types are reused, and moved before everything that depends on
    // them.
    let [i8_type, i32_type, u32_type] = [I8, I32, U32].map(|[bits, sign]| {
        let id = declared.scalar(TYPE_INT, &[bits, sign]).unwrap_or_else(&mut new_id);
        out.push(instruction(TYPE_INT, &[id, bits, sign]));
        id
    });
    let thirty_two = new_id();
    out.push(instruction(CONSTANT, &[u32_type, thirty_two, 32]));

    // For every f32 accumulator type the int32 accumulator type and its zero.
    let mut sums = HashMap::new();
    for mut found in code {
        match (found.op, &mut found.words[..]) {
            (TYPE_INT, [id, ..]) if [i8_type, i32_type, u32_type].contains(id) => continue,
            (TYPE_MATRIX, [id, component, _, rows, columns, _]) if int8_types.contains(id) => {
                *component = i8_type;
                *(if declared.matrices[id].role == USE_A { columns } else { rows }) = thirty_two;
            }
            (TYPE_MATRIX, &mut [id, _, scope, rows, columns, role]) if declared.is_sums(id) => {
                let (integers, zero) = (new_id(), new_id());
                out.push(found);
                out.push(instruction(TYPE_MATRIX, &[integers, i32_type, scope, rows, columns, role]));
                out.push(instruction(CONSTANT_NULL, &[integers, zero]));
                sums.insert(id, (integers, zero));
                continue;
            }
            (MUL_ADD, &mut [kind, id, a, b, c, ..]) if int8.contains(&a) || int8.contains(&b) => {
                if !int8.contains(&a) || !int8.contains(&b) {
                    return Err("one factor of a product is int8, the other is not".to_owned());
                }
                if !declared.nulls.contains(&c) {
                    return Err("an int8 product must be added to the constant zero".to_owned());
                }
                let (integers, zero) =
                    sums.get(&kind).ok_or("the result of an int8 product must be a 16x16 f32 accumulator")?;
                let sum = new_id();
                out.push(instruction(MUL_ADD, &[*integers, sum, a, b, *zero, ALL_SIGNED]));
                out.push(instruction(CONVERT_S_TO_F, &[kind, id, sum]));
                continue;
            }
            (F_SUB, [_, id, ..]) if products.contains(id) => found.op = F_MUL,
            (LOOP_MERGE, [_, _, control]) => *control = DONT_UNROLL,
            _ => {}
        }
        out.push(found);
    }
    Ok(encoded(head, &out))
}

#[cfg(test)]
mod tests;
