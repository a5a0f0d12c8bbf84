/** The page: frames come in as Server-Sent Events, clicks go out. */

import { Chart } from "./chart.js";
import { showCopy } from "./copy.js";
import { find, setData, setText } from "./dom.js";
import { showFacts, showParts } from "./parts.js";
import { beginStory, tell } from "./story.js";

const chart = new Chart();

function take({ frame, told = [], past, facts }) {
  if (facts) {
    showFacts(facts);
    beginStory();
    chart.begin(past ?? []);
  }
  showParts(frame);
  showCopy(frame.copy);
  chart.add(frame.point);
  told.forEach(tell);
}

function connection(state, text) {
  setData(find("#connection"), "state", state);
  setText(find("#connection"), text);
}

const events = new EventSource("events");
events.onopen = () => connection("live", "Live");
events.onerror = () => connection("lost", "The demo has ended");
events.onmessage = event => take(JSON.parse(event.data));

document.addEventListener("click", async event => {
  const action = event.target.closest("button")?.dataset.action;
  if (!action) return;
  try {
    const answer = await fetch(`do/${action}`, { method: "POST" });
    if (!answer.ok) throw new Error(answer.statusText);
  } catch {
    connection("lost", "The demo does not answer");
  }
});
