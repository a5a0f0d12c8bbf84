/** The tiles with the main numbers of the hub, now and in the past. */

import { recentCounts, Samples } from "./chart-data.js";
import { Charts } from "./charts.js";
import { element, find, setText } from "./dom.js";
import { bytes, connectionCounts, count, counted, formatDuration, rate } from "./formatting.js";

/** Measures the rate of a counter over a period in milliseconds. */
class RateMeter {
  #samples = [];

  constructor(span) {
    this.span = span;
  }

  /**
   * Add the current total, and return the rate per second.
   * @param {number} before the part of the first total that was counted in the `seconds` before it
   */
  add(total, before, seconds) {
    const now = performance.now();
    if (!this.#samples.length) this.#samples.push({ now: now - 1000 * Math.max(1, seconds), total: Math.max(0, total - before) });
    if (total < this.#samples.at(-1).total) this.#samples = [{ now: this.#samples.at(-1).now, total: 0 }]; // a restart
    this.#samples.push({ now, total });
    while (this.#samples.length > 2 && now - this.#samples[0].now > this.span) this.#samples.shift();
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    return (1000 * (last.total - first.total)) / (last.now - first.now);
  }
}

export class Tiles {
  #samples = new Samples();

  /**
   * @param {Element} place the section with the tiles
   * @param {function(string): void} choose called with the range chosen for the charts
   */
  constructor(place, choose) {
    this.place = place;
    this.accepted = new RateMeter(5000);
    this.delivered = new RateMeter(5000);
    this.failed = new RateMeter(60_000); // failures are rare
    this.charts = new Charts(place, choose);
  }

  /**
   * @param {object} seen the data; only an admin sees the tiles
   * @param {string} range the range of the charts
   */
  show({ admin, status, history, missing }, range) {
    this.place.hidden = !admin;
    if (!admin) return;
    const failures = status.deliveries.websub?.failed ?? 0;
    const { lag_p50, lag_p99, delivery_queue, commit_queue, live_queue } = status;
    const before = recentCounts(history, status.started);
    const accepted = this.accepted.add(status.accepted, before.accepted, before.seconds);
    const delivered = this.delivered.add(sent(status), before.delivered, before.seconds);
    const failed = 60 * this.failed.add(failures, before.failed, before.seconds);
    this.#figure("in", rate(accepted), `${bytes(status.accepted_bytes)} in all`, "/s");
    this.#figure("out", rate(delivered), `${count(sent(status))} in all`, "/s");
    const open = { websockets: status.websocket_subscribers, event_streams: status.event_streams };
    const unknown = Object.keys(status.brokers).map(way => `${way.toUpperCase()} readers unknown`);
    this.#figure("listeners", count(status.subscribers),
      [...connectionCounts(open), counted(status.subscriptions, "callback"), ...unknown, missing].filter(Boolean).join(" · "));
    this.#figure("failed", rate(failed), `${count(failures)} in all`, "/min");
    if (lag_p99 === null) this.#figure("lag", "none", "no callback is subscribed");
    else this.#figure("lag", formatDuration(lag_p99), `p50 ${formatDuration(lag_p50)}`, " p99");
    this.#figure("queues", count(delivery_queue + commit_queue), [counted(delivery_queue, "delivery", "deliveries"),
      counted(commit_queue, "write"), `${bytes(live_queue)} unread`].join(" · "));
    this.#samples.add({
      accepted, delivered, failed, subscribers: status.subscribers, troubled: countTroubled(status),
      lag_p50, lag_p99, delivery_queue, commit_queue, live_queue,
    });
    this.charts.show(history, this.#samples, range);
  }

  #figure(name, text, note, unit = "") {
    const figure = find(`#${name} .figure`, this.place);
    if (figure.textContent !== text + unit)
      figure.replaceChildren(text, element("small", {}, unit));
    setText(find(`#${name} .note`, this.place), note);
  }
}

/** Return the number of successful deliveries, over all transports. */
const sent = ({ deliveries }) =>
  Object.entries(deliveries).reduce((sum, [way, { delivered = 0 }]) => sum + (way === "dashboard" ? 0 : delivered), 0);

/** Return the number of subscriptions that are retrying or given up. */
export const countTroubled = ({ states }) => (states["given-up"] ?? 0) + (states.retrying ?? 0);
