/** The verdict at the top of the page: whether all subscribers receive and, if not, why. */

import { element, find, setAttribute, setText, showEach } from "./dom.js";
import { bytes, count, counted, formatDuration, hubNow, secondsSince, shortTime } from "./formatting.js";
import { failureText, shortId, showState } from "./subscription-table.js";
import { countTroubled } from "./tiles.js";
import { printable, uriParts } from "./uris.js";

export class Verdict {
  /**
   * @param {Element} panel the panel
   * @param {function(): void} lead called to show everything that is in trouble
   * @param {function(string): void} open called with the id of the subscription to open
   */
  constructor(panel, lead, open) {
    this.panel = panel;
    this.open = open;
    find(".lead", panel).addEventListener("click", lead);
  }

  /**
   * @param {object} seen the data; only an admin sees the verdict
   * @param {Array<{name: string, state: string, text: string}>} parts the parts of the hub in trouble
   */
  show({ admin, status, troubles = [] }, parts) {
    this.panel.hidden = !admin;
    if (!admin) return;
    const failing = countTroubled(status), all = status.subscribers, { "given-up": bad = 0, retrying = 0, suspended = 0 } = status.states;
    const others = status.troubled - failing - status.slow;
    const worse = bad || parts.some(({ state }) => state === "given-up");
    // The failing subscriptions are listed instead of this part.
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
      others && counted(others, "part of the hub", "parts of the hub"),
      all ? null : "see below how to begin", `up ${formatDuration(secondsSince(status.started))}`, `log ${bytes(status.log_bytes)}`,
    ];
    setText(find(".note", this.panel), notes.filter(Boolean).join(" · "));
    const shown = failing ? troubles : [];
    const rows = [...shown.map(each => ({ key: each.id, ...each })), ...parts.map(each => ({ key: each.name, ...each }))];
    showEach(find("ul", this.panel), rows, row => row.key, row => this.#make(row), update);
    const more = failing - shown.length;
    setText(find(".rest", this.panel), more > 0 && shown.length ? `and ${counted(more, "other subscription")}` : "");
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
  if (failing) return `${count(failing)} of ${counted(all, "subscriber")} ${failing === 1 ? "does" : "do"} not receive`;
  if (status.slow) return `${count(status.slow)} of ${counted(all, "subscriber")} ${status.slow === 1 ? "does" : "do"} not keep up`;
  if (parts) return all ? "All subscribers receive, but the hub needs attention" : "The hub needs attention";
  if (all) return "All subscribers receive";
  return status.topics ? "Nobody is subscribed yet" : "No Source has published yet, and nobody is subscribed";
}

function update(row, { state, word, text, lag_seconds: lag, last_failure: failure, failures }) {
  showState(find(".badge", row), state);
  if (word) setText(find(".badge", row), word);
  if (text !== undefined) return setText(find(".why", row), text);
  const tries = failures > 1 ? ` (${counted(failures, "try", "tries")})` : "";
  setText(find(".since", row), lag ? `since ${shortTime(1000 * (hubNow() - lag))}, for ${formatDuration(lag)}` : "");
  setText(find(".why", row), failure ? failureText(failure) + tries : "");
}
