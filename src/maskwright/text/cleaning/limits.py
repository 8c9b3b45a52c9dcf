"""Drop codes (numbers of drop reasons), and the length limits that come before all other rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maskwright.core.errors import InputError
from maskwright.text.document import Document

KEEP, TOO_SHORT, TOO_LONG, DUPLICATE, NEAR_DUPLICATE = range(5)
NAMES = ["", "too short", "too long", "duplicates", "near duplicates"]
MOST_REASONS = 1000


@dataclass(frozen=True)
class Limits:
    min_characters: int = 1
    max_characters: int | None = None
    keep_duplicates: bool = False

    def code(self, document: Document) -> int:
        size = document.characters
        if size < self.min_characters:
            return TOO_SHORT
        return TOO_LONG if self.max_characters is not None and size > self.max_characters else KEEP


class Reasons:
    """Numbers drop reasons in the order in which they come."""

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self.names = list(names)
        self._code_of = {name: code for code, name in enumerate(names)}

    def code(self, reason: str) -> int:
        """The reason's drop code. Raises `InputError` if the user's filter gives too many reasons."""
        if reason not in self._code_of:
            if len(self.names) == MOST_REASONS:
                fix = "return few different reasons, without parts of the text"
                raise InputError(f"gives more than {MOST_REASONS:,} reasons", where=f"--filter {reason}", fix=fix)
            self._code_of[reason] = len(self.names)
            self.names.append(reason)
        return self._code_of[reason]


class DropTotals:
    """Documents of all parts by drop code. Each part has drop codes of its own."""

    def __init__(self) -> None:
        self._reasons = Reasons()
        self._counts: dict[int, int] = {}

    def add(self, names: Sequence[str], counts: Sequence[int]) -> None:
        """Adds a part's documents. `counts`: of each of its `names`."""
        for name, count in zip(names, counts, strict=True):
            if count:
                code = self._reasons.code(name)
                self._counts[code] = self._counts.get(code, 0) + count

    def of(self, code: int) -> int:
        """Documents with a code that all parts share, such as `DUPLICATE`."""
        return self._counts.get(code, 0)

    @property
    def documents(self) -> int:
        return sum(self._counts.values())

    def by_cleaning(self) -> dict[str, int]:
        """Documents that cleaning drops, by reason, the most frequent first."""
        ranked = sorted(self._counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return {self._reasons.names[code]: count for code, count in ranked if code >= NEAR_DUPLICATE}
