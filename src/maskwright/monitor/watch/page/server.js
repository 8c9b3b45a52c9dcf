// Requests to the page's server, and its token.

const TOKEN_KEY = "maskwright-watch-token";
const TIMEOUT = 15_000; // milliseconds
const TIMEOUT_OF_CURVES = 120_000; // the first look at many long runs reads all their lines
const TIMEOUT_OF_ACTIONS = 180_000; // the server answers once the run has saved, or after two minutes
let token = storedToken();

export class Refused extends Error {
  constructor(status, error) {
    super([error.where, error.what].filter(Boolean).join(": "));
    this.status = status;
    this.fix = error.fix ?? "";
  }

  get sentence() {
    return this.fix ? `${this.message}. Fix: ${this.fix}` : this.message;
  }
}

// No answer, or one that is not the server's: it is gone, or something stands between it and the page.
export class Gone extends Error {}

// A tab that may store nothing still works, until it is loaded again.
function storedToken() {
  try {
    return sessionStorage.getItem(TOKEN_KEY) ?? "";
  } catch {
    return "";
  }
}

export function storeToken(value) {
  token = value;
  try {
    sessionStorage.setItem(TOKEN_KEY, value);
  } catch {
    // see storedToken
  }
}

// Takes the token out of the address, where the history and a shared screen would show it. Returns what else is there.
export function takeTokenFromAddress() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const tokenOfAddress = fragment.get("token");
  if (tokenOfAddress) {
    storeToken(tokenOfAddress);
    fragment.delete("token");
    history.replaceState(null, "", `#${fragment}`);
  }
  return fragment;
}

export async function ask(path, method = "GET") {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const signal = AbortSignal.timeout(method === "POST" ? TIMEOUT_OF_ACTIONS : path.startsWith("/api/series") ? TIMEOUT_OF_CURVES : TIMEOUT);
  let response;
  let text;
  try {
    response = await fetch(path, { method, headers, cache: "no-store", signal });
    text = await response.text();
  } catch (error) {
    throw new Gone(error.message);
  }
  let answer;
  try {
    answer = JSON.parse(text);
  } catch {
    throw new Gone(`answered ${response.status} without JSON`);
  }
  if (!response.ok) throw new Refused(response.status, answer.error ?? { what: `answered ${response.status}` });
  return answer;
}

export const runPath = (id, rest = "") => `/api/runs/${encodeURIComponent(id)}${rest}`;
