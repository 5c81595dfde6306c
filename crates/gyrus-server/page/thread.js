// The messages of the conversation that is shown, and their scrolling.

import { $ } from "./dom.js";
import { MessageView } from "./message.js";
import { path } from "./tree.js";

/** A reader who is this close to the end follows it, in pixels. */
const NEAR = 80;

export class Thread {
  #actions;
  #root = $("#thread");
  #scroll = $("#scroll");
  #views = new Map();
  #follows = true;
  #due = false;
  #growing = null;
  #cost = 0;

  constructor(actions) {
    this.#actions = actions;
    this.#scroll.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    $("#to-end").addEventListener("click", () => this.toEnd());
  }

  /** Shows a conversation. Messages that are shown already keep their elements. */
  show(conversation) {
    const nodes = path(conversation);
    const views = new Map();
    nodes.forEach((node, at) => {
      const isLast = at === nodes.length - 1;
      const known = this.#views.get(node.id);
      // A message that is being edited is built anew.
      const isKept = known?.node === node && !known.view.element.querySelector(".editor");
      if (isKept) known.view.update(conversation, isLast);
      const view = isKept ? known.view : new MessageView(conversation, node, this.#actions, isLast);
      views.set(node.id, { node, view });
    });
    const elements = [...views.values()].map(({ view }) => view.element);
    const isSame = elements.length <= this.#root.children.length && elements.every((one, at) => this.#root.children[at] === one);
    if (isSame) while (this.#root.children.length > elements.length) this.#root.lastChild.remove();
    else this.#root.replaceChildren(...elements);
    this.#views = views;
    this.#root.setAttribute("aria-busy", String(nodes.at(-1)?.state === "streaming"));
    this.#scrolled();
    this.#follow();
  }

  /** Shows what an answer has grown by, at most once a frame, and less often where that takes long. */
  grow(node) {
    this.#growing = node;
    if (this.#due) return;
    this.#due = true;
    const draw = () => {
      const started = performance.now();
      this.#due = false;
      this.#views.get(this.#growing.id)?.view.grow();
      this.#follow();
      // A mean, since a single slow frame says little.
      this.#cost = 0.7 * this.#cost + 0.3 * (performance.now() - started);
    };
    // The page stays free for three quarters of the time.
    setTimeout(() => requestAnimationFrame(draw), this.#cost * 3);
  }

  /** Scrolls to the end, and follows it from then on. */
  toEnd() {
    this.#follows = true;
    this.#follow();
  }

  /** The button that edits the reader's last message. */
  lastOfReader() {
    return [...this.#root.querySelectorAll('.message.user [aria-label="Edit"]')].at(-1);
  }

  #follow() {
    if (this.#follows) this.#scroll.scrollTop = this.#scroll.scrollHeight;
  }

  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroll;
    this.#follows = scrollHeight - scrollTop - clientHeight < NEAR;
    $("#to-end").hidden = this.#follows;
  }
}
