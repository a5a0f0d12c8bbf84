/** The dialog with one subscription and the operations of an admin. */

import { element, find, setText } from "./dom.js";
import { ago, hence, whenever } from "./figures.js";
import { act } from "./hub.js";
import { failureText, lagTexts, showState } from "./subscriptions.js";
import { printable, uriLink } from "./uris.js";

const HOUR_SECONDS = 3600;
const EARLIEST = new Date(0).toISOString();

export class Details {
  #id = null;
  #suspended = null;

  /**
   * @param {HTMLDialogElement} dialog the dialog
   * @param {function(string): void} done called with a sentence after an operation
   */
  constructor(dialog, done) {
    this.dialog = dialog;
    this.done = done;
    find(".cancel", dialog).addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => (this.#id = null));
  }

  /** Show a subscription. */
  open(subscription) {
    this.#id = subscription.id;
    this.#suspended = null;
    setText(find(".problem", this.dialog), "");
    this.refresh([subscription]);
    this.dialog.showModal();
  }

  /** Update the open subscription; if it is not in the list, it keeps its last state. */
  refresh(subscriptions) {
    if (this.#id === null) return;
    const found = subscriptions.find(each => each.id === this.#id);
    if (!found) return;
    setText(find("h2", this.dialog), printable(found.host));
    find("dl", this.dialog).replaceChildren(...facts(found));
    const excerpt = found.last_failure?.excerpt ?? "";
    find("pre", this.dialog).hidden = excerpt === "";
    setText(find("pre", this.dialog), excerpt.split(/\r?\n/).map(printable).join("\n"));
    // Only then, so that no button changes under a finger while the state changes back and forth.
    if (this.#suspended !== (found.state === "suspended")) this.#offer(found);
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
      if (button.dataset.sure) return this.#do("DELETE", "", null, "Dropped, and its callback is told.");
      button.dataset.sure = "yes";
      setText(button, "Really drop it");
    });
    return button;
  }

  async #do(method, action, body, told) {
    const problem = find(".problem", this.dialog);
    setText(problem, "");
    try {
      await act(method, `subscriptions/${this.#id}${action}`, body);
    } catch (error) {
      setText(problem, printable(error.message));
      return;
    }
    if (method === "DELETE") this.dialog.close();
    this.done(told);
  }
}

const before = seconds => new Date(Date.now() - 1000 * seconds).toISOString();

function facts(subscription) {
  const { topic, state, expires, failures, retry_at: retry, last_failure: failure } = subscription;
  const badge = element("span", { class: "badge" });
  showState(badge, state);
  const rows = [
    ["State", badge],
    ["Topic", uriLink(topic)],
    ["Lag", lagTexts(subscription).filter(Boolean).join(", ")],
    ["Lease ends", `${hence(expires)}, ${whenever(expires)}`],
    ["Failed in a row", String(failures)],
    ["Next try", retry ? hence(retry) : "none is due"],
    ["Last error", failure ? `${failureText(failure)}, ${ago(failure.at)}` : "none"],
  ];
  return rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
}
