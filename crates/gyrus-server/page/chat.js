// The chat page: conversations, their messages, and what the reader does with them.

import { answer } from "./answer.js";
import { key, models } from "./api.js";
import { $, announce, themeButton, toast } from "./dom.js";
import { SettingsError, SettingsForm, complete, lastUsed, requestFields } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { SpeechPanel } from "./speech.js";
import { Store, local } from "./store.js";
import { Thread } from "./thread.js";
import { add, choose, newConversation, path, titleOf } from "./tree.js";

const store = new Store();
const thread = new Thread({ edit, again, branch, results });
const sidebar = new Sidebar({ open, rename, remove });
const form = new SettingsForm(settingsChanged);
const speech = new SpeechPanel({ insert, askForKey });
const prompt = $("#prompt");

let current = newConversation(lastUsed());
/** Answers that stream, by the id of their conversation: what stops them, and the conversation, newer than the one saved. */
const running = new Map();
/** Conversations that were deleted, which an answer that still ends must not bring back. */
const removed = new Set();

start();

async function start() {
  themeButton($("#theme"));
  listen();
  if (!(await store.open())) toast("This browser keeps no data: chats last until you leave the page.");
  store.onchange = changedElsewhere;
  const last = local.get("current", null);
  const kept = last && (await store.load(last));
  show(kept ? healed(kept) : current);
  await refreshList();
  await loadModels();
  // Unless the reader has begun with something else while the models were listed.
  const isIdle = document.activeElement === document.body;
  if (isIdle && matchMedia("(min-width: 801px)").matches) prompt.focus();
}

async function loadModels() {
  try {
    const found = await models();
    form.models = found.models;
    speech.models = found;
    showContext();
  } catch (error) {
    if (error.status === 401) askForKey(key.get() === "" ? "" : error.message);
    else toast(error.message, "Try again", loadModels);
  }
}

/** A conversation that was left while an answer streamed. */
function healed(conversation) {
  conversation.settings = complete(conversation.settings);
  for (const node of Object.values(conversation.nodes)) {
    if (node.state === "streaming") node.state = "stopped";
  }
  return conversation;
}

// What is shown.

function show(conversation) {
  current = conversation;
  local.set("current", conversation.id);
  form.show(conversation.settings);
  thread.show(conversation);
  thread.toEnd();
  refresh();
}

/** Shows what depends on whether something runs. */
function refresh() {
  const isRunning = running.has(current.id);
  $("#send").hidden = isRunning;
  $("#stop").hidden = !isRunning;
  $("#empty").hidden = path(current).length > 0;
  $("#title").textContent = current.title || "New chat";
  document.title = current.title === "" ? "Gyrus" : `${current.title} · Gyrus`;
  sidebar.mark(current.id, new Set(running.keys()));
  showContext();
}

function showContext() {
  const used = path(current).findLast((node) => node.stats?.prompt !== undefined)?.stats;
  const most = form.model?.context;
  const tokens = used ? used.prompt + used.tokens : 0;
  $("#context").textContent = tokens > 0 && most ? `${tokens.toLocaleString()} / ${most.toLocaleString()} tokens` : "";
}

async function refreshList() {
  const heads = await store.list();
  sidebar.show(heads);
  sidebar.mark(current.id, new Set(running.keys()));
}

function settingsChanged(settings) {
  current.settings = { ...settings };
  showContext();
  if (current.chosen !== null) save(current);
}

// Keeping.

async function save(conversation, touch = false) {
  if (removed.has(conversation.id)) return;
  if (touch) conversation.updated = Date.now();
  try {
    await store.save(conversation);
  } catch {
    toast("The browser has no room left for this chat.");
  }
}

async function changedElsewhere(id) {
  await refreshList();
  if (id !== current.id || running.has(id)) return;
  const fresh = await store.load(id);
  // An answer that streams in another tab is shown when it has ended.
  const streams = fresh && Object.values(fresh.nodes).some((node) => node.state === "streaming");
  if (fresh && !streams) show({ ...fresh, settings: complete(fresh.settings) });
}

// What the reader does.

function send(text) {
  if (running.has(current.id) || text.trim() === "" || !checkSettings()) return false;
  const last = path(current).at(-1) ?? null;
  const node = add(current, last?.id ?? null, { role: "user", content: text });
  if (current.title === "") current.title = titleOf(text);
  generate(current, node.id);
  return true;
}

/** Puts text into the message box, behind what is there. */
function insert(text) {
  prompt.value = prompt.value.trim() === "" ? text : `${prompt.value}\n\n${text}`;
  resize();
  prompt.focus();
}

function edit(node, text) {
  if (running.has(current.id)) return;
  if (node.role === "user") {
    if (!checkSettings()) return;
    const edited = add(current, node.parent, { role: "user", content: text });
    generate(current, edited.id);
  } else {
    add(current, node.parent, { role: "assistant", content: text, model: node.model, state: "done" });
    thread.show(current);
    refresh();
    save(current, true);
  }
}

/** Answers the message above an answer once more. */
function again(node) {
  if (!running.has(current.id) && checkSettings()) generate(current, node.parent);
}

function branch(node, step) {
  choose(current, node, step);
  thread.show(current);
  refresh();
  save(current);
}

/** Gives the results of tools to the model. */
function results(node, texts) {
  if (running.has(current.id) || !checkSettings()) return;
  let last = node.id;
  node.calls.forEach(({ id, name }, at) => {
    last = add(current, last, { role: "tool", callId: id, name, content: texts[at] }).id;
  });
  generate(current, last);
}

function checkSettings() {
  try {
    requestFields(current.settings);
    return true;
  } catch (error) {
    if (!(error instanceof SettingsError)) throw error;
    form.point(error.field);
    toast(error.message);
    return false;
  }
}

/** Streams an answer below a message. The reader may look at another conversation meanwhile. */
async function generate(conversation, parent) {
  const node = add(conversation, parent, {
    role: "assistant", content: "", state: "streaming", model: form.model?.id ?? "",
  });
  const abort = new AbortController();
  running.set(conversation.id, { abort, conversation });
  thread.show(conversation);
  thread.toEnd();
  refresh();
  await save(conversation, true);
  await refreshList();
  announce("The model answers.");
  let saved = performance.now();
  const grown = () => {
    if (current === conversation) thread.grow(node);
    if (performance.now() - saved < 2000) return;
    saved = performance.now();
    save(conversation);
  };
  try {
    await answer(conversation, node, abort.signal, grown);
  } catch (error) {
    askForKey(error.message);
  }
  running.delete(conversation.id);
  await save(conversation, true);
  await refreshList();
  if (current === conversation) {
    thread.show(conversation);
    refresh();
    const said = node.error ?? (node.content || node.calls?.map(({ name }) => `Calls ${name}.`).join(" ") || "");
    announce(said.slice(0, 2000));
    // Its context is known once the model is loaded.
    if (form.model?.context === undefined) loadModels();
  }
}

function stop() {
  running.get(current.id)?.abort.abort();
}

async function open(id) {
  const conversation = await find(id);
  if (conversation) show(conversation);
  sidebar.close();
  prompt.focus();
}

/** A conversation: the one that is shown, one whose answer streams, or one that was kept. */
async function find(id) {
  if (id === current.id) return current;
  if (running.has(id)) return running.get(id).conversation;
  const kept = await store.load(id);
  return kept && healed(kept);
}

function fresh() {
  show(newConversation(lastUsed()));
  sidebar.close();
  prompt.focus();
}

async function rename(id) {
  const conversation = await find(id);
  if (!conversation) return;
  const dialog = $("#name-dialog");
  const field = $("#name-form").elements.title;
  field.value = conversation.title;
  $("#name-form").onsubmit = async (event) => {
    event.preventDefault();
    dialog.close();
    conversation.title = titleOf(field.value) || conversation.title;
    await save(conversation);
    await refreshList();
    refresh();
  };
  dialog.showModal();
  field.select();
}

async function remove(id) {
  const conversation = await find(id);
  if (!conversation) return;
  removed.add(id);
  running.get(id)?.abort.abort();
  await store.remove(id);
  await refreshList();
  if (id === current.id) fresh();
  toast("The chat was deleted.", "Undo", async () => {
    removed.delete(id);
    await save(healed(conversation));
    await refreshList();
    open(id);
  });
}

function askForKey(message) {
  const dialog = $("#key-dialog");
  $("#key-error").textContent = message;
  $("#key-form").elements.key.value = key.get();
  if (!dialog.open) dialog.showModal();
}

// Listeners.

function listen() {
  $("#composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!send(prompt.value)) return;
    prompt.value = "";
    resize();
  });
  prompt.addEventListener("input", resize);
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      $("#composer").requestSubmit();
    } else if (event.key === "ArrowUp" && prompt.value === "") {
      const last = thread.lastOfReader();
      if (last) {
        event.preventDefault();
        last.click();
      }
    }
  });
  $("#stop").addEventListener("click", () => {
    stop();
    prompt.focus();
  });
  $("#new").addEventListener("click", fresh);
  $("#ideas").addEventListener("click", ({ target }) => target.matches("button") && send(target.textContent));
  $("#key").addEventListener("click", () => askForKey(""));
  $("#key-cancel").addEventListener("click", () => $("#key-dialog").close());
  $("#name-cancel").addEventListener("click", () => $("#name-dialog").close());
  $("#key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(event.target.elements.key.value.trim());
    $("#key-dialog").close();
    loadModels();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
      if (sidebar.isOpen) sidebar.close();
      else stop();
    } else if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "o") {
      event.preventDefault();
      fresh();
    }
  });
  addEventListener("pagehide", () => running.has(current.id) && store.save(current).catch(() => {}));
}

/** The box grows with its text. */
function resize() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}
