"""Runs below folders as `maskwright watch` finds, reads and shows them."""

import io
import json
import math
import os
import random
import threading
import time
from pathlib import Path

import fsspec
import pytest
from browser.made_runs import MadeRun
from rich.console import Console

from maskwright.core.errors import MaskwrightError, StoppedEarly
from maskwright.core.folder import Folder
from maskwright.monitor.status import look
from maskwright.monitor.watch import details, find, numbers, terminal
from maskwright.monitor.watch.numbers import POINTS, Numbers
from maskwright.monitor.watch.runs import Runs
from maskwright.monitor.watch.series import KEPT_SECONDS, RunCurves, Shelf, buckets
from maskwright.run import grown, liveness

FAR = "memory://watched"


@pytest.fixture
def far():
    yield FAR
    files = fsspec.filesystem("memory")
    if files.exists("/watched"):
        files.rm("/watched", recursive=True)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Runs in three states, which do not change while a slow machine comes to the last test."""
    root = tmp_path_factory.mktemp("sweep")
    spiked = {"step": 1_200, "event": "spiked", "loss": 9.1}
    MadeRun(root / "a" / "wide", ranks=8, hung=(2,), slow=(3,), events=(spiked,)).write()
    MadeRun(root / "b" / "well", ranks=2, seed=2, age=5.0).write()
    MadeRun(root / "over", step=10_000, phase="done", seed=3, age=600.0, message="trained to the last step").write()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(liveness, "STALE_SECONDS", 1e6)
        yield root


def rows(*folders):
    runs = Runs([*map(str, folders)])
    runs.refresh(wait=True)
    assert runs.problems == []
    return runs.rows()


def watched_of(runs, row):
    watched = runs.get(row["id"])
    assert watched is not None
    return watched


# ---- finding -------------------------------------------------------------------------------------------------------


def test_runs_are_found_at_any_depth_once_and_links_in_a_circle_end(tmp_path):
    for name in ("one", "group/two", "group/deep/er/three", ".hidden/four", "node_modules/five", "two/checkpoints/six"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.resolved.json").touch()
    (tmp_path / "copies" / "step-00000010").mkdir(parents=True)
    (tmp_path / "group" / "back").symlink_to(tmp_path)
    (tmp_path / "group" / "itself").symlink_to("itself")
    (tmp_path / "linked").symlink_to(tmp_path / "group" / "two")
    (tmp_path / "one" / "inner").mkdir()
    (tmp_path / "one" / "inner" / "config.resolved.json").touch()  # what lies in a run is the run's
    far = tmp_path / "/".join("abcdefg")
    far.mkdir(parents=True)
    (far / "config.resolved.json").touch()
    found = find.find([str(tmp_path)])
    names = ["copies", "group/deep/er/three", "group/two", "one", "two/checkpoints/six"]
    assert [place.name for place in found.places] == names and found.problems == []
    twice = find.find([str(tmp_path / name) for name in ("group/deep", "one", "group/deep/er", "none")], several=True)
    assert sorted(place.name for place in twice.places) == ["deep/er/three", "one"]


@pytest.mark.parametrize("at_a_url", [False, True])
def test_a_status_of_another_program_hides_no_runs(tmp_path, far, at_a_url):
    place = Folder(far if at_a_url else str(tmp_path))
    for name, content in (
        ("status.json", b'{"phase": "green", "heartbeat": 1700000000}'),
        ("events/status.json", b"{}"),
        ("events/checkpoints/one/config.resolved.json", b"{}"),
        ("only/status.json", b'{"phase": "training", "heartbeat": 1700000000.5}'),
    ):
        place.put(name, content)
    found = find.find([place.location])
    assert [one.name for one in found.places] == ["events/checkpoints/one", "only"] and found.problems == []


def test_ctrl_c_is_not_taken_for_a_run_that_cannot_be_read(sweep, far, monkeypatch):
    def interrupted(*_, **__):
        raise StoppedEarly("by SIGINT", reason="signal")

    for at in ("runs.look", "runs._read_history", "find.Folder"):
        with monkeypatch.context() as patch:
            runs = Runs([str(sweep)])
            patch.setattr(f"maskwright.monitor.watch.{at}", interrupted)
            with pytest.raises(StoppedEarly):
                runs.refresh()
    root = Folder(far)
    monkeypatch.setattr(root, "names", interrupted)
    with pytest.raises(StoppedEarly):
        list(find._below(root, [], set()))


def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_shown(sweep, tmp_path, monkeypatch):
    closed, real = tmp_path / "closed", os.scandir
    closed.mkdir()

    def refuse(path):  # a superuser's tests may read everything
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    runs = Runs([str(tmp_path), str(sweep)])
    for _ in range(2):
        runs.refresh()
        assert runs.problems == [f"{closed}: cannot be listed: Permission denied"]
    assert len(runs.rows()) == 3


def test_at_a_url(far, sweep):
    """Its runs, and copies of a run's checkpoints, with the numbers beside the newest."""
    files = fsspec.filesystem("memory")
    files.put(f"{sweep}/over/", "/watched/runs/over", recursive=True)
    for name in ("metrics.jsonl", "config.resolved.json"):
        files.put_file(f"{sweep}/over/{name}", f"/watched/copies/step-00000040/{name}")
    files.pipe_file("/watched/copies/step-00000040/MANIFEST.json", b'{"files": {}}')
    files.pipe_file("/watched/notes/a.txt", b"")
    found = {row["name"]: row for row in rows(far)}
    assert found.keys() == {"runs/over", "copies"}
    here = rows(sweep / "over")[0]
    same = ("state", "loss", "valid_loss", "spark", "step", "kind")
    assert {key: found["runs/over"][key] for key in same} == {key: here[key] for key in same}
    copies = found["copies"]
    assert (copies["state"], copies["step"], copies["valid_loss"]) == ("only checkpoints", 40, here["valid_loss"])


@pytest.mark.parametrize(
    ("name", "times"), [("over", [0.0, 93.0]), ("copies", [0.0, 93.0]), ("going", [0.0, 11.0, 32.0, 93.0])]
)
def test_a_run_at_a_url_is_not_asked_for_all_the_time(far, sweep, monkeypatch, name, times):
    """Copies, of which nobody knows whether the run goes on, no more often than a run that is over; and the bucket is
    searched no more often than that."""
    place = Folder(f"{far}/{name}")
    if name == "copies":
        place.put("step-00000040/MANIFEST.json", b'{"files": {}}')
    else:
        source = sweep / {"over": "over", "going": "b/well"}[name]
        fsspec.filesystem("memory").put(f"{source}/", f"/watched/{name}", recursive=True)
    begin = now = time.time()
    looked, searched, listed = list[float](), list[float](), set[float]()
    real = find.find

    def looking(at, clock):
        looked.append(now - begin)
        return look(at, clock=clock)

    def searching(folders, **given):
        searched.extend([now - begin] * len(folders))
        return real(folders, **given)

    monkeypatch.setattr("maskwright.monitor.watch.runs.look", looking)
    monkeypatch.setattr("maskwright.monitor.watch.runs.find", searching)
    runs = Runs([far], clock=lambda: now)
    for seconds in (0.0, 2.0, 9.0, 21.0, 61.0):
        now += seconds
        runs.refresh(wait=True)
        (row,) = runs.rows()
        assert row["looked"] == pytest.approx(begin + looked[-1])
        listed.add(details.details(watched_of(runs, row))["listed"] - begin)
    assert looked == pytest.approx(times) and searched == pytest.approx([0.0, 93.0])
    assert sorted(listed) == pytest.approx([0.0, 93.0])


def test_a_store_that_does_not_answer_holds_nothing_up(far, sweep, monkeypatch):
    answers = threading.Event()
    real = find._below

    def slowly(root, *more):
        assert root.path is not None or answers.wait(60.0)
        return real(root, *more)

    monkeypatch.setattr(find, "_below", slowly)
    fsspec.filesystem("memory").put(f"{sweep}/over/", "/watched/over", recursive=True)
    runs = Runs([str(sweep), far])
    for _ in range(2):
        runs.refresh()
        assert len(runs.rows()) == 3 and runs.waits
    assert drawn(terminal.table([], [], [far], width=80, height=9, waits=True), 80) == [f"looking below {far} …"]
    answers.set()
    runs.refresh(wait=True)
    assert [row["name"] for row in runs.rows() if row["location"].startswith(far)] == ["watched/over"]


# ---- reading -------------------------------------------------------------------------------------------------------


def test_rows_say_what_status_says(sweep):
    found = {row["name"]: row for row in rows(sweep)}
    assert list(found) == ["a/wide", "b/well", "over"]
    for row in found.values():
        report = look(row["location"])
        assert report.status is not None
        assert (row["state"], row["why"], row["step"]) == (report.state, report.why, report.status.step)
        assert row["loss"] == report.status.loss and len(row["spark"]) <= POINTS
        assert row["heartbeat"] >= report.status.heartbeat
        assert sum(row["ranks"].values()) == len(report.ranks) == row["world_size"]
        lines = [json.loads(line) for line in Path(row["location"], "metrics.jsonl").read_text().splitlines()]
        assert row["valid_loss"] == [line["valid_loss"] for line in lines if "valid_loss" in line][-1]
    wide = found["a/wide"]
    assert (wide["health"], wide["ranks"]["hung"], wide["ranks"]["slow"]) == ("rank 2", 1, 1)
    assert (found["b/well"]["health"], found["over"]["eta_seconds"]) == ("fine", None)
    assert {(row["metric"], row["score"], row["looked"]) for row in found.values()} == {(None, None, None)}


def test_a_fine_tuning_run_says_what_it_is_judged_by(tmp_path):
    made = MadeRun(tmp_path / "news", lines=100, metric="f1_macro").write()
    (row,) = rows(tmp_path)
    lines = [json.loads(line) for line in (made.folder / "metrics.jsonl").read_text().splitlines()]
    score = [line["valid_f1_macro"] for line in lines if "valid_f1_macro" in line][-1]
    assert (row["kind"], row["metric"], row["score"]) == ("finetune", "f1_macro", score)


@pytest.mark.parametrize(("loss", "says"), [("NaN", "the loss is NaN"), ("Infinity", "the loss is infinite")])
def test_a_loss_that_is_not_finite(tmp_path, loss, says):
    spiked = {"step": 1_200, "event": "spiked", "loss": float(loss)}
    made = MadeRun(tmp_path / "run", lines=40, events=(spiked,)).write()
    with (made.folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 4001, "loss": {loss}}}\n')
    runs = Runs([str(tmp_path)])
    runs.refresh()
    (row,) = runs.rows()
    assert (row["health"], row["loss"]) == (says, None)
    assert "spike" in [one["what"] for one in details.details(watched_of(runs, row))["incidents"]]


def test_runs_that_go_on_keep_their_places_and_only_those_that_advance_have_a_speed(tmp_path):
    """The newest start first, and those that ended by their last sign of life."""
    MadeRun(tmp_path / "early", step=8_000, lines=40).write()
    late = MadeRun(tmp_path / "late", step=1_000, lines=40, age=5.0).write()
    MadeRun(tmp_path / "hung", step=2_000, lines=40, ranks=2, hung=(1,)).write()
    MadeRun(tmp_path / "over", lines=40, phase="done", age=600.0).write()
    MadeRun(tmp_path / "ended", lines=40, phase="stopped", age=60.0).write()
    expected = ["late", "hung", "early", "ended", "over"]
    found = rows(tmp_path)
    assert [row["name"] for row in found] == expected
    for key in ("tokens_per_second", "eta_seconds"):
        assert [row["name"] for row in found if row[key] is not None] == ["late", "early"]
    began = late.now - late.step * 0.4
    late.grow(1)
    again = rows(tmp_path)
    assert [row["name"] for row in again] == expected and late.now - late.step * 0.4 != began


def test_no_broken_file_of_a_run_ends_the_watching(sweep, tmp_path):
    """Each file in turn is cut at some places, emptied, filled with rubbish, and replaced by a folder."""
    made = MadeRun(tmp_path / "run", lines=60, ranks=2).write()
    runs = Runs([str(tmp_path)])
    rubbish = [b"", b"null", b'{"step": "x"}\n', b"\xff\xfe\x00", b'{"step": 1, "loss": [NaN]}\n' * 3, b"[" * 9999]
    chance = random.Random(1)
    for path in sorted(path for path in made.folder.rglob("*") if path.is_file() and path.suffix != ".safetensors"):
        content = path.read_bytes()
        for spoilt in (*rubbish, *(content[: chance.randrange(1 + len(content))] for _ in range(4))):
            path.write_bytes(spoilt)
            runs.refresh()
            for row in runs.rows():
                json.dumps(row, allow_nan=False)
                watched = watched_of(runs, row)
                json.dumps(details.details(watched), allow_nan=False)
                details.log(watched, "a", 5, None, None)
                RunCurves(watched.folder).curves(["loss"], 10)
        path.unlink()
        path.mkdir()
        runs.refresh()
        path.rmdir()
        path.write_bytes(content)
    runs.refresh()
    assert runs.problems == [] and [row["state"] for row in runs.rows()] == ["running"]


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl", "status.json", "config.resolved.json", "history.jsonl"])
def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(tmp_path, name):
    MadeRun(tmp_path / "well", lines=40).write()
    made = MadeRun(tmp_path / "run", lines=40).write()
    (made.folder / name).unlink()
    os.mkfifo(made.folder / name)
    runs = Runs([str(tmp_path)])
    runs.refresh()
    assert "well" in [row["name"] for row in runs.rows()]
    for row in runs.rows():
        if row["name"] == "run" and name == "log.txt":
            assert details.log(watched_of(runs, row), "", 5, None, None)["lines"] == []
        if row["name"] == "run" and name == "history.jsonl":
            with pytest.raises(MaskwrightError, match="is not a regular file"):
                details.details(watched_of(runs, row))


@pytest.mark.parametrize("at_a_url", [False, True])
def test_the_log_is_read_from_its_end_and_each_byte_once(far, tmp_path, monkeypatch, at_a_url):
    """Whoever looks at a running run gets the last lines, then what was added; a search goes back in parts."""
    MadeRun(tmp_path / "run", lines=40).write()
    if at_a_url:
        fsspec.filesystem("memory").put(f"{tmp_path}/run/", "/watched/run", recursive=True)
    folder = Folder(f"{far}/run" if at_a_url else str(tmp_path / "run"))
    runs = Runs([far if at_a_url else str(tmp_path)])
    runs.refresh(wait=True)
    watched = watched_of(runs, runs.rows()[0])
    read, real = [0], Folder.get

    def get(folder, name, *part):
        content = real(folder, name, *part)
        read[0] += len(content or b"")
        return content

    monkeypatch.setattr(Folder, "get", get)
    monkeypatch.setattr(details, "READ_BYTES", 1 << 20)
    lines = [f"line {number} of \u00e9\u00e8" for number in range(200_000)]
    content = "".join(f"{line}\n" for line in lines).encode()
    folder.put("log.txt", content + b"hal")
    most = grown.PIECE_BYTES

    def ask(search="", lines=2, **part):
        read[0] = 0
        found = details.log(watched, search, lines, part.get("before"), part.get("after"))
        assert all(content.startswith(line["text"].encode() + b"\n", line["at"]) for line in found["lines"])
        return [line["text"] for line in found["lines"]], found["start"], found["end"]

    shown, start, end = ask()
    assert shown == lines[-2:] and end == len(content) and read[0] <= most
    assert ask(before=start)[0] == lines[-4:-2] and read[0] <= most
    assert ask(after=end) == ([], end, end) and read[0] <= len(b"hal")
    content += b"half\nnext\n"
    folder.put("log.txt", content)
    assert ask(after=end) == (["half", "next"], end, len(content)) and read[0] == len(b"half\nnext\n")
    assert ask(after=end, lines=1)[:2] == (["next"], end + 5)  # more than one answer holds

    matches, end, total = [], len(content), 0
    while end:
        shown, start, _ = ask("LINE 7777 ", before=end)
        total += read[0]
        assert start < end and read[0] <= details.READ_BYTES + 2 * grown.BLOCK_BYTES
        matches, end = shown + matches, start
    assert matches == ["line 7777 of \u00e9\u00e8"] and len(content) <= total < 1.2 * len(content)

    content = b"anew\n"
    folder.put("log.txt", content)
    assert ask(after=10_000) == (["anew"], 0, 5)


@pytest.mark.parametrize("lines", [0, 1, 59, 200, 6_000])
def test_the_newest_numbers_of_a_long_file_are_those_of_the_whole(tmp_path, lines, monkeypatch):
    """However little of it is read, and as it grows."""
    monkeypatch.setattr(numbers, "WHOLE_BYTES", 64 << 10)
    monkeypatch.setattr(numbers, "END_BYTES", 4 << 10)
    run = MadeRun(tmp_path / "run", step=lines * 10, of=100_000, lines=lines).write()
    found = Numbers(Folder(str(run.folder)))
    for _ in range(3):
        found.refresh()
        whole = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
        last = {}
        for line in whole:
            last |= line
        assert found.last.keys() == last.keys() == found.names
        assert {key: found.last[key] for key in last if key != "time"} == {k: last[k] for k in last if k != "time"}
        losses = [line["loss"] for line in whole if "loss" in line]
        assert len(found.spark()) <= POINTS and (len(found.spark()) >= min(len(losses), POINTS // 2))
        if len(losses) > 1_000:
            assert found.spark()[0] > found.spark()[len(found.spark()) // 2] > 2.0
        run.grow(77)


# ---- curves --------------------------------------------------------------------------------------------------------


def plain_buckets(pairs, points, first, last):
    """`buckets`, slow and obvious."""
    inside = [(s, v) for s, v in pairs if (first is None or s >= first) and (last is None or s <= last)]
    count = min(points, len(inside))
    groups = [[] for _ in range(count)]
    for number in range(count):
        groups[number] = inside[len(inside) * number // count : len(inside) * (number + 1) // count]
    told = []
    for group in groups:
        values = [v for _, v in group]
        good = [v for v in values if math.isfinite(v)]
        mean = sum(values) / len(values) if len(good) == len(values) else None
        told.append((group[-1][0], mean, min(good, default=None), max(good, default=None)))
    return told


def test_buckets_are_those_of_a_slow_twin():
    chance = random.Random(0)
    for _ in range(200):
        length = chance.choice([0, 1, 2, 7, 100, 1_001])
        steps = sorted(chance.sample(range(5_000), length))
        odd = [math.nan, math.inf, -math.inf]
        values = [chance.choice(odd) if chance.random() < 0.02 else chance.uniform(-5, 9) for _ in steps]
        points = chance.choice([1, 2, 3, 10, 999, 5_000])
        first, last = (chance.choice([None, chance.randrange(-10, 5_100)]) for _ in range(2))
        found = buckets(steps, values, points, first, last)
        twin = plain_buckets(list(zip(steps, values, strict=True)), points, first, last)
        assert list(zip(*found.values(), strict=True)) == twin
        json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("at_a_url", [False, True])
def test_curves_of_a_file_that_grows_and_is_rewritten(tmp_path, far, at_a_url):
    place = Folder(far if at_a_url else str(tmp_path))
    lines = [json.dumps({"step": s, "loss": 1.0 / s} | ({"valid_loss": 2.0} if s % 2 else {})) for s in range(1, 9)]
    series = RunCurves(place)

    def points(*names):
        return {name: columns["step"] for name, columns in series.curves(names, 100).items()}

    def write(given, rest=""):
        place.put("metrics.jsonl", ("\n".join(given) + "\n" + rest).encode())

    place.put("other", b"")
    assert points("loss") == {}
    write(lines[:4], rest=lines[4][:9])
    assert points("loss", "nothing") == {"loss": [1, 2, 3, 4]}
    write(lines[:6], rest="{broken}\n")
    assert points("loss") == {"loss": [1, 2, 3, 4, 5, 6]}
    assert points("valid_loss", "loss") == {"valid_loss": [1, 3, 5], "loss": [1, 2, 3, 4, 5, 6]}
    write([*lines[:3], '{"step": 4, "loss": 7.5}'])  # a restart computes again
    assert points("loss") == {"loss": [1, 2, 3, 4]} and series.curves(["loss"], 100)["loss"]["value"][-1] == 7.5
    write([*lines[:3], '{"step": 4, "loss": 7.5}', lines[2], lines[3]])
    assert points("loss") == {"loss": [1, 2, 3, 4]} and series.curves(["loss"], 100)["loss"]["value"][-1] == 0.25
    assert series.curves(["loss"], 100, 2, 3)["loss"]["step"] == [2, 3]
    write([json.dumps({"step": s, "loss": 2.0}) for s in range(11, 31)])  # longer than before, and another file
    assert points("loss") == {"loss": [*range(11, 31)]}


def test_curves_that_nobody_looks_at_are_forgotten(tmp_path):
    now = 0.0
    shelf = Shelf(clock=lambda: now)
    first = shelf.series("a", Folder(str(tmp_path)))
    now = KEPT_SECONDS
    assert shelf.series("a", Folder(str(tmp_path))) is first
    now = 2 * KEPT_SECONDS + 1
    shelf.series("b", Folder(str(tmp_path)))
    assert shelf.series("a", Folder(str(tmp_path))) is not first


# ---- the table -----------------------------------------------------------------------------------------------------


def drawn(shown, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(shown)
    lines = console.file.getvalue().splitlines()
    assert all(len(line.rstrip()) <= width for line in lines), lines
    return [line.rstrip() for line in lines]


def test_the_table_fits_a_terminal(sweep):
    found = rows(sweep)
    narrow = drawn(terminal.table(found, [], ["x"], width=80, height=None), 80)
    wide = drawn(terminal.table(found, [], ["x"], width=200, height=None), 200)
    assert len(narrow) == len(wide) == 5
    assert narrow[0].split()[:5] == ["run", "state", "step", "loss", "held"] and "ETA" in narrow[0]
    assert {column.title for column in terminal.COLUMNS} <= set(map(str.strip, wide[0].split("  ")))
    for told in (narrow, wide):
        assert "hung" in told[2] and "4,000/10.0k" in told[2] and "running" in told[3] and "done" in told[4]
        assert any(letter in told[2] for letter in terminal.BARS)
    assert "6 fine, 1 slow, 1 hung" in wide[2] and "rank 2" in wide[2]
    short = drawn(terminal.table(found, ["a", "b\x1b[2J"], ["x"], width=80, height=6), 80)
    assert short[-3:] == ["… and 2 more (--json has all)", "not readable: a", "not readable: b�[2J"]
    assert drawn(terminal.table([], [], ["runs"], width=80, height=9), 80) == ["no runs below runs yet"]
    found[0]["name"] = "a name that is longer than its terminal"
    tiny = drawn(terminal.table(found, [], ["x"], width=20, height=None), 20)
    assert len(tiny) == 5 and tiny[2] == "… than its terminal"


def test_a_sparkline():
    assert terminal.spark([], 8) == "" and terminal.spark([3.0, 3.0], 8) == "▁▁"
    assert terminal.spark([8, 7, 6, 5, 4, 3, 2, 1], 8) == "█▇▆▅▄▃▂▁"
    assert terminal.spark([1.0] * 50 + [2.0] * 50, 4) == "▁▁██"


def test_live_draws_what_comes(tmp_path):
    console = Console(file=io.StringIO(), width=100, height=20, force_terminal=True, legacy_windows=False)
    turns = iter([True, True, True, False])

    def sleep(seconds):
        if not (tmp_path / "late").exists():
            MadeRun(tmp_path / "late", lines=30).write()
            runs._near._searched = -math.inf

    runs = Runs([str(tmp_path)])
    terminal.live(runs, console, sleep=sleep, go_on=lambda: next(turns))
    text = console.file.getvalue()
    assert text.index("no runs below") < text.index("late") and "running" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back
