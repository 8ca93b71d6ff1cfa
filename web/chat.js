// The Chat tab: the conversation, its settings, and the answer that is being written. Started by app.js.
//
// The conversation lives in this tab alone (sessionStorage), as the key does. Model text is shown by markdown.js and
// never becomes HTML.
import {element, show} from "./markdown.js";
import {events, request} from "./server.js";
import {copyText} from "./snippets.js";

const STORE = "deepseek-edge.chat";
const $ = id => document.getElementById(id);
const count = (n, word) => `${n.toLocaleString()} ${word}${n === 1 ? "" : "s"}`;
const rate = x => x >= 100 ? Math.round(x).toLocaleString() : x.toFixed(1);

let messages = []; // {role, content, reasoning, format, footer, note, error, view}: view is what shows it
let running = null; // {controller, message} while an answer is written
let contextLength = 0, usedTokens = 0, available = false;

// ---- settings ----

const form = () => $("settings-form");
const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "repeat_penalty", "seed"];
const labelOf = field => field.closest("label").firstChild.textContent.trim();

class SettingsError extends Error {
  constructor(field, message) {
    super(`${labelOf(field)}: ${message}`);
    this.field = field;
  }
}

// What the settings add to a request; throws SettingsError.
function settings() {
  const fields = form().elements, body = {};
  for (const name of NUMBERS) {
    const field = fields[name];
    if (!field.validity.valid) throw new SettingsError(field, field.validationMessage);
    if (field.value !== "") body[name] = Number(field.value);
    // Beyond 2^53 a number would arrive as another one.
    if (Math.abs(body[name]) > Number.MAX_SAFE_INTEGER) throw new SettingsError(field, "at most 9007199254740991");
  }
  if (fields.thinking.value) body.thinking = {type: fields.thinking.value};
  const format = $("format-box").hidden ? "" : fields.format.value;
  if (format === "json_object") body.response_format = {type: format};
  if (format === "json_schema") {
    let schema;
    try {
      schema = JSON.parse(fields.schema.value);
    } catch (problem) {
      throw new SettingsError(fields.schema, problem.message);
    }
    body.response_format = {type: format, json_schema: {name: "answer", strict: true, schema}};
  }
  return body;
}

function settingsProblem(error) {
  $("settings-error").textContent = error ? error.message : "";
  $("settings-error").hidden = !error;
  for (const field of form().elements) field.removeAttribute("aria-invalid");
  if (!error || !error.field) return;
  error.field.setAttribute("aria-invalid", "true");
  openSettings(true);
  error.field.focus();
}

function openSettings(open) {
  $("settings").hidden = !open;
  $("chat").classList.toggle("with-settings", open);
  $("settings-button").setAttribute("aria-expanded", String(open));
}

// Asks the server whether it takes schemas, with a request that is only rendered.
async function probeFormats() {
  const schema = {type: "object", properties: {}};
  try {
    await request("apply-template", {body: {messages: [{role: "user", content: "x"}],
      response_format: {type: "json_schema", json_schema: {name: "probe", schema}}}});
    $("format-box").hidden = false;
  } catch {
    $("format-box").hidden = true;
  }
}

// ---- keeping ----

function save() {
  const fields = Object.fromEntries([...form().elements].filter(f => f.name).map(f => [f.name, f.value]));
  try {
    const kept = messages.map(({view, ...rest}) => rest);
    sessionStorage.setItem(STORE, JSON.stringify({fields, usedTokens, messages: kept}));
  } catch {
    sessionStorage.removeItem(STORE); // too long to keep: the page goes on without
  }
}

function restore() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(STORE) || "{}");
    for (const [name, value] of Object.entries(kept.fields || {}))
      if (form().elements[name]) form().elements[name].value = value;
    usedTokens = kept.usedTokens || 0;
    messages = (kept.messages || []).filter(m => m.role === "user" || m.role === "assistant");
  } catch {
    sessionStorage.removeItem(STORE);
  }
}

// ---- showing ----

const log = () => $("log");
const atEnd = () => log().scrollHeight - log().scrollTop - log().clientHeight < 60;
const toEnd = () => { log().scrollTop = log().scrollHeight; };

function button(text, label, action) {
  const node = element("button", {type: "button", className: "quiet", textContent: text, "aria-label": label});
  node.addEventListener("click", action);
  return node;
}

function showUser(message) {
  const body = element("div", {className: "body", dir: "auto"}, message.content);
  const article = element("article", {className: "user"}, element("h2", {className: "for-readers"}, "You"), body,
    element("div", {className: "actions"},
      button("Edit", "Edit this message", () => edit(message)),
      button("Copy", "Copy this message", event => copyText(message.content, event.currentTarget))));
  message.view = {article};
  log().append(article);
}

function edit(message) {
  if (running) return;
  const field = element("textarea", {rows: 3, dir: "auto", value: message.content, "aria-label": "Message, edited"});
  const close = () => editor.replaceWith(message.view.article);
  const editor = element("form", {className: "user editor"}, field, element("div", {className: "actions"},
    button("Cancel", "Leave the message as it was", close),
    element("button", {type: "submit", className: "primary"}, "Send again")));
  field.addEventListener("keydown", event => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) editor.requestSubmit();
  });
  editor.addEventListener("submit", event => {
    event.preventDefault();
    if (!field.value.trim() || running || !available) return;
    editor.replaceWith(message.view.article);
    cut(messages.indexOf(message));
    send(field.value);
  });
  message.view.article.replaceWith(editor);
  field.focus();
}

function showAssistant(message) {
  const thoughts = element("div", {className: "thoughts", dir: "auto"});
  const summary = element("summary", {}, "Thinking");
  const fold = element("details", {className: "thinking", hidden: true}, summary, thoughts);
  const body = element("div", {className: "body", dir: "auto"});
  const progress = element("progress", {max: 1, hidden: true, "aria-label": "Reading the prompt"});
  const footer = element("p", {className: "footer"});
  const error = element("p", {className: "error", hidden: true});
  const actions = element("div", {className: "actions"},
    button("Copy", "Copy this answer", event => copyText(message.content, event.currentTarget)),
    button("Regenerate", "Answer again", () => again(message)));
  const heading = element("h2", {className: "for-readers"}, "Answer");
  const article = element("article", {className: "assistant"}, heading, fold, body, progress, error, footer, actions);
  message.view = {article, fold, summary, thoughts, body, progress, footer, error};
  log().append(article);
  paint(message);
}

// A fence longer than any inside.
function asCode(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) || []).slice(0, 1000).map(ticks => Math.min(ticks.length, 99)));
  const fence = "`".repeat(longest + 1);
  return `${fence}json\n${text}\n${fence}`;
}

// Brings the view of an answer up to its text. A growing thought is appended to, not made again.
function paint(message) {
  const {fold, thoughts, summary, body, footer, error} = message.view;
  const thought = message.reasoning || "";
  const shown = thoughts.firstChild ? thoughts.firstChild.data : "";
  if (thought.startsWith(shown) && thoughts.firstChild) thoughts.firstChild.appendData(thought.slice(shown.length));
  else if (thought !== shown) thoughts.replaceChildren(document.createTextNode(thought));
  fold.hidden = thought === "";
  const time = message.thoughtSeconds;
  summary.textContent = message.thinking ? "Thinking …" : time ? `Thought for ${time.toFixed(1)} s` : "Thoughts";
  show(body, message.format && message.content ? asCode(message.content) : message.content);
  footer.textContent = [message.footer, message.note].filter(Boolean).join(" · ");
  error.textContent = message.error || "";
  error.hidden = !message.error;
}

function showContext() {
  const meter = $("context-meter"), text = $("context-text");
  meter.max = contextLength || 1;
  meter.value = usedTokens;
  meter.high = meter.max * 0.85;
  text.textContent = !usedTokens ? "empty" : contextLength
    ? `${usedTokens.toLocaleString()} of ${contextLength.toLocaleString()}` : count(usedTokens, "token");
}

function showButtons() {
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
  $("send").disabled = !available;
  log().classList.toggle("busy", Boolean(running));
  $("welcome").hidden = messages.length > 0;
}

// ---- talking ----

// Forgets messages from this place on.
function cut(index) {
  for (const message of messages.splice(index)) message.view.article.remove();
}

function again(message) {
  if (running || !available) return;
  cut(messages.indexOf(message));
  answer();
}

function send(text) {
  const message = {role: "user", content: text};
  messages.push(message);
  showUser(message);
  answer();
}

// Painted once a frame at most, however fast tokens come.
function painter(message) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      const follow = atEnd();
      paint(message);
      if (follow) toEnd();
    });
  };
}

function take(message, delta, clock) {
  const thought = delta.reasoning_content, text = delta.content;
  if (thought || text) clock.last = performance.now();
  if ((thought || text) && !clock.first) clock.first = clock.last;
  if (thought) {
    if (!message.reasoning) message.view.fold.open = message.thinking = true;
    message.reasoning += thought;
  }
  if (text) {
    if (message.thinking) {
      message.thinking = false;
      message.view.fold.open = false;
      message.thoughtSeconds = (performance.now() - clock.first) / 1000;
    }
    message.content += text;
  }
}

// Tokens a second as they came in here: what there is until the server's own timings come with the end.
function speedHere(usage, clock) {
  const time = (clock.last - clock.first) / 1000;
  return usage.completion_tokens > 1 && time > 0.2 ? (usage.completion_tokens - 1) / time : 0;
}

function liveFooter(usage, clock) {
  const speed = speedHere(usage, clock);
  return count(usage.completion_tokens, "token") + (speed ? ` · ${rate(speed)} tok/s` : "");
}

function lastFooter(usage, timings, clock, reason) {
  const parts = [];
  if (usage) parts.push(count(usage.completion_tokens, "token"));
  const speed = timings ? timings.predicted_per_second : usage ? speedHere(usage, clock) : 0;
  if (speed > 0) parts.push(`${rate(speed)} tok/s`);
  if (clock.first) parts.push(`first after ${((clock.first - clock.start) / 1000).toFixed(2)} s`);
  if (usage) {
    const cached = usage.prompt_tokens_details ? usage.prompt_tokens_details.cached_tokens : 0;
    const speed = timings && timings.prompt_per_second > 0 ? ` at ${rate(timings.prompt_per_second)} tok/s` : "";
    const kept = cached ? ` (${cached.toLocaleString()} kept)` : "";
    parts.push(`prompt ${usage.prompt_tokens.toLocaleString()}${kept}${speed}`);
  }
  if (reason === "length") parts.push("cut at the limit of tokens");
  if (reason === "stopped") parts.push("stopped by you");
  return parts.join(" · ");
}

// One request: its stream goes into message until it ends, fails or is stopped.
async function generate(message, body, signal) {
  const clock = {start: performance.now(), first: 0, last: 0}, repaint = painter(message);
  let usage = null, timings = null, reason = "", ended = false;
  try {
    const response = await request("v1/chat/completions", {body, signal});
    message.note = response.headers.get("X-Deepseek-Edge-Note") || "";
    for await (const {data} of events(response)) {
      if (data === "[DONE]") {
        ended = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const progress = chunk.prompt_progress, bar = message.view.progress;
      if (progress) {
        bar.hidden = progress.processed >= progress.total;
        bar.value = progress.processed / Math.max(1, progress.total);
        const done = `${progress.processed.toLocaleString()} of ${count(progress.total, "token")}`;
        if (!bar.hidden) message.footer = `reading the prompt: ${done}`;
      }
      if (chunk.usage) usage = chunk.usage;
      if (chunk.timings) timings = chunk.timings;
      for (const choice of chunk.choices || []) {
        take(message, choice.delta || {}, clock);
        reason = choice.finish_reason || reason;
      }
      if (usage && clock.first) {
        bar.hidden = true;
        message.footer = liveFooter(usage, clock);
        usedTokens = usage.prompt_tokens + usage.completion_tokens;
        showContext();
      }
      repaint();
    }
    if (!ended) throw new Error("the connection ended before the answer did");
  } catch (problem) {
    if (signal.aborted) reason = "stopped";
    else message.error = problem instanceof TypeError ? "The server cannot be reached." : problem.message;
  }
  if (message.thinking) {
    message.thinking = false;
    message.thoughtSeconds = (performance.now() - clock.first) / 1000;
  }
  message.view.progress.hidden = true;
  message.footer = lastFooter(usage, timings, clock, reason);
}

async function answer() {
  let extra;
  const message = {role: "assistant", content: "", reasoning: ""};
  try {
    extra = settings();
    settingsProblem(null);
  } catch (problem) {
    settingsProblem(problem);
    message.error = problem.message;
    messages.push(message);
    showAssistant(message);
    showButtons();
    return;
  }
  const system = form().elements.system.value.trim();
  const past = messages.filter(m => m.content !== "").map(({role, content}) => ({role, content}));
  const body = {messages: system ? [{role: "system", content: system}, ...past] : past, stream: true,
    stream_options: {include_usage: true, continuous_usage_stats: true}, return_progress: true, ...extra};
  if (extra.response_format) message.format = "json";
  messages.push(message);
  showAssistant(message);
  running = {controller: new AbortController(), message};
  message.view.article.setAttribute("aria-busy", "true");
  message.view.article.classList.add("writing");
  showButtons();
  toEnd();
  $("announcer").textContent = "The answer is being written.";
  await generate(message, body, running.controller.signal);
  running = null;
  const follow = atEnd();
  message.view.article.removeAttribute("aria-busy");
  message.view.article.classList.remove("writing");
  paint(message);
  if (follow) toEnd();
  $("announcer").textContent = message.error || `Answer: ${message.content.slice(0, 2000)}`;
  showButtons();
  save();
}

export function stop() {
  if (running) running.controller.abort();
}

// ---- start ----

const coarse = () => matchMedia("(pointer: coarse)").matches;

function growPrompt() {
  const field = $("prompt");
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight + 2, innerHeight / 3)}px`;
}

function submit() {
  const text = $("prompt").value;
  if (!text.trim() || running || !available) return;
  $("prompt").value = "";
  growPrompt();
  send(text);
}

// What the server tells about its model and state; called with every change.
export function setModel(model, ready) {
  const changed = ready && !available;
  available = ready;
  contextLength = model ? model.context_length : 0;
  if (changed) probeFormats();
  showContext();
  showButtons();
}

export function start() {
  restore();
  for (const message of messages) message.role === "user" ? showUser(message) : showAssistant(message);
  showContext();
  showButtons();
  toEnd();
  if (matchMedia("(min-width: 64rem)").matches) openSettings(true);

  $("composer").addEventListener("submit", event => { event.preventDefault(); submit(); });
  $("prompt").addEventListener("input", growPrompt);
  $("prompt").addEventListener("keydown", event => {
    // On a phone the return key makes a new line; the button sends.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || (coarse() && !event.ctrlKey)) return;
    event.preventDefault();
    submit();
  });
  $("stop").addEventListener("click", () => { stop(); $("prompt").focus(); });
  $("new-chat").addEventListener("click", () => {
    stop();
    cut(0);
    usedTokens = 0;
    save();
    showContext();
    showButtons();
    $("prompt").focus();
  });
  $("settings-button").addEventListener("click", () => openSettings($("settings").hidden));
  $("settings-close").addEventListener("click", () => { openSettings(false); $("settings-button").focus(); });
  const showSchema = () => { $("schema-label").hidden = form().elements.format.value !== "json_schema"; };
  showSchema();
  form().addEventListener("input", () => { settingsProblem(null); showSchema(); save(); });
  form().addEventListener("reset", () => setTimeout(() => { settingsProblem(null); showSchema(); save(); }));
  form().addEventListener("submit", event => event.preventDefault());
  for (const starter of document.querySelectorAll(".starters button"))
    starter.addEventListener("click", () => {
      $("prompt").value = starter.textContent;
      growPrompt();
      $("prompt").focus();
    });
  log().addEventListener("click", event => {
    const copy = event.target.closest("[data-copy]");
    if (copy) copyText(copy.closest(".code-block").querySelector("pre").textContent, copy);
  });
  document.addEventListener("keydown", event => {
    if (event.key === "Escape" && running && !document.querySelector("dialog[open]")) stop();
  });
}
