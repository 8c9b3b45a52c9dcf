// The page of `maskwright watch --web`: asks for the runs every two seconds and shows what has changed.

import { placeActions, showActions, startActions } from "./actions.js";
import { forgetZoom, startCurves, updateCurves } from "./curves.js";
import { showCheckpoints, showConfiguration, showDiffering, showGlance, showHappened, showRanks } from "./details.js";
import { find, make, onChange, say, show } from "./elements.js";
import { showLog, startLog } from "./log.js";
import { shownRuns, showRuns } from "./runs.js";
import { Gone, Refused, ask, runPath, storeToken, takeTokenFromAddress } from "./server.js";
import { GOING } from "./words.js";

const WAIT = 2_000; // milliseconds between two rounds
const WAIT_AFTER_FAILURE = 3_000;
const MOST_CHOSEN = 20;
const NARROW = matchMedia("(max-width: 60rem)");

const chosen = new Map(); // id of a chosen run → its slot: a colour and a dash
const details = new Map(); // id of a run → its detail, and as its version what the list said of the run then
let list = { runs: [], folders: [], time: 0 };
let hadRuns = false;
let scrollToChosen = false; // on a phone the chosen run is below the list
let timer;
let inRound = false;
let roundWanted = false;

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
  const fragment = [...chosen.keys()].map((id) => `run=${encodeURIComponent(id)}`).join("&");
  history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname);
  forgetZoom();
  if (list.time) showRuns(list, chosen, actions);
  round();
}

const actions = {
  only(id) {
    chosen.clear();
    choose([id]);
    scrollToChosen = NARROW.matches;
  },
  compare(id) {
    const ids = [...chosen.keys()];
    choose(chosen.has(id) ? ids.filter((chosenId) => chosenId !== id) : [...ids, id]);
  },
};

function chooseFromAddress() {
  const ids = takeTokenFromAddress().getAll("run");
  if (ids.length) choose(ids);
}

// ---- rounds ---------------------------------------------------------------------------------------------------------

// One after the other, so that a slow server is never asked twice at once.
async function round() {
  if (inRound) {
    roundWanted = true;
    return;
  }
  inRound = true;
  clearTimeout(timer);
  let wait = WAIT;
  try {
    await ask("/api/runs").then(showList);
    await showChosen();
  } catch (error) {
    if (!(error instanceof Gone || error instanceof Refused)) throw error;
    wait = sayFailure(error);
  } finally {
    inRound = false;
    if (roundWanted) setTimeout(round, 0);
    else if (!document.hidden) timer = setTimeout(round, wait);
    roundWanted = false;
  }
}

function showList(answer) {
  list = answer;
  show(find("gone"), false);
  show(find("locked"), false);
  const ids = new Set(list.runs.map((run) => run.id));
  for (const id of chosen.keys()) if (!ids.has(id)) chosen.delete(id);
  // The first runs that come: where there is room, one of them is chosen.
  if (!hadRuns && !chosen.size && list.runs.length && !NARROW.matches) chosen.set(shownRuns(list.runs)[0].id, 0);
  hadRuns ||= list.runs.length > 0;
  showRuns(list, chosen, actions);
}

// Returns how long to wait before the next round.
function sayFailure(error) {
  if (error instanceof Refused) {
    if (error.status === 401) show(find("locked"), true);
    say(find("gone"), error.sentence);
    // 404: the run was just moved or removed, and the next list lacks it.
    show(find("gone"), error.status !== 401 && error.status !== 404);
    return error.status === 404 ? WAIT : WAIT_AFTER_FAILURE;
  }
  const since = list.time ? ` The numbers are from ${new Date(list.time * 1000).toLocaleTimeString()}.` : "";
  say(find("gone"), `The server does not answer. The page goes on by itself once it is back.${since}`);
  show(find("gone"), true);
  return WAIT_AFTER_FAILURE;
}

function sayIfUnanswered(error) {
  if (!(error instanceof Gone || error instanceof Refused)) throw error;
  sayFailure(error);
}

// The detail of each chosen run, asked for again only where the list says something new of the run.
async function refreshedDetails(runs) {
  await Promise.all(
    runs.map(async (run) => {
      const version = JSON.stringify(run);
      if (details.get(run.id)?.version === version) return;
      details.set(run.id, { version, detail: await ask(runPath(run.id)) });
    }),
  );
  for (const id of details.keys()) if (!chosen.has(id)) details.delete(id);
  return runs.map((run) => details.get(run.id)).filter(Boolean).map((entry) => entry.detail);
}

async function showChosen() {
  const runs = [...chosen.keys()].map((id) => list.runs.find((run) => run.id === id)).filter(Boolean);
  show(find("chosen"), runs.length > 0);
  if (!runs.length) return;
  const shownDetails = await refreshedDetails(runs);
  if (shownDetails.length < runs.length || runs.some((run) => !chosen.has(run.id))) return;
  const slots = new Map(chosen); // other runs may be chosen while the curves are on their way
  showGlance(runs, list.time, slots);
  const ranked = shownDetails.filter((detail) => GOING.has(detail.state) || runs.length === 1);
  show(find("ranks-section"), ranked.length > 0);
  showRanks(ranked);
  showDiffering(shownDetails);
  offerFocus(runs.map((run) => [run.id, run.name]));
  const focused = shownDetails.find((detail) => detail.id === find("focus").value) ?? shownDetails[0];
  placeActions(runs.length === 1);
  showFocused(focused);
  if (scrollToChosen) find("chosen").scrollIntoView({ block: "start" });
  scrollToChosen = false;
  updateCurves(runs, shownDetails, slots).catch(sayIfUnanswered); // without await: the list is kept up to date while long files are read
  await showLog(focused.id, details.get(focused.id)?.version);
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
  find("focus").addEventListener("change", round);
  find("key-search").addEventListener("input", round);
  find("locked").addEventListener("submit", (event) => {
    event.preventDefault();
    storeToken(find("token").value.trim());
    find("token").value = "";
    show(find("locked"), false);
    round();
  });
  document.addEventListener("visibilitychange", () => document.hidden || round());
  addEventListener("hashchange", chooseFromAddress);
  startActions();
  startCurves();
  startLog();
  chooseFromAddress();
  if (!chosen.size) round();
}

start();
