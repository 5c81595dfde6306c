//! `str` and `repr` of values, as Python writes them.

use std::sync::Arc;

use super::error::{Fault, Limit, Outcome};
use super::interp::Interp;
use super::python;
use super::value::{MAX_VALUE_DEPTH, Value};

impl Interp<'_> {
    /// Python's `str(value)`.
    pub(super) fn text(&mut self, value: &Value) -> Outcome<Arc<str>> {
        match value {
            Value::Str(text) => Ok(text.clone()),
            Value::Undefined(_) => Ok("".into()),
            other => Ok(self.repr(other)?.into()),
        }
    }

    /// Python's `repr(value)`.
    pub(super) fn repr(&mut self, value: &Value) -> Outcome<String> {
        let mut out = String::new();
        self.write_repr(value, &mut out, 0)?;
        Ok(out)
    }

    fn write_repr(&mut self, value: &Value, out: &mut String, level: u16) -> Outcome<()> {
        self.budget.step()?;
        self.budget.check_output(out.len())?;
        if level > MAX_VALUE_DEPTH {
            // Only a namespace that holds itself gets here.
            return Err(Fault::limit(Limit::Depth, u64::from(MAX_VALUE_DEPTH)));
        }
        match value {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(true) => out.push_str("True"),
            Value::Bool(false) => out.push_str("False"),
            Value::Int(int) => out.push_str(&int.to_string()),
            Value::Float(float) => out.push_str(&python::float(*float)),
            Value::Str(text) => {
                self.budget.work(text.len() * 2)?;
                python::quote(text, out);
            }
            Value::List(seq) => self.write_items(&seq.items, "[", "]", out, level)?,
            Value::Tuple(seq) => {
                let close = if seq.items.len() == 1 { ",)" } else { ")" };
                self.write_items(&seq.items, "(", close, out, level)?;
            }
            Value::View(name, seq) => {
                out.push_str(name);
                self.write_items(&seq.items, "([", "])", out, level)?;
            }
            Value::Dict(dict) => {
                let dict = dict.clone();
                self.write_entries(dict.iter(), out, level)?;
            }
            Value::Namespace(index) => {
                out.push_str("<Namespace ");
                let attributes = self.namespaces[*index].clone();
                self.budget.items(attributes.len())?;
                self.write_entries(attributes.iter(), out, level)?;
                out.push('>');
            }
            Value::Range(range) => {
                out.push_str(&format!("range({}, {}", range.start, range.stop));
                if range.step != 1 {
                    out.push_str(&format!(", {}", range.step));
                }
                out.push(')');
            }
            Value::Macro(called) => {
                out.push_str("<Macro ");
                python::quote(&called.name, out);
                out.push('>');
            }
            Value::Loop(state) => {
                out.push_str(&format!("<LoopContext {}/{}>", state.index.get() + 1, state.items.items.len()));
            }
            // Python prints these with an address, which no two runs share.
            other => out.push_str(&format!("<{} object>", other.type_name())),
        }
        Ok(())
    }

    fn write_items(
        &mut self,
        items: &[Value],
        open: &str,
        close: &str,
        out: &mut String,
        level: u16,
    ) -> Outcome<()> {
        out.push_str(open);
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            self.write_repr(item, out, level + 1)?;
        }
        out.push_str(close);
        Ok(())
    }

    fn write_entries<'v>(
        &mut self,
        entries: impl Iterator<Item = (&'v Value, &'v Value)>,
        out: &mut String,
        level: u16,
    ) -> Outcome<()> {
        out.push('{');
        for (i, (key, value)) in entries.enumerate() {
            if i > 0 {
                out.push_str(", ");
            }
            self.write_repr(key, out, level + 1)?;
            out.push_str(": ");
            self.write_repr(value, out, level + 1)?;
        }
        out.push('}');
        Ok(())
    }
}
