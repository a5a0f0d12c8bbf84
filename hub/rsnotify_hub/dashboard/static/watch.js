/**
 * Polls the state of the hub: passes the data to `show`, and whether the hub answers to `tell`.
 * It does not poll while the page is hidden.
 */

import { get, isAdmin, Refused, token } from "./hub.js";

const EVERY_MILLISECONDS = 750;
const LONGEST_WAIT_MILLISECONDS = 5000;

/** How long a round waits for subscriptions, if earlier ones can be shown. */
const DELIVERIES_MILLISECONDS = 1500;
const LATE = "Some nodes have not answered yet: this is what they said before.";

/** If there are more subscriptions, they are requested in every fourth round only. */
const MANY_SUBSCRIPTIONS = 1000;

export class Watch {
  #admin = null;
  #failures = 0;
  #timer = null;
  #round = 0;
  #deliveries = null;
  #late = null;

  /**
   * @param {function(object): void} show called with the data
   * @param {function(string, ?Error): void} tell called with `live`, or with `lost` and the error
   * @param {{topic: ?string, topicRows: number, subscriptionRows: number}} wanted the number of rows, and the topic
   */
  constructor(show, tell, wanted) {
    this.show = show;
    this.tell = tell;
    this.wanted = wanted;
    addEventListener("visibilitychange", () => (document.hidden ? this.#rest() : this.now()));
    addEventListener("online", () => this.now());
  }

  /** Poll now; the answers to earlier requests are ignored. */
  now() {
    clearTimeout(this.#timer);
    this.#ask(++this.#round);
  }

  /** Check again whether the user is an admin, after a token was added or removed. */
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
      token.forget(); // it was withdrawn
      return { admin: false, ...(await get("topics", { limit: topicRows })) };
    }
    const [status, nodes, topics, deliveries] = await Promise.all([
      get("admin/status"),
      get("admin/nodes"),
      get("admin/topics", { sort: "received", limit: topicRows, topic }),
      this.#askDeliveries(),
    ]);
    return { admin: true, status, nodes, ...topics, ...deliveries };
  }

  async #askDeliveries() {
    const { topic, subscriptionRows: limit } = this.wanted;
    const same = this.#deliveries?.topic === topic && this.#deliveries.limit === limit;
    const many = this.#deliveries?.subscriptions.total > MANY_SUBSCRIPTIONS;
    if (same && many && this.#round % 4) return this.#deliveries;
    const answer = (same && this.#late) || this.#getDeliveries(topic, limit);
    this.#late = null;
    if (!same) return answer;
    answer.catch(() => {}); // if it comes too late, the next round fails as well
    const late = new Promise(resolve => setTimeout(resolve, DELIVERIES_MILLISECONDS, null));
    const found = await Promise.race([answer, late]);
    if (found) return found;
    this.#late = answer;
    return { ...this.#deliveries, problem: LATE };
  }

  /** While shards of a cluster have no owner, this takes seconds, or is refused. */
  async #getDeliveries(topic, limit) {
    try {
      const [subscriptions, { failures }] = await Promise.all([
        get("admin/subscriptions", { sort: "trouble", limit, topic }),
        get("admin/failures"),
      ]);
      return (this.#deliveries = { topic, limit, subscriptions, failures });
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 503) throw error;
      const last = this.#deliveries;
      const same = last?.topic === topic && last.limit === limit;
      return { ...(same ? last : {}), problem: `Not up to date: ${error.message}.` };
    }
  }

  #failed(error) {
    // After a restart the user may no longer be an admin, so the next attempt checks that again.
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
