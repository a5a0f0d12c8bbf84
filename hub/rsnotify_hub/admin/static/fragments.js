/** Parses the changes in a frame of the hub's WebSocket (docs/protocol.md). */

import { parsable } from "./trusted-types.js";

const SITEMAP = "http://www.sitemaps.org/schemas/sitemap/0.9";
const RS = "http://www.openarchives.org/rs/terms/";

// Only text that begins like a fragment is parsed. For other text, the parser returns an error page
// with styles that the page's security policy forbids.
const FRAGMENT_START = /^\uFEFF?\s*(?:<\?xml[^>]*>\s*)?<(?:[\w.-]+:)?urlset[\s>]/;

/** Parsing a larger fragment would block the page, so only its size is shown. */
const MAX_CHARACTERS = 1_000_000;

/**
 * Parse a fragment.
 * @returns {{changes: Array<{uri: string, change: string, length: ?number}>, until: ?string}?}
 *   null for a topic's whole content, and for a fragment that is too large
 */
export function readFragment(text) {
  if (text.length > MAX_CHARACTERS || !FRAGMENT_START.test(text)) return null;
  const parsed = new DOMParser().parseFromString(parsable(text), "application/xml");
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
