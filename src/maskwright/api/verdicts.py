"""Did it help? The comparison of several models, from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from maskwright.api.given import Location, checked, location, locations, plain
from maskwright.config.settings import Count, in_flow
from maskwright.tasks.compare.plan import Budget
from maskwright.tasks.compare.verdict import PAGE, in_words
from maskwright.tasks.compare.verdict import compare as make
from maskwright.verdict.judge import VerdictReport
from maskwright.verdict.results import Results


@dataclass(frozen=True)
class Comparison:
    """A finished comparison. `report.comparisons` holds a verdict for each pair of arms and task, with the difference,
    its interval and p; `results` holds every run's score and predictions."""

    location: str
    results: Results = field(repr=False)
    report: VerdictReport = field(repr=False)

    @property
    def page(self) -> str:
        """The whole verdict, as an HTML page."""
        return os.path.join(self.location, PAGE)

    def __str__(self) -> str:
        return in_words(self.results, self.report, self.location)


@checked
def compare(
    models: Sequence[Location],
    tasks: Location | Sequence[Location],
    to: Location,
    *,
    base: str | None = None,
    seeds: Count = 8,
    learning_rates: Sequence[float] = (1e-4, 3e-4, 1e-3),
    search_seed: int = 0,
    overrides: Mapping[str, Any] | None = None,
    workers: Count = 1,
) -> Comparison:
    """Fine-tunes each model under the same rules, and judges which does better, beyond noise. Fine-tunings that are
    already in the folder `to` are not repeated.

    `models`: run directories, Hugging Face folders, `random`, `linear` (without a transformer), or `bm25` (only for
    retrieval); `NAME=PATH` gives an arm a name. `tasks`: YAMLs of fine-tunings with a test set, for labels or
    retrieval. `base`: the arm to compare the others with; may be `random`, `linear` or `bm25`. Default: the first.
    Fewer than 6 `seeds` cannot show anything. `workers`: fine-tunings to run at the same time; their output is in the
    folder's logs. See docs/compare.md. Raises `InputError` before the first run, `JobError` for a run that failed.
    """
    budget = Budget(learning_rates, seeds, search_seed, workers)
    folder, keys = location(to), plain(overrides or {}, "overrides")
    results, report = make(
        locations(models),
        locations(tasks),
        folder,
        base=base,
        budget=budget,
        overrides=[f"{key}={in_flow(value)}" for key, value in keys.items()],
    )
    return Comparison(folder, results, report)
