// The details of the chosen runs, other than their curves and the log.

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

// ---- the numbers of one run at a glance, or those of several runs in a table ------------------------------------------

function cell(title, value, note = "") {
  return make("div", {}, make("dt", {}, title), make("dd", {}, make("b", {}, value), make("small", {}, note)));
}

// Name and value of what fine-tuning is judged by; null where that is the held-out loss.
function scoreOf(run) {
  if (!run.metric || run.metric === "loss") return null;
  return [scoreName(run.metric), valueOf(`valid_${run.metric}`, run.score)];
}

function glance(run, now) {
  const progress = share(run.step, run.of);
  const advancing = ADVANCING.has(run.state);
  const score = scoreOf(run);
  const cells = [
    cell("State", stateMark(run.state), GOING.has(run.state) ? `heartbeat ${ago(now - run.heartbeat)}` : ago(now - run.heartbeat)),
    cell("Step", whole(run.step), progress === null ? "" : `${percent(progress)} of ${whole(run.of)}`),
    cell("Training loss", decimal(run.loss, 4)),
    score ? cell(`Held-out ${score[0]}`, score[1], `loss ${decimal(run.valid_loss, 4)}`) : cell("Held-out loss", decimal(run.valid_loss, 4)),
    advancing ? cell("Tokens/s", count(run.tokens_per_second)) : null,
    advancing ? cell("Time left", seconds(run.eta_seconds)) : null,
    cell("Checkpoint", whole(run.checkpoint_step), run.checkpoint_step === null ? "none yet" : "last saved step"),
  ];
  const bad = BAD.has(run.state);
  const trouble = run.health && run.health !== "fine" && !run.why.startsWith(run.health) ? run.health : "";
  const why = run.why && (bad || run.fix || !advancing) ? `${run.state}: ${run.why}` : "";
  const sentences = [why, trouble, run.fix && `To do: ${run.fix}`].filter(Boolean).map((words) => make("p", {}, sentence(words)));
  return [
    make("p", { class: "faint" }, [run.location, ageOfReading(run, now), ...run.limits].filter(Boolean).join(" · ")),
    sentences.length ? make("div", { class: bad ? "answer bad" : "answer" }, ...sentences) : "",
    make("dl", { class: "glance" }, ...cells.filter(Boolean)),
  ];
}

// A run at a URL is read seldom, so its page says when.
function ageOfReading(run, now) {
  return run.looked ? `read ${ago(now - run.looked)}` : "";
}

function sentence(words) {
  const text = words[0].toUpperCase() + words.slice(1);
  return /[.!?…]$/.test(text) ? text : `${text}.`;
}

function comparison(runs, slots) {
  const scores = runs.map(scoreOf);
  const scored = scores.some(Boolean);
  const rows = runs.map((run, index) => [
    make("span", {}, runSwatch(slots.get(run.id)), ` ${run.name}`),
    stateMark(run.state),
    whole(run.step),
    percent(share(run.step, run.of)),
    decimal(run.loss),
    decimal(run.valid_loss),
    ...(scored ? [scores[index]?.join(" ") ?? NOTHING] : []),
    ADVANCING.has(run.state) ? count(run.tokens_per_second) : NOTHING,
    ADVANCING.has(run.state) ? seconds(run.eta_seconds) : NOTHING,
  ]);
  const header = ["run", "state", "step", "done", "loss", "held-out loss", scored && "judged by", "tokens/s", "time left"];
  return table("The runs", header.filter(Boolean), rows, 2);
}

const paintGlance = onChange(([runs], now, slots) => {
  find("glance").replaceChildren(...(runs.length === 1 ? glance(runs[0], now) : [comparison(runs, slots)]));
});

export function showGlance(runs, now, slots) {
  say(find("chosen-title"), runs.length === 1 ? runs[0].name : `${runs.length} runs`);
  paintGlance([runs, [...slots], runs.map((run) => [ago(now - run.heartbeat), ageOfReading(run, now)])], now, slots);
}

// ---- ranks ----------------------------------------------------------------------------------------------------------

function rankCell(rank) {
  const words = `rank ${rank.rank} on ${rank.host}: ${rank.verdict}${rank.why ? `: ${rank.why}` : ""}`;
  return make("span", { class: `rank ${rank.verdict}`, title: words }, LETTERS[rank.verdict] ?? "?");
}

// The ranks of one run: a strip for each host, and in words what the strips say.
function ranksOf(detail, many) {
  const { ranks } = detail;
  const hosts = grouped(ranks, (rank) => rank.host);
  const rows = [...hosts].map(([host, ranksOfHost]) => {
    const label = `${host}: ${spans(ranksOfHost.map((rank) => rank.rank))}`;
    return make("li", {}, make("span", { class: "host faint" }, label), make("span", { class: "strip", "aria-hidden": "true" }, ...ranksOfHost.map(rankCell)));
  });
  const alike = grouped(ranks.filter((rank) => rank.why), (rank) => JSON.stringify([rank.host, rank.verdict, rank.why]));
  const reasons = [...alike.values()].map((group) => {
    const [{ host, verdict, why }] = group;
    const who = `${group.length > 1 ? "Ranks" : "Rank"} ${spans(group.map((rank) => rank.rank))} on ${host}`;
    const reason = group.length > 1 ? `are ${verdict}: ${why.replace(/^its /, "their ")}` : `is ${verdict}: ${why}`;
    return make("li", {}, `${who} ${reason}`);
  });
  const size = `${whole(detail.world_size ?? ranks.length)} on ${several(hosts.size, "host")}`;
  return make("div", {},
    many ? make("h4", {}, detail.name) : null,
    make("p", {}, ranks.length ? `${ranksInWords(countedVerdicts(ranks))} of ${size}` : "No process has reported yet."),
    make("ul", { class: "strips" }, ...rows),
    reasons.length ? make("ul", {}, ...reasons) : null,
  );
}

function countedVerdicts(ranks) {
  const counts = {};
  for (const rank of ranks) counts[rank.verdict] = (counts[rank.verdict] ?? 0) + 1;
  return counts;
}

const paintRanks = onChange((details) => {
  const runs = details.map((detail) => ranksOf(detail, details.length > 1));
  const verdicts = new Set(details.flatMap((detail) => detail.ranks.map((rank) => rank.verdict)));
  const legend = Object.keys(LETTERS).filter((verdict) => verdicts.has(verdict)).map((verdict) =>
    make("span", { class: "key" }, make("span", { class: `rank ${verdict}`, "aria-hidden": "true" }, LETTERS[verdict]), ` ${verdict}`));
  find("ranks").replaceChildren(...runs, make("p", { class: "legend" }, ...legend));
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
    rows.length ? table("Configuration", ["key", "value"], rows, 2) : make("p", { class: "faint" }, words.length ? "No key matches." : "The configuration is not known."),
  );
});

export function showConfiguration(detail) {
  paintConfiguration([detail.config ?? {}, find("key-search").value.toLowerCase().split(/\s+/).filter(Boolean)]);
}

// ---- what happened, and checkpoints ---------------------------------------------------------------------------------

const paintHappened = onChange(({ incidents, lineage }) => {
  const shown = incidents.filter((incident) => incident.event !== "saved");
  const saves = incidents.length - shown.length;
  const lines = shown.slice(-MOST_EVENTS).map((incident) => {
    const [colour, , , mark] = EVENTS[incident.event] ?? OTHER_EVENT;
    return make("li", {}, make("span", { class: `event ${colour.slice(2)}`, "aria-hidden": "true" }, mark),
      make("span", { class: "faint" }, ` ${clock(incident.time)} `), `step ${whole(incident.step)}: ${incident.what}`);
  });
  lines.push(...lineage.map((line) => make("li", {}, line)));
  find("happened").replaceChildren(
    lines.length ? make("ul", { class: "events" }, ...lines.reverse()) : make("p", { class: "faint" }, "Nothing out of the ordinary."),
    saves ? make("p", { class: "faint" }, `${several(saves, "save")}.`) : "",
  );
});

export function showHappened(detail) {
  paintHappened({ incidents: detail.incidents ?? [], lineage: detail.lineage ?? [] });
}

const paintCheckpoints = onChange(([checkpoints, , listed], now) => {
  const row = ({ step, state, bytes: size, saved }) => [
    whole(step),
    make("span", { class: state === "whole" ? "state over" : "state bad" }, `${state === "whole" ? "✓" : "◐"} ${state}`),
    bytes(size),
    saved === null || saved === undefined ? NOTHING : make("span", { title: clock(saved) }, ago(now - saved)),
  ];
  const header = ["step", "state", "size", "saved"];
  const newest = [...checkpoints].sort((a, b) => b.step - a.step);
  const first = newest.slice(0, FIRST_CHECKPOINTS).map(row);
  const older = newest.slice(FIRST_CHECKPOINTS).map(row);
  find("checkpoints").replaceChildren(
    first.length ? table("Checkpoints", header, first, 2) : make("p", { class: "faint" }, "None yet."),
    older.length ? make("details", {}, make("summary", {}, `${whole(older.length)} older`), table("Older checkpoints", header, older, 2)) : "",
    listed ? make("p", { class: "faint" }, `Listed ${listed}.`) : "",
  );
});

export function showCheckpoints(detail, now) {
  const checkpoints = detail.checkpoints ?? [];
  paintCheckpoints([checkpoints, checkpoints.map(({ saved }) => saved && ago(now - saved)), detail.listed && ago(now - detail.listed)], now);
}
