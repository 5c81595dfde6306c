// Markdown within a paragraph: emphasis, code, links. One pass over the text, with a stack of what is open, so that the time
// is linear whatever a model writes.

/** The longest text that is parsed. What is longer is shown as it is. */
export const LONGEST_INLINE = 20_000;
/** The most things that may be open at once. */
const DEEPEST = 16;
const LONGEST_URL = 2048;

const PLAIN = /[^\\`*_~[\]!<\n:]+/y;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const SPACE = /\s/;

/**
 * The nodes of a text: strings, and objects with a `type`: `code` (text), `strong`, `em`, `del` (children),
 * `link` (href, children), `break`.
 */
export function parseInline(text) {
  if (text.length > LONGEST_INLINE) return [text];
  const runs = backtickRuns(text);
  // Each frame is something open: its mark, how much of the mark is left, and what came since.
  const frames = [{ mark: "", count: 0, children: [] }];
  const top = () => frames[frames.length - 1];
  const add = (node) => {
    const children = top().children;
    const last = children.length - 1;
    if (typeof node === "string" && typeof children[last] === "string") children[last] += node;
    else if (node !== "") children.push(node);
  };
  // What was open above a frame is text after all.
  const closeAbove = (at) => {
    while (frames.length - 1 > at) {
      const { mark, count, children } = frames.pop();
      add(mark.repeat(count));
      children.forEach(add);
    }
  };
  const findOpen = (mark) => {
    for (let at = frames.length - 1; at > 0; at--) {
      if (frames[at].mark === mark) return at;
      // Emphasis does not reach out of a link's text.
      if (frames[at].mark.endsWith("[") && mark !== "[" && mark !== "![") return -1;
    }
    return -1;
  };

  let i = 0;
  while (i < text.length) {
    PLAIN.lastIndex = i;
    const plain = PLAIN.exec(text);
    if (plain) {
      add(plain[0]);
      i = PLAIN.lastIndex;
      continue;
    }
    const c = text[i];
    const next = text[i + 1] ?? "";
    if (c === "\\" && next === "\n") {
      add({ type: "break" });
      i += 2;
    } else if (c === "\\" && next.charCodeAt(0) < 128 && PUNCTUATION.test(next)) {
      add(next);
      i += 2;
    } else if (c === "\n") {
      const children = top().children;
      const last = children.length - 1;
      if (typeof children[last] === "string") children[last] = children[last].trimEnd();
      add({ type: "break" });
      for (i++; text[i] === " "; i++);
    } else if (c === "`") {
      const length = runLength(text, i);
      const end = runs.close(i, length);
      if (end < 0) add(text.slice(i, i + length));
      else add({ type: "code", text: codeText(text.slice(i + length, end)) });
      i = end < 0 ? i + length : end + length;
    } else if (c === "*" || c === "_" || c === "~") {
      const length = runLength(text, i);
      emphasis(c, length, text[i - 1] ?? " ", text[i + length] ?? " ");
      i += length;
    } else if (c === "[" || (c === "!" && next === "[")) {
      const mark = c === "[" ? "[" : "![";
      if (frames.length <= DEEPEST) frames.push({ mark, count: 1, children: [] });
      else add(mark);
      i += mark.length;
    } else if (c === "]") {
      i = link(i);
    } else if (c === "<") {
      const found = /^<((?:https?:\/\/|mailto:)[^\s<>]{1,2048})>/.exec(text.slice(i, i + LONGEST_URL + 12));
      const href = found && safeHref(found[1]);
      if (href) add({ type: "link", href, children: [found[1].replace(/^mailto:/, "")] });
      else add("<");
      i += href ? found[0].length : 1;
    } else if (c === ":" && text.startsWith("://", i)) {
      i = bareUrl(i);
    } else {
      add(c);
      i++;
    }
  }
  closeAbove(0);
  return frames[0].children;

  function emphasis(c, length, before, after) {
    const spaceBefore = SPACE.test(before), spaceAfter = SPACE.test(after);
    const markBefore = PUNCTUATION.test(before), markAfter = PUNCTUATION.test(after);
    const left = !spaceAfter && (!markAfter || spaceBefore || markBefore);
    const right = !spaceBefore && (!markBefore || spaceAfter || markAfter);
    const canOpen = c === "_" ? left && (!right || markBefore) : left;
    const canClose = c === "_" ? right && (!left || markAfter) : right;
    let rest = c === "~" && length !== 2 ? 0 : length;
    if (rest === 0) return add(c.repeat(length));
    while (canClose && rest > 0) {
      const at = findOpen(c);
      if (at < 0) break;
      closeAbove(at);
      const frame = frames[at];
      const used = Math.min(frame.count, rest, 2);
      const type = c === "~" ? "del" : used === 2 ? "strong" : "em";
      const node = { type, children: frame.children };
      rest -= used;
      frame.count -= used;
      if (frame.count > 0) {
        frame.children = [node];
      } else {
        frames.pop();
        add(node);
      }
    }
    if (rest === 0) return;
    if (canOpen && frames.length <= DEEPEST) frames.push({ mark: c, count: rest, children: [] });
    else add(c.repeat(rest));
  }

  function link(at) {
    const open = Math.max(findOpen("["), findOpen("!["));
    if (open < 0) {
      add("]");
      return at + 1;
    }
    closeAbove(open);
    const frame = frames.pop();
    const target = text[at + 1] === "(" ? destination(text, at + 2) : null;
    const href = target && safeHref(target.url);
    if (!href) {
      add(frame.mark);
      frame.children.forEach(add);
      add("]");
      return at + 1;
    }
    const children = frame.children.length ? frame.children : [target.url];
    // An image would be a request to somebody else. It is a link to it.
    add({ type: "link", href, children });
    return target.end;
  }

  function bareUrl(at) {
    const children = top().children;
    const last = children.length - 1;
    const before = typeof children[last] === "string" ? children[last] : "";
    const scheme = /(?:^|[^\p{L}\p{N}])(https?)$/u.exec(before.slice(-7))?.[1];
    const rest = scheme && /^:\/\/[^\s<>"`[\]]{1,2048}/.exec(text.slice(at, at + LONGEST_URL + 3))?.[0];
    if (!rest) {
      add(":");
      return at + 1;
    }
    const url = withoutTail(scheme + rest);
    const href = safeHref(url);
    if (!href) {
      add(":");
      return at + 1;
    }
    children[last] = before.slice(0, -scheme.length);
    if (children[last] === "") children.pop();
    add({ type: "link", href, children: [url] });
    return at + url.length - scheme.length;
  }
}

/** The address of a link, if it is one that cannot run anything. */
export function safeHref(url) {
  let parsed;
  try {
    parsed = new URL(url);
  } catch {
    return null;
  }
  return ["http:", "https:", "mailto:"].includes(parsed.protocol) ? parsed.href : null;
}

/** `url "title")` behind the parenthesis of a link. */
function destination(text, at) {
  const limit = Math.min(text.length, at + LONGEST_URL);
  let depth = 0;
  for (let i = at; i < limit; i++) {
    const c = text[i];
    if (c === "(") depth++;
    else if (c === ")" && depth-- === 0) {
      const inside = text.slice(at, i).trim();
      const url = /^<([^<>]*)>$/.exec(inside)?.[1] ?? inside.split(/\s/, 1)[0];
      return { url, end: i + 1 };
    } else if (c === "\n") return null;
  }
  return null;
}

/** A bare address without the punctuation of its sentence. */
function withoutTail(url) {
  let end = url.length;
  for (;;) {
    const c = url[end - 1];
    const closes = c === ")" && count(url.slice(0, end), ")") > count(url.slice(0, end), "(");
    if (!closes && !".,;:!?'*_~".includes(c)) return url.slice(0, end);
    end--;
  }
}

const count = (text, c) => text.split(c).length - 1;

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end++;
  return end - at;
}

/** Where runs of backticks are, by their length. */
function backtickRuns(text) {
  const byLength = new Map();
  for (let i = text.indexOf("`"); i >= 0; i = text.indexOf("`", i)) {
    const length = runLength(text, i);
    if (!byLength.has(length)) byLength.set(length, { starts: [], next: 0 });
    byLength.get(length).starts.push(i);
    i += length;
  }
  return {
    /** The start of the run that closes one, or -1. */
    close(at, length) {
      const runs = byLength.get(length);
      if (!runs) return -1;
      while (runs.starts[runs.next] <= at) runs.next++;
      return runs.starts[runs.next] ?? -1;
    },
  };
}

function codeText(text) {
  const line = text.replace(/\n/g, " ");
  const padded = line.length > 2 && line.startsWith(" ") && line.endsWith(" ") && line.trim() !== "";
  return padded ? line.slice(1, -1) : line;
}
