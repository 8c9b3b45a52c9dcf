"""Which tests a run takes, and in which order: by the CPU-seconds that each takes, which `durations.json` keeps.

`scripts/test` takes those of at most `QUICK_SECONDS`, and `ALWAYS`; with `--long` all but the large ones. `scripts/test
--long --write-durations` measures all of them again: processor time is the same beside other programs as alone.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

QUICK_SECONDS = 2.0
QUICK_TOTAL_SECONDS = 480.0
"""Of all quick tests together, half of what two cores have in five minutes being left to their setup."""
ALWAYS = {
    "text becomes a model of transformers": "e2e/test_cli.py::test_from_text_to_transformers[modernbert]",
    "a killed process": "e2e/test_many_processes.py::test_a_killed_process_is_started_again_and_changes_nothing[1]",
    "a comparison": "e2e/test_compare.py::test_one_comparison_stopped_and_killed_is_the_same_page",
}
"""Quick tests that take longer: what the product is for, once each."""
KEPT_FROM_SECONDS = 0.3
DURATIONS = Path(__file__).with_name("durations.json")
REST = "all others together"
TOGETHER = ("test_ray.py", "test_slurm.py", "test_pages.py", "test_watch_page.py")
"""Files whose tests share something that takes long to start or to make."""
ONE_WORKER = ("test_published_shapes_agree_with_transformers",)
"""Tests of which two at once would not fit into memory."""
LEFT_OUT = pytest.StashKey[int]()
MEASURED = pytest.StashKey[dict[str, float]]()
TICKS = os.sysconf("SC_CLK_TCK")


def durations() -> dict[str, float]:
    """CPU-seconds of each test of `KEPT_FROM_SECONDS` or more, and of `REST`."""
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
    parser.addoption("--long", action="store_true", help="tests of more than two CPU-seconds as well")
    parser.addoption(
        "--large", action="store_true", help="tests marked large as well: up to 9 GB of memory, or minutes, each"
    )
    parser.addoption("--write-durations", action="store_true", help="keep what each test took in durations.json")


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
    found = getattr(node, "workeroutput", {})
    node.config.stash[LEFT_OUT] = found.get("left_out", 0)
    node.config.stash.setdefault(MEASURED, {}).update(found.get("measured", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} tests were left out: scripts/test --long --large runs them too")
    if config.getoption("--write-durations"):
        measured = config.stash.get(MEASURED, {})
        kept = {test: round(taken, 1) for test, taken in sorted(measured.items()) if taken >= KEPT_FROM_SECONDS}
        rest = round(sum(measured.values()) - sum(kept.values()), 1)
        DURATIONS.write_text(json.dumps({REST: rest, **kept}, indent=0) + "\n", encoding="utf-8")


# ---- what each test takes --------------------------------------------------------------------------------------------


def used_seconds() -> float:
    """Processor time of this process and of all that it has started, those that still run too."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total, below = time.process_time() + ended.ru_utime + ended.ru_stime, [os.getpid()]
    while below:
        pid = below.pop()
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                below += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
            if pid != os.getpid():  # user, system, and those of its own children that have ended
                total += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15])) / TICKS
        except OSError:  # it has ended since
            continue
    return total


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    if not item.config.getoption("--write-durations"):
        return (yield)
    before = used_seconds()
    result = yield
    item.config.stash.setdefault(MEASURED, {})[name(item)] = used_seconds() - before
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["measured"] = session.config.stash.get(MEASURED, {})
