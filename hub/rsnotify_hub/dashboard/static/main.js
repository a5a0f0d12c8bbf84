/** The dashboard: connects the data of the hub with the panels. */

import { Details } from "./details.js";
import { find, setAttribute, setText } from "./dom.js";
import { showFailures } from "./failures.js";
import { setClock } from "./figures.js";
import { Refused } from "./hub.js";
import { missing, showNodes } from "./nodes.js";
import { offerSigning, showSigning } from "./signing.js";
import { SubscriptionTable } from "./subscriptions.js";
import { Tail } from "./tail.js";
import { Tiles } from "./tiles.js";
import { TopicTable } from "./topics.js";
import { printable, uriLink } from "./uris.js";
import { Watch } from "./watch.js";

/** Initially; more would push the subscriptions, which may be failing, out of sight. */
const FIRST_TOPICS = 20;
const ROWS = 100;
const MOST_ROWS = 1000;

const wanted = { topic: null, topicRows: FIRST_TOPICS, subscriptionRows: ROWS };
let seen = { admin: false, topics: [], subscriptions: { subscriptions: [] } };

const watch = new Watch(show, tell, wanted);
const tail = new Tail(find("#tail"));
const tiles = new Tiles(find("#tiles"));
const topics = new TopicTable(find("#topics"), choose);
const subscriptions = new SubscriptionTable(find("#subscriptions"), open);
const details = new Details(find("#details"), done);

function show(now) {
  seen = now = { ...now, missing: missing(now) };
  if (now.status) setClock(now.status.now);
  tiles.show(now);
  topics.show(now, wanted.topic);
  tail.follow(now.topics, wanted.topic);
  showSigning(find("#access"), now.admin);
  showFailures(find("#failures"), now.failures ?? []);
  showNodes(find("#nodes"), now.nodes);
  setText(find("#subscriptions .problem"), printable(now.problem ?? ""));
  if (!now.admin) return subscriptions.hide();
  const page = now.subscriptions;
  if (!page) return subscriptions.wait();
  subscriptions.show(page);
  details.refresh(page.subscriptions);
}

function tell(state, error) {
  const pill = find("#connection");
  if (state === "live" && pill.dataset.state === "lost") tail.wake();
  setAttribute(pill, "data-state", state);
  const problem = error instanceof Refused ? printable(error.message) : "Connection lost, trying again";
  setText(pill, state === "live" ? "Live" : problem);
}

/** Show one topic only, or all. The choice is in the address, so that it can be shared. */
function choose(topic) {
  const hash = topic === null || topic === wanted.topic ? "" : "#topic=" + encodeURIComponent(topic);
  history.replaceState(null, "", location.pathname + location.search + hash);
  narrow();
}

function narrow() {
  wanted.topic = new URLSearchParams(location.hash.slice(1)).get("topic");
  const line = find("#narrowed");
  line.hidden = wanted.topic === null;
  find(".subject", line).replaceChildren(...(wanted.topic ? [uriLink(wanted.topic)] : []));
  show(seen);
  watch.now();
}

function open(id) {
  const subscription = seen.subscriptions?.subscriptions.find(each => each.id === id);
  if (subscription) details.open(subscription);
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
find("#narrowed button").addEventListener("click", () => choose(null));
addEventListener("hashchange", narrow);
offerSigning(find("#access"), find("#sign-in"), () => watch.signedInOrOut());
narrow();
