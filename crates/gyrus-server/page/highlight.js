// Colours for code: comments, strings, numbers and common keywords, for most languages by the same rules. It only chooses
// classes; the text stays as it is.

import { el, visible } from "./dom.js";

const KEYWORDS = new Set((
  "and as assert async await begin bool boolean break case catch char class const constexpr continue crate def default " +
  "defer del delete dim do double dyn elif else elsif end enum except export extends extern false False final finally float fn " +
  "for foreach from fun func function global go goto if impl implements import in include inline instanceof int interface is " +
  "lambda let local long loop match mod module mut namespace new nil none None not null object of or override package pass " +
  "private protected pub public raise ref repeat return self Self short signed sizeof static string struct super switch template " +
  "then this throw throws trait true True try type typedef typeof undefined union unless unsafe unsigned until use using val var " +
  "virtual void when where while with yield select insert update values join group order by create table SELECT FROM WHERE " +
  "INSERT INTO UPDATE SET VALUES JOIN LEFT INNER ON GROUP ORDER BY CREATE TABLE AND OR NOT NULL LIMIT").split(" "));

/** Keywords that stay keywords before a parenthesis. Others may be names there, such as `from`. */
const BEFORE_PARENTHESIS = new Set(("and assert await case catch elif else for foreach fn function if in lambda match not or " +
  "return sizeof switch typeof until when while with yield").split(" "));

const HASH = new Set(("python py ruby rb sh bash zsh shell console yaml yml toml ini conf perl pl r makefile make dockerfile " +
  "elixir nix julia").split(" "));
const DASHES = new Set(["sql", "lua", "haskell", "hs", "elm", "ada"]);
const NONE = new Set(["", "text", "txt", "plain", "markdown", "md", "csv", "log", "output"]);

/** Nodes for code of a language. */
export function highlight(text, language) {
  const name = language.toLowerCase();
  if (NONE.has(name)) return [visible(text)];
  const comment = HASH.has(name) ? "#[^\\n]*" : DASHES.has(name) ? "--[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)";
  // Rust's lifetimes begin like characters.
  const quote = name === "rust" || name === "rs" ? "'(?:[^'\\\\\\n]|\\\\[^\\n]{1,9})'" : "'(?:[^'\\\\\\n]|\\\\.)*'?";
  const token = new RegExp(
    `(?<comment>${comment})|(?<string>"(?:[^"\\\\\\n]|\\\\.)*"?|${quote}|\`(?:[^\`\\\\]|\\\\.)*\`?)|` +
    "(?<number>\\b\\d[\\w.]*)|(?<word>[A-Za-z_]\\w*)", "gs");
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain !== "") nodes.push(visible(plain));
    plain = "";
  };
  let at = 0;
  for (const found of text.matchAll(token)) {
    plain += text.slice(at, found.index);
    at = found.index + found[0].length;
    const { comment, string, number, word } = found.groups;
    const called = word && text[at] === "(";
    const isKeyword = KEYWORDS.has(word) && (!called || BEFORE_PARENTHESIS.has(word));
    const kind = comment ? "comment" : string ? "string" : number ? "number" : isKeyword ? "keyword" : called ? "call" : null;
    if (kind === null) {
      plain += found[0];
      continue;
    }
    flush();
    nodes.push(el("span", { class: `t-${kind}` }, visible(found[0])));
  }
  plain += text.slice(at);
  flush();
  return nodes;
}
