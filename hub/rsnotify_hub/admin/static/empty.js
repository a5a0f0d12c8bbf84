/** Shows what to do next where there is nothing to show. */

import { element } from "./dom.js";

/** Show parts in a place, only if they change; nothing hides it. */
export function showEmpty(place, ...parts) {
  place.hidden = parts.length === 0;
  const made = element("div", {}, ...parts);
  if (place.textContent !== made.textContent) place.replaceChildren(...made.childNodes);
}

/** Return a command to run. */
export const nextStep = command => element("pre", { tabindex: "0", role: "group", "aria-label": "Command" }, command);
