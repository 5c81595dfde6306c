//! Calls, global functions, attributes and items.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::clock;
use super::dict::Dict;
use super::error::{Fault, Outcome};
use super::interp::Interp;
use super::methods;
use super::ops;
use super::text::Text;
use super::value::{Cycler, LoopState, Range, Seq, Value};

/// The sandbox of transformers rejects longer ranges.
const MAX_RANGE: usize = 100_000;

/// Evaluated arguments.
#[derive(Debug, Default)]
pub(crate) struct CallArgs {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Text, Value)>,
}

impl CallArgs {
    /// Binds the arguments to parameters, as a call of a Python function does.
    pub(crate) fn bind<const N: usize>(self, callee: &str, names: [&str; N]) -> Outcome<[Option<Value>; N]> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            let given = self.positional.len();
            return Err(Fault::failed(format!("{callee} takes at most {N} arguments, not {given}")));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            let Some(at) = names.iter().position(|known| **known == *name) else {
                return Err(Fault::failed(format!("{callee} has no argument '{name}'")));
            };
            if bound[at].replace(value).is_some() {
                return Err(Fault::failed(format!("{callee} got two values for '{name}'")));
            }
        }
        Ok(bound)
    }

    pub(crate) fn none(self, callee: &str) -> Outcome<()> {
        self.bind::<0>(callee, []).map(drop)
    }
}

const GLOBALS: [&str; 7] =
    ["range", "dict", "namespace", "raise_exception", "strftime_now", "cycler", "joiner"];

/// The global function of that name.
pub(crate) fn global(name: &str) -> Option<Value> {
    GLOBALS.into_iter().find(|known| *known == name).map(Value::Function)
}

impl Interp<'_> {
    pub(super) fn call(&mut self, function: &Value, args: CallArgs) -> Outcome<Value> {
        match function.defined()? {
            Value::Macro(called) => {
                let called = called.clone();
                self.call_macro(&called, args)
            }
            Value::Function(name) => self.call_global(name, args),
            Value::Method(method) => {
                let method = method.clone();
                methods::call(self, &method.0, method.1, args)
            }
            Value::Loop(state) => {
                let [items] = args.bind("loop", ["iterable"])?;
                let state = state.clone();
                self.recurse(&state, &items.unwrap_or(Value::None))
            }
            Value::Joiner(joiner) => {
                args.none("joiner")?;
                Ok(if joiner.1.replace(true) { Value::Str(joiner.0.clone()) } else { Value::literal("") })
            }
            other => Err(Fault::failed(format!("'{}' object is not callable", other.type_name()))),
        }
    }

    fn call_global(&mut self, name: &str, args: CallArgs) -> Outcome<Value> {
        match name {
            "range" => range(args),
            "dict" => Ok(Value::Dict(Rc::new(self.dict_from(args)?))),
            "namespace" => {
                self.budget.items(8)?;
                let attributes = self.dict_from(args)?;
                self.namespaces.push(Dict::new([])?);
                let index = self.namespaces.len() - 1;
                for (name, value) in attributes.iter() {
                    let Value::Str(name) = name else {
                        return Err(Fault::failed("namespace attributes must be strings"));
                    };
                    self.set_member(index, name, value.clone())?;
                }
                Ok(Value::Namespace(index))
            }
            "raise_exception" => {
                let [message] = args.bind(name, ["message"])?;
                let message = message.ok_or_else(|| Fault::failed("raise_exception needs a message"))?;
                Err(Fault::raised(self.text(&message)?.to_string()))
            }
            "strftime_now" => {
                let [format] = args.bind(name, ["format"])?;
                let Some(Value::Str(format)) = format else {
                    return Err(Fault::failed("strftime_now needs a format string"));
                };
                self.budget.work(format.len() * 16)?;
                let Some(now) = &self.now else {
                    return Err(Fault::failed(
                        "strftime_now: this platform has no clock, and no time was given",
                    ));
                };
                Ok(format.rewritten(clock::strftime(now, &format)).into())
            }
            "cycler" => {
                if args.positional.is_empty() || !args.named.is_empty() {
                    return Err(Fault::failed("cycler needs at least one item"));
                }
                let items = Seq::new(args.positional)?;
                Ok(Value::Cycler(Rc::new(Cycler { items, at: Cell::new(0) })))
            }
            "joiner" => {
                let [separator] = args.bind(name, ["sep"])?;
                let separator = match separator {
                    Some(value) => self.text(&value)?,
                    None => Text::literal(", "),
                };
                Ok(Value::Joiner(Rc::new((separator, RefCell::new(false)))))
            }
            other => Err(Fault::failed(format!("unknown function '{other}'"))),
        }
    }

    /// `dict(mapping_or_pairs, **named)`.
    fn dict_from(&mut self, args: CallArgs) -> Outcome<Dict> {
        let mut dict = Dict::new([])?;
        let CallArgs { positional, named } = args;
        let [first] = CallArgs { positional, named: Vec::new() }.bind("dict", ["mapping"])?;
        match first {
            None => {}
            Some(Value::Dict(other)) => {
                self.budget.items(other.len() * 4)?;
                dict = (*other).clone();
            }
            Some(pairs) => {
                for pair in pairs.items(&mut self.budget)? {
                    let mut pair = pair.items(&mut self.budget)?.into_iter();
                    let (Some(key), Some(value), None) = (pair.next(), pair.next(), pair.next()) else {
                        return Err(Fault::failed("dict needs pairs of a key and a value"));
                    };
                    dict.insert(key, value)?;
                }
            }
        }
        for (name, value) in named {
            dict.insert(Value::Str(name), value)?;
        }
        Ok(dict)
    }

    /// `subject.name`: methods and attributes take precedence over items.
    pub(super) fn attribute(&mut self, subject: &Value, name: &str) -> Outcome<Value> {
        subject.defined()?;
        if let Some(value) = self.own_attribute(subject, name)? {
            return Ok(value);
        }
        if let Value::Dict(dict) = subject
            && let Some(value) = dict.get_str(name)
        {
            return Ok(value.clone());
        }
        Ok(missing(subject, name))
    }

    /// `subject[index]`: items take precedence over methods and attributes; a missing one is undefined.
    pub(super) fn item(&mut self, subject: &Value, key: &Value) -> Outcome<Value> {
        subject.defined()?;
        self.budget.work(key.as_str().map_or(0, str::len))?;
        let found = match subject {
            Value::Dict(dict) => dict.get(key).unwrap_or(None).cloned(),
            _ => match key.as_int() {
                Some(at) => ops::index(subject, at, &mut self.budget)?,
                None => None,
            },
        };
        if let Some(value) = found {
            return Ok(value);
        }
        if let Value::Str(name) = key {
            if let Some(value) = self.own_attribute(subject, name)? {
                return Ok(value);
            }
            return Ok(missing(subject, name));
        }
        let key = self.repr(key)?;
        Ok(Value::undefined(format!("{} has no element {key}", object(subject))))
    }

    /// The methods of a value, and the attributes of Jinja's own objects.
    fn own_attribute(&mut self, subject: &Value, name: &str) -> Outcome<Option<Value>> {
        if name.starts_with("__") {
            return Ok(None);
        }
        if let Some(method) = methods::find(subject, name) {
            return match method {
                methods::Found::Method(name) => subject.clone().method(name).map(Some),
                methods::Found::Unsafe => Ok(Some(Value::undefined(format!(
                    "'{name}' would change a {}, and templates may not change values",
                    subject.type_name()
                )))),
            };
        }
        Ok(match subject {
            Value::Namespace(index) => self.namespaces[*index].get_str(name).cloned(),
            Value::Loop(state) => loop_attribute(state, name),
            Value::Cycler(cycler) if name == "current" => cycler.items.items.get(cycler.at.get()).cloned(),
            Value::Macro(called) if name == "name" => Some(Value::literal(called.name.clone())),
            _ => None,
        })
    }
}

fn object(subject: &Value) -> String {
    match subject {
        Value::None => "None".into(),
        other => format!("'{} object'", other.type_name()),
    }
}

fn missing(subject: &Value, name: &str) -> Value {
    Value::undefined(format!("{} has no attribute '{name}'", object(subject)))
}

fn loop_attribute(state: &LoopState, name: &str) -> Option<Value> {
    let (index, length) = (state.index.get(), state.items.items.len());
    let neighbour = |at: Option<usize>, word: &str| {
        let item = at.and_then(|at| state.items.items.get(at)).cloned();
        item.unwrap_or_else(|| Value::undefined(format!("there is no {word} item")))
    };
    Some(match name {
        "index" => Value::from(index + 1),
        "index0" => Value::from(index),
        "revindex" => Value::from(length - index),
        "revindex0" => Value::from(length - index - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == length),
        "length" => Value::from(length),
        "depth" => Value::from(state.depth0 + 1),
        "depth0" => Value::from(state.depth0),
        "previtem" => neighbour(index.checked_sub(1), "previous"),
        "nextitem" => neighbour(Some(index + 1), "next"),
        _ => return None,
    })
}

fn range(args: CallArgs) -> Outcome<Value> {
    if !args.named.is_empty() {
        return Err(Fault::failed("range takes no named arguments"));
    }
    let mut bounds = Vec::new();
    for value in &args.positional {
        let bound = value.as_int().and_then(|bound| i64::try_from(bound).ok());
        let Some(bound) = bound else {
            value.defined()?;
            return Err(Fault::failed(format!("range needs integers, not '{}'", value.type_name())));
        };
        bounds.push(bound);
    }
    let range = match bounds[..] {
        [stop] => Range { start: 0, stop, step: 1 },
        [start, stop] => Range { start, stop, step: 1 },
        [start, stop, step] if step != 0 => Range { start, stop, step },
        [_, _, _] => return Err(Fault::failed("range step cannot be zero")),
        _ => return Err(Fault::failed("range takes one to three arguments")),
    };
    if range.len() > MAX_RANGE {
        return Err(Fault::failed(format!(
            "range of {} items; at most {MAX_RANGE} are allowed",
            range.len()
        )));
    }
    Ok(Value::Range(range))
}
