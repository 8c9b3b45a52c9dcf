// The log of one run: its newest lines, older ones on request, or the lines with a text.

import { find, make, say, show } from "./elements.js";
import { Gone, Refused, ask, runPath } from "./server.js";
import { bytes, several } from "./words.js";

const LINES = 200;
const AT_END = 24; // pixels from the end that still count as there
let run = ""; // id
let shownQuestion = ""; // the run and the text that the lines belong to
let shownVersion = ""; // of the run
let [shownStart, shownEnd] = [0, 0]; // bytes of the log that the lines are from
let requests = 0;

function searchText() {
  return find("log-search").value.trim();
}

function address(part) {
  const query = new URLSearchParams({ lines: String(LINES), ...part });
  if (searchText()) query.set("search", searchText());
  return runPath(run, `/log?${query}`);
}

// Marks the text that is searched for, which is in lower case here.
function elementOf(text, searched) {
  const element = make("div", { class: "log-line" });
  const lower = text.toLowerCase();
  let end = 0;
  for (let start = searched ? lower.indexOf(searched) : -1; start >= 0; start = lower.indexOf(searched, end)) {
    element.append(text.slice(end, start), make("mark", {}, text.slice(start, start + searched.length)));
    end = start + searched.length;
  }
  element.append(text.slice(end));
  return element;
}

function elementsOf(answer) {
  return answer.lines.map(({ text }) => elementOf(text, searchText().toLowerCase()));
}

function sayHowMany() {
  const lines = find("log").childElementCount;
  show(find("log-older"), shownStart > 0);
  const unread = shownStart > 0 ? `; the first ${bytes(shownStart)} are not searched yet` : "";
  if (searchText()) say(find("log-found"), `${several(lines, "line")} with “${searchText()}”${unread}`);
  else say(find("log-found"), lines ? "" : "The log has no line yet.");
}

// `version` changes when the run has gone on. Only what the log has grown by since is read then.
export async function showLog(id, version) {
  run = id;
  const question = JSON.stringify([id, searchText()]);
  if (question === shownQuestion && version === shownVersion) return;
  const request = ++requests;
  const fresh = question !== shownQuestion;
  const answer = await ask(address(fresh ? {} : { after: String(shownEnd) }));
  if (request !== requests) return;
  const box = find("log");
  const atEnd = fresh || box.scrollHeight - box.scrollTop - box.clientHeight < AT_END;
  // Otherwise more was written than one answer holds, or the log was cut.
  if (!fresh && answer.start === shownEnd) box.append(...elementsOf(answer));
  else {
    box.replaceChildren(...elementsOf(answer));
    shownStart = answer.start;
  }
  [shownQuestion, shownVersion, shownEnd] = [question, version, answer.end];
  sayHowMany();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

async function showOlder() {
  const box = find("log");
  const [question, start] = [shownQuestion, shownStart];
  const answer = await ask(address({ before: String(start) }));
  if (question !== shownQuestion || start !== shownStart) return;
  const height = box.scrollHeight;
  box.prepend(...elementsOf(answer));
  box.scrollTop += box.scrollHeight - height;
  shownStart = answer.start;
  sayHowMany();
}

function throwUnlessUnanswered(error) {
  if (!(error instanceof Gone || error instanceof Refused)) throw error;
}

export function startLog() {
  let typing;
  find("log-search").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => showLog(run, shownVersion).catch(throwUnlessUnanswered), 250);
  });
  find("log-older").addEventListener("click", () => showOlder().catch(throwUnlessUnanswered));
}
