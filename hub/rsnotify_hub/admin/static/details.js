/** The dialog with one subscription, its last attempts, and the operations of an admin. */

import { element, find, setAttribute, setText, showEach } from "./dom.js";
import { ago, bytes, hence, lasting, whenever } from "./figures.js";
import { act, get } from "./hub.js";
import { failureText, lagTexts, shortId, showState } from "./subscriptions.js";
import { printable, uriLink } from "./uris.js";

const HOUR_SECONDS = 3600;
const EARLIEST = new Date(0).toISOString();

export class Details {
  #id = null;
  #suspended = null;
  #revealed = false;
  #isNew = false;

  /**
   * @param {HTMLDialogElement} dialog the dialog
   * @param {function(string): void} done called with a sentence after an operation
   * @param {function(?string): void} watch called with the id of the subscription that is shown
   */
  constructor(dialog, done, watch) {
    this.dialog = dialog;
    this.done = done;
    this.watch = watch;
    find(".cancel", dialog).addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => watch((this.#id = null)));
  }

  /** Show a subscription. */
  open(id) {
    this.#id = id;
    this.#suspended = null;
    this.#revealed = false;
    this.#isNew = true;
    setText(find("h2", this.dialog), `Subscription ${shortId(id)}`);
    find(".actions", this.dialog).replaceChildren();
    showEach(find("dl", this.dialog), [], each => each);
    this.#attempts([]);
    this.#problem("");
    this.watch(id);
    this.dialog.showModal();
  }

  /**
   * Update the open subscription.
   * @param {?{subscription: ?object, callback: string, attempts: object[], since: ?string, problem: ?string}} found
   *   the answer of the admin API; what cannot be had now keeps its last state
   */
  refresh(found) {
    if (this.#id === null || !found) return;
    if (found.problem) return this.#problem(found.problem);
    const { subscription, callback, attempts, since } = found;
    if (subscription.id !== this.#id) return;
    this.#showFacts(subscription, callback);
    this.#attempts(attempts);
    setText(find(".since", this.dialog), since ? `Kept since the hub started, on ${whenever(since)}.` : "");
    this.#isNew = false;
    // Only then, so that no button changes under a finger while the state changes back and forth.
    if (this.#suspended !== (subscription.state === "suspended")) this.#offer(subscription);
  }

  #problem(text) {
    setText(find(".problem", this.dialog), printable(text));
  }

  #showFacts(subscription, callback) {
    const rows = [...facts(subscription), ["Callback", this.#callback(subscription, callback)]];
    showEach(find("dl", this.dialog), rows, ([name]) => name,
      ([name]) => element("div", {}, element("dt", {}, name), element("dd")),
      (row, [, value]) => {
        const place = find("dd", row);
        if (typeof value === "string") setText(place, value);
        else if (place.textContent !== value.textContent) place.replaceChildren(value);
      });
  }

  /** It may contain secrets, so it is not on the screen unless the user wants to see it. */
  #callback({ callback: redacted }, callback) {
    if (this.#revealed) return element("bdi", { class: "whole" }, printable(callback));
    const button = element("button", { type: "button", class: "reveal" }, "Show all of it");
    button.addEventListener("click", () => {
      this.#revealed = true;
      const shown = element("bdi", { class: "whole", tabindex: "-1" }, printable(callback));
      button.parentElement.replaceWith(shown);
      shown.focus();
    });
    return element("span", {}, element("bdi", {}, printable(redacted)), " ", button);
  }

  #attempts(attempts) {
    find(".empty", this.dialog).hidden = attempts.length > 0;
    const key = ({ at, status, through }) => JSON.stringify([at, status, through]);
    const first = this.#isNew && attempts[0]?.delivered === false ? key(attempts[0]) : null;
    showEach(find(".attempts", this.dialog), attempts, key,
      attempt => makeAttempt(this.#id, attempt, key(attempt) === first),
      (row, { at }) => setText(find("time", row), ago(at)));
  }

  #offer(subscription) {
    const suspended = (this.#suspended = subscription.state === "suspended");
    find(".actions", this.dialog).replaceChildren(
      this.#redelivery(),
      this.#button(suspended ? "Resume" : "Suspend", suspended ? "resume" : "suspend"),
      this.#dropping(),
    );
  }

  #redelivery() {
    const choices = [
      ["", "what waits"],
      [before(HOUR_SECONDS), "the last hour"],
      [before(24 * HOUR_SECONDS), "the last day"],
      [EARLIEST, "all that the log has"],
    ];
    const select = element("select", { "aria-label": "What to redeliver" },
      ...choices.map(([value, text]) => element("option", { value }, text)));
    const button = element("button", { type: "button", class: "primary redeliver" }, "Redeliver");
    button.addEventListener("click", () => {
      const body = select.value ? { since: select.value } : {};
      this.#do("POST", "/redeliver", body, "It is being delivered again.");
    });
    return element("p", { class: "joined" }, button, select);
  }

  #button(text, action) {
    const button = element("button", { type: "button", class: action }, text);
    button.addEventListener("click", () =>
      this.#do("POST", "/" + action, {}, action === "resume" ? "Resumed." : "Suspended."));
    return button;
  }

  /** Drop a subscription after two clicks, since only its subscriber can restore it. */
  #dropping() {
    const button = element("button", { type: "button", class: "danger drop" }, "Drop");
    button.addEventListener("click", () => {
      if (button.dataset.sure) return this.#do("DELETE", "", null, "Dropped; the hub notifies its callback.");
      button.dataset.sure = "yes";
      setText(button, "Really drop it");
    });
    return button;
  }

  async #do(method, action, body, told) {
    this.#problem("");
    try {
      await act(method, `subscriptions/${this.#id}${action}`, body);
    } catch (error) {
      this.#problem(error.message);
      return;
    }
    if (method === "DELETE") this.dialog.close();
    this.done(told);
  }
}

const before = seconds => new Date(Date.now() - 1000 * seconds).toISOString();

function facts(subscription) {
  const { id, topic, state, expires, failures, retry_at: retry } = subscription;
  const badge = element("span", { class: "badge" });
  showState(badge, state);
  return [
    ["State", badge],
    ["Topic", uriLink(topic)],
    ["Id", id],
    ["Lag", lagTexts(subscription).filter(Boolean).join(", ")],
    ["Lease ends", `${hence(expires)}, ${whenever(expires)}`],
    ["Failed in a row", String(failures)],
    ["Next try", retry ? hence(retry) : "none is due"],
  ];
}

function makeAttempt(id, attempt, open) {
  const { at, status, delivered, seconds, size, excerpt } = attempt;
  const badge = element("span", { class: "badge" }, status === null ? "no answer" : String(status));
  setAttribute(badge, "data-state", delivered ? "active" : "given-up");
  const what = delivered ? "delivered" : failureText(attempt);
  const row = element("details", {},
    element("summary", {}, badge, element("span", { class: "what" }, what),
      element("span", { class: "size" }, `${bytes(size)} in ${seconds < 1 ? `${Math.round(1000 * seconds)} ms` : lasting(seconds)}`),
      element("time", { datetime: at, title: whenever(at) })),
    ...(excerpt ? [element("h4", {}, "Response"), text("answer", "Response", excerpt)] : []),
    element("h4", {}, "Payload"), element("div", { class: "payload" }));
  row.addEventListener("toggle", () => row.open && showPayload(find(".payload", row), id, attempt));
  row.open = open;
  return element("li", {}, row);
}

/** What it has sent is read from the log, which does not keep everything. */
async function showPayload(place, id, { after, through, size }) {
  if (place.dataset.known) return;
  place.dataset.known = "yes";
  try {
    const { text: sent } = await get(`admin/subscriptions/${id}/payload`, { after, through });
    if (sent === null) place.replaceChildren("The log has not all of it any more.");
    else {
      const cut = sent.length < size && size > CUT_BYTES ? [`The first 16 kB of ${bytes(size)}`] : [];
      place.replaceChildren(text("sent", "Payload", sent), ...cut);
    }
  } catch (error) {
    delete place.dataset.known;
    place.replaceChildren(printable(error.message));
  }
}

/** The hub shows no more of a payload. */
const CUT_BYTES = 16 * 1024;

/** Return a text of a client with its lines; it can be scrolled by keyboard. */
const text = (name, label, content) =>
  element("pre", { class: name, tabindex: "0", role: "group", "aria-label": label },
    content.split(/\r?\n/).map(printable).join("\n"));
