// Values as people read them. Pure.

export const NONE = "–";

/** Fewer requests than this have no p999 worth the name: it would be the slowest one or two. */
export const P999_REQUESTS_MIN = 1000;

/** Goes below a p999 that so few requests cannot give. */
export function fewRequests(requestCount) {
  return `of only ${count(requestCount)} request${requestCount === 1 ? "" : "s"}`;
}

const clockFormat = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const dayFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const countFormat = new Intl.NumberFormat("en");

/** Three significant digits, without an exponent. */
function threeDigits(value) {
  const digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return value.toFixed(digits);
}

/** "812 µs", "1.23 ms", "4.50 s". */
export function latency(microseconds) {
  if (microseconds === null || microseconds === undefined) return NONE;
  if (microseconds < 1000) return `${Math.round(microseconds)} µs`;
  if (microseconds < 999_500) return `${threeDigits(microseconds / 1e3)} ms`;
  return `${threeDigits(microseconds / 1e6)} s`;
}

/** How long something took: "3 ms", "1.25 s", "2 min 5 s". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 0.9995) return `${seconds < 0.01 ? (seconds * 1e3).toFixed(1) : Math.round(seconds * 1e3)} ms`;
  if (seconds < 59.95) return `${threeDigits(seconds)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** How long ago, in one unit: "12 s", "3 min", "5 h", "2 d". */
export function age(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 2 * 86400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

/** Decimal units: "512 B", "3.40 MB", "1.21 GB". */
export function bytes(count) {
  if (count === null || count === undefined) return NONE;
  if (count < 1000) return `${count} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = count / 1000;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${threeDigits(value)} ${units[unit]}`;
}

export function count(value) {
  return value === null || value === undefined ? NONE : countFormat.format(value);
}

/** Requests per second: whole ones from 10 on. */
export function rate(value) {
  if (value === null || value === undefined) return NONE;
  return value === 0 ? "0" : value < 10 ? value.toFixed(1) : countFormat.format(Math.round(value));
}

/** A time of day in the browser's zone. */
export function clock(unixSeconds) {
  return clockFormat.format(unixSeconds * 1000);
}

export function day(unixSeconds) {
  return dayFormat.format(unixSeconds * 1000);
}

/** "warm_up" is a name for programs. */
export function words(name) {
  return name.replaceAll("_", " ");
}
