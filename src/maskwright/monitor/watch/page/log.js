// The log of one run: its newest lines, older ones on request, or those with a text.

import { find, make, say, show } from "./elements.js";
import { Gone, Refused, ask, runPath } from "./server.js";
import { several } from "./words.js";

const LINES = 200;
const AT_END = 24; // pixels from the end that still count as there
let of = ""; // run and text that the lines belong to
let run = "";
let heard = "";
let number = 0;

function text() {
  return find("log-search").value.trim();
}

function address(before) {
  const query = new URLSearchParams({ lines: String(LINES) });
  if (text()) query.set("search", text());
  if (before) query.set("before", String(before));
  return runPath(run, `/log?${query}`);
}

// With what was looked for marked.
function lineOf({ number: place, text: words }, wanted) {
  const line = make("div", { class: "log-line", "data-number": place });
  const lower = words.toLowerCase();
  let at = 0;
  for (let next = wanted ? lower.indexOf(wanted) : -1; next >= 0; next = lower.indexOf(wanted, at)) {
    line.append(words.slice(at, next), make("mark", {}, words.slice(next, next + wanted.length)));
    at = next + wanted.length;
  }
  line.append(words.slice(at));
  return line;
}

function numberOf(line) {
  return line ? Number(line.dataset.number) : 0;
}

function sayFound(more) {
  const lines = find("log").childElementCount;
  show(find("log-older"), more);
  if (text()) say(find("log-found"), `${several(lines, "line")} with “${text()}”${more ? ", and older ones" : ""}`);
  else say(find("log-found"), lines ? "" : "The log has no line yet.");
}

// `mark` changes when the run has gone on.
export async function showLog(id, mark) {
  run = id;
  const wanted = JSON.stringify([id, text()]);
  if (wanted === of && mark === heard) return;
  const mine = ++number;
  const found = await ask(address());
  if (mine !== number) return;
  const box = find("log");
  const fresh = wanted !== of;
  const atEnd = fresh || box.scrollHeight - box.scrollTop - box.clientHeight < AT_END;
  const last = fresh ? 0 : numberOf(box.lastElementChild);
  const lines = found.lines.filter((line) => line.number > last);
  // Where more was written than one answer holds, the lines between would be missing.
  const gap = !fresh && lines.length === found.lines.length && found.more && lines.length > 0;
  const drawn = lines.map((line) => lineOf(line, text().toLowerCase()));
  if (fresh || gap) box.replaceChildren(...drawn);
  else box.append(...drawn);
  if (fresh || gap || !box.childElementCount) sayFound(found.more);
  else if (drawn.length) sayFound(!find("log-older").hidden);
  if (atEnd) box.scrollTop = box.scrollHeight;
  [of, heard] = [wanted, mark];
}

async function older() {
  const box = find("log");
  const [wanted, first] = [of, numberOf(box.firstElementChild)];
  const found = await ask(address(first));
  if (wanted !== of || first !== numberOf(box.firstElementChild)) return;
  const height = box.scrollHeight;
  box.prepend(...found.lines.map((line) => lineOf(line, text().toLowerCase())));
  box.scrollTop += box.scrollHeight - height;
  sayFound(found.more);
}

function unlessGone(error) {
  if (!(error instanceof Gone || error instanceof Refused)) throw error;
}

export function startLog() {
  let typing;
  find("log-search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => showLog(run, heard).catch(unlessGone), 250);
  });
  find("log-older").addEventListener("click", () => older().catch(unlessGone));
}
