/** The table of WebSub subscriptions. */

import { cell, element, find, nextStep, setAttribute, setText, showEach, showEmpty, showPair } from "./dom.js";
import { count, counted, formatDateTime, formatDuration, fromNow } from "./formatting.js";
import { printable, uriParts } from "./uris.js";

/** The states in order of severity. */
const STATES = ["given-up", "retrying", "suspended", "active"];

const WORDS = { "given-up": "given up" };

export class SubscriptionTable {
  /**
   * @param {Element} panel its panel
   * @param {function(string): void} open called with the id of the subscription to open
   */
  constructor(panel, open) {
    this.panel = panel;
    this.body = find("tbody", panel);
    this.open = open;
  }

  /**
   * @param {{subscriptions: object[], total: number, next: ?string}} page the response of the admin API
   * @param {boolean} narrowed whether the user has filtered the subscriptions
   */
  show({ subscriptions, total, next }, narrowed) {
    const sorted = [...subscriptions].sort(byTrouble);
    showEach(this.body, sorted, each => each.id, each => this.#makeRow(each), updateRow);
    setText(find(".amount", this.panel), total ? count(total) : "");
    find(".more", this.panel).hidden = !next;
    find("select", this.panel).hidden = false;
    if (sorted.length) this.#explain();
    else if (narrowed) this.#explain("No subscription matches.");
    else this.#explain("No Destination has subscribed over WebSub. To follow a Source, run:",
      nextStep("rsnotify follow https://source.example/ FOLDER"));
  }

  /** Ask the user to sign in. */
  hide() {
    this.#empty("Sign in as an admin to see who subscribes, who lags, and why.");
  }

  /** Show that the subscriptions are not known yet. */
  wait() {
    this.#empty("Waiting for all nodes to respond.");
  }

  #empty(text) {
    showEach(this.body, [], each => each, null, null);
    setText(find(".amount", this.panel), "");
    find(".more", this.panel).hidden = find("select", this.panel).hidden = true;
    this.#explain(text);
  }

  #explain(...parts) {
    find("table", this.panel).hidden = parts.length > 0;
    showEmpty(find(".empty", this.panel), ...parts);
  }

  #makeRow(subscription) {
    const details = element("button", { type: "button", class: "details" }, "Details");
    details.addEventListener("click", () => this.open(subscription.id));
    const callback = printable(subscription.callback || subscription.host);
    const name = `Details of ${shortId(subscription.id)}, ${callback}, ${printable(subscription.topic)}`;
    setAttribute(details, "aria-label", name);
    return element("tr", { role: "row" },
      cell("state", null, element("span", { class: "badge" })),
      cell("name", null,
        element("span", { class: "callback" }, element("bdi", {}, callback), " ",
          element("code", { class: "id" }, shortId(subscription.id))),
        element("span", { class: "uri topic" }, ...uriParts(subscription.topic))),
      cell("lag number", "Lag", element("span"), element("span", { class: "second" })),
      cell("error", "Last error", element("span")),
      cell("lease number", "Lease ends", element("time")),
      cell("act", null, details),
    );
  }
}

/** Return a prefix of an id that is long enough to be unique. */
export const shortId = id => id.slice(0, 8);

export const failureText = ({ status, reason }) =>
  printable(status === null || reason.includes(status) ? reason : `${status}: ${reason}`);

/** Show a state in a badge. */
export function showState(badge, state) {
  setText(badge, WORDS[state] ?? printable(state));
  setAttribute(badge, "data-state", state);
}

/** Format the lag of a subscription: the duration, and the number of fragments. */
export function lagTexts({ lag_seconds: seconds, behind }) {
  return behind || seconds ? [formatDuration(seconds), counted(behind, "fragment")] : ["none", ""];
}

function updateRow(row, subscription) {
  const { state, last_failure: failure, failures, expires } = subscription;
  const lease = find(".lease time", row);
  showState(find(".badge", row), state);
  showPair(find(".lag", row), lagTexts(subscription));
  setAttribute(row, "data-state", state);
  const tries = failures > 1 ? ` (${counted(failures, "try", "tries")})` : "";
  setText(find(".error span", row), failure ? failureText(failure) + tries : "none");
  setText(lease, fromNow(expires));
  setAttribute(lease, "datetime", expires);
  setAttribute(lease, "title", formatDateTime(expires));
}

function byTrouble(one, other) {
  const trouble = STATES.indexOf(one.state) - STATES.indexOf(other.state);
  return trouble || one.host.localeCompare(other.host) || (one.id < other.id ? -1 : 1);
}
