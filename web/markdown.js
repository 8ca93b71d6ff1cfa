// Model text as DOM nodes: paragraphs, headings, lists, quotes, tables, code blocks, bold, italic, inline code. Used by
// chat.js.
//
// Text of a model is hostile until shown otherwise. Nothing here makes HTML from text: elements are created by name,
// and text only ever becomes text nodes. There are no links and no images, so nothing is loaded and nothing leads away.
// Work grows with the length of the text and not faster, whatever is in it.

const MAX_DEPTH = 8; // of nested lists and quotes; deeper text stays text

export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

// ---- inline ----

const MARKS = [["**", "strong"], ["__", "strong"], ["*", "em"]];

// Where the mark that opens at `at` is closed, or -1. `none` remembers marks for which there is no closing one any
// more, so that a text of a million stars is not searched a million times.
function findClose(text, mark, at, none) {
  if (none.has(mark)) return -1;
  for (let from = at + mark.length; ;) {
    let found = text.indexOf(mark, from);
    if (found < 0) {
      none.add(mark);
      return -1;
    }
    if (mark.length > 1) while (text[found + mark.length] === mark[0]) found++; // of three, the last two
    const before = text[found - 1];
    if (found > at + mark.length && before !== " " && before !== "\n" && before !== "\\") {
      // A single star that is half of a double one closes nothing.
      if (mark !== "*" || (text[found + 1] !== "*" && before !== "*")) return found;
    }
    from = found + mark.length;
    if (from - at > 2000) return -1; // marks are near each other, or they are none
  }
}

export function inline(parent, text, depth = 0) {
  const none = new Set();
  let plain = 0;
  const flush = end => { if (end > plain) parent.append(text.slice(plain, end)); };
  for (let i = 0; i < text.length;) {
    const c = text[i];
    if (c === "\\" && i + 1 < text.length && /[!-/:-@[-`{-~]/.test(text[i + 1])) {
      flush(i);
      plain = i + 1;
      i += 2;
      continue;
    }
    if (c === "`") {
      let n = 1;
      while (text[i + n] === "`") n++;
      const ticks = "`".repeat(Math.min(n, 8));
      const close = n > 8 || none.has(ticks) ? -1 : text.indexOf(ticks, i + n);
      if (close < 0) {
        none.add(ticks);
        i += n;
        continue;
      }
      flush(i);
      parent.append(element("code", {}, text.slice(i + n, close)));
      plain = i = close + n;
      continue;
    }
    const mark = c === "*" || c === "_" ? MARKS.find(([m]) => text.startsWith(m, i)) : undefined;
    const inWord = c === "_" && i > 0 && /[\p{L}\p{N}]/u.test(text[i - 1]); // snake__case is no mark
    if (mark && !inWord && depth < MAX_DEPTH && text[i + mark[0].length] !== " ") {
      const close = findClose(text, mark[0], i, none);
      if (close > 0) {
        flush(i);
        const node = element(mark[1]);
        inline(node, text.slice(i + mark[0].length, close), depth + 1);
        parent.append(node);
        plain = i = close + mark[0].length;
        continue;
      }
    }
    i += mark ? mark[0].length : 1;
  }
  flush(text.length);
}

// ---- blocks ----

// Each of these looks at a place once: two neighbours that take the same characters would try all ways to share them.
const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6}) (.*)$/;
const ITEM = /^(\s*)([-*+•]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const TABLE_CELL = /^:?-+:?$/;
// The line below a table's head has as many cells as the head, so both are bounded.
const isTableLine = (line, head) => line.length < 2000 && line.includes("-") &&
  cells(line).every(cell => TABLE_CELL.test(cell)) && cells(line).length === cells(head).length;

// Splits text into blocks, each with its own lines: [{kind, lines, …}]. A block depends on its lines only, so what
// was rendered stays while the text grows at its end.
export function blocks(text) {
  const out = [];
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  for (let i = 0; i < lines.length;) {
    const line = lines[i], fence = FENCE.exec(line);
    if (line.trim() === "") {
      i++;
    } else if (fence) {
      const block = {kind: "code", language: fence[2].trim(), lines: []};
      const end = new RegExp(`^\\s*${fence[1][0]}{${Math.min(fence[1].length, 100)},}\\s*$`);
      for (i++; i < lines.length && !end.test(lines[i]); i++) block.lines.push(lines[i]);
      i++;
      out.push(block);
    } else if (HEADING.test(line)) {
      out.push({kind: "heading", lines: [line]});
      i++;
    } else if (RULE.test(line)) {
      out.push({kind: "rule", lines: [line]});
      i++;
    } else if (line.includes("|") && i + 1 < lines.length && isTableLine(lines[i + 1], line)) {
      const block = {kind: "table", lines: []};
      for (; i < lines.length && lines[i].includes("|"); i++) block.lines.push(lines[i]);
      out.push(block);
    } else {
      const kind = QUOTE.test(line) ? "quote" : ITEM.test(line) ? "list" : "text";
      const block = {kind, lines: []};
      for (; i < lines.length && belongs(kind, lines, i, block.lines.length); i++) block.lines.push(lines[i]);
      while (block.lines.at(-1).trim() === "") block.lines.pop();
      out.push(block);
    }
  }
  return out;
}

function belongs(kind, lines, i, already) {
  const line = lines[i];
  if (already === 0) return true;
  if (kind === "list") { // items may be apart by one empty line; fences inside items are part of them when indented
    if (line.trim() === "") return i + 1 < lines.length && (ITEM.test(lines[i + 1]) || /^\s{2,}\S/.test(lines[i + 1]));
    return ITEM.test(line) ? !RULE.test(line) : /^\s{2,}/.test(line) || (!FENCE.test(line) && !HEADING.test(line) &&
      !QUOTE.test(line) && lines[i - 1].trim() !== "");
  }
  if (line.trim() === "" || FENCE.test(line) || HEADING.test(line)) return false;
  return kind === "quote" ? QUOTE.test(line) : !QUOTE.test(line) && !ITEM.test(line);
}

function codeBlock(block) {
  const code = block.lines.join("\n");
  const name = block.language.split(/\s/)[0].slice(0, 30);
  const copy = element("button", {type: "button", className: "quiet copy", textContent: "Copy"});
  copy.dataset.copy = ""; // chat.js copies the text of the <pre> that follows
  return element("div", {className: "code-block"},
    element("div", {className: "code-head"}, element("span", {}, name || "code"), copy),
    element("pre", {tabIndex: 0}, element("code", {}, code)));
}

// Items by their indent; lines that are none go on with the item before them.
function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first[2]);
  const node = element(ordered ? "ol" : "ul");
  if (ordered) node.start = Number.parseInt(first[2], 10);
  const base = first[1].length;
  for (let i = 0; i < lines.length;) {
    const item = ITEM.exec(lines[i]);
    const own = item[3], offset = lines[i].length - own.length; // where its text begins is where its inner blocks do
    const rest = [];
    for (i++; i < lines.length; i++) {
      const next = ITEM.exec(lines[i]);
      if (next && next[1].length <= base) break;
      rest.push(lines[i]);
    }
    while (rest.length && rest.at(-1).trim() === "") rest.pop();
    const li = element("li");
    if (depth < MAX_DEPTH && rest.length) {
      const indent = line => line.length - line.trimStart().length;
      const inner = rest.map(line => line.slice(Math.min(offset, indent(line))));
      for (const block of blocks([own, ...inner].join("\n"))) li.append(render(block, depth + 1));
    } else {
      inline(li, [own, ...rest].join("\n"));
    }
    node.append(li);
  }
  return node;
}

function cells(line) {
  const row = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return row.split(/(?<!\\)\|/).map(cell => cell.trim().replace(/\\\|/g, "|"));
}

function table(lines) {
  const head = cells(lines[0]), body = element("tbody");
  const row = (texts, name) => element("tr", {}, ...head.map((_, i) => {
    const cell = element(name, name === "th" ? {scope: "col"} : {});
    inline(cell, texts[i] || "");
    return cell;
  }));
  for (const line of lines.slice(2)) body.append(row(cells(line), "td")); // one by one: arguments of a call are limited
  const node = element("table", {}, element("thead", {}, row(head, "th")), body);
  return element("div", {className: "wide", tabIndex: 0}, node);
}

export function render(block, depth = 0) {
  switch (block.kind) {
    case "code": return codeBlock(block);
    case "rule": return element("hr");
    case "table": return table(block.lines);
    case "list": return list(block.lines, depth);
    case "heading": {
      const [, marks, text] = HEADING.exec(block.lines[0]);
      const node = element(`h${Math.min(6, marks.length + 2)}`); // below the headings of the page
      inline(node, text.trim());
      return node;
    }
    case "quote": {
      const node = element("blockquote"), text = block.lines.map(line => QUOTE.exec(line)[1]).join("\n");
      if (depth < MAX_DEPTH) for (const inner of blocks(text)) node.append(render(inner, depth + 1));
      else inline(node, text);
      return node;
    }
    default: {
      const node = element("p");
      inline(node, block.lines.join("\n"));
      return node;
    }
  }
}

const shown = new WeakMap(); // per parent: its blocks as texts, and the nodes that show them

// Keeps `parent` showing `text`; of what is there already, only blocks that changed are made again. The nodes are not
// looked up in parent.children: each change of it makes the browser count them anew.
export function show(parent, text) {
  const wanted = blocks(text), old = shown.get(parent) || {keys: [], nodes: []};
  const keys = wanted.map(block => `${block.kind} ${block.language || ""}\n${block.lines.join("\n")}`);
  const nodes = wanted.map((block, i) => old.keys[i] === keys[i] ? old.nodes[i] : render(block));
  nodes.forEach((node, i) => {
    if (i >= old.nodes.length) parent.append(node);
    else if (node !== old.nodes[i]) old.nodes[i].replaceWith(node);
  });
  for (const node of old.nodes.slice(nodes.length)) node.remove();
  shown.set(parent, {keys, nodes});
}
