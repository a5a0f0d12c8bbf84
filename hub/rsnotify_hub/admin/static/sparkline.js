/** Draws the rate of a topic in its row. For up to 1000 rows, uPlot would be too slow. */

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 120, HEIGHT = 28, POINTS = 90;

/** The last values of a rate, oldest first. */
export class RateHistory {
  #values = [];

  add(value) {
    this.#values.push(value);
    if (this.#values.length > POINTS) this.#values.shift();
  }

  get values() {
    return this.#values;
  }
}

/** Return SVG paths of the line and the area below it. The newest value is at the right. */
function paths(values) {
  if (values.length < 2) return { line: "", area: "" };
  const top = Math.max(1, ...values);
  const step = WIDTH / (POINTS - 1);
  const left = WIDTH - step * (values.length - 1);
  const places = values.map((value, index) => {
    const y = HEIGHT - 1.5 - (value / top) * (HEIGHT - 4);
    return `${(left + index * step).toFixed(1)} ${y.toFixed(1)}`;
  });
  const line = "M" + places.join("L");
  return { line, area: `${line}L${WIDTH} ${HEIGHT}L${left.toFixed(1)} ${HEIGHT}Z` };
}

/** Return an empty SVG element for `drawSparkline`. */
export function makeSparkline() {
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" });
  picture.setAttribute("class", "sparkline");
  picture.setAttribute("aria-hidden", "true");
  picture.append(svg("path", { class: "area" }), svg("path", { class: "line" }));
  return picture;
}

/** Draw values, oldest first. */
export function drawSparkline(picture, values) {
  const { line, area } = paths(values);
  picture.firstElementChild.setAttribute("d", area);
  picture.lastElementChild.setAttribute("d", line);
}

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
