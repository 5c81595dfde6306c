//! The values of templates, with Python's semantics.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::budget::Budget;
use super::dict::Dict;
use super::error::{Fault, FaultKind, Limit, Outcome};
use super::text::Text;

/// The maximum nesting of containers, so that recursion over a value, including its drop, stays shallow.
pub(crate) const MAX_VALUE_DEPTH: u16 = 200;

#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Prints as the empty string, is false and empty; any other use fails with this description.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    List(Rc<Seq>),
    Tuple(Rc<Seq>),
    Dict(Rc<Dict>),
    Range(Range),
    /// `dict.keys()` and the like, with the name that it prints as.
    View(&'static str, Rc<Seq>),
    /// The result of `map`, `select` and the like, which can be iterated once.
    Generator(Rc<Generator>),
    /// An index into the interpreter's namespaces, because they may form reference cycles.
    Namespace(usize),
    Macro(Rc<MacroValue>),
    /// A global function, by name.
    Function(&'static str),
    /// A method bound to its object.
    Method(Rc<(Value, &'static str)>),
    Loop(Rc<LoopState>),
    Cycler(Rc<Cycler>),
    /// The separator, and whether it was called before.
    Joiner(Rc<(Text, RefCell<bool>)>),
}

/// The items of a list or tuple, and their nesting depth.
#[derive(Debug)]
pub(crate) struct Seq {
    pub(crate) items: Vec<Value>,
    depth: u16,
}

#[derive(Debug)]
pub(crate) struct Generator {
    items: RefCell<VecDeque<Value>>,
    /// The error after the last item, which is raised only if more items are requested.
    failure: RefCell<Option<Fault>>,
    depth: u16,
}

impl Generator {
    /// The next item.
    pub(crate) fn next(&self) -> Outcome<Option<Value>> {
        match self.items.borrow_mut().pop_front() {
            Some(item) => Ok(Some(item)),
            None => self.failure.take().map_or(Ok(None), Err),
        }
    }

    /// All remaining items.
    fn rest(&self) -> Outcome<Vec<Value>> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(self.items.take().into()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Range {
    pub(crate) start: i64,
    pub(crate) stop: i64,
    pub(crate) step: i64,
}

impl Range {
    pub(crate) fn len(self) -> usize {
        let (span, step) = if self.step > 0 {
            (i128::from(self.stop) - i128::from(self.start), i128::from(self.step))
        } else {
            (i128::from(self.start) - i128::from(self.stop), -i128::from(self.step))
        };
        if span <= 0 { 0 } else { usize::try_from((span + step - 1) / step).unwrap_or(usize::MAX) }
    }

    pub(crate) fn get(self, index: usize) -> Value {
        Value::Int(i128::from(self.start) + i128::from(self.step) * index as i128)
    }
}

/// A macro and the scope of its definition.
#[derive(Debug)]
pub(crate) struct MacroValue {
    pub(crate) name: Arc<str>,
    /// Indices into the interpreter's macros and scopes.
    pub(crate) definition: usize,
    pub(crate) scope: usize,
}

/// The value of `loop`.
#[derive(Debug)]
pub(crate) struct LoopState {
    pub(crate) items: Rc<Seq>,
    pub(crate) index: std::cell::Cell<usize>,
    pub(crate) depth0: usize,
    /// The printed arguments of the last `changed` call: the values themselves could form a reference cycle.
    pub(crate) last_changed: RefCell<Option<String>>,
    /// A recursive loop's index, and its scope.
    pub(crate) recursion: Option<(usize, usize)>,
}

#[derive(Debug)]
pub(crate) struct Cycler {
    pub(crate) items: Rc<Seq>,
    pub(crate) at: std::cell::Cell<usize>,
}

impl Seq {
    pub(crate) fn new(items: Vec<Value>) -> Outcome<Rc<Seq>> {
        let depth = deeper(items.iter())?;
        Ok(Rc::new(Seq { items, depth }))
    }
}

/// One more than the depth of the deepest of `items`, if that is within the limit.
pub(crate) fn deeper<'v>(items: impl Iterator<Item = &'v Value>) -> Outcome<u16> {
    let depth = items.map(Value::depth).max().unwrap_or(0) + 1;
    if depth > MAX_VALUE_DEPTH {
        return Err(Fault::limit(Limit::Depth, u64::from(MAX_VALUE_DEPTH)));
    }
    Ok(depth)
}

impl From<Text> for Value {
    fn from(text: Text) -> Value {
        Value::Str(text)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Value {
        Value::Int(value as i128)
    }
}

impl Value {
    pub(crate) fn undefined(description: impl AsRef<str>) -> Value {
        Value::Undefined(description.as_ref().into())
    }

    /// A string of the template.
    pub(crate) fn literal(text: impl Into<Arc<str>>) -> Value {
        Value::Str(Text::literal(text))
    }

    pub(crate) fn list(items: Vec<Value>) -> Outcome<Value> {
        Seq::new(items).map(Value::List)
    }

    pub(crate) fn tuple(items: Vec<Value>) -> Outcome<Value> {
        Seq::new(items).map(Value::Tuple)
    }

    /// A generator of the items that `fill` makes. They are made eagerly, but if that fails, the items before the
    /// failure can still be read, as from a lazy generator.
    pub(crate) fn generator(fill: impl FnOnce(&mut Vec<Value>) -> Outcome<()>) -> Outcome<Value> {
        let mut items = Vec::new();
        let failure = match fill(&mut items) {
            Err(fault) if matches!(fault.kind, FaultKind::Limit(..)) => return Err(fault),
            result => RefCell::new(result.err()),
        };
        let depth = deeper(items.iter())?;
        Ok(Value::Generator(Rc::new(Generator { items: RefCell::new(items.into()), failure, depth })))
    }

    pub(crate) fn method(self, name: &'static str) -> Outcome<Value> {
        deeper(std::iter::once(&self))?;
        Ok(Value::Method(Rc::new((self, name))))
    }

    fn depth(&self) -> u16 {
        match self {
            Value::List(seq) | Value::Tuple(seq) | Value::View(_, seq) => seq.depth,
            Value::Dict(dict) => dict.depth(),
            Value::Generator(generator) => generator.depth,
            Value::Method(method) => method.0.depth() + 1,
            Value::Loop(state) => state.items.depth + 1,
            Value::Cycler(cycler) => cycler.items.depth + 1,
            _ => 0,
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The value as a Python integer; booleans are integers.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Value::Bool(value) => Some(i128::from(*value)),
            Value::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            _ => self.as_int().map(|value| value as f64),
        }
    }

    pub(crate) fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// Python's name of the value's type, for error messages.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Range(_) => "range",
            Value::View(name, _) => name,
            Value::Generator(_) => "generator",
            Value::Namespace(_) => "Namespace",
            Value::Macro(_) => "Macro",
            Value::Function(_) => "function",
            Value::Method(_) => "builtin_function_or_method",
            Value::Loop(_) => "LoopContext",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
        }
    }

    /// Python's truth value.
    pub(crate) fn truthy(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Str(text) => !text.is_empty(),
            Value::List(seq) | Value::Tuple(seq) | Value::View(_, seq) => !seq.items.is_empty(),
            Value::Dict(dict) => dict.len() > 0,
            Value::Range(range) => range.len() > 0,
            Value::Loop(state) => !state.items.items.is_empty(),
            _ => true,
        }
    }

    /// Python's `len`.
    pub(crate) fn len(&self) -> Outcome<usize> {
        Ok(match self {
            Value::Undefined(_) => 0,
            Value::Str(text) => text.chars().count(),
            Value::List(seq) | Value::Tuple(seq) | Value::View(_, seq) => seq.items.len(),
            Value::Dict(dict) => dict.len(),
            Value::Range(range) => range.len(),
            Value::Loop(state) => state.items.items.len(),
            other => {
                return Err(Fault::failed(format!("object of type '{}' has no len()", other.type_name())));
            }
        })
    }

    /// The items of an iterable. Generators are consumed.
    pub(crate) fn items(&self, budget: &mut Budget) -> Outcome<Vec<Value>> {
        let items: Vec<Value> = match self {
            Value::Undefined(_) => Vec::new(),
            Value::Str(text) => {
                budget.work(text.len() * 64)?; // each character becomes a value
                text.characters().map(Value::Str).collect()
            }
            Value::List(seq) | Value::Tuple(seq) | Value::View(_, seq) => {
                budget.items(seq.items.len())?;
                seq.items.clone()
            }
            Value::Dict(dict) => {
                budget.items(dict.len())?;
                dict.keys().cloned().collect()
            }
            Value::Range(range) => {
                budget.items(range.len())?;
                (0..range.len()).map(|i| range.get(i)).collect()
            }
            Value::Generator(generator) => generator.rest()?,
            other => {
                return Err(Fault::failed(format!("'{}' object is not iterable", other.type_name())));
            }
        };
        Ok(items)
    }

    pub(crate) fn is_iterable(&self) -> bool {
        matches!(
            self,
            Value::Undefined(_)
                | Value::Str(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::View(..)
                | Value::Dict(_)
                | Value::Range(_)
                | Value::Generator(_)
                | Value::Loop(_)
        )
    }

    /// Fails if the value is undefined, with the reason.
    pub(crate) fn defined(&self) -> Outcome<&Value> {
        match self {
            Value::Undefined(description) => Err(Fault::failed(description.to_string())),
            value => Ok(value),
        }
    }
}

/// Python's `==`.
pub(crate) fn equal(a: &Value, b: &Value, budget: &mut Budget) -> Outcome<bool> {
    budget.step()?;
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
        return Ok(a == b);
    }
    if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
        return Ok(a == b);
    }
    Ok(match (a, b) {
        (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
        (Value::Str(a), Value::Str(b)) => {
            budget.work(a.len().min(b.len()))?;
            **a == **b
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            if a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b, budget)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            for (key, value) in a.iter() {
                match b.get(key)? {
                    Some(other) if equal(value, other, budget)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(a), Value::Range(b)) => a == b,
        (Value::Namespace(a), Value::Namespace(b)) => a == b,
        (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
        (Value::Function(a), Value::Function(b)) => a == b,
        (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
        (Value::Generator(a), Value::Generator(b)) => Rc::ptr_eq(a, b),
        _ => false,
    })
}

/// Python's ordering: within numbers, strings, lists and tuples. `None` is "not comparable", as for NaN.
pub(crate) fn compare(a: &Value, b: &Value, op: &str, budget: &mut Budget) -> Outcome<Option<Ordering>> {
    budget.step()?;
    a.defined()?;
    b.defined()?;
    if let (Some(a), Some(b)) = (a.as_int(), b.as_int()) {
        return Ok(Some(a.cmp(&b)));
    }
    if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
        return Ok(a.partial_cmp(&b));
    }
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => {
            budget.work(a.len().min(b.len()))?;
            Ok(Some((**a).cmp(&**b)))
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.items.iter().zip(&b.items) {
                if !equal(a, b, budget)? {
                    return compare(a, b, op, budget);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => Err(Fault::failed(format!(
            "'{op}' not supported between instances of '{}' and '{}'",
            a.type_name(),
            b.type_name()
        ))),
    }
}

/// Stable sort by a comparison that may fail and need not be a total order.
pub(crate) fn sort<T: Clone>(
    items: Vec<T>,
    less: &mut impl FnMut(&T, &T) -> Outcome<bool>,
) -> Outcome<Vec<T>> {
    if items.len() < 2 {
        return Ok(items);
    }
    let mut right = items;
    let left = right.drain(..right.len() / 2).collect();
    let left: Vec<T> = sort(left, less)?;
    let right = sort(right, less)?;
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let next = if less(b, a)? { right.next() } else { left.next() };
        merged.extend(next);
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}
