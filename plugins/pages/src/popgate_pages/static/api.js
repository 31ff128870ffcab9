/** The server's routes, with the key that was typed in. */

const STORE = "popgate.key";

export function key() {
  try {
    return JSON.parse(sessionStorage.getItem(STORE)) ?? {};
  } catch {
    return {};
  }
}

export function setKey(value) {
  sessionStorage.setItem(STORE, JSON.stringify(value));
}

/** What goes with every request. */
export function keyHeaders() {
  const { api, name, value } = key();
  const headers = {};
  if (api) headers["x-api-key"] = api;
  if (name && value) headers[name] = value;
  return headers;
}

/** A route's address; all are relative, so that a proxy may put a path in front. */
export function address(path) {
  return new URL(path, document.baseURI).href.split("#")[0];
}

export class Refused extends Error {
  constructor(status, body) {
    super(body?.error ?? `the server answered with ${status}`);
    this.status = status;
    this.body = body;
    // Without configured keys no key helps: the error itself says what to do.
    this.advice = body?.code === "management_is_closed" ? "" : ". Set a key that may manage models under Key.";
  }
}

/** An answer whatever its status. Throws where there is none. */
export function send(path, options = {}) {
  const headers = { ...keyHeaders(), ...options.headers };
  return fetch(address(path), { ...options, headers });
}

/** The document of a text. Integers that a number cannot hold stay as they are in JSON. */
function exactly(text) {
  const kept = (_, value, context) =>
    (typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source) ? JSON.rawJSON(context.source) : value);
  return JSON.parse(text, JSON.rawJSON && /\d{16}/.test(text) ? kept : undefined);
}

/** The JSON of a route. Throws `Refused`, or what `fetch` throws. */
export async function ask(path, options) {
  const answer = await send(path, options);
  const body = await answer.text().then(exactly).catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, body);
  return body;
}
