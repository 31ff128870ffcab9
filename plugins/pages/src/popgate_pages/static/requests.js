/** The last requests, and the page that explains one. */

import { Refused, ask } from "./api.js";
import { fill, h, renew, tabs } from "./dom.js";
import { fall, legend, story, table } from "./timeline.js";
import { now } from "./watch.js";

export function requests() {
  const kinds = [
    ["Last", "answered", "No requests yet"],
    ["Slowest", "slow", "No requests yet"],
    ["Failed", "failed", "No request has failed"],
  ];
  let shown = null;
  const body = h("div", {});
  const list = tabs("Which requests", kinds.map((kind) => [kind[0], () => {
    shown = kind;
    update();
    return body;
  }]));
  function update() {
    const [, name, empty] = shown;
    renew(body, table(now.requests?.[name], { empty }));
  }
  const page = h("div", {},
    h("div", { class: "title" }, h("h1", {}, "Requests")),
    h("section", { class: "panel" }, h("div", { class: "body" }, h("div", { class: "row spread" }, h("span", { class: "muted small" },
      "The last requests, the slowest of the last 15 minutes, and failed requests"), legend())), h("div", { class: "body" }, list)));
  return { page, update };
}

export function oneRequest(id) {
  const body = h("div", {});
  const page = h("div", {}, h("div", { class: "title" }, h("div", {}, h("a", { class: "crumb", href: "#/requests" }, "Requests"), h("h1", { class: "mono" }, id))), body);
  explain(id).then((content) => fill(body, content));
  return { page, update() {} };
}

async function explain(id) {
  let request;
  try {
    request = await ask(`v1/requests/${encodeURIComponent(id)}`);
  } catch (error) {
    const text = error instanceof Refused && error.status === 404
      ? "The server keeps the last 1,000 requests, the slowest and the failed ones. This request is not among them." : error.message;
    return h("section", { class: "panel" }, h("div", { class: "empty" }, h("b", {}, "Request not found"), text));
  }
  const failed = request.status >= 400;
  const facts = [
    ["Model", request.model && h("a", { href: `#/models/${encodeURIComponent(request.model)}` }, `${request.model}, version ${request.version}`)],
    ["Path", request.path], ["Status", String(request.status)], ["Device", request.device],
    ["Batch", !failed && (request.batch_rows > request.rows ? `${request.rows} of ${request.batch_rows} rows` : `${request.rows} ${request.rows === 1 ? "row" : "rows"}, alone`)],
  ];
  return [
    h("section", { class: "panel" }, h("div", { class: "body" },
      h("p", { class: "story" }, story(request)),
      failed && h("pre", {}, request.error), failed && !request.device ? null : fall(request))),
    h("section", { class: "panel" }, h("div", { class: "body" }, h("dl", { class: "facts" },
      facts.filter(([, value]) => value).map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value))),
      request.mates?.length ? h("div", { class: "wide" }, h("dt", {}, "Ran together with"), h("dd", { class: "mates mono" },
        request.mates.slice(0, 40).map((mate) => h("a", { href: `#/requests/${encodeURIComponent(mate)}` }, mate)))) : null))),
  ];
}
