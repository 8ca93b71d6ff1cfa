// Where the page begins: tabs, theme, the question for a key, the state of the server, and the stream of events that
// feeds the others.
import * as chat from "./chat.js";
import * as dashboard from "./dashboard.js";
import {events, key, onKeyWanted, request, setKey} from "./server.js";
import {showSnippets} from "./snippets.js";

const $ = id => document.getElementById(id);
const TABS = ["chat", "dashboard", "api"];
const STATES = {
  ok: "ready", loading: "loading the model …", draining: "shutting down", failed: "the model's file has changed",
};
let modelName = "";

// ---- tabs ----

function openTab(name, focus) {
  for (const tab of TABS) {
    const selected = tab === name, button = $(`tab-${tab}`);
    button.setAttribute("aria-selected", String(selected));
    button.tabIndex = selected ? 0 : -1;
    $(tab).hidden = !selected;
    if (selected && focus) button.focus();
  }
  document.body.dataset.tab = name;
  if (name === "api") showSnippets(modelName);
  if (name === "dashboard") dashboard.refresh();
}

function openTabOfAddress() {
  const name = location.hash.slice(1);
  openTab(TABS.includes(name) ? name : "chat");
}

function startTabs() {
  TABS.forEach((tab, i) => {
    $(`tab-${tab}`).addEventListener("click", () => { location.hash = tab; });
    $(`tab-${tab}`).addEventListener("keydown", event => {
      const to = {ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: TABS.length - 1}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const name = TABS[(to + TABS.length) % TABS.length];
      history.replaceState(null, "", `#${name}`);
      openTab(name, true);
    });
  });
  addEventListener("hashchange", openTabOfAddress);
  openTabOfAddress();
}

// ---- theme ----

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme-button").textContent = `Theme: ${theme}`;
  dashboard.refresh();
}

function startTheme() {
  const themes = ["auto", "light", "dark"];
  const kept = () => themes.find(theme => theme === localStorage.getItem("deepseek-edge.theme")) || "auto";
  setTheme(kept());
  $("theme-button").addEventListener("click", () => {
    const next = themes[(themes.indexOf(kept()) + 1) % themes.length];
    localStorage.setItem("deepseek-edge.theme", next);
    setTheme(next);
  });
}

// ---- key ----

let asking = null; // one question for all requests that wait for a key

function askForKey(refused) {
  $("key-problem").hidden = !refused;
  $("key-problem").textContent = refused ? "The server did not take this key." : "";
  if (!asking) {
    asking = new Promise(resolve => {
      $("key-forget").hidden = !key();
      $("key-input").value = "";
      $("key-dialog").showModal();
      $("key-dialog").addEventListener("close", () => { asking = null; resolve(); }, {once: true});
    });
  }
  return asking;
}

function startKey() {
  onKeyWanted(askForKey);
  $("key-form").addEventListener("submit", event => {
    const value = $("key-input").value.trim();
    if (/^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$/.test(value)) {
      setKey(value);
      $("key-button").hidden = false;
      return;
    }
    event.preventDefault();
    $("key-problem").textContent = "A key has letters, digits and signs of ASCII only.";
    $("key-problem").hidden = false;
  });
  $("key-forget").addEventListener("click", () => { setKey(""); location.reload(); });
  $("key-button").hidden = !key();
  $("key-button").addEventListener("click", () => askForKey(false));
}

// ---- state and events ----

function showState(state, text) {
  $("state-dot").className = `dot ${state}`;
  if ($("state-text").textContent !== text) $("state-text").textContent = text; // told aloud when it changes
}

function takeStatus(status) {
  showState(status.state, STATES[status.state] || status.state);
  modelName = status.model ? status.model.name : "";
  $("model-name").textContent = modelName || "deepseek-edge";
  document.title = modelName ? `${modelName} – deepseek-edge` : "deepseek-edge";
  if (document.body.dataset.tab === "api" && $("api-model").textContent !== modelName) showSnippets(modelName);
  chat.setModel(status.model, status.state === "ok");
  dashboard.addStatus(status);
}

// A hidden page listens to nothing: phones keep their battery, the server its places.
async function untilVisible() {
  while (document.hidden)
    await new Promise(resolve => document.addEventListener("visibilitychange", resolve, {once: true}));
}

async function listen() {
  for (let failures = 0; ;) {
    await untilVisible();
    const controller = new AbortController(), onHide = () => { if (document.hidden) controller.abort(); };
    document.addEventListener("visibilitychange", onHide);
    let wait = 0;
    try {
      const response = await request("api/edge/events", {signal: controller.signal});
      $("notice").hidden = true;
      for await (const {event, data} of events(response)) {
        failures = 0;
        if (event === "history") dashboard.setHistory(JSON.parse(data));
        if (event === "status") takeStatus(JSON.parse(data));
      }
      throw new Error("the server closed the stream");
    } catch (problem) {
      if (!controller.signal.aborted) {
        failures++;
        wait = problem.retryAfter || Math.min(10, failures);
        const full = problem.status === 429;
        showState(full ? "ok" : "gone", full ? "ready" : "not reachable");
        const why = full ? "no live data: too many pages are open" : `not reachable; trying again (${problem.message})`;
        dashboard.setStale(why);
        if (full) await models(); // chat works without the stream
        else chat.setModel(null, false);
      }
    } finally {
      document.removeEventListener("visibilitychange", onHide);
    }
    await new Promise(resolve => setTimeout(resolve, wait * 1000));
  }
}

// What the chat must know when the stream has no place for this page.
async function models() {
  try {
    const [model] = (await (await request("v1/models")).json()).data;
    chat.setModel(model.max_model_len ? {context_length: model.max_model_len} : null, Boolean(model.max_model_len));
  } catch {
    chat.setModel(null, false);
  }
}

startKey();
dashboard.start();
startTheme();
chat.start();
startTabs();
listen();
