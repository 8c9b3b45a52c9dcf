"""Which tests a run takes, and in which order: by the seconds that each takes, which `durations.json` keeps.

`scripts/test` takes those of at most `QUICK_SECONDS`, and `ALWAYS`; with `--long` all but the large ones. `.ci/run`
writes what each took into `build/durations.json`: copy it here when tests have changed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

QUICK_SECONDS = 4.0
"""Of a test, from its fixtures to their end, in a run of several workers on two cores."""
QUICK_TOTAL_SECONDS = 960.0
"""Of all quick tests: four minutes of four workers."""
ALWAYS = {
    "text becomes a model": "pages/test_pages.py::test_a_page_ends_as_it_says[own-text.md]",
    "a killed process": "e2e/test_many_processes.py::test_a_killed_process_is_started_again_and_changes_nothing[1]",
    "a comparison": "e2e/test_compare.py::test_one_comparison_stopped_and_killed_is_the_same_page",
}
"""Quick tests that take longer: what the product is for, once each."""
KEPT_FROM_SECONDS = 0.5
DURATIONS = Path(__file__).with_name("durations.json")
REST = "all others together"
TOGETHER = ("test_ray.py", "test_slurm.py", "test_pages.py", "test_watch_page.py")
"""Files whose tests share something that takes long to start or to make."""
ONE_WORKER = ("test_published_shapes_agree_with_transformers",)
"""Tests of which two at once would not fit into memory."""
LEFT_OUT = pytest.StashKey[int]()
MEASURED = pytest.StashKey[dict[str, float]]()


def durations() -> dict[str, float]:
    """Seconds of each test of `KEPT_FROM_SECONDS` or more, and of `REST`."""
    found: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return found


def name(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("tests/")


def is_long(test: str, seconds: dict[str, float]) -> bool:
    return seconds.get(test, 0.0) > QUICK_SECONDS and test not in ALWAYS.values()


def left_out(item: pytest.Item, seconds: dict[str, float]) -> bool:
    ask = item.config.getoption
    if item.get_closest_marker("large") and not ask("--large"):
        return True
    return not ask("--long") and bool(item.get_closest_marker("long") or is_long(name(item), seconds))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help=f"tests of more than {QUICK_SECONDS:g} seconds as well")
    parser.addoption(
        "--large", action="store_true", help="tests marked large as well: up to 9 GB of memory, or minutes, each"
    )
    parser.addoption("--durations-to", metavar="FILE", help="write what each test took there")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out long and large tests that were neither asked for nor named. Of the others, each of xdist's workers
    begins with its share of the longest. It is given a run of neighbours at first, and others take from the end of it:
    else the last minutes would be one worker's."""
    seconds = durations()
    if not any("::" in argument for argument in config.args):
        absent = [item for item in items if left_out(item, seconds)]
        config.hook.pytest_deselected(items=absent)
        config.stash[LEFT_OUT] = getattr(config, "workeroutput", {})["left_out"] = len(absent)
        items[:] = [item for item in items if not left_out(item, seconds)]
    items[:] = shared_out(items, seconds, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def shared_out(items: list[pytest.Item], seconds: dict[str, float], workers: int) -> list[pytest.Item]:
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        function = getattr(item, "originalname", item.nodeid)
        together = item.path.name if item.path.name in TOGETHER else function if function in ONE_WORKER else None
        if together or name(item) in seconds:
            groups.setdefault(together or item.nodeid, []).append(item)
    taken = {group: sum(seconds.get(name(item), 0.0) for item in found) for group, found in groups.items()}
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    totals = [0.0] * workers
    for group in sorted(groups, key=lambda group: (-taken[group], group)):
        least = totals.index(min(totals))
        shares[least] += groups[group]
        totals[least] += taken[group]
    long = {id(item) for share in shares for item in share}
    short = [item for item in items if id(item) not in long]
    size, ordered = len(items), []
    for number, share in enumerate(shares):
        room = max(0, size * (number + 1) // workers - size * number // workers - len(share))
        ordered += [*share, *short[:room]]
        short = short[room:]
    return [*ordered, *short]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} tests were left out: scripts/test --long --large runs them too")
    if to := config.getoption("--durations-to"):
        measured = config.stash[MEASURED]
        kept = {test: round(taken, 1) for test, taken in sorted(measured.items()) if taken >= KEPT_FROM_SECONDS}
        rest = round(sum(measured.values()) - sum(kept.values()), 1)
        Path(to).write_text(json.dumps({REST: rest, **kept}, indent=0) + "\n", encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MEASURED] = {}
    if config.getoption("--durations-to"):
        config.pluginmanager.register(Stopwatch(config.stash[MEASURED]))


class Stopwatch:
    """Adds up what is reported of each test: its fixtures, itself, and their end."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.removeprefix("tests/")
        self.seconds[test] = self.seconds.get(test, 0.0) + report.duration
