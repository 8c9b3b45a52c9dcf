"""The tables of a verdict's page, as text: `report.document` draws them."""

from __future__ import annotations

from maskwright.core.console import several
from maskwright.report import words
from maskwright.report.tables import ReportTable
from maskwright.verdict import wording
from maskwright.verdict.judge import ArmDifference, Score, VerdictReport
from maskwright.verdict.results import Arm, ComparedTask, Results

CLASSES_SHOWN = 12


def differences(report: VerdictReport) -> ReportTable:
    corrected = len(report.comparisons) > 1
    header = ("task", "arms", "verdict", "difference", "95 % interval", "p", *(["p (Holm)"] if corrected else []))
    rows = []
    for found in report.comparisons:
        places = wording.places_of(found)
        p = [wording.p_value(one) for one in ((found.p, found.p_holm) if corrected else (found.p,))]
        difference = wording.points(found.difference, places, sign=True)
        arms = f"{found.other} against {found.base}"
        rows.append((found.task, arms, found.verdict, difference, wording.interval(found), *p, wording.smallest(found)))
    likely = f"with a probability of 80{words.FIXED}%"
    caption = f"Differences in points; the last column is the smallest that would have been shown {likely}"
    return ReportTable(caption, (*header, "smallest"), tuple(rows), words=3)


def scores(results: Results, report: VerdictReport) -> ReportTable:
    rows = []
    for arm in results.arms:
        own = {score.task: score for score in report.scores if score.arm == arm.name}
        cells = [wording.mean_and_deviation(own[task.name].mean, own[task.name].deviation) for task in results.tasks]
        rows.append((arm.name, *cells))
    header = ("arm", *(f"{task.name} ({wording.metric_name(task)})" for task in results.tasks))
    return ReportTable("Mean ± standard deviation, in points", header, tuple(rows))


def every_seed(results: Results, report: VerdictReport, task: ComparedTask) -> ReportTable:
    """One row for each seed of a pretraining run, one column for each arm."""
    own = {score.arm: score for score in report.scores if score.task == task.name}
    seeds = results.seeds(task)
    places = _places(own[results.arms[0].name], task)
    rows = []
    for number in range(max(len(arm.pretraining_runs) for arm in results.arms)):
        for place, seed in enumerate(seeds):
            label = f"{seed}" if report.question == "checkpoints" else f"run {number + 1}, seed {seed}"
            rows.append((label, *(_cell(own[arm.name], number, place, places) for arm in results.arms)))
    return ReportTable(
        f"Every seed on {task.name}, in points", ("seed", *(arm.name for arm in results.arms)), tuple(rows)
    )


def _cell(score: Score, number: int, place: int, places: int) -> str:
    return wording.points(score.runs[number][place], places) if number < len(score.runs) else words.NOTHING


def _places(score: Score, task: ComparedTask) -> int:
    """A single score has no finer steps than one test example."""
    return wording.decimals(max(100 / task.test_examples, 10 * (score.deviation or 0)))


def classes(found: ArmDifference) -> ReportTable | None:
    """The largest changes; None where the task has no classes or nothing changed."""
    if not found.classes or found.same_answers:
        return None
    rows = []
    for one in found.classes[:CLASSES_SHOWN]:
        places = wording.decimals(50 * (one.high - one.low))
        base, other, low, high = (wording.points(value, places) for value in (one.base, one.other, one.low, one.high))
        difference = wording.points(one.other - one.base, places, sign=True)
        rows.append((one.label, f"{one.examples:,}", base, other, difference, f"{low} to {high}"))
    rest = len(found.classes) - len(rows)
    more = f"; {rest} with smaller changes are left out" if rest else ""
    header = ("class", "in the test set", found.base, found.other, "difference", "95 % interval")
    return ReportTable(
        f"F1 score by class on {found.task}, {found.other} against {found.base}, in points{more}", header, tuple(rows)
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
    known = [one for one in tokens if one is not None]
    return words.tokens(sum(known) if len(known) == len(tokens) else None)


def rates(results: Results) -> ReportTable | None:
    if not results.searches:
        return None
    rows = []
    for search in results.searches:
        tried = ", ".join(f"{words.rate(rate)}: {wording.points(score, 1)}" for rate, score in sorted(search.rates))
        rows.append((search.task, search.arm, words.rate(search.chosen), tried))
    header = ("task", "arm", "chosen", "score on validation by rate")
    return ReportTable("Learning rates, chosen on validation and then kept", header, tuple(rows), words=4)


def degenerate(report: VerdictReport) -> ReportTable | None:
    if not report.degenerate:
        return None
    rows = tuple((one.task, one.arm, f"{one.seed}", one.why) for one in report.degenerate)
    if report.question == "recipe":
        rows = tuple(
            (one.task, f"{one.arm} ({one.pretraining_run})", f"{one.seed}", one.why) for one in report.degenerate
        )
    header = ("task", "arm", "seed", "why")
    return ReportTable("Runs that learned nothing, or in which something went wrong", header, rows, words=4)


def protocol(results: Results, report: VerdictReport) -> list[tuple[str, str]]:
    """Terms and what they were."""
    given = results.protocol
    rows = []
    for task in results.tasks:
        seeds = several(report.seeds[task.name], "seed")
        counts = (
            f"{task.train_examples:,} training, {task.validation_examples:,} validation and "
            f"{task.test_examples:,} test examples"
        )
        rows.append((task.name, f"{counts}; {wording.metric_name(task)}; {seeds} for each arm, paired"))
    if report.question == "recipe":
        runs = "; ".join(f"{arm.name}: {', '.join(arm.pretraining_runs)}" for arm in results.arms)
        rows.append(("Pretraining runs", runs))
    for term, text in (("Budget", given.budget), ("Validation", given.validation), ("Test set", given.test)):
        if text:
            rows.append((term, text))
    return rows
