/** A box for texts: the cosines of their vectors, their classes, or their ranks. */

import { fill, h } from "./dom.js";

const MOST_SHOWN = 12; // texts of which each pair is compared
const EXAMPLES = ["The cat sits on the mat.", "A cat is on the mat.", "The server is fast."];
const QUERY = "Where is the cat?";

/** The kind of a text model by its tensors; empty if it is none. */
export function kindOfTexts({ inputs, outputs }) {
  const [first, second] = inputs;
  if (first?.name !== "text" || first.datatype !== "BYTES" || outputs.length !== 1) return "";
  if (inputs.length > (second?.name === "text_pair" ? 2 : 1)) return "";
  if (outputs[0].name === "embedding") return "embedding";
  if (outputs[0].name !== "scores" || !second) return "";
  return outputs[0].shape.at(-1) === 1 ? "reranker" : "classifier";
}

/** `run` sends a request and shows what its last argument makes of the outputs. */
export function textsPane(model, kind, run) {
  const query = h("input", { "aria-label": "The query", value: QUERY });
  const texts = h("textarea", {
    "aria-label": "Texts, one per line", value: EXAMPLES.join("\n"),
    keydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(); },
  });
  function send() {
    const lines = texts.value.split("\n").map((line) => line.trim()).filter(Boolean);
    const inputs = kind === "reranker" ? { text: lines.map(() => query.value), text_pair: lines } : { text: lines };
    const body = { inputs };
    if (kind === "classifier") body.outputs = [{ name: "scores", parameters: { classification: model.outputs[0].shape.at(-1) } }];
    return run(JSON.stringify(body), {}, ([output]) => shown(kind, lines, output));
  }
  return h("div", {},
    kind === "reranker" && h("label", { class: "row" }, "Query", query),
    h("div", { class: kind === "reranker" ? "pane" : "" }, texts),
    h("div", { class: "row pane" }, h("button", { type: "button", class: "primary run", click: send }, "Run"),
      h("span", { class: "muted small" }, "one text per line; Ctrl+Enter runs the model")));
}

function shown(kind, texts, output) {
  const size = output.shape.at(-1);
  const data = output.data.flat(Infinity);
  const values = kind === "classifier" ? data : data.map(Number); // NaN comes as a text
  const rows = texts.map((_, i) => values.slice(i * size, (i + 1) * size));
  if (kind === "reranker") return ranks(texts, rows);
  return kind === "classifier" ? classes(texts, rows) : cosines(texts, rows);
}

function ranks(texts, rows) {
  const order = texts.map((text, i) => [rows[i][0], text]).sort((a, b) => b[0] - a[0]);
  return h("div", { class: "output" }, h("h3", {}, "Best answer first"), bars(order));
}

/** Classes as the server orders them: "score:number:label" each. */
function classes(texts, rows) {
  return texts.map((text, i) => h("div", { class: "output" }, h("h3", {}, text), bars(rows[i].map((one) => {
    const [score, number, ...label] = one.split(":");
    return [Number(score), label.join(":") || `class ${number}`];
  }))));
}

function bars(pairs) {
  const most = Math.max(...pairs.map(([score]) => score));
  return h("div", { class: "bars words" }, pairs.map(([score, name]) =>
    h("div", { class: score === most ? "top" : "" }, h("span", { title: name }, name),
      h("div", { class: "track" }, h("i", { style: { width: `${100 * Math.min(1, Math.max(0, score))}%` } })),
      h("span", { class: "n" }, score.toFixed(4)))));
}

function cosines(texts, rows) {
  const seen = rows.slice(0, MOST_SHOWN);
  const lengths = seen.map((row) => Math.hypot(...row) || 1);
  const cosine = (a, b) => seen[a].reduce((sum, value, i) => sum + value * seen[b][i], 0) / lengths[a] / lengths[b];
  const cell = (a, b) => {
    const value = cosine(a, b);
    return h("td", { class: "n", style: { "--near": `${100 * Math.max(0, value)}%` } }, value.toFixed(3));
  };
  return h("div", { class: "output" },
    h("h3", {}, "Cosine similarities", h("span", { class: "muted" }, `  of vectors with ${rows[0].length} numbers`)),
    h("div", { class: "scroll" }, h("table", { class: "cosines" },
      h("thead", {}, h("tr", {}, h("th", {}), seen.map((_, i) => h("th", { class: "n" }, i + 1)))),
      h("tbody", {}, seen.map((_, a) => h("tr", {}, h("th", { title: texts[a] }, `${a + 1}  ${texts[a]}`), seen.map((__, b) => cell(a, b))))))),
    rows.length > seen.length && h("p", { class: "muted small" }, `the first ${MOST_SHOWN} of ${rows.length}`));
}
