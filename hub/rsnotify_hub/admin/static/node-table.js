/** The panel with the nodes of a cluster, its shards, and the NATS servers. */

import { cell, element, find, setAttribute, setText, showEach, showPair } from "./dom.js";
import { ago, bytes, count, counted, formatDateTime } from "./formatting.js";
import { printable } from "./uris.js";

/** Badges have the styles of the states of subscriptions. */
const LOOKS = { running: "active", draining: "suspended", fenced: "given-up", dead: "given-up" };

/** @param {?object} nodes the response of the admin API; null if the user is not an admin */
export function showNodes(panel, nodes) {
  panel.hidden = !nodes?.stream;
  if (panel.hidden) return;
  const { rows, shards, free, stream } = nodes;
  const alive = free === null ? "" : counted(rows.filter(each => each.alive).length, "node") + " · ";
  setText(find(".amount", panel), alive + counted(shards, "shard"));
  setText(find(".problem", panel), problemOf(stream, free));
  showEach(find("tbody", panel), rows, keyOf, makeRow, updateRow);
  setText(find(".stream", panel),
    `Stream ${printable(stream.name)}: ${counted(stream.records, "record")}, ${bytes(stream.bytes)}, at`);
  showEach(find(".copies", panel), stream.copies, each => each.name, makeCopy, updateCopy);
  showEach(find(".warnings", panel), stream.warnings, each => each, each => element("li", {}, printable(each)), () => {});
}

/** Return how many nodes the numbers of subscribers cover; empty if they cover all nodes. */
export function coverage({ status, nodes }) {
  if (!nodes?.stream) return "";
  const all = nodes.rows.filter(each => each.this || each.alive !== false).length;
  return status.nodes < all ? `of ${status.nodes} of ${counted(all, "node")}` : "";
}

function problemOf({ connected, trouble }, free) {
  const problem = trouble ? `In trouble: ${printable(trouble)}. ` : "";
  if (!connected) return problem + "The information about NATS is outdated.";
  return problem + (free ? `${counted(free, "shard")} without a node: their subscriptions receive nothing.` : "");
}

/** Several nodes may have the same name and URL, for example after a restart. */
const keyOf = ({ name, url, started }) => JSON.stringify([name, url, started]);

function stateOf({ alive, draining, this: isThis }) {
  if (alive === null) return "unknown";
  if (!alive) return isThis ? "fenced" : "dead";
  return draining ? "draining" : "running";
}

function makeRow(node) {
  return element("tr", { role: "row" },
    cell("state", null, element("span", { class: "badge" })),
    cell("name", null,
      element("bdi", { class: "callback" }, printable(node.name)),
      element("span", { class: "uri topic" }, printable(node.url))),
    cell("owned number", "Shards", element("span")),
    cell("behind number", "Behind", element("span")),
    cell("server", "NATS", element("span")),
    cell("version number", "Version", element("span"), element("time", { class: "second" })),
  );
}

function updateRow(row, node) {
  const state = stateOf(node);
  const badge = find(".badge", row);
  setText(badge, state);
  setAttribute(badge, "data-state", LOOKS[state] ?? null);
  setText(find(".name .callback", row), printable(node.name) + (node.this ? " (this node)" : ""));
  setText(find(".owned span", row), count(node.shards));
  setText(find(".behind span", row), behindText(node.behind));
  setText(find(".server span", row), printable(node.server ?? (node.this ? "not connected" : "unknown")));
  showPair(find(".version", row), [printable(node.version), `started ${ago(node.started)}`]);
  setAttribute(find("time", row), "datetime", node.started);
  setAttribute(find("time", row), "title", formatDateTime(node.started));
}

function behindText(records) {
  if (records === null) return "unknown";
  return records ? counted(records, "record") : "current";
}

function makeCopy({ name }) {
  return element("li", {}, element("span", { class: "badge" }, printable(name)), element("span", { class: "what" }));
}

function updateCopy(row, { leader, online, current, behind }) {
  setAttribute(find(".badge", row), "data-state", current ? "active" : online ? "retrying" : "given-up");
  const step = current ? "current" : behind ? `${count(behind)} behind` : "not current";
  setText(find(".what", row), [leader ? "leader" : "copy", online ? step : "offline"].join(", "));
}
