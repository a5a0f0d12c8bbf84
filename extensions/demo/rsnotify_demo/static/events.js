/** The list of events, newest first. */

import { clock, element, find } from "./dom.js";

const MAX_EVENTS = 60;
const list = find("#story ol");

/** Remove all events. */
export const clearEvents = () => list.replaceChildren();

/** Add an event: {at, kind, text}. */
export function addEvent({ at, kind, text }) {
  const time = element("time", clock(at));
  time.dateTime = at;
  const item = element("li", time, element("span", text));
  item.dataset.kind = kind;
  list.prepend(item);
  while (list.childElementCount > MAX_EVENTS) list.lastElementChild.remove();
}
