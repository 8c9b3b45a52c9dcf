// Stop and checkpoint now: asked about first, then what the server said.

import { find, say, show } from "./elements.js";
import { Gone, Refused, ask, hasToken, runPath } from "./server.js";

const ACTIONS = {
  stop: {
    question: (name) => `Stop ${name}? It saves a checkpoint and ends. The same command continues it.`,
    yes: "Stop the run",
  },
  checkpoint: {
    question: (name) => `Let ${name} save a checkpoint now? It goes on training.`,
    yes: "Save a checkpoint",
  },
};
const CAN_BE_ASKED = new Set(["running", "starting", "hung", "silent"]);
let run = null;

export function showActions(chosen) {
  if (run?.id !== chosen.id) say(find("answered"), "");
  run = chosen;
  const open = hasToken() && CAN_BE_ASKED.has(run.state);
  show(find("actions"), open || find("answered").textContent !== "");
  for (const id of Object.keys(ACTIONS)) find(id).disabled = !open;
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
  const { id } = run;
  if (!(await confirmed(action))) return;
  let said;
  try {
    said = (await ask(runPath(id, `/${action}`), "POST")).said;
  } catch (error) {
    if (!(error instanceof Gone || error instanceof Refused)) throw error;
    said = error instanceof Refused ? error.sentence : "The server does not answer, so nothing was asked of the run.";
  }
  if (run.id === id) say(find("answered"), said);
}

export function startActions() {
  for (const action of Object.keys(ACTIONS)) find(action).addEventListener("click", () => act(action));
}
