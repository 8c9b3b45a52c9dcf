// Numbers and times in words, as core/console.py and report/words.py write them.

export const NOTHING = "–";
const MINUS = "−";

const known = (value) => typeof value === "number" && Number.isFinite(value);

export function whole(value) {
  return known(value) ? Math.round(value).toLocaleString("en-US") : NOTHING;
}

export function count(value) {
  if (!known(value)) return NOTHING;
  for (const [limit, suffix, unit] of [[1e12, "T", 1e12], [1e9, "G", 1e9], [1e6, "M", 1e6], [1e4, "k", 1e3]]) {
    if (Math.abs(value) >= limit) return `${(value / unit).toFixed(1)}${suffix}`;
  }
  return value >= 100 || Number.isInteger(value) ? whole(value) : value.toFixed(1);
}

export function decimal(value, places = 4) {
  if (!known(value)) return NOTHING;
  const text = Math.abs(value).toFixed(places);
  return (value < 0 && Number(text) ? MINUS : "") + text;
}

export function bytes(value) {
  if (!known(value)) return NOTHING;
  for (const [limit, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (value >= limit) return `${(value / limit).toFixed(1)} ${unit}`;
  }
  return `${value} bytes`;
}

export function seconds(value) {
  if (!known(value)) return NOTHING;
  if (value < 100) return `${Math.max(0, Math.round(value))} s`;
  const total = Math.floor(value);
  const [hours, minutes, rest] = [Math.floor(total / 3600), Math.floor((total % 3600) / 60), total % 60];
  const padded = (number) => String(number).padStart(2, "0");
  return hours ? `${hours}:${padded(minutes)}:${padded(rest)}` : `${minutes}:${padded(rest)}`;
}

// Coarse, so that the text changes seldom.
export function ago(value) {
  if (!known(value)) return NOTHING;
  for (const [unit, size] of [["days", 86_400], ["h", 3_600], ["min", 60]]) {
    if (value >= 2 * size) return `${Math.floor(value / size)} ${unit} ago`;
  }
  return value < 10 ? "just now" : `${Math.floor(value / 10) * 10} s ago`;
}

export function clock(unix) {
  if (!known(unix)) return NOTHING;
  const [date, time] = new Date(unix * 1000).toISOString().split("T");
  return `${date} ${time.slice(0, 8)} UTC`;
}

export function share(step, of) {
  return known(step) && known(of) && of > 0 ? Math.min(1, step / of) : null;
}

// Without decimal places it rounds down, so that 100 % is said only at the end.
export function percent(value, places = 0) {
  if (!known(value)) return NOTHING;
  return places ? `${decimal(value * 100, places)} %` : `${Math.floor(value * 100 + 1e-9)} %`;
}

// A step as people type it: 10000, 10,000 or 10 000. null where nothing is typed, NaN where the text is no step.
export function parseStep(text) {
  const typed = text.trim();
  if (!typed) return null;
  const digits = /^\d{1,3}([, ]\d{3})+$/.test(typed) ? typed.replaceAll(/[, ]/g, "") : typed;
  const step = /^\d+$/.test(digits) ? Number(digits) : NaN;
  return Number.isSafeInteger(step) ? step : NaN;
}

export function several(number, noun) {
  return `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
}

// The value of a configuration's key, on one line.
export function setting(value) {
  if (value === undefined) return NOTHING;
  return typeof value === "string" ? value : JSON.stringify(value);
}

// Whole numbers as "0 to 3, 5, 8 to 9".
export function spans(numbers) {
  const ranges = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    const last = ranges.at(-1);
    if (last && number === last[1] + 1) last[1] = number;
    else ranges.push([number, number]);
  }
  return ranges.map(([first, last]) => (first === last ? `${first}` : `${first} to ${last}`)).join(", ");
}

const STATES = {
  running: ["►", "going"],
  starting: ["▷", "going"],
  hung: ["‖", "bad"],
  lost: ["✕", "bad"],
  silent: ["?", "bad"],
  failed: ["!", "bad"],
  stopped: ["■", "over"],
  done: ["✓", "over"],
  "never started": ["○", "over"],
  "only checkpoints": ["◇", "over"],
};

export function markOf(state) {
  return STATES[state] ?? ["•", "over"];
}

// States in which steps are made, and states in which the run is not known to have ended.
export const ADVANCING = new Set(["running", "starting"]);
export const GOING = new Set(["running", "starting", "hung", "lost", "silent"]);
