"""langchain-openai: messages, streams, structured output, tools. Argument: the base URL."""

import sys
from typing import Literal

from langchain_openai import ChatOpenAI
from pydantic import BaseModel

model = ChatOpenAI(model="tales", base_url=sys.argv[1] + "/v1", api_key="none", temperature=0.9, seed=7, max_tokens=40,
                   max_retries=0)


class Person(BaseModel):
    """A person."""

    # Without this the schema allows any further field, and a small model would go on for ever.
    model_config = {"extra": "forbid"}

    name: Literal["Ann", "Bob"]
    happy: bool


whole = model.invoke("Tell me a story about a fox.")
assert len(whole.content) > 20 and whole.usage_metadata["output_tokens"] > 0
text = "".join(chunk.content for chunk in model.stream("Tell me a story about a fox."))
assert text == whole.content
unlimited = ChatOpenAI(model="tales", base_url=sys.argv[1] + "/v1", api_key="none", temperature=0.9, seed=7)
for method in ["json_schema", "function_calling"]:
    person = unlimited.with_structured_output(Person, method=method).invoke("Who is it?")
    assert isinstance(person, Person), (method, person)
print("ok")
