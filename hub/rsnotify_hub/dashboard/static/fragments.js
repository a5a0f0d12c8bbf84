/** What a frame of the hub's WebSocket says has changed (docs/protocol.md). */

const SITEMAP = "http://www.sitemaps.org/schemas/sitemap/0.9";
const RS = "http://www.openarchives.org/rs/terms/";

// Only what begins as one is parsed: of anything else the parser makes an error page, with styles
// that the page's policy forbids.
const BEGINS = /^\uFEFF?\s*(?:<\?xml[^>]*>\s*)?<(?:[\w.-]+:)?urlset[\s>]/;

/** A larger one is told of by its size only: reading it would hold up the page. */
const MOST_CHARACTERS = 1_000_000;

// Where scripts must not make markup out of strings, a parser asks for a policy too. What comes
// of it here is never put into the page: only its text is.
const policy = globalThis.trustedTypes?.createPolicy("fragments", { createHTML: text => text });

/**
 * Read a fragment.
 * @returns {{changes: Array<{uri: string, change: string, length: ?number}>, until: ?string}?}
 *   null for what is not one: a topic's whole content, or one that is too large
 */
export function readFragment(text) {
  if (text.length > MOST_CHARACTERS || !BEGINS.test(text)) return null;
  const parsed = new DOMParser().parseFromString(policy?.createHTML(text) ?? text, "application/xml");
  const root = parsed.documentElement;
  if (root.namespaceURI !== SITEMAP || root.localName !== "urlset") return null;
  const entries = [...root.children].filter(each => each.localName === "url");
  const changes = entries.map(readChange);
  const until = metadata(root)?.getAttribute("until") ?? changes.at(-1)?.datetime ?? null;
  return { changes, until };
}

function readChange(entry) {
  const about = metadata(entry);
  return {
    uri: textOf(entry, "loc"),
    change: about?.getAttribute("change") ?? "changed",
    datetime: about?.getAttribute("datetime") ?? (textOf(entry, "lastmod") || null),
    length: numberOf(about?.getAttribute("length")),
  };
}

const metadata = node =>
  [...node.children].find(each => each.namespaceURI === RS && each.localName === "md");

function textOf(entry, name) {
  const found = [...entry.children].find(each => each.namespaceURI === SITEMAP && each.localName === name);
  return found?.textContent.trim() ?? "";
}

const numberOf = text => (/^\d{1,15}$/.test(text ?? "") ? Number(text) : null);
