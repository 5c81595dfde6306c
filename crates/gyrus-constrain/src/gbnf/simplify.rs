//! Grammars without rules that never end, and with loops instead of tail recursion.

use super::LANGUAGE;
use super::ast::{Expr, Rule, fixpoint};
use super::parser::Grammar;
use crate::Error;
use crate::work::Work;

/// Removes alternatives that have no finite text, so that a mask never leads into one, and writes rules that end in
/// themselves as repetitions: the engine's state would grow with each round.
pub(super) fn simplify(grammar: Grammar, work: &Work<'_>) -> Result<Vec<Rule>, Error> {
    let productive = fixpoint(&grammar.rules, work, false, is_productive)?;
    if !productive[0] {
        let reason = "rule \"root\" has no finite text".to_owned();
        return Err(Error::Unsatisfiable { language: LANGUAGE, reason });
    }
    let rules = grammar.rules.into_iter().enumerate();
    Ok(rules
        .map(|(index, rule)| {
            let body = pruned(rule.body, &productive);
            Rule { body: unrolled(body, index), ..rule }
        })
        .collect())
}

fn is_productive(expr: &Expr, rules: &[bool]) -> bool {
    match expr {
        Expr::Class(_) => true,
        Expr::Ref(rule) => rules[*rule],
        Expr::Seq(parts) => parts.iter().all(|part| is_productive(part, rules)),
        Expr::Alt(parts) => parts.iter().any(|part| is_productive(part, rules)),
        Expr::Repeat { body, min, .. } => *min == 0 || is_productive(body, rules),
    }
}

/// The expression without unproductive parts. Rules that are unproductive themselves become the empty choice.
fn pruned(expr: Expr, rules: &[bool]) -> Expr {
    if !is_productive(&expr, rules) {
        return Expr::Alt(Vec::new());
    }
    match expr {
        Expr::Class(_) | Expr::Ref(_) => expr,
        Expr::Seq(parts) => Expr::Seq(parts.into_iter().map(|part| pruned(part, rules)).collect()),
        Expr::Alt(parts) => {
            let kept = parts.into_iter().filter(|part| is_productive(part, rules));
            Expr::Alt(kept.map(|part| pruned(part, rules)).collect())
        }
        Expr::Repeat { max: Some(0), .. } => Expr::EMPTY,
        Expr::Repeat { body, .. } if !is_productive(&body, rules) => Expr::EMPTY,
        Expr::Repeat { body, min, max } => Expr::repeat(pruned(*body, rules), min, max),
    }
}

/// `a ::= x a | y` as `x* y`, if no other use of the rule is inside.
fn unrolled(body: Expr, rule: usize) -> Expr {
    let alternatives = match body {
        Expr::Alt(parts) => parts,
        other => vec![other],
    };
    let is_tail = |expr: &Expr| match expr {
        Expr::Seq(parts) => match parts.split_last() {
            Some((last, rest)) => *last == Expr::Ref(rule) && !rest.iter().any(|part| uses(part, rule)),
            None => false,
        },
        _ => false,
    };
    let tails = alternatives.iter().filter(|expr| is_tail(expr)).count();
    let others = alternatives.iter().filter(|expr| !uses(expr, rule)).count();
    if tails == 0 || tails + others < alternatives.len() {
        return if alternatives.len() == 1 {
            alternatives.into_iter().collect::<Vec<_>>().remove(0)
        } else {
            Expr::Alt(alternatives)
        };
    }
    let (tails, ends): (Vec<_>, Vec<_>) = alternatives.into_iter().partition(is_tail);
    let tails = tails.into_iter().map(|expr| match expr {
        Expr::Seq(mut parts) => {
            parts.pop();
            Expr::Seq(parts)
        }
        other => other,
    });
    Expr::Seq(vec![Expr::repeat(Expr::Alt(tails.collect()), 0, None), Expr::Alt(ends)])
}

fn uses(expr: &Expr, rule: usize) -> bool {
    *expr == Expr::Ref(rule) || expr.children().iter().any(|part| uses(part, rule))
}
