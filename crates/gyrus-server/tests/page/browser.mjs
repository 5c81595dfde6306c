// Chromium over the DevTools protocol, through a pipe: no port, no package.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A browser of its own, with an empty profile. */
export class Browser {
  #child;
  #profile;
  #next = 1;
  #waiting = new Map();
  #listeners = [];
  #rest = [];

  constructor(program) {
    this.#profile = mkdtempSync(join(tmpdir(), "gyrus-page-"));
    const flags = ["--headless=new", "--remote-debugging-pipe", `--user-data-dir=${this.#profile}`, "--no-first-run",
      "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars",
      "--force-color-profile=srgb",
      // Nothing but this machine can be reached, whatever the page tries.
      "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--no-proxy-server"];
    // The sandbox of Chromium does not start as root.
    if (process.getuid?.() === 0) flags.push("--no-sandbox");
    this.#child = spawn(program, flags, { stdio: ["ignore", "ignore", "pipe", "pipe", "pipe"] });
    let errors = "";
    this.#child.stderr.on("data", (data) => { errors = (errors + data).slice(-4000); });
    this.#child.stdio[4].on("data", (data) => this.#receive(data));
    this.#child.on("exit", (code) => {
      for (const { reject } of this.#waiting.values()) reject(new Error(`the browser ended with ${code}: ${errors}`));
    });
    this.#child.on("error", (error) => { throw error; });
  }

  /** Sends a command. */
  send(method, params = {}, sessionId) {
    const id = this.#next++;
    this.#child.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId })}\0`);
    return new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject, method }));
  }

  /** Opens a page. */
  async page(url) {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const page = new Page(this, sessionId);
    this.#listeners.push((message) => message.sessionId === sessionId && page.event(message));
    for (const domain of ["Page", "Runtime", "Log", "Network", "Accessibility"]) await page.send(`${domain}.enable`);
    await page.open(url);
    return page;
  }

  async close() {
    const ended = new Promise((resolve) => this.#child.on("exit", resolve));
    this.send("Browser.close").catch(() => {});
    const timer = setTimeout(() => this.#child.kill("SIGKILL"), 5000);
    await ended;
    clearTimeout(timer);
    rmSync(this.#profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
  }

  #receive(data) {
    this.#rest.push(data);
    if (!data.includes(0)) return;
    const parts = Buffer.concat(this.#rest).toString().split("\0");
    this.#rest = [Buffer.from(parts.pop())];
    for (const part of parts) {
      const message = JSON.parse(part);
      const waiting = this.#waiting.get(message.id);
      if (!waiting) {
        this.#listeners.forEach((listener) => listener(message));
        continue;
      }
      this.#waiting.delete(message.id);
      if (message.error) waiting.reject(new Error(`${waiting.method}: ${message.error.message}`));
      else waiting.resolve(message.result);
    }
  }
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** A page of the browser. */
export class Page {
  #browser;
  #session;
  /** Errors of scripts, of the console, and of the security policy. */
  problems = [];
  /** The address of every request. */
  requests = [];

  constructor(browser, session) {
    this.#browser = browser;
    this.#session = session;
  }

  send(method, params) {
    return this.#browser.send(method, params, this.#session);
  }

  event({ method, params }) {
    if (method === "Runtime.exceptionThrown") {
      const { text, exception } = params.exceptionDetails;
      this.problems.push(`${text} ${exception?.description ?? ""}`);
    } else if (method === "Log.entryAdded" && params.entry.level === "error") {
      this.problems.push(`${params.entry.text} ${params.entry.url ?? ""}`);
    } else if (method === "Runtime.consoleAPICalled" && params.type === "error") {
      this.problems.push(params.args.map(({ value }) => value).join(" "));
    } else if (method === "Network.requestWillBeSent") {
      this.requests.push(params.request.url);
    }
  }

  async open(url) {
    await this.send("Page.navigate", { url });
    await this.wait("document.readyState === 'complete'");
  }

  async reload() {
    await this.send("Page.reload");
    await sleep(100);
    await this.wait("document.readyState === 'complete'");
  }

  /** The value of an expression, which may be a promise. */
  async get(expression) {
    const { result, exceptionDetails } =
      await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  }

  /** Waits until an expression is true, and returns its value. */
  async wait(expression, seconds = 15) {
    const end = Date.now() + seconds * 1000;
    for (;;) {
      // While a page is opened there is nothing to ask.
      const value = await this.get(expression).catch((error) => {
        if (/context|navigat/i.test(error.message)) return false;
        throw error;
      });
      if (value) return value;
      if (Date.now() > end) throw new Error(`after ${seconds} s not so: ${expression}\n${this.problems.join("\n")}`);
      await sleep(20);
    }
  }

  /** Clicks an element where a reader would. */
  async click(selector) {
    const { x, y } = await this.wait(`(() => {
      const element = document.querySelector(${JSON.stringify(selector)});
      if (!element) return false;
      element.scrollIntoView({ block: "nearest" });
      const box = element.getBoundingClientRect();
      return box.width > 0 && { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    })()`);
    for (const type of ["mouseMoved", "mousePressed", "mouseReleased"]) {
      await this.send("Input.dispatchMouseEvent", { type, x, y, button: type === "mouseMoved" ? "none" : "left", clickCount: 1 });
    }
  }

  /** Types text into what has the focus. */
  async type(text) {
    await this.send("Input.insertText", { text });
  }

  /** Presses a key. */
  async press(key, code = key, keyCode = { Enter: 13, Escape: 27, Tab: 9, ArrowUp: 38 }[key]) {
    const text = key === "Enter" ? "\r" : undefined;
    await this.send("Input.dispatchKeyEvent", { type: "keyDown", key, code, text, windowsVirtualKeyCode: keyCode });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", key, code, windowsVirtualKeyCode: keyCode });
  }

  /** Replaces the text of a field. */
  async fill(selector, text) {
    await this.get(`(() => {
      const field = document.querySelector(${JSON.stringify(selector)});
      field.focus();
      field.select();
    })()`);
    if (text === "") await this.press("Delete", "Delete", 46);
    else await this.type(text);
  }

  /** Gives files to a field, as if they had been picked. */
  async choose(selector, files) {
    const { result } = await this.send("Runtime.evaluate", { expression: `document.querySelector(${JSON.stringify(selector)})` });
    await this.send("DOM.setFileInputFiles", { files, objectId: result.objectId });
  }

  /** Drags files over an element and drops them there. */
  async drop(selector, files) {
    const { x, y } = await this.get(`(() => {
      const box = document.querySelector(${JSON.stringify(selector)}).getBoundingClientRect();
      return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    })()`);
    const data = { items: [], files, dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver", "drop"]) await this.send("Input.dispatchDragEvent", { type, x, y, data });
  }

  /** Saves what the page downloads in a folder, without asking. */
  async downloads(folder) {
    await this.#browser.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: folder });
  }

  async size(width, height, mobile = false) {
    await this.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile });
  }

  async theme(value) {
    await this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value }] });
  }

  async picture() {
    const { data } = await this.send("Page.captureScreenshot", { format: "png" });
    return Buffer.from(data, "base64");
  }

  /** What a screen reader finds: role and name of every element that can be used. */
  async controls() {
    const { nodes } = await this.send("Accessibility.getFullAXTree");
    const roles = new Set(["button", "link", "textbox", "combobox", "spinbutton", "menuitem", "checkbox", "searchbox", "progressbar"]);
    return nodes.filter(({ ignored, role }) => !ignored && roles.has(role?.value))
      .map(({ role, name }) => ({ role: role.value, name: name?.value ?? "" }));
  }
}
