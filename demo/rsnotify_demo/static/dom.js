/** Elements made from values. Text only ever becomes text, never markup. */

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

/** Set an element's text, and touch nothing where it stays. */
export const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

/** Set one of an element's data, or take it away, and touch nothing where it stays. */
export const setData = (node, name, value) => {
  if (value === null || value === false) delete node.dataset[name];
  else if (node.dataset[name] !== String(value)) node.dataset[name] = value;
};

const whole = new Intl.NumberFormat("en");
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** Write a number of things: `1 change`, `1,200 changes`. */
export const count = (number, thing) =>
  `${whole.format(number)} ${thing}${number === 1 ? "" : "s"}`;
export const number = value => whole.format(value);
export const decimal = value => tenths.format(value);

/** Write an instant's time of day, in the zone of who looks. */
export const clock = instant => new Date(instant).toLocaleTimeString("en-GB");
