//! Templates that exceed limits, and the positions and messages of errors.

use std::time::{Duration, Instant};

use gyrus_text::template::{ChatTemplate, Conversation, Inputs, Limit, TemplateError};
use serde_json::json;

fn render(source: &str) -> Result<String, TemplateError> {
    let conversation = Conversation::new(vec![json!({"role": "user", "content": "hi"})]).unwrap();
    ChatTemplate::new(source)?.render(&Inputs::new(&conversation))
}

/// Renders on a thread with a small stack, to show that the depth limit suffices.
fn hits(source: &str, limit: Limit) {
    let owned = source.to_string();
    let start = Instant::now();
    let thread = std::thread::Builder::new().stack_size(1536 << 10).spawn(move || render(&owned)).unwrap();
    match thread.join().expect("no panic") {
        Err(TemplateError::Limit { limit: found, .. }) => assert_eq!(found, limit, "{source}"),
        other => panic!("{:?} from {source}", other.map(|text| text.len())),
    }
    assert!(start.elapsed() < Duration::from_secs(30), "took {:?}: {source}", start.elapsed());
}

#[test]
fn endless_work_runs_out_of_fuel() {
    let big = "{% set r = range(100000) %}{% for a in r %}{% for b in r %}";
    hits(&format!("{big}{{% endfor %}}{{% endfor %}}"), Limit::Fuel);
    hits("{% set x = range(100000) | list %}{% for a in x %}{{ x == x }}{% endfor %}", Limit::Fuel);
    hits(
        "{% set x = 'ab' * 30000000 %}{% for a in range(1000) %}{% set y = x.replace('a', 'b') %}{% endfor %}",
        Limit::Fuel,
    );
    hits(
        "{% set x = 'ab' * 30000000 %}{% for a in range(100000) %}{% if x == x ~ '' %}{% endif %}{% endfor %}",
        Limit::Fuel,
    );
    hits(
        "{% set n = namespace(x=[1]) %}{% for a in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        Limit::Fuel,
    );
    hits("{{ [1] * 10 ** 18 }}", Limit::Fuel);
    hits("{{ range(100000) | batch(10 ** 15, 0) | list }}", Limit::Fuel);
    hits("{{ xs | slice(10 ** 15) | list }}", Limit::Fuel);
}

#[test]
fn tracking_the_origins_of_text_costs_fuel() {
    let content = "messages[0].content[0]";
    hits(
        &format!(
            "{{% set n = namespace(x='') %}}{{% for a in range(99999) %}}{{% set n.x = n.x ~ 'a' ~ {content} %}}{{% endfor %}}"
        ),
        Limit::Fuel,
    );
    hits(
        &format!(
            "{{% set n = namespace(x='a' ~ {content}) %}}{{% for a in range(99) %}}{{% set n.x = n.x ~ n.x %}}{{% endfor %}}"
        ),
        Limit::Fuel,
    );
    hits(
        &format!("{{% for a in range(99999) %}}{{{{ ('a' ~ {content}) * 9999 }}}}{{% endfor %}}"),
        Limit::Fuel,
    );
}

#[test]
fn endless_text_is_rejected_before_it_is_created() {
    hits(
        "{% set n = namespace(x='a') %}{% for a in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        Limit::Output,
    );
    hits(
        "{% set n = namespace(x='a') %}{% for a in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        Limit::Output,
    );
    hits("{% for a in range(90000) %}{{ 'a' * 1000 }}{% endfor %}", Limit::Output);
    hits("{{ 'a' * 10 ** 8 }}", Limit::Output);
    hits("{{ '%100000000d' % 1 }}", Limit::Output);
    hits("{{ '{:100000000}'.format(1) }}", Limit::Output);
    hits("{{ 'a'.ljust(100000000) }}", Limit::Output);
    hits("{{ [1] | tojson(indent=100000000) }}", Limit::Output);
    hits("{{ ('a' * 10000).replace('a', 'b' * 10000) }}", Limit::Output);
    hits("{{ ('\\t' * 10000).expandtabs(100000) }}", Limit::Output);
    hits("{{ ('a' * 50000) | map('string') | join('b' * 50000) }}", Limit::Output);
    hits(
        "{% set n = namespace(x=['a' * 1000]) %}{% for a in range(17) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        Limit::Output,
    );
}

#[test]
fn endless_depth_is_rejected_within_a_small_stack() {
    hits("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", Limit::Depth);
    hits("{% macro f(x=f()) %}{% endmacro %}{{ f() }}", Limit::Depth);
    let body = "{% for i in [1] %}{% if true %}{% set y = f()|trim %}{% endif %}{% endfor %}";
    hits(&format!("{{% macro f() %}}{body}{{% endmacro %}}{{{{ f() }}}}"), Limit::Depth);
    let body =
        "{% filter trim %}{% set y %}{% with %}{{ f() }}{% endwith %}{% endset %}{{ y }}{% endfilter %}";
    hits(&format!("{{% macro f() %}}{body}{{% endmacro %}}{{{{ f() }}}}"), Limit::Depth);
    hits(
        "{% macro g() %}{{ caller() }}{% endmacro %}{% macro f() %}{% call g() %}{{ f() }}{% endcall %}{% endmacro %}{{ f() }}",
        Limit::Depth,
    );
    hits("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", Limit::Depth);
    hits(
        "{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}",
        Limit::Depth,
    );
    hits("{% set n = namespace() %}{% set n.x = n %}{{ n }}", Limit::Depth);
    for (open, close) in
        [("(", ")"), ("[", "]"), ("{1: ", "}"), ("f(", ")"), ("x[", "]"), ("1 if ", " else 1")]
    {
        hits(&format!("{{{{ {}1{} }}}}", open.repeat(5000), close.repeat(5000)), Limit::Depth);
    }
    for part in ["+1", ".x", "|abs", " and 1", " ** 1", " < 1 == 1 and 1", "()", "[0]", " if 1"] {
        hits(&format!("{{{{ 1{} }}}}", part.repeat(5000)), Limit::Depth);
    }
    hits(&format!("{{{{ {}1 }}}}", "not ".repeat(5000)), Limit::Depth);
    hits(&format!("{{{{ {}1 }}}}", "-".repeat(5000)), Limit::Depth);
    hits(&"{% if 1 %}".repeat(5000), Limit::Depth);
    hits(&format!("{{% set {}x{} = 1 %}}", "(".repeat(5000), ")".repeat(5000)), Limit::Depth);
}

#[test]
fn a_long_namespace_chain_is_dropped_without_overflow() {
    let chain =
        "{% set n = namespace() %}{% for i in range(50000) %}{% set n.x = namespace(x=n.x) %}{% endfor %}ok";
    assert_eq!(render(chain).unwrap(), "ok");
}

#[test]
fn long_flat_templates_render() {
    assert_eq!(render(&"{% if 0 %}a{% elif 1 %}b{% endif %}".repeat(5000)).unwrap().len(), 5000);
    let elifs = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}x".repeat(5000));
    assert_eq!(render(&elifs).unwrap(), "");
    assert_eq!(render(&format!("{{{{ 'a'{} }}}}", " ~ 'b'".repeat(5000))).unwrap().len(), 5001);
    assert!(matches!(render(&" ".repeat(5 << 20)), Err(TemplateError::Limit { limit: Limit::Source, .. })));
}

#[test]
fn errors_have_a_message_and_a_position() {
    let at = |source: &str| match render(source).unwrap_err() {
        TemplateError::Syntax { at, message } => ("syntax", at.line, at.column, message),
        TemplateError::Raised { at, message } => ("raised", at.line, at.column, message),
        TemplateError::Render { at, message } => ("render", at.line, at.column, message),
        other => panic!("{other}"),
    };
    let case = |source: &str, kind: &str, line: u32, column: u32, message: &str| {
        assert_eq!(at(source), (kind, line, column, message.to_string()), "{source}");
    };
    case("a\n{{ 1 + }}", "syntax", 2, 8, "found '}}', expected an expression");
    case(
        "{% if x %}\n\n",
        "syntax",
        2,
        1,
        "found the end of the template, expected '{% elif %}' or '{% else %}' or '{% endif %}'",
    );
    case("é {{ 'x }}", "syntax", 1, 6, "this string has no closing quote");
    case("{% frob %}", "syntax", 1, 4, "unknown statement 'frob'");
    case("x\r\n  {{ raise_exception('No ' ~ messages[0].role) }}", "raised", 2, 6, "No user");
    case("{{ 1 +\n nope.x }}", "render", 2, 6, "'nope' is undefined");
    case("{{ messages[0].nope.x }}", "render", 1, 20, "'dict object' has no attribute 'nope'");
    case("{{ 'a' + 1 }}", "render", 1, 4, "unsupported operand type(s) for +: 'str' and 'int'");
    case("{{ 'a' | frob }}", "render", 1, 10, "there is no filter named 'frob'");
    let error = render("{{ raise_exception('Roles must alternate') }}").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the chat template refuses this conversation (line 1, column 4): Roles must alternate"
    );
}

#[test]
fn errors_in_conversations_name_the_index() {
    let error = |text: &str| Conversation::from_json(text).unwrap_err().to_string();
    assert_eq!(
        error("[{\"role\": \"user\"},\n {\"role\" 1}]"),
        "conversation JSON, line 2, column 10: expected `:`"
    );
    assert_eq!(error("[{\"role\": \"a\"}, 3]"), "conversation, messages[1]: is a number, expected an object");
    assert_eq!(error("[{\"content\": \"a\"}]"), "conversation, messages[0]: has no \"role\"");
    assert_eq!(error("[{\"role\": 1}]"), "conversation, messages[0].role: is a number, expected a string");
    assert_eq!(
        error("{\"messages\": [{\"role\": \"a\", \"content\": [{}, 1]}]}"),
        "conversation, messages[0].content[1]: is a number, expected an object or a string"
    );
    assert_eq!(
        error("{\"messages\": [], \"tools\": [1]}"),
        "conversation, tools[0]: is a number, expected an object"
    );
    assert_eq!(error("{}"), "conversation, the top level: has no \"messages\"");
    assert_eq!(error("7"), "conversation, the top level: is a number, expected an array of messages");
}
