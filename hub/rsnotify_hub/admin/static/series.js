/** The points of the charts: from the history of the hub, and from what this page has seen since. */

import { hubNow } from "./figures.js";

/** The columns of a row of the history, in the order of the admin API. */
const COLUMNS = ["minute", "accepted", "delivered", "failed", "subscribers", "troubled", "seconds",
  "lag_p50", "lag_p99", "delivery_queue", "commit_queue", "live_queue"];

/** Counts, which become rates: of failures per minute, of the others per second. The rest are states. */
const COUNTS = ["accepted", "delivered", "failed"];

/**
 * The ranges that a user can choose: their length, the rows of the history that they show, the time
 * from one point to the next, and that from one row of the table to the next, all in seconds.
 */
export const RANGES = {
  "15min": { name: "15 min", text: "15 minutes", length: 900, rows: "minutes", step: 60, row: 60 },
  "24h": { name: "24 h", text: "24 hours", length: 86_400, rows: "minutes", step: 300, row: 1800 },
  "7d": { name: "7 d", text: "7 days", length: 604_800, rows: "quarters", step: 900, row: 7200 },
};

/** Without a row for so many steps the hub was not running. */
const GAP_STEPS = 2.5;

/** How often this page samples the state of the hub, in seconds. */
const SAMPLE_SECONDS = 5;

/** What this page has seen without an interruption, in more detail than the history has. */
export class Samples {
  #points = [];

  /** @param {object} values the values of a point, apart from its time */
  add(values) {
    const at = hubNow(), last = this.#points.at(-1)?.at ?? -Infinity;
    if (at - last > RANGES["15min"].step || at < last) this.#points = [];
    else if (at - last < SAMPLE_SECONDS) return;
    this.#points.push({ at, ...values });
    if (this.#points.length > RANGES["15min"].length / SAMPLE_SECONDS) this.#points.shift();
  }

  /** Return the points of a range, oldest first. Where the hub was not running one has no values. */
  points(history, range) {
    const { length, rows, step } = RANGES[range];
    const own = this.#points.slice(range === "15min" ? 0 : -1);
    const first = own[0]?.at ?? Infinity, begin = hubNow() - length;
    const past = history[rows].map(pointOf).filter(({ at }) => at >= begin && at < first);
    return interrupted([...condensed(past, step), ...own], GAP_STEPS * step);
  }
}

const named = row => Object.fromEntries(COLUMNS.map((name, index) => [name, row[index]]));

/** Return what was counted in the last minute or two since the hub started, and in how many seconds. */
export function counted(history, started) {
  const rows = history.minutes.slice(-2).map(named).filter(({ minute }) => 60_000 * (minute + 1) > Date.parse(started));
  return Object.fromEntries([...COUNTS, "seconds"].map(name => [name, rows.reduce((sum, row) => sum + row[name], 0)]));
}

function pointOf(row) {
  const { minute, seconds, ...values } = named(row);
  for (const name of COUNTS) values[name] /= seconds;
  return { at: 60 * minute, ...values, failed: 60 * values.failed };
}

function interrupted(points, longest) {
  return points.flatMap((point, index) => {
    const before = points[index - 1]?.at ?? point.at;
    return point.at - before > longest ? [{ at: (before + point.at) / 2 }, point] : [point];
  });
}

/** Return one point for each step of so many seconds: the mean of rates, and the largest of the others. */
export function condensed(points, step) {
  const groups = new Map();
  for (const point of points.filter(each => "accepted" in each)) {
    const at = step * Math.floor(point.at / step);
    if (groups.has(at)) groups.get(at).push(point);
    else groups.set(at, [point]);
  }
  return [...groups].map(([at, group]) => {
    const made = { at };
    for (const name of Object.keys(group[0]).filter(each => each !== "at")) {
      const known = group.map(each => each[name]).filter(each => each !== null);
      if (COUNTS.includes(name)) made[name] = known.reduce((sum, each) => sum + each, 0) / known.length;
      else made[name] = known.length ? Math.max(...known) : null;
    }
    return made;
  });
}
