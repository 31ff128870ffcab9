/** The page: where it is, what it shows, the state of the server. */

import { key, setKey } from "./api.js";
import { fill, h } from "./dom.js";
import { log } from "./log.js";
import { modelPage } from "./model.js";
import { overview } from "./overview.js";
import { oneRequest, requests } from "./requests.js";
import { now, soon, start, watch } from "./watch.js";

const main = document.getElementById("main");
const state = document.getElementById("state");
const trouble = document.getElementById("trouble");
let shown = null;

function route() {
  const [page = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const name = decoded(rest.join("/"));
  shown?.close?.();
  if (page === "models" && name) shown = modelPage(name);
  else if (page === "requests") shown = name ? oneRequest(name) : requests();
  else if (page === "log" && !name) shown = log();
  else if (page === "") shown = overview();
  else shown = unknown();
  fill(main, shown.page);
  shown.update();
  const section = { "": "overview", requests: name ? "" : "requests", log: "log" }[page];
  for (const link of document.querySelectorAll("[data-page]")) {
    if (link.dataset.page === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${main.querySelector("h1").textContent} · PopGate`;
  scrollTo(0, 0);
}

/** What the address names; a `%` that encodes nothing is one. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** What an address shows that is none of ours. */
function unknown() {
  return {
    page: h("section", { class: "panel" }, h("div", { class: "body" },
      h("h1", {}, "Page not found"),
      h("p", {}, h("code", {}, location.hash), " is not an address of this server. ", h("a", { href: "#/" }, "Go to the overview"), "."))),
    update() {},
  };
}

function tell(problem) {
  trouble.hidden = !problem;
  const restricted = problem && [401, 403].includes(problem.status);
  trouble.textContent = problem ? `${problem.message}${restricted ? "; set the key under Key" : ""}` : "";
  const ready = now.ready?.ready;
  const lost = problem && problem.status === undefined;
  state.className = `state ${lost ? "bad" : ready ? "good" : "warn"}`;
  state.textContent = lost ? "not responding" : ready ? "ready" : now.ready?.reasons?.[0] ?? "not ready";
  state.title = state.textContent;
  shown?.update();
}

const dialog = document.getElementById("key");
const fields = { api: "key-api", name: "key-name", value: "key-value" };
document.getElementById("open-key").addEventListener("click", () => {
  for (const [name, id] of Object.entries(fields)) document.getElementById(id).value = key()[name] ?? "";
  dialog.returnValue = "";
  dialog.showModal();
});
// No submit button: Enter in a field would press the first one.
dialog.querySelector(".quiet").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  if (dialog.returnValue !== "ok") return;
  setKey(Object.fromEntries(Object.entries(fields).map(([name, id]) => [name, document.getElementById(id).value.trim()])));
  soon(0);
});

addEventListener("hashchange", route);
watch(tell);
route();
start();
