/** Helpers that create and update elements. Text never becomes markup. */

export const find = (selector, within = document) => within.querySelector(selector);

const SVG = "http://www.w3.org/2000/svg";

/** Create an HTML element. */
export const element = (name, ...children) => {
  const made = document.createElement(name);
  made.append(...children);
  return made;
};

/** Create an SVG element. */
export const shape = (name, className) => {
  const made = document.createElementNS(SVG, name);
  made.setAttribute("class", className);
  return made;
};

/** Set an element's text if it differs. */
export const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

/** Set or delete a data attribute of an element if it differs. */
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

/** Return the time of day of an instant, in the browser's time zone. */
export const clock = instant => new Date(instant).toLocaleTimeString("en-GB");
