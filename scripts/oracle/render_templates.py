"""Renders chat templates with Jinja2 in the environment chat templates are written for.

Reads from standard input a JSON object:

    {"now": UNIX_SECONDS,
     "templates": {NAME: SOURCE, ...},
     "inputs": [{"messages": [...], "tools": ..., "documents": ..., "add_generation_prompt": ...,
                 "variables": {...}}, ...]}

or, for cases that pair a template with one input, `"cases": [[NAME, INPUT_INDEX], ...]`; without
"cases" every template renders every input. Writes a JSON array, one entry for each case in order:
{"text": ...} or {"error": CLASS, "message": ...}.

The environment, stated as facts: an immutable sandbox; trim_blocks and lstrip_blocks on; loop
controls; a `generation` block that prints its body; `tojson` is json.dumps without ASCII escapes;
`raise_exception` and `strftime_now` are globals; namespaces refuse attributes that start with an
underscore; a message's reasoning is visible as `thinking` and `reasoning_content`. With
--check-transformers every case is also rendered by the `transformers` package, which must agree.
"""

import copy
import datetime
import json
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote; it has a scope of its own, as a macro has."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("render_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def render_body(self, caller):
        return caller()


class PlainNamespace(jinja2.utils.Namespace):
    """A namespace that keeps no attribute whose name starts with an underscore."""

    def __init__(*args, **kwargs):
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            refuse_underscore(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        refuse_underscore(name)
        super().__setitem__(name, value)


def refuse_underscore(name):
    if isinstance(name, str) and name[:1] == "_":
        raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r}")


def environment(now):
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
    )

    def refuse(message):
        raise jinja2.exceptions.TemplateError(message)

    def dump(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        options = dict(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        return json.dumps(value, **options)

    env.filters["tojson"] = dump
    env.globals["raise_exception"] = refuse
    env.globals["strftime_now"] = now.strftime
    env.globals["namespace"] = PlainNamespace
    return env


def with_reasoning(message):
    for name in ("reasoning_content", "thinking", "reasoning"):
        if message.get(name) is not None:
            reasoning = message[name]
            return {"thinking": reasoning} | message | {"reasoning_content": reasoning}
    return message


def render(template, given):
    given = copy.deepcopy(given)  # a filter can change a list: `indent` adds to it
    return template.render(
        **given.get("variables", {}),
        messages=[with_reasoning(message) for message in given["messages"]],
        tools=given.get("tools"),
        documents=given.get("documents"),
        add_generation_prompt=given.get("add_generation_prompt", False),
    )


def render_by_transformers(source, given, now):
    import transformers.utils.chat_template_utils as reference

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return now

    reference.datetime = Clock
    rendered, _ = reference.render_jinja_template(
        [given["messages"]],
        tools=given.get("tools"),
        documents=given.get("documents"),
        chat_template=source,
        add_generation_prompt=given.get("add_generation_prompt", False),
        **given.get("variables", {}),
    )
    return rendered[0]


def outcome(work):
    try:
        return {"text": work()}
    except Exception as error:  # any exception means that the case cannot be rendered
        return {"error": type(error).__name__, "message": str(error)}


def main():
    check = "--check-transformers" in sys.argv[1:]
    request = json.load(sys.stdin)
    now = datetime.datetime.fromtimestamp(request["now"], datetime.timezone.utc).replace(tzinfo=None)
    env = environment(now)
    sources = request["templates"]
    inputs = request["inputs"]
    compiled = {name: outcome(lambda: env.from_string(source)) for name, source in sources.items()}
    cases = request.get("cases") or [[name, i] for name in sources for i in range(len(inputs))]
    results, disagreements = [], 0
    for name, i in cases:
        template = compiled[name]
        result = template if "error" in template else outcome(lambda: render(template["text"], inputs[i]))
        results.append(result)
        if check:
            other = outcome(lambda: render_by_transformers(sources[name], inputs[i], now))
            if other.get("text") != result.get("text"):
                disagreements += 1
                print(f"{name}, input {i}:\n  here:         {result}\n  transformers: {other}", file=sys.stderr)
    if check:
        print(f"{len(results)} cases, {disagreements} where transformers disagrees", file=sys.stderr)
    json.dump(results, sys.stdout)
    sys.exit(1 if disagreements else 0)


main()
