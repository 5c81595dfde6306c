// Charts of the last minutes, drawn as SVG.

import { el, svg } from "./dom.js";

const HEIGHT = 190;
const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;

/** The time that a chart shows grows from the least to the most, in seconds. */
const LEAST = 60;
const MOST = 300;

/** A chart of one or two series. Values are added with `add`. */
export class Chart {
  #root;
  #names;
  #unit;
  #samples = [];
  #picture;
  #legend;

  constructor(root, names, unit = "") {
    this.#root = root;
    this.#names = names;
    this.#unit = unit;
    this.#picture = svg("svg", { class: "chart", role: "img" });
    this.#legend = el("div", { class: "legend" }, names.map((_, at) => el("span", { class: `series-${at}` })));
    root.append(this.#picture, this.#legend);
    new ResizeObserver(() => this.draw()).observe(root);
  }

  /** Adds a value of each series, at a time in milliseconds. `null` where there is none. */
  add(time, values) {
    this.#samples.push({ time, values });
    while (this.#samples[0].time < time - MOST * 1000) this.#samples.shift();
  }

  draw() {
    const width = this.#root.clientWidth;
    if (width === 0 || this.#samples.length === 0) return;
    const last = this.#samples.at(-1);
    const most = niceCeiling(Math.max(1e-9, ...this.#samples.flatMap(({ values }) => values.map((value) => value ?? 0))));
    const seconds = Math.max(LEAST, (last.time - this.#samples[0].time) / 1000);
    const x = (time) => LEFT + (width - LEFT) * (1 - (last.time - time) / (seconds * 1000));
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / most);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      const at = y(most * part);
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: width, y1: at, y2: at }),
        svg("text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" }, short(most * part)));
    }
    const tick = seconds > 150 ? 60 : 15;
    for (let ago = tick; ago < seconds; ago += tick) {
      const label = tick === 60 ? `−${ago / 60} min` : `−${ago} s`;
      parts.push(svg("text", { x: x(last.time - ago * 1000), y: HEIGHT - 3, "text-anchor": "middle" }, label));
    }
    parts.push(svg("text", { x: width, y: HEIGHT - 3, "text-anchor": "end" }, "now"));
    this.#names.forEach((_, series) => {
      for (const run of runs(this.#samples, series)) {
        const points = run.map(({ time, value }) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`);
        const [first, end] = [x(run[0].time).toFixed(1), x(run.at(-1).time).toFixed(1)];
        parts.push(svg("path", { class: `area series-${series}`, d: `M${first},${y(0)}L${points.join("L")}L${end},${y(0)}Z` }),
          svg("path", { class: `line series-${series}`, d: `M${points.join("L")}` }));
      }
    });
    this.#picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.#picture.replaceChildren(...parts);
    const said = this.#names.map((name, at) => `${name} ${shown(last.values[at], this.#unit)}`);
    this.#picture.setAttribute("aria-label", said.join(", "));
    [...this.#legend.children].forEach((one, at) => { one.textContent = said[at]; });
  }
}

/** The stretches of a series without gaps. */
function runs(samples, series) {
  const all = [];
  let run = null;
  for (const { time, values } of samples) {
    const value = values[series];
    if (value === null || value === undefined) {
      run = null;
      continue;
    }
    if (run === null) all.push((run = []));
    run.push({ time, value });
  }
  return all;
}

/** The next number whose half is short as well. */
export function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.6, 2, 3, 4, 6, 8, 10].map((n) => n * power).find((n) => n >= value * 0.9999) ?? 10 * power;
}

const short = (value) => (value >= 10_000 ? `${value / 1000}k` : String(Number(value.toPrecision(3))));

function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString(undefined, { maximumFractionDigits: value < 10 ? 1 : 0 }) + unit;
}
