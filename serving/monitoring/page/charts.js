// The two charts, made with uPlot: they share a cursor and a time axis, and both mark the swaps.

import * as format from "./format.js";

const LATENCY_HEIGHT = { wide: 240, narrow: 190 };
const REQUESTS_HEIGHT = { wide: 130, narrow: 110 };
const NARROW_PIXELS = 560;
// The axis has no labels for a shorter range.
const YOUNG_SECONDS_MIN = 10;
const FAILED = new Set(["load_failed", "refused", "cancelled"]);

const timeFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const secondFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Returns the colours of page.css, so that charts and text change together between light and dark. */
function colors() {
  const style = getComputedStyle(document.documentElement);
  const names = ["p50", "p99", "p999", "weak", "rate", "rate-fill", "failed", "axis", "grid", "band", "published", "card"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** Returns a range around the values, so that a flat line is in the middle of the chart. */
function logRange(low, high) {
  if (!(low > 0)) return [1e-4, 1e-1];
  return [low / 1.4, Math.max(high, low * 2) * 1.4];
}

/** Returns 1, 2 and 5 of each decade; only 1 if that would be too many ticks. */
function logSplits(low, high) {
  const splits = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const digit of [1, 2, 5]) splits.push(Number(`${digit}e${power}`));
  }
  const inside = splits.filter((value) => value >= low && value <= high);
  const decades = inside.filter((value) => String(value.toExponential()).startsWith("1e"));
  return inside.length > 7 && decades.length > 1 ? decades : inside;
}

export class Charts {
  /** `onCursor(index)` gets the point under the cursor; null when the cursor has left. */
  constructor(latencyElement, requestsElement, onCursor) {
    this.elements = [latencyElement, requestsElement];
    this.onCursor = onCursor;
    this.marks = [];
    this.now = Date.now() / 1000;
    this.rangeSeconds = 900;
    this.startedAt = null;
    this.data = [[[], [], [], [], []], [[], [], []]];
    this.build();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
    new ResizeObserver(() => this.resize()).observe(latencyElement);
    latencyElement.addEventListener("keydown", (event) => this.onKey(event));
    latencyElement.addEventListener("blur", () => this.moveCursor(null));
  }

  /** Draws the points up to `now` and the `marks` of swaps, of a server that started at `startedAt`. */
  draw(latencyColumns, requestColumns, marks, now, startedAt) {
    this.data = [latencyColumns, requestColumns];
    this.marks = marks;
    this.now = now;
    this.startedAt = startedAt;
    this.redraw();
  }

  setRange(seconds) {
    this.rangeSeconds = seconds;
    this.redraw();
  }

  /** Returns the left edge. A server that is younger than the range shows the time since its start. */
  get from() {
    const from = this.now - this.rangeSeconds;
    if (this.startedAt === null || this.startedAt <= from) return from;
    return Math.min(this.startedAt, this.now - YOUNG_SECONDS_MIN);
  }

  redraw() {
    this.plots.forEach((plot, i) => {
      plot.batch(() => {
        plot.setData(this.data[i], false);
        plot.setScale("x", { min: this.from, max: this.now });
      });
    });
  }

  build() {
    for (const plot of this.plots ?? []) plot.destroy();
    this.colors = colors();
    const [latency, requests] = this.elements;
    this.plots = [
      new uPlot(this.latencyOptions(), this.data[0], latency),
      new uPlot(this.requestsOptions(), this.data[1], requests),
    ];
    this.redraw();
  }

  size(heights) {
    const width = Math.max(200, this.elements[0].clientWidth);
    return { width, height: width < NARROW_PIXELS ? heights.narrow : heights.wide };
  }

  resize() {
    this.plots[0].setSize(this.size(LATENCY_HEIGHT));
    this.plots[1].setSize(this.size(REQUESTS_HEIGHT));
  }

  latencyOptions() {
    const { colors: c } = this;
    const line = (label, stroke, more = {}) => ({ label, stroke, width: 1.5, points: { show: false }, ...more });
    return {
      ...this.commonOptions(LATENCY_HEIGHT),
      scales: {
        x: { time: true, range: (_, min, max) => [min, max] },
        y: { distr: 3, range: (_, low, high) => logRange(low, high) },
      },
      axes: [
        this.timeAxis(),
        this.valueAxis({
          splits: (_, __, low, high) => logSplits(low, high),
          filter: (_, splits) => splits,
          values: (_, splits) => splits.map((value) => format.latency(value * 1e6).replace(/\.0+ /, " ").replace(/(\.\d)0 /, "$1 ")),
        }),
      ],
      series: [
        {},
        line("p50", c.p50),
        line("p99", c.p99),
        line("p999", c.p999, { width: 2 }),
        line("p999 of few", c.weak, { dash: [3, 3] }),
      ],
      hooks: {
        drawClear: [(plot) => this.drawBands(plot)],
        draw: [(plot) => this.drawMarks(plot, true)],
        setCursor: [(plot) => this.onCursor(plot.cursor.left >= 0 ? plot.cursor.idx : null)],
      },
    };
  }

  requestsOptions() {
    const { colors: c } = this;
    return {
      ...this.commonOptions(REQUESTS_HEIGHT),
      scales: {
        x: { time: true, range: (_, min, max) => [min, max] },
        y: { range: (_, __, high) => [0, Math.max(1, high * 1.15)] },
      },
      axes: [
        this.timeAxis(),
        this.valueAxis({ values: (_, splits) => splits.map((value) => format.rate(value)) }),
      ],
      series: [
        {},
        { label: "requests", stroke: c.rate, fill: c["rate-fill"], width: 1.5, points: { show: false } },
        { label: "failed", stroke: c.failed, paths: () => null, points: { show: false } },
      ],
      hooks: {
        drawClear: [(plot) => this.drawBands(plot)],
        draw: [(plot) => this.drawFailures(plot), (plot) => this.drawMarks(plot, false)],
      },
    };
  }

  commonOptions(heights) {
    return {
      ...this.size(heights),
      padding: [10, 20, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, sync: { key: "time" } },
    };
  }

  timeAxis() {
    const { colors: c } = this;
    return {
      stroke: c.axis,
      grid: { stroke: c.grid, width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
      size: 24,
      gap: 4,
      space: 70,
      values: (_, splits, __, ___, increment) =>
        splits.map((at) => (increment < 60 ? secondFormat : timeFormat).format(at * 1000)),
    };
  }

  valueAxis(more) {
    const { colors: c } = this;
    return {
      stroke: c.axis,
      grid: { stroke: c.grid, width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
      size: 58,
      gap: 6,
      space: 28,
      ...more,
    };
  }

  /** Shades the time while a version loads. */
  drawBands(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.fillStyle = this.colors.band;
    for (const mark of this.marks) {
      const end = mark.published_at ?? mark.ended_at ?? this.now;
      const left = Math.max(bbox.left, plot.valToPos(mark.began_at, "x", true));
      const right = Math.min(bbox.left + bbox.width, plot.valToPos(end, "x", true));
      if (right > left) ctx.fillRect(left, bbox.top, Math.max(right - left, devicePixelRatio), bbox.height);
    }
    ctx.restore();
  }

  /** Draws a bar for each second with failures, always large enough to be seen. */
  drawFailures(plot) {
    const { ctx, bbox } = plot;
    const [at, , failed] = plot.data;
    const bottom = bbox.top + bbox.height;
    const width = Math.max(2 * devicePixelRatio, bbox.width / (this.now - this.from));
    ctx.save();
    ctx.fillStyle = this.colors.failed;
    at.forEach((second, i) => {
      const x = plot.valToPos(second, "x", true) - width;
      if (!(failed[i] > 0) || x < bbox.left) return;
      const height = Math.max(5 * devicePixelRatio, bottom - plot.valToPos(failed[i], "y", true));
      ctx.fillRect(x, bottom - height, width, height);
    });
    ctx.restore();
  }

  /** Draws a line at the publish of a version, or at the failure of its load. */
  drawMarks(plot, hasLabels) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    let labelsEnd = -Infinity;
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    ctx.lineJoin = "round";
    const lines = this.marks.map((mark) => {
      const isFailed = FAILED.has(mark.result);
      return { mark, isFailed, at: mark.published_at ?? (isFailed ? mark.ended_at : null) };
    }).filter(({ at }) => at !== null);
    // From left to right, so that the first of two labels that overlap is the one that is kept.
    for (const { mark, isFailed, at } of lines.sort((a, b) => a.at - b.at)) {
      const x = Math.round(plot.valToPos(at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = isFailed ? this.colors.failed : this.colors.published;
      ctx.lineWidth = ratio;
      ctx.setLineDash(isFailed ? [3 * ratio, 3 * ratio] : []);
      ctx.beginPath();
      ctx.moveTo(x + 0.5, bbox.top);
      ctx.lineTo(x + 0.5, bbox.top + bbox.height);
      ctx.stroke();
      if (hasLabels) labelsEnd = this.drawLabel(plot, mark, isFailed, x, labelsEnd);
    }
    ctx.restore();
  }

  /** Draws the text left of its line, or right if there is no room; omits it if it would overlap. */
  drawLabel(plot, mark, isFailed, x, labelsEnd) {
    const { ctx, bbox } = plot;
    const gap = 4 * devicePixelRatio;
    const name = this.hasNames ? `${shorten(mark.model)} v${mark.version}` : `v${mark.version}`;
    const sign = isFailed ? "✕ " : mark.result === "rolled_back" ? "↶ " : "";
    const text = sign + name;
    const { width } = ctx.measureText(text);
    const beside = x + gap + width <= bbox.left + bbox.width ? x + gap : x - gap - width;
    // A name that is wider than the plot begins at its left side.
    const left = Math.max(beside, bbox.left);
    if (left < labelsEnd + gap) return labelsEnd;
    // The outline has the card's colour, so that a line below the text does not make it hard to read.
    ctx.setLineDash([]);
    ctx.strokeStyle = this.colors.card;
    ctx.lineWidth = 4 * devicePixelRatio;
    ctx.strokeText(text, left, bbox.top + 2 * devicePixelRatio);
    ctx.fillText(text, left, bbox.top + 2 * devicePixelRatio);
    return left + width;
  }

  /** Arrow keys move the cursor by a point, Home and End move it to either side, Escape removes it. */
  onKey(event) {
    const { length } = this.data[0][0];
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -30, PageDown: 30, Home: -length, End: length };
    if (event.key === "Escape") this.moveCursor(null);
    if (!(event.key in steps) || length === 0) return;
    event.preventDefault();
    const first = Math.max(0, this.data[0][0].findIndex((at) => at >= this.from));
    const from = this.plots[0].cursor.left >= 0 ? this.plots[0].cursor.idx : length - 1;
    this.moveCursor(Math.min(length - 1, Math.max(first, (from ?? length - 1) + steps[event.key])));
  }

  moveCursor(index) {
    for (const plot of this.plots) {
      const left = index === null ? -10 : plot.valToPos(this.data[0][0][index], "x");
      plot.setCursor({ left, top: index === null ? -10 : 10 });
    }
  }
}

function shorten(name) {
  return name.length > 14 ? `${name.slice(0, 13)}…` : name;
}
