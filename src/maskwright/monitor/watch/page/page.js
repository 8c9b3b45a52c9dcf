// The page of `maskwright watch --web`: asks for the runs every two seconds, and shows what changed.

import { placeActions, showActions, startActions } from "./actions.js";
import { forgetZoom, startCurves, updateCurves } from "./curves.js";
import { showCheckpoints, showConfiguration, showDiffering, showGlance, showHappened, showRanks } from "./details.js";
import { find, make, onChange, say, show } from "./elements.js";
import { showLog, startLog } from "./log.js";
import { shownRuns, showRuns } from "./runs.js";
import { Gone, Refused, ask, keepToken, runPath, takeToken } from "./server.js";
import { GOING } from "./words.js";

const EVERY = 2_000; // milliseconds between two rounds
const LATER = 3_000; // while the server is gone
const MOST_CHOSEN = 20;
const NARROW = matchMedia("(max-width: 60rem)");

const chosen = new Map(); // id of a run → its place among the colours
const details = new Map(); // id of a run → its detail and what the list said of the run then
let list = { runs: [], folders: [], time: 0 };
let heardOnce = false;
let goThere = false; // on a phone the chosen run is below the list
let timer;
let working = false;
let again = false;

// ---- choosing -------------------------------------------------------------------------------------------------------

function freeSlot() {
  const taken = new Set(chosen.values());
  let slot = 0;
  while (taken.has(slot)) slot += 1;
  return slot;
}

function choose(ids) {
  for (const id of chosen.keys()) if (!ids.includes(id)) chosen.delete(id);
  show(find("limit"), ids.length > MOST_CHOSEN);
  say(find("limit"), `At most ${MOST_CHOSEN} runs are compared at once.`);
  for (const id of ids.slice(0, MOST_CHOSEN)) if (!chosen.has(id)) chosen.set(id, freeSlot());
  const kept = [...chosen.keys()].map((id) => `run=${encodeURIComponent(id)}`).join("&");
  history.replaceState(null, "", kept ? `#${kept}` : location.pathname);
  forgetZoom();
  if (list.time) showRuns(list, chosen, actions);
  wake();
}

const actions = {
  only(id) {
    chosen.clear();
    choose([id]);
    goThere = NARROW.matches;
  },
  compare(id) {
    const ids = [...chosen.keys()];
    choose(chosen.has(id) ? ids.filter((one) => one !== id) : [...ids, id]);
  },
};

function fromAddress() {
  const ids = takeToken().getAll("run");
  if (ids.length) choose(ids);
}

// ---- rounds ---------------------------------------------------------------------------------------------------------

// One after the other, so that a slow server is not asked twice at once.
async function round() {
  if (working) {
    again = true;
    return;
  }
  working = true;
  clearTimeout(timer);
  let wait = EVERY;
  try {
    await ask("/api/runs").then(heard);
    await showChosen();
  } catch (error) {
    if (!(error instanceof Gone || error instanceof Refused)) throw error;
    wait = failed(error);
  } finally {
    working = false;
    if (again) setTimeout(round, 0);
    else if (!document.hidden) timer = setTimeout(round, wait);
    again = false;
  }
}

function wake() {
  round();
}

function heard(found) {
  list = found;
  show(find("gone"), false);
  show(find("locked"), false);
  const there = new Set(list.runs.map((run) => run.id));
  for (const id of chosen.keys()) if (!there.has(id)) chosen.delete(id);
  // Nothing was chosen yet, and there is something to see.
  if (!heardOnce && !chosen.size && list.runs.length && !NARROW.matches) chosen.set(shownRuns(list.runs)[0].id, 0);
  heardOnce ||= list.runs.length > 0;
  showRuns(list, chosen, actions);
}

function failed(error) {
  if (error instanceof Refused) {
    if (error.status === 401) show(find("locked"), true);
    say(find("gone"), error.sentence);
    // A run that has just been moved or removed: the next list lacks it.
    show(find("gone"), error.status !== 401 && error.status !== 404);
    return error.status === 404 ? EVERY : LATER;
  }
  const since = list.time ? ` The numbers are from ${new Date(list.time * 1000).toLocaleTimeString()}.` : "";
  say(find("gone"), `The server does not answer. The page goes on by itself once it is back.${since}`);
  show(find("gone"), true);
  return LATER;
}

function told(error) {
  if (!(error instanceof Gone || error instanceof Refused)) throw error;
  failed(error);
}

// The detail of each chosen run, asked for again only if the list says something else of the run.
async function refreshed(runs) {
  await Promise.all(
    runs.map(async (run) => {
      const mark = JSON.stringify(run);
      if (details.get(run.id)?.mark === mark) return;
      details.set(run.id, { mark, detail: await ask(runPath(run.id)) });
    }),
  );
  for (const id of details.keys()) if (!chosen.has(id)) details.delete(id);
  return runs.map((run) => details.get(run.id)).filter(Boolean).map((one) => one.detail);
}

async function showChosen() {
  const runs = [...chosen.keys()].map((id) => list.runs.find((run) => run.id === id)).filter(Boolean);
  show(find("chosen"), runs.length > 0);
  if (!runs.length) return;
  const found = await refreshed(runs);
  if (found.length < runs.length || runs.some((run) => !chosen.has(run.id))) return;
  const slots = new Map(chosen); // while curves are on their way, others may be chosen
  showGlance(runs, list.time, slots);
  const ranked = found.filter((detail) => GOING.has(detail.state) || runs.length === 1);
  show(find("ranks-section"), ranked.length > 0);
  showRanks(ranked);
  showDiffering(found);
  offerFocus(runs.map((run) => [run.id, run.name]));
  const focused = found.find((detail) => detail.id === find("focus").value) ?? found[0];
  placeActions(runs.length === 1);
  showFocused(focused);
  if (goThere) find("chosen").scrollIntoView({ block: "start" });
  goThere = false;
  updateCurves(runs, found, slots).catch(told); // not waited for: the list goes on while long files are read
  await showLog(focused.id, details.get(focused.id)?.mark);
}

const offerFocus = onChange((names) => {
  const before = find("focus").value;
  find("focus").replaceChildren(...names.map(([id, name]) => make("option", { value: id, selected: id === before }, name)));
  show(find("which"), names.length > 1);
});

function showFocused(detail) {
  showActions(detail);
  showHappened(detail);
  showCheckpoints(detail, list.time);
  showConfiguration(detail);
}

// ---- start ----------------------------------------------------------------------------------------------------------

function start() {
  for (const [id, event] of [["filter", "input"], ["sort", "change"]]) {
    find(id).addEventListener(event, () => showRuns(list, chosen, actions));
  }
  find("clear").addEventListener("click", () => choose([...chosen.keys()].slice(0, 1)));
  find("focus").addEventListener("change", wake);
  find("key-search").addEventListener("input", wake);
  find("locked").addEventListener("submit", (event) => {
    event.preventDefault();
    keepToken(find("token").value.trim());
    find("token").value = "";
    show(find("locked"), false);
    wake();
  });
  document.addEventListener("visibilitychange", () => document.hidden || wake());
  addEventListener("hashchange", fromAddress);
  startActions();
  startCurves();
  startLog();
  fromAddress();
  if (!chosen.size) wake();
}

start();
