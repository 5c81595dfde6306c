"""litellm, which speaks to servers under its own prefix. Argument: the base URL."""

import sys

import litellm

MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
ASK = {"model": "openai/tales", "api_base": sys.argv[1] + "/v1", "api_key": "none", "messages": MESSAGES,
       "temperature": 0.9, "seed": 7, "max_tokens": 40}

whole = litellm.completion(**ASK)
assert len(whole.choices[0].message.content) > 20
text = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(stream=True, **ASK))
assert text == whole.choices[0].message.content
try:
    litellm.completion(**{**ASK, "model": "openai/talse"})
    raise AssertionError("it was not refused")
except litellm.NotFoundError as refused:
    assert "tales" in str(refused)
print("ok")
