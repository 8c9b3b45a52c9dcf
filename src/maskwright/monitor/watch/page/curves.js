// The curves of the chosen runs: what is asked of the server, the controls, and when plotly draws.

import { arrange, draw, find, make, onChange, say, set, show } from "./elements.js";
import { AXES, USUAL, drawable, isShare, mapping, nameOf, ownMetrics, panelsOf, unitOf, valueOf } from "./metrics.js";
import { EVENTS, OTHER_EVENT, eventLines, eventTraces, inPercent, layout, lineOf, theme, traces } from "./plots.js";
import { Gone, Refused, ask } from "./server.js";
import { stepTyped, whole } from "./words.js";

const KEPT = "maskwright-watch";
const MOST_POINTS = 1000;
const POINTS_OF_ALL = 8000; // of all runs in one panel: more take longer to draw than anybody wants to wait
const MOST_TICKS = 400;
const TICKED_RUNS = 3;
const MANY_LINES = 8;
const PLOT = { displayModeBar: false, responsive: true, doubleClick: false, showTips: false };

const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");
const panels = new Map();
// `without`: metrics that a run is judged by, and that are not to be drawn all the same.
const view = { metrics: USUAL, without: [], x: "step", log: false, smoothing: 0, ...remembered() };
let range = null; // {x: [first, last] on the axis, from, to: steps}
let shown = { runs: [], details: [], slots: new Map() };
let asked = ""; // what is on its way
let answered = ""; // what `answers` are to
let answers = { series: [], axes: new Map() };
let drawing = "";
let plotly;

function remembered() {
  try {
    const found = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    const lists = [found.metrics, found.without].every(Array.isArray);
    return lists && AXES.includes(found.x) && found.smoothing >= 0 && found.smoothing < 1 ? found : {};
  } catch {
    return {};
  }
}

function remember() {
  try {
    localStorage.setItem(KEPT, JSON.stringify(view));
  } catch {
    // a browser that keeps nothing shows the usual curves again
  }
}

function loaded() {
  plotly ??= new Promise((resolve, reject) => {
    const script = make("script", { src: "/plotly.js", load: () => resolve(window.Plotly), error: reject });
    document.head.append(script);
  });
  return plotly;
}

// ---- asking ---------------------------------------------------------------------------------------------------------

function address(metrics, from, to) {
  const width = find("panels").clientWidth || 800;
  const most = Math.min(MOST_POINTS, Math.ceil(POINTS_OF_ALL / shown.runs.length));
  const query = new URLSearchParams();
  for (const run of shown.runs) query.append("run", run.id);
  for (const metric of metrics) query.append("metric", metric);
  query.set("points", String(Math.min(most, Math.max(200, 100 * Math.round(width / 100)))));
  if (from !== undefined && from !== null) query.set("from", String(from));
  if (to !== undefined && to !== null) query.set("to", String(to));
  return `/api/series?${query}`;
}

// Asks only if a run went on, or other curves are wanted; draws only what differs from what is drawn.
export async function updateCurves(runs, details, slots) {
  shown = { runs, details, slots };
  const metrics = offered();
  const path = metrics.length && runs.length ? address(metrics, range?.from, range?.to) : "";
  const marks = runs.map((run) => [run.id, run.state, run.step, run.loss, run.valid_loss]);
  const question = JSON.stringify([path, view.x]);
  const key = JSON.stringify([question, marks]);
  // A run that goes on meanwhile is asked about in the next round: the first look at long files may take longer than one.
  if (question === asked) return;
  if (key !== answered && !(await answer(question, key, path))) return;
  await drawAll(metrics);
}

// Whether the answer is still wanted once it is there.
async function answer(question, key, path) {
  asked = question;
  try {
    const axis = path && view.x !== "step" ? ask(address([view.x])) : { series: [] };
    const [found, along] = await Promise.all([path ? ask(path) : { series: [] }, axis]);
    if (asked !== question) return false;
    answers = { series: found.series, axes: new Map(along.series.map((one) => [one.run, mapping(one)])) };
    answered = key;
    return true;
  } finally {
    if (asked === question) asked = "";
  }
}

// The chosen metrics that these runs have; a control for each.
function offered() {
  const possible = drawable(shown.details);
  const own = ownMetrics(shown.details);
  const isChosen = (metric) => view.metrics.includes(metric) || (own.includes(metric) && !view.without.includes(metric));
  const chosen = possible.filter(isChosen);
  offer([possible, chosen]);
  find("x-axis").value = view.x;
  return chosen;
}

const offer = onChange(([possible, chosen]) => {
  const there = [...find("metric-list").querySelectorAll("input")];
  if (there.map((box) => box.value).join() === possible.join()) { // the box that was clicked keeps the focus
    for (const box of there) box.checked = chosen.includes(box.value);
    return;
  }
  const boxes = possible.map((metric) => {
    const box = make("input", { type: "checkbox", value: metric, checked: chosen.includes(metric), change: chooseMetrics });
    return make("label", {}, box, ` ${nameOf(metric)}`);
  });
  find("metric-list").replaceChildren(find("metric-list").firstElementChild, ...boxes);
});

function chooseMetrics(event) {
  const { value, checked } = event.target;
  const [others, notWithout] = [view.metrics, view.without].map((all) => all.filter((one) => one !== value));
  view.metrics = checked ? [...others, value] : others;
  view.without = checked ? notWithout : [...notWithout, value];
  changed();
}

// ---- drawing --------------------------------------------------------------------------------------------------------

function scale() {
  if (view.x === "step") return { title: "step", to: () => (step) => step };
  if (view.x === "tokens") return { title: "tokens", to: (run) => answers.axes.get(run)?.to };
  const spans = [...answers.axes.values()].filter(Boolean).map((one) => one.last - one.first);
  const { size, name } = unitOf(Math.max(0, ...spans));
  const to = (run) => {
    const known = answers.axes.get(run);
    return known && ((step) => (known.to(step) - known.first) / size);
  };
  return { title: `time since the run's first line, ${name}`, to };
}

// The same for all panels, with a little room at the ends.
function extent(lines) {
  const [low, high] = [Math.min(...lines.map((line) => line.x[0])), Math.max(...lines.map((line) => line.x.at(-1)))];
  const room = 0.01 * (high - low) || 1;
  return [low - room, high + room];
}

function linesOf(metrics, x) {
  return answers.series.flatMap((one) => {
    const run = shown.runs.find((found) => found.id === one.run);
    const to = run && x.to(one.run);
    if (!to || !metrics.includes(one.metric) || !one.step.length) return [];
    const kind = metrics.length > 1 ? nameOf(one.metric) : "";
    const name = shown.runs.length === 1 ? nameOf(one.metric) : [run.name, kind].filter(Boolean).join(", ");
    return [{ ...one, name, run, slot: shown.slots.get(run.id), x: one.step.map(to) }];
  });
}

function eventsOf(x) {
  if (shown.details.length > TICKED_RUNS) return [];
  return shown.details.flatMap((detail) => {
    const to = x.to(detail.id);
    const who = shown.details.length > 1 ? `${detail.name}: ` : "";
    // The first start is where every curve begins.
    const told = (detail.incidents ?? []).filter((one) => one.event !== "started" || one.step > 0);
    return to ? told.slice(-MOST_TICKS).map((one) => ({ x: to(one.step), event: one.event, text: who + one.what })) : [];
  });
}

async function drawAll(metrics) {
  const key = JSON.stringify([answers.series, [...answers.axes.keys()], metrics, view, range, dark.matches,
    shown.runs.map((run) => [run.name, shown.slots.get(run.id)]), shown.details.map((detail) => detail.incidents)]);
  if (key === drawing) return;
  drawing = key;
  const x = scale();
  const wanted = panelsOf(metrics, shown.details).map(([title, names]) => ({ title, names, lines: linesOf(names, x) }));
  const filled = wanted.filter((one) => one.lines.length);
  sayNone(filled.length > 0, metrics);
  const events = eventsOf(x);
  legend(events, filled.flatMap((one) => one.lines));
  let library;
  try {
    library = filled.length ? await loaded() : null;
  } catch {
    return sayMissing();
  }
  if (drawing !== key) return;
  const colours = theme();
  x.range = range?.x ?? extent(filled.flatMap((one) => one.lines));
  arrangePanels(filled, library);
  for (const [place, one] of filled.entries()) drawPanel(library, one, x, place ? [] : events, events, colours);
}

function arrangePanels(filled, library) {
  const names = filled.map((one) => one.names[0]);
  for (const [name, panel] of panels) {
    if (!names.includes(name)) {
      library?.purge(panel.plot);
      panels.delete(name);
    }
  }
  for (const name of names) {
    if (panels.has(name)) continue;
    const plot = make("div", { class: "plot" });
    panels.set(name, { plot, element: make("div", { class: name === "loss" ? "panel wide" : "panel", role: "img" }, plot), heard: false });
  }
  arrange(find("panels"), names.map((name) => panels.get(name).element));
}

function drawPanel(library, { title, names, lines }, x, marked, events, colours) {
  const panel = panels.get(names[0]);
  const last = lines.map((line) => `${line.name} ${valueOf(line.metric, line.value.at(-1))} at step ${whole(line.step.at(-1))}`);
  set(panel.element, "aria-label", `${title}: ${last.join("; ")}`);
  const share = isShare(names[0]);
  const data = [...traces(share ? lines.map(inPercent) : lines, { ...view, share }, colours), ...eventTraces(marked, colours)];
  const shape = layout(
    {
      title,
      height: names[0] === "loss" ? 320 : 190,
      xTitle: names[0] === "loss" || view.x === "time" ? x.title : "",
      xRange: x.range,
      xCounts: view.x !== "time",
      log: view.log,
      share,
      speed: names[0].endsWith("per_second"),
      zoomable: !touch.matches,
    },
    colours,
    eventLines(events, colours),
    lines.length > MANY_LINES,
  );
  library.react(panel.plot, data, shape, PLOT);
  if (!panel.heard) {
    panel.heard = true;
    panel.plot.on("plotly_relayout", zoomed);
    panel.plot.on("plotly_doubleclick", () => zoom(null));
  }
}

function sayNone(some, metrics) {
  say(find("no-curves"), nothingDrawn(metrics));
  show(find("no-curves"), !some);
  show(find("panels"), some);
}

function nothingDrawn(metrics) {
  if (range) return "There is no log line in these steps.";
  if (!metrics.length && drawable(shown.details).length) return "No metric is chosen.";
  if (answers.series.length && view.x !== "step") return `The log lines have no ${view.x}. Fix: choose another x axis.`;
  return `${shown.runs.length > 1 ? "These runs have" : "The run has"} no log line yet, so there is nothing to draw.`;
}

function sayMissing() {
  plotly = undefined;
  drawing = "";
  say(find("no-curves"), "The server has no plotly.js, so there are no curves. Fix: install the extra `web` again.");
  show(find("no-curves"), true);
}

function swatch(slot, second) {
  const { dash } = lineOf(slot);
  return draw("svg", { class: `swatch s${second ? 1 : slot % 6} ${second ? "solid" : dash}`, viewBox: "0 0 26 10", "aria-hidden": "true" },
    draw("path", { d: "M1 5H25" }));
}

export function runSwatch(slot) {
  return swatch(slot, false);
}

// Only what is drawn: `lines`.
function legend(events, lines) {
  const keys = [];
  const ofLosses = ["loss", "valid_loss"].every((metric) => lines.some((line) => line.metric === metric));
  if (shown.runs.length === 1 && ofLosses) {
    const slot = shown.slots.get(shown.runs[0].id);
    keys.push(make("span", { class: "key" }, swatch(slot, false), " training loss"), make("span", { class: "key" }, swatch(slot, true), " held-out loss"));
  } else if (shown.runs.length > 1) {
    const [drawn, others] = [true, false].map((one) => shown.runs.filter((run) => lines.some((line) => line.run === run) === one));
    keys.push(...drawn.map((run) => make("span", { class: "key" }, runSwatch(shown.slots.get(run.id)), ` ${run.name}`)));
    if (ofLosses) keys.push(make("span", { class: "key" }, "Thin: training loss. Bold: held-out loss."));
    if (drawn.length && others.length) keys.push(make("span", { class: "key" }, `No log line here: ${others.map((run) => run.name).join(", ")}.`));
  }
  for (const event of new Set(events.map((one) => one.event))) {
    const [colour, , name, mark] = EVENTS[event] ?? OTHER_EVENT;
    keys.push(make("span", { class: "key" }, make("span", { class: `event ${colour.slice(2)}` }, mark), ` ${name}`));
  }
  find("legend").replaceChildren(...keys);
}

// ---- controls -------------------------------------------------------------------------------------------------------

function zoomed(event) {
  const [low, high] = event["xaxis.range"] ?? [event["xaxis.range[0]"], event["xaxis.range[1]"]];
  if (typeof low !== "number" || typeof high !== "number") return;
  if (view.x === "step") zoom({ x: [low, high], from: Math.max(0, Math.floor(low)), to: Math.ceil(high) });
  else zoom({ x: [low, high], ...stepsBetween(low, high) });
}

// The steps that any of the runs has between two places of the axis.
function stepsBetween(low, high) {
  const known = [...answers.axes.values()].filter(Boolean);
  const { size } = unitOf(Math.max(0, ...known.map((one) => one.last - one.first)));
  const back = (one, at) => one.back(view.x === "time" ? one.first + at * size : at);
  return {
    from: Math.max(0, Math.floor(Math.min(...known.map((one) => back(one, low))))),
    to: Math.max(0, Math.ceil(Math.max(...known.map((one) => back(one, high))))),
  };
}

function zoom(to) {
  range = to;
  find("from").value = to && view.x === "step" ? to.from : "";
  find("to").value = to && view.x === "step" ? to.to : "";
  show(find("everything"), range !== null);
  refuseSteps("");
  changed();
}

function refuseSteps(why, ids = []) {
  for (const id of ["from", "to"]) set(find(id), "aria-invalid", String(ids.includes(id)));
  say(find("steps-refused"), why);
  show(find("steps-refused"), why !== "");
}

// What cannot be drawn is refused in words, and the curves stay.
function typedSteps() {
  const [from, to] = ["from", "to"].map((id) => stepTyped(find(id).value));
  const wrong = [["from", from], ["to", to]].filter(([, step]) => Number.isNaN(step)).map(([id]) => id);
  if (wrong.length) return refuseSteps("A step is a whole number, 0 or more.", wrong);
  if (from === null && to === null) return zoom(null);
  const first = from ?? 0;
  if (to !== null && to <= first) return refuseSteps("The last step has to be after the first.", ["to"]);
  const last = to ?? Math.max(first + 1, ...shown.runs.map((run) => run.step ?? 0));
  return zoom({ x: [first, last], from: first, to: last });
}

function sayControls() {
  find("log-scale").checked = view.log;
  find("smoothing").value = view.smoothing;
  say(find("smoothed"), view.smoothing ? view.smoothing.toFixed(2) : "off");
  for (const label of document.querySelectorAll("label.steps")) show(label, view.x === "step");
}

// Other curves are wanted: asks, if need be, and draws. A server that is gone is the next round's to tell.
function changed() {
  remember();
  sayControls();
  updateCurves(shown.runs, shown.details, shown.slots).catch((error) => {
    if (!(error instanceof Gone || error instanceof Refused)) throw error;
  });
}

// Other runs: their steps are others.
export function forgetZoom() {
  range = null;
  for (const id of ["from", "to"]) find(id).value = "";
  show(find("everything"), false);
  refuseSteps("");
}

export function startCurves() {
  sayControls();
  find("x-axis").addEventListener("change", (event) => {
    view.x = event.target.value;
    zoom(null);
  });
  for (const id of ["from", "to"]) find(id).addEventListener("change", typedSteps);
  find("everything").addEventListener("click", () => zoom(null));
  find("log-scale").addEventListener("change", (event) => {
    view.log = event.target.checked;
    changed();
  });
  find("smoothing").addEventListener("input", (event) => {
    view.smoothing = Number(event.target.value);
    changed();
  });
  dark.addEventListener("change", changed);
}
