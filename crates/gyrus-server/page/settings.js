// The settings of a chat: what they are, their form, and the fields of the API that they become.

import { $ } from "./dom.js";
import { Panel } from "./panel.js";
import { local } from "./store.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "max_tokens", "seed"];
const TEXTS = ["system", "stop", "reasoning", "schema", "tools"];

const DEFAULTS = Object.freeze({ model: "", ...Object.fromEntries([...NUMBERS, ...TEXTS].map((name) => [name, ""])) });

/** Settings with every field, of which some are known. Settings that were kept by another version may lack some. */
export function complete(known) {
  const settings = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) {
    if (typeof known?.[name] === "string") settings[name] = known[name];
  }
  return settings;
}

/** The settings that a new chat has: those that were used last. What answers must look like is not carried over. */
export const lastUsed = () => ({ ...complete(local.get("settings", {})), schema: "", tools: "" });

/** Something in the settings is wrong. */
export class SettingsError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** The fields of a request. Those that are not set are the model's own. */
export function requestFields(settings) {
  const fields = {};
  if (settings.model !== "") fields.model = settings.model;
  for (const name of NUMBERS) {
    if (settings[name] !== "") fields[name] = Number(settings[name]);
  }
  const stop = settings.stop.split("\n").filter((line) => line !== "");
  if (stop.length > 0) fields.stop = stop;
  if (settings.reasoning !== "") fields.chat_template_kwargs = { enable_thinking: settings.reasoning === "on" };
  const schema = json(settings, "schema");
  if (schema !== undefined) {
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  }
  const tools = json(settings, "tools");
  if (tools !== undefined && !Array.isArray(tools)) throw new SettingsError("tools", "Tools must be a JSON list.");
  if (tools?.length > 0) fields.tools = tools;
  return fields;
}

function json(settings, name) {
  const text = settings[name].trim();
  if (text === "") return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingsError(name, `This is not JSON: ${error.message}`);
  }
}

/** The form of the settings, and the choice of the model. */
export class SettingsForm {
  #form = $("#settings-form");
  #panel;
  #select = $("#model");
  #settings = complete({});
  #models = [];

  /** `onchange` is called when the reader has changed something. */
  constructor(onchange) {
    const changed = () => {
      this.#read();
      this.check();
      local.set("settings", this.#settings);
      onchange(this.#settings);
    };
    this.#form.addEventListener("input", changed);
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#select.addEventListener("change", changed);
    $("#reset").addEventListener("click", () => {
      this.show({ ...complete({}), model: this.#settings.model });
      changed();
    });
    // On a phone a field would open the keyboard over the form.
    const first = () => matchMedia("(max-width: 800px)").matches ? $("#close-settings") : this.#form.elements.system;
    this.#panel = new Panel($("#settings"), $("#open-settings"), $("#close-settings"), first);
  }

  /** Shows the settings of a chat. */
  show(settings) {
    this.#settings = complete(settings);
    for (const name of [...NUMBERS, ...TEXTS]) this.#form.elements[name].value = this.#settings[name];
    this.#showModels();
    this.check();
  }

  set models(models) {
    this.#models = models;
    this.#showModels();
  }

  /** The model that answers, if it is known. */
  get model() {
    return this.#models.find(({ id }) => id === this.#settings.model) ?? this.#models[0];
  }

  /** Says what is wrong beside the field. */
  check() {
    for (const name of ["schema", "tools"]) {
      let message = "";
      try {
        requestFields({ ...complete({}), [name]: this.#settings[name] });
      } catch (error) {
        message = error.message;
      }
      this.#form.elements[name].setAttribute("aria-invalid", String(message !== ""));
      $(`#${name}-error`).textContent = message;
    }
  }

  /** Brings the reader to a field that is wrong. */
  point(field) {
    this.#panel.toggle(true);
    this.#form.elements[field]?.focus();
  }

  #read() {
    for (const name of [...NUMBERS, ...TEXTS]) this.#settings[name] = this.#form.elements[name].value;
    this.#settings.model = this.#select.value;
  }

  #showModels() {
    const names = this.#models.map(({ id }) => id);
    const chosen = this.#settings.model;
    // A model that is gone stays visible: a request for it says so.
    if (chosen !== "" && !names.includes(chosen)) names.push(chosen);
    this.#select.replaceChildren(...names.map((name) => new Option(name, name)));
    if (names.length === 0) this.#select.append(new Option("no model", ""));
    this.#select.value = chosen !== "" ? chosen : names[0] ?? "";
  }
}
