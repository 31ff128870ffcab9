/** The last lines of the server's log, for those who may manage it. */

import { Refused, ask } from "./api.js";
import { fill, h } from "./dom.js";

const EVERY = 2000; // ms

export function log() {
  const lines = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "Log" });
  const told = h("p", { class: "why", role: "status" });
  const page = h("div", {}, h("div", { class: "title" }, h("h1", {}, "Log")),
    h("section", { class: "panel" }, h("div", { class: "body" }, told, lines)));
  let timer = null;
  let closed = false;

  async function look() {
    try {
      const found = (await ask("v1/log?limit=500")).lines;
      const atEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
      fill(told);
      fill(lines, found.join("\n") || "Nothing has been logged yet.");
      if (atEnd) lines.scrollTop = lines.scrollHeight;
    } catch (error) {
      const refused = error instanceof Refused && [401, 403].includes(error.status);
      fill(told, refused ? `This page may not read the log: ${error.message}${error.advice}` : error.message);
      fill(lines);
    }
    if (!closed) timer = setTimeout(look, EVERY);
  }
  look();
  return { page, update() {}, close() { closed = true; clearTimeout(timer); } };
}
