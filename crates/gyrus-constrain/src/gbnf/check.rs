//! Left recursion.

use super::LANGUAGE;
use super::ast::{Expr, Rule, fixpoint};
use super::parser::Grammar;
use crate::Error;
use crate::work::Work;

/// Refuses rules that can begin with themselves.
pub(super) fn check(grammar: &Grammar, text: &str, work: &Work<'_>) -> Result<(), Error> {
    let rules = &grammar.rules;
    let nullable = fixpoint(rules, work, false, |body, known| body.is_nullable(known))?;
    let leading: Vec<Vec<usize>> = rules
        .iter()
        .map(|rule| {
            let mut found = Vec::new();
            leading(&rule.body, &nullable, &mut found);
            found
        })
        .collect();
    // A depth-first search with its own stack: a chain of rules may be as long as the text.
    let mut done = vec![false; rules.len()];
    for start in 0..rules.len() {
        let mut path: Vec<(usize, usize)> = vec![(start, 0)];
        let mut on_path = vec![false; rules.len()];
        on_path[start] = true;
        while let Some((rule, next)) = path.last_mut() {
            match leading[*rule].get(*next) {
                _ if done[*rule] => {
                    on_path[*rule] = false;
                    path.pop();
                }
                Some(&to) if on_path[to] => {
                    let cycle = path.iter().map(|(rule, _)| *rule).skip_while(|&rule| rule != to).collect();
                    return Err(recursion(rules, cycle, text));
                }
                Some(&to) => {
                    *next += 1;
                    on_path[to] = true;
                    path.push((to, 0));
                }
                None => {
                    done[*rule] = true;
                }
            }
        }
    }
    Ok(())
}

/// The rules that an expression can begin with.
fn leading(expr: &Expr, nullable: &[bool], found: &mut Vec<usize>) {
    match expr {
        Expr::Class(_) => {}
        Expr::Ref(rule) => found.push(*rule),
        Expr::Seq(parts) => {
            for part in parts {
                leading(part, nullable, found);
                if !part.is_nullable(nullable) {
                    break;
                }
            }
        }
        Expr::Alt(parts) => parts.iter().for_each(|part| leading(part, nullable, found)),
        Expr::Repeat { body, .. } => leading(body, nullable, found),
    }
}

fn recursion(rules: &[Rule], cycle: Vec<usize>, text: &str) -> Error {
    let first = &rules[cycle[0]];
    let names: Vec<&str> = cycle.iter().chain(&cycle[..1]).map(|&rule| rules[rule].name.as_str()).collect();
    match Error::syntax(LANGUAGE, text, first.offset, "") {
        Error::Syntax { line, column, .. } => {
            Error::LeftRecursion { line, column, rule: first.name.clone(), path: names.join(" → ") }
        }
        other => other,
    }
}
