/** The dashboard: polls the hub, and updates the panels. */

import { RANGES } from "./chart-data.js";
import { ConnectionTable } from "./connection-table.js";
import { find, setAttribute, setText } from "./dom.js";
import { showFailures } from "./failure-list.js";
import { setClock } from "./formatting.js";
import { LiveTail } from "./live-tail.js";
import { coverage, showNodes } from "./node-table.js";
import { PartList } from "./part-list.js";
import { Poller } from "./poller.js";
import { RequestRefused } from "./requests.js";
import { enableSignIn, updateSignInButton } from "./sign-in.js";
import { SubscriptionDetails } from "./subscription-details.js";
import { SubscriptionTable } from "./subscription-table.js";
import { Tiles } from "./tiles.js";
import { TopicTable } from "./topic-table.js";
import { printable, uriLink } from "./uris.js";
import { Verdict } from "./verdict.js";

/** More initial rows would push the other panels out of sight. */
const INITIAL_ROWS = 20;
const ADDED_ROWS = 100;
const MAX_ROWS = 1000;

const [FIRST_RANGE] = Object.keys(RANGES);

const wanted = {
  topic: null, search: "", state: "", silent: false, subscription: null,
  range: FIRST_RANGE, topicRows: INITIAL_ROWS, subscriptionRows: INITIAL_ROWS, connectionRows: INITIAL_ROWS,
};
let seen = { admin: false, topics: [], subscriptions: { subscriptions: [] } };

const poller = new Poller(show, tell, wanted);
const tail = new LiveTail(find("#tail"));
const tiles = new Tiles(find("#tiles"), range => change({ range }));
const verdict = new Verdict(find("#health"), leadToTrouble, open);
const parts = new PartList(find("#parts"), {
  sources: () => lead("#topics", { silent: true }),
  callbacks: () => lead("#subscriptions", { state: "trouble" }),
  connections: () => lead("#connections", {}),
});
const topics = new TopicTable(find("#topics"), choose);
const subscriptions = new SubscriptionTable(find("#subscriptions"), open);
const connections = new ConnectionTable(find("#connections"), done);
const details = new SubscriptionDetails(find("#details"), done, id => {
  wanted.subscription = id;
  if (id) poller.now();
});

function show(now) {
  seen = now = { ...now, missing: coverage(now) };
  if (now.status) setClock(now.status.now);
  verdict.show(now, parts.show(now));
  tiles.show(now, wanted.range);
  connections.show(now, wanted);
  topics.show(now, wanted);
  tail.follow(now.topics, wanted.topic);
  updateSignInButton(find("#access"), now.admin);
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
  const problem = error instanceof RequestRefused ? printable(error.message) : "Connection lost, reconnecting";
  setText(pill, state === "live" ? "Live" : problem);
}

/** Show only one topic, or all topics if it was chosen before. */
function choose(topic) {
  change({ topic: topic === wanted.topic ? null : topic });
}

/** Change the user's choices, which are in the URL so that they can be shared. */
function change(choice) {
  const { topic, search, state, silent, range } = { ...wanted, ...choice };
  const chosen = { topic, search, state, silent, range: range === FIRST_RANGE ? null : range };
  const given = Object.entries(chosen).filter(([, value]) => value);
  const hash = given.length ? "#" + new URLSearchParams(given) : "";
  history.replaceState(null, "", location.pathname + location.search + hash);
  applyHash();
}

/** Go to the subscriptions in trouble or, if there are none, to the parts of the hub. */
function leadToTrouble() {
  const { "given-up": bad = 0, retrying = 0 } = seen.status.states;
  if (bad + retrying) lead("#subscriptions", { state: "trouble" });
  else lead("#parts", {});
}

/** Apply a choice, and go to a panel. */
function lead(selector, choice) {
  change(choice);
  find(selector).focus();
  find(selector).scrollIntoView();
}

function applyHash() {
  if (document.getElementById(location.hash.slice(1))) return; // the hash is a link to a panel
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
  poller.now();
}

function open(id) {
  details.open(id);
}

function done(sentence) {
  const message = find("#message");
  setText(message, sentence);
  setTimeout(() => setText(message, ""), 5000);
  poller.now();
}

function more(panel, rows) {
  find(".more", find(panel)).addEventListener("click", () => {
    wanted[rows] = Math.min(wanted[rows] + ADDED_ROWS, MAX_ROWS);
    poller.now();
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
addEventListener("hashchange", applyHash);
enableSignIn(find("#access"), find("#sign-in"), () => poller.signedInOrOut());
applyHash();
