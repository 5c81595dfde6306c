// An answer that streams into a node of a conversation.

import { chat } from "./api.js";
import { requestFields } from "./settings.js";
import { requestMessages } from "./tree.js";

/**
 * Streams an answer into `node`. `grown` is called after each piece. It returns when the answer has ended, however it ended;
 * only a refusal before any piece that the reader can do something about is thrown.
 */
export async function answer(conversation, node, signal, grown) {
  const body = {
    ...requestFields(conversation.settings),
    messages: requestMessages(conversation, node.parent),
    stream: true,
    stream_options: { include_usage: true },
  };
  const started = performance.now();
  let first = null;
  let pieces = 0;
  try {
    for await (const chunk of chat(body, signal)) {
      if (chunk.model) node.model = chunk.model;
      const choice = chunk.choices[0];
      const { content, reasoning_content: reasoning, tool_calls: calls } = choice?.delta ?? {};
      if (content || reasoning || calls) {
        const now = performance.now();
        first ??= now;
        pieces++;
        // Until the server has counted them, a piece stands for a token.
        const seconds = (now - first) / 1000;
        node.stats = { first: first - started, tokens: pieces, speed: seconds > 0.2 ? (pieces - 1) / seconds : undefined };
      }
      if (content) node.content += content;
      if (reasoning) node.reasoning = (node.reasoning ?? "") + reasoning;
      for (const call of calls ?? []) addCall(node, call);
      if (choice?.finish_reason) node.finish = choice.finish_reason;
      if (chunk.timings) node.stats = { ...node.stats, speed: chunk.timings.predicted_per_second };
      if (chunk.usage) {
        const { prompt_tokens: prompt, completion_tokens: tokens } = chunk.usage;
        node.stats = { ...node.stats, prompt, tokens };
      }
      grown();
    }
    node.state = node.finish === "length" ? "length" : "done";
  } catch (error) {
    if (signal.aborted) {
      node.state = "stopped";
    } else {
      node.state = "failed";
      node.error = error.retryAfter ? `${error.message} (try again in ${error.retryAfter} s)` : error.message;
      if (error.status === 401) throw error;
    }
  }
}

/** Adds a tool call, or a part of one that comes in parts. */
function addCall(node, { index, id, function: { name, arguments: text } = {} }) {
  node.calls ??= [];
  const at = index ?? node.calls.length;
  const call = (node.calls[at] ??= { id: "", name: "", arguments: "" });
  if (id) call.id = id;
  if (name) call.name += name;
  if (text) call.arguments += text;
}
