// Requests with recordings. A file that names a script is answered by it; others go to the real server.

/** The longest segment of the hostile transcript. */
export const LONG_SEGMENT = "y".repeat(300_000);

export class Recordings {
  /** What was asked: path, authorization and the fields of the form, with the bytes of the file. */
  asked = [];
  /** How many endless transcripts were cut off by the browser. */
  cut = 0;
  /** What the hostile transcript says, a segment each. */
  hostile = [];

  /** What answers, if the file names it. */
  script(incoming, body) {
    const fields = fieldsOf(incoming.headers["content-type"], body);
    this.asked.push({ path: incoming.url, authorization: incoming.headers.authorization, fields });
    const name = /^script: (\w+)/.exec(fields.file?.toString("latin1") ?? "")?.[1];
    return name && ((outgoing) => this[`_${name}`](outgoing));
  }

  #begin(outgoing) {
    outgoing.writeHead(200, { "Content-Type": "text/event-stream" });
    const send = (event) => outgoing.write(`data: ${JSON.stringify(event)}\n\n`);
    let at = 0;
    const say = (delta) => send({ type: "transcript.text.delta", delta, start: at, end: at += 1.25, duration: 3700 });
    return { send, say };
  }

  _hostile(outgoing) {
    const { send, say } = this.#begin(outgoing);
    this.hostile.forEach(say);
    send({ type: "transcript.text.done", text: this.hostile.join(""), language: "<b>", duration: 3700 });
    outgoing.end();
  }

  _endless(outgoing) {
    const { say } = this.#begin(outgoing);
    let n = 0;
    const timer = setInterval(() => say(` word${n++}`), 20);
    outgoing.on("close", () => {
      clearInterval(timer);
      this.cut++;
    });
  }

  _broken(outgoing) {
    const { send, say } = this.#begin(outgoing);
    say(" Half a sent");
    send({ type: "error", error: { message: "the device <i>was</i> lost" } });
    outgoing.end();
  }

  _cut(outgoing) {
    this.#begin(outgoing).say(" And then");
    outgoing.end();
  }

  _silent(outgoing) {
    this.#begin(outgoing).send({ type: "transcript.text.done", text: "", language: "en", duration: 2 });
    outgoing.end();
  }
}

/** The fields of a form. */
function fieldsOf(type, body) {
  const boundary = /boundary=(.+)$/.exec(type)?.[1];
  const fields = {};
  // Every byte is a character of Latin-1.
  for (const part of body.toString("latin1").split(`--${boundary}`).slice(1, -1)) {
    const at = part.indexOf("\r\n\r\n");
    const name = /name="([^"]*)"/.exec(part.slice(0, at))[1];
    const content = part.slice(at + 4, -2);
    fields[name] = name === "file" ? Buffer.from(content, "latin1") : content;
  }
  return fields;
}
