/**
 * Follows a topic over the hub's WebSocket like any Destination (docs/protocol.md). After a lost
 * connection, it resumes at the last position.
 */

import { socketUrl } from "./requests.js";

const MIN_RETRY_MS = 500;
const EXCERPT_BYTES = 400;
const MAX_RETRY_MS = 5000;

export class TopicFollower {
  #socket = null;
  #timer = null;
  #wait = MIN_RETRY_MS;

  /**
   * @param {string} topic the topic
   * @param {?string} since the instant after which to begin; null for now
   * @param {function(object): void} take called with {topic, at, text} for a text frame, {topic, at,
   *   size, text} for a binary frame, or {topic, at, note}
   */
  constructor(topic, since, take) {
    this.topic = topic;
    this.since = since;
    this.take = take;
    this.#connect();
  }

  /** Reconnect now, if a retry is scheduled. */
  wake() {
    if (this.#timer === null) return;
    this.#wait = MIN_RETRY_MS;
    this.#connect();
  }

  close() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  #connect() {
    clearTimeout(this.#timer);
    this.#timer = null;
    const socket = (this.#socket = new WebSocket(socketUrl()));
    socket.binaryType = "arraybuffer";
    socket.onopen = () =>
      socket.send(JSON.stringify({ type: "subscribe", topic: this.topic, since: this.since }));
    socket.onmessage = event => this.#receive(event.data);
    socket.onclose = () => socket === this.#socket && this.#retry();
  }

  #retry() {
    this.#timer = setTimeout(() => this.#connect(), this.#wait * (0.5 + Math.random() / 2));
    this.#wait = Math.min(2 * this.#wait, MAX_RETRY_MS);
  }

  #receive(data) {
    const here = { topic: this.topic, at: Date.now() };
    if (typeof data !== "string") this.take({ ...here, size: data.byteLength, text: textOf(data) });
    else if (data.startsWith("{")) this.#control(JSON.parse(data), here);
    else this.take({ ...here, text: data });
  }

  #control(frame, here) {
    if (frame.type === "subscribed") {
      this.#wait = MIN_RETRY_MS;
      this.since = this.since ?? frame.through;
    } else if (frame.type === "gap") {
      this.take({ ...here, note: "Earlier changes are no longer in the hub's log." });
    } else if (frame.type === "error") {
      this.#wait = MAX_RETRY_MS;
      this.take({ ...here, note: `The hub refused: ${frame.message}` });
    }
  }
}

/** Return the beginning of binary content, or an empty string if it is not text. */
function textOf(data) {
  const beginning = new Uint8Array(data, 0, Math.min(data.byteLength, EXCERPT_BYTES));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(beginning, { stream: true });
  } catch {
    return "";
  }
}
