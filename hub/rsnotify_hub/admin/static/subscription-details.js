/** The dialog with a subscription, its last delivery attempts, and the admin's operations. */

import { element, find, setAttribute, setText, showEach } from "./dom.js";
import { ago, bytes, formatDateTime, formatDuration, fromNow } from "./formatting.js";
import { act, get } from "./requests.js";
import { failureText, lagTexts, shortId, showState } from "./subscription-table.js";
import { printable, uriLink } from "./uris.js";

const HOUR_SECONDS = 3600;
const EARLIEST = new Date(0).toISOString();

export class SubscriptionDetails {
  #id = null;
  #suspended = null;
  #revealed = false;
  #isNew = false;

  /**
   * @param {HTMLDialogElement} dialog the dialog
   * @param {function(string): void} done called with a message after an operation
   * @param {function(?string): void} watch called with the id of the subscription to poll
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
    this.#showAttempts([]);
    this.#showProblem("");
    this.watch(id);
    this.dialog.showModal();
  }

  /**
   * Update the open subscription.
   * @param {?{subscription: ?object, callback: string, attempts: object[], since: ?string, problem: ?string}} found
   *   the response of the admin API; if there is a problem, the dialog keeps its content
   */
  refresh(found) {
    if (this.#id === null || !found) return;
    if (found.problem) return this.#showProblem(found.problem);
    const { subscription, callback, attempts, since } = found;
    if (subscription.id !== this.#id) return;
    this.#showFacts(subscription, callback);
    this.#showAttempts(attempts);
    setText(find(".since", this.dialog), since ? `Since the hub started on ${formatDateTime(since)}.` : "");
    this.#isNew = false;
    // Replace the buttons only if necessary, so that none changes just before the user clicks it.
    if (this.#suspended !== (subscription.state === "suspended")) this.#showActions(subscription);
  }

  #showProblem(text) {
    setText(find(".problem", this.dialog), printable(text));
  }

  #showFacts(subscription, callback) {
    const rows = [...facts(subscription), ["Callback", this.#callbackElement(subscription, callback)]];
    showEach(find("dl", this.dialog), rows, ([name]) => name,
      ([name]) => element("div", {}, element("dt", {}, name), element("dd")),
      (row, [, value]) => {
        const place = find("dd", row);
        if (typeof value === "string") setText(place, value);
        else if (place.textContent !== value.textContent) place.replaceChildren(value);
      });
  }

  /** Hide the complete callback, which may contain secrets, until the user reveals it. */
  #callbackElement({ callback: redacted }, callback) {
    if (this.#revealed) return element("bdi", { class: "whole" }, printable(callback));
    const button = element("button", { type: "button", class: "reveal" }, "Show all");
    button.addEventListener("click", () => {
      this.#revealed = true;
      const shown = element("bdi", { class: "whole", tabindex: "-1" }, printable(callback));
      button.parentElement.replaceWith(shown);
      shown.focus();
    });
    return element("span", {}, element("bdi", {}, printable(redacted)), " ", button);
  }

  #showAttempts(attempts) {
    find(".empty", this.dialog).hidden = attempts.length > 0;
    const key = ({ at, status, through }) => JSON.stringify([at, status, through]);
    const first = this.#isNew && attempts[0]?.delivered === false ? key(attempts[0]) : null;
    showEach(find(".attempts", this.dialog), attempts, key,
      attempt => makeAttempt(this.#id, attempt, key(attempt) === first),
      (row, { at }) => setText(find("time", row), ago(at)));
  }

  #showActions(subscription) {
    const suspended = (this.#suspended = subscription.state === "suspended");
    find(".actions", this.dialog).replaceChildren(
      this.#redeliverButton(),
      this.#actionButton(suspended ? "Resume" : "Suspend", suspended ? "resume" : "suspend"),
      this.#dropButton(),
    );
  }

  #redeliverButton() {
    const choices = [
      ["", "pending fragments"],
      [before(HOUR_SECONDS), "the last hour"],
      [before(24 * HOUR_SECONDS), "the last day"],
      [EARLIEST, "the whole log"],
    ];
    const select = element("select", { "aria-label": "What to redeliver" },
      ...choices.map(([value, text]) => element("option", { value }, text)));
    const button = element("button", { type: "button", class: "primary redeliver" }, "Redeliver");
    button.addEventListener("click", () => {
      const body = select.value ? { since: select.value } : {};
      this.#perform("POST", "/redeliver", body, "Redelivering.");
    });
    return element("p", { class: "joined" }, button, select);
  }

  #actionButton(text, action) {
    const button = element("button", { type: "button", class: action }, text);
    button.addEventListener("click", () =>
      this.#perform("POST", "/" + action, {}, action === "resume" ? "Resumed." : "Suspended."));
    return button;
  }

  /** Return a button that drops the subscription after two clicks, because this cannot be undone. */
  #dropButton() {
    const button = element("button", { type: "button", class: "danger drop" }, "Drop");
    button.addEventListener("click", () => {
      if (button.dataset.sure) return this.#perform("DELETE", "", null, "Dropped. The hub notifies the callback.");
      button.dataset.sure = "yes";
      setText(button, "Confirm drop");
    });
    return button;
  }

  async #perform(method, action, body, message) {
    this.#showProblem("");
    try {
      await act(method, `subscriptions/${this.#id}${action}`, body);
    } catch (error) {
      this.#showProblem(error.message);
      return;
    }
    if (method === "DELETE") this.dialog.close();
    this.done(message);
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
    ["Lease ends", `${fromNow(expires)}, ${formatDateTime(expires)}`],
    ["Consecutive failures", String(failures)],
    ["Next attempt", retry ? fromNow(retry) : "none scheduled"],
  ];
}

function makeAttempt(id, attempt, open) {
  const { at, status, delivered, seconds, size, excerpt } = attempt;
  const badge = element("span", { class: "badge" }, status === null ? "no answer" : String(status));
  setAttribute(badge, "data-state", delivered ? "active" : "given-up");
  const what = delivered ? "delivered" : failureText(attempt);
  const row = element("details", {},
    element("summary", {}, badge, element("span", { class: "what" }, what),
      element("span", { class: "size" }, `${bytes(size)} in ${seconds < 1 ? `${Math.round(1000 * seconds)} ms` : formatDuration(seconds)}`),
      element("time", { datetime: at, title: formatDateTime(at) })),
    ...(excerpt ? [element("h4", {}, "Response"), text("answer", "Response", excerpt)] : []),
    element("h4", {}, "Payload"), element("div", { class: "payload" }));
  row.addEventListener("toggle", () => row.open && showPayload(find(".payload", row), id, attempt));
  row.open = open;
  return element("li", {}, row);
}

/** Show the payload of an attempt, unless the log has already deleted it. */
async function showPayload(place, id, { after, through, size }) {
  if (place.dataset.known) return;
  place.dataset.known = "yes";
  try {
    const { text: sent } = await get(`admin/subscriptions/${id}/payload`, { after, through });
    if (sent === null) place.replaceChildren("The log no longer contains this payload.");
    else {
      const cut = sent.length < size && size > MAX_PAYLOAD_BYTES ? [`The first 16 kB of ${bytes(size)}`] : [];
      place.replaceChildren(text("sent", "Payload", sent), ...cut);
    }
  } catch (error) {
    delete place.dataset.known;
    place.replaceChildren(printable(error.message));
  }
}

/** Maximum number of bytes of a payload that the hub returns. */
const MAX_PAYLOAD_BYTES = 16 * 1024;

/** Return an element for multi-line text from a client, which can be scrolled by keyboard. */
const text = (name, label, content) =>
  element("pre", { class: name, tabindex: "0", role: "group", "aria-label": label },
    content.split(/\r?\n/).map(printable).join("\n"));
