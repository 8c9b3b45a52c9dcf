// The buttons that stop a run and save a checkpoint: each asks first, and shows the server's answer.

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
const waiting = new Set(); // ids of the runs whose answer is on its way
const answers = new Map(); // id of a run → what is said of its last request

// Where one run is chosen, the buttons are near the head of the page; else beside the details of the run that they act on.
export function placeActions(alone) {
  const place = find(alone ? "actions-alone" : "actions-one");
  if (find("actions").parentElement !== place) place.append(find("actions"));
}

export function showActions(focused) {
  if (run && run.id !== focused.id && !waiting.has(run.id)) answers.delete(run.id);
  run = focused;
  const canBeAsked = CAN_BE_ASKED.has(run.state);
  say(find("answered"), answers.get(run.id) ?? "");
  show(find("actions"), canBeAsked || answers.has(run.id));
  for (const action of Object.keys(ACTIONS)) find(action).disabled = !canBeAsked || waiting.has(run.id);
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
  answers.set(id, ACTIONS[action].meanwhile(name));
  showActions(run);
  try {
    answers.set(id, (await ask(runPath(id, `/${action}`), "POST")).said);
  } catch (error) {
    if (!(error instanceof Gone || error instanceof Refused)) throw error;
    answers.set(id, error instanceof Refused ? error.sentence : "The server does not answer. It may or may not have asked the run.");
  } finally {
    waiting.delete(id);
  }
  showActions(run);
}

export function startActions() {
  for (const action of Object.keys(ACTIONS)) find(action).addEventListener("click", () => act(action));
}
