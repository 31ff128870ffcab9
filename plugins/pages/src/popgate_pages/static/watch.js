/** Looks at the server every second and keeps what it has seen: the plots' data. */

import { Refused, ask } from "./api.js";

const KEPT = 300; // looks
const SECOND = 1000;
const MANY = 60; // models, from which on it looks less often
const PHASES = ["decode", "queue", "compute", "wake", "encode"];

/** What a look found: `models`, `devices`, `requests`, `ready`, `rates` and `tokens` by model. */
export const now = { models: null, devices: [], requests: null, ready: null, rates: {}, tokens: {}, total: null };
/** Columns of the same length: times (s), then one for each figure. */
export const history = { time: [], rate: [], failed: [], batch: [], latency: [], ...Object.fromEntries(PHASES.map((p) => [p, []])) };

/** The same of the last hour, as the server has kept it. */
export const hour = Object.fromEntries(Object.keys(history).map((name) => [name, []]));
const HOUR_EVERY = 10 * SECOND;
let hourAt = -HOUR_EVERY;

const listeners = new Set();
let before = null;
let timer = null;

/** Have `listener` called after each look; returns what ends that. */
export function watch(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function start() {
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) soon(0);
  });
  soon(0);
}

/** Look again now, for instance with another key. */
export function soon(ms) {
  clearTimeout(timer);
  timer = setTimeout(look, ms);
}

async function look() {
  if (document.hidden) return;
  const trouble = [];
  const get = (path) => ask(path).catch((error) => {
    trouble.push(error instanceof Refused ? error : new Error("the server does not respond"));
    return null;
  });
  const [models, devices, requests, stats, ready] = await Promise.all([
    get("v1/models"), get("v1/devices"), get("v1/requests?limit=60"), get("v2/models/stats"),
    ask("v1/health/ready").catch((error) => error.body ?? null),
  ]);
  if (models) now.models = models.models;
  if (devices) now.devices = devices.devices;
  if (requests) now.requests = requests;
  now.ready = ready;
  if (stats) count(stats.model_stats);
  if (performance.now() - hourAt >= HOUR_EVERY) {
    hourAt = performance.now();
    const kept = await get("v1/history");
    if (kept) for (const name of Object.keys(hour)) hour[name] = kept[name];
  }
  for (const listener of listeners) listener(trouble[0] ?? null);
  soon((now.models?.length ?? 0) > MANY ? 5 * SECOND : SECOND);
}

function count(stats) {
  const at = Date.now() / 1000;
  const seen = new Map(stats.map((s) => [`${s.name}/${s.version}`, figures(s)]));
  const sums = {};
  now.rates = {};
  now.tokens = Object.fromEntries(stats.map((s) => [`${s.name}/${s.version}`, s.token_stats]));
  if (before) {
    const seconds = at - before.at;
    for (const [key, figures] of seen) {
      const old = before.seen.get(key);
      if (!old) continue;
      const since = {};
      for (const name of Object.keys(figures)) {
        since[name] = Math.max(0, figures[name] - old[name]);
        sums[name] = (sums[name] ?? 0) + since[name];
      }
      now.rates[key] = rates(since, seconds);
    }
    now.total = rates(sums, seconds);
    push(at, now.total);
  }
  before = { at, seen };
}

function figures(s) {
  const { success, fail, queue, compute_input, compute_infer, compute_output } = s.inference_stats;
  return {
    count: success.count, failed: fail.count, total: success.ns, rows: s.inference_count, runs: s.execution_count,
    queue: queue.ns, decode: compute_input.ns, compute: compute_infer.ns, encode: compute_output.ns,
  };
}

function rates(since, seconds) {
  const mean = (ns) => (since.count ? ns / since.count / 1e6 : null);
  const known = since.decode + since.queue + since.compute + since.encode;
  return {
    rate: (since.count ?? 0) / seconds, failed: (since.failed ?? 0) / seconds,
    batch: since.runs ? since.rows / since.runs : null, latency: mean(since.total),
    decode: mean(since.decode), queue: mean(since.queue), compute: mean(since.compute),
    wake: mean(Math.max(0, since.total - known)), encode: mean(since.encode),
  };
}

function push(at, total) {
  history.time.push(at);
  for (const [name, column] of Object.entries(history)) {
    if (name !== "time") column.push(total[name] ?? null);
    if (column.length > KEPT) column.shift();
  }
}
