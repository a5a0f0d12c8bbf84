/** The tiles with the main numbers of the hub. */

import { element, find, setAttribute, setText } from "./dom.js";
import { bytes, connections, count, lasting, many, rate, secondsSince } from "./figures.js";
import { drawSparkline, History, sparkline } from "./sparkline.js";

/** The interval of a rate, in milliseconds. */
const SPAN_MILLISECONDS = 5000;

/** The rate of a counter. */
class Rate {
  #samples = [];
  history = new History();

  add(total) {
    const now = performance.now();
    if (this.#samples.length && total < this.#samples.at(-1).total) this.#samples = []; // a restart
    this.#samples.push({ now, total });
    while (this.#samples.length > 2 && now - this.#samples[0].now > SPAN_MILLISECONDS) this.#samples.shift();
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    const seconds = (last.now - first.now) / 1000;
    this.now = seconds ? (last.total - first.total) / seconds : 0;
    if (seconds) this.history.add(this.now);
  }
}

export class Tiles {
  constructor(place) {
    this.place = place;
    this.accepted = new Rate();
    this.delivered = new Rate();
    for (const name of ["in", "out"]) find(`#${name}`, place).append(sparkline());
  }

  /** @param {object} seen the data for an admin; others see no tiles */
  show({ admin, status, missing }) {
    this.place.hidden = !admin;
    if (!admin) return;
    this.#flow("in", this.accepted, status.accepted, `${bytes(status.accepted_bytes)} in all`);
    this.#flow("out", this.delivered, sent(status), `${count(sent(status))} in all`);
    this.#figure("listeners", count(status.websockets + status.event_streams + status.subscriptions),
      [...connections(status), many(status.subscriptions, "callback"), missing].filter(Boolean).join(" · "));
    const { "given-up": bad = 0, retrying: slow = 0 } = status.states;
    const up = `up ${lasting(secondsSince(status.started))} · log ${bytes(status.log_bytes)}`;
    this.#figure("health", count(bad + slow), bad + slow ? `${count(bad)} given up · ${count(slow)} retrying` : up);
    setAttribute(find("#health", this.place), "data-state", bad ? "given-up" : slow ? "retrying" : "active");
  }

  #flow(name, speed, total, note) {
    speed.add(total);
    this.#figure(name, rate(speed.now), note, "/s");
    drawSparkline(find(`#${name} .sparkline`, this.place), speed.history);
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
  Object.values(deliveries).reduce((sum, outcomes) => sum + (outcomes.delivered ?? 0), 0);
