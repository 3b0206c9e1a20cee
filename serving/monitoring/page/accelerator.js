// The table of the accelerator: how often each signature runs there, and how often on the CPU instead.

import { make, makeCell, makeRow, setText, syncRows } from "./dom.js";
import * as format from "./format.js";

const FIGURES = {
  Parameters: (item) => format.bytes(item.parameter_bytes),
  Runs: (item) => format.count(item.run_count),
  "Rows/run": (item) => ratio(item.row_count, item.run_count, format.mean),
  Padding: (item) => ratio(100 * item.padding_row_count, item.row_count + item.padding_row_count, (share) => `${share.toFixed(0)} %`),
  "Run time": (item) => format.latency(item.run_us),
  "On the CPU": (item) => format.count(item.cpu_run_count),
};

/** The table of the accelerator: a row for each signature and device, with what of it runs on the CPU. Counts are since the load. */
export class AcceleratorTable {
  constructor(section, body) {
    Object.assign(this, { section, body });
    this.kept = new Map();
  }

  show(versions) {
    const items = versions.flatMap((version) =>
      version.accelerator.map((runs) => ({ ...runs, model: version.model, version: version.version })));
    this.section.hidden = items.length === 0;
    const rows = syncRows(this.body, this.kept, items, {
      keyOf: (item) => `${item.version}/${item.device}/${item.signature}/${item.model}`,
      factsOf: (item) => [item.model, item.version, item.signature, item.cpu_part, item.sides],
      makeElement: makeSignatureRow,
    });
    items.forEach((item, i) => {
      for (const [label, cell] of Object.entries(rows[i].figures)) setText(cell, FIGURES[label](item));
    });
  }
}

function makeSignatureRow(item) {
  const cells = Object.fromEntries(Object.keys(FIGURES).map((label) => [label, makeCell(label, "number")]));
  const row = makeRow([
    makeCell("", "id", make("span", "model", item.model), " ", make("b", "", `v${item.version}`)),
    makeCell("", "signature", item.signature, item.device && ` on device ${item.device}`, ...[item.cpu_part, item.sides].filter(Boolean).map((text) => make("p", "reason", text))),
    ...Object.values(cells),
  ]);
  row.figures = cells;
  return row;
}

function ratio(sum, count, toText) {
  return count > 0 ? toText(sum / count) : format.NONE;
}
