// Markdown as elements, built from text nodes. Blocks that have not changed keep their elements.

import { GrowingBlocks } from "./blocks.js";
import { appendText, copy, el, icon } from "./dom.js";
import { highlight } from "./highlight.js";
import { LONGEST_INLINE, parseInline } from "./inline.js";

/** The elements of a text that grows. */
export class MarkdownView {
  #root;
  #growing = new GrowingBlocks();
  #shown = [];

  constructor(root) {
    this.#root = root;
  }

  /** Shows a text that begins with the one that was shown. */
  update(text) {
    const blocks = this.#growing.update(text);
    let same = 0;
    const isSame = (block, at) => this.#shown[at]?.type === block.type && this.#shown[at].src === block.src;
    while (same < blocks.length && isSame(blocks[same], same)) same++;
    const reusable = this.#shown.splice(same);
    for (const block of blocks.slice(same)) {
      const old = reusable.shift();
      const element = growCode(old, block) ?? renderBlock(block);
      if (old && old.element !== element) old.element.replaceWith(element);
      else if (!old) this.#root.append(element);
      this.#shown.push({ type: block.type, src: block.src, text: block.text, language: block.language, element });
    }
    reusable.forEach(({ element }) => element.remove());
  }
}

/** Appends to a block of code that has only grown: replacing it would lose the reader's selection and scroll position. */
function growCode(old, block) {
  const grows = old?.type === "code" && block.type === "code" && old.language === block.language &&
    block.text.startsWith(old.text);
  if (!grows) return null;
  const code = old.element.querySelector("code");
  // The line that was not complete is highlighted again, with all that belongs to it.
  if (block.text.length <= HIGHLIGHTED) code.replaceChildren(...highlight(block.text, block.language));
  else if (old.text.length <= HIGHLIGHTED) fillCode(code, block);
  else appendText(code, block.text.slice(old.text.length));
  SOURCES.set(code, block.text);
  return old.element;
}

function renderBlock(block) {
  switch (block.type) {
    case "heading":
      // The page's own headings are above those of an answer.
      return inline(el(`h${Math.min(block.level + 2, 6)}`), block.text);
    case "code":
      return codeBlock(block);
    case "quote":
      return el("blockquote", {}, block.children.map(renderBlock));
    case "rule":
      return el("hr");
    case "list":
      return el(block.ordered ? "ol" : "ul", block.ordered && block.first !== 1 ? { start: block.first } : {},
        block.items.map(listItem));
    case "table":
      return table(block);
    default:
      return inline(el("p"), block.text);
  }
}

function listItem(blocks) {
  const item = el("li");
  blocks.forEach((block, at) => {
    // The text of an item stands beside its marker.
    if (block.type === "paragraph" && at === 0) inline(item, block.text);
    else item.append(renderBlock(block));
  });
  return item;
}

function table({ align, head, rows }) {
  // One cell takes the place of all that a row lacks.
  const rest = (name, count) => (count > 0 ? [el(name, { colspan: count })] : []);
  const row = (name, cells) =>
    el("tr", {}, [...cells.map((cell, at) => inline(el(name, { class: `align-${align[at]}` }), cell)),
      ...rest(name, align.length - cells.length)]);
  return el("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    el("table", {}, el("thead", {}, row("th", head)), el("tbody", {}, rows.map((cells) => row("td", cells)))));
}

/** Code that is longer is not coloured. */
const HIGHLIGHTED = 20_000;
/** The text of each block of code, to copy: what is shown has pieces, and marks for control characters. */
const SOURCES = new WeakMap();

function codeBlock(block) {
  const code = el("code");
  fillCode(code, block);
  const name = block.language || "text";
  const figure = el("figure", { class: "code" },
    el("figcaption", {}, el("span", {}, name),
      el("button", { type: "button", class: "link-button", onclick: () => copy(SOURCES.get(code)) },
        icon("copy"), "Copy")),
    el("pre", { tabindex: "0", role: "region", "aria-label": `Code, ${name}` }, code));
  return figure;
}

function fillCode(code, { text, language }) {
  SOURCES.set(code, text);
  code.replaceChildren();
  if (text.length <= HIGHLIGHTED) code.append(...highlight(text, language));
  else appendText(code, text);
}

function inline(parent, text) {
  if (text.length > LONGEST_INLINE) appendText(parent, text);
  else appendInline(parent, parseInline(text));
  return parent;
}

function appendInline(parent, nodes) {
  for (const node of nodes) {
    if (typeof node === "string") appendText(parent, node);
    else if (node.type === "break") parent.append(el("br"));
    else if (node.type === "code") {
      const code = el("code");
      appendText(code, node.text);
      parent.append(code);
    } else if (node.type === "link") {
      const link = el("a", { href: node.href, title: node.href, target: "_blank", rel: "noopener noreferrer nofollow" });
      appendInline(link, node.children);
      parent.append(link);
    } else {
      const element = el(node.type);
      appendInline(element, node.children);
      parent.append(element);
    }
  }
}
