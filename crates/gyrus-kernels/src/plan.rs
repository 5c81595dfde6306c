use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use gyrus_tensor::{DType, Shape};

use crate::batch::{Batch, Demands};
use crate::delta::{DeltaLayer, DeltaShape};
use crate::kv::{KV_BLOCK, KvGroup, KvLayer};
use crate::op::{BufferId, HeadNorms, Op, Span, WeightId};
use crate::rope::Rope;

/// The precision a plan computes with; the same on every backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// `f32` activations, cache and sums: exact up to the order of sums.
    Exact,
    /// int8 or f16 activations, f16 cache, `f32` sums.
    Fast,
}

/// How many rows a buffer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// As many as the batch.
    Batch,
    /// As many as rows with logits.
    Logits,
    /// This many for each row of the batch: one for each of its experts.
    Slots(u16),
}

impl Rows {
    /// The number of rows in a batch.
    pub fn count(self, batch: &Batch<'_>) -> usize {
        match self {
            Rows::Batch => batch.rows(),
            Rows::Logits => batch.logits.len(),
            Rows::Slots(_) => batch.rows() * self.of_each(),
        }
    }

    /// How many belong to one row of the batch.
    pub fn of_each(self) -> usize {
        if let Rows::Slots(used) = self { usize::from(used) } else { 1 }
    }
}

/// A scratch buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferSpec {
    /// What it holds, for display.
    pub name: &'static str,
    /// Elements per row.
    pub width: usize,
    /// How many rows.
    pub rows: Rows,
}

/// The description of a weight tensor. The backend has its data.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightSpec {
    /// The name in the model's file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Axes, outermost first.
    pub shape: Shape,
    /// The first row of the file's tensor: files may have several weights in one tensor.
    pub first_row: usize,
    /// It has blocks of the rows of the file's tensor, from `first_row` on: files may interleave the heads of several
    /// weights.
    pub blocks: Option<RowBlocks>,
    /// What is added to the file's values. Some files store the weights of norms minus one. Vectors only.
    pub plus: f32,
    /// Whether the file does not have it: all values are `plus`.
    pub constant: bool,
    /// How the file's tensors are laid out.
    pub layout: FileLayout,
}

/// Blocks of rows at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowBlocks {
    /// Rows of a block.
    pub rows: usize,
    /// Rows from the first of a block to the first of the next.
    pub step: usize,
}

/// How the tensors of a file hold a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileLayout {
    /// One tensor has its rows, one after the other.
    Rows,
    /// Each expert has a tensor. The number of the expert is at the `*` of the weight's name.
    PerExpert,
    /// One tensor `[experts, cols, n]` of floats has its rows as columns: the first, and then every `step`-th.
    Columns {
        /// The column that is row 0 of an expert.
        first: usize,
        /// How far apart the columns of neighbouring rows are.
        step: usize,
    },
    /// Two tensors of bytes, whose names have the suffixes `_blocks` and `_scales`, have the quants and exponents of
    /// MXFP4 rows. An expert has the first of its rows there, and then every `step`-th.
    Mxfp4 {
        /// The row that is row 0 of an expert.
        first: usize,
        /// How far apart neighbouring rows are.
        step: usize,
    },
}

impl WeightSpec {
    /// A whole tensor, as the file has it.
    pub fn new(name: impl Into<String>, dtype: DType, shape: Shape) -> WeightSpec {
        WeightSpec {
            name: name.into(),
            dtype,
            shape,
            first_row: 0,
            blocks: None,
            plus: 0.0,
            constant: false,
            layout: FileLayout::Rows,
        }
    }

    /// How many experts a stacked weight `[experts, rows, cols]` has; `None` for others.
    pub fn experts(&self) -> Option<usize> {
        match *self.shape.dims() {
            [experts, _, _] => Some(experts),
            _ => None,
        }
    }

    /// One expert of a stacked weight: a weight `[rows, cols]`. `None` if it has no such expert.
    pub fn expert(&self, expert: usize) -> Option<WeightSpec> {
        let &[experts, rows, cols] = self.shape.dims() else { return None };
        if expert >= experts {
            return None;
        }
        let shape = Shape::new(&[rows, cols]).ok()?;
        let one = WeightSpec { shape, ..self.clone() };
        Some(match self.layout {
            FileLayout::Rows => WeightSpec { first_row: self.first_row + expert * rows, ..one },
            FileLayout::PerExpert => WeightSpec {
                name: self.name.replacen('*', &expert.to_string(), 1),
                layout: FileLayout::Rows,
                ..one
            },
            FileLayout::Columns { .. } => WeightSpec { first_row: self.first_row + expert * cols, ..one },
            FileLayout::Mxfp4 { step, .. } => {
                WeightSpec { first_row: self.first_row + expert * rows * step, ..one }
            }
        })
    }

    /// The bytes of the file's tensor that hold it.
    pub fn range(&self) -> Option<Range<usize>> {
        let bytes = self.dtype.bytes_of(&self.shape).ok()?;
        let first = self.first_row.checked_mul(bytes / self.shape.rows().max(1))?;
        Some(first..first.checked_add(bytes)?)
    }

    /// If it has blocks of rows only: the weight with all rows that they are among.
    pub fn whole(&self) -> Option<WeightSpec> {
        let RowBlocks { rows, step } = self.blocks?;
        let all = self.shape.rows().checked_div(rows)?.checked_mul(step)?;
        let shape = Shape::new(&[all, self.shape.row()]).ok()?;
        Some(WeightSpec { shape, first_row: 0, blocks: None, ..self.clone() })
    }

    /// Its blocks of rows among those of [`WeightSpec::whole`].
    pub fn gather(&self, whole: &[u8]) -> Option<Vec<u8>> {
        let RowBlocks { rows, step } = self.blocks?;
        let count = self.shape.rows().checked_div(rows)?;
        let row_bytes = whole.len().checked_div(count.checked_mul(step)?)?;
        let from = whole.get(self.first_row.checked_mul(row_bytes)?..)?;
        let blocks = from.chunks((step * row_bytes).max(1)).take(count);
        let gathered: Option<Vec<&[u8]>> = blocks.map(|block| block.get(..rows * row_bytes)).collect();
        Some(gathered?.concat())
    }

    /// Its data, if `tensor` returns that of the file's tensor.
    pub fn data<'t>(&self, tensor: impl FnOnce(&str) -> Option<&'t [u8]>) -> Option<Cow<'t, [u8]>> {
        if let Some(whole) = self.whole() {
            return self.gather(&whole.data(tensor)?).map(Cow::Owned);
        }
        let range = self.range()?;
        match self.constant {
            true => Some(Cow::Owned(vec![0; range.len()])),
            false => tensor(&self.name)?.get(range).map(Cow::Borrowed),
        }
    }
}

/// A result of a forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Output {
    /// What it is: `logits` of a language model.
    pub name: &'static str,
    /// Where the forward pass leaves it.
    pub buffer: BufferId,
}

/// The name of a language model's [`Output`].
pub const LOGITS: &str = "logits";

/// The name of the [`Output`] of a text encoder: its last hidden rows.
pub const HIDDEN: &str = "hidden";

/// The name of a classifier's [`Output`].
pub const SCORES: &str = "scores";

/// The name of the [`Output`] of [`Plan::encode`].
pub const ENCODED: &str = "encoded";

/// A forward pass as a flat table of ops, from token ids to its outputs. An output has the rows that the batch's `logits`
/// name.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What the ops compute with.
    pub precision: Precision,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Scratch buffers by [`BufferId`].
    pub buffers: Vec<BufferSpec>,
    /// Weights by [`WeightId`].
    pub weights: Vec<WeightSpec>,
    /// Rotary embeddings by [`crate::RopeId`].
    pub ropes: Vec<Rope>,
    /// The KV cache.
    pub kv: Vec<KvGroup>,
    /// Layers of Gated DeltaNet by [`DeltaLayer`]. Their states for a sequence are a record.
    pub delta: Vec<DeltaShape>,
    /// The ops of an encoder whose keys and values the forward pass attends to. Empty for others.
    pub encode: Vec<Op>,
    /// The ops.
    pub forward: Vec<Op>,
    /// The ops of each layer. Between two layers a plan can be cut: only buffers that all layers read live across.
    pub layers: Vec<Range<usize>>,
    /// What it computes.
    pub outputs: Vec<Output>,
}

impl Plan {
    /// A buffer's description.
    pub fn buffer(&self, id: BufferId) -> &BufferSpec {
        &self.buffers[id.0 as usize]
    }

    /// A weight's description.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }

    /// The group of a layer's keys and values.
    pub fn kv_group(&self, layer: KvLayer) -> &KvGroup {
        &self.kv[usize::from(layer.group)]
    }

    /// The shape of a layer with a state.
    pub fn delta_shape(&self, layer: DeltaLayer) -> &DeltaShape {
        &self.delta[usize::from(layer.0)]
    }

    /// Bytes of a record: the states of all layers for one sequence. 0 for plans without such layers.
    pub fn record_bytes(&self) -> usize {
        4 * self.delta.iter().map(DeltaShape::state_elems).sum::<usize>()
    }

    /// An op as a line of text.
    pub fn line<'a>(&'a self, op: &'a Op) -> impl fmt::Display + 'a {
        Line { plan: self, op }
    }

    /// Where the forward pass leaves the logits.
    ///
    /// # Panics
    /// If the plan is not one of a language model.
    pub fn logits(&self) -> BufferId {
        self.output(LOGITS).expect("the plan of a language model has logits")
    }

    /// The buffer of an output, if the plan has it.
    pub fn output(&self, name: &str) -> Option<BufferId> {
        self.outputs.iter().find(|output| output.name == name).map(|output| output.buffer)
    }

    /// The buffer that [`Backend::forward`](crate::Backend::forward) returns: the first output that is not [`ENCODED`].
    ///
    /// # Panics
    /// If the plan has no such output.
    pub fn result(&self) -> BufferId {
        let result = self.outputs.iter().find(|output| output.name != ENCODED);
        result.expect("a plan has a result").buffer
    }

    /// What a list of ops, the forward pass or the encoder, demands of its batches.
    pub fn demands(&self, ops: &[Op]) -> Demands {
        let mut demands = Demands { by_position: vec![false; self.kv.len()], ..Demands::default() };
        let least = |known: Option<usize>, rows: usize| Some(known.map_or(rows, |known| known.min(rows)));
        for op in ops {
            match op {
                Op::RopeWrite { kv, write: true, .. } => {
                    demands.by_position[usize::from(kv.group)] = true;
                }
                Op::Attention { kv, span: Span::Causal, .. } => {
                    demands.by_position[usize::from(kv.group)] = true;
                }
                Op::Attention { .. } => demands.extents = true,
                Op::AddPositions { table, offset, .. } => {
                    let rows = self.weight(*table).shape.rows().saturating_sub(*offset as usize);
                    demands.positions = least(demands.positions, rows);
                }
                Op::AddTypes { table, .. } => {
                    let rows = self.weight(*table).shape.rows();
                    demands.types = if demands.types == 0 { rows } else { demands.types.min(rows) };
                }
                Op::Features { out } => {
                    let BufferSpec { width, rows, .. } = self.buffer(*out);
                    demands.features = width * rows.of_each();
                }
                Op::Unfold { .. } => demands.whole_sequences = true,
                _ => {}
            }
        }
        demands
    }

    /// Bytes of cache that one more position takes: those of groups without a window.
    pub fn kv_bytes_per_token(&self) -> usize {
        let global = self.kv.iter().filter(|group| group.window.is_none());
        global.map(|group| group.bytes_per_block(self.precision)).sum::<usize>() / KV_BLOCK
    }
}

impl fmt::Display for Plan {
    /// The table as text, one op a line, for snapshots.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}, vocabulary {}", self.precision, self.vocab)?;
        for (i, group) in self.kv.iter().enumerate() {
            let KvGroup { layers, kv_heads, head_dim, window } = group;
            write!(f, "kv{i}: {layers} layers, {kv_heads} heads of {head_dim}")?;
            write!(f, ", {}", self.precision.kv_storage().name())?;
            writeln!(f, "{}", window.map_or(String::new(), |window| format!(", window {window}")))?;
        }
        for (i, shape) in self.delta.iter().enumerate() {
            writeln!(f, "s{i}: {shape}")?;
        }
        for (i, rope) in self.ropes.iter().enumerate() {
            writeln!(f, "rope {i}: {rope}")?;
        }
        for (i, buffer) in self.buffers.iter().enumerate() {
            writeln!(f, "b{i} {}: {:?} × {}", buffer.name, buffer.rows, buffer.width)?;
        }
        if !self.encode.is_empty() {
            writeln!(f, "encode:")?;
        }
        for op in &self.encode {
            writeln!(f, "  {}", self.line(op))?;
        }
        if !self.encode.is_empty() {
            writeln!(f, "forward:")?;
        }
        for (at, op) in self.forward.iter().enumerate() {
            if let Some(layer) = self.layers.iter().position(|ops| ops.start == at) {
                writeln!(f, "layer {layer}:")?;
            }
            writeln!(f, "  {}", self.line(op))?;
        }
        for Output { name, buffer } in &self.outputs {
            writeln!(f, "{name}: {buffer}")?;
        }
        Ok(())
    }
}

struct Line<'a> {
    plan: &'a Plan,
    op: &'a Op,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = |id: &WeightId| {
            let spec = self.plan.weight(*id);
            format!("{} {} [{}]", spec.name, spec.dtype, spec.shape)
        };
        match self.op {
            Op::Embed { table, scale, out } => write!(f, "{out} = embed {} × {scale}", weight(table)),
            Op::Features { out } => write!(f, "{out} = features"),
            Op::AddPositions { table, offset, out } => {
                write!(f, "{out} += {} of position + {offset}", weight(table))
            }
            Op::AddTypes { table, out } => write!(f, "{out} += {} of type", weight(table)),
            Op::Unfold { x, taps, out } => write!(f, "{out} = unfold {x}, {taps} taps"),
            Op::LayerNorm { x, weight: w, bias, eps, out } => {
                write!(f, "{out} = layer_norm {x}, {}", weight(w))?;
                if let Some(bias) = bias {
                    write!(f, " + {}", weight(bias))?;
                }
                write!(f, " eps {eps:e}")
            }
            Op::RmsNorm { x, weight: w, eps, out } => {
                write!(f, "{out} = rms_norm {x}, {} eps {eps:e}", weight(w))
            }
            Op::MatMul { x, weights, accumulate, out } => {
                let all: Vec<String> = weights.iter().map(weight).collect();
                let sign = if *accumulate { "+=" } else { "=" };
                write!(f, "{out} {sign} {x} · {}", all.join(" | "))
            }
            Op::NormColumns { x, first, weight: w, eps } => {
                write!(f, "{x}[{first}..] = rms_norm, {} eps {eps:e}", weight(w))
            }
            Op::Bias { x, first, bias } => write!(f, "{x}[{first}..] += {}", weight(bias)),
            Op::Add { x, scale, out } => write!(f, "{out} += {x} × {scale}"),
            Op::Scale { x, factor } => write!(f, "{x} *= {factor}"),
            Op::SoftCap { x, cap } => write!(f, "{x} = {x} soft-capped at {cap}"),
            Op::RopeWrite { qkv, heads, kv, write, norms, rope } => {
                write!(f, "{} {qkv} {heads} heads {kv}", if *write { "rope_write" } else { "rope" })?;
                match rope {
                    Some(rope) => write!(f, " rope {}", rope.0)?,
                    None => write!(f, " not rotated")?,
                }
                let Some(HeadNorms { q, k, v, eps }) = norms else { return Ok(()) };
                let all = [Some(*q), *k, *v].into_iter().flatten().map(|w| weight(&w));
                write!(f, ", head norms {} eps {eps:e}", all.collect::<Vec<_>>().join(", "))
            }
            Op::Attention { qkv, heads, kv, span, scale, soft_cap, sinks, out } => {
                write!(f, "{out} = attention {qkv} {heads} heads {kv} × {scale}")?;
                match span {
                    Span::Causal => {}
                    Span::Whole => write!(f, ", whole")?,
                    Span::Around(reach) => write!(f, ", {reach} around")?,
                }
                if let Some(window) = self.plan.kv_group(*kv).window {
                    write!(f, ", window {window}")?;
                }
                if let Some(sinks) = sinks {
                    write!(f, ", sinks {}", weight(sinks))?;
                }
                soft_cap.map_or(Ok(()), |cap| write!(f, ", soft-capped at {cap}"))
            }
            Op::Route { logits, used, weights, scale, out } => {
                write!(f, "{out} = route {logits} to {used}, softmax over {weights:?}")?;
                scale.map_or(Ok(()), |scale| write!(f, " × {}", weight(&scale)))
            }
            Op::ExpertMatMul { x, route, weights, biases, out } => {
                let all: Vec<String> = weights.iter().map(weight).collect();
                write!(f, "{out} = {x} · experts {route} of {}", all.join(" | "))?;
                let all: Vec<String> = biases.iter().map(weight).collect();
                if all.is_empty() { Ok(()) } else { write!(f, " + {}", all.join(" | ")) }
            }
            Op::ExpertSum { x, route, accumulate, out } => {
                let sign = if *accumulate { "+=" } else { "=" };
                write!(f, "{out} {sign} sum of experts {route} × {x}")
            }
            Op::AddGated { x, gate, out } => write!(f, "{out} += sigmoid({gate}) × {x}"),
            Op::Activate { x, activation } => write!(f, "{x} = {activation:?} {x}"),
            Op::Gate { x, activation, out } => write!(f, "{out} = {activation:?} gate {x}"),
            Op::GateBy { x, activation, by, first } => {
                write!(f, "{x} = {activation:?} {x} × {by}[{first}..]")
            }
            Op::MulBy { x, activation, by, first } => {
                write!(f, "{x} *= {activation:?} {by}[{first}..]")
            }
            Op::DeltaConv { x, layer, taps, a, bias, a_is_log, out } => {
                let a = if *a_is_log { format!("-exp {}", weight(a)) } else { weight(a) };
                write!(f, "{out} = delta_conv {x} {layer}, {}, {a}, {}", weight(taps), weight(bias))
            }
            Op::DeltaRule { x, prepared, layer, out } => {
                write!(f, "{out} = delta_rule {prepared} {layer}, inputs {x}")
            }
            Op::Gather { x, out } => write!(f, "{out} = gather {x}"),
        }
    }
}
