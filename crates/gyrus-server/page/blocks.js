// Markdown blocks: paragraphs, headings, lists, quotes, code, tables. Each line is looked at once on each level.

/** The most levels of lists and quotes within each other. What is deeper is a paragraph. */
const DEEPEST = 8;
/** Lines that are longer are only ever text. */
const LONGEST_MARK = 2000;
/** The most columns of a table. What has more is text. */
const MOST_COLUMNS = 100;
/** The most cells of a table. The lines behind them are text. */
const MOST_CELLS = 10_000;

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const DELIMITER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

/**
 * The blocks of a text. Each has a `type`, its `start` in the text and its source `src`:
 * `paragraph` (text), `heading` (level, text), `code` (language, text), `quote` (children), `rule`,
 * `list` (ordered, first, items: each blocks), `table` (align, head, rows). A row has the cells of its line, which may be
 * fewer than the columns: the cells of all rows are never more than the characters of the text.
 */
export function parseBlocks(text, depth = 0) {
  const lines = text.split("\n");
  const blocks = [];
  let offset = 0;
  for (let i = 0; i < lines.length; ) {
    if (lines[i].trim() === "") {
      offset += lines[i].length + 1;
      i++;
      continue;
    }
    const { block, end } = depth < DEEPEST ? parseBlock(lines, i, depth) : paragraph(lines, i, lines.length);
    const length = lines.slice(i, end).reduce((sum, line) => sum + line.length + 1, -1);
    blocks.push({ ...block, start: offset, src: text.slice(offset, offset + length) });
    offset += length + 1;
    i = end;
  }
  return blocks;
}

/**
 * Blocks of a text that grows. Only what can still change is parsed again: the last two blocks. A block can change by what
 * comes behind it until a third one begins.
 */
export class GrowingBlocks {
  blocks = [];

  /** The blocks of the whole text, which begins with the text of the last call. */
  update(text) {
    const from = this.blocks[this.blocks.length - 2]?.start ?? 0;
    const kept = this.blocks.slice(0, Math.max(0, this.blocks.length - 2));
    const fresh = parseBlocks(text.slice(from)).map((block) => ({ ...block, start: block.start + from }));
    this.blocks = [...kept, ...fresh];
    return this.blocks;
  }
}

function parseBlock(lines, at, depth) {
  const line = lines[at];
  const mark = line.slice(0, LONGEST_MARK);
  const fence = FENCE.exec(mark);
  if (fence) return code(lines, at, fence);
  const heading = HEADING.exec(mark);
  if (heading) {
    const text = line.slice(heading[0].length).trim();
    const block = { type: "heading", level: heading[1].length, text: text.replace(/(^|\s)#{1,9}$/, "").trim() };
    return { block, end: at + 1 };
  }
  if (line.length < LONGEST_MARK && RULE.test(line)) return { block: { type: "rule" }, end: at + 1 };
  if (QUOTE.test(mark)) return quote(lines, at, depth);
  const item = ITEM.exec(mark);
  if (item && item[1].length < 4) return list(lines, at, depth, item);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at, at + 1);
}

/** A paragraph has at least the lines up to `least`, and ends where another block begins. */
function paragraph(lines, at, least) {
  let end = least;
  while (end < lines.length && lines[end].trim() !== "" && !interrupts(lines, end)) end++;
  return { block: { type: "paragraph", text: lines.slice(at, end).map((line) => line.trimStart()).join("\n") }, end };
}

/** Whether a line ends the paragraph before it. */
function interrupts(lines, at) {
  const line = lines[at];
  const mark = line.slice(0, LONGEST_MARK);
  const item = ITEM.exec(mark);
  // A number that begins a line of prose is not a list.
  const isItem = item && item[1].length < 4 && item[3] !== "" && (!/\d/.test(item[2]) || /^1[.)]$/.test(item[2]));
  return FENCE.test(mark) || HEADING.test(mark) || QUOTE.test(mark) || isItem || isTable(lines, at) ||
    (line.length < LONGEST_MARK && RULE.test(line));
}

function code(lines, at, [whole, fence, language]) {
  const indent = whole.length - whole.trimStart().length;
  const closing = new RegExp(`^ {0,3}\\${fence[0]}{${fence.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !(lines[end].length < LONGEST_MARK && closing.test(lines[end]))) end++;
  const body = lines.slice(at + 1, end);
  const text = (indent ? body.map((line) => dedent(line, indent)) : body).join("\n");
  const name = language.trim().split(/\s/, 1)[0].slice(0, 40);
  return { block: { type: "code", language: name, text }, end: Math.min(end + 1, lines.length) };
}

function quote(lines, at, depth) {
  const inside = [];
  let end = at;
  for (; end < lines.length; end++) {
    const found = QUOTE.exec(lines[end].slice(0, 8));
    if (found) inside.push(lines[end].slice(found[0].length));
    else if (lines[end].trim() !== "" && inside[inside.length - 1].trim() !== "" && !interrupts(lines, end)) {
      inside.push(lines[end]);
    } else break;
  }
  return { block: { type: "quote", children: parseBlocks(inside.join("\n"), depth + 1) }, end };
}

function list(lines, at, depth, first) {
  const ordered = /\d/.test(first[2]);
  const kind = first[2].slice(-1);
  const items = [];
  let inside = null;
  let indent = 0;
  let end = at;
  for (let i = at; i < lines.length; i++) {
    const line = lines[i];
    if (line.trim() === "") {
      inside.push("");
      continue;
    }
    const spaces = line.length - line.trimStart().length;
    const item = ITEM.exec(line.slice(0, LONGEST_MARK));
    const nested = item && spaces >= 2 && spaces > first[1].length && inside !== null;
    if (inside !== null && (spaces >= indent || (nested && spaces >= Math.min(indent, first[1].length + 2)))) {
      inside.push(dedent(line, indent));
    } else if (item && item[1].length < 4 && item[2].slice(-1) === kind && !(line.length < LONGEST_MARK && RULE.test(line))) {
      inside = [line.slice(item[0].length)];
      // Content begins behind the marker; more than four spaces would be a part of it.
      indent = item[1].length + item[2].length + Math.min(Math.max(item[3].length, 1), 4);
      items.push(inside);
    } else if (inside[inside.length - 1].trim() !== "" && !interrupts(lines, i)) {
      inside.push(line);
    } else break;
    end = i + 1;
  }
  const parsed = items.map((item) => parseBlocks(item.join("\n"), depth + 1));
  const number = ordered ? parseInt(first[2], 10) : 1;
  return { block: { type: "list", ordered, first: number, items: parsed }, end };
}

function isTable(lines, at) {
  const [head, rule] = [lines[at], lines[at + 1] ?? ""];
  if (!(head.length < LONGEST_MARK && rule.length < LONGEST_MARK && head.includes("|") && rule.includes("-") &&
    DELIMITER.test(rule))) return false;
  const columns = cells(head).length;
  return columns <= MOST_COLUMNS && columns === cells(rule).length;
}

function table(lines, at) {
  const align = cells(lines[at + 1]).map((cell) => {
    if (cell.endsWith(":")) return cell.startsWith(":") ? "center" : "right";
    return "left";
  });
  let end = at + 2;
  const rows = [];
  let count = 0;
  for (; end < lines.length && lines[end].trim() !== "" && lines[end].includes("|"); end++) {
    const row = cells(lines[end]).slice(0, align.length);
    count += row.length;
    if (count > MOST_CELLS) break;
    rows.push(row);
  }
  return { block: { type: "table", align, head: cells(lines[at]), rows }, end };
}

/** The cells of a row. A bar within code or behind a backslash does not divide. */
function cells(line) {
  const found = [];
  let cell = "";
  let inCode = false;
  for (let i = 0; i < line.length; i++) {
    if (line[i] === "\\" && line[i + 1] === "|") cell += line[++i];
    else if (line[i] === "|" && !inCode) {
      found.push(cell.trim());
      cell = "";
    } else {
      if (line[i] === "`") inCode = !inCode;
      cell += line[i];
    }
  }
  found.push(cell.trim());
  if (found[0] === "" && found.length > 1) found.shift();
  if (found[found.length - 1] === "" && found.length > 1) found.pop();
  return found;
}

function dedent(line, most) {
  let n = 0;
  while (n < most && line[n] === " ") n++;
  return line.slice(n);
}
