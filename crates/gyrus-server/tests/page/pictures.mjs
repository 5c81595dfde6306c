// Takes the pictures of the documentation from a running server. Arguments: its address, the browser, and the folder.
//
//   gyrus serve smollm2-135m &
//   node crates/gyrus-server/tests/page/pictures.mjs http://127.0.0.1:8080 chromium docs

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { Browser } from "./browser.mjs";

const [origin, program, folder] = process.argv.slice(2);
const ENDED = "document.querySelector('#stop').hidden && !document.querySelector('.cursor, .waiting')";
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const browser = new Browser(program);
try {
  const page = await browser.page(origin);
  await page.size(1200, 800);
  await page.wait("document.querySelector('#model').value !== ''");
  await page.get("document.querySelector('#open-settings').click()");
  await page.fill("[name=temperature]", "0.2");
  await page.fill("[name=seed]", "3");
  await page.fill("[name=max_tokens]", "400");
  for (const text of ["Name three rivers of Europe.", "Why do leaves change colour in autumn?",
    "Write a Python function that reverses a string, with an example."]) {
    await page.get("document.querySelector('#new').click()");
    await page.fill("#prompt", text);
    await page.press("Enter");
    await page.wait("document.querySelectorAll('.message').length === 2");
    await page.wait(ENDED, 120);
  }
  const save = async (name) => {
    await page.get("document.querySelector('#scroll')?.scrollTo(0, 0)");
    await sleep(500);
    writeFileSync(join(folder, `page-${name}.png`), await page.picture());
  };
  await save("light");
  await page.get("document.querySelector('#close-settings').click()");
  await page.theme("dark");
  await save("dark");
  await page.theme("light");
  await page.size(390, 780, true);
  await save("phone");
  await page.size(1200, 800);
  await page.open(`${origin}/status`);
  const load = [];
  for (let at = 0; at < 55; at++) {
    const n = Math.round(3 + 3 * Math.sin(at / 6)) - load.filter(({ done }) => !done).length;
    for (let i = 0; i < n; i++) load.push(generation());
    await sleep(1000);
  }
  await save("status");
} finally {
  await browser.close();
}
process.exit(0);

function generation() {
  const body = { messages: [{ role: "user", content: "Tell me a long story about the sea." }], max_tokens: 150 };
  const one = { done: false };
  fetch(`${origin}/v1/chat/completions`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  }).then((response) => response.text()).finally(() => { one.done = true; });
  return one;
}
