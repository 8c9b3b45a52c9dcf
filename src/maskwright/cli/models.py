"""The commands on runs and models."""

from __future__ import annotations

import os
from dataclasses import asdict, fields, replace
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any, Literal

from maskwright.cli.manual import Without, command
from maskwright.cli.options import (
    AsJson,
    Device,
    EncodingOfFile,
    Model,
    OldNames,
    To,
    app,
    print_result,
    stdout_for_document,
)
from maskwright.core.console import answer, warn
from maskwright.core.errors import InputError
from maskwright.launch.target import LaunchOptions, Training
from maskwright.tasks.store import TextReading

if TYPE_CHECKING:
    from maskwright.config.finetuning import FinetuneConfig
    from maskwright.config.pretraining import RunConfig
    from maskwright.config.retrieval import RetrievalConfig
    from maskwright.tasks.start.prepared import Prepared
    from maskwright.training.stop import StopRequest

OnlyLayout = Without(frozenset({"text_column", "on_bad_input", "encoding", "letters"}))

# ---- models --------------------------------------------------------------------------------------------------------


@command(app, "pretrain")
def pretrain(
    training: Training,
    machines: LaunchOptions = LaunchOptions(),
    old_names: OldNames = OldNames(),
    dry_run: bool = False,
    as_json: AsJson = False,
) -> None:
    """Train a masked language model. The same command on the same folder continues the run exactly.

    --dry-run: Check the configuration and data, and estimate the time, without training. Does not check the device,
        the network or checksums.
    """
    from maskwright.config.pretraining import read_config
    from maskwright.processes.parent import end_with_parent

    end_with_parent()
    training = replace(training, overrides=old_names.added_to(training.overrides))
    resolved = read_config(training.config, [*training.overrides])
    trained, processes = _launch(training, resolved, machines, dry_run=dry_run)
    if not trained:
        from maskwright.tasks.pretrain import run as task

        begin: Any = {"begin_from": training.begin_from, "fresh_optimizer": training.fresh_optimizer}
        if dry_run:
            ready = task.dry_run(resolved, training.run, **begin)
            return _say_what_would_happen(ready, processes, machines.num_nodes, as_json)
        ends: Any = {"config_file": training.config, "stop_request": _stop_request(training)}
        task.pretrain(resolved, training.run, **begin, **ends)
    _say_how_it_ended(training.run, as_json)


def _stop_request(training: Training) -> StopRequest:
    from maskwright.training.stop import StopRequest

    return StopRequest(
        stop_after_hours=training.stop_after_hours,
        stop_after_steps=training.stop_after_steps,
        profile_steps=training.profile_steps,
    )


def _launch(
    command: Training, config: RunConfig | FinetuneConfig, machines: LaunchOptions, *, dry_run: bool
) -> tuple[bool, int | None]:
    """Trains as the driver of a Ray job, or in several processes of this machine; not if this process is to train by
    itself. `dry_run` only checks the options.

    Returns whether it has trained, and how many processes train together, on all machines; None for the processes of
    this start."""
    from maskwright.launch import local, topology
    from maskwright.launch.ray import gang

    if gang.job_id() is not None:
        if not dry_run:
            gang.train_as_a_job(command, config, machines.num_nodes, machines.gpus_per_node)
        return not dry_run, None
    if machines.gpus_per_node is not None:
        fix = "start it with `maskwright submit ray …`, or `ray job submit … -- maskwright pretrain …`"
        raise InputError("is for a Ray job, and this is not one", where="--gpus-per-node", fix=fix)
    group = topology.choose(config, machines)
    if group is None:
        return False, None
    if not dry_run:
        local.supervise(command, group, config.checkpoint.grace_seconds)
    return not dry_run, group.nodes * group.processes


def _say_what_would_happen(ready: Prepared, processes: int | None, nodes: int | None, as_json: bool) -> None:
    from maskwright.core.errors import ConfigError
    from maskwright.tasks.planning.measure import this_machine

    known, warnings = ready.describe(processes), ready.warnings()
    if not as_json:
        answer(known)
    for warning in warnings:
        warn(warning)
    try:
        more = ready.time_here(this_machine(ready.config, processes, nodes or 1)) or ""
    except ConfigError as error:  # the device is absent
        more = f"time here: unknown: {error}"
    if as_json or more:
        print_result(more, {"lines": f"{known}\n{more}".splitlines(), "warnings": warnings}, as_json)


def _say_how_it_ended(run: str, as_json: bool) -> None:
    """Prints, with --json, the `maskwright status` of the finished run."""
    if as_json:
        from maskwright.monitor.status import look

        print_result("", look(run).to_json(), True)


@command(app, "finetune")
def finetune(
    training: Annotated[Training, Without(frozenset({"begin_from", "fresh_optimizer"}))],
    machines: LaunchOptions = LaunchOptions(),
    dry_run: bool = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on labelled examples and judge it. The same command on the same folder continues the run.

    --dry-run: Check the configuration and data, and estimate the time, without training. Does not check the device or
        the network.
    """
    from maskwright.config.retrieval import RetrievalConfig, read_task_config
    from maskwright.processes.parent import end_with_parent

    end_with_parent()
    training = replace(training, verb="finetune")
    resolved = read_task_config(training.config, [*training.overrides])
    if isinstance(resolved, RetrievalConfig):
        return _finetune_for_search(resolved, training, machines, dry_run=dry_run, as_json=as_json)
    trained, processes = _launch(training, resolved, machines, dry_run=dry_run)
    if not trained:
        from maskwright.tasks.finetune import prepare as task

        if dry_run:
            return _say_what_would_happen(task.dry_run(resolved, training.run), processes, machines.num_nodes, as_json)
        ends: Any = {"config_file": training.config, "stop_request": _stop_request(training)}
        task.finetune(resolved, training.run, **ends)
    _say_how_it_ended(training.run, as_json)


def _finetune_for_search(
    config: RetrievalConfig, training: Training, machines: LaunchOptions, *, dry_run: bool, as_json: bool
) -> None:
    """sentence-transformers trains, in one process, and a training that stops begins again."""
    from maskwright.tasks.search.finetune import MODEL, finetune_for_search

    alone = Training(training.config, training.run, training.overrides, verb="finetune")
    for given, default in ((training, alone), (machines, LaunchOptions())):
        for name in (each.name for each in fields(given) if getattr(given, each.name) != getattr(default, each.name)):
            what = "is not for task.kind retrieval, which sentence-transformers trains in one process"
            raise InputError(what, where=f"--{name.replace('_', '-')}", fix="leave it out")
    results = finetune_for_search(config, training.run, dry_run=dry_run)
    if dry_run:
        return print_result("\n".join(results["lines"]), results, as_json)
    if not as_json:
        answer(f"the model is in {os.path.join(training.run, MODEL)}")
    _say_how_it_ended(training.run, as_json)


@command(app, "evaluate")
def evaluate(
    model: Model,
    store: str | None = None,
    max_rows: int = 512,
    seq_len: int | None = None,
    blimp: str | None = None,
    share: float = 1.0,
    text: str | None = None,
    reading: Annotated[TextReading, OnlyLayout] = TextReading(),
    examples: str | None = None,
    text_column: list[str] | None = None,
    text_pair: str | None = None,
    label: list[str] | None = None,
    encoding: EncodingOfFile = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure held-out loss, accuracy on minimal pairs, or the perplexity of a text; of a fine-tuned model, the metrics
    of its task.

    Held-out loss:
    --store PATH: Token store. Default: the store of the run.
    --max-rows 1≤N: Number of held-out rows to use.
    --seq-len N: Tokens in a row. Default: as in the run.
    Minimal pairs:
    --blimp PATH: Minimal pairs: .jsonl files of BLiMP or .txt files of Zorro.
    --share 0≤SHARE≤1: Share of the pairs to use, always the same ones.
    Text:
    --text PATH: Text to measure the pseudo-perplexity of.
    Labels of a fine-tuned model:
    examples --input FILE: Labelled examples. Default: the test or validation set of the run.
    --text-column COLUMN: Column of --text or --input, or its number from 0 in a file without a header line; several of
        --input are joined by a space. Default: `text`; for --input as in the run, or as GLUE names it.
    --text-pair COLUMN: Column in --input of a pair's second text, or of a question's context.
    --label COLUMN: Column of the labels in --input; repeat it if each label has a column. Default: as in the run, or as
        GLUE names it.
    """
    from maskwright.tasks.measure.evaluate import EvaluationRequest, measure, require_one
    from maskwright.tasks.models.load import load_model

    columns = tuple(text_column or ()), text_pair, tuple(label or ())
    request = EvaluationRequest(
        *(store, blimp, text, examples, share, max_rows, seq_len, reading.layout), *columns, encoding
    )
    require_one(request)
    result = measure(
        load_model(model),
        request,
        device=device,
        sources=lambda place, column, encoding: reading.open([place], text_column=column, encoding=encoding),
    )
    print_result(result.report(), asdict(result), as_json)


@command(app, "export")
def export(
    model: Model,
    to: To,
    onnx: bool = False,
    push: str | None = None,
    public: bool = False,
    sentence_transformers: Literal["dense", "rerank"] | None = None,
    relevant: str | None = None,
    as_json: AsJson = False,
) -> None:
    """Write a Hugging Face folder, and prove that transformers computes the same logits.

    --onnx: Also write onnx/model.onnx, proven equal in onnxruntime, and onnx/model_int8.onnx, with its scores and speed
        measured.
    --push OWNER/NAME: Also upload the proven folder to the Hugging Face Hub, into a private repository.
    --public (--push): Make a new repository public.
    --sentence-transformers: Write a folder for sentence-transformers: dense is a SentenceTransformer, rerank a
        CrossEncoder of a model that was fine-tuned on pairs.
    --relevant LABEL: Label of a fine-tuned classifier that means relevant, for a reranker's score.
    """
    from maskwright.core.extras import require
    from maskwright.tasks.export.sentence_transformers import export_as
    from maskwright.tasks.models import hub
    from maskwright.tasks.models.load import load_model

    if push is not None:
        hub.require_push(push)
    for package in ("onnx", "onnxruntime") if onnx else ():
        require(package, "--onnx")
    trained = load_model(model, bare=sentence_transformers == "dense")
    measured = export_as(sentence_transformers, trained, to, relevant=relevant, onnx=onnx)
    if push is not None:
        hub.push(to, push, public=public)
    print_result(None, {"folder": to, **measured, "pushed_to": push}, as_json)


@command(app, "fill")
def fill(model: Model, text: list[str], top: int = 5, as_json: AsJson = False) -> None:
    """Show the model's predictions for each mask in a sentence.

    TEXT: Sentences with masks, spelled as in the model's tokenizer: <mask> or [MASK].
    --top 1≤N: Number of predictions for each mask.
    """
    from maskwright.tasks.models.load import load_model
    from maskwright.tasks.use import fill as task

    trained = load_model(model)
    answers = [(sentence, task.fill(trained, sentence, top=top)) for sentence in text]
    if as_json:
        value = [
            {"text": sentence, "masks": [[asdict(guess) for guess in mask] for mask in masks]}
            for sentence, masks in answers
        ]
        return print_result("", {"texts": value}, True)
    for sentence, masks in answers:
        answer(sentence)
        for guesses in masks:
            answer(f"   {'  '.join(f'{_legible(guess.token)} {guess.probability:.0%}' for guess in guesses)}")


def _legible(token: str) -> str:
    """The token, quoted if it has no letter or digit, since white space and marks are hard to see among other words."""
    return token.strip() if any(map(str.isalnum, token)) else repr(token)


@command(app, "quickstart")
def quickstart(
    text: list[str] | None = None,
    to: To = "quickstart",
    architecture: Literal["modernbert", "roberta"] = "modernbert",
    steps: int = 4000,
    layout: Literal["auto", "file", "sentences", "lines"] = "auto",
    text_column: str = "text",
    verdict: bool = False,
    as_json: AsJson = False,
) -> None:
    """Train, evaluate and export a small model on this machine, offline, in a few minutes.

    --text PATH: Your own text. Default: docstrings of the Python packages on this machine.
    --architecture: Architecture to train. modernbert learns far more in the same time.
    --steps 4≤N: Number of training steps.
    --layout (--text): A document of plain text is a file, the sentences between blank lines, or a line; auto decides.
    --text-column NAME (--text): Key or column that holds the text. For CSV without a header line, its number from 0.
    --verdict (no --text): Also fine-tune the model and random weights, and compare them.
    """
    from maskwright.core.extras import require
    from maskwright.tasks import quickstart as task

    require("torch")  # before the minutes that its own commands take until they miss it
    with stdout_for_document(as_json):
        chosen: Any = {"architecture": architecture, "steps": steps, "layout": layout, "text_column": text_column}
        outcome = task.quickstart(text or [], to, verdict=verdict, **chosen)
    print_result(None, outcome, as_json)


@command(app, "schema")
def schema(kind: Literal["pretrain", "finetune", "environment"] = "pretrain", as_json: AsJson = False) -> None:
    """List every key of a YAML with its type, default and meaning. With --json, print its JSON schema, for editors.

    KIND: The YAML of `maskwright pretrain`, of `maskwright finetune`, or of an environment on Google Cloud.
    """
    from pydantic import TypeAdapter

    from maskwright.cli.pages import environment_page, finetuning_page, run_page
    from maskwright.cloud.environment import Environment
    from maskwright.config.finetuning import FinetuneConfig
    from maskwright.config.pretraining import RunConfig
    from maskwright.config.retrieval import RetrievalConfig

    pages = {"pretrain": run_page, "finetune": finetuning_page, "environment": environment_page}
    kinds: Any = {"pretrain": RunConfig, "finetune": FinetuneConfig | RetrievalConfig, "environment": Environment}
    answer(dumps(TypeAdapter(kinds[kind]).json_schema(), indent=2) if as_json else pages[kind]().rstrip())
