// The log of one run: its newest lines, older ones on request, or the lines with a text.

import { find, make, say, show } from "./elements.js";
import { Gone, Refused, ask, runPath } from "./server.js";
import { several } from "./words.js";

const LINES = 200;
const AT_END = 24; // pixels from the end that still count as there
let run = ""; // id
let shownQuestion = ""; // the run and the text that the lines belong to
let shownVersion = ""; // of the run
let requests = 0;

function searchText() {
  return find("log-search").value.trim();
}

function address(before) {
  const query = new URLSearchParams({ lines: String(LINES) });
  if (searchText()) query.set("search", searchText());
  if (before) query.set("before", String(before));
  return runPath(run, `/log?${query}`);
}

// Marks the text that is searched for, which is in lower case here.
function elementOf({ number, text }, searched) {
  const element = make("div", { class: "log-line", "data-number": number });
  const lower = text.toLowerCase();
  let end = 0;
  for (let start = searched ? lower.indexOf(searched) : -1; start >= 0; start = lower.indexOf(searched, end)) {
    element.append(text.slice(end, start), make("mark", {}, text.slice(start, start + searched.length)));
    end = start + searched.length;
  }
  element.append(text.slice(end));
  return element;
}

function numberOf(element) {
  return element ? Number(element.dataset.number) : 0;
}

function sayHowMany(more) {
  const lines = find("log").childElementCount;
  show(find("log-older"), more);
  if (searchText()) say(find("log-found"), `${several(lines, "line")} with “${searchText()}”${more ? ", and older ones" : ""}`);
  else say(find("log-found"), lines ? "" : "The log has no line yet.");
}

// `version` changes when the run has gone on.
export async function showLog(id, version) {
  run = id;
  const question = JSON.stringify([id, searchText()]);
  if (question === shownQuestion && version === shownVersion) return;
  const request = ++requests;
  const answer = await ask(address());
  if (request !== requests) return;
  const box = find("log");
  const fresh = question !== shownQuestion;
  const atEnd = fresh || box.scrollHeight - box.scrollTop - box.clientHeight < AT_END;
  const last = fresh ? 0 : numberOf(box.lastElementChild);
  const lines = answer.lines.filter((line) => line.number > last);
  // More was written than one answer holds: the lines between those shown and these are missing.
  const gap = !fresh && lines.length === answer.lines.length && answer.more && lines.length > 0;
  const elements = lines.map((line) => elementOf(line, searchText().toLowerCase()));
  if (fresh || gap) box.replaceChildren(...elements);
  else box.append(...elements);
  if (fresh || gap || !box.childElementCount) sayHowMany(answer.more);
  else if (elements.length) sayHowMany(!find("log-older").hidden);
  if (atEnd) box.scrollTop = box.scrollHeight;
  [shownQuestion, shownVersion] = [question, version];
}

async function showOlder() {
  const box = find("log");
  const [question, first] = [shownQuestion, numberOf(box.firstElementChild)];
  const answer = await ask(address(first));
  if (question !== shownQuestion || first !== numberOf(box.firstElementChild)) return;
  const height = box.scrollHeight;
  box.prepend(...answer.lines.map((line) => elementOf(line, searchText().toLowerCase())));
  box.scrollTop += box.scrollHeight - height;
  sayHowMany(answer.more);
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
