"""The command that compares fine-tuned models."""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.cli.options import AsJson, To, app, print_result


@app.command("compare")
def compare(
    model: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Arms: run directories, Hugging Face folders, random (weights of the first one's shape), linear "
            "(TF-IDF and a linear model, without a transformer), or bm25 (only for retrieval). NAME=PATH gives an arm "
            "a name. NAME=RUN1,RUN2,… has several pretraining runs, to ask about the recipe.",
        ),
    ],
    on: Annotated[
        list[str],
        typer.Option(
            "--on",
            metavar="TASK",
            help="YAML of a fine-tuning that has a test set, for labels or retrieval; may be given again.",
        ),
    ],
    to: To = "comparison",
    base: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Arm that the others are compared with; it may be random, linear or bm25. Default: the first.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Fine-tunings of each arm and task; a verdict takes at least 6.", min=1)
    ] = 8,
    learning_rates: Annotated[
        str,
        typer.Option(
            metavar="RATES", help="Grid that every arm searches, on validation; for large models 1e-5,2e-5,5e-5."
        ),
    ] = "1e-4,3e-4,1e-3",
    search_seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of the search; the fine-tunings take those after it.", min=0)
    ] = 0,
    processes_at_once: Annotated[int, typer.Option(metavar="N", help="Fine-tunings that run side by side.", min=1)] = 1,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of every TASK, as in --set schedule.epochs=5."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune several models under the same rules, and judge which does better, beyond noise. The same command on the
    same folder goes on."""
    from maskwright.tasks.compare.plan import Budget
    from maskwright.tasks.compare.verdict import compare, in_words

    budget = Budget(learning_rates.split(","), seeds, search_seed, processes_at_once)
    results, report = compare(model, on, to, base=base, budget=budget, overrides=set_ or [])
    print_result(in_words(results, report, to), report.to_json(), as_json)
