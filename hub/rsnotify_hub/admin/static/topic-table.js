/** The table of topics. */

import { cell, element, find, nextStep, setAttribute, setText, showEach, showEmpty, showPair } from "./dom.js";
import { ago, bytes, connectionCounts, counted, formatDateTime, rate } from "./formatting.js";
import { drawSparkline, makeSparkline, RateHistory } from "./sparkline.js";
import { openLink, printable, uriParts } from "./uris.js";

/** Number of rate histories to remember. This is more than the number of topics shown. */
const MAX_HISTORIES = 2000;

export class TopicTable {
  #histories = new Map();

  /**
   * @param {Element} panel its panel
   * @param {function(string): void} choose called with the topic that the user selects
   */
  constructor(panel, choose) {
    this.panel = panel;
    this.body = find("tbody", panel);
    this.choose = choose;
  }

  /**
   * @param {{topics: object[], total: ?number, next: ?string, admin: boolean, missing: string}} page
   *   the response of the admin API or the public list; `missing` states how many nodes responded
   * @param {{topic: ?string, search: string, silent: boolean}} wanted the user's choices
   */
  show({ topics, total = topics.length, next, admin, missing }, { topic: only, search, silent }) {
    for (const topic of topics) this.#remember(topic);
    setAttribute(this.panel, "data-admin", admin);
    const shown = topics.filter(each => contains([each.topic], search) && [null, each.topic].includes(only));
    if (!admin && search) total = shown.length;
    find("select", this.panel).hidden = !admin;
    // Sort by name, so that rows stay in place while rates change.
    shown.sort((one, other) => (nameOf(one) < nameOf(other) ? -1 : 1));
    showEach(this.body, shown, each => each.topic, each => this.#makeRow(each), (row, each) =>
      this.#update(row, each, only));
    const amount = next && total === topics.length ? `the latest ${total}` : counted(total, "topic");
    const listeners = missing ? ` · listeners ${missing}` : "";
    setText(find(".amount", this.panel), topics.length ? amount + listeners : "");
    find("table", this.panel).hidden = shown.length === 0;
    const parts = only ? ["This topic no longer exists."]
      : search || silent ? ["No topic matches."] : [EMPTY, nextStep(publish())];
    showEmpty(find(".empty", this.panel), ...(shown.length ? [] : parts));
    find(".more", this.panel).hidden = Boolean(only || (search && !admin)) || !next;
  }

  #remember({ topic, rate }) {
    if (rate === undefined) return;
    if (!this.#histories.has(topic)) this.#histories.set(topic, new RateHistory());
    if (this.#histories.size > MAX_HISTORIES) this.#histories.delete(this.#histories.keys().next().value);
    this.#histories.get(topic).add(rate);
  }

  #makeRow({ topic }) {
    const spoken = { "aria-label": printable(topic), title: `Show only ${printable(topic)}` };
    const name = element("button", { type: "button", class: "uri choose", ...spoken }, ...uriParts(topic));
    name.addEventListener("click", () => this.choose(topic));
    return element("tr", { role: "row" },
      cell("name", null, name, openLink(topic)),
      cell("rate", "Rate", makeSparkline(), element("span", { class: "figure" })),
      cell("heard number", "Last fragment", element("time")),
      cell("listening number", "Subscribers", element("span"), element("span", { class: "second" })),
      cell("log number", "Log", element("span"), element("span", { class: "second" })),
    );
  }

  #update(row, topic, only) {
    const heard = find(".heard time", row);
    setAttribute(find(".choose", row), "aria-pressed", String(topic.topic === only));
    setText(heard, ago(topic.received) + (topic.silent ? " · silent" : ""));
    setAttribute(row, "data-silent", Boolean(topic.silent));
    setAttribute(heard, "datetime", topic.received);
    setAttribute(heard, "title", formatDateTime(topic.received));
    showPair(find(".log", row), [counted(topic.kept, "fragment"), bytes(topic.bytes ?? topic.size)]);
    if (topic.rate === undefined) return;
    setText(find(".rate .figure", row), `${rate(topic.rate)}/s`);
    setAttribute(row, "data-live", topic.rate > 0);
    drawSparkline(find(".sparkline", row), this.#histories.get(topic.topic).values);
    showPair(find(".listening", row), listeners(topic));
  }
}

const EMPTY = "Nothing was published yet. A topic appears here with its first fragment. To publish a folder, run:";
const publish = () =>
  `rsnotify source FOLDER --base-url https://source.example/ --hub ${new URL(".", document.baseURI).href}`;

/** Return whether any of the texts contains the search string, ignoring case. */
export const contains = (texts, search) => texts.some(text => text.toLowerCase().includes(search.toLowerCase()));

const nameOf = ({ topic }) => topic.replace(/^https?:/, "");

function listeners(topic) {
  const { websockets, event_streams, subscriptions } = topic;
  if (!websockets && !event_streams && !subscriptions) return ["none", ""];
  return [connectionCounts(topic).join(" · "), counted(subscriptions, "callback")];
}
