/** Signs in and out as an admin. */

import { find, setText } from "./dom.js";
import { isAdmin, token } from "./requests.js";
import { printable } from "./uris.js";

/**
 * Make a button sign in and out.
 * @param {function(): void} changed called after the user has signed in or out
 */
export function enableSignIn(button, dialog, changed) {
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
  // The syntax of a bearer token (RFC 6750 §2.1).
  if (!/^[\w.~+/-]+=*$/.test(candidate)) return "A token contains only letters, digits and -._~+/.";
  try {
    return (await isAdmin(candidate)) ? null : "This is not an admin's token.";
  } catch (error) {
    return `The hub does not answer: ${printable(error.message)}`;
  }
}

/** Update the button, which is hidden if every local user is an admin. */
export function updateSignInButton(button, admin) {
  const signedIn = token.get() !== null;
  button.hidden = admin && !signedIn;
  setText(button, signedIn ? "Sign out" : "Sign in");
}
