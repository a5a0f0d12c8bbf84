/** Formats URIs and other texts from clients. */

import { element } from "./dom.js";

/** Replace the line breaks of a text. */
export const inOneLine = text => printable(text.replace(/\s+/g, " ").trim());

/** Make invisible and text-reversing characters visible. */
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
  // The end of the host is only known if both look alike.
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
  // The accessible name has no line breaks, so that a screen reader does not read it in pieces.
  const attributes = { class: "uri", href: url.href, "aria-label": printable(uri), ...OUTSIDE };
  return element("a", attributes, ...uriParts(uri));
}

/** Return a small link beside a URI; null if there is nothing to open. */
export function openLink(uri) {
  const url = linkable(uri);
  if (url === null) return null;
  const label = `Open ${printable(uri)}`;
  return element("a", { class: "open", href: url.href, "aria-label": label, title: "Open", ...OUTSIDE }, "↗");
}

const OUTSIDE = { rel: "noopener noreferrer nofollow", target: "_blank" };
