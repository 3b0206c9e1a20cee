// The table of versions.

import { make, makeCell, makeRow, setText, syncRows } from "./dom.js";
import * as format from "./format.js";

// The sign beside the word shows the state without its colour.
const SIGNS = { START: "○", LOADING: "◐", AVAILABLE: "●", UNLOADING: "◒", END: "○", FAILED: "✕" };

const WORDS = {
  START: "waiting",
  LOADING: "loading",
  AVAILABLE: "available",
  UNLOADING: "unloading",
  END: "unloaded",
  FAILED: "failed",
};

export function isFailed(version) {
  return version.health.code !== "OK";
}

/** Returns true if the version ended without an error; such versions are hidden by default. */
export function isGone(version) {
  return version.state === "END" && !isFailed(version);
}

function look(version) {
  return isFailed(version) && version.state === "END" ? "FAILED" : version.state;
}

export class VersionsTable {
  constructor(body, empty, more, countElement) {
    Object.assign(this, { body, empty, more, countElement });
    this.kept = new Map();
    this.isOpen = false;
    Object.assign(this, { versions: [], waiting: [], waitingCount: 0, now: 0, stuck: [] });
    more.addEventListener("click", () => {
      this.isOpen = !this.isOpen;
      this.show(this.versions, this.waiting, this.waitingCount, this.now, this.stuck);
    });
  }

  /**
   * `waiting` has the first of `waitingCount` models without an AVAILABLE version, with the reasons.
   * `stuck` has the models whose base path hangs, so that new versions are not found.
   */
  show(versions, waiting, waitingCount, now, stuck) {
    Object.assign(this, { versions, waiting, waitingCount, now, stuck });
    const gone = versions.filter(isGone).length;
    const shown = this.isOpen ? versions : versions.filter((version) => !isGone(version));
    // If the model has versions, their rows show why they do not serve.
    const named = new Set(versions.filter((version) => !isGone(version)).map((version) => version.model));
    const items = [...waiting.filter((item) => !named.has(item.model)), ...shown].sort(byModel);
    const rows = syncRows(this.body, this.kept, items, {
      keyOf: (item) => `${item.version ?? "none"}/${item.model}`,
      factsOf: (item) => (item.version === undefined ? item : steadyFacts(item)),
      makeElement: (item) => (item.version === undefined ? makeWaitingRow(item) : makeVersionRow(item)),
    });
    items.forEach((item, i) => {
      if (item.version !== undefined) fillFigures(rows[i], item, now);
    });
    this.empty.hidden = items.length > 0;
    setText(this.empty, gone > 0
      ? "No version is loaded."
      : "No version yet. The first version of a model appears here once its directory is found.");
    this.more.hidden = gone === 0;
    this.more.setAttribute("aria-expanded", String(this.isOpen));
    setText(this.more, `${this.isOpen ? "Hide" : "Show"} ${gone} unloaded version${gone === 1 ? "" : "s"}`);
    const available = versions.filter((version) => version.state === "AVAILABLE").length;
    const counts = versions.length ? [`${available} available`] : [];
    if (waitingCount) counts.push(`${waitingCount} model${waitingCount === 1 ? "" : "s"} without an available version`);
    if (stuck.length) counts.push(`base path does not respond: ${stuck.join(", ")}`);
    setText(this.countElement, counts.join(" · "));
  }
}

/** Sorts by model, and keeps the server's order within a model. */
function byModel(one, other) {
  return one.model < other.model ? -1 : one.model > other.model ? 1 : 0;
}

/** Returns the row of a configured model without versions, with the reason. */
function makeWaitingRow({ model, reason, base_path: basePath }) {
  const sign = make("span", "sign", "▲");
  sign.setAttribute("aria-hidden", "true");
  const state = make("div", "", make("span", "badge problem", sign, " no version"), make("p", "reason", reason));
  if (basePath) state.append(make("p", "reason", `base path ${basePath}`));
  const row = makeRow([
    makeCell("", "id", make("span", "model", model)),
    makeCell("", "state", state),
    makeCell("", "answers none", format.NONE),
    ...["In state", "In flight", "p99", "p999", "Arena"].map((label) => makeCell(label, "number none", format.NONE)),
  ]);
  row.className = "waiting";
  return row;
}

/** Returns all facts of a row except the figures that change each second and are filled in later. */
function steadyFacts(version) {
  return { ...version, canary_progress: "", in_flight_count: 0, latency: 0, arena_allocated_bytes: 0, arena_resident_bytes: 0 };
}

function makeVersionRow(version) {
  const cells = {
    since: makeCell("In state", "number"),
    inFlight: makeCell("In flight", "number"),
    p99: makeCell("p99", "number"),
    p999: makeCell("p999", "number"),
    arena: makeCell("Arena", "number"),
  };
  const row = makeRow([
    makeCell("", "id", make("span", "model", version.model), " ", make("b", "", `v${version.version}`)),
    makeCell("", "state", makeState(version)),
    makeRoutes(version),
    ...Object.values(cells),
  ]);
  row.className = look(version).toLowerCase();
  row.figures = cells;
  row.progress = row.querySelector(".progress");
  return row;
}

function makeState(version) {
  const key = look(version);
  const stage = version.state === "LOADING" || version.state === "UNLOADING" ? version.stage : null;
  const sign = make("span", "sign", SIGNS[key]);
  sign.setAttribute("aria-hidden", "true");
  const badge = make("span", `badge ${key.toLowerCase()}`, sign, ` ${WORDS[key]}`);
  const state = make("div", "", badge);
  if (stage) state.append(make("span", "stage", ` ${format.words(stage)}`));
  if (version.failed_load_count > 0) {
    state.append(make("span", "stage", ` ${version.failed_load_count} failed load${version.failed_load_count === 1 ? "" : "s"}`));
  }
  if (isFailed(version)) {
    state.append(make("p", "reason", make("b", "", version.health.code), ` ${version.health.message}`));
  }
  for (const gate of version.failed_gates) {
    state.append(make("p", "reason", make("b", "", `gate ${format.words(gate.gate)} (${gate.mode})`), ` ${gate.reason}`));
  }
  return state;
}

/** Returns tags for the requests that reach the version without its number. */
function makeRoutes(version) {
  const tags = version.labels.map((label) => make("span", "tag", label));
  if (version.canary_ratio !== null) {
    tags.unshift(make("span", "tag canary", `canary ${+(version.canary_ratio * 100).toPrecision(3)} %`));
    tags.push(make("p", "reason progress"));
  }
  if (version.is_default) tags.unshift(make("span", "tag default", "default"));
  return tags.length ? makeCell("", "answers", ...tags) : makeCell("", "answers none", format.NONE);
}

function fillFigures(row, version, now) {
  if (row.progress) setText(row.progress, version.canary_progress);
  const { since, inFlight, p99, p999, arena } = row.figures;
  setText(since, format.age(now - version.state_changed_at));
  since.title = format.day(version.state_changed_at);
  // If the version is not loaded, the narrow layout leaves out its empty figures.
  for (const cell of [inFlight, p99, p999, arena]) cell.classList.toggle("none", version.in_flight_count === null);
  setText(inFlight, format.count(version.in_flight_count));
  const { latency } = version;
  setText(p99, format.latency(latency?.p99_us));
  fillP999(p999, latency?.p999_us, latency?.count);
  p999.title = latency ? `${format.count(latency.count)} requests to ${latency.method}` : "";
  setText(arena, format.bytes(version.arena_allocated_bytes));
  arena.title = version.arena_resident_bytes === null ? "" : `${format.bytes(version.arena_resident_bytes)} resident`;
}

/** Makes a p999 of too few requests grey, with their number below it. */
export function fillP999(cell, microseconds, requestCount) {
  const isWeak = requestCount !== undefined && requestCount !== null && requestCount < format.P999_REQUESTS_MIN;
  cell.classList.toggle("weak", isWeak);
  const text = format.latency(microseconds);
  const note = isWeak ? format.fewRequests(requestCount) : "";
  if (cell.textContent === text + note) return;
  cell.replaceChildren(text, ...(note ? [make("small", "few", note)] : []));
}
