/** Creates and updates elements. Text never becomes markup. */

/**
 * Return a new element.
 * @param {string} name its tag name
 * @param {Object<string, string|boolean|null>} attributes its attributes; null and false are omitted
 * @param {...(Node|string|null)} children its children; null is omitted
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
 * Give an element one child for each item, in order. A child remains the same element as long as
 * the key of its item is present, so that the focus is not lost.
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
  // An element that is moved loses the focus.
  if (focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}
