/** The live tail: the newest changes of the followed topics. */

import { makeRow } from "./changes.js";
import { find, setAttribute, setText, showEach } from "./dom.js";
import { many } from "./figures.js";
import { Follower } from "./follower.js";
import { readFragment } from "./fragments.js";

/** How many topics are followed at a time: each needs a connection of the browser to the hub. */
const MOST_TOPICS = 8;
const MOST_ROWS = 60;

/** A touch screen has no pointer that rests over a row. */
const POINTER = matchMedia("(hover: hover)");
const EXCERPT_CHARACTERS = 200;

/**
 * The redraw interval, longer if much changes: so that rows can be read, and many changes do not
 * block the page. Every change is shown within a second.
 */
const QUIET_MILLISECONDS = 200;
const BUSY_MILLISECONDS = 800;
const MUCH_ROWS = 6;

/** How much of the past is requested initially. */
const LOOK_BACK_MILLISECONDS = 2000;

export class Tail {
  #followers = new Map();
  #waiting = [];
  #missed = 0;
  #rows = [];
  #number = 0;
  #timer = null;
  #drawn = 0;
  #every = QUIET_MILLISECONDS;
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
   * Follow these topics, and no others.
   * @param {Array<{topic: string, received: string, through: string, begins: string}>} topics all topics
   * @param {?string} only the topic that the user selected
   */
  follow(topics, only) {
    const wanted = only ? topics.filter(each => each.topic === only) : this.#liveliest(topics);
    const names = new Set(wanted.map(each => each.topic));
    for (const [name, follower] of this.#followers) if (!names.has(name)) this.#leave(name, follower);
    for (const each of wanted) if (!this.#followers.has(each.topic)) this.#join(each);
    this.#about = only ? "Of this topic" : scopeOf(names.size, topics.length);
    this.#explain();
  }

  /** Keep followed topics as long as they are among the most active, up to twice the number. */
  #liveliest(topics) {
    const sorted = [...topics].sort((one, other) => (one.received < other.received ? 1 : -1));
    const kept = sorted.slice(0, 2 * MOST_TOPICS).filter(each => this.#followers.has(each.topic));
    return [...new Set([...kept, ...sorted])].slice(0, MOST_TOPICS);
  }

  #join({ topic, through, begins }) {
    // Recent changes of a topic are shown too, so that a new topic shows its first change.
    const back = new Date(Date.parse(through) - LOOK_BACK_MILLISECONDS).toISOString();
    const since = Date.parse(begins) > Date.parse(back) ? begins : back;
    this.#followers.set(topic, new Follower(topic, since, news => this.#take(news)));
  }

  #leave(topic, follower) {
    follower.close();
    this.#followers.delete(topic);
    this.#rows = this.#rows.filter(row => row.topic !== topic);
    this.#schedule();
  }

  /** Connect again at once, since the hub answers. */
  wake() {
    for (const follower of this.#followers.values()) follower.wake();
  }

  #take(news) {
    this.#waiting.push(news);
    if (this.#waiting.length > MOST_ROWS) {
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
    setText(this.button, this.paused ? "Go on" : "Pause");
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#schedule();
  }

  /** Whether the user is about to read or click a row, which then must not move. */
  get #held() {
    return this.list.matches(":focus-within") || (this.list.matches(":hover") && POINTER.matches);
  }

  #draw() {
    this.#timer = null;
    this.#explain();
    if (this.#held) return;
    const before = this.#number;
    this.#drawn = Date.now();
    for (const news of this.#waiting.splice(0)) this.#add(this.#rowsOf(news));
    showEach(this.list, this.#rows, row => row.number, makeRow, () => {});
    const much = this.#number - before > MUCH_ROWS;
    this.#every = much ? BUSY_MILLISECONDS : QUIET_MILLISECONDS;
    setAttribute(this.list, "data-busy", much);
    this.#explain();
  }

  #add(rows) {
    for (const row of rows) this.#rows.unshift({ ...row, number: ++this.#number });
    this.#rows.splice(MOST_ROWS);
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
    return fragment.changes.slice(-MOST_ROWS).map(change => ({ topic: news.topic, at: news.at, change }));
  }

  #explain() {
    const missed = this.#missed ? `${many(this.#missed, "fragment")} came too fast to be shown` : "";
    const held = this.#held ? "still while you point at it" : "";
    setText(this.scope, [this.#about, missed, held].filter(Boolean).join(" · "));
    this.empty.hidden = this.#rows.length > 0;
    setText(this.empty, this.#followers.size ? "Nothing has changed since you look." : "There is no topic to follow yet.");
  }
}

function scopeOf(followed, all) {
  if (followed === 0) return "";
  return followed < all ? `Of the ${followed} liveliest topics` : `Of ${many(followed, "topic")}`;
}
