// The Markdown parser without a browser: what it finds, that growing text gives the same as whole text, and that its time
// does not explode.

import assert from "node:assert";
import { test } from "node:test";

const page = new URL("../../page/", import.meta.url);
const { parseInline, safeHref } = await import(new URL("inline.js", page));
const { GrowingBlocks, parseBlocks } = await import(new URL("blocks.js", page));

/** Inline nodes as a short text. */
const short = (nodes) => nodes.map((node) => {
  if (typeof node === "string") return node;
  if (node.type === "break") return "⏎";
  if (node.type === "code") return `⟨${node.text}⟩`;
  if (node.type === "link") return `{${node.href}|${short(node.children)}}`;
  return `${node.type}(${short(node.children)})`;
}).join("");

/** Blocks as a short text. */
const outline = (blocks) => blocks.map((block) => {
  switch (block.type) {
    case "list": return `${block.ordered ? `ol${block.first}` : "ul"}[${block.items.map(outline).join("|")}]`;
    case "quote": return `quote[${outline(block.children)}]`;
    case "code": return `code:${block.language}(${block.text})`;
    case "heading": return `h${block.level}(${block.text})`;
    case "table": return `table(${block.align};${block.head};${block.rows.join("/")})`;
    case "rule": return "hr";
    default: return `p(${block.text})`;
  }
}).join(" ");

test("inline", () => {
  for (const [text, expected] of [
    ["a **b** *c* _d_ ~~e~~ `f`", "a strong(b) em(c) em(d) del(e) ⟨f⟩"],
    ["***a***", "em(strong(a))"],
    ["**a *b* c**", "strong(a em(b) c)"],
    ["snake_case_name 2*3*4 a * b", "snake_case_name 2em(3)4 a * b"],
    ["**open", "**open"],
    ["*a **b*", "*a *em(b)"],
    ["`` a ` b ``", "⟨a ` b⟩"],
    ["`open", "`open"],
    ["\\*a\\* \\` \\x", "*a* ` \\x"],
    ["a\nb  \nc", "a⏎b⏎c"],
    ["[a *b*](https://x.example/y)", "{https://x.example/y|a em(b)}"],
    ["[a](https://x.example/(b)) c", "{https://x.example/(b)|a} c"],
    ['[a](https://x.example "title")', "{https://x.example/|a}"],
    ["![a](https://x.example/i.png)", "{https://x.example/i.png|a}"],
    ["[a](javascript:alert(1)) [b] [c](d)", "[a](javascript:alert(1)) [b] [c](d)"],
    ["see https://x.example/a_b_c. And (http://y.example)!", "see {https://x.example/a_b_c|https://x.example/a_b_c}. And ({http://y.example/|http://y.example})!"],
    ["<https://x.example> <b> <javascript:x>", "{https://x.example/|https://x.example} <b> <javascript:x>"],
    ["*[a*](https://x.example)", "*{https://x.example/|a*}"],
    ["time: 10:30, xhttp://a", "time: 10:30, xhttp://a"],
  ]) assert.strictEqual(short(parseInline(text)), expected, text);
});

test("addresses that can run something are not links", () => {
  for (const url of ["javascript:x", " javascript:x", "java\nscript:x", "JAVASCRIPT:x", "data:text/html,x", "vbscript:x", "file:///etc",
    "blob:https://x", "//x.example", "x", ""]) {
    assert.strictEqual(safeHref(url), null, url);
  }
  assert.strictEqual(safeHref("mailto:a@b.example"), "mailto:a@b.example");
});

const DOCUMENTS = [
  ["# Head #\ntext\nmore\n\nnext", "h1(Head) p(text\nmore) p(next)"],
  ["- a\n- b\n  - c\n    - d\n- e", "ul[p(a)|p(b) ul[p(c) ul[p(d)]]|p(e)]"],
  ["1. a\n   more\n2. b\n\n   second\n\n   ```js\n   x\n   ```\n3. c", "ol1[p(a\nmore)|p(b) p(second) code:js(x)|p(c)]"],
  ["3) a\n4) b", "ol3[p(a)|p(b)]"],
  ["* a\nlazy\n\nafter", "ul[p(a\nlazy)] p(after)"],
  ["> a\n> - b\nlazy\n\n> c", "quote[p(a) ul[p(b\nlazy)]] quote[p(c)]"],
  ["```rust\nfn a() {}\n\n# no\n```\nb", "code:rust(fn a() {}\n\n# no) p(b)"],
  ["~~~\n```\n~~~", "code:(```)"],
  ["```\nopen", "code:(open)"],
  ["a\n---\n***\n_ _ _", "p(a) hr hr hr"],
  ["| a | b |\n|:-:|--:|\n| 1 | `x|y` |\n| 2 |\n\nb", "table(center,right;a,b;1,`x|y`/2) p(b)"],
  ["a | b\nno table", "p(a | b\nno table)"],
  ["#hash\n#\n####### seven", "p(#hash) h1() p(####### seven)"],
  ["text\n1999. was a year\n1. a", "p(text\n1999. was a year) ol1[p(a)]"],
  ["- a\n\n- b\n\n\nc\n* d\n+ e", "ul[p(a)|p(b)] p(c) ul[p(d)] ul[p(e)]"],
  ["- a\n**bold** b\n-", "ul[p(a\n**bold** b)|]"],
];

test("blocks", () => {
  for (const [text, expected] of DOCUMENTS) assert.strictEqual(outline(parseBlocks(text)), expected, text);
});

test("tables have no more cells than their text has characters", () => {
  const head = (columns) => `${"a|".repeat(columns)}\n${"-|".repeat(columns)}\n`;
  const cells = (blocks) => blocks.reduce((sum, block) =>
    sum + (block.type === "table" ? block.head.length + block.rows.reduce((n, row) => n + row.length, 0) : 0), 0);
  for (const text of [
    head(90) + "|\n".repeat(100_000),
    (head(90) + "|\n".repeat(300)).repeat(300),
    head(990) + "|\n".repeat(100_000),
    head(2) + "a|b\n".repeat(100_000),
  ]) {
    const started = performance.now();
    const blocks = parseBlocks(text);
    const ms = performance.now() - started;
    assert.ok(cells(blocks) <= text.length, `${cells(blocks)} cells`);
    assert.ok(ms < 2000, `${ms} ms`);
  }
  // What is beyond the limits is text.
  assert.strictEqual(parseBlocks(head(101))[0].type, "paragraph");
  const [table, rest] = parseBlocks(head(2) + "a|b\n".repeat(5_003));
  assert.deepStrictEqual([table.rows.length, rest.type, rest.text], [5_000, "paragraph", "a|b\na|b\na|b"]);
});

test("text that grows gives the blocks of the whole text", () => {
  const documents = DOCUMENTS.map(([text]) => text);
  documents.push(documents.join("\n\n"), documents.join("\n"));
  // Random documents of what Markdown is made of, cut at random places.
  const marks = ["a", " ", "\n", "\n\n", "- ", "1. ", "> ", "# ", "```", "|", "---", "*", "  ", "    ", "`", "b c", "~~~", "|-|-|\n"];
  let state = 7;
  const random = (n) => (state = (state * 48271) % 0x7fffffff) % n;
  for (let i = 0; i < 300; i++) documents.push(Array.from({ length: 30 }, () => marks[random(marks.length)]).join(""));
  for (const text of documents) {
    const growing = new GrowingBlocks();
    for (let end = 0; end <= text.length; end += 1 + random(4)) {
      const blocks = growing.update(text.slice(0, end));
      assert.deepStrictEqual(blocks, parseBlocks(text.slice(0, end)), JSON.stringify(text.slice(0, end)));
    }
  }
});

test("hostile text takes linear time and little depth", () => {
  const n = 200_000;
  const repeat = (text) => text.repeat(n / text.length);
  const cases = ["*", "_a ", "**a ", "*a_", "`", "`a", "``a`", "[", "![", "](", "[a](", "<", "<https://", "https://a ", "~~a", "\\", "> ", "- ", "  - ",
    "1. ", "#", "# ", "|", "|-", "a|b\n", "\n", " \n", "```\n", "- a\n", "-\n ", "> - ", "x", ":", "!["].map(repeat);
  const depth = (nodes) => 1 + Math.max(0, ...nodes.map((node) => (node.children ? depth(node.children) : node.items ? depth(node.items.flat()) : 0)));
  for (const text of cases) {
    const started = performance.now();
    const blocks = parseBlocks(text);
    assert.ok(depth(blocks) < 20, text.slice(0, 10));
    // Inline text is parsed up to 20,000 characters.
    assert.ok(depth(parseInline(text.slice(0, 19_999))) < 24, text.slice(0, 10));
    const ms = performance.now() - started;
    assert.ok(ms < 2000, `${JSON.stringify(text.slice(0, 10))} took ${ms} ms`);
  }
});
