/** Creates and updates elements. Text never becomes markup. */

/**
 * Return a new element.
 * @param {string} name the tag name
 * @param {Object<string, string|boolean|null>} attributes the attributes; null and false are omitted
 * @param {...(Node|string|null)} children the children; null is omitted
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) setAttribute(made, key, value);
  made.append(...children.filter(child => child !== null));
  return made;
}

/** Set or remove an attribute, only if it changes. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

/** Set an element's text only if it changes, so that a selection in it survives. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const find = (selector, within = document) => within.querySelector(selector);

const known = new WeakMap();

/**
 * Give an element one child for each item, in order. Children whose items have the same keys as
 * before are reused, so that the focus is not lost.
 */
export function showEach(parent, items, keyOf, create, update) {
  const before = known.get(parent) ?? new Map();
  const focused = document.activeElement;
  const after = new Map(items.map(item => [keyOf(item), null]));
  for (const [key, child] of before) if (!after.has(key)) child.remove();
  let place = parent.firstElementChild;
  for (const item of items) {
    const child = before.get(keyOf(item)) ?? create(item);
    after.set(keyOf(item), child);
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  known.set(parent, after);
  // Moving an element removes its focus.
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/** Show some nodes in a place, only if they change. Hide the place if there are none. */
export function showEmpty(place, ...parts) {
  place.hidden = parts.length === 0;
  const made = element("div", {}, ...parts);
  if (place.textContent !== made.textContent) place.replaceChildren(...made.childNodes);
}

/** Return an element that shows a command to run. */
export const nextStep = command => element("pre", { tabindex: "0", role: "group", "aria-label": "Command" }, command);

/** Show two values in one cell. */
export function showPair(within, [first, second]) {
  setText(within.firstElementChild, first);
  setText(within.lastElementChild, second);
}

/** Return a table cell. On narrow screens, rows are cards that show the label before the value. */
export function cell(classes, label, ...children) {
  return element("td", { role: "cell", class: classes, "data-label": label }, ...children);
}
