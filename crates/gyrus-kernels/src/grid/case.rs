use std::fmt;

use crate::call::Storage;
use crate::launch::Launch;
use crate::scalar::quantize_rows;

/// The contents of words that no kernel may write: a NaN that no kernel computes.
pub const UNTOUCHED: u32 = 0x7fc0_1234;

/// Launches with their buffers and what their twin computes from them.
///
/// Most cases have one launch. Kernels whose intermediate results have no meaning of their own, such as the splits of
/// attention, are run one after the other on the same buffers.
pub struct Case {
    /// The shape, for error messages.
    pub name: String,
    /// The launches, in order.
    pub steps: Vec<Step>,
    /// Bytes of workgroup memory, if more than the 16 KiB of every device may be needed.
    pub workgroup_bytes: u64,
    pub(super) twin: Box<dyn Fn() -> Vec<CaseBuffer>>,
}

/// A launch of a case.
#[derive(Debug, Clone)]
pub struct Step {
    /// The launch.
    pub launch: Launch,
    /// The case's buffer of each slot, by name.
    pub buffers: Vec<&'static str>,
}

impl Step {
    /// A launch whose slots are buffers of the same names.
    pub fn new(launch: Launch) -> Step {
        let buffers = launch.slots().iter().map(|slot| slot.name).collect();
        Step { launch, buffers }
    }

    /// Binds another buffer to a slot.
    pub fn with(mut self, slot: &str, buffer: &'static str) -> Step {
        self.buffers.iter_mut().filter(|name| **name == slot).for_each(|name| *name = buffer);
        self
    }
}

/// A buffer before and after a case, as 32-bit words. [`check`](super::check) appends guard words.
#[derive(Debug, Clone)]
pub struct CaseBuffer {
    /// Its name.
    pub name: &'static str,
    /// The contents before the launches.
    pub before: Vec<u32>,
    /// What the twin computes.
    pub after: Vec<u32>,
    /// How closely a backend must agree.
    pub rule: Rule,
}

/// How closely a backend must agree with the twin.
#[derive(Debug, Clone)]
pub enum Rule {
    /// Every bit.
    Bits,
    /// Elements within their tolerance. Elements without one, and those beyond the end of the list, to the bit.
    Near(Storage, Vec<Option<f64>>),
    /// The first words are scratch memory and may be anything; the others to the bit.
    Scratch(usize),
    /// Blocks of int8 for a mat-vec, with scales in another buffer.
    Int8(Int8),
}

/// Rows that are quantised to int8: what is rounded, and how exactly.
#[derive(Debug, Clone)]
pub struct Int8 {
    /// The buffer of scales, whose rule is [`Rule::Scratch`].
    pub scales: &'static str,
    /// `[rows, cols]` values before rounding.
    pub values: Vec<f32>,
    /// Elements of a row.
    pub cols: usize,
    /// The relative error of a scale and of its inverse.
    pub precision: f32,
    /// The error of each value, one number a row.
    pub errors: Vec<f32>,
}

impl Case {
    /// A case of one launch. `twin` makes the buffers of the launch's slots, in any order.
    pub fn new(name: String, launch: Launch, twin: impl Fn() -> Vec<CaseBuffer> + 'static) -> Case {
        Case::chain(name, vec![Step::new(launch)], twin)
    }

    /// A case of several launches.
    pub fn chain(name: String, steps: Vec<Step>, twin: impl Fn() -> Vec<CaseBuffer> + 'static) -> Case {
        Case { name, steps, workgroup_bytes: 0, twin: Box::new(twin) }
    }

    /// Computes the buffers.
    pub fn buffers(&self) -> Vec<CaseBuffer> {
        (self.twin)()
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).field("steps", &self.steps).finish_non_exhaustive()
    }
}

impl CaseBuffer {
    /// A buffer that is only read.
    pub fn read(name: &'static str, words: Vec<u32>) -> CaseBuffer {
        CaseBuffer { name, after: words.clone(), before: words, rule: Rule::Bits }
    }

    /// Numbers that are only read.
    pub fn floats(name: &'static str, values: &[f32]) -> CaseBuffer {
        CaseBuffer::read(name, words(values))
    }

    /// A buffer in which a kernel writes exact bits.
    pub fn exact(name: &'static str, before: Vec<u32>, after: Vec<u32>) -> CaseBuffer {
        CaseBuffer { name, before, after, rule: Rule::Bits }
    }

    /// An output of `f32`, each value with its tolerance.
    pub fn near(name: &'static str, values: &[f32], tolerances: impl Fn(usize) -> f64) -> CaseBuffer {
        let tolerances = (0..values.len()).map(|i| Some(tolerances(i))).collect();
        let rule = Rule::Near(Storage::F32, tolerances);
        CaseBuffer { name, before: vec![UNTOUCHED; values.len()], after: words(values), rule }
    }

    /// Scratch memory of this many words.
    pub fn scratch(name: &'static str, count: usize) -> CaseBuffer {
        let words = vec![UNTOUCHED; count];
        CaseBuffer { name, before: words.clone(), after: words, rule: Rule::Scratch(count) }
    }

    /// Rows of int8 and their scales.
    pub fn int8(name: &'static str, rows: Int8) -> [CaseBuffer; 2] {
        let elements = rows.values.len();
        let twin = quantize_rows(elements / rows.cols, rows.cols, rows.cols, &rows.values);
        let scales = CaseBuffer { after: twin.scales, ..CaseBuffer::scratch(rows.scales, elements / 16) };
        let q = CaseBuffer::scratch(name, elements / 4);
        [CaseBuffer { after: twin.q, rule: Rule::Int8(rows), ..q }, scales]
    }
}

/// The bits of numbers.
pub fn words(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The largest magnitude.
pub fn largest(values: &[f32]) -> f64 {
    values.iter().fold(0f32, |most, v| most.max(v.abs())).into()
}
