use std::fmt;
use std::ops::RangeInclusive;

use gyrus_kernels::call::{Columns, Experts, MatVecCall, MatVecTuning, SplitMode};
use gyrus_kernels::{Activation, BufferId, KvShape, Plan, WeightId, WeightLayout};

use super::BatchKind;
use super::call::{
    AttentionOperands, Call, Epilogue, Gathered, Ids, Int8MatVec, Kernel, MatrixPart, Quantize,
    QuantizeSource, RowInput, RowsSeen,
};
use super::expert_call::{ExpertKernel, ExpertOperands};
use super::operand::Int8Rows;

/// The kernel calls of a batch. As text they are one call a line: the kernel with what is fused into it, shapes, inputs →
/// outputs, and what is different for some numbers of rows. `+=` marks an output that is added to.
#[derive(Debug, Clone, PartialEq)]
pub struct Fused<'p> {
    pub(crate) plan: &'p Plan,
    pub(crate) kind: BatchKind,
    pub(crate) calls: Vec<Call>,
}

impl fmt::Display for Fused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.kind)?;
        for call in &self.calls {
            writeln!(f, "  {}", Line { plan: self.plan, call })?;
        }
        Ok(())
    }
}

impl fmt::Display for BatchKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BatchKind::Decode => "decode, one row",
            BatchKind::Sequences => "decode, up to 16 sequences",
            BatchKind::ShortChunk => "up to 16 rows",
            BatchKind::Prefill => "prefill",
        })
    }
}

struct Line<'a> {
    plan: &'a Plan,
    call: &'a Call,
}

impl Line<'_> {
    fn buffer(&self, id: &BufferId) -> &str {
        self.plan.buffer(*id).name
    }

    fn weight(&self, id: &WeightId) -> &str {
        let name = &self.plan.weight(*id).name;
        name.strip_suffix(".weight").unwrap_or(name)
    }

    fn matrix(&self, part: &MatrixPart) -> String {
        let names: Vec<&str> = part.weights.iter().map(|id| self.weight(id)).collect();
        let part_number = if part.index > 0 { format!(" part {}", part.index) } else { String::new() };
        format!("{}{part_number}", names.join(" | "))
    }

    fn attention(&self, on: &AttentionOperands, rotates: bool) -> String {
        let AttentionOperands { qkv, layer, rope, head_norms, sinks, .. } = on;
        let mut text = format!("{}, {layer}", self.buffer(qkv));
        if let (true, Ok(rope)) = (rotates, rope) {
            text += &format!(", rope {}", rope.0);
        }
        if let Some([q, k]) = head_norms.filter(|_| rotates) {
            text += &format!(", {}, {}", self.weight(&q), self.weight(&k));
        }
        if let Some(sinks) = sinks {
            text += &format!(", {}", self.weight(sinks));
        }
        text
    }

    fn product(&self, f: &mut fmt::Formatter<'_>, kernel: &str, product: &Product<'_>) -> fmt::Result {
        let Product { layout, gate, x, matrix, accumulate, out, offset, tuning } = product;
        write!(f, "{kernel} {}", shape(layout))?;
        if let Some(gate) = gate {
            write!(f, ", {gate:?} gate")?;
        }
        let sign = if *accumulate { " +=" } else { "" };
        let columns = if *offset > 0 { format!("[{offset}..]") } else { String::new() };
        write!(f, ": {x}, {} → {}{columns}{sign}", self.matrix(matrix), self.buffer(out))?;
        match tuning {
            Some(MatVecTuning { workgroup, columns, splits, passes }) => {
                write!(f, " (workgroup {workgroup}, columns {columns}, splits {splits}, passes {passes})")
            }
            None => Ok(()),
        }
    }

    fn quantize(&self, f: &mut fmt::Formatter<'_>, quantize: &Quantize) -> fmt::Result {
        let Quantize { source, out, square_sums, skipped } = quantize;
        match source {
            QuantizeSource::F32(x) => write!(f, "quantize: {} → {out}", self.buffer(x))?,
            QuantizeSource::Norm { x, weight, eps } => {
                let (x, weight) = (self.buffer(x), self.weight(weight));
                write!(f, "norm · quantize, eps {eps:e}: {x}, {weight} → {out} with 1 / rms")?;
            }
            QuantizeSource::Splits { head_dim, .. } => {
                write!(f, "merge · quantize, heads of {head_dim}: splits → {out}")?;
            }
        }
        match (skipped, square_sums) {
            (Some(rows), _) => write!(f, "; not for {}", Rows(rows)),
            (None, Some(rows)) if matches!(source, QuantizeSource::Norm { .. }) => {
                write!(f, "; for {} with square sums", Rows(rows))
            }
            (None, _) => Ok(()),
        }
    }

    fn int8_mat_vec(&self, f: &mut fmt::Formatter<'_>, mat_vec: &Int8MatVec) -> fmt::Result {
        let Int8MatVec { x, call, int8_matrix, matrix, out } = mat_vec;
        let product = Product { x: x.to_string(), ..Product::of(call, matrix, out) };
        self.product(f, "int8 matvec", &product)?;
        let Some(int8_matrix) = int8_matrix else { return Ok(()) };
        write!(f, "; for {} int8 matrix", Rows(&call.sizes.int8_matrix_rows()))?;
        match int8_matrix.epilogue {
            Epilogue::None => Ok(()),
            Epilogue::Int8(rows) => write!(f, " → also {rows}"),
            Epilogue::NormedInt8(rows, weight) => {
                write!(f, " → also {rows} with square sums, times {}", self.weight(&weight))
            }
        }
    }
}

/// Kernels of experts.
impl Line<'_> {
    fn expert(&self, f: &mut fmt::Formatter<'_>, kernel: &ExpertKernel) -> fmt::Result {
        match kernel {
            ExpertKernel::Route { call, logits, out, .. } => {
                let (logits, out) = (self.buffer(logits), self.buffer(out));
                write!(
                    f,
                    "route, {} of {} experts, {:?}: {logits} → {out}",
                    call.used, call.count, call.weights
                )
            }
            ExpertKernel::MatVec { call, input, on, out } => {
                let (kernel, x) = match input {
                    RowInput::Norm { x, weight } => {
                        ("norm · expert matvec", format!("{}, {}", self.buffer(x), self.weight(weight)))
                    }
                    RowInput::F32(x) if call.experts.is_some_and(|experts| experts.sum) => {
                        ("expert matvec · sum", self.buffer(x).to_owned())
                    }
                    RowInput::F32(x) => ("expert matvec", self.buffer(x).to_owned()),
                    RowInput::Splits(_) => ("expert matvec", "splits".to_owned()),
                };
                let product = Product { x, ..Product::of(call, &on.matrix, out) };
                self.expert_product(f, kernel, product, on)
            }
            ExpertKernel::MatMul { call, x, on, out } => {
                let vector = MatVecCall { y_offset: call.y_offset, ..MatVecCall::new(call.weight, 1) };
                let product = Product { tuning: None, ..Product::of(&vector, &on.matrix, out) };
                let product = Product { x: self.buffer(x).to_owned(), ..product };
                self.expert_product(f, "f32 expert matmul", product, on)
            }
            ExpertKernel::Sort { call, route } => {
                let Experts { count, used, .. } = call.experts;
                write!(f, "sort, {used} of {count} experts: {} → tiles of slots", self.buffer(route))
            }
            ExpertKernel::Tiles { call, on, out } => {
                let vector = MatVecCall {
                    y_offset: call.y_offset,
                    gate: call.gate,
                    ..MatVecCall::new(call.weight, 1)
                };
                let product = Product { tuning: None, ..Product::of(&vector, &on.matrix, out) };
                let product = Product { x: format!("f16[{}]", call.weight.cols()), ..product };
                self.expert_product(f, "f16 expert tiles", product, on)
            }
            ExpertKernel::Sum { call, x, route, out } => {
                let (x, route, out) = (self.buffer(x), self.buffer(route), self.buffer(out));
                let sign = if call.accumulate { " +=" } else { "" };
                write!(f, "sum of slots [{}]: {x}, {route} → {out}{sign}", call.count)
            }
            ExpertKernel::AddGated { x, gate, width, out } => {
                let (x, gate, out) = (self.buffer(x), self.buffer(gate), self.buffer(out));
                write!(f, "add [{width}] × sigmoid: {x}, {gate} → {out} +=")
            }
        }
    }

    fn expert_product(
        &self,
        f: &mut fmt::Formatter<'_>,
        kernel: &str,
        product: Product<'_>,
        on: &ExpertOperands,
    ) -> fmt::Result {
        let x = format!("{}, {}", product.x, self.buffer(&on.route));
        self.product(f, kernel, &Product { x, ..product })?;
        let names: Vec<&str> = on.biases.iter().map(|id| self.weight(id)).collect();
        if names.is_empty() { Ok(()) } else { write!(f, ", plus {}", names.join(" | ")) }
    }
}

/// What all matrix products have.
struct Product<'a> {
    layout: WeightLayout,
    gate: Option<Activation>,
    x: String,
    matrix: &'a MatrixPart,
    accumulate: bool,
    out: &'a BufferId,
    /// The first column of `out` that is written.
    offset: u32,
    /// How a mat-vec divides its work for one row.
    tuning: Option<MatVecTuning>,
}

impl<'a> Product<'a> {
    fn of(call: &MatVecCall, matrix: &'a MatrixPart, out: &'a BufferId) -> Product<'a> {
        let (gate, accumulate, tuning) = (call.gate, call.accumulate, Some(call.tuning));
        Product {
            layout: matrix.layout,
            gate,
            x: String::new(),
            matrix,
            accumulate,
            out,
            offset: call.y_offset,
            tuning,
        }
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.call.kernel {
            Kernel::Embed { call, ids, table, out } => {
                let (shape, table, out) = (shape(&table.layout), self.matrix(table), self.buffer(out));
                match ids {
                    Ids::Tokens => write!(f, "embed {shape}: tokens, {table} → {out}"),
                    Ids::Positions => {
                        write!(f, "embed {shape}: positions + {}, {table} → {out} +=", call.offset)
                    }
                    Ids::Types => write!(f, "embed {shape}: types, {table} → {out} +="),
                }
            }
            Kernel::Unfold { call, x, out } => {
                let (x, out, stride) =
                    (self.buffer(x), self.buffer(out), call.x_slots / call.out_slots.max(1));
                write!(f, "unfold [{} × {}], stride {stride}: {x} → {out}", call.channels, call.taps)
            }
            Kernel::LayerNorm { x, weight, bias, eps, width, out } => {
                let (x, weight, out) = (self.buffer(x), self.weight(weight), self.buffer(out));
                let bias = bias.map_or(String::new(), |bias| format!(", {}", self.weight(&bias)));
                write!(f, "layer_norm [{width}], eps {eps:e}: {x}, {weight}{bias} → {out}")
            }
            Kernel::Activate { x, activation, width } => {
                write!(f, "activate [{width}], {activation:?}: {}", self.buffer(x))
            }
            Kernel::Norm { x, weight, eps, dim, parts, out } => {
                let (x, weight, out) = (self.buffer(x), self.weight(weight), self.buffer(out));
                let parts = if *parts > 1 { format!("{parts} × ") } else { String::new() };
                write!(f, "rms_norm [{parts}{dim}], eps {eps:e}: {x}, {weight} → {out}")
            }
            Kernel::NormAdd { x, weight, eps, width, scale, out } => {
                let (x, weight, out) = (self.buffer(x), self.weight(weight), self.buffer(out));
                write!(f, "rms_norm [{width}], eps {eps:e} × {scale}: {x}, {weight} → {out} +=")
            }
            Kernel::NormColumns { x, weight, eps, dim, columns: Columns { first, parts, .. } } => {
                let (x, weight) = (self.buffer(x), self.weight(weight));
                write!(f, "rms_norm [{parts} × {dim}], eps {eps:e}: {weight} → {x}[{first}..]")
            }
            Kernel::Add { call, x, out } => {
                let (x, out) = (self.buffer(x), self.buffer(out));
                write!(f, "add [{}] × {}: {x} → {out} +=", call.count, call.scale)
            }
            Kernel::Bias { call, biases, out } => {
                let names: Vec<&str> = biases.iter().map(|id| self.weight(id)).collect();
                let (names, out) = (names.join(" | "), self.buffer(out));
                write!(f, "bias [{}]: {names} → {out}[{}..] +=", call.count, call.first)
            }
            Kernel::Scale { x, width, factor, cap } => {
                write!(f, "scale [{width}] × {factor}")?;
                if let Some(cap) = cap {
                    write!(f, ", soft cap {cap}")?;
                }
                write!(f, ": {}", self.buffer(x))
            }
            Kernel::GateBy { x, activation, width, by, columns: (_, first) } => {
                let (x, by) = (self.buffer(x), self.buffer(by));
                write!(f, "gate [{width}], {activation:?}: {x}, {by}[{first}..] → {x}")
            }
            Kernel::MulBy { x, activation, width, by, columns: (_, first) } => {
                let (x, by) = (self.buffer(x), self.buffer(by));
                write!(f, "multiply [{width}], {activation:?}: {x}, {by}[{first}..] → {x}")
            }
            Kernel::DeltaConv { call, layer, x, out, .. } => {
                let (x, out) = (self.buffer(x), self.buffer(out));
                write!(f, "delta_conv, {}: {x}, {layer} → {out}", call.shape)
            }
            Kernel::DeltaRule { call, layer, x, prepared, out } => {
                let [x, prepared, out] = [x, prepared, out].map(|id| self.buffer(id));
                write!(f, "delta_rule, {}: {prepared}, {layer} → {out}; inputs {x} → {layer}", call.shape)
            }
            Kernel::Quantize(quantize) => self.quantize(f, quantize),
            Kernel::Merge { head_dim, out, .. } => {
                write!(f, "merge, heads of {head_dim}: splits → {}", self.buffer(out))
            }
            Kernel::F16Rows { call, x, norm, .. } => {
                write!(f, "{}f16_rows: {}", if norm.is_some() { "norm · " } else { "" }, self.buffer(x))?;
                if let Some(weight) = norm {
                    write!(f, ", {}", self.weight(weight))?;
                }
                write!(f, " → f16[{}]", call.cols)
            }
            Kernel::MatVec { call, input, matrix, out } => {
                let (kernel, x) = match input {
                    RowInput::F32(x) => ("matvec", self.buffer(x).to_owned()),
                    RowInput::Norm { x, weight } => {
                        ("norm · matvec", format!("{}, {}", self.buffer(x), self.weight(weight)))
                    }
                    RowInput::Splits(_) => ("merge · matvec", "splits".to_owned()),
                };
                let product = Product { x, ..Product::of(call, matrix, out) };
                self.product(f, kernel, &product)
            }
            Kernel::Int8MatVec(mat_vec) => self.int8_mat_vec(f, mat_vec),
            Kernel::Tiles { call, matrix, biases, out } => {
                let product = Product {
                    layout: matrix.layout,
                    gate: call.gate,
                    x: format!("f16[{}]", call.weight.cols()),
                    matrix,
                    accumulate: call.accumulate,
                    out,
                    offset: call.y_offset,
                    tuning: None,
                };
                self.product(f, "f16 tiles", &product)?;
                let names: Vec<&str> = biases.iter().map(|(_, id)| self.weight(id)).collect();
                if !names.is_empty() {
                    write!(f, ", plus {}", names.join(" | "))?;
                }
                call.activation.map_or(Ok(()), |activation| write!(f, ", {activation:?}"))
            }
            Kernel::MatMul { call, x, matrix, out } => {
                let product = Product {
                    layout: matrix.layout,
                    gate: None,
                    x: self.buffer(x).to_owned(),
                    matrix,
                    accumulate: call.accumulate,
                    out,
                    offset: call.y_offset,
                    tuning: None,
                };
                self.product(f, "f32 matmul", &product)
            }
            Kernel::RopeWrite { on, heads, paged, .. } => {
                let on_text = self.attention(on, true);
                let (qkv, dim) = (self.buffer(&on.qkv), paged.cache.head_dim);
                if !heads.write {
                    return write!(f, "rope, heads of {dim}: {on_text} → {qkv}");
                }
                write!(f, "rope_write, heads of {dim}: {on_text} → {qkv}, {}", on.layer)
            }
            Kernel::Attend { on, call, gathered } => {
                let (p, dim) = (call.params, call.paged.cache.head_dim);
                let prologue = if call.rotate { "rope · write · " } else { "" };
                write!(f, "{prologue}attend, {}/{} heads of {dim}", p.n_heads, p.n_kv_heads)?;
                seen(f, on.seen, p.window)?;
                write!(f, ": {} → splits", self.attention(on, call.rotate))?;
                if call.rotate {
                    write!(f, ", {}", on.layer)?;
                }
                match gathered {
                    Some(Gathered { mode: SplitMode::Gathered { tiles, kept }, from_rows, out }) => {
                        let sums = if *kept { "workgroup memory" } else { "partials" };
                        write!(
                            f,
                            "; from {from_rows} rows on gathered, {tiles} tiles, sums in {sums} → {out}"
                        )
                    }
                    _ => Ok(()),
                }
            }
            Kernel::Flash { on, call, out, .. } => {
                let KvShape { n_kv_heads, head_dim, .. } = call.paged.cache;
                write!(f, "flash, {}/{n_kv_heads} heads of {head_dim}", call.n_heads)?;
                seen(f, on.seen, call.window)?;
                write!(f, ": {}, tiles → {}", self.attention(on, false), self.buffer(out))
            }
            Kernel::Attention { on, params, paged, out } => {
                let KvShape { n_kv_heads, head_dim, .. } = paged.cache;
                write!(f, "attention, {}/{n_kv_heads} heads of {head_dim}", params.n_heads)?;
                seen(f, on.seen, params.window)?;
                write!(f, ": {} → {}", self.attention(on, false), self.buffer(out))
            }
            Kernel::Gate { x, activation, width, out, .. } => {
                write!(f, "gate [{width}], {activation:?}: {} → {}", self.buffer(x), self.buffer(out))
            }
            Kernel::Expert(kernel) => self.expert(f, kernel),
            Kernel::Gather { x, width, out, .. } => {
                write!(f, "gather [{width}]: {}, logit rows → {}", self.buffer(x), self.buffer(out))
            }
        }
    }
}

fn seen(f: &mut fmt::Formatter<'_>, seen: RowsSeen, window: u32) -> fmt::Result {
    match seen {
        RowsSeen::Causal if window > 0 => write!(f, ", window {window}"),
        RowsSeen::Causal => Ok(()),
        RowsSeen::Whole(_) => write!(f, ", whole"),
        RowsSeen::Around(_) => write!(f, ", {} around", window.saturating_sub(1)),
    }
}

fn shape(layout: &WeightLayout) -> String {
    format!("{} [{} × {}]", layout.dtype(), layout.rows(), layout.cols())
}

impl fmt::Display for Int8Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}int8[{}]", if self.normed { "normed " } else { "" }, self.width)
    }
}

struct Rows<'a>(&'a RangeInclusive<u32>);

impl fmt::Display for Rows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.0.start(), self.0.end());
        if first == last { write!(f, "{first} rows") } else { write!(f, "{first} to {last} rows") }
    }
}
