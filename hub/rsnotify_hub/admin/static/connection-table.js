/** The table of open WebSockets and event streams. */

import { cell, element, find, setAttribute, setText, showEach, showEmpty, showPair } from "./dom.js";
import { ago, bytes, count, counted, formatDateTime, formatDuration } from "./formatting.js";
import { act } from "./requests.js";
import { shortId } from "./subscription-table.js";
import { printable, uriParts } from "./uris.js";

/** Badges have the styles of the states of subscriptions. */
const LOOKS = { live: "active", replaying: "suspended", slow: "retrying" };
const STATES = { replaying: "catching up" };
const TRANSPORTS = { websocket: "WebSocket", sse: "event stream" };
const ROLES = { none: "no frame yet", both: "subscriber and Source", publisher: "Source" };

export class ConnectionTable {
  /**
   * @param {Element} panel the panel of the table
   * @param {function(string): void} done called with a message after a connection was closed
   */
  constructor(panel, done) {
    this.panel = panel;
    this.body = find("tbody", panel);
    this.done = done;
  }

  /**
   * @param {{admin: boolean, connections: object, missing: string}} seen the data for an admin
   * @param {{topic: ?string, search: string}} wanted the user's choices
   */
  show({ admin, connections: page, missing }, { topic, search }) {
    this.panel.hidden = !admin || !page;
    if (this.panel.hidden) return;
    const { connections, total, next, brokers } = page;
    showEach(this.body, connections, each => each.id, each => this.#makeRow(each), updateRow);
    setText(find(".amount", this.panel), [total ? count(total) : "", missing].filter(Boolean).join(" "));
    find(".more", this.panel).hidden = !next;
    find("table", this.panel).hidden = connections.length === 0;
    const none = topic || search ? "No connection matches." : "Nobody is connected over WebSocket, and no event stream is open.";
    showEmpty(find(".empty", this.panel), ...(connections.length ? [] : [none]));
    setText(find(".brokers", this.panel), brokers.map(broker =>
      `Readers over ${broker.toUpperCase()} connect to the broker, so they are not listed.`).join(" "));
  }

  #makeRow(connection) {
    const { id, transport, address, agent } = connection;
    return element("tr", { role: "row" },
      cell("state", null, element("span", { class: "badge" })),
      cell("name", null,
        element("span", { class: "callback" }, element("bdi", {}, printable(address)), " ",
          element("code", { class: "id" }, shortId(id))),
        element("span", { class: "topic" }, `${TRANSPORTS[transport] ?? printable(transport)} · `,
          element("span", { class: "does" }), agent ? ` · ${printable(agent)}` : ""),
        element("span", { class: "uri topic second" })),
      cell("lag number", "Behind", element("span"), element("span", { class: "second" })),
      cell("log number", "Fragments", element("span"), element("span", { class: "second" })),
      cell("heard number", "Since", element("time")),
      cell("act", null, this.#closeButton(connection)),
    );
  }

  /** Return a button that closes a connection after two clicks. */
  #closeButton({ id, address }) {
    const label = `Close the connection ${shortId(id)} of ${printable(address)}`;
    const button = element("button", { type: "button", class: "close", "aria-label": label }, "Close");
    const ask = sure => {
      setAttribute(button, "data-sure", sure);
      setAttribute(button, "aria-label", sure ? `Confirm: ${label}` : label);
      setText(button, sure ? "Confirm" : "Close");
    };
    button.addEventListener("blur", () => ask(false));
    button.addEventListener("click", async () => {
      if (!("sure" in button.dataset)) return ask(true);
      const problem = find(".problem", this.panel);
      setText(problem, "");
      try {
        await act("DELETE", `connections/${id}`);
        this.done("Closed. The client may reconnect.");
      } catch (error) {
        setText(problem, printable(error.message));
      }
    });
    return button;
  }
}

function updateRow(row, { role, state, since, topics, topic_count: all, lag_seconds: lag, behind, unsent, sent, received }) {
  const badge = find(".badge", row), time = find("time", row), uri = find(".uri", row);
  setText(badge, STATES[state] ?? state);
  setAttribute(badge, "data-state", LOOKS[state]);
  setAttribute(row, "data-state", LOOKS[state]);
  setText(find(".does", row), ROLES[role] ?? role);
  const more = all > 1 ? ` and ${count(all - 1)} more` : "";
  if (uri.dataset.shown !== topics[0] + more) {
    uri.dataset.shown = topics[0] + more;
    uri.replaceChildren(...(topics.length ? uriParts(topics[0]) : []), more);
  }
  const waits = [behind ? counted(behind, "fragment") : "", unsent ? bytes(unsent) : ""].filter(Boolean).join(", ");
  showPair(find(".lag", row), role === "publisher" ? ["–", ""] : [lag ? formatDuration(lag) : waits ? "now" : "none", waits]);
  const texts = [role !== "publisher" ? `${count(sent)} sent` : "", received || role !== "subscriber" ? `${count(received)} received` : ""];
  showPair(find(".log", row), texts.filter(Boolean).concat("").slice(0, 2));
  setText(time, ago(since));
  setAttribute(time, "datetime", since);
  setAttribute(time, "title", formatDateTime(since));
}
