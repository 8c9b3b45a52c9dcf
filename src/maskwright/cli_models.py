"""The commands on runs and models."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Literal

import typer

from maskwright.cli_options import (
    Address,
    AsJson,
    BSize,
    Config,
    Datapath,
    Device,
    Layout,
    MaxHours,
    MaxSteps,
    Model,
    ProfileSteps,
    Set,
    SimulatedGpus,
    TextColumn,
    To,
    all_overrides,
    app,
    pretrain_words,
    print_result,
)
from maskwright.core.console import warn

# ---- models --------------------------------------------------------------------------------------------------------


@app.command("pretrain")
def pretrain(
    config: Config,
    run: Annotated[str, typer.Option("--run", help="Run directory; an existing one is continued.")],
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, say what would happen, stop.")] = False,
    max_hours: MaxHours = None,
    max_steps: MaxSteps = None,
    profile_steps: ProfileSteps = 0,
    simulated_gpus: SimulatedGpus = None,
    b_size: BSize = None,
    datapath: Datapath = None,
    num_workers: Annotated[int | None, typer.Option(help="As a Ray job: machines, or parts of one.", min=1)] = None,
    gpus_per_worker: Annotated[int | None, typer.Option(help="As a Ray job: of each. 0: on the CPU.", min=0)] = None,
    processes: Annotated[
        int | None, typer.Option(help="On this machine: one for each GPU when not given, one on a CPU.", min=1)
    ] = None,
    nodes: Annotated[int, typer.Option(help="Machines that run this command together.", min=1)] = 1,
    node_rank: Annotated[int, typer.Option(help="Which of them this is, from 0.", min=0)] = 0,
    rendezvous: Annotated[str | None, typer.Option(help="HOST:PORT of machine 0, for several.")] = None,
) -> None:
    """Train a masked language model. Run again with the same folder: it continues, exactly."""
    from maskwright import cli_ray
    from maskwright.core.config import read_config
    from maskwright.launch import local
    from maskwright.launch.group import choose

    local.end_with_parent()
    set_ = all_overrides(set_, simulated_gpus, b_size, datapath)
    resolved = read_config(config, set_)
    gang = cli_ray.Gang(num_workers, gpus_per_worker, max_hours, max_steps, profile_steps)
    if not dry_run and cli_ray.train_as_a_job(resolved, config, run, set_, gang):
        return
    group = choose(resolved, processes, nodes, node_rank, rendezvous)
    if group and not dry_run:
        words = pretrain_words(config, run, set_)
        limits = local.Limits(max_hours, max_steps, profile_steps)
        return local.supervise(words, group, run, limits, resolved.checkpoint.grace_seconds)
    from maskwright.tasks import preflight
    from maskwright.tasks import pretrain as task
    from maskwright.training.stop import StopRequest

    if dry_run:
        print(preflight.describe(preflight.prepare_run(resolved)))
        for doubt in preflight.doubts(resolved):
            warn(doubt)
    else:
        request = StopRequest(max_hours=max_hours, max_steps=max_steps, profile_steps=profile_steps)
        task.pretrain(resolved, run, config_file=config, stop_request=request)


@app.command("plan")
def plan(
    config: Config,
    on: Annotated[str, typer.Option("--on", help="TPU slice, KIND:TOPOLOGY, as v6e:4x4.")],
    vocab_size: Annotated[int | None, typer.Option(help="When the token store is not here yet.", min=1)] = None,
    search: Annotated[bool, typer.Option(help="Also find the largest micro-batch that fits.")] = True,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Compile the step for a TPU slice, without one: memory, what fits, collectives, FLOPs."""
    from maskwright.core.config import read_config
    from maskwright.tasks import plan as task

    found = task.plan(read_config(config, set_), on, vocab_size=vocab_size, search=search)
    print_result(found.report(), found.to_json(), as_json)
    if not found.asked.fits or found.advice:
        raise typer.Exit(1)


@app.command("stop")
def stop(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="Run directory of a run that is going on, a submitted job.json, ray:ID, vertex:ID or lab.yaml.",
        ),
    ],
    checkpoint: Annotated[bool, typer.Option("--checkpoint", help="Save a checkpoint and go on instead.")] = False,
    wait_seconds: Annotated[float, typer.Option(help="How long to wait for it to happen.", min=0.0)] = 120.0,
    address: Address = None,
) -> None:
    """Ask a run to save and stop, from any machine that sees its folder. The same command continues it."""
    from maskwright.core.run_directory import RunDirectory
    from maskwright.tasks import stop as task

    if run.endswith("/job.json"):
        from maskwright.launch.pull import stop_spec

        return stop_spec(run)
    if run.startswith("ray:"):
        from maskwright import cli_ray

        return cli_ray.stop(run, checkpoint, wait_seconds, address)
    if run.startswith("vertex:"):
        from maskwright import cli_vertex

        return cli_vertex.stop(run, checkpoint, wait_seconds)
    if run.endswith((".yaml", ".yml")):
        from maskwright import cli_env_jobs

        return cli_env_jobs.stop(run)
    print(task.stop(RunDirectory(run), "checkpoint" if checkpoint else "stop", wait_seconds))


@app.command("evaluate")
def evaluate(
    model: Model,
    store: Annotated[str | None, typer.Option(help="Token store; the run's own when not given.")] = None,
    max_rows: Annotated[int, typer.Option(help="Held-out rows to use.", min=1)] = 512,
    seq_len: Annotated[int | None, typer.Option(help="Tokens in a row; the run's own when not given.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Held-out loss and masked accuracy, beside the unigram baseline."""
    from maskwright.core.config import Engine
    from maskwright.core.errors import InputError
    from maskwright.data.store import TokenStore
    from maskwright.tasks import evaluate as task
    from maskwright.tasks.models import load_model

    trained = load_model(model)
    location = store or (trained.run or {}).get("store")
    if location is None:
        raise InputError("a model folder names no text to evaluate on", fix="give --store")
    if seq_len is not None and not 8 <= seq_len <= trained.config.max_seq_len:
        raise InputError(
            f"--seq-len {seq_len} is not in 8 … {trained.config.max_seq_len}, what the model takes",
            fix="give one in that range",
        )
    result = task.evaluate(
        trained, TokenStore(location), seq_len=seq_len, max_rows=max_rows, engine=Engine(device=device)
    )
    print_result(result.report(), result.to_json(), as_json)


@app.command("export")
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory or Hugging Face folder.")], to: To
) -> None:
    """Write a Hugging Face folder and prove its logits equal in transformers."""
    from maskwright.tasks import export as task
    from maskwright.tasks.models import load_model

    task.announce(task.export(load_model(run), to), to)


@app.command("fill")
def fill(
    model: Model,
    text: Annotated[list[str], typer.Argument(metavar="TEXT…", help="Sentences with <mask> in them.")],
    top: Annotated[int, typer.Option(help="Guesses for each mask.", min=1)] = 5,
    as_json: AsJson = False,
) -> None:
    """Show what the model would write for each <mask>."""
    from maskwright.tasks import fill as task
    from maskwright.tasks.models import load_model

    trained = load_model(model)
    answers = [(sentence, task.fill(trained, sentence, top=top)) for sentence in text]
    if as_json:
        value = [
            {"text": sentence, "masks": [[dataclasses.asdict(guess) for guess in mask] for mask in masks]}
            for sentence, masks in answers
        ]
        print(json.dumps(value, ensure_ascii=False, indent=2))
        return
    for sentence, masks in answers:
        print(sentence)
        for guesses in masks:
            print(
                "   "
                + "  ".join(f"{guess.token.strip() or repr(guess.token)} {guess.probability:.0%}" for guess in guesses)
            )


@app.command("verify-resume")
def verify_resume(
    config: Config,
    steps: Annotated[int, typer.Option(help="Steps of the short copy that is run twice.")] = 60,
    kills: Annotated[int, typer.Option(help="How often the second run is killed.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the moments of the kills.")] = 0,
    work: Annotated[str | None, typer.Option(help="Folder for both runs; a temporary one when not given.")] = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Prove on your own job that a killed run continues bit for bit: run it twice, kill one with SIGKILL."""
    from maskwright.core.config import read_config
    from maskwright.core.errors import VerificationError
    from maskwright.tasks import verify_resume as task

    verdict = task.verify_resume(read_config(config, set_), steps=steps, kills=kills, seed=seed, work=work)
    print_result(verdict.report(), verdict.to_json(), as_json)
    if verdict.differences:
        raise VerificationError("the killed run did not end as the other did")


@app.command("drill")
def drill(
    config: Config,
    hours: Annotated[float, typer.Option(help="Go on with kills at random for so long.", min=0.0)] = 0.0,
    work: Annotated[str | None, typer.Option(help="Folder for it; a temporary one when not given.")] = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Make every fault that one machine can have on a tiny copy of your job, and say what became of each."""
    from maskwright.core.config import read_config
    from maskwright.core.errors import VerificationError
    from maskwright.tasks import drill as task

    drills = task.drill(read_config(config, set_), hours=hours, work=work)
    print_result(drills.report(), drills.to_json(), as_json)
    if drills.failed:
        raise VerificationError(f"{drills.failed} of {len(drills.results)} drills failed")


@app.command("replay")
def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run directory.")],
    step: Annotated[int, typer.Option(help="The update to compute again; the first is 0.", min=0)],
    as_json: AsJson = False,
) -> None:
    """Compute one step of a run again, and name the documents of its batch. The run stays as it is."""
    from maskwright.tasks import replay as task

    result = task.replay(run, step)
    print_result(result.report(), result.to_json(), as_json)


@app.command("quickstart")
def quickstart(
    text: Annotated[
        list[str] | None, typer.Option("--text", help="Your own text; Python's documentation if not.")
    ] = None,
    to: To = "quickstart",
    architecture: Annotated[
        Literal["modernbert", "roberta"],
        typer.Option(help="What is trained: modernbert learns far more in the same time."),
    ] = "modernbert",
    minutes: Annotated[float, typer.Option(help="Time to train for, about.", min=0.01)] = 2.0,
    layout: Layout = "auto",
    text_column: TextColumn = "text",
) -> None:
    """Text to a trained, evaluated, exported model on this machine, offline, in a few minutes."""
    from maskwright.tasks import quickstart as task

    task.quickstart(text or [], to, architecture=architecture, minutes=minutes, layout=layout, text_column=text_column)


@app.command("schema")
def schema(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="A table to read instead.")] = False,
) -> None:
    """JSON schema of a run's YAML, for editors."""
    from maskwright.core.config import json_schema
    from maskwright.core.config_page import markdown

    print(markdown().rstrip() if as_markdown else json_schema())
