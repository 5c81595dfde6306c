"""Random JSON schemas with bounded strings, arrays and numbers, and whether texts are instances of them.

random_schemas.py make COUNT SEED   prints one schema to a line
random_schemas.py check FILE        reads lines {"schema": ..., "text": ..., "stop": ...} and prints what is wrong
"""
import json
import random
import sys

WORDS = ["name", "title", "age", "city", "tags", "items", "price", "is_open", "rating", "notes", "kind", "owner"]
VALUES = ["red", "green", "blue", "small", "large", "yes", "no", 1, 2, 30, 4.5, None, True]


def string(rng):
    kinds = [
        {"maxLength": rng.randint(1, 24)},
        {"minLength": 2, "maxLength": rng.randint(3, 12)},
        {"pattern": rng.choice(["^[A-Z][a-z]{1,9}$", "^[0-9]{3}-[0-9]{2}$", "^(on|off)$"])},
        {"format": rng.choice(["date", "time", "ipv4", "uuid"])},
    ]
    return {"type": "string", **rng.choice(kinds)}


def schema(rng, depth):
    kinds = ["string", "string", "integer", "number", "boolean", "enum", "const"]
    if depth > 0:
        kinds += ["object", "object", "array", "array", "anyOf"]
    kind = rng.choice(kinds)
    low = rng.randint(-50, 50)
    if kind == "string":
        return string(rng)
    if kind == "integer":
        return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 2000)}
    if kind == "number":
        # Without a step a number may have any number of digits.
        return {"type": "number", "minimum": low, "maximum": low + rng.randint(1, 2000),
                "multipleOf": rng.choice([0.5, 0.25, 0.125])}
    if kind == "boolean":
        return {"type": rng.choice(["boolean", ["boolean", "null"]])}
    if kind == "enum":
        return {"enum": rng.sample(VALUES, rng.randint(1, 5))}
    if kind == "const":
        return {"const": rng.choice(VALUES)}
    if kind == "array":
        least = rng.randint(0, 2)
        return {"type": "array", "items": schema(rng, depth - 1), "minItems": least,
                "maxItems": least + rng.randint(0, 3)}
    if kind == "anyOf":
        return {"anyOf": [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    return whole(rng, depth)


def whole(rng, depth):
    names = rng.sample(WORDS, rng.randint(1, 5))
    required = [name for name in names if rng.random() < 0.7]
    return {"type": "object", "properties": {name: schema(rng, depth - 1) for name in names},
            "required": required, "additionalProperties": False}


def make(count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        print(json.dumps(whole(rng, rng.randint(1, 3))))


def check(file):
    from jsonschema import Draft202012Validator

    count = 0
    for line in open(file, encoding="utf-8"):
        entry = json.loads(line)
        count += 1
        if entry["stop"] != "end":
            print(f"line {count}: ended by {entry['stop']}: {entry['text'][-200:]!r} of {json.dumps(entry['schema'])}")
            continue
        try:
            value = json.loads(entry["text"])
            Draft202012Validator(entry["schema"], format_checker=Draft202012Validator.FORMAT_CHECKER).validate(value)
        except Exception as error:
            print(f"line {count}: {entry['text']!r}: {str(error).splitlines()[0]}")
    print(f"{count} checked", file=sys.stderr)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(int(sys.argv[2]), int(sys.argv[3]))
    else:
        check(sys.argv[2])
