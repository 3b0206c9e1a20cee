// The page of a fleet: polls the coordinator once a second while it is visible.

import { byId, make, makeCell, makeRow, setText, syncRows } from "./dom.js";
import * as format from "./format.js";
import { Poller } from "./poll.js";

const SHOWN_NAMES_MAX = 10;
const US_PER_MS = 1000;
const US_PER_SECOND = 1e6;

const models = new Map();
const servers = new Map();
const tiles = Object.fromEntries(
  [...byId("tiles").children].map((tile) => [tile.dataset.tile, tile.querySelector("dd")]));

function show(answer) {
  const count = `${format.count(answer.server_count)} server${answer.server_count === 1 ? "" : "s"}`;
  setText(byId("server"), `${location.host} · ${count}`);
  for (const [state, tile] of Object.entries(tiles)) {
    const number = answer.server_states[state] ?? 0;
    setText(tile, format.count(number));
    tile.classList.toggle("bad", state === "lost" && number > 0);
  }
  const named = Object.entries(answer.models);
  byId("models-empty").hidden = named.length > 0;
  syncRows(byId("models"), models, named, {
    keyOf: ([name]) => name,
    factsOf: ([, model]) => [model, answer.server_count],
    makeElement: ([name, model]) => makeModel(name, model, answer.server_count),
  });
  byId("problems").replaceChildren(...answer.problems.map((problem) => make("p", "reason", problem)));
  const { length } = answer.servers;
  setText(byId("servers-count"), length < answer.server_count ? `the first ${length} of ${format.count(answer.server_count)}` : "");
  syncRows(byId("servers"), servers, answer.servers, {
    keyOf: (server) => server.name,
    factsOf: (server) => ({ ...server, seen_seconds: format.age(server.seen_seconds) }),
    makeElement: makeServer,
  });
}

// --- A model -----------------------------------------------------------------------------------------------

function makeModel(name, model, serverCount) {
  const section = make("section", "card model");
  section.dataset.model = name;
  const heading = make("h2", "", name);
  if (model.is_paused) heading.append(badge("paused", "paused"));
  section.append(heading, makeLines(model));
  if (model.rollout) section.append(...makeRollout(model));
  section.append(...makeVersions(name, model, serverCount));
  if (model.verdicts.length) section.append(...makeVerdicts(name, model));
  if (model.blocked_versions.length) section.append(...makeBlocked(name, model));
  return section;
}

function makeLines(model) {
  const before = model.previous === null ? "" : `, before it ${model.previous}`;
  const lines = [model.stable === null ? "no stable version yet" : `stable version ${model.stable}${before}`];
  if (model.waits_for) lines.push(`waits: ${model.waits_for}`);
  if (model.without_files.length) lines.push(`without the files of version ${model.stable}: ${namesText(model.without_files)}`);
  if (model.ignored_by.length) lines.push(`they take grants of another coordinator: ${namesText(model.ignored_by)}`);
  return make("div", "lines", ...lines.map((line) => make("p", "", line)));
}

function makeRollout(model) {
  const { rollout } = model;
  const serving = `${format.count(rollout.serving_count)} of ${format.count(rollout.needed_count)} servers serve it`;
  const loading = model.loading ? `, ${format.count(model.loading)} may be swapping` : "";
  const lines = make("div", "lines",
    make("p", "", `version ${rollout.version} is in wave ${rollout.wave} of ${rollout.wave_count}: ${serving}${loading}`),
    makeBar("wave", rollout.serving_count / Math.max(1, rollout.needed_count)));
  lines.append(make("p", "", model.stable === null ? "A first version is not compared with another one." : judgementText(rollout)));
  for (const [name, reason] of Object.entries(rollout.warned)) {
    lines.append(make("p", "reason", `a gate has warned on ${name}: ${reason}`));
  }
  if (rollout.doubt) lines.append(make("p", "reason", `It is compared once more: ${rollout.doubt}`));
  for (const name of rollout.setbacks.slice(0, SHOWN_NAMES_MAX)) {
    lines.append(make("p", "reason", `it failed on ${name}: ${rollout.causes[name]}`));
  }
  const more = rollout.setback_count - SHOWN_NAMES_MAX;
  if (more > 0) lines.append(make("p", "reason", `and on ${format.count(more)} more`));
  lines.dataset.part = "rollout";
  if (!rollout.compared) return [make("h3", "", "Rollout"), lines];
  const rows = [
    [`version ${rollout.version} in the wave`, rollout.compared.wave],
    [`version ${model.stable ?? "–"} on other servers`, rollout.compared.control],
  ].map(([title, figures]) => makeRow([makeCell("", "id wide", title), ...figureCells(figures)]));
  const table = makeTable("compared", "Wave and control", ["Since the wave began", "*Requests", "*Failed", "*p99", "*p999"], rows);
  return [make("h3", "", "Rollout"), lines, table];
}

function judgementText(rollout) {
  const { judgement, compared } = rollout;
  const { request_count: count, seconds, passed_seconds: passed } = judgement;
  if (passed === null) return "The judgement begins when all these servers serve it.";
  const end = compared && count ? `${format.count(count)} requests or ${seconds} s` : `${seconds} s`;
  const failed = compared ? "" : ` ${format.count(rollout.failed_count)} of ${format.count(rollout.request_count)} requests failed so far.`;
  return `${compared ? "Judged" : "Stable"} after ${end}; ${Math.round(passed)} s have passed.${failed}`;
}

/** Returns the first names, and how many there are more. */
function namesText(names) {
  const more = names.length > SHOWN_NAMES_MAX ? ", …" : "";
  return names.slice(0, SHOWN_NAMES_MAX).join(", ") + more;
}

function makeVersions(name, model, serverCount) {
  const rows = model.versions.map((version) => makeRow([
    makeCell("", "id", `${version.version}`),
    makeCell("Servers", "wide", `${format.count(version.server_count)} of ${format.count(serverCount)}`,
      makeBar("share", version.server_count / Math.max(1, serverCount))),
    makeCell("Default on", "number", format.count(version.default_count)),
    ...figureCells(version),
  ]));
  if (!rows.length) return [make("p", "empty", "No version serves.")];
  const heads = ["Version", "Servers", "*Default on", "*Requests", "*Failed", "*p99", "*p999"];
  return [make("h3", "", "Versions"), makeTable("versions-of", `Versions of ${name}`, heads, rows)];
}

function makeVerdicts(name, model) {
  const rows = [...model.verdicts].reverse().map((verdict) => {
    const { figures } = verdict;
    return makeRow([
      makeCell("", "id", `version ${figures.version ?? "–"}, ${verdict.gate}`),
      makeCell("", "", badge(verdict.is_passed ? "passed" : "failed", verdict.is_passed ? "passed" : "failed")),
      makeCell("", "reason", verdict.reason),
      makeCell("Requests", "number", format.count(figures.request_count)),
      pairCell("p99, control", figures.latency_seconds_p99, figures.stable_latency_seconds_p99),
      pairCell("p999, control", figures.latency_seconds_p999, figures.stable_latency_seconds_p999),
    ]);
  });
  const heads = ["Wave", "Result", "Reason", "*Requests", "*p99, control", "*p999, control"];
  return [make("h3", "", "Verdicts"), makeTable("verdicts", `Verdicts of ${name}`, heads, rows)];
}

const JUDGES = { canary: "its judgement", operator: "an operator" };

function makeBlocked(name, model) {
  const rows = model.blocked_versions.map((row) => makeRow([
    makeCell("", "id", `version ${row.version}`),
    makeCell("", "", `blocked by ${JUDGES[row.by] ?? row.by}`),
    makeCell("", "reason wide", row.reason),
  ]));
  return [make("h3", "", "Blocked versions"), makeTable("blocked", `Blocked versions of ${name}`, ["Version", "By", "Reason"], rows)];
}

/** Returns a table. A head with a star is that of a column of numbers. */
function makeTable(kind, label, heads, rows) {
  const cells = heads.map((text) => {
    const isNumber = text.startsWith("*");
    const cell = make("th", isNumber ? "number" : "", isNumber ? text.slice(1) : text);
    cell.setAttribute("role", "columnheader");
    cell.scope = "col";
    return cell;
  });
  const head = make("thead", "", makeRow(cells));
  const body = make("tbody", "", ...rows);
  for (const group of [head, body]) group.setAttribute("role", "rowgroup");
  const table = make("table", kind, head, body);
  table.setAttribute("role", "table");
  table.setAttribute("aria-label", label);
  return table;
}

function figureCells(figures) {
  const hasRequests = figures.request_count > 0;
  const isWeak = figures.request_count < format.P999_REQUESTS_MIN;
  const p999 = makeCell("p999", `number${isWeak ? " weak" : ""}`, milliseconds(figures.p999_ms, hasRequests));
  if (hasRequests && isWeak) p999.append(make("small", "few", format.fewRequests(figures.request_count)));
  return [
    makeCell("Requests", "number", format.count(figures.request_count)),
    makeCell("Failed", "number", format.count(figures.failed_count)),
    makeCell("p99", "number", milliseconds(figures.p99_ms, hasRequests)),
    p999,
  ];
}

function milliseconds(value, hasRequests) {
  return hasRequests ? format.latency(value * US_PER_MS) : format.NONE;
}

function pairCell(label, wave, control) {
  const texts = [wave, control].map((seconds) => format.latency(seconds ? seconds * US_PER_SECOND : null));
  return makeCell(label, "number", texts[0], make("small", "few", texts[1]));
}

function badge(kind, text) {
  return make("span", `badge ${kind}`, text);
}

function makeBar(kind, share) {
  const part = make("div", "part");
  part.style.width = `${Math.round(100 * Math.min(1, share))}%`;
  const bar = make("div", `bar ${kind}`, part);
  bar.setAttribute("aria-hidden", "true");
  return bar;
}

// --- A server ----------------------------------------------------------------------------------------------

function makeServer(server) {
  return makeRow([
    makeCell("", "id", server.name),
    makeCell("", "state", badge(server.state, server.state)),
    makeCell("Answers with", "answers", versionsText(server.versions)),
    makeCell("Granted", "answers", versionsText(server.granted)),
    makeCell("Last report", "number", `${format.age(server.seen_seconds)} ago`),
  ]);
}

function versionsText(versions) {
  return Object.entries(versions).map(([model, version]) => `${model} ${version ?? "–"}`).join(", ") || format.NONE;
}

function lostText(since) {
  const age = since === null ? "It has not answered yet." : `The figures are from ${since}.`;
  return `Connection to the coordinator lost. ${age} Servers serve on without it. Retrying every second.`;
}

document.title = `${location.host} · Millpond fleet`;
new Poller(() => "fleet/page", show, lostText).poll();
