/**
 * What the hub says of itself, asked for again and again: what there is goes to `show`, and
 * whether the hub answers to `tell`. Nothing is asked for while nobody looks.
 */

import { get, isAdmin, token } from "./hub.js";

const EVERY_MILLISECONDS = 750;
const LONGEST_WAIT_MILLISECONDS = 5000;

/** More subscriptions than that are sorted for us in every fourth round only. */
const MANY_SUBSCRIPTIONS = 1000;

export class Watch {
  #admin = null;
  #failures = 0;
  #timer = null;
  #round = 0;
  #deliveries = null;

  /**
   * @param {function(object): void} show takes what the hub says
   * @param {function(string, ?Error): void} tell takes `live`, or `lost` and why
   * @param {{topic: ?string, topicRows: number, subscriptionRows: number}} wanted what to ask for
   */
  constructor(show, tell, wanted) {
    this.show = show;
    this.tell = tell;
    this.wanted = wanted;
    addEventListener("visibilitychange", () => (document.hidden ? this.#rest() : this.now()));
    addEventListener("online", () => this.now());
  }

  /** Ask now, whatever was asked for before: what is answered to that is not shown any more. */
  now() {
    clearTimeout(this.#timer);
    this.#ask(++this.#round);
  }

  /** Ask anew who looks: a token has come or gone. */
  signedInOrOut() {
    this.#admin = null;
    this.now();
  }

  async #ask(round) {
    let wait = EVERY_MILLISECONDS;
    try {
      const seen = await this.#look();
      if (round !== this.#round) return;
      this.#failures = 0;
      this.tell("live");
      this.show(seen);
    } catch (error) {
      if (round !== this.#round) return;
      wait = this.#failed(error);
    }
    if (!document.hidden) this.#timer = setTimeout(() => this.now(), wait);
  }

  async #look() {
    this.#admin ??= await isAdmin();
    const { topic, topicRows } = this.wanted;
    if (!this.#admin) {
      token.forget(); // where there is one, it has been withdrawn
      return { admin: false, ...(await get("topics", { limit: topicRows })) };
    }
    const [status, topics, deliveries] = await Promise.all([
      get("admin/status"),
      get("admin/topics", { sort: "received", limit: topicRows, topic }),
      this.#askDeliveries(),
    ]);
    return { admin: true, status, ...topics, ...deliveries };
  }

  async #askDeliveries() {
    const { topic, subscriptionRows: limit } = this.wanted;
    const same = this.#deliveries?.topic === topic && this.#deliveries.limit === limit;
    const many = this.#deliveries?.subscriptions.total > MANY_SUBSCRIPTIONS;
    if (same && many && this.#round % 4) return this.#deliveries;
    const [subscriptions, { failures }] = await Promise.all([
      get("admin/subscriptions", { sort: "trouble", limit, topic }),
      get("admin/failures"),
    ]);
    return (this.#deliveries = { topic, limit, subscriptions, failures });
  }

  #failed(error) {
    // Who was an admin may be none after a restart; who it is, is asked anew at the next try.
    this.#admin = null;
    this.tell("lost", error);
    this.#failures += 1;
    const longest = Math.min(LONGEST_WAIT_MILLISECONDS, 250 * 2 ** this.#failures);
    return longest * (0.5 + Math.random() / 2);
  }

  #rest() {
    clearTimeout(this.#timer);
    this.#round += 1;
  }
}
