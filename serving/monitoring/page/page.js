// The page: polls the server once a second while it is visible, and passes the answers to its parts.

import { AcceleratorTable } from "./accelerator.js";
import { RequestLogsTable } from "./request_logs.js";
import { BatchesTable, PhasesTable } from "./batches.js";
import { Charts } from "./charts.js";
import { byId, make, setText } from "./dom.js";
import * as format from "./format.js";
import { History } from "./history.js";
import { Poller } from "./poll.js";
import { SwapsTable } from "./swaps.js";
import { VersionsTable } from "./versions.js";

const RANGES = [60, 300, 900];
const DEFAULT_RANGE = 900;

let { model, rangeSeconds } = readView();
let modelNames = [];
let startedAt = null;
let cursorIndex = null;
let cursor = "";
let swapsTag = "";
let marks = [];
let versions = [];
let now = Date.now() / 1000;

const poller = new Poller(pollUrl, show, lostText);
const points = new History();
const versionsTable = new VersionsTable(
  byId("versions"), byId("versions-empty"), byId("versions-more"), byId("versions-count"));
const phasesTable = new PhasesTable(byId("phases-section"), byId("phases"));
const batchesTable = new BatchesTable(byId("batches-section"), byId("batches"), byId("batches-count"));
const requestLogsTable = new RequestLogsTable(byId("request-logs-section"), byId("request-logs"));
const acceleratorTable = new AcceleratorTable(byId("accelerator-section"), byId("accelerator"));
const swapsTable = new SwapsTable(byId("swaps"), byId("swaps-empty"), byId("swaps-count"));
const tiles = Object.fromEntries(
  [...byId("tiles").children].map((tile) => [tile.dataset.tile, tile.querySelector("dd")]));

const charts = new Charts(byId("latency"), byId("requests"), (index) => {
  cursorIndex = index;
  showTiles();
});

/** Returns the model and the time range in the URL, so that reload and the back button restore them. */
function readView() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const range = Number(asked.get("range"));
  return { model: asked.get("model") ?? "", rangeSeconds: RANGES.includes(range) ? range : DEFAULT_RANGE };
}

function viewUrl() {
  const asked = new URLSearchParams();
  if (model) asked.set("model", model);
  if (rangeSeconds !== DEFAULT_RANGE) asked.set("range", rangeSeconds);
  const text = asked.toString();
  return text ? `#${text}` : location.pathname + location.search;
}

function pollUrl() {
  const query = new URLSearchParams({ cursor, swaps_tag: swapsTag });
  if (model) query.set("model", model);
  return `v1/page?${query}`;
}

function show(answer) {
  now = answer.now;
  cursor = points.take(answer.points, answer.is_continued, now) ? answer.cursor : "";
  if (answer.swaps) {
    swapsTable.show(answer.swaps);
    marks = answer.marks;
  }
  swapsTag = answer.swaps_tag;
  versions = answer.versions;
  versionsTable.show(versions, answer.waiting, answer.waiting_count, now, answer.stuck);
  phasesTable.show(versions);
  batchesTable.show(versions, now);
  acceleratorTable.show(versions);
  requestLogsTable.show(answer.request_logs, now);
  modelNames = answer.models;
  showModels();
  startedAt = answer.server.started_at;
  setText(byId("server"), `${location.host} · ${answer.server.version} · up ${format.age(now - answer.server.started_at)}`);
  setText(byId("codes"), codesText(answer.codes));
  showCharts();
  showTiles();
}

function showCharts() {
  charts.hasNames = model === "";
  charts.draw(points.latencyColumns(), points.requestColumns(), marks, now, startedAt);
  const isQuiet = !points.hasRequestsSince(now - rangeSeconds);
  byId("quiet").hidden = !isQuiet;
  const isYoung = startedAt !== null && startedAt > now - rangeSeconds;
  setText(byId("quiet"), isYoung ? "No requests since the server started" : `No requests in the last ${rangeSeconds / 60} min`);
}

function codesText(codes) {
  const parts = Object.entries(codes).map(([code, count]) => `${format.count(count)} ${code}`);
  return parts.length ? `since server start: ${parts.join(" · ")}` : "";
}

/** Shows the figures of the second under the cursor, or else of the last second. */
function showTiles() {
  const point = cursorIndex === null ? points.latest(now) : points.point(cursorIndex);
  setText(tiles.p50, format.latency(point.p50_us));
  setText(tiles.p99, format.latency(point.p99_us));
  showP999Tile(point);
  setText(tiles.rate, format.rate(point.per_second));
  setText(tiles.failed, format.rate(point.failed_per_second));
  tiles.failed.classList.toggle("bad", point.failed_per_second > 0);
  const held = versions.map((version) => version.in_flight_count ?? 0);
  setText(tiles.inflight, versions.length ? format.count(held.reduce((sum, count) => sum + count, 0)) : format.NONE);
  setText(byId("moment"), cursorIndex === null ? "" : `at ${format.clock(point.at)}`);
  byId("latency").setAttribute("aria-label", summary(point));
}

function showP999Tile(point) {
  const isWeak = point.p999_us !== null && point.window_count < format.P999_REQUESTS_MIN;
  tiles.p999.classList.toggle("weak", isWeak);
  const text = format.latency(point.p999_us);
  const note = isWeak ? format.fewRequests(point.window_count) : "";
  if (tiles.p999.textContent === text + note) return;
  tiles.p999.replaceChildren(text, ...(note ? [make("small", "few", note)] : []));
}

function summary(point) {
  return `Latency at ${format.clock(point.at)}: p50 ${format.latency(point.p50_us)}, p99 ${format.latency(point.p99_us)}, `
    + `p999 ${format.latency(point.p999_us)}, ${format.rate(point.per_second)} requests per second. `
    + "Use the arrow keys to move through time.";
}

function showModels() {
  const select = byId("model");
  // A model that is gone, or not configured yet, stays selected, because the URL names it.
  const wanted = ["", ...(model && !modelNames.includes(model) ? [model] : []), ...modelNames];
  const shown = [...select.options].map((option) => option.value);
  if (JSON.stringify(wanted) === JSON.stringify(shown)) {
    if (select.value !== model) select.value = model;
    return;
  }
  select.replaceChildren(...wanted.map((name) => new Option(name === "" ? "all models" : name, name, false, name === model)));
}

function lostText(since) {
  const age = since === null ? "The server has not answered yet." : `The figures are from ${since}.`;
  return `Connection to the server lost. ${age} Retrying every second.`;
}

/** Shows another model or time range, as a step that the back button can undo. */
function chooseView(changes) {
  const before = { model, rangeSeconds };
  ({ model, rangeSeconds } = { ...before, ...changes });
  history.pushState(null, "", viewUrl());
  showView(before);
}

function showView(before) {
  showRange();
  showCharts();
  if (model === before.model) return;
  // Another model has another history, so all data is fetched again.
  cursor = "";
  swapsTag = "";
  showModels();
  poller.poll();
}

function showRange() {
  charts.setRange(rangeSeconds);
  for (const input of document.getElementsByName("range")) input.checked = Number(input.value) === rangeSeconds;
}

// The title tells the tabs of several servers apart.
document.title = `${location.host} · Millpond`;

byId("model").addEventListener("change", (event) => chooseView({ model: event.target.value }));
byId("range").addEventListener("change", (event) => chooseView({ rangeSeconds: Number(event.target.value) }));
window.addEventListener("popstate", () => {
  const before = { model, rangeSeconds };
  ({ model, rangeSeconds } = readView());
  showView(before);
});
showRange();
poller.poll();
