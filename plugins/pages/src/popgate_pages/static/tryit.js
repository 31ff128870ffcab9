/** A form to try a model, in the way that suits its inputs. */

import { ask, send } from "./api.js";
import { duration, figure, fill, h, tabs } from "./dom.js";
import { canBeNpy, npy } from "./npy.js";
import { fitted, isDrawable, numbersOf, pictureOf, scales, sheet } from "./picture.js";
import { kindOfTexts, textsPane } from "./texts.js";
import { strip } from "./timeline.js";

const LARGE = 5000; // elements, from which on JSON is no way to send a picture
const MOST_BARS = 10;
const JSON_OF_BROWSERS = "application/json; nan=string"; // JSON.parse knows no NaN

export function tryIt(model) {
  const answer = h("div", { class: "answer", role: "status" },
    h("div", { class: "empty" }, h("b", {}, "No answer yet"), "The answer appears here, with the time of each phase."));
  const run = (body, headers, shown) => show(answer, model, body, headers, shown);
  const [input] = model.inputs;
  const single = model.inputs.length === 1;
  // What decodes pictures in the server does it as the model was trained.
  const picture = single && !input.files ? pictureOf(input, model.batching) : null;
  const panes = [];
  const texts = kindOfTexts(model);
  if (texts) panes.push(["Texts", () => textsPane(model, texts, run)]);
  if (isDrawable(picture)) panes.push(["Draw", () => drawPane(model, picture, run)]);
  if (picture) panes.push(["Picture", () => picturePane(model, picture, run)]);
  if (!texts && single && (input.files || input.datatype === "BYTES")) panes.push(...bytesPanes(input, run));
  const json = ["JSON", () => jsonPane(model, run)];
  const takesNpy = single && input.datatype !== "BYTES";
  const file = ["File (.npy)", () => filePane(run)];
  // What is large comes out of a file sooner than out of somebody's fingers.
  if (takesNpy && model.example === null) panes.push(file, json);
  else panes.push(json, ...(takesNpy ? [file] : []));
  return h("div", { class: "grid try" },
    h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, "Try it")), h("div", { class: "body" }, tabs("Ways to fill the input", panes))),
    h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, "Answer")), h("div", { class: "body" }, answer)));
}

/** The ways to fill an input that takes files: a text, a picture, any file. */
function bytesPanes(input, run) {
  const send = (body, type) => run(body, { "content-type": type });
  const any = { "content-type": "application/octet-stream" };
  const panes = [["Picture", () => fileOfPicture(send)], ["File", () => dropZone("A file", "", (file) => run(file, any))]];
  if (input.files) return panes;
  const text = ["Text", () => textPane(send)];
  return /image|img|picture|photo/i.test(input.name) ? [...panes, text] : [text, ...panes];
}

function textPane(send) {
  const text = h("textarea", { "aria-label": "The text", value: "This is an example." });
  // Not as text/plain: text that begins with a brace would be taken for a request.
  const form = () => send(text.value, "application/vnd.popgate.element");
  return h("div", {}, text,
    h("div", { class: "row pane" }, h("button", { type: "button", class: "primary run", click: form }, "Run")));
}

function fileOfPicture(send) {
  const seen = h("div", {});
  const take = (blob) => {
    fill(seen, h("img", { class: "seen", alt: "The picture that was sent", src: URL.createObjectURL(blob) }));
    return send(blob, blob.type || "image/*");
  };
  return h("div", {},
    dropZone("A picture", "image/*", take),
    h("div", { class: "drawing pane" }, seen),
    h("div", { class: "row pane" },
      h("button", { type: "button", click: () => testPicture().toBlob(take, "image/png") }, "Use a test picture")));
}

function sendPicture(model, picture, canvas, scale, run) {
  const [input] = model.inputs;
  const numbers = numbersOf(canvas, picture, scale);
  if (numbers.length > LARGE && canBeNpy(input.datatype)) {
    return run(npy(input.datatype, picture.shape, numbers), { "content-type": "application/x-npy" });
  }
  return run(JSON.stringify({ inputs: [{ name: input.name, shape: picture.shape, datatype: input.datatype, data: numbers }] }));
}

function scaleChoice(model, changed) {
  const [input] = model.inputs;
  const choices = scales(input, model.example?.inputs?.[input.name]);
  const select = h("select", { "aria-label": "Values of pixels", change: () => changed() },
    choices.map(([title], i) => h("option", { value: String(i) }, title)));
  return [select, () => choices[Number(select.value)][1]];
}

function drawPane(model, picture, run) {
  const seen = h("div", {}, h("canvas", { class: "seen", width: picture.width, height: picture.height }));
  let drawn = null;
  const again = () => drawn && sendPicture(model, picture, drawn, scale(), run);
  const [select, scale] = scaleChoice(model, again);
  const page = sheet(picture, (canvas) => {
    drawn = canvas;
    fill(seen, canvas);
    again();
  });
  return h("div", {},
    h("div", { class: "drawing" },
      h("figure", {}, page.canvas, h("figcaption", {}, "Draw here")),
      h("figure", {}, seen, h("figcaption", {}, `The model's ${picture.width} × ${picture.height}`))),
    h("div", { class: "row pane" },
      h("button", { type: "button", click: () => { page.clear(); drawn = null; fill(seen, h("canvas", { class: "seen", width: 1, height: 1 })); } }, "Clear"),
      model.example && h("button", { type: "button", click: () => run(JSON.stringify(model.example)) }, "Use the example"),
      h("label", { class: "row" }, "Pixels", select)));
}

function picturePane(model, picture, run) {
  const seen = h("div", {});
  let shown = null;
  const again = () => shown && sendPicture(model, picture, shown, scale(), run);
  const [select, scale] = scaleChoice(model, again);
  async function take(source) {
    try {
      shown = fitted(source instanceof Blob ? await createImageBitmap(source) : source, picture);
    } catch {
      return fill(seen, h("p", { class: "why" }, "The browser cannot read this file as a picture. Use a JPEG, PNG or WebP file."));
    }
    fill(seen, h("figure", {}, shown, h("figcaption", {}, `${picture.width} × ${picture.height}, ${picture.channels === 1 ? "grey" : "colour"}`)));
    return again();
  }
  return h("div", {},
    dropZone("A picture", "image/*", take),
    h("div", { class: "drawing pane" }, seen),
    h("div", { class: "row pane" },
      h("button", { type: "button", click: () => take(testPicture()) }, "Use a test picture"),
      h("label", { class: "row" }, "Pixels", select)));
}

function testPicture() {
  const canvas = h("canvas", { width: 256, height: 256 });
  const context = canvas.getContext("2d");
  const sky = context.createLinearGradient(0, 0, 0, 256);
  sky.addColorStop(0, "#5b8def");
  sky.addColorStop(1, "#f4d8a8");
  context.fillStyle = sky;
  context.fillRect(0, 0, 256, 256);
  context.fillStyle = "#ffdf6b";
  context.beginPath();
  context.arc(180, 90, 34, 0, 7);
  context.fill();
  context.fillStyle = "#3f7d58";
  context.beginPath();
  context.moveTo(0, 256);
  context.lineTo(90, 130);
  context.lineTo(256, 256);
  context.fill();
  return canvas;
}

function dropZone(what, accept, take) {
  const zone = h("div", { class: "drop" },
    h("p", {}, `${what}: drop it here, or `),
    h("input", { type: "file", accept, "aria-label": what, change: (event) => event.target.files[0] && take(event.target.files[0]) }));
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  return zone;
}

function filePane(run) {
  return h("div", {}, dropZone("A .npy file", ".npy", (file) => run(file, { "content-type": "application/x-npy" })),
    h("p", { class: "muted small pane" }, "A file of ", h("code", {}, "numpy.save"), " with all dimensions of the input."));
}

function jsonPane(model, run) {
  const text = h("textarea", {
    spellcheck: "false", "aria-label": "The request as JSON", value: exampleText(model),
    keydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(text.value); },
  });
  return h("div", {}, text,
    h("div", { class: "row pane" }, h("button", { type: "button", class: "primary run", click: () => run(text.value) }, "Run"),
      h("span", { class: "muted small" }, "or Ctrl+Enter")));
}

/** A request in JSON; a short one for inputs that are too large to be shown. */
export function exampleText(model) {
  if (model.example) return JSON.stringify(model.example, null, 1).replace(/\[\s+(?=[^[\s])[^[\]]*?\]/g, (list) => list.replace(/\s+/g, " ").replace("[ ", "[").replace(" ]", "]"));
  return JSON.stringify({ inputs: Object.fromEntries(model.inputs.map((i) => [i.name, []])) }, null, 1);
}

async function show(answer, model, body, headers = {}, shown = (outputs) => outputs.map(shownOutput)) {
  fill(answer, h("div", { class: "empty" }, "Waiting for the answer …"));
  const began = performance.now();
  try {
    const response = await send(model.url.slice(1), {
      method: "POST", body, headers: { "content-type": "application/json", accept: JSON_OF_BROWSERS, ...headers },
    });
    const took = performance.now() - began;
    const document_ = read(await response.text());
    if (!response.ok) {
      return fill(answer, h("p", { class: "why" }, `${response.status} ${document_.code}`), h("pre", { class: "pane" }, document_.error));
    }
    const place = h("div", { class: "pane" });
    fill(answer, shown(document_.outputs), place);
    return explain(place, response.headers.get("x-request-id"), took);
  } catch (error) {
    return fill(answer, h("p", { class: "why" }, `The server did not answer: ${error.message}`));
  }
}

/** The document of a text. Integers that a number of JavaScript cannot hold stay texts. */
function read(text) {
  const exact = (_, value, context) => (Number.isSafeInteger(value) || !/^-?\d+$/.test(context?.source) ? value : context.source);
  return JSON.parse(text, /"U?INT64"/.test(text) ? exact : undefined);
}

async function explain(place, id, took) {
  const link = h("a", { href: `#/requests/${encodeURIComponent(id)}` }, "Explain this request");
  try {
    const request = await ask(`v1/requests/${encodeURIComponent(id)}`);
    fill(place, strip(request), h("div", { class: "row spread small pane" },
      h("span", { class: "muted" }, `${duration(request.total_ms)} in the server, ${duration(took)} for this page`), link));
  } catch {
    fill(place, h("p", { class: "muted small" }, `${duration(took)} for this page`));
  }
}

function shownOutput(output) {
  const { name, shape, data } = output;
  const values = Array.isArray(data) ? data.flat(Infinity) : [];
  const rows = shape.length > 1 ? shape[0] : 1;
  const head = h("h3", {}, name, h("span", { class: "muted" }, `  ${output.datatype}[${shape.join(", ")}]`));
  let body;
  if (values.length === 1) body = h("div", { class: "big" }, one(output.datatype, values[0]));
  else if (rows === 1 && values.length > 1 && values.every((v) => typeof v === "number") && output.datatype.startsWith("FP")) body = bars(values);
  else body = h("pre", {}, cut(output.datatype === "BYTES" ? JSON.stringify(data) : JSON.stringify(data).replaceAll('"', "")));
  return h("div", { class: "output" }, head, body);
}

/** The only value of an output. */
function one(datatype, value) {
  if (typeof value === "number") return figure(value);
  return datatype.endsWith("INT64") ? BigInt(value).toLocaleString("en") : String(value);
}

/** The highest values; of a few all of them, in their order. */
function bars(values) {
  const order = values.map((value, index) => [value, index]).sort((a, b) => b[0] - a[0]);
  const top = order[0][1];
  const most = Math.max(order[0][0], -order.at(-1)[0]) || 1;
  const shown = values.length <= 12 ? values.map((v, i) => [v, i]) : order.slice(0, MOST_BARS);
  return h("div", { class: "bars" }, shown.map(([value, index]) =>
    h("div", { class: index === top ? "top" : "" }, h("span", {}, index),
      h("div", { class: "track" }, h("i", { style: { width: `${(100 * Math.max(0, value)) / most}%` } })), h("span", { class: "n" }, figure(Number(value.toFixed(4)))))),
    values.length > shown.length && h("p", { class: "muted small" }, `the highest ${MOST_BARS} of ${values.length}`));
}

function cut(text) {
  return text.length > 4000 ? `${text.slice(0, 4000)} …` : text;
}
