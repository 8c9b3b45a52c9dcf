// The curves of the chosen runs: requests to the server, controls, and when plotly draws.

import { arrange, draw, find, make, onChange, say, set, show } from "./elements.js";
import { AXES, USUAL, drawable, isShare, judgingMetrics, mapping, nameOf, panelsOf, unitOf, valueOf } from "./metrics.js";
import { EVENTS, OTHER_EVENT, eventLines, eventTraces, inPercent, layout, lineOf, theme, traces } from "./plots.js";
import { Gone, Refused, ask } from "./server.js";
import { parseStep, whole } from "./words.js";

const VIEW_KEY = "maskwright-watch";
const MOST_POINTS = 1000; // of one run
const MOST_POINTS_OF_ALL = 8000; // of all runs in one panel: more take longer to draw than anybody wants to wait
const MOST_TICKS = 400;
const MOST_TICKED_RUNS = 3;
const MANY_LINES = 8;
const PLOT_OPTIONS = { displayModeBar: false, responsive: true, doubleClick: false, showTips: false };

const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");
const panels = new Map(); // first metric of a panel → its elements
// `without`: metrics that a run is judged by, which are drawn unless they are here.
const view = { metrics: USUAL, without: [], x: "step", log: false, smoothing: 0, ...storedView() };
let range = null; // {x: [first, last] on the axis, from, to: steps}
let shown = { runs: [], details: [], slots: new Map() };
let pendingQuestion = ""; // its answer is on its way
let answers = { to: "", series: [], axes: new Map() }; // `to`: the question and the runs' state then
let drawingKey = ""; // all that the drawing follows from
let plotly;

function storedView() {
  try {
    const stored = JSON.parse(localStorage.getItem(VIEW_KEY) ?? "{}");
    const haveLists = [stored.metrics, stored.without].every(Array.isArray);
    return haveLists && AXES.includes(stored.x) && stored.smoothing >= 0 && stored.smoothing < 1 ? stored : {};
  } catch {
    return {};
  }
}

function storeView() {
  try {
    localStorage.setItem(VIEW_KEY, JSON.stringify(view));
  } catch {
    // a browser that stores nothing shows the usual curves next time
  }
}

function loadedPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = make("script", { src: "/plotly.js", load: () => resolve(window.Plotly), error: reject });
    document.head.append(script);
  });
  return plotly;
}

// ---- asking ---------------------------------------------------------------------------------------------------------

function address(metrics, from, to) {
  const width = find("panels").clientWidth || 800;
  const most = Math.min(MOST_POINTS, Math.ceil(MOST_POINTS_OF_ALL / shown.runs.length));
  const query = new URLSearchParams();
  for (const run of shown.runs) query.append("run", run.id);
  for (const metric of metrics) query.append("metric", metric);
  query.set("points", String(Math.min(most, Math.max(200, 100 * Math.round(width / 100)))));
  if (from !== undefined && from !== null) query.set("from", String(from));
  if (to !== undefined && to !== null) query.set("to", String(to));
  return `/api/series?${query}`;
}

// Asks only if a run went on or other curves are wanted, and draws only what differs from what is drawn.
export async function updateCurves(runs, details, slots) {
  shown = { runs, details, slots };
  const metrics = chosenMetrics();
  const path = metrics.length && runs.length ? address(metrics, range?.from, range?.to) : "";
  const versions = runs.map((run) => [run.id, run.state, run.step, run.loss, run.valid_loss]);
  const question = JSON.stringify([path, view.x]);
  const key = JSON.stringify([question, versions]);
  // The first look at long files may outlast a round. What the run writes meanwhile is asked for in the next one.
  if (question === pendingQuestion) return;
  if (key !== answers.to && !(await fetchAnswers(question, key, path))) return;
  await drawAll(metrics);
}

// Returns whether the answers are still wanted once they are there.
async function fetchAnswers(question, key, path) {
  pendingQuestion = question;
  try {
    const axis = path && view.x !== "step" ? ask(address([view.x])) : { series: [] };
    const [curves, along] = await Promise.all([path ? ask(path) : { series: [] }, axis]);
    if (pendingQuestion !== question) return false;
    answers = { to: key, series: curves.series, axes: new Map(along.series.map((series) => [series.run, mapping(series)])) };
    return true;
  } finally {
    if (pendingQuestion === question) pendingQuestion = "";
  }
}

// The chosen metrics among those that these runs have; each that they have gets a box.
function chosenMetrics() {
  const possible = drawable(shown.details);
  const judging = judgingMetrics(shown.details);
  const isChosen = (metric) => view.metrics.includes(metric) || (judging.includes(metric) && !view.without.includes(metric));
  const chosen = possible.filter(isChosen);
  showBoxes([possible, chosen]);
  find("x-axis").value = view.x;
  return chosen;
}

const showBoxes = onChange(([possible, chosen]) => {
  const present = [...find("metric-list").querySelectorAll("input")];
  if (present.map((box) => box.value).join() === possible.join()) { // the box that was clicked keeps the focus
    for (const box of present) box.checked = chosen.includes(box.value);
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
  const [others, notWithout] = [view.metrics, view.without].map((metrics) => metrics.filter((metric) => metric !== value));
  view.metrics = checked ? [...others, value] : others;
  view.without = checked ? notWithout : [...notWithout, value];
  viewChanged();
}

// ---- drawing --------------------------------------------------------------------------------------------------------

// The x axis: `ofRun` gives the function from steps of a run to places on the axis, or nothing where it is not known.
function xAxis() {
  if (view.x === "step") return { title: "step", ofRun: () => (step) => step };
  if (view.x === "tokens") return { title: "tokens", ofRun: (id) => answers.axes.get(id)?.valueAt };
  const { size, name } = timeUnit();
  const ofRun = (id) => {
    const times = answers.axes.get(id);
    return times && ((step) => (times.valueAt(step) - times.first) / size);
  };
  return { title: `time since the run's first line, ${name}`, ofRun };
}

function timeUnit() {
  const spans = [...answers.axes.values()].filter(Boolean).map(({ first, last }) => last - first);
  return unitOf(Math.max(0, ...spans));
}

// One range for all panels, with a little room at the ends.
function extent(lines) {
  const [low, high] = [Math.min(...lines.map((line) => line.x[0])), Math.max(...lines.map((line) => line.x.at(-1)))];
  const room = 0.01 * (high - low) || 1;
  return [low - room, high + room];
}

function linesOf(metrics, x) {
  return answers.series.flatMap((series) => {
    const run = shown.runs.find(({ id }) => id === series.run);
    const place = run && x.ofRun(series.run);
    if (!place || !metrics.includes(series.metric) || !series.step.length) return [];
    const kind = metrics.length > 1 ? nameOf(series.metric) : "";
    const name = shown.runs.length === 1 ? nameOf(series.metric) : [run.name, kind].filter(Boolean).join(", ");
    return [{ ...series, name, run, slot: shown.slots.get(run.id), x: series.step.map(place) }];
  });
}

function eventsOf(x) {
  if (shown.details.length > MOST_TICKED_RUNS) return [];
  return shown.details.flatMap((detail) => {
    const place = x.ofRun(detail.id);
    const who = shown.details.length > 1 ? `${detail.name}: ` : "";
    // The first start needs no tick: every curve begins there.
    const incidents = (detail.incidents ?? []).filter(({ event, step }) => event !== "started" || step > 0);
    return place ? incidents.slice(-MOST_TICKS).map(({ step, event, what }) => ({ x: place(step), event, text: who + what })) : [];
  });
}

async function drawAll(metrics) {
  const key = JSON.stringify([answers.series, [...answers.axes.keys()], metrics, view, range, dark.matches,
    shown.runs.map((run) => [run.name, shown.slots.get(run.id)]), shown.details.map((detail) => detail.incidents)]);
  if (key === drawingKey) return;
  drawingKey = key;
  const x = xAxis();
  const wanted = panelsOf(metrics, shown.details).map(([title, names]) => ({ title, names, lines: linesOf(names, x) }));
  const filled = wanted.filter(({ lines }) => lines.length);
  const lines = filled.flatMap((panel) => panel.lines);
  showPanels(filled.length > 0, metrics);
  const events = eventsOf(x);
  showLegend(events, lines);
  let library;
  try {
    library = filled.length ? await loadedPlotly() : null;
  } catch {
    return sayPlotlyIsMissing();
  }
  if (drawingKey !== key) return;
  const colours = theme();
  x.range = range?.x ?? extent(lines);
  arrangePanels(filled, library);
  for (const [index, panel] of filled.entries()) drawPanel(library, panel, x, index ? [] : events, events, colours);
}

function arrangePanels(filled, library) {
  const names = filled.map((panel) => panel.names[0]);
  for (const [name, panel] of panels) {
    if (!names.includes(name)) {
      library?.purge(panel.plot);
      panels.delete(name);
    }
  }
  for (const name of names) {
    if (panels.has(name)) continue;
    const plot = make("div", { class: "plot" });
    panels.set(name, { plot, element: make("div", { class: name === "loss" ? "panel wide" : "panel", role: "img" }, plot), listening: false });
  }
  arrange(find("panels"), names.map((name) => panels.get(name).element));
}

// `ticks`: the events that this panel has as ticks; all panels have lines of `events`.
function drawPanel(library, { title, names, lines }, x, ticks, events, colours) {
  const panel = panels.get(names[0]);
  const last = lines.map((line) => `${line.name} ${valueOf(line.metric, line.value.at(-1))} at step ${whole(line.step.at(-1))}`);
  set(panel.element, "aria-label", `${title}: ${last.join("; ")}`);
  const share = isShare(names[0]);
  const data = [...traces(share ? lines.map(inPercent) : lines, { ...view, share }, colours), ...eventTraces(ticks, colours)];
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
  library.react(panel.plot, data, shape, PLOT_OPTIONS);
  if (!panel.listening) {
    panel.listening = true;
    panel.plot.on("plotly_relayout", zoomToSelection);
    panel.plot.on("plotly_doubleclick", () => zoom(null));
  }
}

function showPanels(any, metrics) {
  say(find("no-curves"), whyNone(metrics));
  show(find("no-curves"), !any);
  show(find("panels"), any);
}

function whyNone(metrics) {
  if (range) return "There is no log line in these steps.";
  if (!metrics.length && drawable(shown.details).length) return "No metric is chosen.";
  if (answers.series.length && view.x !== "step") return `The log lines have no ${view.x}. Fix: choose another x axis.`;
  return `${shown.runs.length > 1 ? "These runs have" : "The run has"} no log line yet, so there is nothing to draw.`;
}

function sayPlotlyIsMissing() {
  plotly = undefined;
  drawingKey = "";
  say(find("no-curves"), "The server has no plotly.js, so there are no curves. Fix: install the extra `web` again.");
  show(find("no-curves"), true);
}

function swatch(slot, heldOut) {
  const { dash } = lineOf(slot);
  return draw("svg", { class: `swatch s${heldOut ? 1 : slot % 6} ${heldOut ? "solid" : dash}`, viewBox: "0 0 26 10", "aria-hidden": "true" },
    draw("path", { d: "M1 5H25" }));
}

export function runSwatch(slot) {
  return swatch(slot, false);
}

// Names only what is drawn: `lines`.
function showLegend(events, lines) {
  const keys = [];
  const bothLosses = ["loss", "valid_loss"].every((metric) => lines.some((line) => line.metric === metric));
  if (shown.runs.length === 1 && bothLosses) {
    const slot = shown.slots.get(shown.runs[0].id);
    keys.push(make("span", { class: "key" }, swatch(slot, false), " training loss"), make("span", { class: "key" }, swatch(slot, true), " held-out loss"));
  } else if (shown.runs.length > 1) {
    const drawn = shown.runs.filter((run) => lines.some((line) => line.run === run));
    const others = shown.runs.filter((run) => !drawn.includes(run));
    keys.push(...drawn.map((run) => make("span", { class: "key" }, runSwatch(shown.slots.get(run.id)), ` ${run.name}`)));
    if (bothLosses) keys.push(make("span", { class: "key" }, "Thin: training loss. Bold: held-out loss."));
    if (drawn.length && others.length) keys.push(make("span", { class: "key" }, `No log line here: ${others.map((run) => run.name).join(", ")}.`));
  }
  for (const event of new Set(events.map(({ event }) => event))) {
    const [colour, , name, mark] = EVENTS[event] ?? OTHER_EVENT;
    keys.push(make("span", { class: "key" }, make("span", { class: `event ${colour.slice(2)}` }, mark), ` ${name}`));
  }
  find("legend").replaceChildren(...keys);
}

// ---- controls -------------------------------------------------------------------------------------------------------

function zoomToSelection(event) {
  const [low, high] = event["xaxis.range"] ?? [event["xaxis.range[0]"], event["xaxis.range[1]"]];
  if (typeof low !== "number" || typeof high !== "number") return;
  if (view.x === "step") zoom({ x: [low, high], from: Math.max(0, Math.floor(low)), to: Math.ceil(high) });
  else zoom({ x: [low, high], ...stepsBetween(low, high) });
}

// The steps that any of the runs has between two places on the axis.
function stepsBetween(low, high) {
  const axes = [...answers.axes.values()].filter(Boolean);
  const { size } = timeUnit();
  const stepOf = (mapped, place) => mapped.stepAt(view.x === "time" ? mapped.first + place * size : place);
  return {
    from: Math.max(0, Math.floor(Math.min(...axes.map((mapped) => stepOf(mapped, low))))),
    to: Math.max(0, Math.ceil(Math.max(...axes.map((mapped) => stepOf(mapped, high))))),
  };
}

function zoom(wanted) {
  range = wanted;
  find("from").value = range && view.x === "step" ? range.from : "";
  find("to").value = range && view.x === "step" ? range.to : "";
  show(find("everything"), range !== null);
  refuseSteps("");
  viewChanged();
}

function refuseSteps(why, ids = []) {
  for (const id of ["from", "to"]) set(find(id), "aria-invalid", String(ids.includes(id)));
  say(find("steps-refused"), why);
  show(find("steps-refused"), why !== "");
}

// Steps that cannot be drawn are refused in words, and the curves stay.
function zoomToTypedSteps() {
  const [from, to] = ["from", "to"].map((id) => parseStep(find(id).value));
  const wrong = [["from", from], ["to", to]].filter(([, step]) => Number.isNaN(step)).map(([id]) => id);
  if (wrong.length) return refuseSteps("A step is a whole number, 0 or more.", wrong);
  if (from === null && to === null) return zoom(null);
  const first = from ?? 0;
  if (to !== null && to <= first) return refuseSteps("The last step must be after the first.", ["to"]);
  const last = to ?? Math.max(first + 1, ...shown.runs.map((run) => run.step ?? 0));
  return zoom({ x: [first, last], from: first, to: last });
}

function showControls() {
  find("log-scale").checked = view.log;
  find("smoothing").value = view.smoothing;
  say(find("smoothed"), view.smoothing ? view.smoothing.toFixed(2) : "off");
  for (const label of document.querySelectorAll("label.steps")) show(label, view.x === "step");
}

// Follows a change of the view. That the server does not answer is said by the next round.
function viewChanged() {
  storeView();
  showControls();
  updateCurves(shown.runs, shown.details, shown.slots).catch((error) => {
    if (!(error instanceof Gone || error instanceof Refused)) throw error;
  });
}

// For other runs, whose steps differ.
export function forgetZoom() {
  range = null;
  for (const id of ["from", "to"]) find(id).value = "";
  show(find("everything"), false);
  refuseSteps("");
}

export function startCurves() {
  showControls();
  find("x-axis").addEventListener("change", (event) => {
    view.x = event.target.value;
    zoom(null);
  });
  for (const id of ["from", "to"]) find(id).addEventListener("change", zoomToTypedSteps);
  find("everything").addEventListener("click", () => zoom(null));
  find("log-scale").addEventListener("change", (event) => {
    view.log = event.target.checked;
    viewChanged();
  });
  find("smoothing").addEventListener("input", (event) => {
    view.smoothing = Number(event.target.value);
    viewChanged();
  });
  dark.addEventListener("change", viewChanged);
}
