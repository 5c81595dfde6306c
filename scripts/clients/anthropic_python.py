"""The official client of Anthropic: messages, streams, tools, counts, errors. Argument: the base URL."""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
ASK = {"model": "tales", "max_tokens": 40, "messages": MESSAGES, "extra_body": {"temperature": 0.9, "seed": 7}}

whole = client.messages.create(system="Be kind.", **ASK)
assert whole.type == "message" and whole.content[0].type == "text" and len(whole.content[0].text) > 20
assert whole.stop_reason in ("end_turn", "max_tokens") and whole.usage.output_tokens > 0
with client.messages.stream(system="Be kind.", **ASK) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
assert text == whole.content[0].text == final.content[0].text
assert final.usage.output_tokens == whole.usage.output_tokens
count = client.messages.count_tokens(model="tales", messages=MESSAGES, system="Be kind.")
assert count.input_tokens == final.usage.input_tokens + final.usage.cache_read_input_tokens
tools = [{"name": "weather", "description": "The weather of a city.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Kyoto", "Oslo"]}}, "required": ["city"],
    "additionalProperties": False}}]
called = client.messages.create(
    model="tales", max_tokens=200, messages=MESSAGES, tools=tools, tool_choice={"type": "any", "disable_parallel_tool_use": True})
call = [block for block in called.content if block.type == "tool_use"][0]
assert called.stop_reason == "tool_use" and call.name == "weather" and call.input["city"] in ("Kyoto", "Oslo")
result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}
after = client.messages.create(model="tales", max_tokens=8, tools=tools, tool_choice={"type": "none"},
                               messages=MESSAGES + [{"role": "assistant", "content": called.content}, result])
assert after.content[0].text
try:
    client.messages.create(model="talse", max_tokens=8, messages=MESSAGES)
    raise AssertionError("it was not refused")
except anthropic.NotFoundError as refused:
    assert "tales" in str(refused)
print("ok")
