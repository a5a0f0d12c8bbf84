/** Shows one square for each Source, and the details of the selected one. Text is never parsed as HTML. */

const TIMEOUT_MS = 10000, POLL_INTERVAL_MS = 2000, EXTRA_MS_PER_SOURCE = 5;

const find = id => document.getElementById(id);
const squares = new Map();
let chosen = null, last = null;

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text; // a replaced text would lose its selection
}

const number = value => value.toLocaleString("en");
const many = (count, one) => `${number(count)} ${one}${count === 1 ? "" : "s"}`;
const time = text => text ? new Date(text).toLocaleString([], { dateStyle: "short", timeStyle: "medium" }) : "not yet";

function duration(since) {
  const seconds = Math.max(0, (Date.now() - new Date(since)) / 1000);
  const [size, unit] = [[86400, "day"], [3600, "hour"], [60, "minute"], [0, "second"]].find(([size]) => seconds >= size);
  return many(Math.floor(seconds / (size || 1)), unit);
}

function standing(source) {
  if (source.standing === "level") return source.in_step ? "in step: an audit found no difference" : "level";
  if (source.phase === "waiting") return "waiting for other Sources to start";
  const words = source.standing === "behind" ? "behind" : "the copy may be wrong";
  return source.behind_since ? `${words}, for ${duration(source.behind_since)}` : words;
}

function push(source) {
  if (!source.through && source.push !== "up") return "not yet";
  if (source.push === "up") return `by push, from ${source.way.join(", ")}`;
  return source.push === "down" ? "by polling: no hub can be reached" : "by polling: the Source offers no push";
}

function showDetails(source) {
  find("details").hidden = !source;
  if (!source) return;
  setText(find("name"), source.name);
  setText(find("standing"), standing(source));
  find("standing").dataset.standing = source.standing;
  const reasons = [...new Set([source.error, source.difference, ...source.doubts, ...source.limits])].filter(Boolean);
  if (reasons.join() !== find("reasons").dataset.shown) {
    find("reasons").replaceChildren(...reasons.map(reason => element("li", reason)));
    find("reasons").dataset.shown = reasons.join();
  }
  const facts = {
    "Source": source.url,
    "Synced through (T)": time(source.through),
    "Lag": source.lag_ms === null ? "no change within the last second" : `${source.lag_ms.toFixed(1)} ms`,
    "Changes arrive": push(source),
    "Pending": many(source.pending, "resource"),
    "In the copy": many(source.resources, "resource"),
    "Compared with the whole set": time(source.compared),
  };
  const shown = find("facts");
  if (!shown.childElementCount) shown.append(...Object.keys(facts).flatMap(name => [element("dt", name), element("dd", "")]));
  Object.values(facts).forEach((text, index) => setText(shown.children[2 * index + 1], text));
}

function choose(name) {
  chosen = chosen === name ? null : name;
  show(last);
  if (chosen) find("name").focus({ preventScroll: true });
}

function showSquares(sources) {
  const names = new Set(sources.map(source => source.name));
  for (const [name, square] of squares) if (!names.has(name)) { square.parentElement.remove(); squares.delete(name); }
  find("sources").classList.toggle("few", sources.length <= 24);
  for (const [index, source] of sources.entries()) {
    if (!squares.has(source.name)) {
      const square = element("button", "", { type: "button", title: source.name, "aria-controls": "details" });
      square.append(element("span", source.name.replace(/^https?:[/][/]/, "")));
      square.addEventListener("click", () => choose(source.name));
      squares.set(source.name, square);
      const item = element("li", "");
      item.append(square);
      find("sources").insertBefore(item, find("sources").children[index] ?? null);
    }
    const square = squares.get(source.name);
    square.dataset.standing = source.standing;
    square.setAttribute("aria-label", `${source.name}: ${source.standing}`);
    square.setAttribute("aria-expanded", String(source.name === chosen));
  }
}

function summary(sources) {
  if (sources.length === 1) return `The copy: ${standing(sources[0])}`;
  const count = kind => sources.filter(source => source.standing === kind).length;
  const parts = [[count("behind"), "behind"], [count("doubt"), "in doubt"]].filter(([number]) => number);
  return `${number(count("level"))} of ${many(sources.length, "Source")} level` +
    parts.map(([count, word]) => `, ${number(count)} ${word}`).join("");
}

function show(status) {
  if (!last && status.sources.length === 1) chosen = status.sources[0].name;
  last = status;
  setText(find("summary"), summary(status.sources));
  showSquares(status.sources);
  showDetails(status.sources.find(source => source.name === chosen));
}

async function follow() {
  for (;;) {
    try {
      const answer = await fetch("status", { signal: AbortSignal.timeout(TIMEOUT_MS) });
      if (!answer.ok) throw new Error(answer.statusText);
      show(await answer.json());
    } catch {
      setText(find("summary"), last ? `no answer; last status from ${time(last.at)}` : "no answer");
    }
    await new Promise(resume => setTimeout(resume, POLL_INTERVAL_MS + EXTRA_MS_PER_SOURCE * squares.size));
  }
}

follow();
