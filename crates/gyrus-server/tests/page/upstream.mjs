// A server between the browser and the real one. It passes everything on, but answers some messages by a script, so that a
// test knows what the model says and when.

import { createServer, request } from "node:http";
import { Recordings } from "./recordings.mjs";

const CHUNK = { id: "chatcmpl-script", object: "chat.completion.chunk", created: 1, model: "script" };

/** Something that a model must not be able to do. */
export const HOSTILE = [
  '<img src="x" onerror="window.harmed = 1"> <script>window.harmed = 2</script> <svg onload="window.harmed = 3">',
  "[a link](javascript:window.harmed=4) and [another](JaVaScRiPt:alert(1)) and <javascript:window.harmed=5>",
  "[data](data:text/html,<script>window.harmed=6</script>) ![image](https://outside.example/pixel.png)",
  "[good](https://example.com/a?b=c) \u001b[31mred\u001b[0m \u0007 `<b>code</b>` **bold**",
  "# <iframe src=javascript:window.harmed=7>",
  "```html\n<script>window.harmed = 8</script>\n```",
  "| <b>a</b> | b |\n|---|---|\n| <img src=x onerror=window.harmed=9> | [x](vbscript:y) |",
].join("\n\n");
export const LONG_LINE = "x".repeat(1 << 20);

export class Upstream {
  #server;
  #real;
  /** The bodies of chat requests. */
  bodies = [];
  /** Requests with recordings. */
  recordings = new Recordings();
  /** How many scripted answers were cut off by the browser. */
  cut = 0;
  /** A key that is asked for, if it is set. */
  key = null;

  constructor(real) {
    this.#real = new URL(real);
    this.#server = createServer((incoming, outgoing) => this.#handle(incoming, outgoing));
  }

  async start() {
    await new Promise((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return `http://127.0.0.1:${this.#server.address().port}`;
  }

  stop() {
    this.#server.closeAllConnections();
    this.#server.close();
  }

  #handle(incoming, outgoing) {
    // As a proxy that serves the page below a prefix.
    incoming.url = incoming.url.replace(/^\/below\//, "/");
    const body = [];
    incoming.on("data", (data) => body.push(data));
    incoming.on("end", () => {
      const isApi = incoming.url.startsWith("/v1/");
      if (this.key && isApi && incoming.headers.authorization !== `Bearer ${this.key}`) {
        outgoing.writeHead(401, { "Content-Type": "application/json" });
        outgoing.end(JSON.stringify({ error: { message: "the API key is wrong" } }));
        return;
      }
      const said = incoming.method === "POST" && incoming.url.startsWith("/v1/audio/")
        && this.recordings.script(incoming, Buffer.concat(body));
      if (said) {
        said(outgoing);
        return;
      }
      const script = incoming.method === "POST" && incoming.url === "/v1/chat/completions" && this.#script(Buffer.concat(body));
      if (script) script(outgoing);
      else this.#pass(incoming, outgoing, Buffer.concat(body));
    });
  }

  #pass(incoming, outgoing, body) {
    const { hostname, port, host } = this.#real;
    const headers = { ...incoming.headers, host };
    // The page is of this server, not of the real one.
    delete headers.origin;
    delete headers.authorization;
    const passed = request({ hostname, port, path: incoming.url, method: incoming.method, headers }, (response) => {
      outgoing.writeHead(response.statusCode, response.headers);
      if (response.headers["content-type"] === "text/event-stream") slowly(response, outgoing);
      else response.pipe(outgoing);
    });
    passed.on("error", () => outgoing.destroy());
    outgoing.on("close", () => passed.destroy());
    passed.end(body);
  }

  /** The script that the last message names, if it names one. */
  #script(body) {
    const asked = JSON.parse(body);
    this.bodies.push(asked);
    const last = asked.messages.at(-1);
    const name = last.role === "tool" ? "result" : /^script: (\w+)/.exec(last.content)?.[1];
    return name && ((outgoing) => this[`_${name}`](outgoing, last));
  }

  #begin(outgoing) {
    outgoing.writeHead(200, { "Content-Type": "text/event-stream" });
    const send = (delta, more = {}) => outgoing.write(
      `data: ${JSON.stringify({ ...CHUNK, choices: [{ index: 0, delta, finish_reason: null }], ...more })}\n\n`);
    const end = (reason = "stop", usage = { prompt_tokens: 10, completion_tokens: 20 }) => {
      outgoing.write(`data: ${JSON.stringify({ ...CHUNK, choices: [{ index: 0, delta: {}, finish_reason: reason }] })}\n\n`);
      outgoing.write(`data: ${JSON.stringify({ ...CHUNK, choices: [], usage })}\n\n`);
      outgoing.end("data: [DONE]\n\n");
    };
    return { send, end };
  }

  _hostile(outgoing) {
    const { send, end } = this.#begin(outgoing);
    send({ reasoning_content: `Let me think. ${HOSTILE}` });
    // In small pieces, so that every unfinished form is shown as well.
    for (let at = 0; at < HOSTILE.length; at += 3) send({ content: HOSTILE.slice(at, at + 3) });
    end();
  }

  async _long(outgoing) {
    const { send, end } = this.#begin(outgoing);
    const piece = 16 << 10;
    for (const before of ["", "\n\n```text\n"]) {
      send({ content: before });
      for (let at = 0; at < LONG_LINE.length; at += piece) {
        send({ content: LONG_LINE.slice(at, at + piece) });
        await new Promise((resolve) => setTimeout(resolve, 2));
      }
    }
    send({ content: "\n```\n\nThe end." });
    end();
  }

  _endless(outgoing) {
    const { send } = this.#begin(outgoing);
    let n = 0;
    const timer = setInterval(() => send({ content: `word${n++} ` }), 10);
    outgoing.on("close", () => {
      clearInterval(timer);
      this.cut++;
    });
  }

  _tool(outgoing) {
    const { send, end } = this.#begin(outgoing);
    const call = { name: "weather", arguments: '{"city": "Oslo", "days": 3}' };
    send({ tool_calls: [{ index: 0, id: "call_1", type: "function", function: call }] });
    end("tool_calls");
  }

  _result(outgoing, { content }) {
    const { send, end } = this.#begin(outgoing);
    send({ content: `The tool said: ${content}` });
    end();
  }

  _broken(outgoing) {
    const { send } = this.#begin(outgoing);
    send({ content: "Half an answ" });
    outgoing.write('data: {"error": {"message": "the device was lost"}}\n\n');
    outgoing.end("data: [DONE]\n\n");
  }

  _full(outgoing) {
    outgoing.writeHead(429, { "Content-Type": "application/json", "Retry-After": "7" });
    outgoing.end(JSON.stringify({ error: { message: "the queue is full" } }));
  }

  async _showcase(outgoing) {
    const { send, end } = this.#begin(outgoing);
    send({ reasoning_content: "The reader wants the idea and an example. A short table will help to compare the steps." });
    for (const word of SHOWCASE.split(/(?<= )/)) {
      send({ content: word });
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
    end("stop", { prompt_tokens: 31, completion_tokens: 214 });
  }
}

/** Passes events on one by one. The test model is so fast that a browser would draw its whole answer at once. */
async function slowly(response, outgoing) {
  let rest = "";
  for await (const data of response.setEncoding("utf8")) {
    const events = (rest + data).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      outgoing.write(`${event}\n\n`);
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
  outgoing.end(rest);
}

const SHOWCASE = `A **hash table** stores pairs of keys and values. A hash function turns each key into the number of a bucket, \
so a look-up takes the same time however many pairs there are.

\`\`\`rust
/// The bucket of a key.
fn bucket(key: &str, buckets: usize) -> usize {
    let mut hash: u64 = 0xcbf29ce484222325;
    for byte in key.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100000001b3);
    }
    hash as usize % buckets
}
\`\`\`

| step | what happens | cost |
|---|---|---:|
| hash | the key becomes a number | O(length) |
| index | the number selects a bucket | O(1) |
| compare | keys of the bucket are compared | O(1) on average |

Two keys may share a bucket. Such *collisions* are resolved in one of two ways:

1. **Chaining**: each bucket holds a list.
2. **Open addressing**: the next free bucket is taken.
`;
