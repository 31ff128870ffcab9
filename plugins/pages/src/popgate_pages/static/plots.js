/** Live plots by uPlot (uplot.LICENSE.txt), in the page's colours. */

import { figure, fill, h } from "./dom.js";
import { history, hour } from "./watch.js";

const SPANS = { "2 minutes": [120, history], "1 hour": [3600, hour] };
let span = "2 minutes";

/** Buttons that choose how much time the plots show; `changed` is called then. */
export function spanButtons(changed) {
  const buttons = Object.keys(SPANS).map((name) => h("button", {
    type: "button", "aria-pressed": String(name === span),
    click: () => {
      span = name;
      buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.textContent === name)));
      changed();
    },
  }, name));
  return h("div", { class: "row spans", role: "group", "aria-label": "Time span of the plots" }, buttons);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/**
 * A plot of columns of the history: `series` are [name, label, colour]; with `stacked`
 * each stands on the one before it.
 */
export function plot(title, series, { unit = "", stacked = false } = {}) {
  const box = h("div", { class: "plot", role: "img", "aria-label": title });
  const legend = h("div", { class: "legend" });
  const panel = h("section", { class: "panel" },
    h("div", { class: "head" }, h("h2", { class: "small-title" }, title)), box, legend);
  let chart = null;
  let made = "";

  function data() {
    const kept = SPANS[span][1];
    const columns = series.map(([name]) => kept[name]);
    if (!stacked) return [kept.time, ...columns];
    const sums = columns.map(() => []);
    kept.time.forEach((_, i) => {
      let sum = 0;
      columns.forEach((column, k) => {
        if (column[i] !== null) sum += column[i];
        sums[k].push(column[i] === null ? null : sum);
      });
    });
    return [kept.time, ...sums];
  }

  function make() {
    chart?.destroy();
    const axis = {
      stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const lines = series.map(([, label, name]) => ({
      label, stroke: colour(name), width: stacked ? 1 : 2, points: { show: false },
      fill: stacked ? colour(name) : undefined, spanGaps: false,
    }));
    // Of areas on each other the highest is drawn first.
    chart = new uPlot({
      width: box.clientWidth, height: box.clientHeight, cursor: { show: false }, legend: { show: false },
      padding: [8, 8, 0, 0],
      scales: {
        x: { time: true, range: () => [Date.now() / 1000 - SPANS[span][0], Date.now() / 1000] },
        y: { range: (_, low, high) => [0, (high > 0 ? high : 1) * 1.12] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 26,
          splits: (_, __, low, high) => [0.25, 0.5, 0.75].map((part) => low + part * (high - low)),
          values: (_, ticks) => ticks.map(ago) },
        { ...axis, size: 48, space: 34, values: (_, ticks) => ticks.map(figure) },
      ],
      series: [{}, ...(stacked ? lines.toReversed() : lines)],
    }, arranged(), box);
    made = look();
  }

  const arranged = () => {
    const [time, ...columns] = data();
    return [time, ...(stacked ? columns.toReversed() : columns)];
  };
  const look = () => `${box.clientWidth} ${colour("ground")}`;

  fill(legend, series.length > 1 && series.map(([, label, name]) =>
    h("span", {}, h("i", { style: { background: `var(--${name})` } }), label)));

  function update() {
    const kept = SPANS[span][1];
    if (kept.time.length === 0) {
      chart?.destroy();
      chart = null;
      fill(box, h("div", { class: "waits" }, "Waiting for the first measurements"));
      return;
    }
    if (!chart) fill(box);
    if (!chart || made !== look()) make();
    else chart.setData(arranged());
    const last = series.map(([name, label]) => `${label} ${figure(kept[name].at(-1) ?? NaN)}${unit}`);
    box.setAttribute("aria-label", `${title}: ${last.join(", ")}`);
    box.dataset.points = kept.time.length;
  }
  return { panel, update, close: () => chart?.destroy() };
}

function ago(at) {
  const seconds = Date.now() / 1000 - at;
  return seconds > 300 ? `−${Math.round(seconds / 60)} min` : `−${Math.round(seconds / 5) * 5} s`;
}
