/**
 * Polls the state of the hub: passes the data to `show`, and whether the hub answers to `tell`.
 * It does not poll while the page is hidden.
 */

import { get, isAdmin, Refused, token } from "./hub.js";

const EVERY_MILLISECONDS = 750;
const LONGEST_WAIT_MILLISECONDS = 5000;

/** How often the history is requested, which has one value a minute. */
const HISTORY_MILLISECONDS = 30_000;

/** How long a round waits for subscriptions, if earlier ones can be shown. */
const DELIVERIES_MILLISECONDS = 1500;
const LATE = "Some nodes have not answered yet: this is what they said before.";

/** If there are more subscriptions or connections, they are requested in every fourth round only. */
const MANY = 1000;

/** How many of the subscriptions in trouble the verdict shows. */
const SHOWN_TROUBLES = 3;

/** The public list of topics is searched in the page. */
const MOST_PUBLIC_TOPICS = 1000;

export class Watch {
  #admin = null;
  #failures = 0;
  #timer = null;
  #round = 0;
  #deliveries = null;
  #late = null;
  #history = null;
  #connections = null;

  /**
   * @param {function(object): void} show called with the data
   * @param {function(string, ?Error): void} tell called with `live`, or with `lost` and the error
   * @param {{topic: ?string, search: string, state: string, silent: boolean, topicRows: number,
   *   subscriptionRows: number, connectionRows: number, subscription: ?string}} wanted what the user wants to see, the number
   *   of rows, and the id of the subscription whose details are shown
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
    const began = performance.now();
    let wait = EVERY_MILLISECONDS;
    try {
      const seen = await this.#look();
      if (round !== this.#round) return;
      this.#failures = 0;
      this.tell("live");
      this.show(seen);
      // A large hub is not kept busy by its dashboard.
      wait = Math.min(LONGEST_WAIT_MILLISECONDS, Math.max(wait, 5 * (performance.now() - began)));
    } catch (error) {
      if (round !== this.#round) return;
      wait = this.#failed(error);
    }
    if (!document.hidden) this.#timer = setTimeout(() => this.now(), wait);
  }

  async #look() {
    this.#admin ??= await isAdmin();
    const { topic, search, silent, topicRows, subscription } = this.wanted;
    if (!this.#admin) {
      token.forget(); // it was withdrawn
      return { admin: false, ...(await get("topics", { limit: search ? MOST_PUBLIC_TOPICS : topicRows })) };
    }
    const query = { sort: "received", limit: topicRows, topic, search: search || null, silent: silent || null };
    const [status, nodes, topics, deliveries, connections, details, history] = await Promise.all([
      get("admin/status"),
      get("admin/nodes"),
      get("admin/topics", query),
      this.#askDeliveries(),
      this.#getConnections(),
      subscription && this.#getDetails(subscription),
      this.#getHistory(),
    ]);
    return { admin: true, status, nodes, ...topics, ...deliveries, connections, details, history };
  }

  async #getConnections() {
    const { topic, search, connectionRows: limit } = this.wanted;
    const query = { sort: "trouble", limit, topic, search: search || null };
    const key = JSON.stringify(query);
    if (this.#connections?.key !== key || this.#connections.total <= MANY || this.#round % 4 === 0)
      this.#connections = { key, ...(await get("admin/connections", query)) };
    return this.#connections;
  }

  async #getDetails(id) {
    try {
      return await get(`admin/subscriptions/${id}`);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return { problem: error.status === 404 ? "This subscription has ended." : error.message };
    }
  }

  async #getHistory() {
    if (this.#history === null || performance.now() - this.#history.at > HISTORY_MILLISECONDS)
      this.#history = { at: performance.now(), ...(await get("admin/history")) };
    return this.#history;
  }

  async #askDeliveries() {
    const query = this.#deliveryQuery();
    const same = this.#deliveries?.query === query;
    const many = this.#deliveries?.subscriptions.total > MANY;
    if (same && many && this.#round % 4) return this.#deliveries;
    const answer = (same && this.#late) || this.#getDeliveries(query);
    this.#late = null;
    if (!same) return answer;
    answer.catch(() => {}); // if it comes too late, the next round fails as well
    const late = new Promise(resolve => setTimeout(resolve, DELIVERIES_MILLISECONDS, null));
    const found = await Promise.race([answer, late]);
    if (found) return found;
    this.#late = answer;
    return { ...this.#deliveries, problem: LATE };
  }

  #deliveryQuery() {
    const { topic, search, state, subscriptionRows: limit } = this.wanted;
    const chosen = state === "trouble" ? { trouble: true } : { state };
    const given = Object.entries({ sort: "trouble", limit, topic, search, ...chosen });
    return new URLSearchParams(given.filter(([, value]) => value)).toString();
  }

  /** While shards of a cluster have no owner, this takes seconds, or is refused. */
  async #getDeliveries(query) {
    try {
      const [subscriptions, { failures }, { subscriptions: troubles }] = await Promise.all([
        get(`admin/subscriptions?${query}`),
        get("admin/failures"),
        get("admin/subscriptions", { sort: "trouble", trouble: true, limit: SHOWN_TROUBLES }),
      ]);
      return (this.#deliveries = { query, subscriptions, failures, troubles });
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 503) throw error;
      const last = this.#deliveries;
      return { ...(last?.query === query ? last : {}), problem: `Not up to date: ${error.message}.` };
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
