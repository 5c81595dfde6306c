"""The official client of Ollama: chats, generation, schemas, lists, errors. Argument: the base URL."""

import json
import sys

import ollama

client = ollama.Client(host=sys.argv[1])
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
OPTIONS = {"temperature": 0.9, "seed": 7, "num_predict": 40}

assert "tales" in [model.model for model in client.list().models]
whole = client.chat(model="tales", messages=MESSAGES, options=OPTIONS)
assert whole.done and len(whole.message.content) > 20 and whole.eval_count > 0
text = "".join(part.message.content for part in client.chat(model="tales", messages=MESSAGES, options=OPTIONS, stream=True))
assert text == whole.message.content
generated = client.generate(model="tales", prompt=MESSAGES[0]["content"], options=OPTIONS)
assert generated.response == whole.message.content
schema = {"type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]}}, "required": ["name"], "additionalProperties": False}
found = json.loads(client.chat(model="tales", messages=MESSAGES, format=schema).message.content)
assert found["name"] in ("Ann", "Bob")
assert client.ps().models[0].model == "tales"
assert client.show("tales").modelinfo
try:
    client.chat(model="talse", messages=MESSAGES)
    raise AssertionError("it was not refused")
except ollama.ResponseError as refused:
    assert refused.status_code == 404 and "tales" in refused.error
try:
    client.embed(model="tales", input="x")
    raise AssertionError("it was not refused")
except ollama.ResponseError as refused:
    assert refused.status_code == 400
print("ok")
