// The list of conversations.

import { $, el, iconButton } from "./dom.js";

export class Sidebar {
  #actions;
  #panel = $("#sidebar");
  #opener = $("#open-sidebar");
  #shade = $("#shade");

  /** What can be done: `open(id)`, `rename(id)`, `remove(id)`. */
  constructor(actions) {
    this.#actions = actions;
    this.#opener.addEventListener("click", () => this.#toggle(true));
    $("#close-sidebar").addEventListener("click", () => this.close());
    this.#shade.addEventListener("click", () => this.close());
    // Beside a wide page the list is always there and covers nothing.
    matchMedia("(min-width: 801px)").addEventListener("change", () => this.close());
  }

  get isOpen() {
    return this.#panel.classList.contains("open");
  }

  close() {
    if (this.isOpen) this.#toggle(false);
  }

  #toggle(open) {
    this.#panel.classList.toggle("open", open);
    this.#shade.hidden = !open;
    this.#opener.setAttribute("aria-expanded", String(open));
    // The list lies over the page like a dialog.
    for (const covered of document.querySelectorAll("main, aside")) covered.inert = open;
    if (open) $("#close-sidebar").focus();
    else this.#opener.focus();
  }

  /** Shows the conversations, the last changed first. */
  show(heads) {
    const items = [];
    let day = "";
    for (const { id, title, updated } of heads) {
      const name = dayOf(updated);
      if (name !== day) items.push(el("li", { class: "day" }, name));
      day = name;
      const shown = title || "New chat";
      items.push(el("li", { class: "conversation", "data-id": id },
        el("button", { type: "button", class: "conversation-open", title: shown, onclick: () => this.#actions.open(id) }, shown),
        iconButton("edit", `Rename ${shown}`, () => this.#actions.rename(id)),
        iconButton("trash", `Delete ${shown}`, () => this.#actions.remove(id))));
    }
    $("#conversations").replaceChildren(...items);
  }

  /** Marks the conversation that is shown, and those whose answers stream. */
  mark(current, running) {
    for (const item of this.#panel.querySelectorAll(".conversation")) {
      const { id } = item.dataset;
      item.classList.toggle("current", id === current);
      const open = item.querySelector(".conversation-open");
      if (id === current) open.setAttribute("aria-current", "true");
      else open.removeAttribute("aria-current");
      const live = item.querySelector(".live");
      if (running.has(id) && !live) item.prepend(el("span", { class: "live", role: "img", "aria-label": "Answers" }));
      else if (!running.has(id)) live?.remove();
    }
  }
}

function dayOf(time) {
  const start = new Date().setHours(0, 0, 0, 0);
  const DAY = 86_400_000;
  if (time >= start) return "Today";
  if (time >= start - DAY) return "Yesterday";
  if (time >= start - 7 * DAY) return "Last 7 days";
  return new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}
