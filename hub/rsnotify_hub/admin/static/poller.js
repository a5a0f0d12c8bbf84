/**
 * Polls the state of the hub while the page is visible. Passes the data to `show`, and the state of
 * the connection to `tell`.
 */

import { get, isAdmin, RequestRefused, token } from "./requests.js";

const POLL_INTERVAL_MS = 750;
const MAX_INTERVAL_MS = 5000;

/** The history has one value per minute, so it is requested less often. */
const HISTORY_INTERVAL_MS = 30_000;

/** How long to wait for the subscriptions if there are earlier ones to show. */
const SUBSCRIPTIONS_TIMEOUT_MS = 1500;
const LATE_NODES = "Some nodes have not responded yet, so this may be outdated.";

/** If there are more subscriptions or connections, they are only requested in every fourth round. */
const MAX_ROWS_EACH_ROUND = 1000;

/** Number of subscriptions in trouble to show in the verdict. */
const MAX_TROUBLES = 3;

/** Number of topics to request for a search, because the public list cannot be searched. */
const MAX_PUBLIC_TOPICS = 1000;

export class Poller {
  #admin = null;
  #failures = 0;
  #timer = null;
  #round = 0;
  #subscriptions = null;
  #late = null;
  #history = null;
  #connections = null;

  /**
   * @param {function(object): void} show called with the data
   * @param {function(string, ?Error): void} tell called with `live`, or with `lost` and the error
   * @param {{topic: ?string, search: string, state: string, silent: boolean, topicRows: number,
   *   subscriptionRows: number, connectionRows: number, subscription: ?string}} wanted the user's choices: what to
   *   show, the numbers of rows, and the id of the subscription whose details are open
   */
  constructor(show, tell, wanted) {
    this.show = show;
    this.tell = tell;
    this.wanted = wanted;
    addEventListener("visibilitychange", () => (document.hidden ? this.#pause() : this.now()));
    addEventListener("online", () => this.now());
  }

  /** Poll now, and ignore responses to earlier requests. */
  now() {
    clearTimeout(this.#timer);
    this.#poll(++this.#round);
  }

  /** Check again whether the user is an admin. Call this after the user has signed in or out. */
  signedInOrOut() {
    this.#admin = null;
    this.now();
  }

  async #poll(round) {
    const began = performance.now();
    let wait = POLL_INTERVAL_MS;
    try {
      const seen = await this.#getState();
      if (round !== this.#round) return;
      this.#failures = 0;
      this.tell("live");
      this.show(seen);
      // Poll slow hubs less often.
      wait = Math.min(MAX_INTERVAL_MS, Math.max(wait, 5 * (performance.now() - began)));
    } catch (error) {
      if (round !== this.#round) return;
      wait = this.#failed(error);
    }
    if (!document.hidden) this.#timer = setTimeout(() => this.now(), wait);
  }

  async #getState() {
    this.#admin ??= await isAdmin();
    const { topic, search, silent, topicRows, subscription } = this.wanted;
    if (!this.#admin) {
      token.forget(); // it is no longer valid
      return { admin: false, ...(await get("topics", { limit: search ? MAX_PUBLIC_TOPICS : topicRows })) };
    }
    const query = { sort: "received", limit: topicRows, topic, search: search || null, silent: silent || null };
    const [status, nodes, topics, subscriptions, connections, details, history] = await Promise.all([
      get("admin/status"),
      get("admin/nodes"),
      get("admin/topics", query),
      this.#pollSubscriptions(),
      this.#getConnections(),
      subscription && this.#getDetails(subscription),
      this.#getHistory(),
    ]);
    return { admin: true, status, nodes, ...topics, ...subscriptions, connections, details, history };
  }

  async #getConnections() {
    const { topic, search, connectionRows: limit } = this.wanted;
    const query = { sort: "trouble", limit, topic, search: search || null };
    const key = JSON.stringify(query);
    if (this.#connections?.key !== key || this.#connections.total <= MAX_ROWS_EACH_ROUND || this.#round % 4 === 0)
      this.#connections = { key, ...(await get("admin/connections", query)) };
    return this.#connections;
  }

  async #getDetails(id) {
    try {
      return await get(`admin/subscriptions/${id}`);
    } catch (error) {
      if (!(error instanceof RequestRefused)) throw error;
      return { problem: error.status === 404 ? "This subscription has ended." : error.message };
    }
  }

  async #getHistory() {
    if (this.#history === null || performance.now() - this.#history.at > HISTORY_INTERVAL_MS)
      this.#history = { at: performance.now(), ...(await get("admin/history")) };
    return this.#history;
  }

  async #pollSubscriptions() {
    const query = this.#subscriptionQuery();
    const same = this.#subscriptions?.query === query;
    const many = this.#subscriptions?.subscriptions.total > MAX_ROWS_EACH_ROUND;
    if (same && many && this.#round % 4) return this.#subscriptions;
    const answer = (same && this.#late) || this.#getSubscriptions(query);
    this.#late = null;
    if (!same) return answer;
    answer.catch(() => {}); // if it fails later, the next round reports the error
    const late = new Promise(resolve => setTimeout(resolve, SUBSCRIPTIONS_TIMEOUT_MS, null));
    const found = await Promise.race([answer, late]);
    if (found) return found;
    this.#late = answer;
    return { ...this.#subscriptions, problem: LATE_NODES };
  }

  #subscriptionQuery() {
    const { topic, search, state, subscriptionRows: limit } = this.wanted;
    const chosen = state === "trouble" ? { trouble: true } : { state };
    const given = Object.entries({ sort: "trouble", limit, topic, search, ...chosen });
    return new URLSearchParams(given.filter(([, value]) => value)).toString();
  }

  /** While shards of a cluster have no owner, this takes seconds or fails with 503. */
  async #getSubscriptions(query) {
    try {
      const [subscriptions, { failures }, { subscriptions: troubles }] = await Promise.all([
        get(`admin/subscriptions?${query}`),
        get("admin/failures"),
        get("admin/subscriptions", { sort: "trouble", trouble: true, limit: MAX_TROUBLES }),
      ]);
      return (this.#subscriptions = { query, subscriptions, failures, troubles });
    } catch (error) {
      if (!(error instanceof RequestRefused) || error.status !== 503) throw error;
      const last = this.#subscriptions;
      return { ...(last?.query === query ? last : {}), problem: `Outdated: ${error.message}.` };
    }
  }

  #failed(error) {
    // After a restart of the hub, the user may no longer be an admin.
    this.#admin = null;
    this.tell("lost", error);
    this.#failures += 1;
    const longest = Math.min(MAX_INTERVAL_MS, 250 * 2 ** this.#failures);
    return longest * (0.5 + Math.random() / 2);
  }

  #pause() {
    clearTimeout(this.#timer);
    this.#round += 1;
  }
}
