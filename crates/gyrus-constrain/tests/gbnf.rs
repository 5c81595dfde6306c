//! GBNF: the language, its errors, and the sample grammars.

mod common;

use common::{accepts, compile};
use gyrus_constrain::{Error, Source};

fn gbnf(text: &str) -> Result<gyrus_constrain::Constraint, Error> {
    compile(Source::Gbnf(text.into()))
}

fn check(grammar: &str, valid: &[&str], invalid: &[&str]) {
    let constraint = gbnf(grammar).unwrap_or_else(|error| panic!("{grammar}\n{error}"));
    for text in valid {
        assert!(accepts(&constraint, text), "accepts {text:?}:\n{grammar}");
    }
    for text in invalid {
        assert!(!accepts(&constraint, text), "rejects {text:?}:\n{grammar}");
    }
}

#[test]
fn every_element_has_its_meaning() {
    check(r#"root ::= "a" ("b" | "c")? [0-9]+"#, &["a1", "ab22", "ac3"], &["a", "abc1", "abx"]);
    check(
        r#"root ::= "x"{2} "y"{1,2} "z"{0,1} "w"{2,}"#,
        &["xxyww", "xxyyzwww"],
        &["xyww", "xxyyyww", "xxyw"],
    );
    check(r#"root ::= "ab"{2,4}"#, &["abab", "abababab"], &["ab", "ababababab", "aba"]);
    check(r#"root ::= [^a-c"] . "\"" "#, &["dx\"", "é\n\""], &["ax\"", "\"x\"", "d\""]);
    check("root ::= \"\\x41\\u00e9\\U0001F600\\t\\n\\r\\\\\\\"\"", &["Aé😀\t\n\r\\\""], &["A"]);
    check(r"root ::= [\x41-\x43\u00e9\]\[\\-]", &["A", "C", "é", "]", "[", "\\", "-"], &["D", "e"]);
    check(
        "root ::= a # comment\n# another\n\na ::= # here\n \"x\" |\n  \"y\" b\nb ::= (\n \"1\" # in a group\n | \"2\"\n)\n",
        &["x", "y1", "y2"],
        &["y", "x1"],
    );
    check("root ::= (\"a\" |) \"b\" | ", &["ab", "b", ""], &["a"]);
    check("root ::= rule-1 rule_2\nrule-1 ::= \"1\"\nrule_2 ::= \"2\"", &["12"], &["1"]);
    check("root ::= \"a\"*\"b\"", &["b", "aab"], &["a"]);
    check("root ::= ((\"a\"?)*)+", &["", "aaa"], &["b"]);
    check("root ::= \"\"", &[""], &["a"]);
    check("root ::= [ぁ-ゟ]+ \"。\"", &["あい。"], &["。", "ア。"]);
}

#[test]
fn texts_that_only_characters_can_tell_apart_are_kept() {
    // The longest match of `[a-z]*` would swallow the last letter.
    check(
        "root ::= \"(\" root \")\" | w\nw ::= [a-z]* \"x\"",
        &["x", "ax", "xxx", "(x)", "((axx))"],
        &["a", "(a)", "(x"],
    );
    // `ab` must not hide `a` followed by `b c`.
    check(
        "root ::= \"[\" root \"]\" | \"a\" bc | \"ab\" \"d\"\nbc ::= \"b\" \"c\"",
        &["abc", "abd", "[abc]"],
        &["ab", "abcd"],
    );
    check("root ::= s\ns ::= \"a\" s \"b\" | \"\"", &["", "ab", "aaabbb"], &["a", "aab", "ba"]);
    check("root ::= \"a\" root \"a\" | \"a\"", &["a", "aaa", "aaaaa"], &["", "aa", "aaaa"]);
    // Characters that share their first byte.
    check("root ::= \"(\" root \")\" | \"é\"* \"è\"", &["è", "ééè", "(éè)"], &["é", "(é)"]);
    check("root ::= item | item \",\" root\nitem ::= [0-9]+", &["1", "1,22,3"], &["1,", ",1"]);
}

#[test]
fn errors_have_a_line_and_a_column() {
    let cases = [
        ("", "GBNF, line 1, column 1: there is no rule \"root\""),
        ("root ::= \"a", "GBNF, line 1, column 10: the literal has no end"),
        ("root ::= [a", "GBNF, line 1, column 10: the class has no end"),
        ("root ::= []", "GBNF, line 1, column 10: the class has no character"),
        ("root ::= [b-a]", "GBNF, line 1, column 11: the range 'b'-'a' is in descending order"),
        ("root ::= (\"a\"", "GBNF, line 1, column 10: the group has no end"),
        (
            "root ::= \"a\" )",
            "GBNF, line 1, column 14: expected an element or the end of the line, found ')'",
        ),
        ("root = \"a\"", "GBNF, line 1, column 6: expected \"::=\", found '='"),
        ("root ::= \"a\"\n  b ::= c\n", "GBNF, line 2, column 9: rule \"c\" is not defined"),
        ("root ::= \"é\" \"\\q\"", "GBNF, line 1, column 15: unknown escape \\q"),
        (
            "root ::= \"\\ud800\"",
            "GBNF, line 1, column 11: the escape needs 4 hexadecimal digits of a character",
        ),
        ("root ::= \"a\"{3,2}", "GBNF, line 1, column 13: the repetition 3 to 2 is empty"),
        ("root ::= \"a\"{x}", "GBNF, line 1, column 14: expected a number, \",\" or \"}\", found 'x'"),
        ("root ::= \"a\"{}", "GBNF, line 1, column 13: the repetition has no number"),
        ("root ::= \"a\"\nroot ::= \"b\"", "GBNF, line 2, column 1: rule \"root\" is defined twice"),
        ("root ::= <[12]>", "GBNF, line 1, column 10: expected an element or the end of the line, found '<'"),
        ("root ::= *", "GBNF, line 1, column 10: expected an element or the end of the line, found '*'"),
        ("root ::= root \"a\"", "GBNF, line 1, column 1: rule \"root\" is left-recursive: root → root"),
        (
            "root ::= \"x\" a\na ::= b? c\nb ::= \"b\"\nc ::= (a | \"c\")",
            "GBNF, line 2, column 1: rule \"a\" is left-recursive: a → c → a",
        ),
        ("root ::= \"a\" root", "no text satisfies the GBNF: rule \"root\" has no finite text"),
        (
            "root ::= \"a\"{99999}",
            "the constraint exceeds the limit `repetition` of 10000: a count of the grammar is 99999",
        ),
    ];
    for (grammar, expected) in cases {
        assert_eq!(gbnf(grammar).unwrap_err().to_string(), expected, "{grammar}");
    }
}

#[test]
fn masks_never_lead_into_a_rule_without_end() {
    let constraint =
        gbnf("root ::= \"a\" | \"b\" endless | (\"c\" endless)* \"d\"\nendless ::= \"x\" endless").unwrap();
    let (mut state, mut mask) = (constraint.start(), [0; 9]);
    state.mask(&mut mask).unwrap();
    let allowed: Vec<char> = (0..256u32)
        .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
        .filter_map(char::from_u32)
        .collect();
    assert_eq!(allowed, ['a', 'd']);
}

#[test]
fn large_grammars_are_bounded() {
    let nested = format!("root ::= {}\"a\"{}", "(".repeat(500), ")".repeat(500));
    assert!(matches!(gbnf(&nested), Err(Error::Limit { limit: "depth", .. })));
    let many: String = (0..5000).map(|n| format!("r{n} ::= \"a\"\n")).collect();
    assert!(matches!(gbnf(&format!("root ::= r1\n{many}")), Err(Error::Limit { limit: "rules", .. })));
    // Each rule doubles the one before.
    let doubled: String = (0..200).map(|n| format!("r{n} ::= r{} r{0}\n", n + 1)).collect();
    let start = std::time::Instant::now();
    let constraint = gbnf(&format!("root ::= r0\n{doubled}r200 ::= \"a\" | \"b\"?"));
    assert!(start.elapsed().as_secs() < 10, "{:?}", constraint.map(drop));
    let chain: String = (0..3000).map(|n| format!("r{n} ::= \"a\" r{}\n", n + 1)).collect();
    let start = std::time::Instant::now();
    let constraint = gbnf(&format!("root ::= r0 root | \"z\"\n{chain}r3000 ::= \"a\" root"));
    assert!(start.elapsed().as_secs() < 10, "{:?}", constraint.map(drop));
}

#[test]
fn sample_grammars_accept_and_reject() {
    let samples: [(&str, &[&str], &[&str]); 8] = [
        (
            "arithmetic.gbnf",
            &["1+2=3\n", "x*(a_1 -2 )/7 =y\n1=1\n"],
            &["1+2", "1+=3\n", "(1=2\n", "=1\n", "1- 2=3\n"],
        ),
        (
            "c.gbnf",
            &["int main(){return 1;}", "int f(int x){x = 1+2;while(x<10){g (x, 2);}//c\n/* d */}", ""],
            &["int main(){", "main(){}", "int f(){x=1;}", "int f(){returnx;}"],
        ),
        (
            "chess.gbnf",
            &["1. e4 e5\n2. Nf3 Nc6\n", "1. d4 O-O\n12. exd8=Q+ O-O-O#\n"],
            &["1. e4 e5\n", "1. e9 e5\n2. a3 a4\n"],
        ),
        ("english.gbnf", &["Hello world", "It's 5!"], &["", "Hello  world", "naïve"]),
        ("japanese.gbnf", &["これは日本", "カタカナ ひらがな"], &["abc", "これは "]),
        (
            "json.gbnf",
            &["{}", "{\"a\":1}", "{\"a\": [true, null, \"x\\n\\u00e9\"],\n \"b\": {\"c\": -1.5e+3}}", "{ }"],
            &[
                "[]",
                "{\"a\":}",
                "{\"a\":1,}",
                "{a:1}",
                "{\"a\":\"\n\"}",
                "{\"a\":01}",
                "{",
                "{\"a\":\"\\x\"}",
            ],
        ),
        ("json_arr.gbnf", &["[\n]", "[\n1,\n{\"a\": [2]}]"], &["[]", "{}", "[\n1,2]", "[\n1] "]),
        (
            "list.gbnf",
            &["- one\n", "- one\n- zwei drei\n"],
            &["one\n", "- \n", "- one", "- one\n- a\u{2028}b\n"],
        ),
    ];
    let Some(folder) = gyrus_testkit::data("grammars") else { return };
    for (file, valid, invalid) in samples {
        check(&std::fs::read_to_string(folder.join(file)).unwrap(), valid, invalid);
    }
}
