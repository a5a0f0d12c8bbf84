/** The cards with the main numbers of the hub, now and in the past. */

import { Charts } from "./charts.js";
import { element, find, setText } from "./dom.js";
import { bytes, connections, count, lasting, many, rate } from "./figures.js";
import { counted, Samples } from "./series.js";

/** The rate of a counter, over an interval in milliseconds. */
class Rate {
  #samples = [];

  constructor(span) {
    this.span = span;
  }

  /**
   * Add the present total, and return the rate.
   * @param {number} before how much of the total was counted in the seconds before the first one
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
   * @param {Element} place the section of the cards
   * @param {function(string): void} choose called with the range that the user chooses for the charts
   */
  constructor(place, choose) {
    this.place = place;
    this.accepted = new Rate(5000);
    this.delivered = new Rate(5000);
    this.failed = new Rate(60_000); // there are few
    this.charts = new Charts(place, choose);
  }

  /**
   * @param {object} seen the data for an admin; others see no cards
   * @param {string} range the range of the charts
   */
  show({ admin, status, history, missing }, range) {
    this.place.hidden = !admin;
    if (!admin) return;
    const failures = status.deliveries.websub?.failed ?? 0;
    const { lag_p50, lag_p99, delivery_queue, commit_queue, live_queue } = status;
    const before = counted(history, status.started);
    const accepted = this.accepted.add(status.accepted, before.accepted, before.seconds);
    const delivered = this.delivered.add(sent(status), before.delivered, before.seconds);
    const failed = 60 * this.failed.add(failures, before.failed, before.seconds);
    this.#figure("in", rate(accepted), `${bytes(status.accepted_bytes)} in all`, "/s");
    this.#figure("out", rate(delivered), `${count(sent(status))} in all`, "/s");
    const open = { websockets: status.websocket_subscribers, event_streams: status.event_streams };
    const unknown = Object.keys(status.brokers).map(way => `those of ${way.toUpperCase()} unknown`);
    this.#figure("listeners", count(status.subscribers),
      [...connections(open), many(status.subscriptions, "callback"), ...unknown, missing].filter(Boolean).join(" · "));
    this.#figure("failed", rate(failed), `${count(failures)} in all`, "/min");
    if (lag_p99 === null) this.#figure("lag", "none", "no callback is subscribed");
    else this.#figure("lag", lasting(lag_p99), `p50 ${lasting(lag_p50)}`, " p99");
    this.#figure("queues", count(delivery_queue + commit_queue), [many(delivery_queue, "delivery", "deliveries"),
      many(commit_queue, "write"), `${bytes(live_queue)} unread`].join(" · "));
    this.#samples.add({
      accepted, delivered, failed, subscribers: status.subscribers, troubled: troubled(status),
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

/** Return the number of subscriptions that are retried or given up. */
export const troubled = ({ states }) => (states["given-up"] ?? 0) + (states.retrying ?? 0);
