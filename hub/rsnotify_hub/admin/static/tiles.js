/** The tiles with the main numbers of the hub, now and during the last day. */

import { element, find, setAttribute, setText } from "./dom.js";
import { bytes, connections, count, lasting, many, rate, secondsSince, timeOfMinute } from "./figures.js";
import { drawSparkline, sparkline } from "./sparkline.js";

/** The interval of a rate, in milliseconds. */
const SPAN_MILLISECONDS = 5000;

/** The columns of a minute in the answer of the admin API. */
const MINUTE = 0, ACCEPTED = 1, DELIVERED = 2, SUBSCRIBERS = 4, TROUBLED = 5;

/** The points of a picture of the day: each shows the largest of ten minutes. */
const POINTS = 144, MINUTES_OF_POINT = 10;

/** The rate of a counter. */
class Rate {
  #samples = [];

  add(total) {
    const now = performance.now();
    if (this.#samples.length && total < this.#samples.at(-1).total) this.#samples = []; // a restart
    this.#samples.push({ now, total });
    while (this.#samples.length > 2 && now - this.#samples[0].now > SPAN_MILLISECONDS) this.#samples.shift();
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    const seconds = (last.now - first.now) / 1000;
    this.now = seconds ? (last.total - first.total) / seconds : 0;
  }
}

export class Tiles {
  /**
   * @param {Element} place the tiles
   * @param {function(): void} lead called when the user wants to see what is in trouble
   */
  constructor(place, lead) {
    this.place = place;
    this.accepted = new Rate();
    this.delivered = new Rate();
    for (const day of place.querySelectorAll(".day")) day.append(sparkline());
    find("#health button", place).addEventListener("click", lead);
  }

  /**
   * @param {object} seen the data for an admin; others see no tiles
   */
  show({ admin, status, history, missing }) {
    this.place.hidden = !admin;
    if (!admin) return;
    this.#flow("in", this.accepted, status.accepted, `${bytes(status.accepted_bytes)} in all`);
    this.#flow("out", this.delivered, sent(status), `${count(sent(status))} in all`);
    const open = { websockets: status.websocket_subscribers, event_streams: status.event_streams };
    const unknown = Object.keys(status.brokers).map(way => `those of ${way.toUpperCase()} unknown`);
    this.#figure("listeners", count(status.subscribers),
      [...connections(open), many(status.subscriptions, "callback"), ...unknown, missing].filter(Boolean).join(" · "));
    const { "given-up": bad = 0, retrying = 0 } = status.states;
    const parts = status.troubled - bad - retrying - status.slow;
    const up = `up ${lasting(secondsSince(status.started))} · log ${bytes(status.log_bytes)}`;
    const troubles = [[bad, "given up"], [retrying, "retrying"], [status.slow, "slow"],
      [parts, parts === 1 ? "part of the hub" : "parts of the hub"]];
    const texts = troubles.filter(([number]) => number).map(([number, text]) => `${count(number)} ${text}`);
    this.#figure("health", count(status.troubled), texts.join(" · ") || up);
    setAttribute(find("#health", this.place), "data-state", bad || status.parts.some(each => each.state === "trouble") ? "given-up" : texts.length ? "retrying" : "active");
    if (!history) return;
    this.#day("in", history, ACCEPTED, number => `${rate(number / 60)}/s`);
    this.#day("out", history, DELIVERED, number => `${rate(number / 60)}/s`);
    this.#day("listeners", history, SUBSCRIBERS, count);
    this.#day("health", history, TROUBLED, count);
  }

  #flow(name, speed, total, note) {
    speed.add(total);
    this.#figure(name, rate(speed.now), note, "/s");
  }

  #figure(name, text, note, unit = "") {
    const figure = find(`#${name} .figure`, this.place);
    if (figure.textContent !== text + unit)
      figure.replaceChildren(text, element("small", {}, unit));
    setText(find(`#${name} .note`, this.place), note);
  }

  #day(name, { minutes, now }, column, text) {
    const values = new Array(POINTS).fill(0);
    let most = null, first = POINTS;
    for (const each of minutes) {
      const point = POINTS - 1 - Math.floor((now - each[MINUTE]) / MINUTES_OF_POINT);
      if (point < 0 || point >= POINTS) continue;
      values[point] = Math.max(values[point], each[column]);
      first = Math.min(first, point);
      if (most === null || each[column] >= most[column]) most = each;
    }
    drawSparkline(find(`#${name} .sparkline`, this.place), most ? values.slice(Math.min(first, POINTS - 2)) : [], POINTS);
    const peak = most?.[column] ? `at most ${text(most[column])}, at ${timeOfMinute(most[MINUTE])}` : "none";
    setText(find(`#${name} .most`, this.place), most ? `24 hours: ${peak}` : "24 hours: from the next minute on");
  }
}

/** Return the number of successful deliveries, over all transports. */
const sent = ({ deliveries }) =>
  Object.entries(deliveries).reduce((sum, [way, { delivered = 0 }]) => sum + (way === "dashboard" ? 0 : delivered), 0);
