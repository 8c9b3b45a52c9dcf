"""The tables of a verdict's page."""

from __future__ import annotations

from collections.abc import Sequence

from maskwright.core.console import several
from maskwright.report import words
from maskwright.report.frame import ReportTable
from maskwright.verdict import wording
from maskwright.verdict.judge import ArmDifference, Score, VerdictReport
from maskwright.verdict.results import Arm, ComparedTask, LearningRateSearch, Results

CLASSES_SHOWN = 12


def differences(report: VerdictReport) -> ReportTable:
    corrected = len(report.comparisons) > 1
    header = ("task", "arms", "verdict", "difference", "95 % interval", "p", *(["p (Holm)"] if corrected else []))
    rows = []
    for pair in report.comparisons:
        digits = wording.places_of(pair)
        p = [wording.p_value(p) for p in ((pair.p, pair.p_holm) if corrected else (pair.p,))]
        difference = wording.points(pair.difference, digits, sign=True)
        arms = f"{pair.other} against {pair.base}"
        rows.append((pair.task, arms, pair.verdict, difference, wording.interval(pair), *p, wording.smallest(pair)))
    likely = f"with a probability of 80{words.FIXED}%"
    caption = f"Differences in points; the last column is the smallest that would have been shown {likely}"
    return ReportTable(caption, (*header, "smallest"), tuple(rows), words=3)


def scores(results: Results, report: VerdictReport) -> ReportTable:
    rows = []
    for arm in results.arms:
        by_task = {score.task: score for score in report.scores if score.arm == arm.name}
        in_order = [by_task[task.name] for task in results.tasks]
        cells = [wording.mean_and_deviation(score.mean, score.deviation) for score in in_order]
        rows.append((arm.name, *cells))
    header = ("arm", *(f"{task.name} ({wording.metric_name(task)})" for task in results.tasks))
    return ReportTable("Mean ± standard deviation, in points", header, tuple(rows))


def beside(results: Results, task: ComparedTask) -> ReportTable | None:
    """Means over runs of the metrics without a verdict; None without any."""
    names = list(dict.fromkeys(name for run in results.runs if run.task == task.name for name in run.beside))
    if not names:
        return None
    rows = []
    for arm in results.arms:
        runs = results.of(arm, task)
        means = (sum(run.beside[name] for run in runs) / len(runs) for name in names)
        rows.append((arm.name, *(wording.points(mean, 1) for mean in means)))
    return ReportTable(
        f"Other metrics on {task.name}, which no verdict is about, in points", ("arm", *names), tuple(rows)
    )


def every_seed(results: Results, report: VerdictReport, task: ComparedTask) -> ReportTable:
    """One row for each seed of a pretraining run, one column for each arm."""
    score_of_arm = {score.arm: score for score in report.scores if score.task == task.name}
    seeds = results.seeds(task)
    digits = _places(score_of_arm[results.arms[0].name], task)
    rows = []
    for run_idx in range(max(len(arm.pretraining_runs) for arm in results.arms)):
        for seed_idx, seed in enumerate(seeds):
            label = f"{seed}" if report.question == "checkpoints" else f"run {run_idx + 1}, seed {seed}"
            rows.append((label, *(_cell(score_of_arm[arm.name], run_idx, seed_idx, digits) for arm in results.arms)))
    return ReportTable(
        f"Every seed on {task.name}, in points", ("seed", *(arm.name for arm in results.arms)), tuple(rows)
    )


def _cell(score: Score, run_idx: int, seed_idx: int, digits: int) -> str:
    return wording.points(score.runs[run_idx][seed_idx], digits) if run_idx < len(score.runs) else words.NOTHING


def _places(score: Score, task: ComparedTask) -> int:
    """The decimals of a score. A single score has no finer steps than one test example."""
    return wording.decimals(max(100 / task.test_examples, 10 * (score.deviation or 0)))


def classes(pair: ArmDifference) -> ReportTable | None:
    """The largest changes; None if the task has no classes or nothing changed."""
    if not pair.classes or pair.same_answers:
        return None
    rows = []
    for change in pair.classes[:CLASSES_SHOWN]:
        digits = wording.decimals(50 * (change.high - change.low))
        ends = (change.base, change.other, change.low, change.high)
        base, other, low, high = (wording.points(value, digits) for value in ends)
        difference = wording.points(change.other - change.base, digits, sign=True)
        rows.append((change.label, f"{change.examples:,}", base, other, difference, f"{low} to {high}"))
    rest = len(pair.classes) - len(rows)
    note = f"; {rest} with smaller changes are left out" if rest else ""
    header = ("class", "in the test set", pair.base, pair.other, "difference", "95 % interval")
    return ReportTable(
        f"F1 score by class on {pair.task}, {pair.other} against {pair.base}, in points{note}", header, tuple(rows)
    )


def costs(results: Results) -> ReportTable:
    rows = tuple(
        (
            arm.name,
            arm.description,
            words.duration(arm.seconds),
            words.tokens(arm.tokens),
            _finetuning(results, arm),
        )
        for arm in results.arms
    )
    header = ("arm", "what it is", "pretraining", "pretraining tokens", "fine-tuning tokens, all seeds")
    return ReportTable("What each arm has cost", header, rows, words=2)


def _finetuning(results: Results, arm: Arm) -> str:
    tokens = [run.tokens for run in results.runs if run.arm == arm.name]
    known = [count for count in tokens if count is not None]
    return words.tokens(sum(known) if len(known) == len(tokens) else None)


def rates(results: Results) -> ReportTable | None:
    searches = [search for search in results.searches if search.arm not in results.without_transformer]
    return _choices(searches, "Learning rates", "rate")


def penalties(results: Results) -> ReportTable | None:
    searches = [search for search in results.searches if search.arm in results.without_transformer]
    return _choices(searches, "Penalties", "penalty")


def _choices(searches: Sequence[LearningRateSearch], what: str, by: str) -> ReportTable | None:
    if not searches:
        return None
    rows = []
    for search in searches:
        scores = ", ".join(f"{words.rate(rate)}: {wording.points(score, 1)}" for rate, score in sorted(search.rates))
        rows.append((search.task, search.arm, words.rate(search.chosen), scores))
    header = ("task", "arm", "chosen", f"score on validation by {by}")
    return ReportTable(f"{what}, chosen on validation and then kept", header, tuple(rows), words=4)


def degenerate(report: VerdictReport) -> ReportTable | None:
    if not report.degenerate:
        return None
    recipe = report.question == "recipe"
    rows = tuple(
        (run.task, f"{run.arm} ({run.pretraining_run})" if recipe else run.arm, f"{run.seed}", run.why)
        for run in report.degenerate
    )
    header = ("task", "arm", "seed", "why")
    return ReportTable("Runs that learned nothing, or in which something went wrong", header, rows, words=4)


def protocol(results: Results, report: VerdictReport) -> list[tuple[str, str]]:
    """(term, description) of the protocol."""
    settings = results.protocol
    rows = []
    for task in results.tasks:
        seeds = several(report.seeds[task.name], "seed")
        counts = (
            f"{task.train_examples:,} training, {task.validation_examples:,} validation and "
            f"{task.test_examples:,} test {task.example}s"
        )
        rows.append((task.name, f"{counts}; {wording.metric_name(task)}; {seeds} for each arm, paired"))
    if report.question == "recipe":
        runs = "; ".join(f"{arm.name}: {', '.join(arm.pretraining_runs)}" for arm in results.arms)
        rows.append(("Pretraining runs", runs))
    for term, text in (("Budget", settings.budget), ("Validation", settings.validation), ("Test set", settings.test)):
        if text:
            rows.append((term, text))
    return rows
