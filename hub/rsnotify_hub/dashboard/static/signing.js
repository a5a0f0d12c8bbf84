/** Signing in and out as an admin. */

import { find, setText } from "./dom.js";
import { isAdmin, token } from "./hub.js";
import { printable } from "./uris.js";

/**
 * Let a button sign in, and out again.
 * @param {function(): void} changed is called once somebody has
 */
export function offerSigning(button, dialog, changed) {
  const field = find("input", dialog);
  const problem = find(".problem", dialog);
  button.addEventListener("click", () => {
    if (token.get() !== null) {
      token.forget();
      changed();
      return;
    }
    setText(problem, "");
    dialog.showModal();
  });
  find(".cancel", dialog).addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => (field.value = ""));
  find("form", dialog).addEventListener("submit", async event => {
    event.preventDefault();
    setText(problem, (await problemOf(field.value.trim())) ?? "");
    if (problem.textContent) return;
    token.set(field.value.trim());
    dialog.close();
    changed();
  });
}

async function problemOf(candidate) {
  // A header takes nothing else (RFC 6750 §2.1).
  if (!/^[\w.~+/-]+=*$/.test(candidate)) return "A token has letters, digits and -._~+/ only.";
  try {
    return (await isAdmin(candidate)) ? null : "The hub does not know this token as an admin's.";
  } catch (error) {
    return `The hub does not answer: ${printable(error.message)}`;
  }
}

/** Show what the button does; it is not needed where everybody here is an admin. */
export function showSigning(button, admin) {
  const signedIn = token.get() !== null;
  button.hidden = admin && !signedIn;
  setText(button, signedIn ? "Sign out" : "Sign in");
}
