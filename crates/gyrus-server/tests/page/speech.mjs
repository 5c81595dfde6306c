// The panel that transcribes a recording, as a reader uses it.

import assert from "node:assert";
import { existsSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { HOSTILE } from "./upstream.mjs";
import { LONG_SEGMENT } from "./recordings.mjs";

const SEGMENTS = "[...document.querySelectorAll('#segments .segment-text')].map((one) => one.textContent)";
const ERROR = "document.querySelector('#speech-error').textContent";
const STATUS = "document.querySelector('#speech-status').textContent";
const ENDED = "document.querySelector('#speech-stop').hidden";
const NAME = "document.querySelector('#file-name').textContent";

/** `real` is the server with the test model, `upstream` what the page talks to, `recording` a WAV file. */
export async function speech(page, { origin, real, upstream, recording, step }) {
  const folder = mkdtempSync(join(tmpdir(), "gyrus-speech-"));
  const file = (name, content) => {
    const path = join(folder, name);
    writeFileSync(path, content);
    return path;
  };
  const { recordings } = upstream;
  const run = async (path) => {
    await page.choose("#speech [name=file]", [path]);
    await page.wait(`${NAME}.startsWith(${JSON.stringify(path.split("/").at(-1))})`);
    await page.click("#speech-go");
  };
  try {
    await page.downloads(folder);
    await opening(page, origin);
    await whole(page, { real, recordings, recording, folder, run });
    step("a recording is transcribed as the server does it, and saved");
    await stopped(page, { recordings, run, script: file("endless.wav", "script: endless") });
    await hostile(page, { recordings, run, script: file("hostile.wav", "script: hostile"), folder });
    step("a transcript is stopped, and a hostile one is inert");
    await failures(page, { upstream, run, file });
    await dropped(page, { recordings, recording, other: file("silent.wav", "script: silent") });
    step("recordings are dropped, and errors told");
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** The panel is there if the server has a speech model, and one panel is open at a time. */
async function opening(page, origin) {
  await page.open(origin);
  await page.wait("!document.querySelector('#open-speech').hidden");
  await page.get(`(async () => {
    const { data } = await (await fetch("v1/models")).json();
    window.speechModels = data.filter(({ does }) => does === "transcribes speech").map(({ id }) => id);
  })()`);
  await page.click("#open-settings");
  await page.click("#open-speech");
  assert.ok(await page.get("document.querySelector('#settings').hidden && !document.querySelector('#speech').hidden"));
  // The keyboard is at the target of files at once.
  assert.strictEqual(await page.get("document.activeElement.name"), "file");
  const options = await page.get("[...document.querySelector('#speech [name=model]').options].map(({ value }) => value)");
  assert.deepStrictEqual(options, await page.get("speechModels"));
  assert.deepStrictEqual(options, ["whisper"]);
  assert.match(await page.get("document.querySelector('#file-note').textContent"), /up to 8 MiB$/);
  const controls = await page.controls();
  assert.deepStrictEqual(controls.filter(({ name }) => name.trim() === ""), []);
  assert.ok(controls.some(({ role, name }) => role === "button" && name.startsWith("Drop a recording here")));
  await page.press("Escape");
  assert.ok(await page.get("document.querySelector('#speech').hidden"));
  assert.strictEqual(await page.get("document.activeElement.id"), "open-speech");
  await page.press("Enter");
  await page.wait("!document.querySelector('#speech').hidden");
  await page.click("#speech-go");
  await page.wait(`${ERROR} === 'Choose a recording first.'`);
}

/** Segments, times and files are those that the server itself writes. */
async function whole(page, { real, recordings, recording, folder, run }) {
  await page.get(`(() => {
    document.querySelector('#speech [name=language]').value = 'en';
    document.querySelector('#speech [name=task]').value = 'translate';
    document.querySelector('#speech [name=task]').dispatchEvent(new Event('change', { bubbles: true }));
  })()`);
  await run(recording);
  await page.wait(`${ENDED} && !document.querySelector('#speech-actions').hidden`, 60);
  const { path, fields } = recordings.asked.at(-1);
  assert.strictEqual(path, "/v1/audio/translations");
  assert.deepStrictEqual([fields.model, fields.language, fields.stream], ["whisper", "en", "true"]);
  assert.ok(fields.file.equals(readFileSync(recording)));

  const form = (format) => {
    const form = new FormData();
    form.append("file", new Blob([readFileSync(recording)]), "speech.wav");
    for (const [name, value] of [["model", "whisper"], ["language", "en"], ["response_format", format]]) form.append(name, value);
    return form;
  };
  const ask = async (format) => (await fetch(`${real}/v1/audio/translations`, { method: "POST", body: form(format) })).text();
  const { segments, text } = JSON.parse(await ask("verbose_json"));
  assert.ok(segments.length > 0 && text.length > 0, "the test model says something");
  // Control characters are made visible, so that only their places are compared.
  const shown = await page.get(SEGMENTS);
  assert.deepStrictEqual(shown.map(({ length }) => length), segments.map((one) => one.text.trim().length));
  const times = await page.get("[...document.querySelectorAll('.segment-time')].map((one) => one.textContent)");
  assert.deepStrictEqual(times, segments.map(({ start, end }) => `${time(start)} – ${time(end)}`));
  assert.match(await page.get(STATUS), /^\d+ segments? · English · 0:01\.5 in [\d.]+ s$/);
  await page.wait(`document.querySelector('#announcer').textContent === ${STATUS}`);
  for (const format of ["txt", "srt", "vtt"]) {
    await page.click(`#speech [data-format=${format}]`);
    const saved = await saving(join(folder, `speech.${format}`));
    assert.strictEqual(saved, await ask(format === "txt" ? "text" : format));
  }
  await page.fill("#prompt", "What is meant by this?");
  await page.click("#speech-insert");
  const value = await page.get("document.querySelector('#prompt').value");
  assert.strictEqual(value, area(`What is meant by this?\n\n${text}`));
  assert.strictEqual(await page.get("document.activeElement.id"), "prompt");
  await page.fill("#prompt", "");
  // Without times only the text is left, and the choice is kept.
  await page.click("#speech [name=times]");
  assert.ok(await page.get("[...document.querySelectorAll('.segment-time')].every((one) => one.offsetWidth === 0)"));
  await page.reload();
  await page.wait("!document.querySelector('#open-speech').hidden");
  assert.deepStrictEqual(await page.get("['language', 'task', 'times'].map((name) => document.querySelector('#speech-form').elements[name])"
    + ".map((one) => one.type === 'checkbox' ? one.checked : one.value)"), ["en", "translate", false]);
  await page.click("#open-speech");
  await page.click("#speech [name=times]");
}

const time = (seconds) => `0:${seconds.toFixed(1).padStart(4, "0")}`;

/** A text as a text area has it. */
const area = (text) => text.replace(/\r\n?/g, "\n");

/** The content of a file once it has come. */
async function saving(path) {
  for (let tries = 0; !existsSync(path); tries++) {
    assert.ok(tries < 500, `${path} was not saved`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return readFileSync(path, "utf8");
}

async function stopped(page, { recordings, run, script }) {
  await run(script);
  await page.wait(`${SEGMENTS}.length > 20`);
  assert.ok(await page.get("document.querySelector('#speech-options').disabled && !document.querySelector('#speech-progress').hidden"));
  assert.ok(await page.get("document.querySelector('#speech-progress').value > 0"));
  assert.strictEqual(recordings.cut, 0);
  assert.strictEqual(await page.get("document.activeElement.id"), "speech-stop");
  await page.press("Enter");
  await page.wait(`${ENDED} && ${STATUS} === 'Stopped.'`);
  for (let tries = 0; recordings.cut === 0; tries++) {
    assert.ok(tries < 250, "the request went on");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  // What was said stays, and nothing follows.
  const before = await page.get(SEGMENTS);
  assert.strictEqual(before[0], "word0");
  // A reader at the end stays there.
  const [all, top, seen] = await page.get("['scrollHeight', 'scrollTop', 'clientHeight'].map((name) => document.querySelector('#speech')[name])");
  assert.ok(all > seen + 100 && all - top - seen < 2, `${[all, top, seen]}`);
  await new Promise((resolve) => setTimeout(resolve, 200));
  assert.strictEqual((await page.get(SEGMENTS)).length, before.length);
  assert.ok(await page.get("document.querySelector('#speech-progress').hidden && !document.querySelector('#speech-actions').hidden"));
  assert.strictEqual(await page.get("document.activeElement.id"), "speech-go");
}

async function hostile(page, { recordings, run, script, folder }) {
  recordings.hostile = [` ${HOSTILE}`, " 1\n\n00:00:00,000 --> 00:00:09,000\r\nforged", ` ${LONG_SEGMENT}`];
  await page.get("window.harmed = undefined");
  await run(script);
  await page.wait(`${ENDED} && ${SEGMENTS}.length === 3`);
  const [first, , long] = await page.get(SEGMENTS);
  for (const part of ['<img src="x" onerror="window.harmed = 1">', "<script>window.harmed = 2</script>", "[a link](javascript:"]) {
    assert.ok(first.includes(part), `${part} is shown as it is in ${first}`);
  }
  assert.ok(!first.includes("\u001b"), "control characters are made visible");
  assert.strictEqual(long.length, LONG_SEGMENT.length);
  assert.strictEqual(await page.get("document.querySelectorAll('#speech :is(#segments, #speech-status) :not(p, span)').length"), 0);
  assert.strictEqual(await page.get("window.harmed"), undefined);
  assert.match(await page.get(STATUS), /^3 segments · <b> · /);
  assert.ok(await page.get("document.querySelector('#speech').scrollWidth <= document.querySelector('#speech').clientWidth"));
  // A segment cannot forge another cue.
  await page.click("#speech [data-format=srt]");
  const cues = (await saving(join(folder, "hostile.srt"))).split("\n\n");
  assert.deepStrictEqual([cues.length, cues[3]], [4, ""]);
  assert.strictEqual(cues[1], "2\n00:00:01,250 --> 00:00:02,500\n1  00:00:00,000 -> 00:00:09,000  forged");
}

async function failures(page, { upstream, run, file }) {
  await run(file("words.wav", "These are words."));
  await page.wait(`${ENDED} && ${ERROR}.includes('not audio that can be read')`);
  assert.deepStrictEqual(await page.get(SEGMENTS), []);
  await run(file("broken.wav", "script: broken"));
  await page.wait(`${ENDED} && ${ERROR} === 'the device <i>was</i> lost'`);
  assert.deepStrictEqual(await page.get(SEGMENTS), ["Half a sent"]);
  await run(file("cut.wav", "script: cut"));
  await page.wait(`${ENDED} && ${ERROR} === 'The connection ended before the answer did.'`);

  const before = upstream.recordings.asked.length;
  const large = file("large.wav", "");
  truncateSync(large, 9 << 20);
  await run(large);
  await page.wait(`${ERROR} !== ''`);
  assert.match(await page.get(ERROR), /^large\.wav has 9 MiB, and this server takes 8 MiB at most\..*--max-body\.$/);
  const gone = file("gone.wav", "script: silent");
  await page.choose("#speech [name=file]", [gone]);
  await page.wait(`${NAME}.startsWith('gone.wav')`);
  rmSync(gone);
  await page.click("#speech-go");
  await page.wait(`${ERROR} === 'gone.wav cannot be read. Choose it again.'`);
  assert.strictEqual(upstream.recordings.asked.length, before, "neither was sent");

  // The key is that of the other requests.
  upstream.key = "sk-secret-secret-secret";
  await run(file("silent.wav", "script: silent"));
  await page.wait(`${ENDED} && ${STATUS} === 'No speech was found.'`);
  assert.strictEqual(upstream.recordings.asked.at(-1).authorization, `Bearer ${upstream.key}`);
  upstream.key = "sk-another-another";
  await page.click("#speech-go");
  await page.wait(`document.querySelector('#key-dialog').open && ${ERROR} === 'the API key is wrong'`);
  upstream.key = null;
  await page.click("#key-cancel");
}

/** Files that are dropped anywhere come into the panel, which opens for them. */
async function dropped(page, { recordings, recording, other }) {
  const address = await page.get("location.href");
  await page.drop("#drop", [recording]);
  await page.wait(`${NAME}.startsWith('speech.wav, 46.9 KiB')`);
  await page.click("#close-speech");
  await page.drop("#thread", [other]);
  await page.wait(`!document.querySelector('#speech').hidden && ${NAME}.startsWith('silent.wav')`);
  assert.strictEqual(await page.get("location.href"), address, "the page is not left for the file");
  const before = recordings.asked.length;
  await page.click("#speech-go");
  await page.wait(`${ENDED} && ${STATUS} === 'No speech was found.'`);
  assert.strictEqual(recordings.asked.length, before + 1);
  // A phone is wide enough.
  await page.size(360, 640, true);
  assert.ok(await page.get("document.documentElement.scrollWidth <= 360"));
  assert.ok(await page.get("document.querySelector('#speech').scrollWidth <= 360"));
  await page.size(1200, 800);
  // A server without a speech model has no panel.
  await page.get(`(() => {
    const ask = window.fetch;
    window.fetch = async (path, options) => path === "v1/models" ? Response.json({ object: "list", data: [{ id: "tales" }] }) : ask(path, options);
  })()`);
  await page.click("#key");
  await page.press("Enter");
  await page.wait("document.querySelector('#open-speech').hidden && document.querySelector('#speech').hidden");
}
