/** The last minute: how many changes the copy lacked, and when something was broken. */

import { find, number, setText, shape } from "./dom.js";

const MAX_POINTS = 300;
const HEIGHT = 100;
/** The minimum range of the axis, so that a few changes in transit look small. */
const MIN_RANGE = 40;

export class Chart {
  constructor() {
    const chart = find("#chart");
    [this.cut, this.stopped, this.area, this.line] =
      ["cut", "stopped", "area", "line"].map(name => chart.appendChild(shape("path", name)));
    this.points = [];
  }

  /** Begin with earlier points. */
  begin(points) {
    this.points = points.slice(-MAX_POINTS);
  }

  /** Add a point: {behind, connected, running}. */
  add(point) {
    this.points.push(point);
    if (this.points.length > MAX_POINTS) this.points.shift();
    this.draw();
  }

  draw() {
    const { points } = this;
    const most = Math.max(MIN_RANGE, ...points.map(point => point.behind));
    const first = MAX_POINTS - points.length;
    const y = point => (HEIGHT - (point.behind / most) * (HEIGHT - 6)).toFixed(2);
    const line = points.map((point, index) => `${first + index},${y(point)}`).join(" ");
    this.line.setAttribute("d", `M${line}`);
    this.area.setAttribute("d", `M${first},${HEIGHT} L${line} L${MAX_POINTS - 1},${HEIGHT} Z`);
    this.cut.setAttribute("d", bands(points, first, point => !point.connected));
    this.stopped.setAttribute("d", bands(points, first, point => !point.running));
    setText(find(".most"), `${number(most)} changes`);
  }
}

/** Return a path with a band over the whole height wherever a condition holds. */
function bands(points, first, holds) {
  let path = "";
  let begin = null;
  for (const [index, point] of [...points, null].entries()) {
    if (point && holds(point)) begin ??= index;
    else if (begin !== null) {
      path += `M${first + begin},0 H${first + index} V${HEIGHT} H${first + begin} Z `;
      begin = null;
    }
  }
  return path;
}
