// Requests with the token of this start. It comes in the fragment of the URL, which is not sent to
// any server, and stays in this tab.

const given = /^#token=([\w-]+)$/.exec(location.hash);
if (given) {
  sessionStorage.setItem("token", given[1]);
  history.replaceState(null, "", "#/");
}

export class ApiError extends Error {
  constructor(status, error) {
    super(error.what);
    this.status = status;
    this.error = error;
  }
}

export async function request(path, options = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem("token") ?? ""}` };
  const reply = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  if (!reply.ok) {
    let error = { what: `the server answered ${reply.status}`, why: "", fix: "" };
    try { error = (await reply.json()).error; } catch { /* not JSON */ }
    throw new ApiError(reply.status, error);
  }
  return reply;
}

export async function get(path, signal) {
  return (await request(path, { signal })).json();
}

export async function post(path, body = {}) {
  return (await request(path, { method: "POST", body: JSON.stringify(body) })).json();
}

// Call `onEvent(kind, data)` for each server-sent event until the stream or the signal ends.
export async function events(path, onEvent, signal) {
  const reply = await request(path, { signal });
  for await (const block of split(reply, "\n\n")) {
    let kind = "message", data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("event: ")) kind = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (data) onEvent(kind, JSON.parse(data));
  }
}

// Call `onText` with each piece of a text that may go on for long.
export async function follow(path, onText, signal) {
  const reply = await request(path, { signal });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    onText(value);
  }
}

async function* split(reply, separator) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    // A large event arrives in many pieces: join them once, at its end.
    if (!value.includes("\n")) { parts.push(value); continue; }
    const blocks = (parts.join("") + value).split(separator);
    parts = [blocks.pop()];
    yield* blocks;
  }
}

export const path = (...parts) => `/api/${parts.map(encodeURIComponent).join("/")}`;
