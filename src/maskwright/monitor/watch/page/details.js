// What is known of the chosen runs, but for their curves and the log.

import { runSwatch } from "./curves.js";
import { find, grouped, make, onChange, say, show, table } from "./elements.js";
import { scoreName, valueOf } from "./metrics.js";
import { EVENTS, OTHER_EVENT } from "./plots.js";
import { ranksInWords, stateMark } from "./runs.js";
import { ADVANCING, GOING, NOTHING, ago, bytes, clock, count, decimal, percent, seconds, setting, share, several, spans, whole } from "./words.js";

const LETTERS = { fine: "F", slow: "S", hung: "H", lost: "L", silent: "?", ended: "E" };
const BAD = new Set(["hung", "lost", "failed", "silent"]);
const FIRST_CHECKPOINTS = 8;
const MOST_EVENTS = 200;

// ---- numbers at a glance, and the runs beside each other --------------------------------------------------------------

function cell(title, value, note = "") {
  return make("div", {}, make("dt", {}, title), make("dd", {}, make("b", {}, value), make("small", {}, note)));
}

// [name, value] of what fine-tuning is judged by, unless that is its held-out loss.
function score(run) {
  if (!run.metric || run.metric === "loss") return null;
  return [scoreName(run.metric), valueOf(`valid_${run.metric}`, run.score)];
}

function glance(run, now) {
  const done = share(run.step, run.of);
  const going = ADVANCING.has(run.state);
  const own = score(run);
  const cells = [
    cell("State", stateMark(run.state), GOING.has(run.state) ? `heartbeat ${ago(now - run.heartbeat)}` : ago(now - run.heartbeat)),
    cell("Step", whole(run.step), done === null ? "" : `${percent(done)} of ${whole(run.of)}`),
    cell("Training loss", decimal(run.loss, 4)),
    own ? cell(`Held-out ${own[0]}`, own[1], `loss ${decimal(run.valid_loss, 4)}`) : cell("Held-out loss", decimal(run.valid_loss, 4)),
    going ? cell("Tokens/s", count(run.tokens_per_second)) : null,
    going ? cell("Time left", seconds(run.eta_seconds)) : null,
    cell("Checkpoint", whole(run.checkpoint_step), run.checkpoint_step === null ? "none yet" : "last saved step"),
  ];
  const bad = BAD.has(run.state);
  const ill = run.health && run.health !== "fine" && run.health !== run.why ? run.health : "";
  const why = run.why && (bad || run.fix || !going) ? `${run.state}: ${run.why}` : "";
  const said = [why, ill, run.fix && `To do: ${run.fix}`].filter(Boolean).map((words) => make("p", {}, sentence(words)));
  return [
    make("p", { class: "faint" }, [run.location, looked(run, now)].filter(Boolean).join(" · ")),
    said.length ? make("div", { class: bad ? "answer bad" : "answer" }, ...said) : "",
    make("dl", { class: "glance" }, ...cells.filter(Boolean)),
  ];
}

// A run at a URL is read seldom.
function looked(run, now) {
  return run.looked ? `read ${ago(now - run.looked)}` : "";
}

function sentence(words) {
  const text = words[0].toUpperCase() + words.slice(1);
  return /[.!?…]$/.test(text) ? text : `${text}.`;
}

function beside(runs, slots) {
  const scores = runs.map(score);
  const scored = scores.some(Boolean);
  const rows = runs.map((run, place) => [
    make("span", {}, runSwatch(slots.get(run.id)), ` ${run.name}`),
    stateMark(run.state),
    whole(run.step),
    percent(share(run.step, run.of)),
    decimal(run.loss),
    decimal(run.valid_loss),
    ...(scored ? [scores[place]?.join(" ") ?? NOTHING] : []),
    ADVANCING.has(run.state) ? count(run.tokens_per_second) : NOTHING,
    ADVANCING.has(run.state) ? seconds(run.eta_seconds) : NOTHING,
  ]);
  const header = ["run", "state", "step", "done", "loss", "held-out loss", scored && "judged by", "tokens/s", "time left"];
  return table("The runs", header.filter(Boolean), rows, 2);
}

const paintGlance = onChange(([runs], now, slots) => {
  find("glance").replaceChildren(...(runs.length === 1 ? glance(runs[0], now) : [beside(runs, slots)]));
});

export function showGlance(runs, now, slots) {
  say(find("chosen-title"), runs.length === 1 ? runs[0].name : `${runs.length} runs`);
  paintGlance([runs, [...slots], runs.map((run) => [ago(now - run.heartbeat), looked(run, now)])], now, slots);
}

// ---- ranks ----------------------------------------------------------------------------------------------------------

function rankCell(rank) {
  const words = `rank ${rank.rank} on ${rank.host}: ${rank.verdict}${rank.why ? `: ${rank.why}` : ""}`;
  return make("span", { class: `rank ${rank.verdict}`, title: words }, LETTERS[rank.verdict] ?? "?");
}

// The ranks of one run: a strip, and in words what the strip says, by host.
function strip(detail, many) {
  const ranks = detail.ranks ?? [];
  const hosts = grouped(ranks, (rank) => rank.host);
  const rows = [...hosts].map(([host, found]) => {
    const label = `${host}: ${spans(found.map((rank) => rank.rank))}`;
    return make("li", {}, make("span", { class: "host faint" }, label), make("span", { class: "strip", "aria-hidden": "true" }, ...found.map(rankCell)));
  });
  const alike = grouped(ranks.filter((rank) => rank.why), (rank) => JSON.stringify([rank.host, rank.verdict, rank.why]));
  const telling = [...alike.values()].map((found) => {
    const [{ host, verdict, why }] = found;
    const who = `${found.length > 1 ? "Ranks" : "Rank"} ${spans(found.map((rank) => rank.rank))} on ${host}`;
    const said = found.length > 1 ? `are ${verdict}: ${why.replace(/^its /, "their ")}` : `is ${verdict}: ${why}`;
    return make("li", {}, `${who} ${said}`);
  });
  const size = `${whole(detail.world_size ?? ranks.length)} on ${several(hosts.size, "host")}`;
  return make("div", {},
    many ? make("h4", {}, detail.name) : null,
    make("p", {}, ranks.length ? `${ranksInWords(detail.ranks_counted)} of ${size}` : "No rank has left a sign of life."),
    make("ul", { class: "strips" }, ...rows),
    telling.length ? make("ul", {}, ...telling) : null,
  );
}

function counted(ranks) {
  const found = {};
  for (const rank of ranks ?? []) found[rank.verdict] = (found[rank.verdict] ?? 0) + 1;
  return found;
}

const paintRanks = onChange((details) => {
  const strips = details.map((detail) => strip({ ...detail, ranks_counted: counted(detail.ranks) }, details.length > 1));
  const seen = new Set(details.flatMap((detail) => detail.ranks.map((rank) => rank.verdict)));
  const keys = Object.keys(LETTERS).filter((verdict) => seen.has(verdict));
  const legend = keys.map((verdict) =>
    make("span", { class: "key" }, make("span", { class: `rank ${verdict}`, "aria-hidden": "true" }, LETTERS[verdict]), ` ${verdict}`));
  find("ranks").replaceChildren(...strips, make("p", { class: "legend" }, ...legend));
});

export function showRanks(details) {
  paintRanks(details.map(({ id, name, world_size, ranks }) => ({ id, name, world_size,
    ranks: (ranks ?? []).map(({ rank, host, verdict, why }) => ({ rank, host, verdict, why })) })));
}

// ---- configurations -------------------------------------------------------------------------------------------------

const paintDiffering = onChange((configs) => {
  const keys = [...new Set(configs.flatMap(([, config]) => Object.keys(config)))].sort();
  const differing = keys.filter((key) => new Set(configs.map(([, config]) => JSON.stringify(config[key]))).size > 1);
  const rows = differing.map((key) => [key, ...configs.map(([, config]) => setting(config[key]))]);
  const header = ["key", ...configs.map(([name]) => name)];
  find("differs").replaceChildren(
    rows.length ? table("Keys in which the runs differ", header, rows, header.length) : make("p", {}, "Their configurations are the same."),
  );
});

export function showDiffering(details) {
  show(find("differs-section"), details.length > 1);
  if (details.length > 1) paintDiffering(details.map((detail) => [detail.name, detail.config ?? {}]));
}

const paintConfiguration = onChange(([config, words]) => {
  const rows = Object.entries(config)
    .map(([key, value]) => [key, setting(value)])
    .filter(([key, value]) => words.every((word) => `${key} ${value}`.toLowerCase().includes(word)))
    .sort(([a], [b]) => (a < b ? -1 : 1));
  find("configuration").replaceChildren(
    rows.length ? table("Configuration", ["key", "value"], rows, 2) : make("p", { class: "faint" }, words.length ? "No key matches." : "It is not known."),
  );
});

export function showConfiguration(detail) {
  paintConfiguration([detail.config ?? {}, find("key-search").value.toLowerCase().split(/\s+/).filter(Boolean)]);
}

// ---- what happened, and checkpoints ---------------------------------------------------------------------------------

const paintHappened = onChange(({ incidents, lineage }) => {
  const told = incidents.filter((one) => one.event !== "saved");
  const saves = incidents.length - told.length;
  const lines = told.slice(-MOST_EVENTS).map((one) => {
    const [colour, , , mark] = EVENTS[one.event] ?? OTHER_EVENT;
    return make("li", {}, make("span", { class: `event ${colour.slice(2)}`, "aria-hidden": "true" }, mark),
      make("span", { class: "faint" }, ` ${clock(one.time)} `), `step ${whole(one.step)}: ${one.what}`);
  });
  lines.push(...lineage.map((line) => make("li", {}, line)));
  find("happened").replaceChildren(
    lines.length ? make("ul", { class: "events" }, ...lines.reverse()) : make("p", { class: "faint" }, "Nothing out of the ordinary."),
    saves ? make("p", { class: "faint" }, `${several(saves, "save")}.`) : "",
  );
});

// As `maskwright status` tells it.
function ancestry(lineage) {
  const lines = [];
  for (let one = lineage; one && "run" in one && "step" in one; one = one.lineage) {
    const how = one.optimizer === "fresh" ? "a fresh optimizer" : "its optimizer’s state";
    lines.push(`${lines.length ? "which began" : "Began"} from step ${whole(one.step)} of ${one.run}, with ${how}`);
  }
  return lines.length ? [lines.join(", ")] : [];
}

export function showHappened(detail) {
  paintHappened({ incidents: detail.incidents ?? [], lineage: ancestry(detail.lineage) });
}

const paintCheckpoints = onChange(([found, , listed], now) => {
  const row = (one) => [
    whole(one.step),
    make("span", { class: one.state === "whole" ? "state over" : "state bad" }, `${one.state === "whole" ? "✓" : "◐"} ${one.state}`),
    bytes(one.bytes),
    one.saved === null || one.saved === undefined ? NOTHING : make("span", { title: clock(one.saved) }, ago(now - one.saved)),
  ];
  const header = ["step", "state", "size", "saved"];
  const newest = [...found].sort((a, b) => b.step - a.step);
  const shown = newest.slice(0, FIRST_CHECKPOINTS).map(row);
  const more = newest.slice(FIRST_CHECKPOINTS).map(row);
  find("checkpoints").replaceChildren(
    shown.length ? table("Checkpoints", header, shown, 2) : make("p", { class: "faint" }, "None yet."),
    more.length ? make("details", {}, make("summary", {}, `${whole(more.length)} older`), table("Older checkpoints", header, more, 2)) : "",
    listed ? make("p", { class: "faint" }, `Listed ${listed}.`) : "",
  );
});

export function showCheckpoints(detail, now) {
  const found = detail.checkpoints ?? [];
  paintCheckpoints([found, found.map((one) => one.saved && ago(now - one.saved)), detail.listed && ago(now - detail.listed)], now);
}
