/** The panel of the parts of the hub: brokers, disk, queues, and Sources that are silent. */

import { element, find, setAttribute, setText, showEach } from "./dom.js";
import { bytes, count, lasting, many, secondsSince } from "./figures.js";

const STATES = ["given-up", "retrying", "active"];
const WORDS = { "given-up": "in trouble", retrying: "watch it", active: "in order" };
const [BAD, SLOW, GOOD] = STATES;

const BROKERS = { xmpp: "XMPP service" };

/** More is unusual: see the alerts in deploy/prometheus. */
const MANY_WRITES = 100, MANY_DELIVERIES = 1000;
const LITTLE_DISK = 0.05, LESS_DISK = 0.15;
/** A broker that is behind for less long is just being sent something. */
const BEHIND_SECONDS = 60;

export class Parts {
  #behind = new Map();

  /**
   * @param {Element} panel its panel
   * @param {function(): void} lead called when the user wants to see the topics of silent Sources
   */
  constructor(panel, lead) {
    this.panel = panel;
    this.lead = lead;
  }

  /**
   * @param {{admin: boolean, status: object, nodes: object}} seen the data for an admin
   * @returns {Array<{name: string, state: string, text: string}>} the parts that are in trouble, or to be watched
   */
  show({ admin, status, nodes }) {
    this.panel.hidden = !admin;
    if (!admin) return [];
    const parts = [sources(status), ...this.#brokers(status), disk(status), store(status, nodes), ...queues(status)];
    const sorted = parts.filter(Boolean).sort((one, other) => STATES.indexOf(one.state) - STATES.indexOf(other.state));
    showEach(find("ul", this.panel), sorted, part => part.name, part => this.#make(part), update);
    return sorted.filter(part => part.state !== GOOD);
  }

  #brokers({ brokers }) {
    return Object.entries(brokers).map(([way, { connected, behind, since, error }]) => {
      const name = BROKERS[way] ?? `${way.toUpperCase()} broker`;
      if (!behind) this.#behind.delete(way);
      else if (!this.#behind.has(way)) this.#behind.set(way, Date.now());
      const lags = behind && Date.now() - this.#behind.get(way) > 1000 * BEHIND_SECONDS;
      const away = since ? `not connected for ${lasting(secondsSince(since))}` : "not connected";
      const text = [connected ? "connected" : away, behind ? `${many(behind, "topic")} behind` : ""];
      const why = error ? `: ${error}` : "";
      return { name, state: connected ? (lags ? SLOW : GOOD) : BAD, text: text.filter(Boolean).join(", ") + why };
    });
  }

  #make({ name }) {
    const button = element("button", { type: "button", hidden: true }, "Show them");
    button.addEventListener("click", this.lead);
    return element("li", {}, element("span", { class: "badge" }), element("strong", {}, name),
      element("span", { class: "what" }), button);
  }
}

function update(row, { name, state, text }) {
  const badge = find(".badge", row);
  setText(badge, WORDS[state]);
  setAttribute(badge, "data-state", state);
  setText(find(".what", row), text);
  find("button", row).hidden = !(name === SOURCES && state !== GOOD);
}

const SOURCES = "Sources";

function sources({ topics, silent }) {
  const name = SOURCES;
  if (!topics) return { name, state: GOOD, text: "none has published yet" };
  if (!silent) return { name, state: GOOD, text: "all have sent something within 15 minutes" };
  return { name, state: SLOW, text: `nothing from ${many(silent, "host")} for 15 minutes, not even a heartbeat` };
}

function disk({ disk }) {
  if (!disk) return null;
  const part = disk.free / disk.size;
  const state = part < LITTLE_DISK ? BAD : part < LESS_DISK ? SLOW : GOOD;
  return { name: "Disk", state, text: `${bytes(disk.free)} of ${bytes(disk.size)} free` };
}

function store({ commit_queue: writes }, { stream, free }) {
  const troubled = stream && (!stream.connected || stream.trouble || free);
  const state = troubled ? BAD : writes > MANY_WRITES ? SLOW : GOOD;
  const text = troubled ? "see the nodes" : writes ? `${many(writes, "write")} wait` : "no write waits";
  return { name: stream ? "NATS" : "Database", state, text };
}

function queues({ delivery_queue: deliveries, live_queue: live, connections, version, started }) {
  const waiting = deliveries ? `${many(deliveries, "delivery", "deliveries")} wait` : "no delivery waits";
  const unread = live ? `, ${bytes(live)} wait in them` : "";
  return [
    { name: "Callbacks", state: deliveries > MANY_DELIVERIES ? SLOW : GOOD, text: waiting },
    { name: "Connections", state: GOOD, text: `${count(connections)} open${unread}` },
    { name: "Version", state: GOOD, text: `${version}, up ${lasting(secondsSince(started))}` },
  ];
}
