"""The sentences and numbers of a verdict's page, which its HTML and its Markdown share.

No number has more digits than it has meaning. Differences and their intervals are rounded at the last meaningful digit
of the interval's half width, and means by their standard deviation, by the rule of the Particle Data Group: of the
three leading digits of an uncertainty, 100 to 354 keep two, 355 to 949 keep one, 950 to 999 become 1000."""

from __future__ import annotations

import math

from maskwright.core.console import several
from maskwright.report.words import FIXED, NOTHING, listed, number, rate
from maskwright.verdict.judge import ArmDifference, VerdictReport
from maskwright.verdict.results import LEAST_GROUPS, ComparedTask, Results, labels_of

METRICS = {
    "accuracy": "accuracy",
    "matthews_corrcoef": "Matthews correlation",
    "f1_macro": "macro F1 score",
    "f1_micro": "micro F1 score",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "mean": "mean score",
}


def metric_name(task: ComparedTask) -> str:
    if task.score:
        return task.score
    if task.metric == "f1":
        return f'F1 score of "{task.labels[task.positive]}"'
    return "span F1 score" if (task.kind, task.metric) == ("spans", "f1_micro") else METRICS[task.metric]


def decimals(uncertainty: float) -> int:
    """The decimals of a number with this uncertainty; 1 if the uncertainty is 0."""
    if uncertainty <= 0 or not math.isfinite(uncertainty):
        return 1
    exponent = math.floor(math.log10(uncertainty))
    leading = round(uncertainty / 10**exponent * 100)
    digits = 1 - exponent if leading <= 354 or leading >= 950 else -exponent
    return min(3, max(0, digits - (leading >= 950)))


def points(fraction: float, places: int, *, sign: bool = False) -> str:
    return number(100 * fraction, places, sign=sign)


def places_of(comparison: ArmDifference) -> int:
    """The decimals of a comparison's points. An end of the interval that is not 0 does not become 0."""
    places = decimals(50 * (comparison.high - comparison.low))
    bounds = [abs(bound) for bound in (comparison.low, comparison.high) if bound]
    excludes = comparison.low > 0 or comparison.high < 0
    while excludes and places < 3 and not float(f"{100 * min(bounds):.{places}f}"):
        places += 1
    return places


def mean_and_deviation(mean: float, deviation: float | None) -> str:
    if deviation is None:
        return points(mean, 1)
    places = decimals(100 * deviation)
    return f"{points(mean, places)} ± {points(deviation, places)}"


def p_value(p: float) -> str:
    return f"<{FIXED}0.001" if p < 0.001 else f"{p:#.2g}" if p < 1 else "1"


def with_p(p: float) -> str:
    return f"p{FIXED}{'' if p < 0.001 else f'={FIXED}'}{p_value(p)}"


def interval(comparison: ArmDifference) -> str:
    places = places_of(comparison)
    return f"{points(comparison.low, places)} to {points(comparison.high, places)}"


def smallest(comparison: ArmDifference) -> str:
    if not comparison.smallest_difference:
        return NOTHING
    return points(comparison.smallest_difference, places_of(comparison))


def headline(comparison: ArmDifference) -> str:
    both = f"{comparison.other} and {comparison.base}"
    return {
        "helped": f"{comparison.other} helped on {comparison.task}.",
        "hurt": f"{comparison.other} hurt on {comparison.task}.",
        "no difference shown": f"No difference shown between {both} on {comparison.task}.",
        "cannot conclude": f"Cannot conclude whether {comparison.other} helped on {comparison.task}.",
    }[comparison.verdict]


def explanation(comparison: ArmDifference, results: Results, report: VerdictReport) -> str:
    """The text below the headline."""
    task = next(task for task in results.tasks if task.name == comparison.task)
    means = {score.arm: score.mean for score in report.scores if score.task == comparison.task}
    at_chance = _at_chance(comparison, means, task)
    if comparison.same_answers:
        what = "had the same scores" if task.kind == "scores" else "gave the same answers"
        same = f"In every run, {comparison.other} {what} as {comparison.base}."
        return " ".join([same, *at_chance, *_whether_needed(comparison, results)])
    places = places_of(comparison)
    base, other = (points(means[arm], places) for arm in (comparison.base, comparison.other))
    corrected = " after Holm's correction" if len(report.comparisons) > 1 else ""
    change = f"{points(comparison.difference, places, sign=True)} points"
    certainty = f"95{FIXED}% interval {interval(comparison)}; {with_p(comparison.p_holm)}{corrected}"
    way = f"{'rose' if comparison.difference > 0 else 'fell'} from {base} to {other}: {change}"
    if base == other:
        way = f"was {base} in both" if not comparison.difference else f"was {base} in both, rounded: {change}"
    start = f"Against {comparison.base}, the {metric_name(task)} {way} ({certainty})."
    reasons = [*_reasons(comparison, report), *_whether_needed(comparison, results)]
    return " ".join([start, *at_chance, *reasons, *_failures(comparison, results, report)])


def _at_chance(comparison: ArmDifference, means: dict[str, float], task: ComparedTask) -> list[str]:
    """Whether arms are no better than one answer to everything: within two standard errors of its accuracy, unless a
    difference between the arms was shown."""
    if task.majority is None:
        return []
    label, chance = task.majority
    differ = comparison.verdict in ("helped", "hurt")
    answers = math.inf if differ or task.metric != "accuracy" else len(labels_of(task.gold))
    least = chance + 2 * math.sqrt(chance * (1 - chance) / answers)
    low = [arm for arm in (comparison.base, comparison.other) if means[arm] <= least]
    guess = f'at chance: {points(chance, 1)} is the score of "{label}" as the answer to everything'
    if len(low) == 2:
        return [f"Both are {guess}. Neither has learned the task, so this comparison shows nothing about them."]
    return [f"{arm} is {guess}." for arm in low]


def _whether_needed(comparison: ArmDifference, results: Results) -> list[str]:
    """Whether a transformer was needed, compared with an arm that has none."""
    arms = (comparison.base, comparison.other)
    without = [arm for arm in arms if arm in results.without_transformer]
    if len(without) != 1 or comparison.verdict == "cannot conclude":
        return []
    (plain,) = without
    (transformer,) = (arm for arm in arms if arm != plain)
    better = {"helped": comparison.other, "hurt": comparison.base}.get(comparison.verdict)
    if better == transformer:
        return [f"The transformer was worth it: {plain} has none."]
    if better == plain:
        return [f"No transformer was needed to do better than {transformer}: {plain} has none."]
    return [f"Nothing shows that this transformer was needed: {plain} has none."]


def _failures(comparison: ArmDifference, results: Results, report: VerdictReport) -> list[str]:
    arms = (comparison.base, comparison.other)
    count = sum(fault.task == comparison.task and fault.arm in arms for fault in report.degenerate)
    if not count:
        return []
    runs = sum(run.task == comparison.task and run.arm in arms for run in results.runs)
    counts = "It counts" if count == 1 else "They count"
    return [f"{count} of the {runs} runs learned nothing or had a fault. {counts} like the others."]


def _reasons(pair: ArmDifference, report: VerdictReport) -> list[str]:
    if pair.verdict == "cannot conclude":
        unit = "pretraining runs of each arm" if report.question == "recipe" else "seeds"
        count = len(report.comparisons)
        units = _units_of(pair, report)
        what = "one comparison" if count == 1 else f"{count} comparisons"
        least = f"{what} {'takes' if count == 1 else 'take'} at least {report.least} {unit}"
        return [f"This may be noise: with {units}, the smallest possible p is {p_value(pair.smallest_p)}; {least}."]
    if pair.verdict != "no difference shown":
        return []
    reasons = []
    outside = pair.low > 0 or pair.high < 0
    if outside:
        reasons.append("The interval excludes 0, but the exact test does not reach p < 0.05.")
    elif pair.p_holm < 0.05:
        what = "pretraining runs" if report.question == "recipe" else "seeds"
        reasons.append(f"The {what} agree, but the interval, which counts the test examples too, includes 0.")
    if pair.smallest_difference:
        least = f"{smallest(pair)} points"
        reasons.append(f"A true difference of {least} would have been shown with a probability of 80{FIXED}%.")
    return reasons


def _units_of(comparison: ArmDifference, report: VerdictReport) -> str:
    if report.question == "checkpoints":
        return several(report.seeds[comparison.task], "seed")
    runs = {len(score.runs) for score in report.scores if score.arm in (comparison.base, comparison.other)}
    return f"{' and '.join(map(str, sorted(runs)))} pretraining runs"


def question(report: VerdictReport) -> str:
    if report.question == "recipe":
        return (
            "This page is about the recipes: would pretraining again with each recipe, then fine-tuning with other "
            "seeds and testing on other examples of the same kind, show the same difference? Each arm has several "
            "pretraining runs, and the interval and the test count their spread."
        )
    return (
        "This page is about these checkpoints: would fine-tuning the same weights with other seeds, and testing on "
        "other examples of the same kind, show the same difference? Whether the recipe would help again, in another "
        "pretraining run, is another question; it takes several pretraining runs of each arm "
        "(NAME=RUN1,RUN2,…)."
    )


def warnings(results: Results) -> list[str]:
    """Sentences about the compared arms and the choice of learning rates for every reader."""
    sentences = []
    plain = results.without_transformer
    others = [arm.name for arm in results.arms[1:] if arm.transformer]
    if plain and results.arms[0].name not in plain and others:
        have, one = ("which have", "one of them as --base") if len(plain) > 1 else ("which has", f"--base {plain[0]}")
        sentences.append(
            f"No verdict here says whether {listed(others)} did better than {listed(plain)}, {have} no transformer; "
            f"with {one}, one does."
        )
    grids: dict[str, set[tuple[float, ...]]] = {}
    for search in results.searches:
        rates = sorted(rate for rate, _ in search.rates)
        is_linear = search.arm in plain
        if not is_linear:
            grids.setdefault(search.task, set()).add(tuple(rates))
        if len(rates) > 1 and search.chosen in (rates[0], rates[-1]):
            side = "low" if search.chosen == rates[0] else "high"
            sentences.append(
                f"On {search.task}, {search.arm} did best with the {side}est {'penalty' if is_linear else 'rate'} of "
                f"the grid, {rate(search.chosen)}. A {side}er one might serve it better."
            )
    for task, grids_of_arms in grids.items():
        if len(grids_of_arms) > 1:
            sentences.append(f"On {task}, the arms were given different grids: their budgets were not equal.")
    return sentences


def degenerate_summary(results: Results, report: VerdictReport) -> str:
    count = len(report.degenerate)
    total = several(len(results.runs), "run")
    if not count:
        return f"None of the {total}."
    which = f"{count:,} of the {total}. {'It counts' if count == 1 else 'They count'}"
    return f"{which} in every number of this page like the others."


def method(results: Results, report: VerdictReport) -> list[tuple[str, str, str]]:
    """Footnotes: method, source, and its address."""
    recipe = report.question == "recipe"
    resampled = "pretraining runs, seeds and test examples" if recipe else "seeds and test examples"
    test = "all ways to divide the pretraining runs between the two arms" if recipe else "all choices of signs"
    count = len(report.comparisons)
    corrected = f"The p-values of {count} comparisons are corrected together. " if count > 1 else ""
    together = "".join(
        f" On {task.name}, the examples of each of {len({*task.groups})} groups are drawn together."
        if task.by_group
        else f" On {task.name}, examples are drawn one by one, since they are in fewer than {LEAST_GROUPS} groups."
        for task in results.tasks
        if task.groups
    )
    notes = [
        (
            f"Intervals are percentile intervals at 95 % from {report.draws:,} draws of the Multi-Bootstrap: each draw "
            f"takes {resampled} with replacement, the same seeds and examples for both arms.{together} Random seed "
            f"{report.random_seed}.",
            "Sellam et al. (2022), The MultiBERTs: BERT Reproductions for Robustness Analysis, ICLR",
            "https://arxiv.org/abs/2106.16163",
        ),
        (
            f"p-values are exact and two-sided: the share of {test} that give a difference at least as large.",
            "Fisher (1935), The Design of Experiments, section 21",
            "",
        ),
        (
            f"{corrected}A verdict of helped or hurt needs both an interval that excludes 0 and "
            f"{'a corrected p' if corrected else 'p'} < 0.05.",
            "Holm (1979), A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of Statistics",
            "https://www.jstor.org/stable/4615733",
        ),
        (
            "The smallest difference is the true difference that the same experiment with new seeds and new test "
            f"examples would call helped with a probability of 80{FIXED}%, given the spread seen here and how "
            "uncertain that spread is.",
            "Bloom (1995), Minimum Detectable Effects, Evaluation Review",
            "https://doi.org/10.1177/0193841X9501900504",
        ),
        (
            "A point is one hundredth of the metric. Differences are taken before rounding. ± is the standard "
            f"deviation over {'pretraining runs' if recipe else 'seeds'}. Seeds alone can move a small task by "
            "several points.",
            "Dodge et al. (2020), Fine-Tuning Pretrained Language Models",
            "https://arxiv.org/abs/2002.06305",
        ),
    ]
    if any(comparison.classes for comparison in report.comparisons):
        notes.append(
            (
                f"Changes of single classes are F1 scores with intervals from {report.class_draws:,} draws. They are "
                "not corrected for their number: with many classes, some exclude 0 by chance.",
                "",
                "",
            )
        )
    return notes
