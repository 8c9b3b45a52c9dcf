"""`maskwright compare`: several starts fine-tuned under the same rules and the same budget, and a verdict."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

from maskwright.core.errors import InputError
from maskwright.labels.answers import exact_match, overlap_f1
from maskwright.labels.metrics import KINDS, gold_outcomes, span_kinds, spans_of
from maskwright.labels.scoring import Outcomes
from maskwright.model.hf.config import class_name
from maskwright.processes.child import SideBySide, run_side_by_side
from maskwright.report import words
from maskwright.run.directory import RunDirectory
from maskwright.tasks.compare.arms import RANDOM, ArmStart
from maskwright.tasks.compare.folder import opened
from maskwright.tasks.compare.plan import ArmTraining, Budget, ComparisonPlan, LabelledTask, read
from maskwright.tasks.compare.runs import (
    MAKE_AGAIN,
    Chosen,
    ComparedRun,
    EndedRun,
    choose,
    finals,
    run,
    scores_by_rate,
    searches,
)
from maskwright.tasks.models.load import RESULTS, TrainedModel
from maskwright.verdict import page, wording
from maskwright.verdict.judge import VerdictReport, judge
from maskwright.verdict.results import (
    Arm,
    ComparedTask,
    LearningRateSearch,
    Protocol,
    Results,
    ScoredRun,
    write_results,
)

PAGE = "verdict.html"


def compare(
    models: Sequence[str],
    on: Sequence[str],
    folder: str,
    *,
    base: str | None = None,
    budget: Budget,
    overrides: Sequence[str] = (),
    side_by_side: SideBySide = run_side_by_side,
) -> tuple[Results, VerdictReport]:
    """Makes or continues the comparison in `folder`, and writes `results.json`, `verdict.html` and `verdict.md` there.

    Raises kinds of `InputError` (2) before the first run, `JobError` for a run that failed, `StoppedEarly` (75).
    """
    asked = read(models, on, folder, base=base, budget=budget, overrides=overrides)
    with opened(asked) as plan:
        tried = run(searches(plan), plan, side_by_side, "search")
        chosen = choose(plan, tried)
        ended = run(finals(plan, chosen), plan, side_by_side, "fine-tune")
        results = collect(plan, tried, chosen, ended)
        write_results(os.path.join(plan.folder, RESULTS), results)
        report = judge(results)
        for name in (PAGE, "verdict.md"):
            page.write(os.path.join(plan.folder, name), results, report)
    return results, report


def in_words(results: Results, report: VerdictReport, folder: str) -> str:
    lines = []
    for comparison in report.comparisons:
        lines += [wording.headline(comparison), f"  {wording.explanation(comparison, results, report)}"]
    lines += [f"note: {text}" for text in wording.warnings(results)]
    return "\n".join([*lines, wording.question(report), f"The whole verdict is in {os.path.join(folder, PAGE)}"])


# ---- results ---------------------------------------------------------------------------------------------------------


def collect(plan: ComparisonPlan, tried: Sequence[EndedRun], chosen: Chosen, ended: Sequence[EndedRun]) -> Results:
    names = {start.name: pretraining_names(start) for start in plan.starts}
    searched = tuple(
        LearningRateSearch(
            start.name,
            task.name,
            tuple(scores_by_rate(tried, task, start).items()),
            chosen[task.name, start.name],
        )
        for task in plan.tasks
        for start in plan.starts
        if tried
    )
    return Results(
        tuple(_arm(plan, start, names[start.name]) for start in plan.starts),
        tuple(verdict_task(task) for task in plan.tasks),
        tuple(_run(end, names[end.run.start.name][end.run.number]) for end in ended),
        searched,
        _protocol(plan),
    )


def pretraining_names(start: ArmStart) -> tuple[str, ...]:
    """As short as they are different."""
    if len(start.locations) == 1:
        return (start.name,)
    short = tuple(os.path.basename(place) for place in start.locations)
    return short if len(set(short)) == len(short) else start.locations


def _arm(plan: ComparisonPlan, start: ArmStart, names: tuple[str, ...]) -> Arm:
    models = [arm.model for arm in plan.models[start.name]]
    first = models[0]
    step = f", step {first.step:,}" if first.step else ""
    place = f"{first.location} ({class_name(first.config)}{step})"
    if start.name == RANDOM:
        draws = "others with each seed" if start.random else f"drawn {len(names)} times"
        what = f"random weights in the shape of {place}, {draws}"
        return Arm(start.name, what, names, seconds=0.0, tokens=0)
    if start.name not in names:
        place = f"{len(names)} pretraining runs, such as {place}"
    costs = [cost(model) for model in models]
    seconds, tokens = (None if None in each else sum(each) for each in zip(*costs, strict=True))
    return Arm(start.name, place, names, seconds, tokens)


def cost(model: TrainedModel) -> tuple[float | None, int | None]:
    """(seconds of computing, tokens) of a pretraining run by its log; None for a folder, which has none."""
    measured = [] if model.run is None else RunDirectory(model.folder).read_metrics()
    lines = [line for line in measured if line.get("tokens_per_second")]
    if not lines:
        return None, None
    ends = [0, *(line["tokens"] for line in lines)]
    spent = [max(0, after - before) for before, after in zip(ends, ends[1:], strict=False)]
    seconds = sum(count / line["tokens_per_second"] for count, line in zip(spent, lines, strict=True))
    return seconds, sum(spent)


def verdict_task(task: LabelledTask) -> ComparedTask:
    section, labels, examples = task.config.task, task.dataset.labels, task.dataset.test
    sizes = (len(examples), len(task.dataset.train), len(task.dataset.validation))
    if section.kind == "question_answering":
        return ComparedTask(task.name, "scores", "mean", (), (), *sizes)
    gold = gold_outcomes(section, labels, examples)
    if section.kind != "token_classification":
        return ComparedTask(task.name, KINDS[section.kind], cast(Any, task.metric), labels, gold, *sizes)
    if task.metric != "f1":
        return ComparedTask(task.name, "tokens", cast(Any, task.metric), labels, gold, *sizes)
    kinds = span_kinds(labels)
    return ComparedTask(task.name, "spans", "f1_micro", kinds, spans_of(labels, kinds, gold), *sizes)


def outcomes(task: LabelledTask, run: ComparedRun) -> Outcomes:
    """A run's predictions for the test examples, in the form of the verdict's kind of task."""
    name = "predictions-test.json"
    where, recorded = run.read(name, "where", "outcomes")
    if where != [example.where for example in task.dataset.test]:
        raise InputError("holds predictions for other examples", where=run.directory.path(name), fix=MAKE_AGAIN)
    predictions = tuple(tuple(value) if isinstance(value, list) else value for value in recorded)
    labels = task.dataset.labels
    if task.config.task.kind == "question_answering":
        score = exact_match if task.metric == "exact_match" else overlap_f1
        return tuple(score(asked, str(answer)) for asked, answer in zip(task.dataset.test, predictions, strict=True))
    if task.config.task.kind == "token_classification" and task.metric == "f1":
        return spans_of(labels, span_kinds(labels), predictions)
    return predictions


def _run(ended: EndedRun, pretraining_run: str) -> ScoredRun:
    run = ended.run
    lines = [line for line in run.directory.read_metrics() if "loss" in line]
    losses = [line["loss"] for line in lines]
    stopped = "its health check stopped it, and its last finite weights are scored"
    return ScoredRun(
        run.start.name,
        pretraining_run,
        run.task.name,
        run.seed,
        ended.score,
        outcomes(run.task, ended.scored or run),
        final_loss=losses[-1] if losses else None,
        lowest_loss=min(losses, default=None),
        tokens=lines[-1]["tokens"] if lines else None,
        fault=f"{stopped}: {ended.fault}" if ended.fault else "",
    )


def _protocol(plan: ComparisonPlan) -> Protocol:
    budget = plan.budget
    budgets, validation = [], []
    for task in plan.tasks:
        config = task.config
        budgets.append(f"{task.name}: {_steps(task)}")
        shared = "a share of the training file, another with each seed"
        validation.append(f"{task.name}: {'a file of its own' if config.data.validation else shared}")
    equal = all(len(set(task.arms.values())) == 1 for task in plan.tasks)
    same = "The same for every arm. " if equal else ""
    rates = ", ".join(map(words.rate, budget.rates))
    one_rate = len(budget.rates) == 1
    tried = f"Every arm tried the learning rates {rates} with seed {budget.search_seed} and kept the best of each task"
    search = f"Every arm had the learning rate {rates}" if one_rate else tried
    chose = "each run's best checkpoint" if one_rate else "the learning rates and each run's best checkpoint"
    read = "Each run read it once, at its end."
    return Protocol(
        budget=f"{same}{'; '.join(budgets)}. {search}.",
        validation=f"{'; '.join(validation)}. It chose {chose}.",
        test=read if one_rate else f"{read} The search did not read it.",
    )


def _steps(task: LabelledTask) -> str:
    """Of every arm, or where they are not equal of each. Windows of questions are examples of training here."""
    examples = task.config.batch.examples
    asks = task.config.task.kind == "question_answering"

    def of(arm: ArmTraining) -> str:
        epochs = f" ({arm.steps * examples / len(task.dataset.train):.3g} epochs)"
        what = "windows" if asks else "examples"
        return f"{arm.steps:,} steps of {examples} {what}{'' if asks else epochs}, rows up to {arm.max_seq_len} tokens"

    trainings = set(task.arms.values())
    return (
        of(trainings.pop())
        if len(trainings) == 1
        else " and ".join(f"{name} {of(arm)}" for name, arm in task.arms.items())
    )
