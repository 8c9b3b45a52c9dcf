// What the page asks of its server, and the token.

const KEPT = "maskwright-watch-token";
const PATIENCE = 15_000; // milliseconds
const PATIENCE_TO_READ = 120_000; // the first look at the curves of many long runs
const PATIENCE_TO_SAVE = 180_000; // the server answers once the run has saved, or after two minutes
let token = kept();

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

// No answer, or none that means anything: the server is gone, or something stands between.
export class Gone extends Error {}

// A tab that may keep nothing still works, until it is loaded again.
function kept() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

export function keepToken(value) {
  token = value;
  try {
    sessionStorage.setItem(KEPT, value);
  } catch {
    // see kept
  }
}

// Takes the token out of the address, where the history and a shared screen would show it. Gives back what else is there.
export function takeToken() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  const found = fragment.get("token");
  if (found) {
    keepToken(found);
    fragment.delete("token");
    history.replaceState(null, "", `#${fragment}`);
  }
  return fragment;
}

export async function ask(path, method = "GET") {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const signal = AbortSignal.timeout(method === "POST" ? PATIENCE_TO_SAVE : path.startsWith("/api/series") ? PATIENCE_TO_READ : PATIENCE);
  let answer;
  let text;
  try {
    answer = await fetch(path, { method, headers, cache: "no-store", signal });
    text = await answer.text();
  } catch (error) {
    throw new Gone(error.message);
  }
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Gone(`answered ${answer.status} without JSON`);
  }
  if (!answer.ok) throw new Refused(answer.status, found.error ?? { what: `answered ${answer.status}` });
  return found;
}

export const runPath = (id, rest = "") => `/api/runs/${encodeURIComponent(id)}${rest}`;
