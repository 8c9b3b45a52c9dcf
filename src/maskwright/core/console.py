"""Terminal output: answers on stdout, messages on stderr, progress with rate and time left.

On a terminal, progress is one bar that redraws itself (rich). Elsewhere (a log file, CI) it is a line every 15 seconds.
"""

from __future__ import annotations

import re
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from maskwright.core.secrets import redact

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

LINE_EVERY_SECONDS = 15.0
REDRAW_EVERY_SECONDS = 0.2

COLOUR = re.compile(r"\x1b\[[0-9;]*m|\r")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal (C0 except tab and line feed, DEL, C1), those that change the direction of the
text that follows, and halves of surrogate pairs, which stand for bytes of a name that is not UTF-8."""

Show = Callable[[int | None, str], object]
"""Receives the lines of a job's log: the index of the host that wrote it (None if all share one log), and the line
without its end."""

_open_bars: list[Progress] = []
_quiet = False


def printable(text: str) -> str:
    """`text` without characters that control a terminal, since names, logs and documents come from others. Colours and
    carriage returns, which are frequent in logs, are removed; other control characters become �."""
    return CONTROL.sub("�", COLOUR.sub("", text))


def one_line(text: str) -> str:
    """`printable` on one line, for a cell of a table."""
    return " ".join(printable(text).split())


def escaped(document: str) -> str:
    """A JSON document with DEL, C1 and direction characters escaped, which the `json` module leaves as they are."""
    return CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", document)


TRUE, FALSE = ("true", "1", "yes", "y", "t"), ("false", "0", "no", "n", "f")
"""The words with which programs switch an option on and off, in small letters."""


def typed(words: Sequence[str]) -> str:
    """The command line of `maskwright` with these words, as a user types it."""
    return f"maskwright {shlex.join(words)}"


def is_option(word: str) -> bool:
    """Whether a word of a command line is an option, and no negative number."""
    return word.startswith("-") and len(word) > 1 and not re.match(r"-\.?\d", word)


def answer(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """Prints a command's result, on stdout unless `file` is given. JSON for programs is `escaped` first."""
    print(printable(text), file=file, end=end, flush=True)


def only_warnings() -> None:
    """Shows only warnings from now on: for processes other than rank 0, which shows the rest."""
    global _quiet
    _quiet = True


def note(message: str) -> None:
    """Shows a line like `say`, but is silent after `only_warnings`."""
    if not _quiet:
        say(message)


def say(message: str = "") -> None:
    """Shows a line on stderr, without secrets and control characters; above the bar, if one is drawn."""
    message = redact(printable(message))
    if _open_bars and _open_bars[0].drawn:
        _open_bars[0].print_above(message)
    else:
        with lost_terminal_is_no_error():
            print(message, file=sys.stderr, flush=True)


@contextmanager
def lost_terminal_is_no_error() -> Iterator[None]:
    """Ignores errors of printing: the reader may have gone (`… 2>&1 | head`), or a signal's message may interrupt
    another one."""
    try:
        yield
    except (OSError, RuntimeError, ValueError):
        pass


def warn(message: str) -> None:
    say(f"warning: {message}")


def log_line(host: int | None, line: str) -> str:
    """A line of a job's log as it is shown, without secrets and control characters."""
    return ("" if host is None else f"host {host} | ") + redact(printable(line))


def print_exception(error: BaseException) -> None:
    """Prints the usual traceback on stderr, without the secrets of a URL that an inner exception may quote."""
    print(redact(printable("".join(traceback.format_exception(error)))), end="", file=sys.stderr)


def show_line(host: int | None, line: str) -> None:
    """Prints a line of a job's log on stdout. One thread prints, so lines never mix."""
    with lost_terminal_is_no_error():
        print(log_line(host, line), flush=True)


def human_count(number: float) -> str:
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            return f"{number / (limit if suffix != 'k' else 1e3):.1f}{suffix}"
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.1f}"


def several(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: 1 save, 2 saves. `plural`: for nouns that do not just add an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def human_bytes(size: float) -> str:
    for limit, suffix in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= limit:
            return f"{size / limit:.1f} {suffix}"
    return f"{size:.0f} bytes"


def human_seconds(seconds: float) -> str:
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole:02d}" if hours else f"{minutes}:{whole:02d}"


def plain_number(value: float, digits: int = 2) -> str:
    """The value with `digits` significant digits, but never coarser than whole numbers, and without an exponent."""
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{max(0, digits - 1 - exponent)}f}" if value else "0"


TIME_UNITS = ((86_400 * 365, "years"), (86_400, "days"), (3600, "h"), (60, "min"), (1, "s"))


def time_unit(seconds: float) -> tuple[float, str]:
    """(seconds, name) of the largest unit that is not longer than `seconds`."""
    fitting = ((length, unit) for length, unit in TIME_UNITS if seconds >= 0.995 * length)
    return next(fitting, (1e-3, "ms") if seconds else (1, "s"))


class Progress:
    """Shows a bar, rate and time left; call `advance` as work is done. `total` None: only count and rate."""

    def __init__(
        self,
        label: str,
        total: float | None,
        unit: str,
        *,
        done: float = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label, self.total, self.unit, self.done, self.note = one_line(label), total, unit, done, ""
        self._stream, self._clock = stream or sys.stderr, clock
        self._start, self._start_done, self._shown_at = clock(), done, clock()
        self._lines = 0
        self._bar: RichProgress | None = None
        # One bar at a time: work inside another bar's work shows in that bar's note.
        if self._stream.isatty() and not _open_bars and not _quiet:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(
                TextColumn("{task.description:<10}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[text]}", markup=False),
                console=Console(file=self._stream),
                refresh_per_second=4,
            )
            self._task = self._bar.add_task(self.label, total=total, text="")
            self._bar.update(self._task, completed=done)
            self._bar.start()

    @property
    def drawn(self) -> bool:
        return self._bar is not None

    def print_above(self, message: str) -> None:
        assert self._bar is not None
        with lost_terminal_is_no_error():
            self._bar.console.print(message, markup=False, highlight=False, soft_wrap=True)

    def advance(self, amount: float = 1, note: str | None = None) -> None:
        self.done += amount
        self.note = one_line(note) if note is not None else self.note
        now = self._clock()
        if now - self._shown_at >= (REDRAW_EVERY_SECONDS if self._bar else LINE_EVERY_SECONDS):
            self._shown_at = now
            self._show(now)

    def text(self, now: float) -> str:
        """Share, amounts, rate and time left, as in `41 %  1.2M/3.0M tokens  35.1k tokens/s  ETA 51 s`."""
        elapsed = max(now - self._start, 1e-9)
        rate = (self.done - self._start_done) / elapsed
        amount = human_bytes if self.unit == "bytes" else human_count
        unit = "" if self.unit == "bytes" else f" {self.unit}"
        parts = []
        if self.total:
            share = min(self.done / self.total, 1.0)
            parts.append(f"{share:4.0%}  {amount(self.done)}/{amount(self.total)}{unit}")
        else:
            parts.append(f"{amount(self.done)}{unit}")
        parts.append(f"{amount(rate)}{unit}/s")
        if self.total and rate > 0 and self.done < self.total:
            parts.append(f"ETA {human_seconds((self.total - self.done) / rate)}")
        else:
            parts.append(human_seconds(elapsed))
        return "  ".join([*parts, self.note] if self.note else parts)

    def _show(self, now: float) -> None:
        with lost_terminal_is_no_error():
            if self._bar:
                self._bar.update(self._task, completed=self.done, text=self.text(now))
            elif not self._stream.isatty() and not _quiet:
                print(f"{self.label:<10}  {self.text(now)}", file=self._stream, flush=True)
        self._lines += 1

    def close(self) -> None:
        now = self._clock()
        if self._bar or self._lines or now - self._start >= 2.0:
            self._show(now)
        if self._bar:
            with lost_terminal_is_no_error():
                self._bar.stop()


@contextmanager
def progress(label: str, total: float | None, unit: str, *, done: float = 0) -> Iterator[Progress]:
    bar = Progress(label, total, unit, done=done)
    _open_bars.append(bar)
    try:
        yield bar
    finally:
        _open_bars.remove(bar)
        bar.close()
