/** Elements made from values. Text always stays text and never becomes markup. */

export const find = (selector, within = document) => within.querySelector(selector);

const SVG = "http://www.w3.org/2000/svg";

/** Make an element of HTML. */
export const element = (name, ...children) => {
  const made = document.createElement(name);
  made.append(...children);
  return made;
};

/** Make an element of SVG. */
export const shape = (name, className) => {
  const made = document.createElementNS(SVG, name);
  made.setAttribute("class", className);
  return made;
};

/** Set an element's text, if it differs. */
export const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

/** Set or delete a data attribute of an element, if it differs. */
export const setData = (node, name, value) => {
  if (value === null || value === false) delete node.dataset[name];
  else if (node.dataset[name] !== String(value)) node.dataset[name] = value;
};

const whole = new Intl.NumberFormat("en");
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** Return a number with its noun: `1 change`, `1,200 changes`. */
export const count = (number, thing) =>
  `${whole.format(number)} ${thing}${number === 1 ? "" : "s"}`;
export const number = value => whole.format(value);
export const decimal = value => tenths.format(value);

/** Return an instant's time of day, in the zone of the browser. */
export const clock = instant => new Date(instant).toLocaleTimeString("en-GB");
