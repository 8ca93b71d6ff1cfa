// The Dashboard tab: charts, table and figures of what /api/edge/events tells once a second. Fed by app.js.
//
// The server's numbers are totals, so what is shown is the difference between two samples, and a lost one does no harm.
// Times are the server's own time since its start: no clock of this machine is compared with it.
import {drawChart, indexAt, roundUp} from "./charts.js";
import {element} from "./markdown.js";

const $ = id => document.getElementById(id);
const KEEP = 601; // ten minutes of seconds and the one before
const STEPS = {60: {chart: 1, table: 5}, 600: {chart: 5, table: 30}}; // seconds in one point or row, by the time shown

let samples = []; // {t (s), prompt, generated, ttftCount, ttftSum, running, waiting, kv}
let latest = null, speeds = new Map(), marked = -1;

const NONE = "–";
const whole = x => x.toLocaleString();
const number = x => x === null ? NONE : x >= 100 ? whole(Math.round(x)) : Number.isInteger(x) ? String(x) : x.toFixed(1);
function short(x) {
  if (x >= 10000) return `${Math.round(x / 1000)}k`;
  return x >= 10 || Number.isInteger(x) ? String(Math.round(x)) : x.toFixed(x < 1 ? 2 : 1);
}
const seconds = x => x === null ? "–" : x < 1 ? `${Math.round(x * 1000)} ms` : `${x.toFixed(x < 10 ? 2 : 1)} s`;
const bytes = x => x >= 2 ** 30 ? `${(x / 2 ** 30).toFixed(1)} GiB` : `${(x / 2 ** 20).toFixed(0)} MiB`;
const percent = x => `${Math.round(x * 100)} %`;

function duration(s) {
  const d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min ${Math.floor(s % 60)} s` : `${Math.floor(s)} s`;
}

// One row a chart. values: columns of points() below.
const CHARTS = [
  {id: "speed", title: "Tokens a second", format: number, axis: short,
    series: [["generated", "--a", "written"], ["prompt", "--b", "prompt"]]},
  {id: "ttft", title: "Time to first token", format: seconds, axis: x => `${short(x)} s`,
    series: [["ttft", "--a", "mean"]]},
  {id: "requests", title: "Requests", format: number, axis: short, least: 2,
    series: [["running", "--a", "running"], ["waiting", "--c", "waiting"]]},
  {id: "kv", title: "KV cache in use", series: [["kv", "--a", "used"]], format: percent, axis: percent, top: 1},
];

const span = () => Number(document.querySelector("input[name=span]:checked").value);
const asTable = () => document.querySelector("input[name=form]:checked").value === "table";
const blocksTotal = () => latest && latest.gauges.kv_blocks || 0;

// `count` points of `step` seconds each, the last one ending now. Where there are no samples, values are null.
function points(step, count) {
  const out = [], end = samples.length ? samples.at(-1).t : 0;
  let i = samples.length - 1;
  for (let p = 0; p < count; p++) {
    const to = end - p * step, from = to - step;
    while (i >= 0 && samples[i].t > to + 0.5) i--;
    let k = i, running = 0, waiting = 0, kv = 0;
    for (; k > 0 && samples[k].t > from + 0.5; k--) {
      running = Math.max(running, samples[k].running);
      waiting = Math.max(waiting, samples[k].waiting);
      kv = Math.max(kv, samples[k].kv);
    }
    let a = samples[k], b = samples[i];
    // None in this second because the next one came late: it tells about this second too.
    const late = samples[i + 1];
    if (a && a === b && a.t <= from + 0.5 && late && late.t - a.t < step + 2) {
      b = late;
      ({running, waiting, kv} = late);
    }
    if (!a || a === b) {
      out.push({from, generated: null, prompt: null, ttft: null, running: null, waiting: null, kv: null});
      continue;
    }
    const time = b.t - a.t, firsts = b.ttftCount - a.ttftCount;
    out.push({
      from, running, waiting,
      generated: (b.generated - a.generated) / time,
      prompt: (b.prompt - a.prompt) / time,
      ttft: firsts > 0 ? (b.ttftSum - a.ttftSum) / firsts : null,
      kv: blocksTotal() ? kv / blocksTotal() : 0,
    });
  }
  return out.reverse();
}

// ---- charts and table ----

function makeCharts() {
  $("charts").replaceChildren(...CHARTS.map(chart => {
    chart.canvas = element("canvas", {id: `chart-${chart.id}`, role: "img"});
    chart.legend = element("span", {className: "legend"});
    for (const [name, color, word] of chart.series) {
      const swatch = element("i", {className: `swatch ${color.slice(2)}`, "aria-hidden": "true"});
      const value = element("b");
      chart.legend.append(element("span", {}, swatch, `${word} `, value));
      chart[name] = value;
    }
    chart.canvas.addEventListener("pointermove", event => {
      marked = indexAt(chart.canvas, event.clientX, span() / STEPS[span()].chart);
      drawAll();
    });
    chart.canvas.addEventListener("pointerleave", () => { marked = -1; drawAll(); });
    return element("figure", {}, element("figcaption", {}, element("h3", {}, chart.title), chart.legend), chart.canvas);
  }));
}

// false: this browser draws no charts.
function drawCharts() {
  const step = STEPS[span()].chart, rows = points(step, span() / step), mark = marked;
  const at = mark >= 0 ? rows[mark] : rows.at(-1);
  for (const chart of CHARTS) {
    const columns = chart.series.map(([name, color]) => ({values: rows.map(row => row[name]), color}));
    const highest = Math.max(0, ...columns.flatMap(({values}) => values.filter(v => v !== null)));
    const top = chart.top || roundUp(Math.max(highest, chart.least || 0));
    const shown = {series: columns, top, format: chart.axis, span: `${span() === 60 ? "60 s" : "10 min"} ago`, mark};
    if (!drawChart(chart.canvas, shown)) return false;
    const told = chart.series.map(([name, , word]) => {
      // What is marked, or else the last value there is: first tokens are rarer than samples.
      const known = mark >= 0 ? [] : rows.filter(row => row[name] !== null), value = (known.at(-1) || at)[name];
      chart[name].textContent = value === null ? "–" : chart.format(value);
      return `${word} ${chart[name].textContent}`;
    });
    const time = span() === 60 ? "60 seconds" : "10 minutes";
    chart.canvas.setAttribute("aria-label", `${chart.title}, ${told.join(", ")}; highest ${chart.format(highest)} in ${time}`);
  }
  return true;
}

function headRow(texts) {
  return element("thead", {}, element("tr", {}, ...texts.map(text => element("th", {scope: "col"}, text))));
}

function drawTable() {
  const step = STEPS[span()].table, rows = points(step, span() / step).reverse();
  const end = samples.length ? samples.at(-1).t : 0;
  const line = row => {
    const ago = Math.round(end - row.from);
    const texts = [`${ago - step}–${ago} s`, number(row.generated), number(row.prompt), seconds(row.ttft),
      number(row.running), number(row.waiting), row.kv === null ? NONE : percent(row.kv)];
    const cell = (text, i) => i === 0 ? element("th", {scope: "row"}, text) : element("td", {}, text);
    return element("tr", {}, ...texts.map(cell));
  };
  const head = headRow(["Ago", "Written tok/s", "Prompt tok/s", "First token", "Running", "Waiting", "KV"]);
  $("history").replaceChildren(element("table", {}, head, element("tbody", {}, ...rows.map(line))));
}

function drawAll() {
  if ($("dashboard").hidden) return;
  const table = asTable() || !drawCharts();
  $("charts").hidden = table;
  $("history").hidden = !table;
  if (table) drawTable();
}

// ---- figures ----

const pairs = rows => rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);

function tile([name, value, unit]) {
  const text = element("dd", {}, element("b", {}, value), " ", element("small", {}, unit));
  return element("div", {}, element("dt", {}, name), text);
}

function showTiles() {
  const [now] = points(3, 1), [minute] = points(60, 1), g = latest.gauges; // three seconds: one jumps
  const kv = blocksTotal() ? percent(g.kv_blocks_used / blocksTotal()) : NONE;
  $("tiles").replaceChildren(...[
    ["Writing", number(now.generated), "tok/s"],
    ["Reading prompts", number(now.prompt), "tok/s"],
    ["First token, 60 s", seconds(minute.ttft), "mean"],
    ["Running", String(g.requests_running), `${g.requests_waiting} waiting`],
    ["KV cache", kv, g.kv_bytes ? `of ${bytes(g.kv_bytes)}` : ""],
    ["Up", duration(latest.uptime_ms / 1000), latest.state],
  ].map(tile));
}

function stateOf(r) {
  if (!r.running) return "waiting";
  return r.n_processed < r.n_prompt ? `reading ${percent(r.n_processed / r.n_prompt)}` : "writing";
}

function showRequests() {
  const now = latest.uptime_ms / 1000, next = new Map();
  const rows = latest.requests.map(r => {
    const kept = [...(speeds.get(r.id) || []), {t: now, n: r.n_generated}].slice(-4); // the speed is that of a few seconds
    next.set(r.id, kept);
    const time = now - kept[0].t, speed = time > 0 ? (r.n_generated - kept[0].n) / time : null;
    const texts = [stateOf(r), whole(r.n_prompt), whole(r.n_generated), number(speed)];
    const cells = texts.map((text, i) => element("td", {className: i === 0 ? "start" : ""}, text));
    return element("tr", {}, element("th", {scope: "row"}, String(r.id)), ...cells);
  });
  speeds = next;
  const remark = text => element("tr", {}, element("td", {colSpan: 5, className: "hint"}, text));
  const more = latest.gauges.requests_running + latest.gauges.requests_waiting - latest.requests.length;
  if (rows.length === 0) rows.push(remark("none"));
  if (more > 0) rows.push(remark(`and ${more} more`));
  $("requests").replaceChildren(...rows);
}

function showTotals() {
  const c = latest.counters, h = latest.histograms;
  const mean = name => h[name] && h[name].count ? `${seconds(h[name].sum / h[name].count)} (mean)` : NONE;
  $("totals").replaceChildren(...pairs([
    ["Requests", whole(c.requests_total)],
    ["finished", whole(c.requests_finished_total)],
    ["left by their client", whole(c.requests_cancelled_total)],
    ["failed", whole(c.requests_failed_total)],
    ["refused", whole(c.requests_rejected_total)],
    ["Prompt tokens", whole(c.prompt_tokens_total)],
    ["Tokens written", whole(c.generated_tokens_total)],
    ["Between two tokens", mean("inter_token_latency_seconds")],
    ["In the queue", mean("queue_seconds")],
  ]));
}

function showFacts() {
  const m = latest.model, g = latest.gauges;
  $("facts").replaceChildren(...pairs(m ? [
    ["Name", m.name],
    ["Architecture", `${m.arch}, ${m.n_layers} layers`],
    ["Parameters", `${short(m.n_parameters / 1e6)} M`],
    ["Weights", `${m.quantization}, ${bytes(g.weight_bytes)}`],
    ["Context", `${whole(m.context_length)} tokens`],
    ["Runs on", `${m.device}, ${m.n_threads} thread${m.n_threads === 1 ? "" : "s"}`],
    ["KV cache", bytes(g.kv_bytes)],
    ["Scratch", bytes(g.scratch_bytes)],
    ["Server", `deepseek-edge ${latest.version}`],
  ] : [["Name", "still loading"]]));
}

function showAll() {
  if (!latest || $("dashboard").hidden) return;
  showTiles();
  showRequests();
  showTotals();
  showFacts();
  drawAll();
}

// ---- what app.js calls ----

// A stream begins: what the server remembers replaces what was here.
export function setHistory(history) {
  const at = Object.fromEntries(history.fields.map((name, i) => [name, i]));
  samples = history.samples.map(s => ({
    t: s[at.uptime_ms] / 1000,
    prompt: s[at.prompt_tokens_total],
    generated: s[at.generated_tokens_total],
    ttftCount: s[at.time_to_first_token_count],
    ttftSum: s[at.time_to_first_token_sum],
    running: s[at.requests_running],
    waiting: s[at.requests_waiting],
    kv: s[at.kv_blocks_used],
  }));
  speeds = new Map();
}

export function addStatus(status) {
  latest = status;
  const {counters: c, gauges: g} = status, ttft = status.histograms.time_to_first_token_seconds;
  const sample = {
    t: status.uptime_ms / 1000,
    prompt: c.prompt_tokens_total,
    generated: c.generated_tokens_total,
    ttftCount: ttft.count,
    ttftSum: ttft.sum,
    running: g.requests_running,
    waiting: g.requests_waiting,
    kv: g.kv_blocks_used,
  };
  // The first one follows the history at once.
  if (samples.length && sample.t - samples.at(-1).t < 0.5) samples.pop();
  samples.push(sample);
  if (samples.length > KEEP) samples.splice(0, samples.length - KEEP);
  $("live").textContent = "live";
  showAll();
}

export function setStale(why) { $("live").textContent = why; }
export const refresh = showAll;

export function start() {
  makeCharts();
  $("dashboard").addEventListener("change", () => { marked = -1; showAll(); });
  new ResizeObserver(drawAll).observe($("charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}
