//! JSON Schema: what is generated, and what is refused by name.

mod common;

use common::{accepts, compile};
use gyrus_constrain::{Error, Source};

fn schema(text: &str) -> Result<gyrus_constrain::Constraint, Error> {
    compile(Source::Schema(text.into()))
}

#[test]
fn instances_are_accepted_as_the_schema_says() {
    let cases: [(&str, &[&str], &[&str]); 12] = [
        (r#"{"type":"integer","minimum":3,"maximum":12}"#, &["3", "12"], &["2", "13", "3.5", "-4", "03"]),
        (r#"{"enum":["a",1,null,[true]]}"#, &[r#""a""#, "1", "null", "[true]"], &[r#""b""#, "2", "[false]"]),
        (
            r#"{"type":"object","properties":{"a":{"type":"string"},"b":{}},"required":["a"],"additionalProperties":false}"#,
            &[r#"{"a":"x"}"#, r#"{ "a" : "x" , "b":[1] }"#],
            &["{}", r#"{"b":1}"#, r#"{"a":1}"#, r#"{"a":"x","c":1}"#, r#"{"a":"x",}"#, r#"{"a":"x"}}"#],
        ),
        // An escaped name would pass for another property.
        (r#"{"properties":{"a":{"type":"string"}}}"#, &[r#"{"b":1}"#], &[r#"{"a":1}"#, r#"{"\u0061":1}"#]),
        (
            r#"{"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2}"#,
            &["[true]", "[true,false]"],
            &["[]", "[true,true,true]", "[1]"],
        ),
        (r#"{"items":[{"type":"null"}],"additionalItems":false}"#, &["[null]"], &["[null,1]", "[1]"]),
        (
            r#"{"type":"string","pattern":"^a.$"}"#,
            &[r#""ab""#, r#""aé""#],
            &[r#""a""#, r#""abc""#, r#""a\n""#],
        ),
        (
            r#"{"type":"string","minLength":2,"maxLength":3}"#,
            &[r#""éé""#, r#""a\"b""#],
            &[r#""é""#, r#""abcd""#],
        ),
        (r#"{"format":"date"}"#, &[r#""2024-02-29""#, "1"], &[r#""2023-02-29""#, r#""2100-02-29""#]),
        (
            r##"{"$ref":"#/$defs/tree","$defs":{"tree":{"type":"array","items":{"$ref":"#/$defs/tree"}}}}"##,
            &["[]", "[[],[[]]]"],
            &["[1]", "[[]"],
        ),
        (
            r##"{"$id":"http://x/a.json","$ref":"b.json#t","$defs":{"b":{"$id":"b.json","$defs":{"c":{"$anchor":"t","const":1}}}}}"##,
            &["1"],
            &["2"],
        ),
        (
            r#"{"anyOf":[{"type":"null"},{"type":"object","unevaluatedProperties":false,"properties":{"k":{"multipleOf":0.5}}}]}"#,
            &["null", r#"{"k":1.5}"#, "{}"],
            &[r#"{"k":1.2}"#, r#"{"j":1}"#],
        ),
    ];
    for (text, valid, invalid) in cases {
        let constraint = schema(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        for instance in valid {
            assert!(accepts(&constraint, instance), "{text} accepts {instance}");
        }
        for instance in invalid {
            assert!(!accepts(&constraint, instance), "{text} rejects {instance}");
        }
    }
}

#[test]
fn any_json_is_json_without_endless_space() {
    let any = compile(Source::Json).unwrap();
    for text in ["1", "-0.5e+3", r#""a\nb""#, "[]", r#"{"a":[{},null,true]}"#, "[1, 2,\n  3]"] {
        assert!(accepts(&any, text), "{text}");
    }
    for text in
        ["", "01", "+1", "'a'", "[1,]", r#"{"a"}"#, "\"\t\"", "nul", " 1", &format!("[{}]", " ".repeat(50))]
    {
        assert!(!accepts(&any, text), "{text}");
    }
    let object = compile(Source::JsonObject).unwrap();
    assert!(accepts(&object, r#"{"a":1}"#) && !accepts(&object, "[1]"));
}

#[test]
fn keywords_that_cannot_be_enforced_are_named_with_their_place() {
    let cases = [
        (r#"{"not":{"type":"null"}}"#, "not", "#"),
        (r#"{"properties":{"a/b":{"if":true,"then":false}}}"#, "if", "#/properties/a~1b"),
        (r#"{"items":{"uniqueItems":true}}"#, "uniqueItems", "#/items"),
        (r#"{"contains":{}}"#, "contains", "#"),
        (r#"{"propertyNames":{"maxLength":1}}"#, "propertyNames", "#"),
        (r#"{"allOf":[{"dependentRequired":{"a":["b"]}}]}"#, "dependentRequired", "#/allOf/0"),
        (r#"{"allOf":[{}],"unevaluatedProperties":false}"#, "unevaluatedProperties", "#"),
        (r##"{"$dynamicRef":"#a"}"##, "$dynamicRef", "#"),
        (r#"{"$ref":"http://elsewhere/schema"}"#, "$ref", "#"),
        (r##"{"$ref":"#/nowhere"}"##, "$ref", "#"),
        (r#"{"$schema":"http://elsewhere/meta"}"#, "$schema", "#"),
        (r#"{"x-guidance":{"lenient":true}}"#, "x-guidance", "#"),
        (r#"{"pattern":"(?=a)"}"#, "pattern", "#"),
        (r#"{"patternProperties":{"\\bx":{}}}"#, "patternProperties", "#"),
        (r#"{"items":{"pattern":"a("}}"#, "pattern", "#/items"),
        (r#"{"pattern":"\\p{Foo}"}"#, "pattern", "#"),
        (r#"{"patternProperties":{"a)":{}}}"#, "patternProperties", "#"),
        (r#"{"format":"idn-email"}"#, "format", "#"),
        (r#"{"const":"a\u0000"}"#, "const", "#"),
        (r#"{"maximum":18446744073709551615}"#, "maximum", "#"),
        (r#"{"minProperties":2}"#, "minProperties", "#"),
        (r#"{"oneOf":[{"minimum":1},{"maximum":2}]}"#, "oneOf", "the schema"),
        (r#"{"patternProperties":{"a":{},"b":{}}}"#, "patternProperties", "the schema"),
    ];
    for (text, expected, at) in cases {
        match schema(text) {
            Err(Error::Keyword { keyword, place, .. }) => {
                assert_eq!((&*keyword, &*place), (expected, at), "{text}")
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn malformed_schemas_are_errors_with_a_place() {
    let message = |text: &str| schema(text).unwrap_err().to_string();
    assert_eq!(message("{\n \"type\": }"), "JSON schema, line 2, column 10: expected value");
    assert_eq!(
        message(r#"{"type":"text"}"#),
        r##"JSON schema keyword "type" at # must be a type or an array of types"##
    );
    let place =
        r##"JSON schema keyword "minItems" at #/items (line 2, column 11) must be a non-negative integer"##;
    assert_eq!(message("{\n \"items\":{\"minItems\":-1}}"), place);
    let refused = r##"JSON schema keyword "not" at #/anyOf/1 (line 3, column 4) is not supported: list what is allowed instead"##;
    assert_eq!(message("{\"anyOf\":[\n{\"title\":\"not\"},\n  {\"not\":{}}]}"), refused);
    assert_eq!(
        message("{\"items\":\n7}"),
        r##"JSON schema keyword "items" at #/items (line 2, column 1) must be a schema: an object or boolean"##
    );
    assert_eq!(message("false"), "no text satisfies the JSON schema: it is false");
    assert_eq!(message(r##"{"$ref":"#"}"##), "no text satisfies the JSON schema: no token can come first");
    assert!(matches!(schema("[]"), Err(Error::Invalid { .. })));
}

#[test]
fn keywords_that_ask_nothing_and_annotations_are_ignored() {
    let text = r#"{"title":"t","uniqueItems":false,"if":{"type":"null"},"minContains":3,"x-mine":1,"format":"my-own",
        "propertyNames":true,"$comment":"c","default":5,"deprecated":true,"type":"integer"}"#;
    assert!(accepts(&schema(text).unwrap(), "7"));
}

/// White space is what printers of JSON write, and there is an end to it.
#[test]
fn white_space_is_bounded() {
    let constraint = compile(Source::Json).unwrap();
    for text in ["{\"a\": [1, 2]}", "{\n  \"a\": [\n\t\t1,\r\n\t\t2\n  ]\n}", "[1,2]"] {
        assert!(accepts(&constraint, text), "{text:?}");
    }
    for text in ["[  1]", "[\n\n1]", "[\n \t1]", &format!("[\n{}1]", " ".repeat(33))] {
        assert!(!accepts(&constraint, text), "{text:?}");
    }
}

#[test]
fn dates_are_days_of_the_calendar() {
    let constraint = schema(r#"{"type":"string","format":"date"}"#).unwrap();
    for date in ["2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31", "0400-02-29"] {
        assert!(accepts(&constraint, &format!("\"{date}\"")), "{date}");
    }
    for date in ["2023-02-29", "1900-02-29", "0000-01-23", "0000-02-29", "2024-04-31", "2024-13-01"] {
        assert!(!accepts(&constraint, &format!("\"{date}\"")), "{date}");
    }
}
