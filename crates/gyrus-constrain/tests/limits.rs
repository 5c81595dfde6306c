//! Catastrophic input ends in a limit that names itself.

mod common;

use std::time::{Duration, Instant};

use common::compile;
use gyrus_constrain::{Error, Source};

/// Compiles and walks the constraint for a while. The outcome is an error or not; it must come soon.
fn cost(source: Source) -> Result<(), Error> {
    let start = Instant::now();
    let result = compile(source.clone()).and_then(|constraint| {
        let (mut state, mut mask) = (constraint.start(), vec![0; 9]);
        for _ in 0..64 {
            state.mask(&mut mask)?;
            let Some(id) = (0..256).rev().find(|id| mask[id / 32] >> (id % 32) & 1 == 1) else { break };
            state.commit(id as u32)?;
        }
        Ok(())
    });
    let took = start.elapsed();
    println!("{took:?} {:.60} {:.100}", format!("{source:?}"), format!("{result:?}"));
    assert!(took < Duration::from_secs(12), "{took:?} for {:.80}", format!("{source:?}"));
    result
}

fn limit(source: Source) -> &'static str {
    match cost(source.clone()) {
        Err(Error::Limit { limit, .. }) => limit,
        other => panic!("{:.80}: {other:?}", format!("{source:?}")),
    }
}

#[test]
fn large_sources_and_counts_name_their_limit() {
    assert_eq!(limit(Source::Regex("a".repeat(2 << 20))), "source_bytes");
    assert_eq!(limit(Source::Schema(format!("\"{}\"", "a".repeat(2 << 20)))), "source_bytes");
    assert_eq!(limit(Source::Regex(format!("{}a{}", "(".repeat(500), ")".repeat(500)))), "depth");
    assert_eq!(
        limit(Source::Lark(format!("start: {}\"a\"{}", "(".repeat(50_000), ")".repeat(50_000)))),
        "depth"
    );
    let nested = format!("{}true{}", "{\"items\":".repeat(100), "}".repeat(100));
    assert_eq!(limit(Source::Schema(nested)), "depth");
    assert_eq!(limit(Source::Regex("a{100000000}".into())), "repetition");
    assert_eq!(limit(Source::Schema(r#"{"type":"string","maxLength":1e9}"#.into())), "repetition");
    assert_eq!(limit(Source::Schema(r#"{"pattern":"a{20000}"}"#.into())), "repetition");
    // The engine's parser makes all ranges of each class, and sorts those of a class again for each.
    assert_eq!(limit(Source::Regex(r"\w".repeat(400_000))), "compile_work");
    let characters: String = (0..200_000).rev().filter_map(|n| char::from_u32(0x20000 + 2 * n)).collect();
    assert_eq!(limit(Source::Regex(format!("[{characters}]"))), "compile_work");
    assert_eq!(limit(Source::Schema(format!(r#"{{"pattern":"[{characters}]"}}"#))), "compile_work");
    let names: Vec<_> = (0..2000).map(|n| format!("\"p{n}\":{{}}")).collect();
    assert_eq!(limit(Source::Schema(format!("{{\"properties\":{{{}}}}}", names.join(",")))), "properties");
    let many = vec!["{}"; 30_000].join(",");
    assert_eq!(limit(Source::Schema(format!("{{\"anyOf\":[{many}]}}"))), "schemas");
}

#[test]
fn catastrophic_regular_expressions_are_bounded() {
    let catastrophic = [
        "(a*)*b".to_owned(),
        "(a|a|a)*(b|[ab])*c".to_owned(),
        "(.*a){30}.{30}".to_owned(),
        "(?:a{0,9000}){0,9000}".to_owned(),
        "(?:(?:(?:a{0,3000}b?){0,3000}c?){0,3000}d?){0,3000}".to_owned(),
        ".*[ab].{18}".to_owned(),
        format!("({})*x", (0..400).map(|n| format!("a{{{n}}}")).collect::<Vec<_>>().join("|")),
        (0..26).map(|n| format!("{}?", char::from(b'a' + n))).collect::<String>().repeat(40),
        r"(\p{L}|\p{N}|\w|\s){5000}".to_owned(),
    ];
    for regex in catastrophic {
        if let Err(error) = cost(Source::Regex(regex.clone())) {
            assert!(matches!(error, Error::Limit { .. }), "{regex:.60}: {error}");
        }
    }
}

#[test]
fn catastrophic_schemas_are_bounded() {
    let optional: Vec<_> =
        (0..1000).map(|n| format!("\"p{n}\":{{\"type\":\"string\",\"pattern\":\"a*b*c*{n}\"}}")).collect();
    let branches: Vec<_> = (0..12)
        .map(|n| format!(r#"{{"anyOf":[{{"properties":{{"a{n}":{{"const":1}}}}}},{{"properties":{{"b{n}":{{"const":2}}}}}}]}}"#))
        .collect();
    let definitions: Vec<_> = (0..40)
        .map(|n| {
            format!(r##""d{n}":{{"allOf":[{{"$ref":"#/$defs/d{0}"}},{{"$ref":"#/$defs/d{0}"}}]}}"##, n + 1)
        })
        .collect();
    let chain: Vec<_> =
        (0..9000).map(|n| format!(r##""c{n}":{{"items":{{"$ref":"#/$defs/c{}"}}}}"##, n + 1)).collect();
    let patterns: Vec<_> = (0..60).map(|n| format!(r#""^{n}(x|y)*$":{{}}"#)).collect();
    let catastrophic = [
        format!("{{\"properties\":{{{}}}}}", optional.join(",")),
        format!("{{\"allOf\":[{}]}}", branches.join(",")),
        format!("{{\"$ref\":\"#/$defs/d0\",\"$defs\":{{{},\"d40\":{{\"type\":\"string\"}}}}}}", definitions.join(",")),
        format!("{{\"$ref\":\"#/$defs/c0\",\"$defs\":{{{},\"c9000\":{{}}}}}}", chain.join(",")),
        format!("{{\"patternProperties\":{{{}}}}}", patterns.join(",")),
        r#"{"type":"array","items":{"type":"array","items":{"type":"string","maxLength":9000},"maxItems":9000},"maxItems":9000}"#.into(),
        r#"{"type":"string","pattern":"^(a|b)*a(a|b){15}$","minLength":9000}"#.into(),
        r#"{"type":"integer","multipleOf":999983,"minimum":17,"maximum":9000000000000}"#.into(),
        format!("{{\"enum\":[{}]}}", (0..20_000).map(|n| format!("\"value {n}\"")).collect::<Vec<_>>().join(",")),
    ];
    for text in catastrophic {
        if let Err(error) = cost(Source::Schema(text.clone())) {
            assert!(matches!(error, Error::Limit { .. } | Error::Keyword { .. }), "{text:.100}: {error}");
        }
    }
}

/// Each anchor and each reference keeps its address.
#[test]
fn long_addresses_are_refused() {
    let long = "b".repeat(500_000);
    let anchors: Vec<_> = (0..15_000).map(|n| format!(r#""d{n}":{{"$anchor":"a{n}"}}"#)).collect();
    let anchors = anchors.join(",");
    let refused = [
        (format!(r#"{{"$id":"http://x/{long}","$defs":{{{anchors}}}}}"#), "$id"),
        (format!(r#"{{"properties":{{"{long}":{{"$defs":{{{anchors}}}}}}}}}"#), "$anchor"),
        (format!(r##"{{"$ref":"#/$defs/{long}","$defs":{{"{long}":{{}}}}}}"##), "$ref"),
    ];
    for (text, expected) in refused {
        match cost(Source::Schema(text)) {
            Err(Error::Keyword { keyword, reason, .. }) => {
                assert_eq!(keyword, expected);
                assert!(reason.ends_with("more than 4096 bytes"), "{reason}");
            }
            other => panic!("{expected}: {other:?}"),
        }
    }
}

#[test]
fn malformed_regular_expressions_and_grammars_have_a_place() {
    let message = |source| compile(source).unwrap_err().to_string();
    let regex = |text: &str| message(Source::Regex(text.into()));
    assert_eq!(regex("ab(c"), "regex, line 1, column 3: unclosed group");
    assert_eq!(
        regex("é\n[z-a]"),
        "regex, line 2, column 2: invalid character class range, the start must be <= the end"
    );
    assert_eq!(regex(r"a\bc"), "regex, line 1, column 2: a word boundary is not supported");
    assert_eq!(regex("a^b"), "regex, line 1, column 2: an anchor inside the expression is not supported");
    assert_eq!(regex("x\n(a|\\p{Foo})"), "regex, line 2, column 4: Unicode property not found");
    assert_eq!(regex("[\\p{Script=Foo}]"), "regex, line 1, column 2: Unicode property value not found");
    let nested = format!("\n{}a{}", "(".repeat(500), ")".repeat(500));
    assert_eq!(
        regex(&nested),
        "the constraint exceeds the limit `depth` of 64: line 2, column 64 is nested more deeply"
    );
    assert!(compile(Source::Regex("^ab$".into())).is_ok());
    let lark = |text: &str| message(Source::Lark(text.into()));
    assert!(lark("start: a\n%%").starts_with("Lark, line 2, column 2: "), "{}", lark("start: a\n%%"));
    assert!(lark("start: \"a\" missing").contains("missing"), "{}", lark("start: \"a\" missing"));
    assert!(lark("other: \"a\"").contains("no start rule"), "{}", lark("other: \"a\""));
}
