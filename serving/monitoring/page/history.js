// The last 15 minutes as columns that grow at the end. It does not use the document.

import { P999_REQUESTS_MIN } from "./format.js";

export const KEPT_SECONDS = 900;

// A second without a request in the 10 s before has no point. So a longer gap means no requests.
const IDLE_SECONDS = 3;

const IDLE = { per_second: 0, failed_per_second: 0, window_count: 0, p50_us: null, p99_us: null, p999_us: null };

const COLUMNS = ["at", "per_second", "failed_per_second", "window_count", "p50_us", "p99_us", "p999_us"];

export class History {
  constructor() {
    this.clear();
  }

  clear() {
    for (const name of COLUMNS) this[name] = [];
  }

  get length() {
    return this.at.length;
  }

  /**
   * Adds the points of an answer. Returns false if they do not follow the present points, for example
   * because the server's clock was set back. Then all points must be fetched again.
   */
  take(points, isContinued, now) {
    if (!isContinued) this.clear();
    if (points.at.length && this.length && points.at[0] <= this.at[this.length - 1]) return false;
    for (let i = 0; i < points.at.length; i += 1) {
      const last = this.at[this.length - 1];
      if (last !== undefined && points.at[i] - last > IDLE_SECONDS) {
        this.push({ ...IDLE, at: last + 1 });
        this.push({ ...IDLE, at: points.at[i] - 1 });
      }
      for (const name of COLUMNS) this[name].push(points[name][i]);
    }
    const old = this.at.findIndex((at) => at >= now - KEPT_SECONDS - 5);
    if (old !== 0) for (const name of COLUMNS) this[name].splice(0, old < 0 ? this.length : old);
    return true;
  }

  push(point) {
    for (const name of COLUMNS) this[name].push(point[name]);
  }

  point(index) {
    return Object.fromEntries(COLUMNS.map((name) => [name, this[name][index]]));
  }

  /** Returns the present figures: idle if the last point is older than IDLE_SECONDS. */
  latest(now) {
    const last = this.at[this.length - 1];
    return last !== undefined && now - last <= IDLE_SECONDS ? this.point(this.length - 1) : { ...IDLE, at: now };
  }

  /** Returns true if any request has ended since then. */
  hasRequestsSince(since) {
    return this.at.some((at, i) => at >= since && (this.per_second[i] > 0 || this.window_count[i] > 0));
  }

  /** Returns x, p50, p99, p999, and p999 of too few requests. The last two lines meet. */
  latencyColumns() {
    const isFirm = this.window_count.map((count) => count >= P999_REQUESTS_MIN);
    const seconds = (column) => column.map((us) => (us === null ? null : Math.max(us, 1) / 1e6));
    const p999 = seconds(this.p999_us);
    return [
      this.at,
      seconds(this.p50_us),
      seconds(this.p99_us),
      p999.map((value, i) => (isFirm[i] ? value : null)),
      p999.map((value, i) => (!isFirm[i] || isFirm[i + 1] === false || isFirm[i - 1] === false ? value : null)),
    ];
  }

  requestColumns() {
    return [this.at, this.per_second, this.failed_per_second];
  }
}
