// The API tab: how programs use this server, to copy. And copying itself, for all who need it.
import {element} from "./markdown.js";
import {key, url} from "./server.js";

const $ = id => document.getElementById(id);

// The clipboard of pages is there for https and this machine only; a phone on plain http gets the older way.
export async function copyText(text, button) {
  let copied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = element("textarea", {className: "for-readers", value: text, readOnly: true});
    document.body.append(field);
    field.select();
    copied = document.execCommand("copy");
    field.remove();
    button.focus();
  }
  const before = button.dataset.text || (button.dataset.text = button.textContent);
  button.textContent = copied ? "Copied" : "Copy failed";
  setTimeout(() => { button.textContent = before; }, 1500);
}

// Quoting: a model may be called anything.
const inShell = text => `'${text.replaceAll("'", "'\\''")}'`;

function curl(base, model, hasKey, stream) {
  const body = {model, messages: [{role: "user", content: "Say hi"}], ...(stream ? {stream: true} : {})};
  return [
    `curl ${stream ? "-N " : ""}${base}/chat/completions \\`,
    ...(hasKey ? ['  -H "Authorization: Bearer $OPENAI_API_KEY" \\'] : []),
    "  -H 'Content-Type: application/json' \\",
    `  -d ${inShell(JSON.stringify(body))}`,
  ].join("\n");
}

function python(base, model, hasKey, stream) {
  const client = `openai.OpenAI(base_url=${JSON.stringify(base)}`;
  const ask = `client.chat.completions.create(model=${JSON.stringify(model)},
    messages=[{"role": "user", "content": "Say hi"}]`;
  return [
    "import openai",
    "",
    `client = ${hasKey ? `${client})  # the key: OPENAI_API_KEY` : `${client}, api_key="none")`}`,
    ...(stream ? [
      `for chunk in ${ask}, stream=True):`,
      "    if chunk.choices:",
      '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
    ] : [
      `answer = ${ask})`,
      "print(answer.choices[0].message.content)",
    ]),
  ].join("\n");
}

function environment(base, model, hasKey) {
  const key = hasKey ? "…" : "none";
  return `export OPENAI_BASE_URL=${base}\nexport OPENAI_API_KEY=${key}\nexport OPENAI_MODEL=${inShell(model)}`;
}

export function showSnippets(name) {
  const base = url("v1"), model = name || "default", hasKey = key() !== "";
  $("base-url").textContent = base;
  $("api-model").textContent = model;
  $("key-hint").textContent = hasKey ? "Programs need a key: put it into OPENAI_API_KEY." : "It asks for no key.";
  const all = {"curl": curl(base, model, hasKey, false), "curl, streamed": curl(base, model, hasKey, true),
    "Python": python(base, model, hasKey, false), "Python, streamed": python(base, model, hasKey, true),
    "Environment of other tools": environment(base, model, hasKey)};
  $("snippets").replaceChildren(...Object.entries(all).map(([title, text]) => {
    const copy = element("button", {type: "button", className: "quiet copy", "aria-label": `Copy: ${title}`}, "Copy");
    copy.addEventListener("click", () => copyText(text, copy));
    return element("div", {className: "code-block"},
      element("div", {className: "code-head"}, element("h3", {}, title), copy), element("pre", {tabIndex: 0}, element("code", {}, text)));
  }));
}
