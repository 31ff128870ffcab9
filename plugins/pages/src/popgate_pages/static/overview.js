/** The first page: what is served, on what, and how it is doing now. */

import { duration, figure, fill, h, isPressed, renew, scroll } from "./dom.js";
import { plot, spanButtons } from "./plots.js";
import { legend, table } from "./timeline.js";
import { history, now } from "./watch.js";

const STATES = { READY: ["good", "Ready"], LOADING: ["warn", "Loading"], UNLOADING: ["warn", "Unloading"], UNAVAILABLE: ["bad", "Unavailable"] };

export function pill(model) {
  const onDemand = !model.ready && model.state === "READY";
  const [kind, word] = STATES[model.state] ?? ["warn", model.state.toLowerCase()];
  return h("span", { class: `pill ${onDemand ? "" : kind}` }, word);
}

export function overview() {
  const figures = h("dl", { class: "panel figures" });
  const plots = [
    plot("Requests per second", [["rate", "answered", "compute"], ["failed", "failed", "bad"]]),
    plot("Mean latency, ms", [["decode", "decode", "decode"], ["queue", "queue", "queue"], ["compute", "compute", "compute"], ["wake", "back", "wake"], ["encode", "encode", "encode"]], { unit: " ms", stacked: true }),
    plot("Mean batch, rows", [["batch", "rows", "encode"]]),
  ];
  const models = h("div", {});
  const devices = h("div", {});
  const last = h("div", {});
  const page = h("div", {},
    h("div", { class: "title" }, h("h1", {}, "Overview"), spanButtons(() => plots.forEach((p) => p.update()))),
    figures,
    h("div", { class: "grid" }, plots.map((p) => p.panel)),
    h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, "Models")), h("div", {}, models)),
    h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, "Last requests"), legend()), last),
    h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, "Devices")), devices));

  function update() {
    const total = now.total ?? {};
    const seen = now.requests?.answered ?? [];
    const times = seen.map((r) => r.total_ms).sort((a, b) => a - b);
    const at = (share) => times[Math.min(times.length - 1, Math.floor(share * times.length))];
    const ready = now.models?.filter((m) => m.ready).length;
    const flying = now.devices.reduce((sum, d) => sum + d.in_flight, 0);
    const busy = history.batch.findLast((v) => v !== null);
    fill(figures,
      item("Requests", figure(total.rate ?? NaN), "per second", total.failed ? `${figure(total.failed)} per second failed` : "none failed"),
      item("Median latency", ...split(duration(at(0.5))), times.length ? `95 % within ${duration(at(0.95))}, last ${times.length}` : "no requests yet"),
      item("Batch", figure(busy ?? NaN), busy === 1 ? "row" : "rows", `${flying} in flight`),
      item("Models ready", figure(ready ?? NaN), now.models ? `of ${now.models.length}` : "", `${now.devices.length} ${now.devices.length === 1 ? "device" : "devices"}`));
    for (const p of plots) p.update();
    if (!isPressed(models)) fill(models, modelTable());
    fill(devices, deviceTable());
    renew(last, table(newest().slice(0, 12)));
  }
  return { page, update, close: () => plots.forEach((p) => p.close()) };
}

function newest() {
  const { answered = [], failed = [] } = now.requests ?? {};
  return [...answered, ...failed].sort((a, b) => b.at - a.at);
}

function split(text) {
  const [number, unit] = text.split(" ");
  return [number, unit ?? ""];
}

function item(title, value, unit, text) {
  return h("div", {}, h("dt", {}, title), h("dd", {}, value, unit && h("small", {}, unit)), h("dd", { class: "more" }, text));
}

function modelTable() {
  if (!now.models) return h("div", { class: "empty" }, "Loading …");
  if (!now.models.length) {
    return h("div", { class: "empty" }, h("b", {}, "No models yet"), "Put a model file into the model repository and load it (popgate load NAME), or start the server with one:",
      h("div", {}, h("pre", {}, "popgate serve model.onnx")));
  }
  return scroll(h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}, "Model"), h("th", {}, "State"), h("th", { class: "wide-only" }, "Version"), h("th", { class: "n wide-only" }, "Replicas"), h("th", { class: "n" }, "Requests/s"), h("th", { class: "n" }, "Latency"), h("th", { class: "n wide-only" }, "Batch"))),
    h("tbody", {}, now.models.map((model) => {
      const target = `#/models/${encodeURIComponent(model.name)}`;
      const rate = now.rates[`${model.name}/${model.version}`];
      return h("tr", { class: "link", click: (event) => { if (!event.target.closest("a")) location.hash = target; } },
        h("td", {}, h("a", { class: "name", href: target }, model.name), model.reason && h("div", { class: "why" }, model.reason)),
        h("td", {}, pill(model)),
        h("td", { class: "wide-only" }, model.version ?? "–", model.versions.length > 1 && h("span", { class: "muted" }, ` of ${model.versions.length}`)),
        h("td", { class: "n wide-only" }, model.instances || "–"),
        h("td", { class: "n" }, figure(rate?.rate ?? NaN)),
        h("td", { class: "n" }, rate?.latency ? duration(rate.latency) : "–"),
        h("td", { class: "n wide-only" }, figure(rate?.batch ?? NaN)));
    }))));
}

function deviceTable() {
  if (!now.devices.length) return h("div", { class: "empty" }, h("b", {}, "No device is attached"), "The server is starting, or is waiting for a free device.");
  return scroll(h("table", {},
    h("thead", {}, h("tr", {}, h("th", {}, "Device"), h("th", {}, "State"), h("th", { class: "n" }, "Models"), h("th", { class: "n" }, "In flight"), h("th", { class: "n wide-only" }, "Threads"), h("th", { class: "n wide-only" }, "Restarts"))),
    h("tbody", {}, now.devices.map((device) => h("tr", {},
      h("td", {}, h("span", { class: "name" }, device.id), device.lost_by && h("div", { class: "why" }, `lost: ${device.lost_by}`)),
      h("td", {}, h("span", { class: `pill ${device.state.toLowerCase() === "ready" ? "good" : "bad"}` }, device.state.toLowerCase())),
      h("td", { class: "n" }, device.models), h("td", { class: "n" }, device.in_flight),
      h("td", { class: "n wide-only" }, device.threads), h("td", { class: "n wide-only" }, device.restarts))))));
}
