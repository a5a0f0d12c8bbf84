/** The first answer of the page: whether everybody receives, who does not, since when, and why. */

import { element, find, setAttribute, setText, showEach } from "./dom.js";
import { bytes, count, hubNow, lasting, many, secondsSince, shortTime } from "./figures.js";
import { failureText, shortId, showState } from "./subscriptions.js";
import { troubled } from "./tiles.js";
import { printable, uriParts } from "./uris.js";

export class Verdict {
  /**
   * @param {Element} panel its panel
   * @param {function(): void} lead called when the user wants to see all that is in trouble
   * @param {function(string): void} open called with the id of the subscription that the user selects
   */
  constructor(panel, lead, open) {
    this.panel = panel;
    this.open = open;
    find(".lead", panel).addEventListener("click", lead);
  }

  /**
   * @param {object} seen the data for an admin; others see no verdict
   * @param {Array<{name: string, state: string, text: string}>} parts the parts of the hub in trouble
   */
  show({ admin, status, troubles = [] }, parts) {
    this.panel.hidden = !admin;
    if (!admin) return;
    const failing = troubled(status), all = status.subscribers, { "given-up": bad = 0, retrying = 0, suspended = 0 } = status.states;
    const others = status.troubled - failing - status.slow;
    const worse = bad || parts.some(({ state }) => state === "given-up");
    // Its subscriptions are shown instead of the part.
    if (failing) parts = parts.filter(({ name }) => name !== "Callbacks");
    const calm = all ? "active" : "idle";
    setAttribute(this.panel, "data-state", worse ? "given-up" : status.troubled ? "retrying" : calm);
    document.title = `${status.troubled ? `${count(status.troubled)} in trouble · ` : ""}rsnotify hub`;
    setText(find("h2", this.panel), sentence(status, failing));
    setText(find(".figure", this.panel), count(status.troubled));
    find(".lead", this.panel).hidden = status.troubled === 0;
    const notes = [
      bad && `${count(bad)} given up`, retrying && `${count(retrying)} retrying`, status.slow && `${count(status.slow)} slow`,
      suspended && `${count(suspended)} suspended by an admin`,
      others && many(others, "part of the hub", "parts of the hub"),
      all ? null : "the panels below say how to begin", `up ${lasting(secondsSince(status.started))}`, `log ${bytes(status.log_bytes)}`,
    ];
    setText(find(".note", this.panel), notes.filter(Boolean).join(" · "));
    const shown = failing ? troubles : [];
    const rows = [...shown.map(each => ({ key: each.id, ...each })), ...parts.map(each => ({ key: each.name, ...each }))];
    showEach(find("ul", this.panel), rows, row => row.key, row => this.#make(row), update);
    const more = failing - shown.length;
    setText(find(".rest", this.panel), more > 0 && shown.length ? `and ${many(more, "other subscription")}` : "");
  }

  #make({ id, callback, host, topic, name }) {
    const what = printable(name ?? (callback || host)), row = element("li", {},
      element("span", { class: "badge" }),
      element("div", { class: "who" }, element("bdi", { class: "callback" }, what),
        id ? element("span", { class: "uri topic" }, ...uriParts(topic)) : null),
      element("span", { class: "since" }),
      element("span", { class: "why" }));
    if (!id) return row;
    const label = `Details of ${shortId(id)}, ${what}, ${printable(topic)}`;
    const details = element("button", { type: "button", "aria-label": label }, "Details");
    details.addEventListener("click", () => this.open(id));
    row.append(details);
    return row;
  }
}

function sentence(status, failing) {
  const all = status.subscribers, parts = status.troubled - failing;
  if (failing) return `${count(failing)} of ${many(all, "subscriber")} ${failing === 1 ? "does" : "do"} not receive`;
  if (status.slow) return `${count(status.slow)} of ${many(all, "subscriber")} ${status.slow === 1 ? "does" : "do"} not keep up`;
  if (parts) return all ? "All subscribers receive, but the hub needs attention" : "The hub needs attention";
  if (all) return "All subscribers receive";
  return status.topics ? "Nobody is subscribed yet" : "No Source has published yet, and nobody is subscribed";
}

function update(row, { state, word, text, lag_seconds: lag, last_failure: failure, failures }) {
  showState(find(".badge", row), state);
  if (word) setText(find(".badge", row), word);
  if (text !== undefined) return setText(find(".why", row), text);
  const tries = failures > 1 ? ` (${many(failures, "try", "tries")})` : "";
  setText(find(".since", row), lag ? `since ${shortTime(1000 * (hubNow() - lag))}, for ${lasting(lag)}` : "");
  setText(find(".why", row), failure ? failureText(failure) + tries : "");
}
