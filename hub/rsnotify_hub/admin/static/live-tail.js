/** The live tail: the newest changes of the followed topics. */

import { find, setAttribute, setText, showEach } from "./dom.js";
import { counted } from "./formatting.js";
import { readFragment } from "./fragments.js";
import { makeRow } from "./tail-rows.js";
import { TopicFollower } from "./topic-follower.js";

/** Number of topics to follow. Each needs a connection from the browser to the hub. */
const MAX_TOPICS = 8;
const MAX_ROWS = 60;

/** Matches devices with a pointer that can rest over a row, unlike a touch screen. */
const HOVER = matchMedia("(hover: hover)");
const EXCERPT_CHARACTERS = 200;

/**
 * The redraw interval. It is longer if there are many changes, so that they can be read and do not
 * block the page.
 */
const REDRAW_MS = 200;
const BUSY_REDRAW_MS = 800;
/** Number of new rows above which the longer interval is used. */
const BUSY_ROWS = 6;

/** How far back to read a topic's log initially. */
const LOOK_BACK_MS = 2000;

export class LiveTail {
  #followers = new Map();
  #waiting = [];
  #missed = 0;
  #rows = [];
  #number = 0;
  #timer = null;
  #drawn = 0;
  #every = REDRAW_MS;
  #about = "";

  constructor(panel) {
    this.list = find(".changes", panel);
    this.empty = find(".empty", panel);
    this.scope = find(".scope", panel);
    this.button = find(".pause", panel);
    this.button.addEventListener("click", () => this.#pause());
    for (const leaving of ["pointerleave", "focusout"])
      this.list.addEventListener(leaving, () => this.#schedule());
  }

  get paused() {
    return this.button.getAttribute("aria-pressed") === "true";
  }

  /**
   * Follow the most active topics, or only the selected one.
   * @param {Array<{topic: string, received: string, through: string, begins: string}>} topics all topics
   * @param {?string} only the topic that the user selected
   */
  follow(topics, only) {
    const wanted = only ? topics.filter(each => each.topic === only) : this.#mostActive(topics);
    const names = new Set(wanted.map(each => each.topic));
    for (const [name, follower] of this.#followers) if (!names.has(name)) this.#leave(name, follower);
    for (const each of wanted) if (!this.#followers.has(each.topic)) this.#join(each);
    this.#about = only ? "From this topic" : scopeOf(names.size, topics.length);
    this.#explain();
  }

  /** Return the most active topics. Prefer those already followed, to avoid frequent switches. */
  #mostActive(topics) {
    const sorted = [...topics].sort((one, other) => (one.received < other.received ? 1 : -1));
    const kept = sorted.slice(0, 2 * MAX_TOPICS).filter(each => this.#followers.has(each.topic));
    return [...new Set([...kept, ...sorted])].slice(0, MAX_TOPICS);
  }

  #join({ topic, through, begins }) {
    // Begin in the past, so that a new topic shows its first change.
    const back = new Date(Date.parse(through) - LOOK_BACK_MS).toISOString();
    const since = Date.parse(begins) > Date.parse(back) ? begins : back;
    this.#followers.set(topic, new TopicFollower(topic, since, news => this.#take(news)));
  }

  #leave(topic, follower) {
    follower.close();
    this.#followers.delete(topic);
    this.#rows = this.#rows.filter(row => row.topic !== topic);
    this.#schedule();
  }

  /** Reconnect immediately, because the hub responds again. */
  wake() {
    for (const follower of this.#followers.values()) follower.wake();
  }

  #take(news) {
    this.#waiting.push(news);
    if (this.#waiting.length > MAX_ROWS) {
      this.#waiting.shift();
      this.#missed += 1;
    }
    this.#schedule();
  }

  #schedule() {
    if (this.#timer !== null || this.paused) return;
    const wait = Math.max(0, this.#drawn + this.#every - Date.now());
    this.#timer = setTimeout(() => this.#draw(), wait);
  }

  #pause() {
    setAttribute(this.button, "aria-pressed", String(!this.paused));
    setText(this.button, this.paused ? "Resume" : "Pause");
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#schedule();
  }

  /** Whether the user is about to read or click a row, so rows must not move. */
  get #held() {
    return this.list.matches(":focus-within") || (this.list.matches(":hover") && HOVER.matches);
  }

  #draw() {
    this.#timer = null;
    this.#explain();
    if (this.#held) return;
    const before = this.#number;
    this.#drawn = Date.now();
    for (const news of this.#waiting.splice(0)) this.#add(this.#rowsOf(news));
    showEach(this.list, this.#rows, row => row.number, makeRow, () => {});
    const isBusy = this.#number - before > BUSY_ROWS;
    this.#every = isBusy ? BUSY_REDRAW_MS : REDRAW_MS;
    setAttribute(this.list, "data-busy", isBusy);
    this.#explain();
  }

  #add(rows) {
    for (const row of rows) this.#rows.unshift({ ...row, number: ++this.#number });
    this.#rows.splice(MAX_ROWS);
  }

  #rowsOf(news) {
    if (news.note) return [news];
    const fragment = news.size === undefined ? readFragment(news.text) : null;
    if (fragment === null) {
      const excerpt = news.text.slice(0, EXCERPT_CHARACTERS);
      return [{ topic: news.topic, at: news.at, size: news.size ?? news.text.length, excerpt }];
    }
    const follower = this.#followers.get(news.topic);
    if (follower && fragment.until) follower.since = fragment.until;
    return fragment.changes.slice(-MAX_ROWS).map(change => ({ topic: news.topic, at: news.at, change }));
  }

  #explain() {
    const missed = this.#missed ? `${counted(this.#missed, "fragment")} arrived too fast to show` : "";
    const held = this.#held ? "paused while you point at it" : "";
    setText(this.scope, [this.#about, missed, held].filter(Boolean).join(" · "));
    this.empty.hidden = this.#rows.length > 0;
    setText(this.empty, this.#followers.size ? "Nothing has changed since you opened this page." : "There are no topics yet.");
  }
}

function scopeOf(followed, all) {
  if (followed === 0) return "";
  return followed < all ? `From the ${followed} most active topics` : `From ${counted(followed, "topic")}`;
}
