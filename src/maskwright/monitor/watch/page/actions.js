// Stop and checkpoint now: asked about first, then what the server said.

import { find, say, show } from "./elements.js";
import { Gone, Refused, ask, runPath } from "./server.js";

const ACTIONS = {
  stop: {
    question: (name) => `Stop ${name}? It saves a checkpoint and ends. The same command continues it.`,
    yes: "Stop the run",
    meanwhile: (name) => `Asked ${name} to stop. Waiting until it has saved …`,
  },
  checkpoint: {
    question: (name) => `Let ${name} save a checkpoint now? It goes on training.`,
    yes: "Save a checkpoint",
    meanwhile: (name) => `Asked ${name} for a checkpoint. Waiting until it is saved …`,
  },
};
const CAN_BE_ASKED = new Set(["running", "starting", "hung", "silent"]);
let run = null;
let waiting = 0;

// Near the head of the page where one run is chosen, and else with the details of the one that they are for.
export function placeActions(alone) {
  const place = find(alone ? "actions-alone" : "actions-one");
  if (find("actions").parentElement !== place) place.append(find("actions"));
}

export function showActions(chosen) {
  if (run?.id !== chosen.id) say(find("answered"), "");
  run = chosen;
  const going = CAN_BE_ASKED.has(run.state);
  show(find("actions"), going || find("answered").textContent !== "");
  for (const id of Object.keys(ACTIONS)) find(id).disabled = !going || waiting > 0;
}

function confirmed(action) {
  const { question, yes } = ACTIONS[action];
  const dialog = find("confirm");
  say(find("confirm-title"), question(run.name));
  say(find("confirm-yes"), yes);
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

async function act(action) {
  const { id, name } = run;
  if (!(await confirmed(action))) return;
  say(find("answered"), ACTIONS[action].meanwhile(name));
  waiting += 1;
  showActions(run);
  let said;
  try {
    said = (await ask(runPath(id, `/${action}`), "POST")).said;
  } catch (error) {
    if (!(error instanceof Gone || error instanceof Refused)) throw error;
    said = error instanceof Refused ? error.sentence : "The server does not answer, so nothing may have been asked of the run.";
  }
  waiting -= 1;
  if (run.id === id) say(find("answered"), said);
  showActions(run);
}

export function startActions() {
  for (const action of Object.keys(ACTIONS)) find(action).addEventListener("click", () => act(action));
}
