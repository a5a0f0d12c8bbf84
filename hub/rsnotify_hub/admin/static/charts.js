/** The charts of the tiles, drawn by uPlot (vendor/), which is loaded on first use. */

import { condensed, RANGES } from "./chart-data.js";
import { element, find, setAttribute, setText, showEach } from "./dom.js";
import { bytes, count, formatDuration, hubNow, rate, shortTime } from "./formatting.js";
import { loadCharts } from "./trusted-types.js";

const HEIGHT = 124, AXIS_WIDTH = 48, FONT = "11px system-ui, sans-serif";
const MINUTE = 60, HOUR = 3600, DAY = 86_400;

const perSecond = number => `${rate(number)}/s`;
const perMinute = number => `${rate(number)}/min`;
const duration = seconds => formatDuration(seconds).replace(".0 ", " ");

/** For each scale: the format of values, the minimum top of the axis, and any non-decimal steps. */
const SCALES = {
  second: { format: perSecond, minTop: 1 },
  minute: { format: perMinute, minTop: 4 },
  count: { format: count, minTop: 4, steps: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 1e5, 1e6] },
  lag: { format: duration, minTop: 5, steps: [0.5, 1, 2, 5, 10, 30, MINUTE, 120, 300, 600, 1800, HOUR, 7200, 14_400, 43_200, DAY, 2 * DAY] },
  bytes: { format: bytes, minTop: 1000 },
};

/** For each tile: its lines, as column, name and scale, and the text to show without data. */
const TILES = {
  in: {
    lines: [["accepted", "Fragments", "second"]],
    empty: "Nothing was published. Fragments appear here when a Source publishes with --hub.",
  },
  out: {
    lines: [["delivered", "Deliveries", "second"]],
    empty: "Nothing was delivered. Deliveries appear here when someone is subscribed and a Source publishes.",
  },
  listeners: {
    lines: [["subscribers", "all", "count"], ["troubled", "in trouble", "count"]],
    empty: "Nobody was subscribed. A Destination subscribes with rsnotify follow.",
  },
  failed: {
    lines: [["failed", "Failed attempts", "minute"]],
    empty: "No attempt failed. A delivery attempt fails, and is retried, if the callback does not accept it.",
  },
  lag: {
    lines: [["lag_p99", "p99", "lag"], ["lag_p50", "p50", "lag"]],
    empty: "No callback was behind. The lag of callbacks appears here.",
  },
  queues: {
    lines: [["delivery_queue", "deliveries", "count"], ["commit_queue", "writes", "count"], ["live_queue", "unread", "bytes"]],
    empty: "The queues of deliveries, writes to the disk, and bytes for slow readers were empty.",
  },
};

export class Charts {
  #plots = [];
  #state = "absent";
  #drawn = "";
  #points = [];

  /**
   * @param {Element} place the section with the tiles
   * @param {function(string): void} choose called with the chosen range
   */
  constructor(place, choose) {
    this.place = place;
    this.numbers = find(".numbers", place);
    for (const [range, { name, text }] of Object.entries(RANGES)) {
      const input = element("input", { type: "radio", name: "range", value: range });
      input.addEventListener("change", () => choose(range));
      find(".ranges", place).append(element("label", { title: `The last ${text}` }, input, name));
    }
    const heads = columns().map(([, name]) => element("th", { scope: "col", class: "number" }, name));
    find("thead tr", this.numbers).append(element("th", { scope: "col" }, "Time"), ...heads);
    this.numbers.addEventListener("toggle", () => this.#list());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#redraw());
  }

  /**
   * @param {object} history the response of the admin API, with the time of the request
   * @param {Samples} samples the samples taken by this page
   * @param {string} range the key of a range
   */
  async show(history, samples, range) {
    find(`.ranges [value="${range}"]`, this.place).checked = true;
    const points = samples.points(history, range);
    const version = [range, history.at, points.at(-1)?.at].join();
    if (this.#drawn === version || this.#state === "loading") return;
    if (this.#state === "absent") await this.#make();
    if (this.#state === "absent") return; // the next call tries again
    this.#drawn = version;
    this.#points = points;
    this.range = range;
    for (const plot of this.#plots) plot.show(points, range);
    this.#list();
  }

  async #make() {
    this.#state = "loading";
    try {
      const library = await loadCharts();
      for (const [id, card] of Object.entries(TILES))
        this.#plots.push(new Plot(library, find(`#${id}`, this.place), card));
      this.#state = "made";
    } catch {
      this.#state = "absent";
    }
  }

  #redraw() {
    for (const plot of this.#plots) plot.redraw();
  }

  /** Update the table of the points, if it is open. */
  #list() {
    if (!this.numbers.open) return;
    const rows = condensed(this.#points, RANGES[this.range].row).reverse();
    showEach(find("tbody", this.numbers), rows, row => row.at, makeRow, updateRow);
  }
}

/** Return the columns of the table: the column of the history, the heading, and the format. */
function columns() {
  return Object.values(TILES).flatMap(({ lines }, index) => lines.map(([name, text, scale]) => [
    name, [null, null, "Subscribers: ", null, "Lag: ", "Waiting: "][index]?.concat(text) ?? text, SCALES[scale].format,
  ]));
}

function makeRow() {
  const cells = columns().map(() => element("td", { class: "number" }));
  return element("tr", {}, element("th", { scope: "row" }), ...cells);
}

function updateRow(row, point) {
  setText(row.firstElementChild, shortTime(1000 * point.at));
  columns().forEach(([name, , format], index) => setText(row.children[index + 1], valueText(point[name], format)));
}

const valueText = (value, format) => (value === null || value === undefined ? "unknown" : format(value));

/** A chart with its values as text, and a cursor for mouse, touch and keyboard. */
class Plot {
  #points = [];
  #end = 0;

  constructor(library, card, { lines, empty }) {
    this.card = card;
    this.lines = lines;
    this.place = find(".chart", card);
    this.title = find("h3", card).textContent;
    this.when = element("span", { class: "when" });
    const keys = lines.map(([, name], index) => element("span", { class: "key" },
      element("i", { class: "mark", "data-line": index }), lines.length > 1 ? `${name} ` : "", element("b")));
    setAttribute(card, "data-single", lines.length === 1);
    find(".most", card).append(this.when, ...keys);
    this.empty = element("p", { class: "empty", hidden: true }, empty);
    this.place.append(this.empty);
    const slider = { role: "slider", tabindex: 0, "aria-label": `${this.title}, a time`, "aria-valuemin": 0 };
    for (const [name, value] of Object.entries(slider)) setAttribute(this.place, name, value);
    this.place.addEventListener("keydown", event => this.#press(event));
    this.place.addEventListener("blur", () => this.#point(null));
    this.chart = new library(this.#options(library), [[], ...lines.map(() => [])], this.place);
    new ResizeObserver(() => this.chart.setSize({ width: this.place.clientWidth, height: HEIGHT })).observe(this.place);
  }

  show(points, range) {
    this.#points = points;
    this.#end = hubNow();
    this.range = range;
    const column = name => points.map(point => point[name] ?? null);
    this.chart.setData([column("at"), ...this.lines.map(([name]) => column(name))]);
    this.empty.hidden = this.lines.some(([name]) => points.some(point => point[name]));
    setAttribute(this.place, "aria-valuemax", Math.max(0, points.length - 1));
    this.#read();
  }

  redraw() {
    this.chart.redraw();
  }

  #options(library) {
    const scales = [...new Set(this.lines.map(([, , scale]) => scale))];
    const quiet = () => getComputedStyle(this.when).color;
    const grid = { stroke: () => getComputedStyle(this.card).borderTopColor, width: 1 };
    const axis = { stroke: quiet, font: FONT, ticks: { show: false }, grid };
    return {
      width: this.place.clientWidth,
      height: HEIGHT,
      padding: [8, scales.length > 1 ? 0 : 18, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "hub" }, points: { size: 7 } },
      scales: Object.fromEntries([
        ["x", { range: () => [this.#end - RANGES[this.range ?? "15min"].length, this.#end] }],
        ...scales.map(scale => [scale, { range: (_, low, high) => [0, top(library, high, SCALES[scale].minTop)] }]),
      ]),
      axes: [
        { ...axis, size: 22, gap: 4, space: 56, values: (_, splits) => splits.map(axisTime) },
        ...scales.map((scale, index) => ({
          ...axis, scale, side: index ? 1 : 3, size: AXIS_WIDTH, gap: 4,
          grid: { ...grid, show: !index },
          ...(SCALES[scale].steps ? { incrs: SCALES[scale].steps } : {}),
          values: (_, splits) => splits.map(SCALES[scale].format),
        })),
      ],
      series: [{}, ...this.lines.map(([, , scale], index) => ({
        scale,
        stroke: () => this.#colour(index),
        fill: index ? undefined : () => this.#colour(index).replace(/^rgb\((.*)\)$/, "rgba($1, 0.12)"),
        width: 1.5,
        dash: index ? [4 * index, 3] : undefined,
        points: { show: this.#alone },
      }))],
      hooks: { setCursor: [() => this.#read()] },
    };
  }

  /** Whether to mark the points of a line, which is useful if there are few. */
  #alone = () => this.#points.length < 3;

  #colour(line) {
    return getComputedStyle(find(`[data-line="${line}"]`, this.card)).color;
  }

  /** Show the values at the cursor or, without a cursor, the largest values. */
  #read() {
    const index = this.chart?.cursor.idx ?? null, point = this.#points[index];
    setText(this.when, point ? pointTime(point.at, this.range) : this.#points.length ? "at most" : "from now on");
    const texts = this.lines.map(([name, , scale]) => {
      if (point) return valueText(point[name], SCALES[scale].format);
      const most = this.#points.reduce((best, each) => ((each[name] ?? -1) > (best?.[name] ?? -1) ? each : best), null);
      if (!most) return "";
      const at = this.lines.length === 1 && most[name] ? `, at ${pointTime(most.at, this.range)}` : "";
      return SCALES[scale].format(most[name]) + at;
    });
    this.card.querySelectorAll(".key b").forEach((value, line) => setText(value, texts[line]));
    const spoken = this.lines.map(([, name], line) => `${name} ${texts[line] || "unknown"}`).join(", ");
    setAttribute(this.place, "aria-valuenow", index ?? Math.max(0, this.#points.length - 1));
    setAttribute(this.place, "aria-valuetext", `${this.when.textContent}: ${spoken}`);
  }

  #press(event) {
    const last = this.#points.length - 1, index = this.chart.cursor.idx ?? last + 1;
    const next = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.#point(null);
    else if (next === undefined || last < 0) return;
    else this.#point(Math.min(Math.max(next, 0), last));
    event.preventDefault();
  }

  #point(index) {
    const left = index === null ? -10 : Math.max(0, this.chart.valToPos(this.#points[index].at, "x"));
    this.chart.setCursor({ left, top: index === null ? -10 : 0 });
  }
}

/** Return the top of an axis for the highest value. */
const top = (library, high, least) => Math.max(least, library.rangeNum(0, high || least, 0.1, true)[1]);

function axisTime(seconds) {
  const date = new Date(1000 * seconds);
  if (date.getHours() + date.getMinutes() + date.getSeconds() === 0)
    return date.toLocaleDateString("en-GB", { weekday: "short", day: "numeric" });
  return date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

/** Format the time of a point, as precisely as it is known. */
function pointTime(seconds, range) {
  if (range === "15min" && seconds % MINUTE) return new Date(1000 * seconds).toLocaleTimeString("en-GB");
  return shortTime(1000 * seconds);
}
