/** The page of a model. */

import { Refused, ask } from "./api.js";
import { bytes, duration, figure, fill, h, renew, scroll } from "./dom.js";
import { pill } from "./overview.js";
import { snippets } from "./snippets.js";
import { legend, table } from "./timeline.js";
import { tryIt } from "./tryit.js";
import { now, soon } from "./watch.js";

export function modelPage(name) {
  const body = h("div", {}, h("p", { class: "muted" }, "Loading …"));
  const state = h("span", {});
  const rate = h("span", { class: "muted small" });
  const last = h("div", {});
  const tokens = h("section", { class: "panel tokens", hidden: true });
  const page = h("div", {},
    h("div", { class: "title" }, h("div", {}, h("a", { class: "crumb", href: "#/" }, "Models"), h("h1", {}, name)), state, rate, management(name, show)), body);
  show();

  async function show() {
    const content = await load(name);
    fill(body, content, tokens, h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, "Last requests of this model"), legend()), last));
    update();
  }

  function update() {
    const model = now.models?.find((m) => m.name === name);
    if (model) {
      fill(state, pill(model));
      const r = now.rates[`${name}/${model.version}`];
      fill(rate, r?.rate ? `${figure(r.rate)} requests per second, ${duration(r.latency)}` : "");
      const figures = tokenFigures(now.tokens[`${name}/${model.version}`]);
      tokens.hidden = !figures.length;
      fill(tokens, figures);
    }
    const mine = (now.requests?.answered ?? []).concat(now.requests?.failed ?? []).filter((r) => r.model === name);
    mine.sort((a, b) => b.at - a.at);
    renew(last, table(mine.slice(0, 10), { showModel: false }));
  }
  return { page, update };
}

/** Buttons that load and unload the model; `changed` is called when it has. */
function management(name, changed) {
  const told = h("span", { class: "small", role: "status" });
  const buttons = [["Load", "load", "Loading …", "Loaded"], ["Unload", "unload", "Unloading …", "Unloaded"]].map(
    ([title, route, meanwhile, done]) => h("button", { type: "button", click: () => run(route, meanwhile, done) }, title));
  async function run(route, meanwhile, done) {
    buttons.forEach((button) => { button.disabled = true; });
    fill(told, meanwhile);
    try {
      await ask(`v1/models/${encodeURIComponent(name)}/${route}`, { method: "POST" });
      fill(told, done);
      changed();
      soon(0);
    } catch (error) {
      const refused = error instanceof Refused && [401, 403].includes(error.status);
      fill(told, h("span", { class: "why" }, refused
        ? `This page may not ${route} models: ${error.message}${error.advice}` : error.message));
    }
    buttons.forEach((button) => { button.disabled = false; });
  }
  return h("div", { class: "row manage" }, buttons, told);
}

async function load(name) {
  let model;
  try {
    model = await ask(`v1/models/${encodeURIComponent(name)}`);
  } catch (error) {
    const title = error instanceof Refused && error.status === 404 ? "Model not found" : "Cannot describe the model";
    return h("section", { class: "panel" }, h("div", { class: "empty" }, h("b", {}, title), error.message));
  }
  if (!model.platform) {
    return h("section", { class: "panel" }, h("div", { class: "empty" }, h("b", {}, "Model not loaded"), model.reason || "The server has not loaded this model."));
  }
  return [tryIt(model), h("div", { class: "grid two" }, tensors(model), snippets(model)), about(model)];
}

function tensors(model) {
  const rows = (title, list) => list.map((tensor, index) => h("tr", {},
    h("td", { class: "muted" }, index ? "" : title), h("td", { class: "mono" }, tensor.name),
    h("td", { class: "mono n" }, `${tensor.datatype}[${tensor.shape.map((s) => (s < 0 ? "n" : s)).join(", ")}]`)));
  return h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, "Tensors")),
    scroll(h("table", {}, h("tbody", {}, rows("inputs", model.inputs), rows("outputs", model.outputs)))),
    h("div", { class: "body small" }, h("p", {}, model.batching ? `Batched: rows of several requests run together, up to ${model.max_batch_size}` : "Not batched: requests run one by one"),
      model.batching_reason && h("p", { class: "muted" }, `${sentence(model.batching_reason)}.`)));
}

function about(model) {
  const facts = [
    ["Kind", model.platform], ["Version", versions(model)], ["Replicas", String(model.instances)], ["Memory", bytes(model.memory)],
    ...Object.entries(model.properties).map(([key, value]) => [titled(key), key.startsWith("labels.") ? JSON.parse(value).join(", ") : value]),
  ];
  return h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, "About")),
    h("div", { class: "body" }, h("dl", { class: "facts" }, facts.filter(([, value]) => value).map(([title, value]) =>
      h("div", { class: value.length > 60 ? "wide" : "" }, h("dt", {}, title), h("dd", {}, value))))));
}

/** The numbers of a text model since the server's start; nothing before its first request. */
function tokenFigures(t) {
  if (!t?.tokens) return [];
  const facts = [
    ["Tokens", t.tokens.toLocaleString("en")],
    ["Padding", `${(100 * (1 - t.tokens / t.padded_tokens)).toFixed(1)} %`],
    ["Tokens per batch", figure(t.padded_tokens / Math.max(1, t.batches))],
    ["Tokenizing a request", duration(t.tokenizing.ns / Math.max(1, t.tokenizing.count) / 1e6)],
  ];
  return [h("div", { class: "head" }, h("h2", {}, "Tokens")),
    h("div", { class: "body" }, h("dl", { class: "facts" }, facts.map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value)))))];
}

function titled(key) {
  return sentence(key.replace(/^(onnx|user)\./, "").replace(/^labels\./, "labels of ").replaceAll("_", " "));
}

function sentence(words) {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function versions(model) {
  const others = model.versions.filter((v) => v.version !== model.version).map((v) => `${v.version} ${v.state.toLowerCase()}`);
  return others.length ? `${model.version} (also ${others.join(", ")})` : model.version;
}
