// The pages in a real browser. Arguments: the address of the server, which has the test models, the browser, and a recording.

import assert from "node:assert";
import { Browser } from "./browser.mjs";
import { speech } from "./speech.mjs";
import { HOSTILE, LONG_LINE, Upstream } from "./upstream.mjs";

const [real, program, recording] = process.argv.slice(2);
const upstream = new Upstream(real);
const origin = await upstream.start();
const browser = new Browser(program);
const started = Date.now();
const step = (name) => console.log(`${((Date.now() - started) / 1000).toFixed(1)} s ${name}`);

const LAST = "[...document.querySelectorAll('.message.assistant')].at(-1)";
const ENDED = "document.querySelector('#stop').hidden && !document.querySelector('.cursor, .waiting')";
const answerText = `${LAST}?.querySelector('.body').innerText`;
const stats = `${LAST}.querySelector('.stats').textContent`;
const count = (selector) => `document.querySelectorAll(${JSON.stringify(selector)}).length`;

try {
  const page = await browser.page(origin);
  await page.size(1200, 800);
  await conversation(page);
  await branches(page);
  await settings(page);
  await reload(page);
  await stop(page);
  await hostile(page);
  await longLine(page);
  await tools(page);
  await failures(page);
  await keys(page);
  await readers(page);
  await speech(page, { origin, real, upstream, recording, step });
  await phone(page);
  await status(page);
  const outside = page.requests.filter((url) => !url.startsWith(origin) && !/^(data|blob):/.test(url));
  assert.deepStrictEqual(outside, [], "every request is to the server");
  const expected = /status of (400|401|429)/;
  assert.deepStrictEqual(page.problems.filter((text) => !expected.test(text)), [], "no script and no policy complains");
} finally {
  await browser.close();
  upstream.stop();
}
console.log("ok");

async function ask(page, text) {
  await page.fill("#prompt", text);
  await page.press("Enter");
}

async function answered(page, seconds) {
  await page.wait(ENDED, seconds);
  return page.get(answerText);
}

/** The model's words come while it writes them. */
async function conversation(page) {
  await page.wait("document.querySelector('#model').value === 'tales'");
  assert.ok(await page.get("!document.querySelector('#empty').hidden"));
  assert.strictEqual(await page.get("document.querySelector('h1').textContent"), "New chat");
  await page.click("#open-settings");
  await page.fill("[name=max_tokens]", "60");
  await page.fill("[name=temperature]", "0.9");
  await page.fill("[name=seed]", "7");
  await page.click("#close-settings");
  // Every length that the answer has while it grows.
  await page.get(`(() => {
    window.lengths = new Set();
    new MutationObserver(() => lengths.add(document.querySelector('.message.assistant .body')?.innerText.length ?? 0))
      .observe(document.querySelector('#thread'), { subtree: true, childList: true, characterData: true });
  })()`);
  await ask(page, "Tell me a story about a fox.");
  await page.wait(`${count(".message")} === 2`);
  const text = await answered(page);
  assert.ok(text.length > 40, text);
  const lengths = await page.get("[...lengths]");
  assert.ok(lengths.length > 5, `the answer came at once: ${lengths}`);
  assert.match(await page.get(stats), /^\d+ tokens · [\d.]+ tokens\/s · first after [\d.]+ m?s$/);
  assert.strictEqual(await page.get("document.querySelector('#title').textContent"), "Tell me a story about a fox.");
  // The size of the context is asked for once the model is loaded.
  await page.wait("/^\\d+ \\/ 512 tokens$/.test(document.querySelector('#context').textContent)");
  // The same request to the server gives the same words.
  const body = { ...upstream.bodies.at(-1), stream: false };
  delete body.stream_options;
  const whole = await (await fetch(`${real}/v1/chat/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  })).json();
  assert.strictEqual(squeezed(text), squeezed(whole.choices[0].message.content));
  step("a conversation streams");
}

function squeezed(text) {
  return text.replace(/\s+/g, " ").trim();
}

/** Regenerating and editing add versions, and none is lost. */
async function branches(page) {
  const first = await page.get(answerText);
  await page.get("document.querySelector('[name=seed]').value = '8'");
  await page.get("document.querySelector('[name=seed]').dispatchEvent(new Event('input', { bubbles: true }))");
  await page.click(".message.assistant [aria-label='Answer again']");
  await page.wait(`${LAST}.querySelector('.branch')?.innerText.trim() === '2/2'`);
  const second = await answered(page);
  assert.notStrictEqual(second, first);
  await page.click(".message.assistant [aria-label='Previous version']");
  await page.wait(`${answerText} === ${JSON.stringify(first)}`);

  await page.click(".message.user [aria-label='Edit']");
  await page.fill(".editor textarea", "Tell me a story about a bear.");
  await page.press("Enter");
  await page.wait("document.querySelector('.message.user .branch')?.innerText.trim() === '2/2'");
  const bear = await answered(page);
  assert.strictEqual(upstream.bodies.at(-1).messages.at(-1).content, "Tell me a story about a bear.");
  assert.notStrictEqual(bear, first);
  await page.click(".message.user [aria-label='Previous version']");
  await page.wait(`${answerText} === ${JSON.stringify(first)}`);
  assert.strictEqual(await page.get("document.querySelector('.message.assistant .branch').innerText.trim()"), "1/2");
  await page.click(".message.user [aria-label='Next version']");
  await page.wait(`${answerText} === ${JSON.stringify(bear)}`);

  // An answer that the reader has written is what the model is told.
  await page.click(".message.assistant [aria-label='Edit']");
  await page.fill(".editor textarea", "Once there was a bear.");
  await page.click(".editor .primary");
  await page.wait(`${answerText} === 'Once there was a bear.'`);
  await ask(page, "And then?");
  await answered(page);
  assert.deepStrictEqual(upstream.bodies.at(-1).messages.map(({ content }) => content),
    ["Tell me a story about a bear.", "Once there was a bear.", "And then?"]);
  step("answers are regenerated, messages edited, versions kept");
}

async function settings(page) {
  await page.click("#new");
  await page.click("#open-settings");
  await page.fill("[name=system]", "You are a poet.");
  await page.fill("[name=top_k]", "3");
  await page.fill("[name=max_tokens]", "5");
  await page.fill("[name=stop]", "zebra\nlion");
  await ask(page, "A poem, please.");
  await answered(page);
  const body = upstream.bodies.at(-1);
  assert.deepStrictEqual(body.messages[0], { role: "system", content: "You are a poet." });
  assert.deepStrictEqual([body.top_k, body.max_tokens, body.stop, body.model], [3, 5, ["zebra", "lion"], "tales"]);
  assert.match(await page.get(stats), /^5 tokens · /);
  assert.match(await page.get(`${LAST}.innerText`), /The limit of tokens was reached/);

  await page.fill("[name=schema]", "{");
  assert.match(await page.get("document.querySelector('#schema-error').textContent"), /not JSON/);
  const requests = upstream.bodies.length;
  await ask(page, "A city?");
  assert.strictEqual(upstream.bodies.length, requests, "a wrong schema is not sent");
  assert.strictEqual(await page.get("document.activeElement.name"), "schema");
  const schema = { type: "object", properties: { city: { enum: ["Kyoto", "Oslo"] } }, required: ["city"], additionalProperties: false };
  await page.fill("[name=schema]", JSON.stringify(schema));
  await page.fill("[name=max_tokens]", "60");
  await page.get("document.querySelector('#prompt').focus()");
  await page.press("Enter");
  const text = await page.wait(`${ENDED} && ${answerText}?.includes('city') && ${answerText}`);
  assert.ok(["Kyoto", "Oslo"].includes(JSON.parse(text).city), text);
  await page.click("#close-settings");
  step("settings take effect");
}

/** Conversations, versions and settings are there after a reload, and what a stream left behind is too. */
async function reload(page) {
  const before = await page.get("document.querySelector('#thread').innerText");
  await page.reload();
  await page.wait(`${count(".message")} === 4 && ${count(".conversation")} === 2`);
  assert.strictEqual(await page.get("document.querySelector('#thread').innerText"), before);
  assert.strictEqual(await page.get("document.querySelector('[name=system]').value"), "You are a poet.");
  await page.click(".conversation:nth-of-type(3) .conversation-open");
  await page.wait("document.querySelector('.message.user .branch')?.innerText.trim() === '2/2'");
  assert.strictEqual(await page.get("document.querySelector('[name=system]').value"), "");

  await page.click("#new");
  await ask(page, "script: endless");
  await page.wait(`${answerText}?.includes('word300 ')`, 20);
  await page.reload();
  await page.wait(`${LAST}?.innerText.includes('Stopped.') && ${answerText}.includes('word1 ')`);
  step("a reload keeps everything");
}

async function stop(page) {
  await page.wait(`${upstream.cut} >= 0`);
  const cut = upstream.cut;
  await page.click("#new");
  await ask(page, "script: endless");
  await page.wait(`${answerText}?.includes('word20 ')`);
  await page.click("#stop");
  const text = await answered(page);
  assert.match(await page.get(`${LAST}.innerText`), /Stopped\./);
  assert.ok(upstream.cut > cut, "the server sees that nobody reads any more");
  await new Promise((resolve) => setTimeout(resolve, 200));
  assert.strictEqual(await page.get(answerText), text);
  // By the keyboard as well, and for the real server.
  await ask(page, "script: endless");
  await page.wait(`${count(".message")} === 4 && ${answerText}.includes('word20 ')`);
  await page.press("Escape");
  await answered(page);
  await page.click("#open-settings");
  await page.fill("[name=max_tokens]", "");
  await page.fill("[name=stop]", "");
  await page.fill("[name=system]", "");
  await page.click("#close-settings");
  step("stop stops");
}

async function hostile(page) {
  await page.click("#new");
  await ask(page, "script: hostile");
  await answered(page);
  const inside = "document.querySelector('#thread')";
  assert.strictEqual(await page.get(`${inside}.querySelectorAll('.body img, .reasoning img, script, iframe, svg[onload], [onerror], [style]').length`), 0);
  assert.deepStrictEqual(await page.get(`[...${LAST}.querySelectorAll('.body a')].map((a) => a.href)`),
    ["https://outside.example/pixel.png", "https://example.com/a?b=c"]);
  assert.ok(await page.get(`[...${inside}.querySelectorAll('a')].every((a) => a.rel.includes('noopener') && a.target === '_blank')`));
  const text = await page.get(`${LAST}.querySelector('.body').textContent`);
  for (const part of ['<img src="x" onerror="window.harmed = 1">', "<script>window.harmed = 2</script>", "(javascript:window.harmed=4)",
    "<javascript:window.harmed=5>", "\u241b[31mred\u241b[0m \u2407", "<script>window.harmed = 8</script>", "<b>a</b>"]) {
    assert.ok(text.includes(part), `${part} is shown as it is in ${text}`);
  }
  assert.ok(!text.includes("\u001b") && HOSTILE.includes("\u001b"));
  assert.strictEqual(await page.get(`${LAST}.querySelector('details.reasoning').open`), false, "reasoning is folded");
  assert.ok(await page.get(`${LAST}.querySelector('.reasoning-text').textContent.includes('Let me think.')`));
  for (const a of await page.get(`[...${LAST}.querySelectorAll('.body a')].map((_, at) => at)`)) {
    await page.get(`${LAST}.querySelectorAll('.body a')[${a}].dispatchEvent(new MouseEvent('mouseover', { bubbles: true }))`);
  }
  await page.reload();
  await page.wait(`${LAST}?.querySelector('.body').textContent.includes('harmed = 1')`);
  assert.strictEqual(await page.get("window.harmed"), undefined);
  // The policy holds even for a mistake of the page's own.
  const refused = await page.get(`(() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; } })()`);
  assert.ok(refused, "HTML cannot be parsed in the page");
  page.problems = page.problems.filter((text) => !/TrustedHTML|require-trusted-types/.test(text));
  step("a hostile answer is inert");
}

/** Two megabytes in two lines: the page shows them, and stays responsive. */
async function longLine(page) {
  await page.click("#new");
  await page.get(`(() => {
    window.gap = 0;
    let last = performance.now();
    window.ticking = setInterval(() => { const now = performance.now(); gap = Math.max(gap, now - last); last = now; }, 5);
  })()`);
  await ask(page, "script: long");
  await page.wait(`${ENDED} && ${LAST}?.querySelector('.body').lastElementChild?.textContent === 'The end.'`, 30);
  const [paragraph, code] = await page.get(`[...${LAST}.querySelectorAll('.body > p:first-child, .body pre code')].map((e) => e.textContent.length)`);
  assert.deepStrictEqual([paragraph, code], [LONG_LINE.length, LONG_LINE.length]);
  const gap = await page.get("clearInterval(ticking), gap");
  assert.ok(gap < 2000, `the page stood still for ${gap} ms`);
  assert.ok(await page.get("document.scrollingElement.scrollWidth <= innerWidth"));
  step(`a line of a megabyte does not stop the page (longest pause ${gap.toFixed(0)} ms)`);
}

async function tools(page) {
  await page.click("#new");
  await page.click("#open-settings");
  await page.fill("[name=tools]", '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]');
  await page.click("#close-settings");
  await ask(page, "script: tool");
  await answered(page);
  assert.strictEqual(upstream.bodies.at(-1).tools[0].function.name, "weather");
  assert.match(await page.get(`${LAST}.querySelector('.call').innerText`), /Calls\s+weather\s+\{\s+"city": "Oslo",\s+"days": 3\s+\}/);
  await page.fill(".call-results textarea", "Rain.");
  await page.click(".call-results .primary");
  await page.wait(`${answerText} === 'The tool said: Rain.'`);
  const sent = upstream.bodies.at(-1).messages;
  assert.deepStrictEqual(sent.at(-1), { role: "tool", tool_call_id: "call_1", content: "Rain." });
  assert.strictEqual(sent.at(-2).tool_calls[0].function.name, "weather");
  step("tool calls are shown and answered");
}

async function failures(page) {
  await page.click("#new");
  await ask(page, "script: full");
  await page.wait(`${LAST}?.querySelector('.error')?.innerText.includes('the queue is full (try again in 7 s)')`);
  // An answer that did not come is not told to the model as an empty one.
  const requests = upstream.bodies.length;
  await ask(page, "Are you there?");
  await page.wait(`${count(".message")} === 4 && ${LAST}.querySelector('.error')`);
  assert.strictEqual(upstream.bodies.length, requests + 1);
  assert.deepStrictEqual(upstream.bodies.at(-1).messages, [{ role: "user", content: "script: full\n\nAre you there?" }]);
  await page.click("#new");
  await ask(page, "script: broken");
  await page.wait(`${LAST}?.querySelector('.error')?.innerText.includes('the device was lost')`);
  assert.strictEqual(await page.get(answerText), "Half an answ");
  // Deleting can be undone.
  const before = await page.get(count(".conversation"));
  await page.click(".conversation.current [aria-label^='Delete']");
  await page.wait(`${count(".conversation")} === ${before - 1} && ${count(".message")} === 0`);
  await page.click(".toast button");
  await page.wait(`${count(".conversation")} === ${before} && ${answerText} === 'Half an answ'`);
  step("errors are told, deleting is undone");
}

async function keys(page) {
  upstream.key = "sk-secret-secret-secret";
  await page.reload();
  await page.wait("document.querySelector('#key-dialog').open");
  await page.fill("[name=key]", upstream.key);
  await page.press("Enter");
  await page.wait("!document.querySelector('#key-dialog').open && document.querySelector('#model').value === 'tales'");
  await page.reload();
  await page.wait("document.querySelector('#model').value === 'tales'");
  assert.ok(await page.get("!document.querySelector('#key-dialog').open"));
  upstream.key = null;
  step("a key is asked for once");
}

/** Everything that can be used has a name, and the keyboard reaches it. */
async function readers(page) {
  await page.click("#open-settings");
  const controls = await page.controls();
  assert.ok(controls.length > 25, `${controls.length}`);
  assert.deepStrictEqual(controls.filter(({ name }) => name.trim() === ""), []);
  await page.press("Escape");
  assert.ok(await page.get("document.querySelector('#settings').hidden"));
  assert.strictEqual(await page.get("document.activeElement.id"), "open-settings");
  await page.click("#new");
  await ask(page, "script: broken");
  await answered(page);
  await page.wait("document.querySelector('#announcer').textContent === 'the device was lost'");
  await page.get("document.querySelector('#prompt').focus()");
  await page.press("ArrowUp");
  assert.strictEqual(await page.get("document.activeElement.value"), "script: broken");
  await page.press("Escape");
  assert.strictEqual(await page.get(count(".editor")), 0);
  // The theme follows the system until it is chosen.
  const dark = "getComputedStyle(document.body).backgroundColor === 'rgb(22, 22, 24)'";
  await page.theme("dark");
  await page.wait(dark);
  await page.click("#theme");
  assert.ok(!(await page.get(dark)));
  await page.reload();
  assert.ok(!(await page.get(dark)));
  await page.click("#theme");
  await page.click("#theme");
  await page.theme("light");
  step("names, keys and themes");
}

async function phone(page) {
  await page.size(360, 640, true);
  await page.reload();
  await page.wait("document.querySelector('#model').value === 'tales'");
  assert.ok(await page.get("document.documentElement.scrollWidth <= 360"));
  await page.click("#open-sidebar");
  await page.wait("document.querySelector('#sidebar').getBoundingClientRect().left === 0");
  const focused = "(document.querySelector('#prompt').focus(), document.activeElement.id)";
  assert.strictEqual(await page.get(focused), "close-sidebar", "what the list covers cannot be reached");
  await page.press("Escape");
  assert.strictEqual(await page.get("document.activeElement.id"), "open-sidebar");
  assert.strictEqual(await page.get(focused), "prompt");
  await page.click("#open-sidebar");
  await page.size(1200, 800);
  await page.wait(`${focused} === 'prompt'`);
  await page.size(360, 640, true);
  await page.wait("document.querySelector('#sidebar').getBoundingClientRect().right <= 0");
  await page.click("#open-sidebar");
  await page.wait("document.querySelector('#sidebar').getBoundingClientRect().left === 0");
  await page.click("#new");
  await page.wait("document.querySelector('#sidebar').getBoundingClientRect().right <= 0");
  await ask(page, "script: showcase");
  await page.wait(`${ENDED} && ${answerText}?.includes('Open addressing')`);
  assert.ok(await page.get("document.documentElement.scrollWidth <= 360"), "nothing is wider than a phone");
  await page.size(1200, 800);
  step("a phone's width is enough");
}

async function status(page) {
  await page.open(`${origin}/status`);
  await page.wait("document.querySelector('#state').textContent === 'serving'");
  await page.wait("document.querySelectorAll('#models tr').length > 0 && document.querySelector('#models th').textContent === 'tales'");
  const used = Number((await page.get("document.querySelectorAll('#models td')[7].textContent")).replace(/\D/g, ""));
  assert.ok(used > 100, `${used} generated tokens`);
  await page.wait("document.querySelectorAll('#chart-tokens .line').length > 0");
  assert.match(await page.get("document.querySelector('#kv-note').textContent"), /^\d+ of \d+ blocks$/);
  assert.match(await page.get("document.querySelector('#chart-sequences svg').getAttribute('aria-label')"), /running \d+, queued \d+/);
  await page.size(360, 640, true);
  await page.wait("document.documentElement.scrollWidth <= 360");
  await page.size(1200, 800);
  // Both pages work below a prefix of a proxy.
  await page.open(`${origin}/below/`);
  await page.wait("document.querySelector('#model')?.value === 'tales'");
  await page.click("[href=status]");
  await page.wait("location.pathname === '/below/status' && document.querySelector('#state')?.textContent === 'serving'");
  step("the state of the server is shown");
}
