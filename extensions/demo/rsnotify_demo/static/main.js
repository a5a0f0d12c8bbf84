/** The page, which receives frames as Server-Sent Events, and sends actions. */

import { Chart } from "./chart.js";
import { showCopy } from "./copy.js";
import { find, setData, setText } from "./dom.js";
import { addEvent, clearEvents } from "./events.js";
import { showFacts, showParts } from "./parts.js";

const chart = new Chart();

function show({ frame, events = [], past, facts }) {
  if (facts) {
    showFacts(facts);
    clearEvents();
    chart.begin(past ?? []);
  }
  showParts(frame);
  showCopy(frame.copy);
  chart.add(frame.point);
  events.forEach(addEvent);
}

function connection(state, text) {
  setData(find("#connection"), "state", state);
  setText(find("#connection"), text);
}

const source = new EventSource("events");
source.onopen = () => connection("live", "Live");
source.onerror = () => connection("lost", "The demo has ended");
source.onmessage = event => show(JSON.parse(event.data));

document.addEventListener("click", async event => {
  const action = event.target.closest("button")?.dataset.action;
  if (!action) return;
  try {
    const answer = await fetch(`do/${action}`, { method: "POST" });
    if (!answer.ok) throw new Error(answer.statusText);
  } catch {
    connection("lost", "The demo does not respond");
  }
});
