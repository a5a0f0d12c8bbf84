/** The rows of the live tail. */

import { element } from "./dom.js";
import { bytes, timeOfDay } from "./formatting.js";
import { inOneLine, printable, uriLink } from "./uris.js";

/**
 * Return a row of the tail.
 * @param {object} row a change, a whole content (size and excerpt) or a note, with its topic and
 *   time of arrival
 */
export function makeRow(row) {
  const made = element("li", { class: "change" }, element("time", {}, timeOfDay(row.at)));
  if (row.note) made.append(element("p", { class: "remark" }, printable(row.note)));
  else if (row.change) made.append(...changed(row.change));
  else made.append(...content(row));
  if (row.topic) made.title = printable(row.topic);
  return made;
}

function changed({ uri, change, length }) {
  const known = ["created", "updated", "deleted"].includes(change) ? change : "changed";
  const size = length === null ? null : element("span", { class: "size" }, bytes(length));
  return [element("span", { class: `kind ${known}` }, known), uriLink(uri), size].filter(Boolean);
}

function content({ topic, size, excerpt }) {
  const beginning = excerpt ? element("p", { class: "excerpt" }, inOneLine(excerpt)) : null;
  const parts = [element("span", { class: "kind content" }, "content"), uriLink(topic)];
  return [...parts, element("span", { class: "size" }, bytes(size)), beginning].filter(Boolean);
}
