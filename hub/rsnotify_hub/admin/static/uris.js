/** Formats URIs and other text from clients. */

import { element } from "./dom.js";

/** Return a text with line breaks replaced by spaces. */
export const inOneLine = text => printable(text.replace(/\s+/g, " ").trim());

/** Escape invisible characters, and those that change the direction of text. */
export function printable(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, character =>
    `\\u{${character.codePointAt(0).toString(16)}}`);
}

/** Return the URL to link to; null for anything but http(s). */
function linkable(uri) {
  try {
    const url = new URL(uri);
    return url.protocol === "https:" || url.protocol === "http:" ? url : null;
  } catch {
    return null;
  }
}

/** Return an element's content for a URI: the host in a muted style, then the rest. */
export function uriParts(uri) {
  const url = linkable(uri);
  const shown = printable(uri);
  // If the URL was normalized, the end of the host in the text is unknown.
  if (url === null || !shown.startsWith(url.origin)) return [breakable(shown)];
  return [element("bdi", { class: "origin" }, url.origin), breakable(shown.slice(url.origin.length))];
}

/** Allow line breaks between the parts of a URI. */
function breakable(text) {
  const pieces = text.split(/(?<=[/?&#])(?=[^/])/);
  return element("bdi", {}, ...pieces.flatMap(piece => [element("wbr"), piece]).slice(1));
}

/** Return a link for an http(s) URI, and plain text for any other. */
export function uriLink(uri) {
  const url = linkable(uri);
  if (url === null) return element("span", { class: "uri" }, ...uriParts(uri));
  // The accessible name has no <wbr>, so that screen readers do not split it.
  const attributes = { class: "uri", href: url.href, "aria-label": printable(uri), ...OUTSIDE };
  return element("a", attributes, ...uriParts(uri));
}

/** Return a small link to show beside a URI; null if the URI cannot be opened. */
export function openLink(uri) {
  const url = linkable(uri);
  if (url === null) return null;
  const label = `Open ${printable(uri)}`;
  return element("a", { class: "open", href: url.href, "aria-label": label, title: "Open", ...OUTSIDE }, "↗");
}

const OUTSIDE = { rel: "noopener noreferrer nofollow", target: "_blank" };
