// Elements and texts. Nothing here or elsewhere parses HTML: what a model says only ever becomes a text node.

/** Makes an element. Properties that begin with "on" are listeners, "class" and "data-*", "aria-*" are attributes. */
export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** Makes an SVG element. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

/** An icon of the sprite in the page. */
export function icon(name) {
  return svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `#i-${name}` }));
}

/** A button with an icon and a name for screen readers. */
export function iconButton(name, label, onclick, properties = {}) {
  return el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...properties },
    icon(name));
}

export const $ = (selector, root = document) => root.querySelector(selector);

// C0 and C1 control characters other than tab and newline. Terminals obey some of them; here they are shown.
const CONTROL = /[\0-\x08\x0b-\x1f\x7f-\x9f]/g;

/** Text with control characters made visible, such as the escape of an ANSI sequence. */
export function visible(text) {
  return text.replace(/\r\n/g, "\n").replace(CONTROL, (c) => {
    const code = c.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return code === 0x7f ? "\u2421" : "\ufffd";
  });
}

/** The longest text of one text node. The browser lays out each piece on its own, and only those in view. */
const PIECE = 4000;

/** Appends text to an element. Long text becomes pieces, so that a line of a megabyte does not stop the page. */
export function appendText(parent, text) {
  const shown = visible(text);
  if (shown.length <= PIECE) {
    parent.append(shown);
    return;
  }
  for (let at = 0; at < shown.length; ) {
    let end = Math.min(at + PIECE, shown.length);
    // A piece is a block. It ends with a line where there is one near, and never within a surrogate pair.
    const line = end < shown.length ? shown.lastIndexOf("\n", end) : -1;
    const atLine = line > at + PIECE / 2;
    if (atLine) end = line;
    else if (end < shown.length && (shown.charCodeAt(end - 1) & 0xfc00) === 0xd800) end--;
    parent.append(el("span", { class: "piece" }, shown.slice(at, end)));
    at = atLine ? end + 1 : end;
  }
}

/** Says something to screen readers. */
export function announce(text) {
  const region = $("#announcer");
  if (region) region.textContent = text;
}

let toastTimer = 0;

/** Shows a short message, with an action if there is one. */
export function toast(text, action, onaction) {
  const region = $("#toast");
  clearTimeout(toastTimer);
  const hide = () => region.replaceChildren();
  const box = el("div", { class: "toast" }, el("span", {}, text));
  if (action) {
    box.append(el("button", { type: "button", class: "link-button", onclick: () => { hide(); onaction(); } }, action));
  }
  region.replaceChildren(box);
  toastTimer = setTimeout(hide, 7000);
}

/** Copies text, and says so. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast("The browser did not allow to copy");
  }
}

/** A button that switches between the system's theme, light and dark. */
export function themeButton(button) {
  const ORDER = ["system", "light", "dark"];
  const current = () => document.documentElement.dataset.theme ?? "system";
  const show = () => {
    const theme = current();
    button.replaceChildren(icon(theme === "dark" ? "moon" : theme === "light" ? "sun" : "auto"));
    button.setAttribute("aria-label", `Theme: ${theme}`);
    button.title = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    const next = ORDER[(ORDER.indexOf(current()) + 1) % ORDER.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      if (next === "system") localStorage.removeItem("gyrus.theme");
      else localStorage.setItem("gyrus.theme", next);
    } catch {
      // It lasts until the page is left.
    }
    show();
  });
  show();
}
