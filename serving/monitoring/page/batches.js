// The tables of phases and of batches: where the time of requests goes, and how requests share runs.

import { make, makeCell, makeRow, setText, syncRows } from "./dom.js";
import * as format from "./format.js";

const PHASES = ["queue", "decode", "batch", "run", "encode"];

// The same window as of the latencies.
const WINDOW_SECONDS = 10;

/** The table of the phases of requests: a row for each version that had requests in the last 10 s. */
export class PhasesTable {
  constructor(section, body) {
    Object.assign(this, { section, body });
    this.kept = new Map();
  }

  show(versions) {
    const busy = versions.filter((version) => version.latency !== null && Object.keys(version.phases).length > 0);
    this.section.hidden = busy.length === 0;
    const rows = syncRows(this.body, this.kept, busy, {
      keyOf: (version) => `${version.version}/${version.model}`,
      factsOf: (version) => [version.model, version.version],
      makeElement: makePhasesRow,
    });
    busy.forEach((version, i) => fillPhases(rows[i], version));
  }
}

function makePhasesRow(version) {
  const cells = {
    method: makeCell("Method", "answers"),
    bar: makeCell("", "stages"),
    ...Object.fromEntries(PHASES.map((phase) => [phase, makeCell(phase, "number")])),
  };
  const parts = Object.fromEntries(PHASES.map((phase) => [phase, make("span", `part phase-${phase}`)]));
  const bar = make("div", "bar", ...Object.values(parts));
  bar.setAttribute("aria-hidden", "true");
  cells.bar.append(bar);
  const row = makeRow([makeCell("", "id", ...nameOf(version)), ...Object.values(cells)]);
  row.figures = { cells, parts };
  return row;
}

function fillPhases(row, version) {
  const { cells, parts } = row.figures;
  setText(cells.method, version.latency.method);
  for (const phase of PHASES) {
    const microseconds = version.phases[phase];
    setText(cells[phase], format.latency(microseconds));
    cells[phase].classList.toggle("none", microseconds === undefined);
    parts[phase].hidden = microseconds === undefined;
    parts[phase].style.flexGrow = microseconds ?? 0;
    parts[phase].title = `${phase} ${format.latency(microseconds)}`;
  }
}

/** The table of batches: a row for each signature of each version that is to be batched. */
export class BatchesTable {
  constructor(section, body, countElement) {
    Object.assign(this, { section, body, countElement });
    this.kept = new Map();
    this.samples = new Map();
  }

  /** `now` is the server's time of these figures. */
  show(versions, now) {
    const items = versions.flatMap((version) =>
      version.batching.map((state) => ({ ...state, model: version.model, version: version.version })));
    this.section.hidden = items.length === 0;
    const rows = syncRows(this.body, this.kept, items, {
      keyOf,
      factsOf: (item) => [item.is_on, item.refusal, item.rows],
      makeElement: makeBatchesRow,
    });
    const keys = new Set(items.map(keyOf));
    for (const key of this.samples.keys()) if (!keys.has(key)) this.samples.delete(key);
    items.forEach((item, i) => fillBatches(rows[i], item, this.recent(item, now)));
    const refused = items.filter((item) => !item.is_on).length;
    setText(this.countElement, [`${items.length - refused} batched`, ...(refused ? [`${refused} refused`] : [])].join(" · "));
  }

  /** Returns the increase of the counts over the last 10 s, or since the page has been open. */
  recent(item, now) {
    const samples = this.samples.get(keyOf(item)) ?? [];
    // Counts that went down are those of another life of the version.
    if (samples.length && samples.at(-1).run_count > item.run_count) samples.length = 0;
    samples.push({ ...item, now });
    while (samples.length > 2 && samples[1].now <= now - WINDOW_SECONDS) samples.shift();
    this.samples.set(keyOf(item), samples);
    const [first] = samples;
    const grown = (name) => item[name] - first[name];
    return {
      seconds: now - first.now,
      runs: grown("run_count"),
      requests: grown("request_count"),
      rows: grown("row_count"),
      waitUs: grown("wait_us"),
    };
  }
}

function keyOf(item) {
  return `${item.version}/${item.signature}/${item.model}`;
}

function nameOf({ model, version }) {
  return [make("span", "model", model), " ", make("b", "", `v${version}`)];
}

function makeBatchesRow(item) {
  const sign = make("span", "sign", item.is_on ? "●" : "✕");
  sign.setAttribute("aria-hidden", "true");
  const state = make("div", "", make("span", `badge ${item.is_on ? "available" : "problem"}`, sign, item.is_on ? " batched" : " refused"));
  if (!item.is_on) state.append(make("p", "reason", item.refusal));
  else if (item.signature && item.rows !== "independent") {
    state.append(make("p", "reason", `compared while it runs: ${item.rows_reason}`));
  }
  const cells = Object.fromEntries(
    ["Requests/run", "Rows/run", "Wait", "Runs/s", "Row limit"].map((label) => [label, makeCell(label, "number")]));
  const signature = item.signature || "several at once";
  const row = makeRow([
    makeCell("", "id", ...nameOf(item)),
    makeCell("", "signature", signature),
    makeCell("", "state", state),
    ...Object.values(cells),
  ]);
  row.figures = Object.values(cells);
  return row;
}

function fillBatches(row, item, recent) {
  const texts = item.is_on
    ? [
      ratio(recent.requests, recent.runs, format.mean),
      ratio(recent.rows, recent.runs, format.mean),
      ratio(recent.waitUs, recent.requests, format.latency),
      ratio(recent.runs, recent.seconds, format.rate),
      format.count(item.rows_limit),
    ]
    : row.figures.map(() => format.NONE);
  row.figures.forEach((cell, i) => {
    setText(cell, texts[i]);
    cell.classList.toggle("none", texts[i] === format.NONE);
  });
}

function ratio(sum, count, toText) {
  return count > 0 ? toText(sum / count) : format.NONE;
}
