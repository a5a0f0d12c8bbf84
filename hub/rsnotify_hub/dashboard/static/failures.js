/** The table of failed deliveries. */

import { element, find, setAttribute, setText, showEach } from "./dom.js";
import { ago, count, many, whenever } from "./figures.js";
import { failureText } from "./subscriptions.js";
import { inOneLine, printable, uriParts } from "./uris.js";

const MOST_ROWS = 30;

/** Show failures, newest first; equal failures of one callback are one row. */
export function showFailures(panel, failures) {
  panel.hidden = failures.length === 0;
  setText(find(".amount", panel), failures.length ? `the last ${count(failures.length)}` : "");
  const rows = together(failures).slice(0, MOST_ROWS);
  showEach(find(".failures", panel), rows, row => row.key, makeRow, updateRow);
}

function together(failures) {
  const rows = new Map();
  for (const failure of failures) {
    const key = JSON.stringify([failure.id, failure.status, failure.reason, failure.excerpt]);
    const row = rows.get(key);
    if (row) row.times += 1;
    else rows.set(key, { key, times: 1, failure });
  }
  return [...rows.values()];
}

function makeRow({ failure }) {
  const excerpt = failure.excerpt
    ? element("p", { class: "excerpt" }, inOneLine(failure.excerpt)) : null;
  return element("li", {},
    element("time"),
    element("bdi", { class: "callback" }, printable(failure.host)),
    element("span", { class: "why" }),
    element("span", { class: "uri" }, ...uriParts(failure.topic)),
    excerpt);
}

function updateRow(row, { failure, times }) {
  const time = find("time", row);
  setText(time, ago(failure.at));
  setAttribute(time, "datetime", failure.at);
  setAttribute(time, "title", whenever(failure.at));
  const again = times > 1 ? `, ${many(times, "time")}` : "";
  setText(find(".why", row), failureText(failure) + again);
}
