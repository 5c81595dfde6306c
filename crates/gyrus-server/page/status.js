// The server's state: figures of /v1/metrics, once a second.

import { getJson, key } from "./api.js";
import { Chart } from "./chart.js";
import { $, el, themeButton } from "./dom.js";

const INTERVAL = 1000;
/** The span of time that latencies are of, in milliseconds. */
const SPAN = 60_000;

const charts = {
  tokens: new Chart($("#chart-tokens"), ["generated", "prompt"]),
  sequences: new Chart($("#chart-sequences"), ["running", "queued"]),
  kv: new Chart($("#chart-kv"), ["used"]),
  latency: new Chart($("#chart-latency"), ["first token, median", "between tokens, median"], " ms"),
};
/** What was read, the last minute of it. */
const readings = [];

themeButton($("#theme"));
$("#key").addEventListener("click", askForKey);
$("#key-cancel").addEventListener("click", () => $("#key-dialog").close());
$("#key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(event.target.elements.key.value.trim());
  $("#key-dialog").close();
  poll();
});

let asked = false;
let timer = 0;
poll();

async function poll() {
  clearTimeout(timer);
  const abort = AbortSignal.timeout(10_000);
  try {
    const metrics = await getJson("v1/metrics", abort);
    state("ok", "serving");
    read(performance.now(), metrics);
  } catch (error) {
    state("bad", error.status === 401 ? "a key is needed" : error.status === 503 ? "shutting down" : "not reachable");
    if (error.status === 401 && !asked) askForKey();
  }
  timer = setTimeout(poll, INTERVAL);
}

function state(kind, text) {
  const element = $("#state");
  // Screen readers say what has changed, not the same thing every second.
  if (element.textContent !== text) element.textContent = text;
  element.className = `state ${kind}`;
}

function askForKey() {
  asked = true;
  $("#key-form").elements.key.value = key.get();
  $("#key-dialog").showModal();
}

function read(time, metrics) {
  const before = readings.at(-1);
  // Counters that fall are those of a server that was started again.
  if (before && metrics.uptime_seconds < before.metrics.uptime_seconds) readings.length = 0;
  readings.push({ time, metrics });
  while (readings.length > 2 && readings[1].time < time - SPAN) readings.shift();
  const models = Object.entries(metrics.models);
  const sum = (name) => models.reduce((all, [, model]) => all + (model[name] ?? 0), 0);
  const rate = (name) => {
    if (!before || readings.length < 2) return null;
    return Math.max(0, (metrics[name] - before.metrics[name]) / ((time - before.time) / 1000));
  };
  const [generated, prompt] = [rate("total_completion_tokens"), rate("total_prompt_tokens")];
  const [first, between] = ["first_token_seconds", "between_tokens_seconds"].map((name) => quantiles(name));
  const [blocks, used] = [sum("kv_blocks"), sum("kv_blocks_used")];

  put("running", metrics.running, `of ${number(metrics.parallel)} at once for each model`);
  put("queued", metrics.waiting, `${number(metrics.in_flight)} in the server, at most ${number(metrics.parallel + metrics.queue)}`);
  const whole = (value) => number(Math.round(value));
  put("speed", generated === null ? "–" : whole(generated), prompt === null ? "" : `and ${whole(prompt)} of prompts`);
  put("first", ms(first.p50), first.p99 === null ? "in the last minute" : `99 % within ${ms(first.p99)}`);
  put("kv", blocks ? percent(used / blocks) : "–", blocks ? `${number(used)} of ${number(blocks)} blocks` : "no model is loaded");
  const prompts = metrics.total_prompt_tokens;
  const cached = metrics.total_cached_tokens;
  put("hits", prompts ? percent(cached / prompts) : "–", `${number(cached)} of ${number(prompts)} tokens`);

  charts.tokens.add(time, [generated, prompt]);
  charts.sequences.add(time, [metrics.running, metrics.waiting]);
  charts.kv.add(time, [used]);
  charts.latency.add(time, [first.p50, between.p50].map((seconds) => (seconds === null ? null : seconds * 1000)));
  Object.values(charts).forEach((chart) => chart.draw());

  $("#uptime").textContent = `Gyrus ${metrics.version} · up ${duration(metrics.uptime_seconds)}`;
  $("#models").replaceChildren(...models.map(row));
  const classes = Object.entries(metrics.responses).map(([name, count]) => `${number(count)} × ${name}`).join(", ");
  $("#totals").textContent = `${number(metrics.total_requests)} generations · responses ${classes || "none"} · ` +
    `${number(metrics.connections)} connections, ${number(metrics.connections_refused)} refused · ` +
    `${number(metrics.disconnected)} clients went away`;
}

function row([name, model]) {
  const cells = [name];
  if (model.kv_blocks === undefined) cells.push("–", "–", "not loaded", "–", "–");
  else {
    cells.push(number(model.running), number(model.waiting), `${number(model.kv_blocks_used)} / ${number(model.kv_blocks)}`,
      percent(model.hit_rate), bytes(model.memory_bytes));
  }
  cells.push(number(model.total_requests), number(model.total_prompt_tokens), number(model.total_completion_tokens));
  return el("tr", {}, cells.map((cell, at) => (at === 0 ? el("th", { scope: "row" }, cell) : el("td", {}, cell))));
}

/** Median and 99th percentile of the last minute, in seconds: the differences of two histograms. */
function quantiles(name) {
  const [old, now] = [readings[0].metrics[name], readings.at(-1).metrics[name]];
  const counts = now.buckets.map((count, at) => count - old.buckets[at]);
  const total = now.count - old.count;
  if (readings.length < 2 || total === 0) return { p50: null, p99: null };
  return { p50: quantile(0.5), p99: quantile(0.99) };

  function quantile(part) {
    let below = 0;
    for (let at = 0; at < counts.length; at++) {
      if (below + counts[at] >= total * part) {
        const low = at === 0 ? 0 : now.bounds[at - 1];
        return low + (now.bounds[at] - low) * ((total * part - below) / counts[at]);
      }
      below += counts[at];
    }
    return now.bounds.at(-1);
  }
}

function put(id, figure, note) {
  $(`#${id}`).textContent = typeof figure === "number" ? number(figure) : figure;
  $(`#${id}-note`).textContent = note;
}

function number(value) {
  return value.toLocaleString();
}

function percent(part) {
  return `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`;
}

function ms(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms` : `${seconds.toFixed(1)} s`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const at = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(count, 1)) / 10));
  return `${(count / 1024 ** at).toFixed(at > 2 ? 1 : 0)} ${units[at]}`;
}

function duration(seconds) {
  const s = Math.floor(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}
