/** The panel with the states of the hub's parts. */

import { element, find, setAttribute, setText, showEach } from "./dom.js";
import { formatDuration, secondsSince } from "./formatting.js";
import { printable } from "./uris.js";

const WORDS = { trouble: "in trouble", watch: "needs attention", "in-order": "in order" };
/** Badges have the styles of the states of subscriptions. */
const LOOKS = { trouble: "given-up", watch: "retrying", "in-order": "active" };

export class PartList {
  /**
   * @param {Element} panel its panel
   * @param {Object<string, function(): void>} leads functions that go to a part's panel, by its name
   */
  constructor(panel, leads) {
    this.panel = panel;
    this.leads = leads;
  }

  /**
   * @param {{admin: boolean, status: object}} seen the data for an admin
   * @returns {Array<{name: string, state: string, word: string, text: string}>} the parts that are not in
   *   order, with the states and words of their badges
   */
  show({ admin, status }) {
    this.panel.hidden = !admin;
    if (!admin) return [];
    const up = `${status.version}, up ${formatDuration(secondsSince(status.started))}`;
    const parts = [...status.parts, { name: "version", state: "in-order", text: up }];
    showEach(find("ul", this.panel), parts, part => part.name, part => this.#make(part), update);
    return status.parts.filter(({ state }) => state !== "in-order").map(({ name, state, text }) =>
      ({ name: titleOf(name), state: LOOKS[state], word: WORDS[state], text: printable(text) }));
  }

  #make({ name }) {
    const button = element("button", { type: "button", hidden: true }, "Show");
    if (name in this.leads) button.addEventListener("click", this.leads[name]);
    setAttribute(button, "data-leads", name in this.leads);
    return element("li", {}, element("span", { class: "badge" }),
      element("strong", {}, titleOf(name)),
      element("span", { class: "what" }), button);
  }
}

const titleOf = name => name.charAt(0).toUpperCase() + name.slice(1);

function update(row, { state, text }) {
  const badge = find(".badge", row), button = find("button", row);
  setText(badge, WORDS[state]);
  setAttribute(badge, "data-state", LOOKS[state]);
  setText(find(".what", row), printable(text));
  button.hidden = !("leads" in button.dataset) || state === "in-order";
}
