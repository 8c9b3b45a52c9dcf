"""The command that compares fine-tuned models."""

from __future__ import annotations

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, To, app, print_result


@command(app, "compare")
def compare(
    model: list[str],
    task: list[str],
    to: To = "comparison",
    base: str | None = None,
    seeds: int = 8,
    learning_rates: str = "1e-4,3e-4,1e-3",
    search_seed: int = 0,
    workers: int = 1,
    set_: list[str] | None = None,
    dry_run: bool = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune several models under the same rules, and test which does better, beyond noise. The same command on
    the same folder continues.

    MODEL: Models to compare: run directories, Hugging Face folders, random (random weights in the shape of the first
        one), linear (TF-IDF and a linear model, without a transformer), or bm25 (only for retrieval). NAME=PATH names
        a model. NAME=RUN1,RUN2,… pools several pretraining runs, to judge their recipe.
    --task TASK: YAML of a fine-tuning with a test set, for labels or retrieval. Repeatable.
    --base NAME: Model to compare the others with: a MODEL's name, a path, an hf:// address, random, linear
        or bm25. Default: the first.
    --seeds 1≤N: Fine-tunings of each model and task; a verdict needs at least 6.
    --learning-rates RATES: Learning rates to try for every model; validation chooses. For large models, try
        1e-5,2e-5,5e-5.
    --search-seed 0≤N: Seed of the search; the fine-tunings use the seeds after it.
    --workers 1≤N: Fine-tunings to run at the same time.
    set_ --set KEY=VALUE: Override a key of every TASK, as in --set schedule.epochs=5.
    --dry-run: Check the models, the tasks and their splits, and count the runs, without training.
    """
    from maskwright.tasks.compare.plan import Budget, read
    from maskwright.tasks.compare.verdict import compare, in_words, left

    budget = Budget(learning_rates.split(","), seeds, search_seed, workers)
    if dry_run:
        stages = left(read(model, task, to, base=base, budget=budget, overrides=set_ or []))
        lines = "\n".join(f"{each['stage']}: {each['runs']:,} runs, {each['done']:,} of them done" for each in stages)
        return print_result(lines, {"stages": stages}, as_json)
    results, report = compare(model, task, to, base=base, budget=budget, overrides=set_ or [])
    print_result(in_words(results, report, to), report.to_json(), as_json)
