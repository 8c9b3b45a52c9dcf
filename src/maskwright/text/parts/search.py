"""The second phase: the search for repeated documents over all parts that are judged."""

from __future__ import annotations

import os
from collections.abc import Sequence

from maskwright.core.runner import Runner
from maskwright.text.cleaning.steps import CleaningOptions
from maskwright.text.cleaning.survey import Limits
from maskwright.text.parts.columns import Note
from maskwright.text.parts.cut import Part, digest_of
from maskwright.text.parts.judge import EXACT, bands
from maskwright.text.parts.phase import compute, remove_others
from maskwright.text.parts.repeats import FindRepeats, Resolved, searches

KEY_BYTES = 12
"""A key and its place."""


def resolve(
    runner: Runner,
    folder: str,
    judged: Sequence[tuple[str, Note]],
    parts: Sequence[Part],
    cleaning: CleaningOptions,
    limits: Limits,
) -> Resolved:
    paths = tuple(path for path, _ in judged)
    documents = sum(note["documents"] for _, note in judged)
    held_out = sum(part.held_out for part in parts)
    if limits.keep_duplicates:
        exact = found_in(runner, folder, paths, (EXACT,), documents, held_out) if held_out else ()
    else:
        exact = found_in(runner, folder, paths, (EXACT,), documents, None)
    near = found_in(runner, folder, paths, (*bands(cleaning),), documents, None) if bands(cleaning) else ()
    return Resolved(paths, exact, near)


def found_in(
    runner: Runner, folder: str, judged: tuple[str, ...], columns: tuple[str, ...], documents: int, held_out: int | None
) -> tuple[str, ...]:
    """The files of what repeats in the columns, each of a range of keys."""
    ranges = searches(documents)
    names = [os.path.basename(path) for path in judged]
    digest = digest_of(names, columns, ranges, held_out)
    begins = f"find-{columns[0]}-"
    paths = tuple(os.path.join(folder, f"{begins}{number:04}-{digest}") for number in range(ranges))
    remove_others(folder, begins, paths)
    work = FindRepeats(judged, columns, ranges, held_out)
    size = KEY_BYTES * len(columns) * documents // ranges
    compute(runner, work, [*enumerate(paths)], f"find {'near ' * (len(columns) > 1)}duplicates", [size] * ranges)
    return paths
