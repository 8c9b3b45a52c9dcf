// Stop and checkpoint now: asked about first, then what the server said.

import { find, say, show } from "./elements.js";
import { Gone, Refused, ask, runPath } from "./server.js";

const ACTIONS = {
  stop: {
    question: (name) => `Stop ${name}? The run saves a checkpoint and ends. The command that started it continues it.`,
    yes: "Stop the run",
    meanwhile: (name) => `Asked ${name} to stop. Waiting until it has saved …`,
  },
  checkpoint: {
    question: (name) => `Save a checkpoint of ${name} now? The run goes on training.`,
    yes: "Save a checkpoint",
    meanwhile: (name) => `Asked ${name} for a checkpoint. Waiting until it is saved …`,
  },
};
const CAN_BE_ASKED = new Set(["running", "starting", "hung", "silent"]);
let run = null;
const waiting = new Set(); // ids of the runs of which an answer is on its way
const answered = new Map(); // id of a run → what was said of the last request

// Near the head of the page where one run is chosen, and else with the details of the one that they are for.
export function placeActions(alone) {
  const place = find(alone ? "actions-alone" : "actions-one");
  if (find("actions").parentElement !== place) place.append(find("actions"));
}

export function showActions(chosen) {
  if (run && run.id !== chosen.id && !waiting.has(run.id)) answered.delete(run.id);
  run = chosen;
  const going = CAN_BE_ASKED.has(run.state);
  say(find("answered"), answered.get(run.id) ?? "");
  show(find("actions"), going || answered.has(run.id));
  for (const id of Object.keys(ACTIONS)) find(id).disabled = !going || waiting.has(run.id);
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
  waiting.add(id);
  answered.set(id, ACTIONS[action].meanwhile(name));
  showActions(run);
  try {
    answered.set(id, (await ask(runPath(id, `/${action}`), "POST")).said);
  } catch (error) {
    if (!(error instanceof Gone || error instanceof Refused)) throw error;
    answered.set(id, error instanceof Refused ? error.sentence : "The server does not answer: the run may have been asked, or not.");
  } finally {
    waiting.delete(id);
  }
  showActions(run);
}

export function startActions() {
  for (const action of Object.keys(ACTIONS)) find(action).addEventListener("click", () => act(action));
}
