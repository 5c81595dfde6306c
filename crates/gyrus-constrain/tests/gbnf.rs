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
    check("root ::= \"a\"?? \"b\"+? \"c\"{2}{2}", &["cccc", "abbcccc"], &["aacccc", "ccc"]);
    check("root ::= \"a\"{2}{1,2} \"b\"{3}? \"c\"{2,}{0}", &["aa", "aaaabbb"], &["aaa", "aab", "aacc"]);
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
    assert_eq!(
        gbnf(&nested).unwrap_err().to_string(),
        "the constraint exceeds the limit `depth` of 64: line 1, column 75 is nested more deeply"
    );
    // Operators behind operators are one, or nested.
    for operators in ["?", "?*+", "{0,1}{0,}"] {
        let stacked = format!("root ::= \"a\"{}", operators.repeat(1_000_000 / operators.len()));
        let constraint = gbnf(&stacked).unwrap_or_else(|error| panic!("{operators}: {error}"));
        assert!(accepts(&constraint, "a") && !accepts(&constraint, "b"), "{operators}");
    }
    let gaps = format!("root ::= \"a\"{}", "{2}?".repeat(1000));
    assert!(matches!(gbnf(&gaps), Err(Error::Limit { limit: "depth", .. })));
    let both = format!("root ::= {}\"a\"{}", "(\"b\" ".repeat(40), "){2}?".repeat(40));
    assert!(matches!(gbnf(&both), Err(Error::Limit { limit: "depth", .. })));
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

/// Grammars that are deeper than the engine's parsers of regular expressions and Lark take.
#[test]
fn deep_grammars_are_written_as_several_rules() {
    // A regular expression of a hundred optional parts inside one another.
    let chain: String = (0..100).map(|n| format!("r{n} ::= \"a\" r{}?\n", n + 1)).collect();
    let (most, more) = ("a".repeat(100) + "z", "a".repeat(101));
    check(&format!("root ::= r0\n{chain}r100 ::= \"z\""), &["a", "aaa", &most], &["", "z", "az", &more]);
    // Groups around a recursive part: each is two in Lark.
    for groups in [11, 12, 13, 25, 60] {
        let grammar = format!(
            "root ::= {}\"(\" root \")\"{} \"y\" | \"z\"",
            "(\"a\" | \"b\" ".repeat(groups),
            ")?".repeat(groups)
        );
        let inner = format!("{}(z)y", "b".repeat(groups));
        let twice = format!("{}({inner})y", "b".repeat(groups));
        let missing = format!("{}(z)y", "b".repeat(groups - 1));
        check(&grammar, &["z", "y", "ay", "by", "bay", &inner, &twice], &["", "a", "zy", &missing, "(z)y"]);
    }
}

/// What the engine recurses over is bounded, in GBNF and in Lark.
#[test]
fn long_chains_of_groups_and_rules_name_their_limit() {
    let is_chain = |result: Result<_, Error>| match result {
        Err(Error::Limit { limit, .. }) => assert_eq!(limit, "chain"),
        other => panic!("{:?}", other.map(|_: gyrus_constrain::Constraint| ())),
    };
    let rule = |n: usize| {
        let (open, close) = ("(\"a\" | \"b\" ".repeat(10), ")?".repeat(10));
        format!("r{n} ::= {open}\"x\" r{}{close}\n", n + 1)
    };
    let chain: String = (0..1500).map(rule).collect();
    is_chain(gbnf(&format!("root ::= r0\n{chain}r1500 ::= \"z\" root")));
    for (name, start) in [("r", "r0"), ("R", "R0")] {
        for (rules, groups) in [(15_000, 0), (30_000, 0), (550, 27), (1_200, 27)] {
            let (open, close) = ("(".repeat(groups), ")".repeat(groups));
            let lines: String =
                (0..rules).map(|n| format!("{name}{n}: {open}\"x\" {name}{}{close}\n", n + 1)).collect();
            let result = compile(Source::Lark(format!("start: {start}\n{lines}{name}{rules}: \"z\"")));
            if rules * (groups + 1) < 16_000 {
                assert!(result.is_ok(), "{rules} rules of {groups} groups");
            } else {
                is_chain(result);
            }
        }
    }
    let error = compile(Source::Lark("start: ".to_owned() + &"(".repeat(40) + "\"a\"" + &")".repeat(40)));
    let message = error.unwrap_err().to_string();
    assert!(message.starts_with("the constraint exceeds the limit `depth` of 64: 1("), "{message}");
}

/// Passes over a grammar whose time would grow faster than its text.
#[test]
fn costly_grammars_end_soon() {
    let characters: String = (0..10_000).filter_map(|n| char::from_u32(0x4e00 + 2 * n)).collect();
    let grammars = [
        // Classes of many ranges, many times: they are compared with one another.
        format!("root ::= \"(\" root \")\" | {}\nr ::= [{characters}]", "r ".repeat(1000)),
        // Repetitions of nothing, which are copied.
        format!("root ::= \"(\" root \")\" | {}\"\"{} \"x\"", "(".repeat(20), "){24}".repeat(20)),
        format!(
            "root ::= \"(\" root \")\" | {}n{} \"x\"\nn ::= \"\" \"\"",
            "(".repeat(20),
            " n){24}".repeat(20)
        ),
        // Lexemes that do not meet, all compared.
        format!(
            "root ::= {} | \"z\"",
            (0..20_000)
                .map(|n| format!("[{0}] root \"{0}\"", char::from_u32(0x4e00 + n).unwrap()))
                .collect::<Vec<_>>()
                .join(" | ")
        ),
        // More symbols than the engine can number.
        format!("root ::= {} root | \"z\"", "\"ab\" [c-e]? ".repeat(25_000)),
    ];
    let many: String = (0..100_000).filter_map(|n| char::from_u32(0x20000 + 2 * n)).collect();
    assert_eq!(
        gbnf(&format!("root ::=\n[{many}]")).unwrap_err().to_string(),
        "the constraint exceeds the limit `compile_work` of 2000000: the class at line 2, column 1 has 100000 ranges"
    );
    for grammar in grammars {
        let start = std::time::Instant::now();
        match gbnf(&grammar).map(drop) {
            Ok(()) => {}
            Err(Error::Limit { limit, .. }) => assert_ne!(limit, "compile_time", "{grammar:.100}"),
            Err(error) => panic!("{grammar:.100}: {error}"),
        }
        println!("{:?} {grammar:.60}", start.elapsed());
    }
}

/// A grammar, or the file of one, with texts that it accepts and rejects.
type Case = (&'static str, &'static [&'static str], &'static [&'static str]);

const SAMPLES: [Case; 8] = [
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
        &["[]", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{\"a\":\"\n\"}", "{\"a\":01}", "{", "{\"a\":\"\\x\"}"],
    ),
    ("json_arr.gbnf", &["[\n]", "[\n1,\n{\"a\": [2]}]"], &["[]", "{}", "[\n1,2]", "[\n1] "]),
    ("list.gbnf", &["- one\n", "- one\n- zwei drei\n"], &["one\n", "- \n", "- one", "- one\n- a\u{2028}b\n"]),
];

/// Small grammars, one for each part of the language.
const CASES: [Case; 22] = [
    ("root ::= \"cat\" | \"car\" | \"dog\"", &["cat", "car", "dog"], &["ca", "cats", "do", "", "cardog"]),
    (
        "root ::= pair (\",\" pair)*\npair ::= [a-z] \"=\" [0-9]",
        &["a=1", "a=1,b=2"],
        &["a=", "a=1,", "a=12", "A=1"],
    ),
    ("root ::= [^0-9\\n]+", &["abc", "é ü", "-"], &["", "a1", "a\n"]),
    ("root ::= \"a\"? \"b\"* \"c\"+", &["c", "ac", "bbc", "abcc"], &["", "ab", "aac", "cb"]),
    ("root ::= \"ab\"{3}", &["ababab"], &["abab", "abababab", "aba"]),
    ("root ::= [xyz]{2,4}", &["xy", "xyz", "zzzz"], &["x", "xxxxx", "xa"]),
    ("root ::= \"n\"{2,} \"!\"", &["nn!", "nnnnn!"], &["n!", "nn", "!"]),
    ("root ::= \"q\"{0,2} \".\"", &[".", "q.", "qq."], &["qqq.", "q"]),
    ("root ::= (\"x\" | \"y\" \"z\"){2}", &["xx", "xyz", "yzx", "yzyz"], &["x", "yz", "xxx", "yy"]),
    ("root ::= \"(\" root \")\" | \"o\"", &["o", "(o)", "(((o)))"], &["(", "(o", "()", "o)"]),
    (
        "root ::= sum\nsum ::= term (\"+\" term)*\nterm ::= [0-9] | \"(\" sum \")\"",
        &["1", "1+2", "(1+2)+3"],
        &["+", "1+", "(1", "12"],
    ),
    ("root ::= \"\\t\\n\\\\\\\"\"", &["\t\n\\\""], &["t", "\t\n", "\t\n\\"]),
    ("root ::= [\\x30-\\x39\\u00e9]+", &["0", "9é", "éé"], &["a", "e", ""]),
    ("root ::= . . \"!\"", &["ab!", "日本!", "\n\n!"], &["a!", "abc!", "!"]),
    ("root ::= [a\\]b-]+", &["a", "]", "b-", "a]b-"], &["c", "[", ""]),
    ("root ::= \"yes\" \"\" | \"no\"", &["yes", "no"], &["y", "yesno", ""]),
    (
        "# a comment\nroot ::= a | # behind\n  b\na ::= \"1\" # one\n\nb ::= \"2\"",
        &["1", "2"],
        &["12", "3", "#"],
    ),
    ("root ::= (\n  \"a\"\n  | \"b\"\n) \"c\"", &["ac", "bc"], &["a", "abc", "c"]),
    (
        "root ::= word (\" \" word){0,2}\nword ::= [a-z]{1,5}",
        &["a", "one two", "a b c"],
        &["a b c d", "longer", " a", "a "],
    ),
    (
        "root ::= date\ndate ::= [0-9]{4} \"-\" (\"0\" [1-9] | \"1\" [0-2])",
        &["2024-01", "1999-12"],
        &["2024-13", "2024-00", "24-01"],
    ),
    ("root ::= \"a\" (\"b\" (\"c\" | \"d\")?)?", &["a", "ab", "abc", "abd"], &["ac", "abcd", "b"]),
    (r"root ::= [\U0001F600-\U0001F64F]+", &["😀", "😀🙏"], &["a", "🚀", ""]),
];

#[test]
fn sample_grammars_accept_and_reject() {
    let Some(folder) = gyrus_testkit::data("grammars") else { return };
    for (file, valid, invalid) in SAMPLES {
        check(&std::fs::read_to_string(folder.join(file)).unwrap(), valid, invalid);
    }
}

#[test]
fn small_grammars_accept_and_reject() {
    for (grammar, valid, invalid) in CASES {
        check(grammar, valid, invalid);
    }
}

/// llama.cpp accepts and rejects the same texts.
#[test]
fn grammars_mean_what_they_mean_to_llama_cpp() {
    let Some(model) = gyrus_testkit::model("SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    let mut cases: Vec<(String, &[&str], &[&str])> =
        CASES.iter().map(|(grammar, valid, invalid)| ((*grammar).to_owned(), *valid, *invalid)).collect();
    if let Some(folder) = gyrus_testkit::data("grammars") {
        for (file, valid, invalid) in SAMPLES {
            cases.push((std::fs::read_to_string(folder.join(file)).unwrap(), valid, invalid));
        }
    }
    let list: Vec<serde_json::Value> = cases
        .iter()
        .map(|(grammar, valid, invalid)| {
            let texts = [*valid, *invalid].concat();
            serde_json::json!({ "grammar": grammar, "texts": texts })
        })
        .collect();
    let mut file = gyrus_testkit::tempfile::NamedTempFile::new().unwrap();
    serde_json::to_writer(&mut file, &list).unwrap();
    let Some(found) = gyrus_testkit::oracle("gbnf.py", &[model.as_os_str(), file.path().as_os_str()]) else {
        return;
    };
    for ((grammar, valid, invalid), line) in cases.iter().zip(found.lines()) {
        let expected = "1".repeat(valid.len()) + &"0".repeat(invalid.len());
        assert_eq!(line, expected, "{grammar}\n{valid:?} {invalid:?}");
    }
    assert_eq!(found.lines().count(), cases.len());
}
