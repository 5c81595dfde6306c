//! Executes statements: scopes, loops, macros, output.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Expr, ForLoop, Macro, Stmt, Target};
use super::budget::{Budget, Limits};
use super::call::CallArgs;
use super::clock::DateTime;
use super::dict::Dict;
use super::error::{Fault, Outcome};
use super::text::{Text, Writer};
use super::value::{LoopState, MacroValue, Seq, Value};

/// One render of one template.
pub(crate) struct Interp<'t> {
    pub(super) budget: Budget,
    pub(super) now: Option<DateTime>,
    /// Namespaces and scopes are referred to by index, because they may form reference cycles.
    pub(super) namespaces: Vec<Dict>,
    scopes: Vec<Scope>,
    pub(super) scope: usize,
    macros: Vec<&'t Macro>,
    /// The recursive loops, which `loop(…)` calls.
    recursive_loops: Vec<&'t ForLoop>,
    /// The output so far, of the innermost capture.
    output: Writer,
}

/// The depth that a call of a macro or loop counts for.
const CALL_LEVELS: u32 = 4;

#[derive(Default)]
struct Scope {
    names: HashMap<Arc<str>, Value>,
    parent: Option<usize>,
    /// A macro was defined in or below this scope and may be called after the scope ends.
    captured: bool,
}

/// How a statement ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl<'t> Interp<'t> {
    pub(crate) fn new(
        limits: Limits,
        now: Option<DateTime>,
        globals: HashMap<Arc<str>, Value>,
    ) -> Interp<'t> {
        Interp {
            budget: Budget::new(limits),
            now,
            namespaces: Vec::new(),
            scopes: vec![Scope { names: globals, ..Scope::default() }],
            scope: 0,
            macros: Vec::new(),
            recursive_loops: Vec::new(),
            output: Writer::default(),
        }
    }

    pub(crate) fn render(mut self, body: &'t [Stmt]) -> Outcome<Text> {
        self.run(body)?;
        Ok(self.output.finish())
    }

    // Names.

    pub(super) fn lookup(&self, name: &str) -> Option<&Value> {
        let mut at = Some(self.scope);
        while let Some(scope) = at.and_then(|at| self.scopes.get(at)) {
            if let Some(value) = scope.names.get(name) {
                return Some(value);
            }
            at = scope.parent;
        }
        None
    }

    fn define(&mut self, name: Arc<str>, value: Value) {
        self.scopes[self.scope].names.insert(name, value);
    }

    /// Runs `work` in a new child scope of `parent`.
    fn scoped<T>(&mut self, parent: usize, work: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        self.budget.items(4)?;
        let outer = self.scope;
        self.scope = self.scopes.len();
        self.scopes.push(Scope { parent: Some(parent), ..Scope::default() });
        let result = work(self);
        if self.scope + 1 == self.scopes.len() && !self.scopes[self.scope].captured {
            self.scopes.pop();
        }
        self.scope = outer;
        result
    }

    fn capture_scope(&mut self) -> usize {
        let mut at = Some(self.scope);
        while let Some(scope) = at.and_then(|at| self.scopes.get_mut(at)) {
            if scope.captured {
                break;
            }
            scope.captured = true;
            at = scope.parent;
        }
        self.scope
    }

    fn assign(&mut self, target: &Target, value: Value) -> Outcome<()> {
        match target {
            Target::Name(name) => {
                self.define(name.clone(), value);
                Ok(())
            }
            Target::Member(name, member, at) => {
                let Some(Value::Namespace(index)) = self.lookup(name) else {
                    let message = format!("cannot assign attribute '{member}': '{name}' is not a namespace");
                    return Err(Fault::failed(message).or_at(*at));
                };
                let index = *index;
                self.set_member(index, &Text::literal(member.clone()), value)
                    .map_err(|fault| fault.or_at(*at))
            }
            Target::Tuple(targets) => {
                let items = value.items(&mut self.budget)?;
                if items.len() != targets.len() {
                    let (found, wanted) = (items.len(), targets.len());
                    return Err(Fault::failed(format!("cannot unpack {found} values into {wanted} names")));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item)?;
                }
                Ok(())
            }
        }
    }

    pub(super) fn set_member(&mut self, namespace: usize, name: &Text, value: Value) -> Outcome<()> {
        if name.starts_with('_') {
            return Err(Fault::failed(format!("namespace attribute '{name}' starts with an underscore")));
        }
        self.namespaces[namespace].insert(Value::Str(name.clone()), value)
    }

    // Output.

    fn write(&mut self, text: &Text) -> Outcome<()> {
        self.budget.work(text.weight())?;
        self.budget.check_output(self.output.len() + text.len())?;
        self.output.push(text);
        Ok(())
    }

    /// Runs `work` and returns its output.
    fn captured(&mut self, work: impl FnOnce(&mut Self) -> Outcome<()>) -> Outcome<Text> {
        let outer = std::mem::take(&mut self.output);
        let result = work(self);
        let text = std::mem::replace(&mut self.output, outer);
        result.map(|()| text.finish())
    }

    // Statements.

    fn run(&mut self, body: &'t [Stmt]) -> Outcome<Flow> {
        self.budget.enter()?;
        let mut flow = Flow::Next;
        for statement in body {
            flow = self.statement(statement)?;
            if flow != Flow::Next {
                break;
            }
        }
        self.budget.leave();
        Ok(flow)
    }

    fn statement(&mut self, statement: &'t Stmt) -> Outcome<Flow> {
        self.budget.step()?;
        match statement {
            Stmt::Text(text) => self.write(&Text::literal(text.clone()))?,
            Stmt::Print(expr) => {
                let value = self.eval(expr)?;
                self.print(&value, expr.at)?;
            }
            Stmt::If { branches, otherwise } => return self.if_block(branches, otherwise),
            Stmt::For(for_loop) => self.for_statement(for_loop)?,
            Stmt::Set(target, expr, at) => {
                let value = self.eval(expr)?;
                self.assign(target, value).map_err(|fault| fault.or_at(*at))?;
            }
            Stmt::SetBlock { target, filter, body, at } => {
                self.set_block(target, filter.as_ref(), body, *at)?
            }
            Stmt::Macro(definition) => {
                let value = self.macro_value(definition);
                self.define(definition.name.clone(), value);
            }
            Stmt::CallBlock { call, caller } => {
                let caller = self.macro_value(caller);
                let value = self.eval_call_block(call, caller)?;
                self.print(&value, call.at)?;
            }
            Stmt::FilterBlock(filter, body) => {
                let text = self.scoped_capture(body)?;
                let value = self.eval_filter_chain(filter, text.into())?;
                self.print(&value, filter.at)?;
            }
            Stmt::With(bindings, body, at) => return self.with_block(bindings, body, *at),
            Stmt::Scope(body) => return self.scoped(self.scope, |interp| interp.run(body)),
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn print(&mut self, value: &Value, at: u32) -> Outcome<()> {
        let written = self.text(value).and_then(|text| self.write(&text));
        written.map_err(|fault| fault.or_at(at))
    }

    fn if_block(&mut self, branches: &'t [(Expr, Vec<Stmt>)], otherwise: &'t [Stmt]) -> Outcome<Flow> {
        for (test, body) in branches {
            if self.eval(test)?.truthy() {
                return self.run(body);
            }
        }
        self.run(otherwise)
    }

    fn set_block(
        &mut self,
        target: &Target,
        filter: Option<&'t Expr>,
        body: &'t [Stmt],
        at: u32,
    ) -> Outcome<()> {
        let mut value = Value::from(self.scoped_capture(body)?);
        if let Some(filter) = filter {
            value = self.eval_filter_chain(filter, value)?;
        }
        self.assign(target, value).map_err(|fault| fault.or_at(at))
    }

    fn with_block(&mut self, bindings: &'t [(Target, Expr)], body: &'t [Stmt], at: u32) -> Outcome<Flow> {
        // Values are evaluated in the outer scope, so that bindings do not see each other.
        let mut values = Vec::with_capacity(bindings.len());
        for (_, expr) in bindings {
            values.push(self.eval(expr)?);
        }
        self.scoped(self.scope, |interp| {
            for ((target, _), value) in bindings.iter().zip(values) {
                interp.assign(target, value).map_err(|fault| fault.or_at(at))?;
            }
            interp.run(body)
        })
    }

    fn scoped_capture(&mut self, body: &'t [Stmt]) -> Outcome<Text> {
        self.budget.enter()?;
        let scope = self.scope;
        let text = self.captured(|interp| interp.scoped(scope, |interp| interp.run(body).map(drop)))?;
        self.budget.leave();
        Ok(text)
    }

    // Loops.

    fn for_statement(&mut self, for_loop: &'t ForLoop) -> Outcome<()> {
        let iter = self.eval(&for_loop.iter)?;
        self.budget.enter()?;
        let recursion = if for_loop.recursive {
            self.recursive_loops.push(for_loop);
            self.capture_scope();
            Some((self.recursive_loops.len() - 1, self.scope))
        } else {
            None
        };
        self.run_loop(for_loop, &iter, 0, recursion).map_err(|fault| fault.or_at(for_loop.at))?;
        self.budget.leave();
        Ok(())
    }

    fn run_loop(
        &mut self,
        for_loop: &'t ForLoop,
        iter: &Value,
        depth0: usize,
        recursion: Option<(usize, usize)>,
    ) -> Outcome<()> {
        let mut items = iter.items(&mut self.budget)?;
        if let Some(filter) = &for_loop.filter {
            let mut kept = Vec::new();
            for item in items {
                let keep = self.scoped(self.scope, |interp| {
                    interp.assign(&for_loop.target, item.clone())?;
                    Ok(interp.eval(filter)?.truthy())
                })?;
                if keep {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.scoped(self.scope, |interp| interp.run(&for_loop.otherwise).map(drop));
        }
        let state = Rc::new(LoopState {
            items: Seq::new(items)?,
            index: Cell::new(0),
            depth0,
            last_changed: RefCell::new(None),
            recursion,
        });
        let name: Arc<str> = "loop".into();
        for index in 0..state.items.items.len() {
            state.index.set(index);
            let flow = self.scoped(self.scope, |interp| {
                interp.define(name.clone(), Value::Loop(state.clone()));
                interp.assign(&for_loop.target, state.items.items[index].clone())?;
                interp.run(&for_loop.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    /// `loop(items)` inside a recursive loop.
    pub(super) fn recurse(&mut self, state: &LoopState, iter: &Value) -> Outcome<Value> {
        let Some((index, scope)) = state.recursion else {
            return Err(Fault::failed("this loop is not marked 'recursive'"));
        };
        let for_loop = self.recursive_loops[index];
        let depth0 = state.depth0 + 1;
        let text = self.captured(|interp| {
            interp.budget.descend(CALL_LEVELS)?;
            interp.scoped(scope, |interp| interp.run_loop(for_loop, iter, depth0, Some((index, scope))))?;
            interp.budget.ascend(CALL_LEVELS);
            Ok(())
        })?;
        Ok(text.into())
    }

    // Macros.

    fn macro_value(&mut self, definition: &'t Macro) -> Value {
        let scope = self.capture_scope();
        self.macros.push(definition);
        let (name, definition) = (definition.name.clone(), self.macros.len() - 1);
        Value::Macro(Rc::new(MacroValue { name, definition, scope }))
    }

    pub(super) fn call_macro(&mut self, called: &MacroValue, args: CallArgs) -> Outcome<Value> {
        let definition = self.macros[called.definition];
        self.budget.descend(CALL_LEVELS)?;
        let text = self.captured(|interp| {
            interp.scoped(called.scope, |interp| {
                interp.bind_parameters(definition, args)?;
                interp.run(&definition.body).map(drop)
            })
        })?;
        self.budget.ascend(CALL_LEVELS);
        Ok(text.into())
    }

    /// Defines a macro's parameters in the current scope.
    fn bind_parameters(&mut self, definition: &'t Macro, args: CallArgs) -> Outcome<()> {
        let name = &definition.name;
        let CallArgs { positional, mut named } = args;
        let mut positional = positional.into_iter();
        if definition.takes_caller {
            let at = named.iter().position(|(key, _)| &**key == "caller");
            let caller = at.map(|at| named.remove(at).1);
            self.define("caller".into(), caller.unwrap_or_else(|| Value::undefined("no caller is defined")));
        }
        for (parameter, default) in &definition.parameters {
            let by_name = named.iter().position(|(key, _)| **key == **parameter);
            let value = match (positional.next(), by_name) {
                (Some(_), Some(_)) => {
                    return Err(Fault::failed(format!("macro '{name}' got two values for '{parameter}'")));
                }
                (Some(value), None) => value,
                (None, Some(at)) => named.remove(at).1,
                (None, None) => match default {
                    Some(default) => self.eval(default)?,
                    None => Value::undefined(format!("parameter '{parameter}' was not provided")),
                },
            };
            self.define(parameter.clone(), value);
        }
        let rest: Vec<Value> = positional.collect();
        if definition.takes_varargs {
            self.define("varargs".into(), Value::tuple(rest)?);
        } else if !rest.is_empty() {
            let takes = definition.parameters.len();
            return Err(Fault::failed(format!("macro '{name}' takes not more than {takes} arguments")));
        }
        if definition.takes_kwargs {
            let named = named.into_iter().map(|(key, value)| (Value::Str(key), value));
            self.define("kwargs".into(), Value::Dict(Rc::new(Dict::new(named)?)));
        } else if let Some((key, _)) = named.first() {
            return Err(Fault::failed(format!("macro '{name}' takes no argument '{key}'")));
        }
        Ok(())
    }
}
