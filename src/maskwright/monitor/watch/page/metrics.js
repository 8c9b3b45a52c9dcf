// Metrics: their names, the panels that show them, the x axes, and smoothing.

import { decimal, percent } from "./words.js";

export const AXES = ["step", "tokens", "time"];
const NOT_DRAWN = new Set([...AXES, "epoch"]);
const TITLES = {
  loss: "loss",
  valid_loss: "held-out loss",
  valid_accuracy: "held-out accuracy",
  learning_rate: "learning rate",
  masking_rate: "masking rate",
  causal_share: "share of causal rows",
  grad_norm: "gradient norm, before clipping",
  tokens_per_second: "tokens/s",
  examples_per_second: "examples/s",
  seq_len: "row length, tokens",
  cpu_share: "CPU in use",
  memory_share: "memory in use",
  gpu_share: "GPU in use",
  gpu_memory_share: "GPU memory in use",
  matmul_share: "share of measured matmul",
  matmul_share_with_muon: "share of measured matmul, with Muon's products",
  loss_scale: "loss scale",
};
// What fine-tuning measures on held-out examples.
const SCORES = {
  f1: "F1",
  f1_micro: "micro F1",
  f1_macro: "macro F1",
  matthews_corrcoef: "Matthews correlation",
  pearson: "Pearson correlation",
  spearman: "Spearman correlation",
  mse: "mean squared error",
};
const SHARES = /(_share|_with_muon|accuracy|_f1|_f1_micro|_f1_macro|_precision|_recall|_exact_match)$/;
const LOSSES = ["loss", "valid_loss"];
const REST = ["learning_rate", "grad_norm", "tokens_per_second"];
export const USUAL = [...LOSSES, ...REST];
const UNITS = [[2 * 86_400, 86_400, "days"], [2 * 3_600, 3_600, "h"], [2 * 60, 60, "min"], [0, 1, "s"]];

export const isHeldOut = (metric) => metric.startsWith("valid_");
export const isShare = (metric) => SHARES.test(metric);

export function valueOf(metric, value) {
  return isShare(metric) ? percent(value, 1) : decimal(value);
}

export function scoreName(metric) {
  return SCORES[metric] ?? metric.replaceAll("_", " ");
}

export function nameOf(metric) {
  if (metric === "loss") return "training loss";
  return titleOf(metric);
}

function titleOf(metric) {
  if (TITLES[metric]) return TITLES[metric];
  const [, heldOutSet, measure] = /^valid_(.+)_(loss|accuracy)$/.exec(metric) ?? [];
  if (heldOutSet) return `held-out ${measure}, ${heldOutSet}`;
  return isHeldOut(metric) ? `held-out ${scoreName(metric.slice(6))}` : metric.replaceAll("_", " ");
}

// What fine-tuning is judged by. Of a run that does not say, any held-out metric may be the one.
export function judgingMetrics(details) {
  const metrics = details.filter((detail) => detail.kind === "finetune").flatMap((detail) =>
    (detail.metrics ?? []).filter((metric) => (detail.metric ? metric === `valid_${detail.metric}` : isHeldOut(metric))));
  return [...new Set(metrics)].filter((metric) => metric !== "valid_loss").sort();
}

// What may be drawn, the usual ones first.
export function drawable(details) {
  const present = new Set(details.flatMap((detail) => detail.metrics ?? []));
  const first = [...LOSSES, ...judgingMetrics(details), ...REST];
  const others = [...present].filter((metric) => !first.includes(metric) && !NOT_DRAWN.has(metric)).sort();
  return [...first.filter((metric) => present.has(metric)), ...others];
}

// [title, metrics] of each panel: the held-out loss lies over the training loss. Of pretraining, a loss is in nats;
// fine-tuning's may be a squared error.
export function panelsOf(metrics, details) {
  const both = metrics.includes("loss") && metrics.includes("valid_loss");
  const nats = details.every((detail) => detail.kind === "pretrain") ? ", nats" : "";
  return metrics
    .filter((metric) => !(both && metric === "valid_loss"))
    .map((metric) => [
      LOSSES.includes(metric) ? titleOf(metric) + nats : titleOf(metric),
      both && metric === "loss" ? LOSSES : [metric],
    ]);
}

// Turns steps of one run into another quantity, and back, along straight lines between and beyond the known points.
export function mapping(series) {
  // A bucket has the step of its last line; a quantity that grows is at its highest there.
  const pairs = series.step.map((step, index) => [step, series.high[index]]).filter(([, value]) => value !== null);
  if (pairs.length < 2) return null;
  const steps = pairs.map(([step]) => step);
  const values = pairs.map(([, value]) => value);
  const valueAt = (step) => interpolated(steps, values, step);
  return { valueAt, stepAt: (value) => interpolated(values, steps, value), first: series.low[0] ?? values[0], last: values.at(-1) };
}

// The value of `ys` at `x`, where `xs` grows.
function interpolated(xs, ys, x) {
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  const width = xs[high] - xs[low];
  return width ? ys[low] + ((x - xs[low]) * (ys[high] - ys[low])) / width : ys[low];
}

export function unitOf(span) {
  const [, size, name] = UNITS.find(([least]) => span >= least);
  return { size, name };
}

// The exponential moving mean, without the pull of its first points towards zero.
export function smoothed(values, weight) {
  let [sum, weights] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    weights = weight * weights + (1 - weight);
    return sum / weights;
  });
}
