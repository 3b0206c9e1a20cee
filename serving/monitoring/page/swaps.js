// The table of swaps: the stages of each swap as a bar, and its effect on the tail latency.

import { make, makeCell, makeRow, setText, syncRows } from "./dom.js";
import * as format from "./format.js";
import { fillP999 } from "./versions.js";

const RESULTS = {
  published: ["●", "published"],
  problem: ["▲", "published with problem"],
  load_failed: ["✕", "load failed"],
  refused: ["✕", "refused"],
  cancelled: ["○", "cancelled"],
  rolled_back: ["↶", "rolled back"],
  promoted: ["●", "promoted"],
  unloaded: ["○", "unloaded"],
};

/** Returns the result for colour and word. A version that is published with a problem is not green. */
function resultOf(swap) {
  return swap.problem ? "problem" : swap.result ?? "running";
}

const NAMED_STAGE_COUNT = 4;

// Each of these stages has its own colour in page.css. Other stages are grey.
const COLORED_STAGES = new Set([
  "settle", "wait", "check", "read_graph", "take_arena", "create_session", "restore", "init",
  "make_callables", "warm_up", "self_warm_up", "gates", "publish", "quiesce", "destroy", "return_slab",
]);

export class SwapsTable {
  constructor(body, empty, countElement) {
    Object.assign(this, { body, empty, countElement });
    this.kept = new Map();
  }

  show(swaps) {
    syncRows(this.body, this.kept, swaps, {
      keyOf: (swap) => swap.id,
      factsOf: (swap) => swap,
      makeElement: makeSwapRow,
    });
    this.empty.hidden = swaps.length > 0;
    setText(this.empty, "No swap yet. Each load of a version from now on is listed here.");
    setText(this.countElement, swaps.length ? `last ${swaps.length}, newest first` : "");
  }
}

function makeSwapRow(swap) {
  const row = makeRow([
    makeCell("", "id", ...makeIdentity(swap)),
    makeCell("", "stages", ...makeStages(swap)),
    makeCell("Duration", "number", format.duration(tookSeconds(swap))),
    ...["before", "during", "after"].map((span) => makeLatency(swap, span)),
  ]);
  row.className = resultOf(swap);
  return row;
}

function makeIdentity(swap) {
  const versions = swap.previous_version === null
    ? `v${swap.version}`
    : `v${swap.previous_version} → v${swap.version}`;
  const [mark, word] = RESULTS[resultOf(swap)] ?? ["◐", swap.result === null ? "in progress" : format.words(swap.result)];
  const sign = make("span", "sign", mark);
  sign.setAttribute("aria-hidden", "true");
  const at = make("time", "", format.clock(swap.began_at));
  at.dateTime = new Date(swap.began_at * 1000).toISOString();
  at.title = format.day(swap.began_at);
  return [
    make("div", "", make("span", "model", swap.model), " ", make("b", "", versions)),
    make("div", "", make("span", `badge ${resultOf(swap)}`, sign, ` ${word}`), " ", at),
  ];
}

/** Returns the time from the first sight of the version to its publish or to its failed load. */
function tookSeconds(swap) {
  const end = swap.published_at ?? swap.ended_at;
  return end === null ? null : Math.max(0, end - swap.began_at);
}

function makeStages(swap) {
  const stages = swap.stages.filter((stage) => stage.seconds > 0);
  const total = stages.reduce((sum, stage) => sum + stage.seconds, 0);
  const bar = make("div", "bar");
  const describe = (stage) => `${format.words(stage.name)} ${format.duration(stage.seconds)}`;
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", stages.map(describe).join(", ") || "no stage yet");
  stages.forEach((stage, i) => {
    // The line between the load of the new version and the unload of the old one.
    const isTurn = i > 0 && (stage.task === "unload") !== (stages[i - 1].task === "unload");
    const part = make("span", `${stageClass(stage)}${isTurn ? " turn" : ""}`);
    part.style.flexGrow = stage.seconds / total;
    part.title = `${describe(stage)} (v${stage.version})`;
    bar.append(part);
  });
  return [bar, makeLongest(stages, describe), ...makeNotes(swap)];
}

function stageClass(stage) {
  return `part ${COLORED_STAGES.has(stage.name) ? `stage-${stage.name}` : ""}`;
}

function makeLongest(stages, describe) {
  const longest = [...stages].sort((a, b) => b.seconds - a.seconds).slice(0, NAMED_STAGE_COUNT);
  const inOrder = stages.filter((stage) => longest.includes(stage));
  return make("div", "longest", ...inOrder.map((stage) =>
    make("span", "", make("i", stageClass(stage)), describe(stage))));
}

function makeNotes(swap) {
  const notes = [];
  if (swap.kept_bytes) {
    notes.push(`read ${format.bytes(swap.restored_bytes)} of ${format.bytes(swap.restored_bytes + swap.kept_bytes)}`);
  }
  if (swap.figures?.copied_bytes) notes.push(`copied ${format.bytes(swap.figures.copied_bytes)} in memory`);
  const { uploaded_bytes: uploaded, accelerator_kept_bytes: there } = swap.figures ?? {};
  if (there) notes.push(`uploaded ${format.bytes(uploaded)} of ${format.bytes(uploaded + there)}`);
  if (swap.parameter_bytes) notes.push(`${format.bytes(swap.parameter_bytes)} parameters`);
  if (swap.page_fault_count !== null && swap.page_fault_count !== undefined) {
    notes.push(`${format.count(swap.page_fault_count)} page faults`);
  }
  if (swap.cpu_seconds) notes.push(`${format.duration(swap.cpu_seconds)} CPU time`);
  const elements = [make("div", "notes", notes.map((note) => `${note} · `).join(""), makeTraceLink(swap))];
  const inFull = swap.delta_restored_in_full && `delta restored in full: ${swap.delta_restored_in_full}`;
  const allSent = swap.delta_uploaded_in_full && `delta uploaded in full: ${swap.delta_uploaded_in_full}`;
  const reasons = [swap.reason, swap.problem, inFull, allSent].filter(Boolean);
  return [...elements, ...reasons.map((reason) => make("p", "reason", reason))];
}

function makeTraceLink(swap) {
  const link = make("a", "", "trace");
  // A model's name may hold a slash, which stays a slash in the path.
  link.href = `v1/swaps/${swap.id.split("/").map(encodeURIComponent).join("/")}/trace`;
  link.title = "Timeline of this swap, for ui.perfetto.dev";
  link.setAttribute("aria-label", `trace of ${swap.model} v${swap.version}`);
  return link;
}

function makeLatency(swap, span) {
  const figures = swap.latency?.[span];
  const cell = makeCell(`p999 ${span}`, `number ${span}`);
  const failed = figures?.failed_count ?? 0;
  if (!figures || !figures.request_count) {
    cell.textContent = format.NONE;
    return cell;
  }
  fillP999(cell, figures.p999_seconds * 1e6, figures.request_count);
  cell.title = `${format.count(figures.request_count)} requests; p50 ${format.latency(figures.p50_seconds * 1e6)}, `
    + `p99 ${format.latency(figures.p99_seconds * 1e6)}, slowest ${format.latency(figures.max_seconds * 1e6)}`;
  const ratio = span === "before" ? null : ratioToBefore(swap.latency.before, figures);
  if (ratio !== null) cell.append(make("small", ratio > 1.5 ? "worse" : "", ` ×${ratio.toFixed(2)}`));
  if (failed) cell.append(make("small", "worse failures", `${format.count(failed)} failed`));
  return cell;
}

/** Returns the change between two p999, if both are of enough requests. */
function ratioToBefore(before, figures) {
  const counts = [before?.request_count ?? 0, figures.request_count];
  if (counts.some((count) => count < format.P999_REQUESTS_MIN) || !before.p999_seconds) return null;
  return figures.p999_seconds / before.p999_seconds;
}
