"""The commands on runs and models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from json import dumps
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from maskwright.cli.options import (
    AsJson,
    AsSchema,
    BeginFrom,
    BSize,
    Config,
    Datapath,
    Device,
    EncodingOfFile,
    FreshOptimizer,
    Layout,
    Model,
    ProfileSteps,
    Set,
    SimulatedGpus,
    StopAfterHours,
    StopAfterSteps,
    TextColumn,
    To,
    all_overrides,
    app,
    open_sources,
    print_result,
    require_alone,
    stdout_for_document,
)
from maskwright.core.console import answer, warn
from maskwright.core.errors import InputError

Processes = Annotated[
    int | None,
    typer.Option(metavar="N", help="Processes on this machine. Default: one for each GPU.", min=1),
]
NumNodes = Annotated[
    int | None,
    typer.Option(metavar="N", help="Number of machines that train together; a Ray job finds it.", min=1),
]
GpusPerNode = Annotated[
    int | None, typer.Option(metavar="N", help="GPUs of each machine of a Ray job; 0 trains on the CPU.", min=0)
]
NodeRank = Annotated[int, typer.Option(metavar="N", help="Which of the machines this is, from 0.", min=0)]
Rendezvous = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address on machine 0 where several machines meet.")
]

Labelled = Annotated[
    str | None,
    typer.Option("--input", metavar="FILE", help="Only for fine-tuned models: labelled examples. Default: the run's."),
]
TextColumns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of --text or --input, or its number from 0 where there is no header line; several of --input are "
        "joined by a space. When not given, `text`; of --input the run's own, or one of GLUE's names.",
    ),
]
TextPair = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Column of --input: of a pair's second text, or of a question's context."),
]
LabelColumns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN",
        help="Column of --input: of the labels; several where each label has one. When not given, the run's own, or "
        "one of GLUE's names.",
    ),
]
ScoresPage = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="FILE",
        help="Only for fine-tuned models: also write all of it to a page, .html, with a reliability plot.",
    ),
]

if TYPE_CHECKING:
    from maskwright.config.finetuning import FinetuneConfig
    from maskwright.config.pretraining import RunConfig
    from maskwright.config.retrieval import RetrievalConfig
    from maskwright.launch.target import Training
    from maskwright.launch.topology import LaunchOptions
    from maskwright.tasks.start.prepared import Prepared

# ---- models --------------------------------------------------------------------------------------------------------


@app.command("pretrain")
def pretrain(
    config: Config,
    run: Annotated[str, typer.Option("--run", metavar="PATH", help="Run directory; an existing one is continued.")],
    begin_from: BeginFrom = None,
    fresh_optimizer: FreshOptimizer = False,
    set_: Set = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check all but device, network and checksums; say what would happen, and how long it takes here.",
        ),
    ] = False,
    stop_after_hours: StopAfterHours = None,
    stop_after_steps: StopAfterSteps = None,
    profile_steps: ProfileSteps = 0,
    simulated_gpus: SimulatedGpus = None,
    b_size: BSize = None,
    datapath: Datapath = None,
    processes: Processes = None,
    num_nodes: NumNodes = None,
    gpus_per_node: GpusPerNode = None,
    node_rank: NodeRank = 0,
    rendezvous: Rendezvous = None,
    as_json: AsJson = False,
) -> None:
    """Train a masked language model. The same command on the same folder continues the run exactly."""
    from maskwright.config.pretraining import read_config
    from maskwright.launch.target import Training
    from maskwright.launch.topology import LaunchOptions
    from maskwright.processes.parent import end_with_parent

    end_with_parent()
    set_ = all_overrides(set_, simulated_gpus, b_size, datapath)
    resolved = read_config(config, set_)
    machines = LaunchOptions(processes, num_nodes, gpus_per_node, node_rank, rendezvous)
    command = Training(
        *(config, run, tuple(set_), stop_after_hours, stop_after_steps, profile_steps),
        begin_from=begin_from,
        fresh_optimizer=fresh_optimizer,
    )
    trained, processes = _launch(command, resolved, machines, dry_run=dry_run)
    if trained:
        return _say_how_it_ended(run, as_json)
    from maskwright.tasks.pretrain import run as task
    from maskwright.training.stop import StopRequest

    if dry_run:
        ready = task.dry_run(resolved, run, begin_from, fresh_optimizer=fresh_optimizer)
        return _say_what_would_happen(ready, processes, num_nodes, as_json)
    request = StopRequest(
        stop_after_hours=stop_after_hours, stop_after_steps=stop_after_steps, profile_steps=profile_steps
    )
    task.pretrain(
        resolved,
        run,
        begin_from,
        fresh_optimizer=fresh_optimizer,
        config_file=config,
        stop_request=request,
    )
    _say_how_it_ended(run, as_json)


def _launch(
    command: Training, config: RunConfig | FinetuneConfig, machines: LaunchOptions, *, dry_run: bool
) -> tuple[bool, int | None]:
    """Trains as the driver of a Ray job, or in several processes of this machine; not if this process is to train by
    itself. `dry_run` only checks the options.

    Returns whether it has trained, and how many processes train together, on all machines; None for those of this
    start."""
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
        more = f"time here: not known: {error}"
    if as_json or more:
        print_result(more, {"lines": f"{known}\n{more}".splitlines(), "warnings": warnings}, as_json)


def _say_how_it_ended(run: str, as_json: bool) -> None:
    """Prints, with --json, the `maskwright status` of the finished run."""
    if as_json:
        from maskwright.monitor.status import look

        print_result("", look(run).to_json(), True)


@app.command("finetune")
def finetune(
    config: Annotated[
        str, typer.Argument(metavar="CONFIG", help="YAML of the run, or the name of a recipe, such as banking77.")
    ],
    run: Annotated[str, typer.Option("--run", metavar="PATH", help="Run directory; an existing one is continued.")],
    set_: Set = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check all but device and network; say what happens, and how long it takes."),
    ] = False,
    stop_after_hours: StopAfterHours = None,
    stop_after_steps: StopAfterSteps = None,
    profile_steps: ProfileSteps = 0,
    processes: Processes = None,
    num_nodes: NumNodes = None,
    gpus_per_node: GpusPerNode = None,
    node_rank: NodeRank = 0,
    rendezvous: Rendezvous = None,
    as_json: AsJson = False,
) -> None:
    """Train a model on labelled examples and judge it. The same command on the same folder continues the run."""
    from maskwright.config.retrieval import RetrievalConfig, read_task_config
    from maskwright.launch.target import Training
    from maskwright.launch.topology import LaunchOptions
    from maskwright.processes.parent import end_with_parent

    end_with_parent()
    resolved = read_task_config(config, set_)
    if isinstance(resolved, RetrievalConfig):
        of_runs: dict[str, object] = {"--stop-after-hours": stop_after_hours, "--stop-after-steps": stop_after_steps}
        of_runs |= {"--profile-steps": profile_steps, "--processes": processes, "--num-nodes": num_nodes}
        of_runs |= {"--gpus-per-node": gpus_per_node, "--node-rank": node_rank, "--rendezvous": rendezvous}
        return _finetune_for_search(resolved, run, of_runs, dry_run=dry_run, as_json=as_json)
    machines = LaunchOptions(processes, num_nodes, gpus_per_node, node_rank, rendezvous)
    command = Training(
        config, run, tuple(set_ or ()), stop_after_hours, stop_after_steps, profile_steps, verb="finetune"
    )
    trained, processes = _launch(command, resolved, machines, dry_run=dry_run)
    if trained:
        return _say_how_it_ended(run, as_json)
    from maskwright.tasks.finetune import prepare as task
    from maskwright.training.stop import StopRequest

    if dry_run:
        return _say_what_would_happen(task.dry_run(resolved, run), processes, num_nodes, as_json)
    request = StopRequest(
        stop_after_hours=stop_after_hours, stop_after_steps=stop_after_steps, profile_steps=profile_steps
    )
    task.finetune(resolved, run, config_file=config, stop_request=request)
    _say_how_it_ended(run, as_json)


def _finetune_for_search(
    config: RetrievalConfig, run: str, of_runs: Mapping[str, object], *, dry_run: bool, as_json: bool
) -> None:
    """sentence-transformers trains, in one process, and a training that stops begins again."""
    from maskwright.tasks.search.finetune import MODEL, finetune_for_search

    for option, value in of_runs.items():
        if value:
            what = "is not for task.kind retrieval, which sentence-transformers trains in one process"
            raise InputError(what, where=option, fix="leave it out")
    results = finetune_for_search(config, run, dry_run=dry_run)
    if dry_run:
        return print_result("\n".join(results["lines"]), results, as_json)
    if not as_json:
        answer(f"the model is in {os.path.join(run, MODEL)}")
    _say_how_it_ended(run, as_json)


@app.command("evaluate")
def evaluate(
    model: Model,
    store: Annotated[str | None, typer.Option(metavar="PATH", help="Token store. Default: the run's.")] = None,
    blimp: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Minimal pairs to judge instead: BLiMP's .jsonl or Zorro's .txt files."),
    ] = None,
    share: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the pairs to take; always the same ones.", min=0.0, max=1.0)
    ] = 1.0,
    text: Annotated[
        str | None, typer.Option(metavar="PATH", help="Text whose pseudo-perplexity to measure instead.")
    ] = None,
    layout: Layout = "auto",
    max_rows: Annotated[int, typer.Option(metavar="N", help="Number of held-out rows to use.", min=1)] = 512,
    seq_len: Annotated[int | None, typer.Option(metavar="N", help="Tokens in a row. Default: as in the run.")] = None,
    source: Labelled = None,
    text_column: TextColumns = None,
    text_pair: TextPair = None,
    label: LabelColumns = None,
    encoding: EncodingOfFile = None,
    to: ScoresPage = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure held-out loss, minimal pairs or the perplexity of a text; of a fine-tuned model, every metric."""
    from maskwright.tasks.measure.evaluate import EvaluationRequest, measure, require_one
    from maskwright.tasks.models.load import load_model

    def spelt(name: str) -> str:
        return {"examples": "--input", "page": "--to"}.get(name, f"--{name.replace('_', '-')}")

    columns = tuple(text_column or ()), text_pair, tuple(label or ())
    request = EvaluationRequest(store, blimp, text, source, share, max_rows, seq_len, layout, *columns, encoding, to)
    require_one(request, spelt)
    result = measure(
        load_model(model),
        request,
        device=device,
        spelt=spelt,
        sources=lambda place, column, encoding: open_sources([place], layout, column, encoding=encoding),
    )
    print_result(result.report(), asdict(result), as_json)


@app.command("export")
def export(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Run directory, Hugging Face folder, or hf://OWNER/NAME@REVISION.")
    ],
    to: To,
    onnx: Annotated[
        bool,
        typer.Option(
            "--onnx",
            help="Also write onnx/model.onnx, proven equal in onnxruntime, and onnx/model_int8.onnx, whose scores and "
            "speed are measured.",
        ),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME", help="Also upload the proven folder to the Hugging Face Hub, as a private repository."
        ),
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a new repository of --push public.")] = False,
    sentence_transformers: Annotated[
        Literal["dense", "sparse", "late", "rerank"] | None,
        typer.Option(
            help="Write the folder for a kind of model of sentence-transformers: SentenceTransformer, SparseEncoder "
            "(SPLADE), MultiVectorEncoder or CrossEncoder."
        ),
    ] = None,
    relevant: Annotated[
        str | None,
        typer.Option(
            metavar="LABEL", help="Label of a fine-tuned classifier that means relevant, for a reranker's score."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a Hugging Face folder and prove its logits equal in transformers."""
    from maskwright.core.errors import InputError
    from maskwright.core.extras import require
    from maskwright.tasks.export.sentence_transformers import HEADLESS, export_as
    from maskwright.tasks.models import hub
    from maskwright.tasks.models.load import load_model

    if push is not None:
        hub.require_push(push)
    elif public:
        raise InputError("--public goes with --push OWNER/NAME", fix="give both, or neither")

    for package in ("onnx", "onnxruntime") if onnx else ():
        require(package, "--onnx")
    model = load_model(run, bare=sentence_transformers in HEADLESS)
    measured = export_as(sentence_transformers, model, to, relevant=relevant, onnx=onnx)
    if push is not None:
        hub.push(to, push, public=public)
    if as_json:
        print_result("", {"folder": to, **measured, "pushed_to": push}, True)


@app.command("fill")
def fill(
    model: Model,
    text: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT",
            help="Sentences with a mask in them, written as the model's tokenizer has it: <mask>, or [MASK].",
        ),
    ],
    top: Annotated[int, typer.Option(metavar="N", help="Number of guesses for each mask.", min=1)] = 5,
    as_json: AsJson = False,
) -> None:
    """Show what the model would write for each mask."""
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
    """The token, quoted if it has no letter or digit: white space and marks are hard to see among other words."""
    return token.strip() if any(map(str.isalnum, token)) else repr(token)


@app.command("quickstart")
def quickstart(
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="PATH", help="Your own text. Default: documentation strings of Python code."),
    ] = None,
    to: To = "quickstart",
    architecture: Annotated[
        Literal["modernbert", "roberta"],
        typer.Option(help="Architecture to train; modernbert learns far more in the same time."),
    ] = "modernbert",
    steps: Annotated[int, typer.Option(metavar="N", help="Steps to train for.", min=4)] = 4000,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
    verdict: Annotated[
        bool,
        typer.Option("--verdict", help="Also compare the model with random weights, on labels that the text has."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train, evaluate and export a small model on this machine, offline, in a few minutes."""
    from maskwright.core.extras import require
    from maskwright.tasks import quickstart as task

    require("torch")  # before the minutes that its own commands take until they miss it
    with stdout_for_document(as_json):
        outcome = task.quickstart(
            *(text or [], to),
            architecture=architecture,
            steps=steps,
            layout=layout,
            text_column=text_column,
            verdict=verdict,
        )
    if as_json:
        print_result("", outcome, True)


@app.command("schema")
def schema(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a table to read instead.")] = False,
    finetune: Annotated[bool, typer.Option("--finetune", help="The YAML of `maskwright finetune`.")] = False,
    as_json: AsSchema = False,
) -> None:
    """Print the JSON schema of a run's YAML, for editors."""
    from pydantic import TypeAdapter

    from maskwright.cli.pages import finetuning_page, run_page
    from maskwright.config.finetuning import FinetuneConfig
    from maskwright.config.pretraining import RunConfig
    from maskwright.config.retrieval import RetrievalConfig

    require_alone(as_json, {"--markdown": as_markdown})
    if as_markdown:
        answer((finetuning_page() if finetune else run_page()).rstrip())
    else:
        kinds = TypeAdapter(FinetuneConfig | RetrievalConfig if finetune else RunConfig)
        answer(dumps(kinds.json_schema(), indent=2))
