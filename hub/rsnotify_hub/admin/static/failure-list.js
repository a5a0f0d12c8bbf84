/** The list of failed deliveries. */

import { element, find, setAttribute, setText, showEach } from "./dom.js";
import { ago, counted, formatDateTime } from "./formatting.js";
import { failureText, shortId } from "./subscription-table.js";
import { contains } from "./topic-table.js";
import { inOneLine, printable, uriParts } from "./uris.js";

const MAX_ROWS = 30;

/**
 * Show failures, newest first. Equal failures of a callback are combined into one row.
 * @param {{topic: ?string, search: string}} wanted the user's choices
 * @param {function(string): void} open called with the id of the subscription to open
 */
export function showFailures(panel, failures, { topic: only, search }, open) {
  const shown = failures.filter(({ topic, callback, host, id, reason }) =>
    [null, topic].includes(only) && contains([topic, callback, host, id, reason], search));
  panel.hidden = shown.length === 0;
  setText(find(".amount", panel), counted(shown.length, "failure"));
  const rows = groupEqual(shown).slice(0, MAX_ROWS);
  showEach(find(".failures", panel), rows, row => row.key, row => makeRow(row, open), updateRow);
}

function groupEqual(failures) {
  const rows = new Map();
  for (const failure of failures) {
    const key = JSON.stringify([failure.id, failure.status, failure.reason, failure.excerpt]);
    const row = rows.get(key);
    if (row) row.times += 1;
    else rows.set(key, { key, times: 1, failure });
  }
  return [...rows.values()];
}

function makeRow({ failure }, open) {
  const callback = printable(failure.callback || failure.host);
  const name = { type: "button", class: "callback", "aria-label": `Details of ${shortId(failure.id)}, ${callback}` };
  const button = element("button", name, element("bdi", {}, callback), " ", element("code", { class: "id" }, shortId(failure.id)));
  button.addEventListener("click", () => open(failure.id));
  const excerpt = failure.excerpt
    ? element("p", { class: "excerpt" }, inOneLine(failure.excerpt)) : null;
  return element("li", {},
    element("time"),
    button,
    element("span", { class: "why" }),
    element("span", { class: "uri" }, ...uriParts(failure.topic)),
    excerpt);
}

function updateRow(row, { failure, times }) {
  const time = find("time", row);
  setText(time, ago(failure.at));
  setAttribute(time, "datetime", failure.at);
  setAttribute(time, "title", formatDateTime(failure.at));
  const again = times > 1 ? `, ${counted(times, "time")}` : "";
  setText(find(".why", row), failureText(failure) + again);
}
