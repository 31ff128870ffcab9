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
    ["normalised as for ImageNet", (v, c) => (v - mean[c % 3]) / deviation[c % 3]],
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
/** How thick the lines are that a model gets, as a share of what is drawn: as in the
 * usual sets of digits, however large the drawing is. */
const PEN = 1 / 6;

/** A sheet to draw on; `done` is called with a canvas of the model's size. */
export function sheet(picture, done) {
  const canvas = h("canvas", { class: "sheet", width: SHEET, height: SHEET, "aria-label": "Draw here with a mouse, a pen or a finger", role: "img" });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  let last = null;
  let strokes = [];
  function clear() {
    context.fillStyle = "#000";
    context.fillRect(0, 0, SHEET, SHEET);
    strokes = [];
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
    strokes.at(-1).push(to);
  }
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = null;
    strokes.push([]);
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
    const side = picture.height;
    const most = side >= 20 ? (side * 20) / 28 : side;
    const xs = strokes.flat().map(([x]) => x);
    const ys = strokes.flat().map(([, y]) => y);
    const [left, right] = [Math.min(...xs), Math.max(...xs)];
    const [top, bottom] = [Math.min(...ys), Math.max(...ys)];
    const pen = most * PEN;
    const scale = (most - pen) / Math.max(right - left, bottom - top, 1);
    // Eight times as large, then three times half: pixels between count too.
    let fine = h("canvas", { width: side * 8, height: side * 8 });
    const lines = fine.getContext("2d");
    lines.fillStyle = "#000";
    lines.fillRect(0, 0, side * 8, side * 8);
    lines.setTransform(8 * scale, 0, 0, 8 * scale, side * 4, side * 4);
    lines.translate(-(left + right) / 2, -(top + bottom) / 2);
    lines.strokeStyle = "#fff";
    lines.lineWidth = pen / scale;
    lines.lineCap = lines.lineJoin = "round";
    for (const stroke of strokes) {
      lines.beginPath();
      lines.moveTo(...stroke[0]);
      stroke.forEach((each) => lines.lineTo(...each));
      lines.stroke();
    }
    for (const factor of [4, 2, 1]) {
      const half = h("canvas", { class: "seen", width: side * factor, height: side * factor });
      half.getContext("2d", { willReadFrequently: true }).drawImage(fine, 0, 0, side * factor, side * factor);
      fine = half;
    }
    return fine;
  }
  clear();
  return { canvas, clear };
}
