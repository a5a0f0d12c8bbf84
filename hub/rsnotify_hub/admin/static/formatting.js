/** Formats numbers and instants for people. */

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** How far the hub's clock is ahead of this one, in milliseconds. */
let ahead = 0;

/** Set the hub's current time. */
export function setClock(instant) {
  const now = Date.parse(instant);
  if (!Number.isNaN(now)) ahead = now - Date.now();
}

/** Return the seconds since an instant, by the hub's clock. */
export const secondsSince = instant => (Date.now() + ahead - Date.parse(instant)) / 1000;

export const count = number => (number < 100_000 ? whole : short).format(number);

/** Format a count with its noun: "1 topic", "2 topics". */
export const counted = (number, one, more = one + "s") => `${count(number)} ${number === 1 ? one : more}`;

export const rate = number =>
  number >= 10 || number === 0 ? count(Math.round(number)) : number.toFixed(1);

export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (number >= 999.5 && power < units.length - 1) [number, power] = [number / 1000, power + 1];
  return `${power && number < 9.95 ? number.toFixed(1) : Math.round(number)} ${units[power]}`;
}

/** Format a duration in one unit. */
export function formatDuration(seconds) {
  const value = Math.max(0, seconds);
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172_800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86_400)} days`;
}

/** Format the time since an instant. */
export function ago(instant) {
  const seconds = secondsSince(instant);
  return seconds < 1.5 ? "now" : `${formatDuration(Math.round(seconds)).replace(".0", "")} ago`;
}

/** Format the time until an instant. */
export function fromNow(instant) {
  const seconds = -secondsSince(instant);
  return seconds <= 0 ? "now" : `in ${formatDuration(Math.round(seconds)).replace(".0", "")}`;
}

/** Format the time of day of an instant, with milliseconds. */
export function timeOfDay(milliseconds) {
  const date = new Date(milliseconds);
  return date.toLocaleTimeString("en-GB") + "." + String(date.getMilliseconds()).padStart(3, "0");
}

/** Format a time with minutes, and with the day unless it is today. */
export function shortTime(milliseconds) {
  const date = new Date(milliseconds), time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === new Date(1000 * hubNow()).toDateString()) return time;
  return `${date.toLocaleDateString("en-GB", { weekday: "short", day: "numeric", month: "short" })} ${time}`;
}

/** Return the seconds since 1970, by the hub's clock. */
export const hubNow = () => (Date.now() + ahead) / 1000;

/** Format an instant with its date, in the user's locale. */
export const formatDateTime = instant =>
  new Date(instant).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** Format the numbers of connections, by transport. */
export const connectionCounts = ({ websockets, event_streams }) =>
  [...(websockets || !event_streams ? [counted(websockets, "WebSocket")] : []), ...(event_streams ? [counted(event_streams, "event stream")] : [])];
