/** Elements without markup in texts: nothing that a server says can become HTML. */

/** Make an element. Of `props`, functions are listeners, `style` an object. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "style") {
      for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    } else if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child);
  }
}

/** Replace what is in an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** A number with as many digits as tell something. */
export function figure(value) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  return String(size >= 100 ? Math.round(value) : Number(value.toPrecision(3)));
}

/** Milliseconds as a person says them. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms >= 1000) return `${figure(ms / 1000)} s`;
  return ms > 0 && ms < 1 ? `${figure(ms * 1000)} µs` : `${figure(ms)} ms`;
}

export function bytes(size) {
  let unit = 0;
  while (size >= 1024 && unit < 4) [size, unit] = [size / 1024, unit + 1];
  return `${figure(size)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** A box in which a wide table scrolls, also by keys. */
export function scroll(table) {
  const box = h("div", { class: "scroll", role: "group", "aria-label": "Table" }, table);
  new ResizeObserver(() => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }).observe(box);
  return box;
}

/** What a finger is on, until the click of a tap has come. Browsers end `:active` and
 * `:hover` before that. */
let touched = null;
addEventListener("touchstart", (event) => { touched = event.target; }, { passive: true });
for (const kind of ["touchend", "touchcancel"])
  addEventListener(kind, ({ target }) => setTimeout(() => { if (touched === target) touched = null; }, 300));

/** Whether a finger or a mouse button is down on an element, which must stay as it is for
 * the click. */
export function isPressed(element) {
  return element.contains(touched) || element.matches(":active");
}

/** Replace a table, unless a pointer, a finger or keys use it; it stays scrolled. */
export function renew(element, table) {
  if (isPressed(element) || element.matches(":hover, :focus-within")) return;
  const left = element.querySelector(".scroll")?.scrollLeft ?? 0;
  fill(element, table);
  if (left) element.querySelector(".scroll")?.scrollTo({ left });
}

/** Tabs of which one is open; `panes` are [title, function that makes the content]. */
export function tabs(label, panes) {
  const pane = h("div", { class: "pane", role: "tabpanel" });
  const buttons = panes.map(([title], index) =>
    h("button", { type: "button", role: "tab", click: () => open(index) }, title));
  function open(index) {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === index));
      button.tabIndex = i === index ? 0 : -1;
    });
    fill(pane, panes[index][1]());
  }
  const list = h("div", {
    class: "tabs", role: "tablist", "aria-label": label,
    keydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const now = buttons.findIndex((b) => b.tabIndex === 0);
      const next = (now + step + buttons.length) % buttons.length;
      open(next);
      buttons[next].focus();
    },
  }, buttons);
  open(0);
  return h("div", {}, list, pane);
}

/** Text that may be copied. */
export function code(text) {
  const button = h("button", {
    type: "button",
    click: async () => {
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(block);
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1200);
    },
  }, "Copy");
  const block = h("pre", { tabindex: 0 }, text);
  return h("div", { class: "code" }, block, button);
}
