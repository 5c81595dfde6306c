// The panel that transcribes a recording: its form, the request, and the segments as they settle.

import { transcribe } from "./api.js";
import { $, announce, appendText, copy, el, toast } from "./dom.js";
import { languageName, languages } from "./languages.js";
import { Panel } from "./panel.js";
import { local } from "./store.js";
import { FORMATS, plain, shortTime } from "./transcript.js";

/** What `/v1/models` says of a model that can be chosen here. */
const DOES = "transcribes speech";
/** What a form adds to the bytes of its file, at most. */
const FORM_BYTES = 4096;
/** A reader who is this close to the end follows it, in pixels. */
const NEAR = 80;

export class SpeechPanel {
  #actions;
  #root = $("#speech");
  #opener = $("#open-speech");
  #form = $("#speech-form");
  #drop = $("#drop");
  #list = $("#segments");
  #status = $("#speech-status");
  #bar = $("#speech-progress");
  #error = $("#speech-error");
  #panel;
  #models = [];
  #most = Infinity;
  #file = null;
  #segments = [];
  #abort = null;

  /** What can be done: `insert(text)` puts text into the message box, `askForKey(message)` asks for the API key. */
  constructor(actions) {
    this.#actions = actions;
    const { file } = this.#form.elements;
    this.#panel = new Panel(this.#root, this.#opener, $("#close-speech"), () => file);
    this.#fill();
    file.addEventListener("change", () => {
      this.#take(file.files);
      // The same file can be chosen again.
      file.value = "";
    });
    this.#form.addEventListener("change", () => this.#keep());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#start();
    });
    $("#speech-stop").addEventListener("click", () => this.#abort?.abort());
    $("#speech-copy").addEventListener("click", () => copy(plain(this.#segments)));
    $("#speech-insert").addEventListener("click", () => this.#insert());
    for (const button of this.#root.querySelectorAll("[data-format]")) {
      button.addEventListener("click", () => this.#save(button.dataset.format));
    }
    this.#dragging();
  }

  /** The models of the server. Without one for speech there is no panel. */
  set models({ models, most }) {
    this.#most = most ?? Infinity;
    this.#models = models.filter(({ does }) => does === DOES).map(({ id }) => id);
    const { model } = this.#form.elements;
    const chosen = model.value || local.get("speech", {}).model;
    model.replaceChildren(...this.#models.map((name) => new Option(name, name)));
    if (this.#models.includes(chosen)) model.value = chosen;
    this.#opener.hidden = this.#models.length === 0;
    if (this.#opener.hidden && !this.#root.hidden) this.#panel.toggle(false);
    const limit = this.#most < Infinity ? `, up to ${sizeOf(this.#most)}` : "";
    $("#file-note").textContent = `WAV, FLAC, MP3, Ogg Vorbis or M4A${limit}`;
  }

  #fill() {
    const { language, task, times } = this.#form.elements;
    language.append(new Option("detected", ""), ...languages().map(({ code, name }) => new Option(name, code)));
    const known = local.get("speech", {});
    language.value = languages().some(({ code }) => code === known.language) ? known.language : "";
    task.value = known.task === "translate" ? "translate" : "transcribe";
    times.checked = known.times !== false;
    this.#list.classList.toggle("no-times", !times.checked);
  }

  #keep() {
    const { model, language, task, times } = this.#form.elements;
    this.#list.classList.toggle("no-times", !times.checked);
    local.set("speech", { model: model.value, language: language.value, task: task.value, times: times.checked });
  }

  /** A file that is dropped anywhere is meant for the panel: the browser would leave the page for it. */
  #dragging() {
    const isMeant = ({ dataTransfer }) => this.#models.length > 0 && dataTransfer?.types.includes("Files");
    addEventListener("dragover", (event) => {
      if (!isMeant(event)) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "copy";
      this.#drop.classList.add("over");
    });
    addEventListener("dragleave", ({ relatedTarget }) => {
      if (!relatedTarget) this.#drop.classList.remove("over");
    });
    addEventListener("drop", (event) => {
      if (!isMeant(event)) return;
      event.preventDefault();
      this.#drop.classList.remove("over");
      if (this.#root.hidden) this.#panel.toggle(true);
      this.#take(event.dataTransfer.files);
    });
  }

  #take(files) {
    if (files.length === 0) return;
    if (this.#abort) {
      toast("A recording is being transcribed. Stop it first.");
      return;
    }
    if (files.length > 1) toast("One recording at a time: the first one was taken.");
    this.#file = files[0];
    $("#file-name").textContent = `${this.#file.name}, ${sizeOf(this.#file.size)}`;
    this.#drop.classList.add("full");
    this.#fail(this.#tooLarge());
  }

  #tooLarge() {
    return this.#file.size + FORM_BYTES <= this.#most ? ""
      : `${this.#file.name} has ${sizeOf(this.#file.size)}, and this server takes ${sizeOf(this.#most)} at most. `
        + "Compress or cut the recording, or start the server with a larger --max-body.";
  }

  /** Transcribes the file that was chosen, if nothing is wrong with it. */
  async #start() {
    if (this.#abort) return;
    this.#fail(this.#file ? this.#tooLarge() : "Choose a recording first.");
    if (!this.#file) this.#form.elements.file.focus();
    if (this.#error.textContent !== "") return;
    this.#abort = new AbortController();
    // A folder, or a file that is gone, would look as if the server could not be reached.
    const isThere = await this.#file.slice(0, 1).arrayBuffer().then(() => true, () => false);
    if (isThere) await this.#transcribe(this.#abort);
    else this.#fail(`${this.#file.name} cannot be read. Choose it again.`);
    this.#abort = null;
  }

  async #transcribe(abort) {
    const { model, language, task } = this.#form.elements;
    const form = new FormData();
    form.append("file", this.#file);
    form.append("model", model.value);
    form.append("stream", "true");
    if (language.value !== "") form.append("language", language.value);
    this.#segments = [];
    this.#list.replaceChildren();
    this.#bar.removeAttribute("value");
    this.#status.textContent = "Listening…";
    this.#running(true);
    announce("The recording is transcribed.");
    const started = performance.now();
    let said = "";
    try {
      for await (const event of transcribe(form, task.value, abort.signal)) {
        if (event.type === "transcript.text.delta") this.#following(() => this.#add(event));
        if (event.type !== "transcript.text.done") continue;
        said = summary(event, this.#segments, performance.now() - started);
      }
    } catch (error) {
      if (abort.signal.aborted) said = "Stopped.";
      else this.#refused(error);
    }
    this.#status.textContent = said;
    this.#following(() => this.#running(false));
    announce(said);
  }

  #refused(error) {
    this.#fail(error.retryAfter ? `${error.message} (try again in ${error.retryAfter} s)` : error.message);
    if (error.status === 401) this.#actions.askForKey(error.message);
  }

  #running(isRunning) {
    const { activeElement } = document;
    const [go, stop] = [$("#speech-go"), $("#speech-stop")];
    $("#speech-options").disabled = isRunning;
    go.hidden = isRunning;
    stop.hidden = !isRunning;
    this.#bar.hidden = !isRunning;
    this.#opener.classList.toggle("busy", isRunning);
    for (const id of ["actions", "downloads"]) $(`#speech-${id}`).hidden = isRunning || this.#segments.length === 0;
    // A button that vanishes would take the focus of the keyboard with it.
    if (activeElement === go || activeElement === stop) (isRunning ? stop : go).focus();
  }

  /** Adds a segment that has settled. */
  #add({ delta: text, start = 0, end = 0, duration }) {
    this.#segments.push({ text, start, end });
    const line = el("span", { class: "segment-text", dir: "auto" });
    appendText(line, text.trim());
    const time = el("span", { class: "segment-time" }, `${shortTime(start)} – ${shortTime(end)}`);
    this.#list.append(el("p", {}, time, line));
    if (duration > 0) {
      this.#bar.max = duration;
      this.#bar.value = Math.min(end, duration);
      this.#status.textContent = `${shortTime(end)} of ${shortTime(duration)}`;
    }
  }

  /** Changes what is shown. A reader who is at the end stays there. */
  #following(change) {
    const { scrollTop, scrollHeight, clientHeight } = this.#root;
    const follows = scrollHeight - scrollTop - clientHeight < NEAR;
    change();
    if (follows) this.#root.scrollTop = this.#root.scrollHeight;
  }

  #fail(message) {
    this.#error.textContent = message;
  }

  #insert() {
    // On a narrow window the panel hides the box.
    if (matchMedia("(max-width: 1100px)").matches) this.#panel.toggle(false);
    this.#actions.insert(plain(this.#segments));
  }

  /** Gives the browser a file to save. */
  #save(format) {
    const { type, write } = FORMATS[format];
    const href = URL.createObjectURL(new Blob([write(this.#segments)], { type }));
    const name = (this.#file?.name ?? "transcript").replace(/\.[^.]*$/, "");
    el("a", { href, download: `${name}.${format}` }).click();
    // The browser has taken it by then.
    setTimeout(() => URL.revokeObjectURL(href), 60_000);
  }
}

function summary({ language, duration }, segments, milliseconds) {
  if (segments.length === 0) return "No speech was found.";
  const parts = [`${segments.length.toLocaleString()} ${segments.length === 1 ? "segment" : "segments"}`];
  if (language) parts.push(languageName(language));
  const took = `${(milliseconds / 1000).toFixed(1)} s`;
  parts.push(duration > 0 ? `${shortTime(duration)} in ${took}` : took);
  return parts.join(" · ");
}

/** A number of bytes for readers. */
function sizeOf(bytes) {
  if (bytes < 1024) return `${bytes} bytes`;
  const units = ["KiB", "MiB", "GiB"];
  const at = Math.min(Math.floor(Math.log2(bytes) / 10), units.length) - 1;
  const number = bytes / 1024 ** (at + 1);
  return `${number.toFixed(Number.isInteger(number) ? 0 : 1)} ${units[at]}`;
}
