// A message as it is shown.

import { appendText, copy, el, icon, iconButton } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { siblings } from "./tree.js";

/** What can be done with messages: `edit(node, text)`, `again(node)`, `branch(node, step)`, `results(node, texts)`. */

/** A message. */
export class MessageView {
  #node;
  #actions;
  #text = null;
  #reasoning = null;
  #calls = 0;
  #parts;

  constructor(conversation, node, actions, isLast) {
    this.#node = node;
    this.#actions = actions;
    const label = { user: "You", assistant: node.model || "Assistant", tool: "Result of a tool" }[node.role];
    this.element = el("article", { class: `message ${node.role}`, "data-id": node.id, "aria-label": label, tabindex: "-1" });
    this.#parts = {
      name: el("div", { class: "name" }), reasoning: el("div"), body: el("div", { class: "body", dir: "auto" }),
      calls: el("div"), after: el("div"), foot: el("div", { class: "foot" }),
    };
    const { name, reasoning, body, calls, after, foot } = this.#parts;
    if (node.role === "assistant") {
      name.append(el("img", { src: "page/icon.svg", alt: "", width: "18", height: "18" }), label);
      body.classList.add("markdown");
      this.element.append(name, reasoning, body, calls, after, foot);
    } else if (node.role === "tool") {
      this.element.append(toolResult(node));
    } else {
      appendText(body, node.content);
      this.element.append(body, foot);
    }
    this.update(conversation, isLast);
  }

  /** Shows what has come since, of an answer that streams. */
  grow() {
    const node = this.#node;
    const { body, reasoning, calls, after } = this.#parts;
    const streams = node.state === "streaming";
    if (node.reasoning) {
      if (!this.#reasoning) {
        const text = el("div", { class: "reasoning-text markdown" });
        const summary = el("summary");
        reasoning.append(el("details", { class: "reasoning" }, summary, text));
        this.#reasoning = { view: new MarkdownView(text), summary };
      }
      this.#reasoning.view.update(node.reasoning);
      const thinks = streams && node.content === "" && !node.calls?.length;
      this.#reasoning.summary.textContent = thinks ? "Reasoning…" : "Reasoning";
    }
    if (node.content !== "") {
      this.#text ??= new MarkdownView(body);
      this.#text.update(node.content);
    }
    for (const call of (node.calls ?? []).slice(this.#calls)) calls.append(toolCall(call));
    this.#calls = node.calls?.length ?? 0;
    const isEmpty = node.content === "" && !node.reasoning && this.#calls === 0;
    body.classList.toggle("cursor", streams && node.content !== "");
    after.replaceChildren();
    if (streams && isEmpty) after.append(waiting());
    if (node.state === "stopped") after.append(el("p", { class: "note" }, "Stopped."));
    if (node.state === "length") after.append(el("p", { class: "note" }, "The limit of tokens was reached."));
    if (node.error) {
      after.append(el("div", { class: "error", role: "alert" }, el("span", {}, node.error),
        el("button", { type: "button", class: "link-button", onclick: () => this.#actions.again(node) }, icon("again"), "Try again")));
    }
    const { stats } = this.#parts;
    if (stats) stats.textContent = describe(node);
  }

  /** Shows the message and what can be done with it. */
  update(conversation, isLast) {
    const node = this.#node;
    const { foot, calls } = this.#parts;
    foot.replaceChildren();
    const streams = node.state === "streaming";
    const { all, at } = siblings(conversation, node);
    if (all.length > 1 && node.role !== "tool") {
      const step = (by) => () => this.#actions.branch(node, by);
      foot.append(el("span", { class: "branch", role: "group", "aria-label": "Versions" },
        iconButton("left", "Previous version", step(-1), { disabled: at === 0 || streams }),
        el("span", {}, `${at + 1}/${all.length}`),
        iconButton("right", "Next version", step(1), { disabled: at === all.length - 1 || streams })));
    }
    if (!streams && node.role !== "tool") {
      foot.append(iconButton("copy", "Copy", () => copy(node.content)),
        iconButton("edit", "Edit", () => this.#edit()));
      if (node.role === "assistant") foot.append(iconButton("again", "Answer again", () => this.#actions.again(node)));
    }
    if (node.role !== "assistant") return;
    this.#parts.stats = el("span", { class: "stats" });
    foot.append(this.#parts.stats);
    this.grow();
    calls.querySelector(".call-results")?.remove();
    if (isLast && !streams && this.#calls > 0) calls.append(this.#resultForm());
  }

  #edit() {
    const node = this.#node;
    const area = el("textarea", { "aria-label": "Edit the message" });
    area.value = node.content;
    const shown = [...this.element.children];
    const back = () => {
      this.element.replaceChildren(...shown);
      this.element.querySelector('[aria-label="Edit"]')?.focus();
    };
    const save = () => {
      if (area.value.trim() === "") return;
      this.#actions.edit(node, area.value);
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        back();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && node.role === "user") {
        event.preventDefault();
        save();
      }
    });
    this.element.replaceChildren(el("div", { class: "editor" }, area, el("div", { class: "dialog-buttons" },
      el("button", { type: "button", class: "button", onclick: back }, "Cancel"),
      el("button", { type: "button", class: "button primary", onclick: save }, node.role === "user" ? "Send" : "Save"))));
    area.focus();
  }

  /** Where the reader gives what the tools have answered. */
  #resultForm() {
    const areas = this.#node.calls.map((call) =>
      el("textarea", { rows: "2", class: "mono", "aria-label": `Result of ${call.name}` }));
    const fields = areas.map((area, at) => el("label", { class: "field" }, `Result of ${this.#node.calls[at].name}`, area));
    const send = () => this.#actions.results(this.#node, areas.map((area) => area.value));
    return el("div", { class: "call-results call" }, fields,
      el("div", { class: "field call-send" }, el("button", { type: "button", class: "button primary", onclick: send }, "Send results")));
  }
}

function waiting() {
  const dots = [el("span"), el("span"), el("span")];
  return el("div", { class: "waiting", role: "img", "aria-label": "The model has not begun yet" }, dots);
}

function toolCall({ name, arguments: text }) {
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // A call that was cut off is shown as far as it came.
  }
  const pre = el("pre", { tabindex: "0", role: "region", "aria-label": `Arguments of ${name}` });
  appendText(pre, shown);
  return el("div", { class: "call" }, el("div", { class: "call-head" }, icon("tool"), "Calls ", el("code", {}, name)), pre);
}

function toolResult({ name, content }) {
  const pre = el("pre", { tabindex: "0", role: "region", "aria-label": `Result of ${name}` });
  appendText(pre, content);
  return el("div", { class: "call" }, el("div", { class: "call-head" }, icon("tool"), "Result of ", el("code", {}, name)), pre);
}

/** Speed and size of an answer. */
function describe({ stats }) {
  if (!stats) return "";
  const parts = [];
  if (stats.tokens) parts.push(`${stats.tokens.toLocaleString()} ${stats.tokens === 1 ? "token" : "tokens"}`);
  if (stats.speed) parts.push(`${stats.speed.toFixed(stats.speed < 10 ? 1 : 0)} tokens/s`);
  if (stats.first !== undefined) {
    parts.push(`first after ${stats.first < 1000 ? `${Math.round(stats.first)} ms` : `${(stats.first / 1000).toFixed(1)} s`}`);
  }
  return parts.join(" · ");
}
