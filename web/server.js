// Talks to the server this page came from: requests with the key, and streams of events. Used by all other files.
// Never talks to anybody else: paths are relative to the page.

const KEY = "deepseek-edge.key";
let askForKey = async () => { throw new Error("the server wants a key"); };

export const url = path => new URL(path, document.baseURI).href;
export const key = () => sessionStorage.getItem(KEY) || "";
export function setKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}
// ask(refused) resolves when there is a key to try; refused: the last one was wrong.
export function onKeyWanted(ask) { askForKey = ask; }

export class ServerError extends Error {
  constructor(status, error, retryAfter) {
    super(error.message || `the server answered ${status}`);
    Object.assign(this, {status, param: error.param, code: error.code, retryAfter});
  }
}

// The response when it is good; throws ServerError otherwise. Asks for the key as often as the server wants one.
export async function request(path, {body, signal} = {}) {
  for (;;) {
    const used = key();
    const headers = used ? {Authorization: `Bearer ${used}`} : {};
    if (body) headers["Content-Type"] = "application/json";
    const response = await fetch(url(path), {
      method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, cache: "no-store",
      credentials: "same-origin", redirect: "error",
    });
    if (response.status === 401) {
      await askForKey(used !== "" && used === key());
      continue;
    }
    if (response.ok) return response;
    const answer = await response.json().catch(() => ({}));
    throw new ServerError(response.status, answer.error || {}, Number(response.headers.get("Retry-After")));
  }
}

// The events of a response as {event, data}, data as text. Comments are skipped.
export async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "", event = "message", data = [];
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      text += decoder.decode(value, {stream: true});
      const lines = text.split(/\r?\n/);
      text = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield {event, data: data.join("\n")};
          event = "message";
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        } else if (line.startsWith("event:")) {
          event = line.slice(6).trim();
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // who stops reading does not want the rest
  }
}
