// What plotly draws in one panel of curves: traces and layout.

import { grouped } from "./elements.js";
import { isHeldOut, smoothed } from "./metrics.js";

const COLOURS = ["--good", "--bad", "--third", "--fourth", "--fifth", "--text"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const DASH_OF_COLOUR = [0, 0, 1, 2, 3, 1]; // in the first round, so that most colours differ in their dash too
const MOST_DOTS = 60;
const MOST_BANDS = 2; // with more runs, shades of lowest to highest values would hide the curves
// All ticks of an axis have the same number of digits: as many as tell them apart.
const PERCENT_DIGITS = [[null, 0.009, ".3f"], [0.009, 0.09, ".2f"], [0.09, 0.9, ".1f"], [0.9, null, ".0f"]]
  .map(([least, most, value]) => ({ dtickrange: [least, most], value }));
export const EVENTS = {
  started: ["--fourth", "triangle-right", "restart", "▸"],
  gone: ["--bad", "x", "process gone", "✕"],
  spiked: ["--bad", "triangle-up", "spike", "▲"],
  ended: ["--faint", "square", "end", "■"],
  saved: ["--faint", "line-ns-open", "save", "|"],
  changed: ["--fifth", "diamond", "change", "◆"],
};
export const OTHER_EVENT = ["--faint", "circle", "event", "•"];

// The page's colours, light or dark as they are now.
export function theme() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(
    [...COLOURS, "--back", "--faint", "--line", "--box"].map((name) => [name, style.getPropertyValue(name).trim()]),
  );
}

export function lineOf(slot) {
  const index = slot % COLOURS.length;
  const round = Math.floor(slot / COLOURS.length);
  return { colour: COLOURS[index], dash: DASHES[(DASH_OF_COLOUR[index] + round) % DASHES.length] };
}

// plotly reads some markup in names, where only text is meant.
function escaped(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function faded(colour, alpha) {
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  return `rgba(${red},${green},${blue},${alpha})`;
}

// #abc as #aabbcc
function sixDigits(colour) {
  return colour.length === 4 ? `#${[...colour.slice(1)].map((digit) => digit + digit).join("")}` : colour;
}

// A line of shares from 0 to 1, in percent.
export function inPercent(line) {
  const hundredfold = (values) => values.map((value) => (value === null ? null : 100 * value));
  return { ...line, value: hundredfold(line.value), low: hundredfold(line.low), high: hundredfold(line.high) };
}

// `lines`: [{name, slot, metric, x, value, low, high}] of one panel. `view`: {smoothing, share}.
export function traces(lines, view, colours) {
  const runs = new Set(lines.map((line) => line.slot)).size;
  const paired = new Set(lines.map((line) => line.metric)).size > 1;
  return lines.flatMap((line) => {
    const bold = isHeldOut(line.metric);
    const look = runs === 1 && paired && bold ? { colour: "--bad", dash: "solid" } : lineOf(line.slot);
    const colour = sixDigits(colours[look.colour]);
    const dots = line.x.length <= MOST_DOTS && (bold || line.x.length === 1);
    const hovertemplate = view.share ? "%{y:.2f} %" : "%{y:.5~g}";
    const base = { type: "scatter", x: line.x, name: escaped(line.name), hovertemplate };
    const width = bold ? 2.4 : 1.4;
    const parts = [];
    if (runs <= MOST_BANDS && !view.smoothing && line.low.some((low, index) => low !== null && low < line.high[index])) {
      parts.push(band(line, colour));
    }
    if (view.smoothing && !dots) {
      parts.push({ ...base, y: line.value, mode: "lines", hoverinfo: "skip", hovertemplate: null, line: { color: faded(colour, 0.3), width: 1 } });
    }
    const y = view.smoothing && !dots ? smoothed(line.value, view.smoothing) : line.value;
    parts.push({
      ...base,
      y,
      mode: dots ? "lines+markers" : "lines",
      marker: { color: colour, size: 6 },
      line: { color: colour, width: view.smoothing && !dots ? 2 : width, dash: look.dash },
      opacity: paired && !bold && !view.smoothing ? 0.8 : 1,
    });
    return parts;
  });
}

// The outline of each stretch without a gap: out along the lowest values, and back along the highest.
function band(line, colour) {
  const [x, y] = [[], []];
  let stretch = [];
  const close = () => {
    if (stretch.length) {
      const outline = [...stretch.map((at) => [line.x[at], line.low[at]]), ...stretch.reverse().map((at) => [line.x[at], line.high[at]])];
      x.push(...outline.map(([along]) => along), null);
      y.push(...outline.map(([, up]) => up), null);
    }
    stretch = [];
  };
  line.low.forEach((low, at) => (low === null ? close() : stretch.push(at)));
  close();
  return { type: "scatter", x, y, mode: "lines", fill: "toself", fillcolor: faded(colour, 0.16), line: { width: 0, color: colour }, hoverinfo: "skip" };
}

// `events`: [{x, event, text}], what happened in the runs, drawn as ticks.
export function eventTraces(events, colours) {
  const kinds = grouped(events, ({ event }) => (EVENTS[event] ? event : ""));
  return [...kinds].map(([event, ofKind]) => {
    const [colour, symbol] = EVENTS[event] ?? OTHER_EVENT;
    return {
      type: "scatter",
      mode: "markers",
      yaxis: "y2",
      x: ofKind.map(({ x }) => x),
      // Heights differ, since a restart may be at the step of a spike.
      y: ofKind.map(() => ({ saved: 0.015, gone: 0.875 })[event] ?? 0.985),
      text: ofKind.map(({ text }) => escaped(text)),
      hovertemplate: "%{text}<extra></extra>",
      marker: { symbol, size: 9, color: colours[colour], line: { color: colours[colour], width: 1.5 } },
      cliponaxis: false,
    };
  });
}

export function eventLines(events, colours) {
  return events
    .filter(({ event }) => event !== "saved" && event !== "ended")
    .map(({ x, event }) => ({
      type: "line",
      layer: "below",
      yref: "paper",
      x0: x,
      x1: x,
      y0: 0,
      y1: 1,
      line: { color: colours[(EVENTS[event] ?? OTHER_EVENT)[0]], width: 1, dash: "dot" },
    }));
}

// `view`: {title, height, xTitle, xRange, xCounts, log, share, speed, zoomable}.
export function layout(view, colours, shapes, many) {
  const axis = { gridcolor: colours["--line"], linecolor: colours["--line"], zeroline: false, exponentformat: "SI" };
  const x = { ...axis, title: { text: view.xTitle, standoff: 6 }, showgrid: false, showline: true, ticks: "outside", tickcolor: colours["--line"] };
  if (view.xCounts) Object.assign(x, { tickformat: "~s", hoverformat: ",.0f" });
  const y = { ...axis, fixedrange: true, exponentformat: "e", automargin: true, nticks: view.height > 220 ? 9 : 7 };
  if (view.log) Object.assign(y, { type: "log", dtick: null });
  if (view.speed) y.exponentformat = "SI";
  if (view.share) Object.assign(y, { ticksuffix: " %", tickformatstops: view.log ? [] : PERCENT_DIGITS });
  return {
    height: view.height,
    margin: { l: 48, r: 12, t: 30, b: view.xTitle ? 42 : 26 },
    paper_bgcolor: colours["--back"],
    plot_bgcolor: colours["--back"],
    font: { family: "system-ui, sans-serif", size: 12, color: colours["--faint"] },
    title: {
      text: escaped(view.title), font: { size: 13, color: colours["--text"] },
      x: 0, xref: "container", xanchor: "left", y: 1, yanchor: "top", pad: { t: 4, l: 2 },
    },
    xaxis: { ...x, range: view.xRange, autorange: false },
    yaxis: y,
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
    showlegend: false,
    hovermode: many ? "closest" : "x unified",
    hoverlabel: { bgcolor: colours["--box"], bordercolor: colours["--line"], font: { color: colours["--text"] }, namelength: -1, align: "left" },
    dragmode: view.zoomable ? "zoom" : false,
    shapes,
  };
}
