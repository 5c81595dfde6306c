//! Evaluates expressions.

use std::rc::Rc;

use super::ast::{Args, Binary, Comparison, Expr, ExprKind, Unary};
use super::call::{CallArgs, global};
use super::dict::Dict;
use super::error::{Fault, Outcome};
use super::interp::Interp;
use super::text::{Text, Writer};
use super::value::{Value, compare, equal};
use super::{checks, filters, ops};

impl<'t> Interp<'t> {
    /// Evaluates an expression; an error has the position of the innermost expression.
    pub(super) fn eval(&mut self, expr: &'t Expr) -> Outcome<Value> {
        if let Err(fault) = self.budget.step().and_then(|()| self.budget.enter()) {
            return Err(fault.or_at(expr.at));
        }
        let value = self.eval_kind(expr);
        self.budget.leave();
        value.map_err(|fault| fault.or_at(expr.at))
    }

    fn eval_kind(&mut self, expr: &'t Expr) -> Outcome<Value> {
        match &expr.kind {
            ExprKind::None => Ok(Value::None),
            ExprKind::Bool(value) => Ok(Value::Bool(*value)),
            ExprKind::Int(value) => Ok(Value::Int(*value)),
            ExprKind::Float(value) => Ok(Value::Float(*value)),
            ExprKind::Str(text) => Ok(Value::literal(text.clone())),
            ExprKind::Name(name) => Ok(self.name(name)),
            ExprKind::List(items) => Value::list(self.eval_all(items)?),
            ExprKind::Tuple(items) => Value::tuple(self.eval_all(items)?),
            ExprKind::Dict(items) => self.eval_dict(items),
            ExprKind::Unary(operator, operand) => self.eval_unary(*operator, operand),
            ExprKind::Binary(operator, left, right) => self.eval_binary(*operator, left, right),
            ExprKind::And(left, right) => self.eval_logic(left, right, true),
            ExprKind::Or(left, right) => self.eval_logic(left, right, false),
            ExprKind::Concat(parts) => self.eval_concat(parts),
            ExprKind::Compare(left, rest) => self.eval_compare(left, rest),
            ExprKind::Choice { test, then, otherwise } => self.eval_choice(test, then, otherwise.as_deref()),
            ExprKind::Attribute(subject, name) => self.eval_attribute(subject, name),
            ExprKind::Item(subject, index) => self.eval_item(subject, index),
            ExprKind::Slice(subject, parts) => self.eval_slice(subject, parts),
            ExprKind::Filter(subject, name, args) => self.eval_filter(subject.as_deref(), name, args),
            ExprKind::Test(subject, name, args) => self.eval_test(subject, name, args),
            ExprKind::Call(function, args) => self.eval_call(function, args),
        }
    }

    fn eval_binary(&mut self, operator: Binary, left: &'t Expr, right: &'t Expr) -> Outcome<Value> {
        let left = self.eval(left)?;
        let right = self.eval(right)?;
        ops::binary(self, operator, &left, &right)
    }

    /// `and` evaluates its right side if the left is true, `or` if it is false.
    fn eval_logic(&mut self, left: &'t Expr, right: &'t Expr, goes_on: bool) -> Outcome<Value> {
        let left = self.eval(left)?;
        if left.truthy() == goes_on { self.eval(right) } else { Ok(left) }
    }

    fn eval_choice(&mut self, test: &'t Expr, then: &'t Expr, otherwise: Option<&'t Expr>) -> Outcome<Value> {
        let chosen = if self.eval(test)?.truthy() { Some(then) } else { otherwise };
        match chosen {
            Some(expr) => self.eval(expr),
            None => Ok(Value::undefined("the inline if-expression evaluated to false and has no else")),
        }
    }

    fn eval_attribute(&mut self, subject: &'t Expr, name: &str) -> Outcome<Value> {
        let subject = self.eval(subject)?;
        self.attribute(&subject, name)
    }

    fn eval_item(&mut self, subject: &'t Expr, index: &'t Expr) -> Outcome<Value> {
        let subject = self.eval(subject)?;
        let index = self.eval(index)?;
        self.item(&subject, &index)
    }

    fn eval_filter(&mut self, subject: Option<&'t Expr>, name: &str, args: &'t Args) -> Outcome<Value> {
        let Some(subject) = subject else { return Err(Fault::failed("this filter has nothing to filter")) };
        let subject = self.eval(subject)?;
        let args = self.eval_args(args)?;
        filters::apply(self, name, subject, args)
    }

    fn eval_test(&mut self, subject: &'t Expr, name: &str, args: &'t Args) -> Outcome<Value> {
        let subject = self.eval(subject)?;
        let args = self.eval_args(args)?;
        checks::check(self, name, &subject, args).map(Value::Bool)
    }

    fn eval_call(&mut self, function: &'t Expr, args: &'t Args) -> Outcome<Value> {
        let function = self.eval(function)?;
        let args = self.eval_args(args)?;
        self.call(&function, args)
    }

    fn name(&self, name: &str) -> Value {
        match self.lookup(name) {
            Some(value) => value.clone(),
            None => global(name).unwrap_or_else(|| Value::undefined(format!("'{name}' is undefined"))),
        }
    }

    fn eval_all(&mut self, items: &'t [Expr]) -> Outcome<Vec<Value>> {
        items.iter().map(|item| self.eval(item)).collect()
    }

    fn eval_dict(&mut self, items: &'t [(Expr, Expr)]) -> Outcome<Value> {
        let mut dict = Dict::new([])?;
        for (key, value) in items {
            let key = self.eval(key)?;
            let value = self.eval(value)?;
            dict.insert(key, value)?;
        }
        Ok(Value::Dict(Rc::new(dict)))
    }

    fn eval_unary(&mut self, operator: Unary, operand: &'t Expr) -> Outcome<Value> {
        let value = self.eval(operand)?;
        if operator == Unary::Not {
            return Ok(Value::Bool(!value.truthy()));
        }
        value.defined()?;
        let minus = operator == Unary::Minus;
        match (&value, value.as_int()) {
            (_, Some(int)) if minus => int.checked_neg().map(Value::Int).ok_or_else(ops::overflow),
            (_, Some(int)) => Ok(Value::Int(int)),
            (Value::Float(float), _) => Ok(Value::Float(if minus { -float } else { *float })),
            _ => Err(Fault::failed(format!("bad operand type for a sign: '{}'", value.type_name()))),
        }
    }

    fn eval_concat(&mut self, parts: &'t [Expr]) -> Outcome<Value> {
        let mut joined = Writer::default();
        for part in parts {
            let value = self.eval(part)?;
            let text = self.text(&value)?;
            self.budget.work(text.weight())?;
            joined.push(&text);
            self.budget.check_output(joined.len())?;
        }
        Ok(joined.finish().into())
    }

    fn eval_compare(&mut self, left: &'t Expr, rest: &'t [(Comparison, Expr)]) -> Outcome<Value> {
        let mut left = self.eval(left)?;
        for (comparison, right) in rest {
            let right = self.eval(right)?;
            if !self.holds(*comparison, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    pub(super) fn holds(&mut self, comparison: Comparison, left: &Value, right: &Value) -> Outcome<bool> {
        let budget = &mut self.budget;
        Ok(match comparison {
            Comparison::Equal => equal(left, right, budget)?,
            Comparison::NotEqual => !equal(left, right, budget)?,
            Comparison::Less => compare(left, right, "<", budget)?.is_some_and(|o| o.is_lt()),
            Comparison::LessOrEqual => compare(left, right, "<=", budget)?.is_some_and(|o| o.is_le()),
            Comparison::Greater => compare(left, right, ">", budget)?.is_some_and(|o| o.is_gt()),
            Comparison::GreaterOrEqual => compare(left, right, ">=", budget)?.is_some_and(|o| o.is_ge()),
            Comparison::In => ops::contains(right, left, budget)?,
            Comparison::NotIn => !ops::contains(right, left, budget)?,
        })
    }

    fn eval_slice(&mut self, subject: &'t Expr, parts: &'t [Option<Box<Expr>>; 3]) -> Outcome<Value> {
        let subject = self.eval(subject)?;
        let mut bounds = [None; 3];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            let Some(part) = part else { continue };
            *bound = match self.eval(part)? {
                Value::None => None,
                value => match value.as_int() {
                    Some(int) => Some(int),
                    None => {
                        value.defined()?;
                        return Err(Fault::failed("slice indices must be integers or None"));
                    }
                },
            };
        }
        ops::slice(&subject, bounds, &mut self.budget)
    }

    pub(super) fn eval_args(&mut self, args: &'t Args) -> Outcome<CallArgs> {
        let mut positional = self.eval_all(&args.positional)?;
        let mut named = Vec::with_capacity(args.named.len());
        for (name, expr) in &args.named {
            named.push((Text::literal(name.clone()), self.eval(expr)?));
        }
        if let Some(list) = &args.list {
            let list = self.eval(list)?;
            positional.extend(list.items(&mut self.budget)?);
        }
        if let Some(dict) = &args.dict {
            let Value::Dict(dict) = self.eval(dict)? else {
                return Err(Fault::failed("the argument after '**' must be a dictionary"));
            };
            for (key, value) in dict.iter() {
                let Value::Str(key) = key else { return Err(Fault::failed("keywords must be strings")) };
                named.push((key.clone(), value.clone()));
            }
        }
        for (at, (name, _)) in named.iter().enumerate() {
            self.budget.items(at)?;
            if named[..at].iter().any(|(other, _)| **other == **name) {
                return Err(Fault::failed(format!("got two values for argument '{name}'")));
            }
        }
        Ok(CallArgs { positional, named })
    }

    /// The call of a call block, which passes the block as `caller`.
    pub(super) fn eval_call_block(&mut self, call: &'t Expr, caller: Value) -> Outcome<Value> {
        let ExprKind::Call(function, args) = &call.kind else {
            return Err(Fault::failed("a call block needs a call"));
        };
        let function = self.eval(function)?;
        let mut args = self.eval_args(args)?;
        args.named.push((Text::literal("caller"), caller));
        self.call(&function, args).map_err(|fault| fault.or_at(call.at))
    }

    /// Filters without a subject, as in `{% filter upper | trim %}`.
    pub(super) fn eval_filter_chain(&mut self, filter: &'t Expr, subject: Value) -> Outcome<Value> {
        let ExprKind::Filter(inner, name, args) = &filter.kind else {
            return Err(Fault::failed("expected a filter"));
        };
        let subject = match inner {
            Some(inner) => self.eval_filter_chain(inner, subject)?,
            None => subject,
        };
        let args = self.eval_args(args)?;
        filters::apply(self, name, subject, args).map_err(|fault| fault.or_at(filter.at))
    }
}
