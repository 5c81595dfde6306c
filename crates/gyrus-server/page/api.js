// Requests to the server that the page came from. Paths are relative, so that it may stand behind a prefix of a proxy.

import { local } from "./store.js";

/** A request that the server refused, or that did not reach it. */
export class ApiError extends Error {
  constructor(message, { status = 0, retryAfter = null } = {}) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The API key of this browser, if the server wants one. */
export const key = {
  get: () => local.get("key", ""),
  set: (value) => local.set("key", value),
};

async function request(path, options = {}) {
  // The browser names the type of a form, with its boundary.
  const headers = { ...(typeof options.body === "string" ? { "Content-Type": "application/json" } : {}) };
  if (key.get() !== "") headers.Authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = `The server answered with status ${response.status}.`;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // A proxy answered, not the server.
  }
  throw new ApiError(message, { status: response.status, retryAfter: response.headers.get("retry-after") });
}

export const getJson = async (path, signal) => (await request(path, { signal })).json();

/** The models of the server, and the most bytes of a request's body. */
export async function models() {
  const { data, max_body: most } = await getJson("v1/models");
  return { models: data, most };
}

/** The events of a chat completion: each the JSON of a chunk. */
export const chat = (body, signal) => events("v1/chat/completions", JSON.stringify(body), signal);

/** The events of a transcript: segments, and what is known at the end. `task` is `transcribe` or `translate`. */
export async function* transcribe(form, task, signal) {
  const path = task === "translate" ? "v1/audio/translations" : "v1/audio/transcriptions";
  for await (const event of events(path, form, signal)) {
    yield event;
    if (event.type === "transcript.text.done") return;
  }
}

async function* events(path, body, signal) {
  const response = await request(path, { method: "POST", body, signal });
  for await (const data of serverSentEvents(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(event.error.message);
    yield event;
  }
  throw new ApiError("The connection ended before the answer did.");
}

/** The data of server-sent events. */
async function* serverSentEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      // Only what came now can hold the end of a line.
      let from = rest.length;
      rest += value;
      for (let end; (end = rest.indexOf("\n", from)) >= 0; from = 0) {
        const line = rest.slice(0, end).replace(/\r$/, "");
        rest = rest.slice(end + 1);
        if (line.startsWith("data:")) yield line.slice(5).trimStart();
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
