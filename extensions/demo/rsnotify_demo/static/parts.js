/** Source, hub and Destination, the links between them, and their buttons. */

import { clock, count, decimal, find, number, setData, setText } from "./dom.js";

const PULL_HIGHLIGHT_MS = 1500;

/** Show the addresses of the Source, hub and copy. */
export function showFacts(facts) {
  find("#source .where").href = facts.source + "capabilitylist.xml";
  find("#hub .where").href = facts.hub;
  find("#destination").title = facts.copy;
}

/** Show a frame. */
export function showParts(frame) {
  showSource(frame);
  showHub(frame.hub);
  showPush(frame);
  showDestination(frame);
  showGap(frame);
  showPull(frame);
}

function showSource({ changes, per_second: rate, flooding }) {
  setText(find("#source .figure"), `${decimal(rate)} a second`);
  setText(find("#source .note"), `${count(changes, "change")} so far`);
  find('[data-action="flood"]').disabled = flooding;
}

function showHub({ accepted, websockets, log_bytes: log }) {
  setText(find("#hub .figure"), accepted === null ? "running" : `${number(accepted)} fragments`);
  const parts = [
    websockets === null ? null : count(websockets, "WebSocket"),
    log === null ? null : `${number(Math.round(log / 1000))} kB of log`,
  ];
  setText(find("#hub .note"), parts.filter(Boolean).join(", ") || "one durable log");
}

function showPush({ connected, process, status, carried }) {
  const wire = find("#push");
  const running = process === "running";
  const up = running && status.push === "up";
  setData(wire, "state", !connected ? "cut" : up ? "up" : running ? "down" : "off");
  const text = !connected ? "cut" : up ? "push" : running ? "connecting" : "no subscriber";
  setText(find(".label", wire), text);
  find(".label", wire).title = `${number(Math.round(carried / 1000))} kB carried`;
  setButton(find("button", wire), connected ? ["cut", "Cut the link"] : ["restore", "Restore it"]);
}

function showDestination({ process, status, gap, changes, copy }) {
  const part = find("#destination");
  const running = process === "running";
  setData(part, "state", !running ? "stopped" : gap ? "behind" : "level");
  const text = !running ? process : gap ? "catching up" : "level";
  setText(find(".figure", part), text);
  // Both numbers come from the same comparison, so they are consistent.
  setText(find(".note", part), `${count(status.resources, "resource")} held, with ${
    number(Math.max(0, changes - copy.behind))} of ${count(changes, "change")}`);
  const stopped = process === "stopped" || process === "stopping";
  setButton(find("button", part), stopped ? ["start", "Start"] : ["stop", "Stop"]);
}

function showGap({ copy, status, age, gap, flush_ms }) {
  setData(find("#gap"), "open", gap ? "" : null);
  setText(find("#behind"), number(copy.behind));
  setText(find("#through"), status.through === null ? "not yet" : precise(status.through));
  setText(find("#age"), age === null ? "-" : `${decimal(age)} s ago`);
  setText(find("#lag"), milliseconds(status.lag_ms));
  setText(find("#lag99"), milliseconds(status.lag_p99_ms));
  setText(find("#flush"), milliseconds(flush_ms));
}

/** Highlight the link to the documents for a moment after a pull. */
function showPull({ pulled }) {
  if (pulled > (showPull.before ?? pulled)) showPull.at = performance.now();
  showPull.before = pulled;
  setData(find("#pull"), "live", performance.now() - showPull.at < PULL_HIGHLIGHT_MS ? "" : null);
}

const milliseconds = value => value === null ? "-" : `${decimal(value)} ms`;
const precise = instant => `${clock(instant)}${instant.slice(19, 23)}`;

function setButton(button, [action, text]) {
  setData(button, "action", action);
  setText(button, text);
}
