// The list of runs. The row of a run is made once, and changed only when the run has changed.

import { arrange, draw, find, make, say, set, show, spark } from "./elements.js";
import { scoreName, valueOf } from "./metrics.js";
import { ADVANCING, GOING, ago, count, decimal, markOf, percent, seconds, share, several, whole } from "./words.js";

const rows = new Map();
const byName = new Intl.Collator("en", { numeric: true });
const WORST_FIRST = ["lost", "hung", "failed", "silent", "running", "starting", "stopped", "done", "never started"];
const VERDICTS = ["lost", "hung", "silent", "slow", "fine", "ended"];

// By their heartbeats, runs that go on would change places at every round: they are sorted by their starts.
const ORDERS = {
  latest: (run) => (GOING.has(run.state) ? -1e12 - (run.started ?? 0) : -(run.heartbeat ?? 0)),
  state: (run) => (WORST_FIRST.indexOf(run.state) + 99) % 99, // a state that the list lacks comes last
  name: () => 0,
  loss: (run) => run.loss ?? Infinity,
  valid_loss: (run) => run.valid_loss ?? Infinity,
  progress: (run) => -(share(run.step, run.of) ?? -1),
  eta: (run) => run.eta_seconds ?? Infinity,
  speed: (run) => -(run.tokens_per_second ?? -1),
};

export function ranksInWords(ranks) {
  return VERDICTS.filter((verdict) => ranks?.[verdict]).map((verdict) => `${ranks[verdict]} ${verdict}`).join(", ");
}

export function stateMark(state) {
  const [mark, kind] = markOf(state);
  return make("span", { class: `state ${kind}` }, make("span", { "aria-hidden": "true" }, mark), ` ${state}`);
}

function updateStateMark(element, state) {
  const [mark, kind] = markOf(state);
  set(element, "class", `state ${kind}`);
  say(element.firstChild, mark);
  if (element.lastChild.data !== ` ${state}`) element.lastChild.data = ` ${state}`;
}

function rowOf(run, actions) {
  const compare = make("input", { type: "checkbox", change: () => actions.compare(run.id) });
  const name = make("button", { type: "button", class: "name", click: () => actions.only(run.id) });
  const state = stateMark(run.state);
  const bar = make("progress", { max: "1" });
  const parts = { step: make("span"), eta: make("span", { class: "eta" }), loss: make("span"), heldOut: make("span") };
  const ranks = make("div", { class: "line ranks" });
  const path = draw("path", { "vector-effect": "non-scaling-stroke" });
  const curve = draw("svg", { class: "spark", viewBox: "0 0 100 24", preserveAspectRatio: "none", "aria-hidden": "true" }, path);
  const element = make("li", { class: "run" },
    make("label", { class: "compare" }, compare),
    make("div", { class: "line" }, name, state),
    make("div", { class: "line faint" }, bar, parts.step, parts.eta),
    make("div", { class: "line faint" }, parts.loss, parts.heldOut, curve),
    ranks,
  );
  element.addEventListener("click", (event) => {
    if (!event.target.closest("button, label, input") && !getSelection().toString()) actions.only(run.id);
  });
  return { element, compare, name, state, bar, parts, ranks, path, curve, content: "" };
}

function etaOrAge(run, now) {
  return ADVANCING.has(run.state) && run.eta_seconds ? `ETA ${seconds(run.eta_seconds)}` : ago(now - run.heartbeat);
}

// Of fine-tuning, the metric that it is judged by: it says more than the loss.
function heldOut(run) {
  if (typeof run.score === "number" && run.metric !== "loss") return `${scoreName(run.metric)} ${valueOf(`valid_${run.metric}`, run.score)}`;
  return typeof run.valid_loss === "number" ? `held out ${decimal(run.valid_loss, 3)}` : "";
}

function updateRow(row, run, now) {
  const progress = share(run.step, run.of);
  say(row.name, run.name);
  set(row.name, "title", run.location);
  set(row.compare, "aria-label", `Compare ${run.name}`);
  updateStateMark(row.state, run.state);
  set(row.bar, "value", String(progress ?? 0));
  set(row.bar, "aria-label", progress === null ? "progress unknown" : `${percent(progress)} of its steps`);
  say(row.parts.step, progress === null ? whole(run.step) : `${count(run.step)} of ${count(run.of)}`);
  say(row.parts.eta, etaOrAge(run, now));
  say(row.parts.loss, `loss ${decimal(run.loss, 3)}`);
  say(row.parts.heldOut, heldOut(run));
  const trouble = run.health && run.health !== "fine" ? run.health : "";
  say(row.ranks, trouble || (GOING.has(run.state) ? ranksInWords(run.ranks) : ""));
  set(row.ranks, "class", trouble ? "line ranks bad" : "line ranks faint");
  set(row.ranks, "title", trouble);
  spark(row.path, run.spark);
}

function matches(run, words) {
  const text = `${run.name} ${run.location} ${run.state} ${run.kind}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

export function shownRuns(runs) {
  const words = find("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const order = ORDERS[find("sort").value] ?? ORDERS.latest;
  return runs
    .filter((run) => matches(run, words))
    .sort((a, b) => order(a) - order(b) || byName.compare(a.name, b.name));
}

// `chosen`: the slot of each chosen run, by the run's id.
export function showRuns({ runs, folders, time, problems }, chosen, actions) {
  for (const run of runs) {
    const row = rows.get(run.id) ?? rowOf(run, actions);
    rows.set(run.id, row);
    const content = JSON.stringify([run, etaOrAge(run, time)]);
    if (content !== row.content) updateRow(row, run, time);
    row.content = content;
    const slot = chosen.get(run.id);
    set(row.element, "class", slot === undefined ? "run" : `run chosen s${slot % 6}`);
    if (row.compare.checked !== (slot !== undefined)) row.compare.checked = slot !== undefined;
    set(row.name, "aria-pressed", String(slot !== undefined));
  }
  const ids = new Set(runs.map((run) => run.id));
  for (const id of rows.keys()) if (!ids.has(id)) rows.delete(id);
  const shown = shownRuns(runs);
  arrange(find("list"), shown.map((run) => rows.get(run.id).element));
  summarize(runs, shown, folders);
  say(find("problems"), (problems ?? []).join(" · "));
  show(find("problems"), problems?.length > 0);
  show(find("clear"), chosen.size > 1);
}

function summarize(runs, shown, folders) {
  const counts = new Map();
  for (const run of runs) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
  const states = WORST_FIRST.concat("only checkpoints").filter((state) => counts.has(state));
  const countedStates = states.map((state) => `${counts.get(state)} ${state}`).join(", ");
  const where = (folders ?? []).join(", ");
  say(find("summary"), [where, runs.length ? `${several(runs.length, "run")}: ${countedStates}` : ""].filter(Boolean).join(" · "));
  const noRuns = find("none");
  show(noRuns, !shown.length);
  show(find("list"), shown.length > 0);
  if (runs.length) say(noRuns, "No run matches the filter.");
  else say(noRuns, `No run yet${where ? ` in ${where}` : ""}. A run appears here by itself once it has started.`);
  const badRuns = runs.filter((run) => ["hung", "lost", "failed"].includes(run.state)).length;
  document.title = badRuns ? `(${badRuns}!) maskwright watch` : "maskwright watch";
}
