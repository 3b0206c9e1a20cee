// Formats values for people. Pure.

export const NONE = "–";

/** The least number of requests for a p999. With fewer requests it would be the slowest one or two. */
export const P999_REQUESTS_MIN = 1000;

/** Returns the text below a p999 of too few requests. */
export function fewRequests(requestCount) {
  return `from only ${count(requestCount)} request${requestCount === 1 ? "" : "s"}`;
}

const clockFormat = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const dayFormat = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const countFormat = new Intl.NumberFormat("en");

/** Returns three significant digits, without an exponent. */
function threeDigits(value) {
  const digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return value.toFixed(digits);
}

/** Returns a latency like "812 µs", "1.23 ms" or "4.50 s". */
export function latency(microseconds) {
  if (microseconds === null || microseconds === undefined) return NONE;
  if (microseconds < 1000) return `${Math.round(microseconds)} µs`;
  if (microseconds < 999_500) return `${threeDigits(microseconds / 1e3)} ms`;
  return `${threeDigits(microseconds / 1e6)} s`;
}

/** Returns a duration like "3 ms", "1.25 s" or "2 min 5 s". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 0.9995) return `${seconds < 0.01 ? (seconds * 1e3).toFixed(1) : Math.round(seconds * 1e3)} ms`;
  if (seconds < 59.95) return `${threeDigits(seconds)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** Returns an age in one unit: "12 s", "3 min", "5 h", "2 d". */
export function age(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 2 * 86400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

/** Returns a size in decimal units: "512 B", "3.40 MB", "1.21 GB". */
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

/** Returns a mean of counts, like "3.4", "27.5" or "1,024". */
export function mean(value) {
  return value < 99.95 ? value.toFixed(1) : countFormat.format(Math.round(value));
}

/** Returns requests per second, as a whole number from 10 on. */
export function rate(value) {
  if (value === null || value === undefined) return NONE;
  return value === 0 ? "0" : value < 10 ? value.toFixed(1) : countFormat.format(Math.round(value));
}

/** Returns the time of day in the browser's time zone. */
export function clock(unixSeconds) {
  return clockFormat.format(unixSeconds * 1000);
}

export function day(unixSeconds) {
  return dayFormat.format(unixSeconds * 1000);
}

/** Returns a name like "warm_up" as words. */
export function words(name) {
  return name.replaceAll("_", " ");
}
