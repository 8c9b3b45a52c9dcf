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
from maskwright.report import words
from maskwright.run.directory import RESULTS, RunDirectory
from maskwright.tasks.compare import linear
from maskwright.tasks.compare.arms import BM25, LINEAR, RANDOM, ArmStart, ArmTraining
from maskwright.tasks.compare.folder import opened
from maskwright.tasks.compare.plan import Budget, ComparedOn, ComparisonPlan, LabelledTask, read
from maskwright.tasks.compare.retrieval import K1, B, RetrievalTask
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
from maskwright.tasks.finetune.objective import chance
from maskwright.tasks.models.load import TrainedModel
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
NAMES_OF_METRICS: dict[str, str] = {"ndcg@10": "nDCG@10", "recall@100": "recall@100", "mrr@10": "MRR@10"}
"""Name of a retrieval metric, for people."""


def compare(
    models: Sequence[str],
    on: Sequence[str],
    folder: str,
    *,
    base: str | None = None,
    budget: Budget,
    overrides: Sequence[str] = (),
) -> tuple[Results, VerdictReport]:
    """Makes or continues the comparison in `folder`, and writes `results.json`, `verdict.html` and `verdict.md` there.

    Raises kinds of `InputError` (2) before the first run, `JobError` for a run that failed, `StoppedEarly` (75).
    """
    asked = read(models, on, folder, base=base, budget=budget, overrides=overrides)
    with opened(asked) as plan:
        tried = run(searches(plan), plan, "search")
        chosen = choose(plan, tried)
        ended = run(finals(plan, chosen), plan, "fine-tune")
        results = collect(plan, tried, chosen, ended)
        write_results(os.path.join(plan.folder, RESULTS), results)
        report = judge(results)
        for name in (PAGE, "verdict.md"):
            page.write(os.path.join(plan.folder, name), results, report)
    return results, report


def left(plan: ComparisonPlan) -> list[dict[str, Any]]:
    """The runs of each stage, and how many are done."""
    tried = searches(plan)
    stages = {"choose a learning rate": tried, "fine-tune": finals(plan, choose(plan, []))}
    return [
        {"stage": stage, "runs": len(runs), "done": sum(os.path.exists(each.results) for each in runs)}
        for stage, runs in stages.items()
    ]


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
            tuple(scores.items()),
            chosen[task.name, start.name],
        )
        for task in plan.tasks
        for start in plan.starts
        if (scores := scores_by_rate(tried, task, start))
    )
    return Results(
        tuple(_arm(plan, start, names[start.name]) for start in plan.starts),
        tuple(verdict_task(task) for task in plan.tasks),
        tuple(_run(end, names[end.run.start.name][end.run.number]) for end in ended),
        searched,
        _protocol(plan),
    )


def pretraining_names(start: ArmStart) -> tuple[str, ...]:
    """Names that are as short as they can be and still differ."""
    if len(start.locations) <= 1:
        return (start.name,)
    short = tuple(os.path.basename(place) for place in start.locations)
    return short if len(set(short)) == len(short) else start.locations


def _arm(plan: ComparisonPlan, start: ArmStart, names: tuple[str, ...]) -> Arm:
    if start.fitted:
        return Arm(start.name, _without_transformer(plan, start), names, seconds=0.0, tokens=0, transformer=False)
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


def _without_transformer(plan: ComparisonPlan, start: ArmStart) -> str:
    if start.name == BM25:
        return f"BM25 of words (bm25s, Lucene's, k1 {K1:g}, b {B:g}); no transformer, nothing learned from judgements"
    parts = []
    if not all(isinstance(task, RetrievalTask) for task in plan.tasks):
        parts.append("TF-IDF of words and characters, and a linear model (scikit-learn)")
    if any(isinstance(task, RetrievalTask) for task in plan.tasks):
        parts.append("to search, the cosine of two texts' TF-IDF of words and characters, which learns nothing")
    return f"{'; '.join(parts)}; no transformer, no pretraining"


def cost(model: TrainedModel) -> tuple[float | None, int | None]:
    """(seconds of computing, tokens) of a pretraining run by its log; None for a folder without a log."""
    measured = [] if model.run is None else RunDirectory(model.folder).read_metrics()
    lines = [line for line in measured if line.get("tokens_per_second")]
    if not lines:
        return None, None
    ends = [0, *(line["tokens"] for line in lines)]
    spent = [max(0, after - before) for before, after in zip(ends, ends[1:], strict=False)]
    seconds = sum(count / line["tokens_per_second"] for count, line in zip(spent, lines, strict=True))
    return seconds, sum(spent)


def verdict_task(task: ComparedOn) -> ComparedTask:
    if isinstance(task, RetrievalTask):
        splits = task.collection.test, task.collection.train, task.collection.validation
        test, train, validation = map(len, splits)
        return ComparedTask(
            *(task.name, "scores", "mean", (), (), test, train, validation),
            score=NAMES_OF_METRICS[task.metric],
            example="question",
        )
    section, labels, examples = task.config.task, task.dataset.labels, task.dataset.test
    sizes = (len(examples), len(task.dataset.train), len(task.dataset.validation))
    numbers = {name: number for number, name in enumerate(dict.fromkeys(example.group for example in examples))}
    groups = tuple(numbers[example.group] for example in examples) if all(numbers) else ()
    if section.kind == "question_answering":
        return ComparedTask(task.name, "scores", "mean", (), (), *sizes, groups=groups)
    gold, guessing = gold_outcomes(section, labels, examples), chance(section, len(labels))
    if section.kind == "token_classification" and task.metric == "f1":
        kinds = span_kinds(labels)
        spans = spans_of(labels, kinds, gold)
        return ComparedTask(task.name, "spans", "f1_micro", kinds, spans, *sizes, guessing=guessing, groups=groups)
    kind = KINDS.get(section.kind, "tokens")
    return ComparedTask(task.name, kind, cast(Any, task.metric), labels, gold, *sizes, guessing=guessing, groups=groups)


def outcomes(task: ComparedOn, run: ComparedRun) -> Outcomes:
    """A run's predictions for the test examples, in the form of the verdict's kind of task."""
    name = "predictions-test.json"
    where, recorded = run.read(name, "where", "outcomes")
    examples = task.collection.test if isinstance(task, RetrievalTask) else task.dataset.test
    if where != [example.where for example in examples]:
        raise InputError("holds predictions for other examples", where=run.directory.path(name), fix=MAKE_AGAIN)
    if isinstance(task, RetrievalTask):
        return tuple(recorded[task.metric])
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
        tokens=lines[-1].get("tokens") if lines else None,
        fault=f"{stopped}: {ended.fault}" if ended.fault and not ended.has_scores else ended.fault,
        beside=_beside(run),
    )


def _beside(run: ComparedRun) -> dict[str, float]:
    if not isinstance(run.task, RetrievalTask):
        return {}
    others = [name for name in NAMES_OF_METRICS if name != run.task.metric]
    values = run.read(RESULTS, *(f"test.{name}" for name in others))
    return {NAMES_OF_METRICS[name]: float(value) for name, value in zip(others, values, strict=True)}


def _protocol(plan: ComparisonPlan) -> Protocol:
    """Each entry consists of whole sentences."""
    return Protocol(*(" ".join(part) for part in ([*_budget(plan), *_search(plan)], _choice(plan), _reading(plan))))


def _labelled(plan: ComparisonPlan) -> list[LabelledTask]:
    return [task for task in plan.tasks if isinstance(task, LabelledTask)]


def _fitted(plan: ComparisonPlan) -> list[str]:
    """Arms without a transformer."""
    return [start.name for start in plan.starts if start.fitted]


def _has_linear(plan: ComparisonPlan) -> bool:
    """Whether a linear model is fitted; on retrieval, its arm learns nothing."""
    return LINEAR in _fitted(plan) and bool(_labelled(plan))


def _but_fitted(plan: ComparisonPlan) -> str:
    return f" but {words.listed(_fitted(plan))}" if _fitted(plan) else ""


def _budget(plan: ComparisonPlan) -> list[str]:
    equal = all(len(set(task.arms.values())) == 1 for task in plan.tasks)
    steps = "; ".join(f"{task.name}: {_steps(task)}" for task in plan.tasks)
    return [f"The same for every arm{_but_fitted(plan)}."] * equal + [f"{steps}."]


def _search(plan: ComparisonPlan) -> list[str]:
    rates, seed = ", ".join(map(words.rate, plan.budget.rates)), plan.budget.search_seed
    who = f"Every arm{_but_fitted(plan)}"
    sentences = [f"{who} tried the learning rates {rates} with seed {seed} and kept the best of each task."]
    if len(plan.budget.rates) == 1:
        sentences = [f"{who} had the learning rate {rates}."]
    if _has_linear(plan):
        penalties = ", ".join(map(words.rate, linear.PENALTIES))
        data = [task.config.data for task in _labelled(plan)]
        same = all(each.validation and each.fraction == 1.0 for each in data)
        sentences += [
            f"{LINEAR} was fitted to whole texts and tried the penalties {penalties} in the same way.",
            "Nothing about it is random, so it is the same with every seed."
            if same
            else "Nothing about it is random: its seeds differ by the examples that it learns from alone.",
        ]
    if len(_labelled(plan)) < len(plan.tasks):
        sentences.append("To search, each model is scored as its last step left it.")
        if names := words.listed(_fitted(plan)):
            sentences.append(f"There, {names} learned nothing, so seeds do not matter.")
    return sentences


def _choice(plan: ComparisonPlan) -> list[str]:
    shared = "a share of the training file, another with each seed"
    files = [(task.name, "a file of its own" if task.config.data.validation else shared) for task in plan.tasks]
    chose = [f"{LINEAR}'s penalty"] * _has_linear(plan) + ["the learning rates"] * (len(plan.budget.rates) > 1)
    chose += ["each run's best checkpoint"] * bool(_labelled(plan))
    of_tasks = "; ".join(f"{name}: {file}" for name, file in files)
    return [f"{of_tasks}.", f"It chose {words.listed(chose or ['no rate, since there is one'])}."]


def _reading(plan: ComparisonPlan) -> list[str]:
    searched = len(plan.budget.rates) > 1 or _has_linear(plan)
    return ["Each run read it once, at its end.", *["The search did not read it."] * searched]


def _steps(task: ComparedOn) -> str:
    """Steps of all arms or, if they differ, of each. Windows of questions count as examples of training here, and so do
    pairs of a question and a passage."""
    examples, kind = task.config.batch.examples, task.config.task.kind

    def of(arm: ArmTraining) -> str:
        rows = f"rows up to {arm.max_seq_len} tokens"
        if isinstance(task, RetrievalTask):
            epochs = task.config.schedule.epochs or 3.0
            steps = f"{epochs:g} epochs" if arm.steps is None else f"{arm.steps:,} steps"
            return f"{steps} in updates of up to {examples} pairs of a question and a passage, {rows}"
        assert arm.steps is not None
        steps = f"{arm.steps:,} steps of {examples}"
        if kind == "question_answering":
            return f"{steps} windows, {rows}"
        return f"{steps} examples ({arm.steps * examples / len(task.dataset.train):.3g} epochs), {rows}"

    trainings = set(task.arms.values())
    return (
        of(trainings.pop())
        if len(trainings) == 1
        else " and ".join(f"{name} {of(arm)}" for name, arm in task.arms.items())
    )
