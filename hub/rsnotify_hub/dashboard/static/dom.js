/** Elements made from values. Text only ever becomes text, never markup. */

/**
 * Make an element.
 * @param {string} name what it is
 * @param {Object<string, string|boolean|null>} attributes those that are null or false are left out
 * @param {...(Node|string|null)} children what is in it; null is left out
 */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) setAttribute(made, key, value);
  made.append(...children.filter(child => child !== null));
  return made;
}

/** Set or remove an attribute, and touch nothing that stays as it is. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
}

/** Set an element's text, and touch nothing where it stays: a selection in it survives. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export const find = (selector, within = document) => within.querySelector(selector);

const known = new WeakMap();

/**
 * Let an element's children be one for each item, in order. A child stays the same element as
 * long as its item's key is there, so that the focus does not get lost.
 */
export function showEach(parent, items, keyOf, create, update) {
  const before = known.get(parent) ?? new Map();
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
}
