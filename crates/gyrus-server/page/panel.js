// Panels beside the chat. One is open at a time, since two would leave the chat no width.

let opened = null;

export class Panel {
  #element;
  #opener;
  #first;

  /** `opener` and `closer` are its buttons. `first()` is what has the focus once it is open. */
  constructor(element, opener, closer, first) {
    this.#element = element;
    this.#opener = opener;
    this.#first = first;
    opener.addEventListener("click", () => this.toggle());
    closer.addEventListener("click", () => this.toggle(false));
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.toggle(false);
    });
  }

  /** Opens or closes the panel. */
  toggle(open = this.#element.hidden) {
    if (open && opened !== this) opened?.toggle(false);
    const had = this.#element.contains(document.activeElement);
    this.#element.hidden = !open;
    this.#opener.setAttribute("aria-expanded", String(open));
    if (open) opened = this;
    else if (opened === this) opened = null;
    if (open) this.#first().focus();
    else if (had) this.#opener.focus();
  }
}
