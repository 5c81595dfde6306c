"""The official client of OpenAI: chats, streams, tools, schemas, responses, errors. Argument: the base URL."""

import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
SAMPLING = {"temperature": 0.9, "seed": 7, "max_tokens": 40}


class Person(BaseModel):
    name: Literal["Ann", "Bob"]
    happy: bool


assert "tales" in [model.id for model in client.models.list()]
whole = client.chat.completions.create(model="tales", messages=MESSAGES, n=2, **SAMPLING)
assert len(whole.choices) == 2 and whole.choices[0].message.content != whole.choices[1].message.content
assert whole.usage.completion_tokens > 2 and whole.usage.total_tokens > whole.usage.prompt_tokens > 0

stream = client.chat.completions.create(
    model="tales", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, logprobs=True,
    top_logprobs=2, **SAMPLING)
text, tokens, usage = "", 0, None
for chunk in stream:
    if chunk.choices:
        text += chunk.choices[0].delta.content or ""
        if chunk.choices[0].logprobs:
            tokens += len(chunk.choices[0].logprobs.content)
            assert all(len(one.top_logprobs) == 2 for one in chunk.choices[0].logprobs.content)
    usage = chunk.usage or usage
assert text == whole.choices[0].message.content, (text, whole.choices[0].message.content)
assert tokens == usage.completion_tokens, (tokens, usage)

parsed = client.chat.completions.parse(model="tales", messages=MESSAGES, response_format=Person, temperature=0.9, seed=1)
assert isinstance(parsed.choices[0].message.parsed, Person), parsed

tools = [{"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Kyoto", "Oslo"]}}, "required": ["city"],
    "additionalProperties": False}}}]
called = client.chat.completions.create(
    model="tales", messages=MESSAGES, tools=tools, tool_choice="required", parallel_tool_calls=False, seed=1)
call = called.choices[0].message.tool_calls[0]
assert called.choices[0].finish_reason == "tool_calls" and call.function.name == "weather"
assert json.loads(call.function.arguments)["city"] in ("Kyoto", "Oslo")
conversation = MESSAGES + [called.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
after = client.chat.completions.create(model="tales", messages=conversation, tools=tools, tool_choice="none", max_tokens=8)
assert after.choices[0].message.content

completion = client.completions.create(model="tales", prompt="Once upon a time", max_tokens=12, temperature=0)
assert len(completion.choices[0].text) > 10
assert completion.choices[0].text == client.completions.create(
    model="tales", prompt=["Once upon a time"], max_tokens=12, temperature=0).choices[0].text

response = client.responses.create(
    model="tales", input="Tell me a story about a fox.", max_output_tokens=40, temperature=0.9, extra_body={"seed": 7})
assert response.output_text == whole.choices[0].message.content
assert response.usage.output_tokens > 0
ask = {"model": "tales", "input": "Hello", "extra_body": {"seed": 7, "regex": "[a-z]{2,9}( [a-z]{2,9}){3}"}}
response = client.responses.create(**ask)
with client.responses.stream(**ask) as events:
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == events.get_final_response().output_text == response.output_text
assert response.status == "completed" and deltas.count(" ") == 3
tool = {"type": "function", **tools[0]["function"], "strict": True}
response = client.responses.create(model="tales", input="Weather?", tools=[tool], tool_choice="required",
                                   parallel_tool_calls=False)
assert json.loads([one for one in response.output if one.type == "function_call"][0].arguments)["city"]

for error, call in [
    (openai.BadRequestError, lambda: client.embeddings.create(model="tales", input="x")),
    (openai.NotFoundError, lambda: client.chat.completions.create(model="talse", messages=MESSAGES)),
    (openai.BadRequestError, lambda: client.chat.completions.create(
        model="tales", messages=MESSAGES, logit_bias={"99999999": 1})),
]:
    try:
        call()
        raise AssertionError("it was not refused")
    except error as refused:
        assert refused.body["message"], refused
print("ok")
