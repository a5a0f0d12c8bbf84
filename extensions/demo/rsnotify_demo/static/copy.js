/** The copy as a grid of squares, one for each resource. */

import { element, find, number, setData, setText } from "./dom.js";

const field = find(".resources");

/** Show the state of each resource, which is a letter (see `CopyState`). */
export function showCopy({ states, differing }) {
  while (field.childElementCount < states.length) field.append(element("i"));
  for (const [index, square] of [...field.children].entries()) {
    setData(square, "held", states[index]);
  }
  const held = states.length - [...states].filter(state => state === "n").length;
  const text = differing
    ? `${number(differing)} of ${number(held)} differ`
    : `all ${number(held)} match the Source`;
  setText(find("#amount"), text);
}
