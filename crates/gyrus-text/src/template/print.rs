//! `str` and `repr` of values, as in Python.

use super::error::{Fault, Limit, Outcome};
use super::interp::Interp;
use super::python;
use super::text::{Text, Writer};
use super::value::{MAX_VALUE_DEPTH, Value};

impl Interp<'_> {
    /// Python's `str(value)`.
    pub(super) fn text(&mut self, value: &Value) -> Outcome<Text> {
        match value {
            Value::Str(text) => Ok(text.clone()),
            Value::Undefined(_) => Ok(Text::literal("")),
            other => self.repr(other),
        }
    }

    /// Python's `repr(value)`.
    pub(super) fn repr(&mut self, value: &Value) -> Outcome<Text> {
        let mut out = Writer::default();
        self.write_repr(value, &mut out, 0)?;
        Ok(out.finish())
    }

    fn write_repr(&mut self, value: &Value, out: &mut Writer, level: u16) -> Outcome<()> {
        self.budget.step()?;
        self.budget.check_output(out.len())?;
        if level > MAX_VALUE_DEPTH {
            // Only a namespace that contains itself gets here.
            return Err(Fault::limit(Limit::Depth, u64::from(MAX_VALUE_DEPTH)));
        }
        match value {
            Value::Undefined(_) => out.literal("Undefined"),
            Value::None => out.literal("None"),
            Value::Bool(true) => out.literal("True"),
            Value::Bool(false) => out.literal("False"),
            Value::Int(int) => out.literal(&int.to_string()),
            Value::Float(float) => out.literal(&python::float(*float)),
            Value::Str(text) => {
                self.budget.work(text.len() * 2)?;
                out.push_as(&python::quote(text), text.overall());
            }
            Value::List(seq) => self.write_items(&seq.items, "[", "]", out, level)?,
            Value::Tuple(seq) => {
                let close = if seq.items.len() == 1 { ",)" } else { ")" };
                self.write_items(&seq.items, "(", close, out, level)?;
            }
            Value::View(name, seq) => {
                out.literal(name);
                self.write_items(&seq.items, "([", "])", out, level)?;
            }
            Value::Dict(dict) => {
                let dict = dict.clone();
                self.write_entries(dict.iter(), out, level)?;
            }
            Value::Namespace(index) => {
                out.literal("<Namespace ");
                let attributes = self.namespaces[*index].clone();
                self.budget.items(attributes.len())?;
                self.write_entries(attributes.iter(), out, level)?;
                out.literal(">");
            }
            Value::Range(range) => {
                out.literal(&format!("range({}, {}", range.start, range.stop));
                if range.step != 1 {
                    out.literal(&format!(", {}", range.step));
                }
                out.literal(")");
            }
            Value::Macro(called) => {
                out.literal("<Macro ");
                out.literal(&python::quote(&called.name));
                out.literal(">");
            }
            Value::Loop(state) => {
                out.literal(&format!("<LoopContext {}/{}>", state.index.get() + 1, state.items.items.len()));
            }
            // Python prints these with an address, which differs from run to run.
            other => out.literal(&format!("<{} object>", other.type_name())),
        }
        Ok(())
    }

    fn write_items(
        &mut self,
        items: &[Value],
        open: &str,
        close: &str,
        out: &mut Writer,
        level: u16,
    ) -> Outcome<()> {
        out.literal(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.literal(", ");
            }
            self.write_repr(item, out, level + 1)?;
        }
        out.literal(close);
        Ok(())
    }

    fn write_entries<'v>(
        &mut self,
        entries: impl Iterator<Item = (&'v Value, &'v Value)>,
        out: &mut Writer,
        level: u16,
    ) -> Outcome<()> {
        out.literal("{");
        for (i, (key, value)) in entries.enumerate() {
            if i > 0 {
                out.literal(", ");
            }
            self.write_repr(key, out, level + 1)?;
            out.literal(": ");
            self.write_repr(value, out, level + 1)?;
        }
        out.literal("}");
        Ok(())
    }
}
