/** Requests to the hub: its public lists, and its admin API. */

/** The hub refused a request, with a reason. */
export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

const PATIENCE_MILLISECONDS = 10_000;
const KEY = "rsnotify-admin-token";

/** The token of an admin. It is stored for this tab only, and sent only to this hub. */
export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: value => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Return whether the user is an admin, with a token or the stored one. */
export async function isAdmin(candidate = token.get()) {
  return (await get("dashboard/session", {}, candidate)).admin;
}

/**
 * Get JSON from the hub.
 * @param {string} path relative to this page, so that the hub may be served below any path
 * @param {Object<string, string|number|null>} query parameters; null is omitted
 */
export async function get(path, query = {}, bearer = token.get()) {
  const given = Object.entries(query).filter(([, value]) => value !== null);
  const search = new URLSearchParams(given).toString();
  return (await request("GET", search ? `${path}?${search}` : path, null, bearer)).json();
}

/** Execute an operation of the admin API on a subscription or topic. */
export async function act(method, path, body = null) {
  await request(method, "admin/" + path, body, token.get());
}

async function request(method, path, body, bearer) {
  const headers = bearer ? { Authorization: `Bearer ${bearer}` } : {};
  if (body !== null) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method, headers,
    body: body === null ? undefined : JSON.stringify(body),
    cache: "no-store",
    redirect: "error",
    signal: AbortSignal.timeout(PATIENCE_MILLISECONDS),
  });
  if (!answer.ok) throw new Refused(answer.status, await reasonOf(answer));
  return answer;
}

async function reasonOf(answer) {
  const text = (await answer.text()).trim();
  try {
    return JSON.parse(text).error;
  } catch {
    return text || `the hub answered ${answer.status}`;
  }
}

/** Return the address of the hub's WebSocket; the hub does not count those of its dashboard. */
export function socketUrl() {
  const url = new URL("ws?dashboard", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}
