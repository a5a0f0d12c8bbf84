/** The points of the charts, from the hub's history and from samples taken by this page. */

import { hubNow } from "./formatting.js";

/** The columns of the history's rows, in the order of the admin API. */
const COLUMNS = ["minute", "accepted", "delivered", "failed", "subscribers", "troubled", "seconds",
  "lag_p50", "lag_p99", "delivery_queue", "commit_queue", "live_queue"];

/** The columns to convert to rates: failures per minute, the others per second. */
const COUNTS = ["accepted", "delivered", "failed"];

/**
 * The time ranges to choose from: the length, the rows of the history to use, and the intervals
 * between points of a chart and between rows of the table, all in seconds.
 */
export const RANGES = {
  "15min": { name: "15 min", text: "15 minutes", length: 900, rows: "minutes", step: 60, row: 60 },
  "24h": { name: "24 h", text: "24 hours", length: 86_400, rows: "minutes", step: 300, row: 1800 },
  "7d": { name: "7 d", text: "7 days", length: 604_800, rows: "quarters", step: 900, row: 7200 },
};

/** If there is no row for this many steps, the hub was not running. */
const GAP_STEPS = 2.5;

/** The interval between samples of the hub's state, in seconds. */
const SAMPLE_SECONDS = 5;

/** The samples taken without interruption, at shorter intervals than the history's. */
export class Samples {
  #points = [];

  /** @param {object} values the values of a point, without its time */
  add(values) {
    const at = hubNow(), last = this.#points.at(-1)?.at ?? -Infinity;
    if (at - last > RANGES["15min"].step || at < last) this.#points = [];
    else if (at - last < SAMPLE_SECONDS) return;
    this.#points.push({ at, ...values });
    if (this.#points.length > RANGES["15min"].length / SAMPLE_SECONDS) this.#points.shift();
  }

  /** Return the points of a range, oldest first. A point without values marks a gap. */
  points(history, range) {
    const { length, rows, step } = RANGES[range];
    const own = this.#points.slice(range === "15min" ? 0 : -1);
    const first = own[0]?.at ?? Infinity, begin = hubNow() - length;
    const past = history[rows].map(pointOf).filter(({ at }) => at >= begin && at < first);
    return interrupted([...condensed(past, step), ...own], GAP_STEPS * step);
  }
}

const named = row => Object.fromEntries(COLUMNS.map((name, index) => [name, row[index]]));

/** Return the counts of the last one or two minutes since the hub started, and their seconds. */
export function recentCounts(history, started) {
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

/** Reduce points to one per step, in seconds, with the mean of each rate and the maximum of the rest. */
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
