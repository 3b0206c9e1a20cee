// The table of the request logs: the records of each model's log, and its last error.

import { make, makeCell, makeRow, setText, syncRows } from "./dom.js";
import * as format from "./format.js";

const FIGURES = {
  Written: (log) => format.count(log.written_count),
  Dropped: (log) => format.count(log.dropped_count),
  Pending: (log) => format.count(log.pending_count),
  Size: (log) => format.bytes(log.byte_count),
  "Files to send": (log) => format.count(log.waiting_file_count),
};

/** The table of the request logs: a row for each model whose log is or was on. Counts are since the server's start. */
export class RequestLogsTable {
  constructor(section, body) {
    Object.assign(this, { section, body });
    this.kept = new Map();
  }

  show(logs, now) {
    this.section.hidden = logs.length === 0;
    const rows = syncRows(this.body, this.kept, logs, {
      keyOf: (log) => log.model,
      factsOf: (log) => [log.model, log.filename_prefix],
      makeElement: makeLogRow,
    });
    logs.forEach((log, i) => {
      for (const [label, cell] of Object.entries(rows[i].figures)) setText(cell, FIGURES[label](log));
      rows[i].figures.Dropped.classList.toggle("bad", log.dropped_count > 0);
      setText(rows[i].error, errorText(log, now));
    });
  }
}

function makeLogRow(log) {
  const cells = Object.fromEntries(Object.keys(FIGURES).map((label) => [label, makeCell(label, "number")]));
  const error = makeCell("", "error");
  const row = makeRow([
    makeCell("", "id", make("span", "model", log.model)),
    makeCell("", "place", log.filename_prefix || "off"),
    ...Object.values(cells),
    error,
  ]);
  return Object.assign(row, { figures: cells, error });
}

function errorText(log, now) {
  return log.last_error ? `${format.age(now - log.last_error_wall_ns / 1e9)} ago: ${log.last_error}` : "";
}
