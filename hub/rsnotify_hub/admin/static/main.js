/** The dashboard: connects the data of the hub with the panels. */

import { ConnectionTable } from "./connections.js";
import { Details } from "./details.js";
import { find, setAttribute, setText } from "./dom.js";
import { showFailures } from "./failures.js";
import { setClock } from "./figures.js";
import { Refused } from "./hub.js";
import { missing, showNodes } from "./nodes.js";
import { Parts } from "./parts.js";
import { RANGES } from "./series.js";
import { offerSigning, showSigning } from "./signing.js";
import { SubscriptionTable } from "./subscriptions.js";
import { Tail } from "./tail.js";
import { Tiles } from "./tiles.js";
import { TopicTable } from "./topics.js";
import { printable, uriLink } from "./uris.js";
import { Verdict } from "./verdict.js";
import { Watch } from "./watch.js";

/** Initially; more would push the other panels out of sight. */
const FIRST_ROWS = 20;
const ROWS = 100;
const MOST_ROWS = 1000;

const [FIRST_RANGE] = Object.keys(RANGES);

const wanted = {
  topic: null, search: "", state: "", silent: false, subscription: null,
  range: FIRST_RANGE, topicRows: FIRST_ROWS, subscriptionRows: FIRST_ROWS, connectionRows: FIRST_ROWS,
};
let seen = { admin: false, topics: [], subscriptions: { subscriptions: [] } };

const watch = new Watch(show, tell, wanted);
const tail = new Tail(find("#tail"));
const tiles = new Tiles(find("#tiles"), range => change({ range }));
const verdict = new Verdict(find("#health"), leadToTrouble, open);
const parts = new Parts(find("#parts"), {
  sources: () => lead("#topics", { silent: true }),
  callbacks: () => lead("#subscriptions", { state: "trouble" }),
  connections: () => lead("#connections", {}),
});
const topics = new TopicTable(find("#topics"), choose);
const subscriptions = new SubscriptionTable(find("#subscriptions"), open);
const connections = new ConnectionTable(find("#connections"), done);
const details = new Details(find("#details"), done, id => {
  wanted.subscription = id;
  if (id) watch.now();
});

function show(now) {
  seen = now = { ...now, missing: missing(now) };
  if (now.status) setClock(now.status.now);
  verdict.show(now, parts.show(now));
  tiles.show(now, wanted.range);
  connections.show(now, wanted);
  topics.show(now, wanted);
  tail.follow(now.topics, wanted.topic);
  showSigning(find("#access"), now.admin);
  showFailures(find("#failures"), now.failures ?? [], wanted, open);
  showNodes(find("#nodes"), now.nodes);
  setText(find("#subscriptions .problem"), printable(now.problem ?? ""));
  if (!now.admin) return subscriptions.hide();
  const page = now.subscriptions;
  if (!page) return subscriptions.wait();
  subscriptions.show(page, Boolean(wanted.topic || wanted.search || wanted.state));
  details.refresh(now.details);
}

function tell(state, error) {
  const pill = find("#connection");
  if (state === "live" && pill.dataset.state === "lost") tail.wake();
  setAttribute(pill, "data-state", state);
  const problem = error instanceof Refused ? printable(error.message) : "Connection lost, trying again";
  setText(pill, state === "live" ? "Live" : problem);
}

/** Show one topic only, or all. */
function choose(topic) {
  change({ topic: topic === wanted.topic ? null : topic });
}

/** Change what the user wants to see. It is in the address, so that it can be shared. */
function change(choice) {
  const { topic, search, state, silent, range } = { ...wanted, ...choice };
  const chosen = { topic, search, state, silent, range: range === FIRST_RANGE ? null : range };
  const given = Object.entries(chosen).filter(([, value]) => value);
  const hash = given.length ? "#" + new URLSearchParams(given) : "";
  history.replaceState(null, "", location.pathname + location.search + hash);
  narrow();
}

/** Go to the subscriptions in trouble, or if there are none, to the parts of the hub, which lead on. */
function leadToTrouble() {
  const { "given-up": bad = 0, retrying = 0 } = seen.status.states;
  if (bad + retrying) lead("#subscriptions", { state: "trouble" });
  else lead("#parts", {});
}

/** Show some subscriptions or topics only, and go there. */
function lead(selector, choice) {
  change(choice);
  find(selector).focus();
  find(selector).scrollIntoView();
}

function narrow() {
  if (document.getElementById(location.hash.slice(1))) return; // the link to skip to a panel
  const chosen = new URLSearchParams(location.hash.slice(1));
  wanted.topic = chosen.get("topic");
  wanted.search = find("#search").value = chosen.get("search") ?? "";
  const states = find("#subscriptions select");
  states.value = chosen.get("state") ?? "";
  wanted.state = states.value; // empty if there is no such state
  wanted.silent = chosen.has("silent");
  wanted.range = chosen.get("range") in RANGES ? chosen.get("range") : FIRST_RANGE;
  find("#topics select").value = wanted.silent ? "silent" : "";
  const line = find("#narrowed");
  line.hidden = wanted.topic === null;
  find(".subject", line).replaceChildren(...(wanted.topic ? [uriLink(wanted.topic)] : []));
  show(seen);
  watch.now();
}

function open(id) {
  details.open(id);
}

function done(sentence) {
  const told = find("#told");
  setText(told, sentence);
  setTimeout(() => setText(told, ""), 5000);
  watch.now();
}

function more(panel, rows) {
  find(".more", find(panel)).addEventListener("click", () => {
    wanted[rows] = Math.min(wanted[rows] + ROWS, MOST_ROWS);
    watch.now();
  });
}

setText(find("#host"), location.host);
more("#topics", "topicRows");
more("#subscriptions", "subscriptionRows");
more("#connections", "connectionRows");
find("#narrowed button").addEventListener("click", () => choose(null));
find("#find").addEventListener("submit", event => event.preventDefault());
find("#search").addEventListener("input", event => change({ search: event.target.value }));
find("#subscriptions select").addEventListener("change", event => change({ state: event.target.value }));
find("#topics select").addEventListener("change", event => change({ silent: event.target.value === "silent" }));
addEventListener("hashchange", narrow);
offerSigning(find("#access"), find("#sign-in"), () => watch.signedInOrOut());
narrow();
