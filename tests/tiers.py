"""Which tests a run takes, and in which order: by the seconds that each takes, which `durations.json` keeps.

`scripts/test` takes those of at most `QUICK_SECONDS`, and `ALWAYS`; with `--long` all but the large ones; `.ci/run` the
quick ones and a third of the long ones, the next third each time. It writes what each took into `build/durations.json`:
copy it here when tests have changed.
"""

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

QUICK_SECONDS = 2.5
"""Of a test, from its fixtures to their end, in a run of several workers on two cores."""
QUICK_TOTAL_SECONDS = 900.0
"""Of all quick tests: three minutes of five workers."""
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
"""Files whose tests share something that takes long to start or to make; of the first, minutes."""
ONE_WORKER = ("test_published_shapes_agree_with_transformers",)
"""Tests of which two at once would not fit into memory."""
LEFT_OUT = pytest.StashKey[int]()
MEASURED = pytest.StashKey[dict[str, float]]()
SKIPPED = pytest.StashKey[set[str]]()


def durations() -> dict[str, float]:
    """Seconds of each test of `KEPT_FROM_SECONDS` or more, and of `REST`."""
    found: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return found


def name(item: pytest.Item) -> str:
    return item.nodeid.removeprefix("tests/")


def is_long(test: str, seconds: dict[str, float]) -> bool:
    return seconds.get(test, 0.0) > QUICK_SECONDS and test not in ALWAYS.values()


def left_out(items: list[pytest.Item], seconds: dict[str, float], config: pytest.Config) -> list[pytest.Item]:
    """Large and long tests that were not asked for."""
    large = [item for item in items if item.get_closest_marker("large")]
    long = [item for item in items if item.get_closest_marker("long") or is_long(name(item), seconds)]
    third: int | None = config.getoption("--third")
    if third is not None:
        groups = grouped(long, TOGETHER[:1])
        taken = {id(item) for group in groups if third_of(group[0]) == third % 3 for item in group}
        long = [item for item in long if id(item) not in taken]
    absent = set() if config.getoption("--large") else {id(item) for item in large}
    if not config.getoption("--long") or third is not None:
        absent |= {id(item) for item in long}
    return [item for item in items if id(item) in absent]


def grouped(items: list[pytest.Item], files: tuple[str, ...] = TOGETHER) -> list[list[pytest.Item]]:
    """Each alone, but those of `files`, and those that one process has to compute."""
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        function = getattr(item, "originalname", item.nodeid)
        together = item.path.name if item.path.name in files else function if function in ONE_WORKER else item.nodeid
        groups.setdefault(together, []).append(item)
    return [groups[group] for group in sorted(groups)]


def third_of(first: pytest.Item) -> int:
    """By the name alone, so that other tests that come and go move none to another third."""
    name_of_group = first.path.name if first.path.name in TOGETHER[:1] else name(first)
    return zlib.crc32(name_of_group.encode()) % 3


def shares_of(groups: list[list[pytest.Item]], number: int, seconds: dict[str, float]) -> list[list[pytest.Item]]:
    """As many shares, which take about as long as each other, each with its longest group first."""
    shares: list[list[pytest.Item]] = [[] for _ in range(number)]
    totals = [0.0] * number
    taken = [sum(seconds.get(name(item), QUICK_SECONDS) for item in group) for group in groups]
    for place in sorted(range(len(groups)), key=lambda place: -taken[place]):
        least = totals.index(min(totals))
        shares[least] += groups[place]
        totals[least] += taken[place]
    return shares


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help=f"tests of more than {QUICK_SECONDS:g} seconds as well")
    parser.addoption(
        "--large", action="store_true", help="tests marked large as well: up to 9 GB of memory, or minutes, each"
    )
    parser.addoption("--third", type=int, metavar="NUMBER", help="of the long tests only this third, by its number % 3")
    parser.addoption("--durations-to", metavar="FILE", help="write what each test took there")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out long and large tests that were neither asked for nor named. Of the others, each of xdist's workers
    begins with its share of the longest. It is given a run of neighbours at first, and others take from the end of it:
    else the last minutes would be one worker's."""
    seconds = durations()
    if not any("::" in argument or argument.endswith(".py") for argument in config.args):
        absent = left_out(items, seconds, config)
        config.hook.pytest_deselected(items=absent)
        config.stash[LEFT_OUT] = getattr(config, "workeroutput", {})["left_out"] = len(absent)
        gone = {id(item) for item in absent}
        items[:] = [item for item in items if id(item) not in gone]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [
        item for item in items if name(item) in seconds or item.path.name in TOGETHER or item.get_closest_marker("long")
    ]
    shares = shares_of(grouped(slow), workers, seconds)
    first = {id(item) for item in slow}
    quick = [item for item in items if id(item) not in first]
    size, ordered = len(items), []
    for number, share in enumerate(shares):
        room = max(0, size * (number + 1) // workers - size * number // workers - len(share))
        ordered += [*share, *quick[:room]]
        quick = quick[room:]
    items[:] = [*ordered, *quick]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} tests were left out: scripts/test --long --large runs them too")
    if to := config.getoption("--durations-to"):
        measured = config.stash[MEASURED]
        rest = sum(taken for taken in measured.values() if taken < KEPT_FROM_SECONDS)
        # What was not to run here, for want of a browser or a cluster, keeps its row.
        skipped = config.stash[SKIPPED]
        measured = {test: taken for test, taken in measured.items() if test not in skipped}
        is_selection = bool(config.option.keyword) or [*config.args] != config.getini("testpaths")
        is_whole = config.getoption("--long") and config.getoption("--third") is None and not is_selection
        before = {
            test: taken
            for test, taken in durations().items()
            if test not in measured and is_there(test) and (test in skipped or not is_whole)
        }
        now = {test: round(taken, 1) for test, taken in measured.items() if taken >= KEPT_FROM_SECONDS}
        kept = {REST: round(rest, 1), **dict(sorted((before | now).items()))}
        Path(to).write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def is_there(test: str) -> bool:
    file, _, function = test.partition("::")
    path = DURATIONS.parent / file
    return path.is_file() and f"def {function.partition('[')[0]}(" in path.read_text(encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[MEASURED], config.stash[SKIPPED] = {}, set()
    if config.getoption("--durations-to"):
        config.pluginmanager.register(Stopwatch(config.stash[MEASURED], config.stash[SKIPPED]))


class Stopwatch:
    """Adds up what is reported of each test: its fixtures, itself, and their end."""

    def __init__(self, seconds: dict[str, float], skipped: set[str]) -> None:
        self.seconds, self.skipped = seconds, skipped

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.removeprefix("tests/")
        self.seconds[test] = self.seconds.get(test, 0.0) + report.duration
        if report.skipped:
            self.skipped.add(test)
