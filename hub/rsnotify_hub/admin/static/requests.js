/** Requests to the hub: to its public lists and its admin API. */

/** Thrown if the hub refuses a request. The message is the hub's reason. */
export class RequestRefused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

const REQUEST_TIMEOUT_MS = 10_000;
const TOKEN_KEY = "rsnotify-admin-token";

/** The admin's token. It is stored for this tab only, and sent only to this hub. */
export const token = {
  get: () => sessionStorage.getItem(TOKEN_KEY),
  set: value => sessionStorage.setItem(TOKEN_KEY, value),
  forget: () => sessionStorage.removeItem(TOKEN_KEY),
};

/** Return whether a token, by default the stored one, is an admin's. */
export async function isAdmin(candidate = token.get()) {
  return (await get("dashboard/session", {}, candidate)).admin;
}

/**
 * Get JSON from the hub.
 * @param {string} path the path relative to this page, because the hub may be below any path
 * @param {Object<string, string|number|null>} query the parameters; null is omitted
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
    signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS),
  });
  if (!answer.ok) throw new RequestRefused(answer.status, await reasonOf(answer));
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

/** Return the URL of the hub's WebSocket. The hub does not count the dashboard's WebSockets. */
export function socketUrl() {
  const url = new URL("ws?dashboard", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}
