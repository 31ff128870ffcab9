/** Where the time of a request went. */

import { clock, duration, h, scroll } from "./dom.js";

export const PHASES = [
  ["receive", "Received", "the server received the request body"],
  ["decode", "Decoded", "the server decoded and checked the tensors"],
  ["queue", "Queued", "the request waited for the device"],
  ["compute", "Computed", "the model ran"],
  ["wake", "Handed back", "the result returned to the gateway"],
  ["encode", "Encoded", "the server encoded the response"],
];

function parts(request) {
  const known = PHASES.map(([name]) => [name, request.phases[name] ?? 0]);
  const total = known.reduce((sum, [, ms]) => sum + ms, 0) || 1;
  return [known, total];
}

/** All phases in one bar. */
export function strip(request) {
  const [known, total] = parts(request);
  const said = known.map(([name, ms]) => `${name} ${duration(ms)}`).join(", ");
  return h("div", { class: "strip", role: "img", "aria-label": said, title: said },
    known.filter(([, ms]) => ms > 0).map(([name, ms]) =>
      h("i", { class: name, style: { width: `${(100 * ms) / total}%` } })));
}

/** A bar for each phase, one after the other. */
export function fall(request) {
  const [known, total] = parts(request);
  let before = 0;
  return h("div", { class: "fall" }, known.map(([name, ms], index) => {
    const [, title, text] = PHASES[index];
    if (!ms) return null; // nobody has measured it, or there was nothing to do
    const bar = h("i", { class: name, style: { left: `${(100 * before) / total}%`, width: `${(100 * ms) / total}%` } });
    before += ms;
    return h("div", { title: text }, h("span", {}, title), h("div", { class: "track" }, bar), h("span", { class: "n" }, duration(ms)));
  }));
}

/** The same in words. */
export function story(request) {
  if (request.status >= 400) return failure(request);
  const [known, total] = parts(request);
  const [name, ms] = known.reduce((most, part) => (part[1] > most[1] ? part : most));
  const own = request.rows === 1 ? "its one row" : `its ${request.rows} rows`;
  const alone = request.batch_rows <= request.rows;
  const batch = alone ? `${own} alone` : `${own} in a batch of ${request.batch_rows}`;
  const share = Math.round((100 * ms) / total);
  const most = {
    receive: "the server received the body: it is large, or the client is slow",
    decode: "the server decoded the tensors: a binary encoding is faster",
    queue: "the request waited for a device that was busy with other requests",
    compute: "the model ran",
    wake: "the result waited for the gateway, which was busy or asleep",
    encode: "the server encoded the response: a binary encoding is faster",
  }[name];
  return `Answered at ${clock(request.at)} after ${duration(request.total_ms)}. `
    + `It waited ${duration(request.phases.queue)} and ran ${duration(request.phases.compute)}`
    + `${request.device ? ` on ${request.device}` : ""}, ${batch}. For ${share} % of the time, ${most}.`;
}

function failure(request) {
  const who = request.status === 499 ? "The client disconnected"
    : request.status >= 500 ? "The server failed to answer" : "The server refused the request";
  return `${who}: ${request.status} ${request.code} at ${clock(request.at)}, after ${duration(request.total_ms)}.${waited(request)}`;
}

/** How far a request came that failed. */
function waited(request) {
  if (!request.device) return "";
  const { queue, compute } = request.phases;
  return ` It waited ${duration(queue)} for ${request.device}`
    + (compute ? `, and had run for ${duration(compute)}.` : ", and did not run.");
}

/** A table of requests; `showModel` where they are of several. */
export function table(requests, { showModel = true, empty = "No requests yet" } = {}) {
  if (!requests?.length) return h("div", { class: "empty" }, h("b", {}, empty), "New requests appear here.");
  return scroll(h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}, "Ended"), showModel && h("th", {}, "Model"),
      h("th", { class: "wide-only" }, "Id"), h("th", { class: "bar-of" }, "Time"), h("th", { class: "n" }, "Took"), h("th", { class: "n wide-only" }, "Batch"))),
    h("tbody", {}, requests.map((r) => row(r, showModel)))));
}

function row(request, showModel) {
  const target = `#/requests/${encodeURIComponent(request.id)}`;
  const failed = request.status >= 400;
  return h("tr", { class: "link", click: (event) => { if (!event.target.closest("a")) location.hash = target; } },
    h("td", {}, h("a", { href: target }, clock(request.at))),
    showModel && h("td", {}, request.model ?? h("span", { class: "muted" }, "–")),
    h("td", { class: "mono wide-only" }, h("div", { class: "cut" }, request.id)),
    h("td", {}, failed ? h("div", { class: "why cut", title: request.error }, `${request.status} ${request.error || request.code}`) : strip(request)),
    h("td", { class: "n" }, duration(request.total_ms)),
    h("td", { class: "n wide-only" }, failed ? "–" : request.batch_rows > request.rows ? `${request.rows} of ${request.batch_rows}` : request.rows));
}

export function legend() {
  return h("div", { class: "legend" }, PHASES.map(([name, title]) => h("span", {}, h("i", { class: name }), title)));
}
