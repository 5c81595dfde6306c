// The official client of OpenAI for JavaScript. Argument: the base URL.
import assert from "node:assert";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me a story about a fox." }];
const ask = { model: "tales", messages, temperature: 0.9, seed: 7, max_tokens: 40 };

const whole = await client.chat.completions.create(ask);
const expected = whole.choices[0].message.content;
assert(expected.length > 20 && whole.usage.completion_tokens > 0);
let text = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.strictEqual(text, expected);

const parameters = { type: "object", properties: { city: { type: "string", enum: ["Kyoto", "Oslo"] } },
  required: ["city"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "weather", description: "The weather of a city.", parameters } }];
const called = await client.chat.completions.create({ model: "tales", messages, tools, tool_choice: "required",
  parallel_tool_calls: false });
assert(["Kyoto", "Oslo"].includes(JSON.parse(called.choices[0].message.tool_calls[0].function.arguments).city));
const response_format = { type: "json_schema", json_schema: { name: "city", strict: true, schema: parameters } };
const parsed = await client.chat.completions.parse({ model: "tales", messages, response_format });
assert(["Kyoto", "Oslo"].includes(JSON.parse(parsed.choices[0].message.content).city));
const response = await client.responses.create({ model: "tales", input: messages[0].content, temperature: 0.9, seed: 7,
  max_output_tokens: 40 });
assert.strictEqual(response.output_text, expected);
let streamed = "";
for await (const event of await client.responses.create({ model: "tales", input: messages[0].content, temperature: 0.9,
  seed: 7, max_output_tokens: 40, stream: true })) {
  if (event.type === "response.output_text.delta") streamed += event.delta;
}
assert.strictEqual(streamed, expected);
await assert.rejects(() => client.embeddings.create({ model: "tales", input: "x" }), OpenAI.BadRequestError);
await assert.rejects(() => client.chat.completions.create({ ...ask, model: "talse" }), OpenAI.NotFoundError);
console.log("ok");
