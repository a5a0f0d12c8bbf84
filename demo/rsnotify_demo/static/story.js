/** What happened, the newest on top. */

import { clock, element, find } from "./dom.js";

const MOST = 60;
const list = find("#story ol");

/** Forget what was told. */
export const beginStory = () => list.replaceChildren();

/** Tell a sentence: {at, kind, text}. */
export function tell({ at, kind, text }) {
  const time = element("time", clock(at));
  time.dateTime = at;
  const item = element("li", time, element("span", text));
  item.dataset.kind = kind;
  list.prepend(item);
  while (list.childElementCount > MOST) list.lastElementChild.remove();
}
