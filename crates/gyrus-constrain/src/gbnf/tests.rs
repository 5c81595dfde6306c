//! Translations against a recogniser that follows the definition of GBNF.

use std::collections::BTreeSet;

use gyrus_testkit::Rng;

use super::ast::{Expr, Rule};
use super::parser::parse;
use crate::{Constraint, Error, Limits, Piece, Source, Vocabulary};

fn vocabulary() -> Vocabulary {
    let all: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let pieces = all.iter().map(|byte| Piece::Text(byte)).chain([Piece::Control(b"<end>")]);
    Vocabulary::new(pieces, &[256], None, Limits::default()).unwrap()
}

fn accepts(constraint: &Constraint, text: &str) -> bool {
    let mut state = constraint.start();
    text.bytes().all(|byte| state.commit(u32::from(byte)).is_ok()) && state.is_complete()
}

/// Where texts of the expression that begin at `start` can end.
fn ends(expr: &Expr, rules: &[Rule], text: &[char], start: usize) -> BTreeSet<usize> {
    match expr {
        Expr::Class(set) => {
            let matches = text.get(start).is_some_and(|&c| set.intersects(&super::ast::Set::one(c)));
            matches.then_some(start + 1).into_iter().collect()
        }
        Expr::Ref(rule) => ends(&rules[*rule].body, rules, text, start),
        Expr::Seq(parts) => parts.iter().fold([start].into(), |starts: BTreeSet<usize>, part| {
            starts.iter().flat_map(|&start| ends(part, rules, text, start)).collect()
        }),
        Expr::Alt(parts) => parts.iter().flat_map(|part| ends(part, rules, text, start)).collect(),
        Expr::Repeat { body, min, max } => {
            let (mut now, mut all) = (BTreeSet::from([start]), BTreeSet::new());
            for round in 0..=max.unwrap_or(min + text.len() as u32 + 1) {
                if round >= *min {
                    all.extend(&now);
                }
                now = now.iter().flat_map(|&start| ends(body, rules, text, start)).collect();
            }
            all
        }
    }
}

/// A random expression over a, b, c and the rules of an index above `rule`, or any rule behind a character.
fn random(rng: &mut Rng, rule: usize, depth: usize) -> String {
    let leaf = |rng: &mut Rng| {
        rng.pick(&["\"a\"", "\"b\"", "\"ab\"", "[ab]", "[^a]", "\"abc\"", "[a-c]", "\"é\""]).to_string()
    };
    if depth == 0 {
        return leaf(rng);
    }
    let inner = |rng: &mut Rng| random(rng, rule, depth - 1);
    match rng.below(9) {
        0 | 1 => format!("{} {}", inner(rng), inner(rng)),
        2 | 3 => format!("({} | {})", inner(rng), inner(rng)),
        4 => format!(
            "({}){}",
            inner(rng),
            rng.pick(&["*", "+", "?", "{2}", "{1,3}", "{2,}", "?+", "{2}?", "{2}{0,2}"])
        ),
        5 => format!("{} r{}", leaf(rng), rng.below(3)),
        6 if rule < 2 => format!("r{}", rule + 1),
        7 => format!("({} |)", inner(rng)),
        _ => leaf(rng),
    }
}

fn texts(length: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    for at in 0..length {
        let longer: Vec<String> = all
            .iter()
            .filter(|text| text.chars().count() == at)
            .flat_map(|text| ["a", "b", "c", "é"].map(|c| format!("{text}{c}")))
            .collect();
        all.extend(longer);
    }
    all
}

#[test]
fn random_grammars_accept_exactly_their_texts() {
    let (vocabulary, limits, texts) = (vocabulary(), Limits::default(), texts(4));
    let (mut compared, mut recursive, mut accepted) = (0, 0, 0);
    for seed in 0..gyrus_testkit::cases(150) as u64 {
        let mut rng = Rng::new(seed);
        let rules: Vec<String> = (0..3)
            .map(|rule| format!("{} ::= {}", ["root", "r1", "r2"][rule], random(&mut rng, rule, 3)))
            .collect();
        let text = rules.join("\n").replace(" r0", " root");
        let grammar = parse(&text, &limits).unwrap();
        let constraint = match vocabulary.compile(&Source::Gbnf(text.clone())) {
            Ok(constraint) => constraint,
            Err(Error::LeftRecursion { .. } | Error::Unsatisfiable { .. }) => continue,
            Err(error) => panic!("{text}\n{error}"),
        };
        compared += 1;
        recursive +=
            usize::from(text.contains(" root") || text.contains("r2 ::= ") && text.matches("r2").count() > 2);
        for sample in &texts {
            let chars: Vec<char> = sample.chars().collect();
            let expected = ends(&Expr::Ref(0), &grammar.rules, &chars, 0).contains(&chars.len());
            assert_eq!(accepts(&constraint, sample), expected, "{sample:?} in\n{text}");
            accepted += usize::from(expected);
        }
    }
    assert!(
        compared > 80 && recursive > 20 && accepted > 1000,
        "{compared} grammars, {recursive} recursive, {accepted} texts"
    );
}
