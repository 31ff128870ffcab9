/** A request to a model as one pastes it: a shell, Python without packages, JavaScript. */

import { address, keyHeaders } from "./api.js";
import { code, h, tabs } from "./dom.js";

const ELEMENTS = { F: "1.0", I: "1", U: "1", B: "True", S: '"1"' };

export function snippets(model) {
  const url = address(model.url.slice(1));
  const file = takesPicture(model.inputs) ? "picture.jpg" : "";
  const headers = { ...(file ? { accept: "application/json" } : { "content-type": "application/json" }), ...keyHeaders() };
  const made = file ? { url, headers, file } : { url, headers, ...bodies(model) };
  const program = h("a", { href: address(model.url.slice(1).replace(/infer$/, "client.py")) }, "client.py");
  return h("section", { class: "panel" }, h("div", { class: "head" }, h("h2", {}, "Call it from a program"), program),
    h("div", { class: "body" }, tabs("Language", [
      ["curl", () => code(curl(made))], ["Python", () => code(python(made))], ["JavaScript", () => code(javascript(made))],
    ])));
}

/** Whether people send a picture to the only input, as a file. */
function takesPicture([input, ...others]) {
  return input && !others.length && (input.files || (input.datatype === "BYTES" && /image|img|picture|photo/i.test(input.name)));
}

/** The body as JSON, or where that is too long, as text that makes it. */
function bodies(model) {
  if (model.example) return { json: JSON.stringify(model.example) };
  const inputs = model.inputs.map((input) => {
    const shape = input.shape.map((size, i) => (size > 0 ? size : i === 0 ? 1 : 224));
    const count = shape.reduce((a, b) => a * b, 1);
    const element = input.datatype === "BYTES" ? ELEMENTS.S : ELEMENTS[input.datatype === "BF16" ? "F" : input.datatype[0]];
    return { name: JSON.stringify(input.name), datatype: input.datatype, shape: `[${shape.join(", ")}]`, count, element };
  });
  const list = (data) => `{"inputs": [${inputs.map((i) =>
    `{"name": ${i.name}, "shape": ${i.shape}, "datatype": "${i.datatype}", "data": ${data(i)}}`).join(", ")}]}`;
  return {
    python: list((i) => `[${i.element}] * ${i.count}`),
    javascript: list((i) => `Array(${i.count}).fill(${i.element === "True" ? "true" : i.element})`),
  };
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

export function curl({ url, headers, json, python: made, file }) {
  const lines = Object.entries(headers).map(([name, value]) => `  -H ${quoted(`${name}: ${value}`)} \\\n`).join("");
  if (file) return `curl -s ${quoted(url)} \\\n${lines}  --data-binary @${file}`;
  if (json) return `curl -s ${quoted(url)} \\\n${lines}  -d ${quoted(json)}`;
  return `python3 -c ${quoted(`import json; print(json.dumps(${made}))`)} |\n  curl -s ${quoted(url)} \\\n${lines}  --data-binary @-`;
}

/** JSON as Python writes it, outside of strings. */
function asPython(json) {
  return json.replace(/"(?:[^"\\]|\\.)*"|\b(true|false|null)\b/g, (text, word) =>
    ({ true: "True", false: "False", null: "None" })[word] ?? text);
}

export function python({ url, headers, json, python: made, file }) {
  const body = file ? `from pathlib import Path\nfrom urllib.request import Request, urlopen\n\nbody = Path("${file}").read_bytes()`
    : `from urllib.request import Request, urlopen\n\nbody = json.dumps(${json ? asPython(json) : made}).encode()`;
  return `import json
${body}
request = Request(
    ${JSON.stringify(url)},
    body,
    ${JSON.stringify(headers)},
)
with urlopen(request) as answer:
    for output in json.load(answer)["outputs"]:
        print(output["name"], output["shape"], output["data"])`;
}

export function javascript({ url, headers, json, javascript: made, file }) {
  const body = file ? `document.querySelector("input[type=file]").files[0]` : `JSON.stringify(${json ?? made})`;
  return `const answer = await fetch(${JSON.stringify(url)}, {
  method: "POST",
  headers: ${JSON.stringify({ ...headers, accept: "application/json; nan=string" })},
  body: ${body},
});
const { outputs } = await answer.json();
console.log(outputs);`;
}
