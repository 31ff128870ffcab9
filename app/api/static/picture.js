/** Pictures as tensors: drawn by hand, or out of a file. */

import { h } from "./dom.js";

/**
 * How an input takes a picture: its size, its channels and where they stand, the shape
 * to send; null where it takes none.
 */
export function pictureOf(input, batched) {
  const free = (size, other) => (size > 0 ? size : other);
  const inner = batched || input.shape.length > 3 ? input.shape.slice(1) : [...input.shape];
  const lead = input.shape.length > inner.length ? [1] : [];
  const kind = (height, width, channels, first) =>
    ({ height, width, channels, first, shape: [...lead, ...inner.map((size, i) => free(size, first === null ? size : [channels, height, width][first ? i : (i + 1) % 3]))] });
  if (!/^(FP|U?INT)(8|16|32|64)$/.test(input.datatype)) return null;
  if (inner.length === 1 && [64, 784].includes(inner[0])) {
    const side = Math.sqrt(inner[0]);
    return { height: side, width: side, channels: 1, first: null, shape: [...lead, inner[0]] };
  }
  if (inner.length === 2 && inner[0] >= 8 && inner[0] === inner[1]) return { height: inner[0], width: inner[1], channels: 1, first: null, shape: [...lead, ...inner] };
  if (inner.length !== 3) return null;
  if ([1, 3].includes(inner[0])) {
    const [channels, height, width] = [inner[0], free(inner[1], 224), free(inner[2], 224)];
    return height >= 8 && width >= 8 ? kind(height, width, channels, true) : null;
  }
  if ([1, 3].includes(inner[2])) {
    const [height, width, channels] = [free(inner[0], 224), free(inner[1], 224), inner[2]];
    return height >= 8 && width >= 8 ? { height, width, channels, first: false, shape: [...lead, height, width, channels] } : null;
  }
  return null;
}

/** Whether a person may draw it. */
export function isDrawable(picture) {
  return picture !== null && picture.channels === 1 && picture.height === picture.width && picture.height <= 64;
}

/** What numbers a model may want pixels to be, as [title, function of 0 to 1, channel]. */
export function scales(input, example) {
  const most = Math.max(0, ...flat(example).map(Number).filter(Number.isFinite));
  const mean = [0.485, 0.456, 0.406];
  const deviation = [0.229, 0.224, 0.225];
  const all = [
    ["0 to 1", (v) => v],
    ["0 to 255", (v) => Math.round(v * 255)],
    ["−1 to 1", (v) => 2 * v - 1],
    ["as ImageNet's", (v, c) => (v - mean[c % 3]) / deviation[c % 3]],
  ];
  const whole = input.datatype.startsWith("U") || input.datatype.startsWith("I");
  if (most > 1 && most !== 255) return [[`0 to ${most}`, (v) => (whole ? Math.round(v * most) : v * most)], ...all];
  return most === 255 || whole ? [all[1], all[0], all[2], all[3]] : all;
}

function flat(value) {
  return Array.isArray(value) ? value.flat(Infinity).slice(0, 5000) : [];
}

/** The pixels of a canvas as the model takes them. */
export function numbersOf(canvas, picture, scale) {
  const { height, width, channels, first } = picture;
  const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  const numbers = new Array(height * width * channels);
  for (let i = 0; i < height * width; i += 1) {
    const [r, g, b] = [pixels[4 * i], pixels[4 * i + 1], pixels[4 * i + 2]];
    const values = channels === 1 ? [(0.299 * r + 0.587 * g + 0.114 * b) / 255] : [r / 255, g / 255, b / 255];
    values.forEach((value, c) => {
      numbers[first ? c * height * width + i : i * channels + c] = scale(value, c);
    });
  }
  return numbers;
}

/** Draw a source into a canvas of the model's size, whole and in the middle. */
export function fitted(source, picture) {
  const canvas = h("canvas", { class: "seen", width: picture.width, height: picture.height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#000";
  context.fillRect(0, 0, picture.width, picture.height);
  context.imageSmoothingQuality = "high";
  // Cut to the model's proportions, as those who train on pictures do.
  const scale = Math.max(picture.width / source.width, picture.height / source.height);
  const [width, height] = [source.width * scale, source.height * scale];
  context.drawImage(source, (picture.width - width) / 2, (picture.height - height) / 2, width, height);
  return canvas;
}

const SHEET = 280;

/** A sheet to draw on; `done` is called with a canvas of the model's size. */
export function sheet(picture, done) {
  const canvas = h("canvas", { class: "sheet", width: SHEET, height: SHEET, "aria-label": "Draw here with a mouse, a pen or a finger", role: "img" });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  let last = null;
  let box = null;
  function clear() {
    context.fillStyle = "#000";
    context.fillRect(0, 0, SHEET, SHEET);
    box = null;
  }
  function point(event) {
    const place = canvas.getBoundingClientRect();
    return [((event.clientX - place.left) * SHEET) / place.width, ((event.clientY - place.top) * SHEET) / place.height];
  }
  function line(to) {
    const from = last ?? to;
    context.strokeStyle = "#fff";
    context.lineWidth = SHEET / 11;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
    last = to;
    const [x, y] = to;
    box = box ? [Math.min(box[0], x), Math.min(box[1], y), Math.max(box[2], x), Math.max(box[3], y)] : [x, y, x, y];
  }
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = null;
    line(point(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons && last) event.getCoalescedEvents?.().concat(event).forEach((e) => line(point(e)));
  });
  const end = () => {
    if (last) done(reduced());
    last = null;
  };
  canvas.addEventListener("pointerup", end);
  canvas.addEventListener("pointercancel", end);

  /** What is drawn, moved to the middle and as large as in the usual sets of digits. */
  function reduced() {
    const half = SHEET / 22;
    const [left, top] = [box[0] - half, box[1] - half];
    const [wide, high] = [box[2] - box[0] + 2 * half, box[3] - box[1] + 2 * half];
    const side = picture.height;
    const most = side >= 20 ? (side * 20) / 28 : side;
    const scale = most / Math.max(wide, high);
    // In steps of a half: pixels between are looked at too.
    let source = canvas;
    let [x, y, w, t] = [left, top, wide, high];
    let factor = 1;
    while (scale / factor < 0.5) {
      const smaller = h("canvas", { width: Math.ceil(w / 2), height: Math.ceil(t / 2) });
      smaller.getContext("2d").drawImage(source, x, y, w, t, 0, 0, w / 2, t / 2);
      [source, x, y, w, t, factor] = [smaller, 0, 0, w / 2, t / 2, factor / 2];
    }
    const seen = h("canvas", { class: "seen", width: side, height: side });
    const small = seen.getContext("2d", { willReadFrequently: true });
    small.fillStyle = "#000";
    small.fillRect(0, 0, side, side);
    const [width, height] = [wide * scale, high * scale];
    small.drawImage(source, x, y, w, t, (side - width) / 2, (side - height) / 2, width, height);
    return seen;
  }
  clear();
  return { canvas, clear };
}
