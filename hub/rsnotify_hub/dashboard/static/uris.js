/** URIs and other words of strangers, as they may be shown. */

import { element } from "./dom.js";

/** Write a stranger's lines as one. */
export const inOneLine = text => printable(text.replace(/\s+/g, " ").trim());

/** Show what would not be seen, or would turn the text around: controls and format characters. */
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

/** Return an element's content for a URI: where it is, quietly, then what it is. */
export function uriParts(uri) {
  const url = linkable(uri);
  const shown = printable(uri);
  // Only where the two look alike is it known where the host ends.
  if (url === null || !shown.startsWith(url.origin)) return [breakable(shown)];
  return [element("bdi", { class: "origin" }, url.origin), breakable(shown.slice(url.origin.length))];
}

/** Let a long line break where a URI has its parts. */
function breakable(text) {
  const pieces = text.split(/(?<=[/?&#])(?=[^/])/);
  return element("bdi", {}, ...pieces.flatMap(piece => [element("wbr"), piece]).slice(1));
}

/** Return a link for an http(s) URI, and plain text for any other. */
export function uriLink(uri) {
  const url = linkable(uri);
  if (url === null) return element("span", { class: "uri" }, ...uriParts(uri));
  // Its name is said whole: where its text may break, it would be said in pieces.
  const attributes = { class: "uri", href: url.href, "aria-label": printable(uri), ...OUTSIDE };
  return element("a", attributes, ...uriParts(uri));
}

/** Return a small link beside a URI that is shown otherwise; null where there is nothing to open. */
export function openLink(uri) {
  const url = linkable(uri);
  if (url === null) return null;
  const label = `Open ${printable(uri)}`;
  return element("a", { class: "open", href: url.href, "aria-label": label, title: "Open", ...OUTSIDE }, "↗");
}

const OUTSIDE = { rel: "noopener noreferrer nofollow", target: "_blank" };
