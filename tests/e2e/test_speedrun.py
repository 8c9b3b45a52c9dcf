"""The speedrun's clock and judge, its records, and `reproduce`: of a track on a small text."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from reference.stored import documents_of
from scipy import stats

from maskwright.cli import main
from maskwright.config.pretraining import read_config
from maskwright.core import storage
from maskwright.core.errors import InputError
from maskwright.data.store import TokenStore
from maskwright.machine import hardware
from maskwright.prove import reproduce as again
from maskwright.speedrun import race
from maskwright.speedrun import record as records
from maskwright.speedrun.race import Maskwright, seeds_of
from maskwright.speedrun.text import open_text
from maskwright.speedrun.tracks import TRACKS
from maskwright.tasks.start.engine import environment

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]
RECIPE: dict[str, Any] = {
    "data": {"store": "none", "seq_len": 32},
    "model": {"size": "nano", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "max_seq_len": 128},
    "optimizer": {"learning_rate": 1e-2},
    "schedule": {"steps": 6},
    "evaluation": {"max_rows": 4},
    "logging": {"report_to": [], "every_steps": 1},
}
Call = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(("gpus", "name", "said"), [(2, "", "is for one GPU"), (1, "Tesla T4", "is not for Tesla T4")])
def test_the_gpu_is_looked_at_before_a_seed_is_trained(
    gpus: int, name: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hardware, "cuda_devices", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    with pytest.raises(InputError, match=rf"the track gpu {said}"):
        race.one_seed(TRACKS["gpu"], None, None, 1, str(tmp_path / "run"))  # type: ignore[arg-type]


@contextmanager
def signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Iterator[Call]:
    def run(*words: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main.run([str(word) for word in words])
        out, err = capfd.readouterr()
        return code, out, err.splitlines()[-1] if err else ""

    with signals_kept():
        yield run


@pytest.fixture(scope="module")
def place(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and its record of two seeds."""
    folder = tmp_path_factory.mktemp("speedrun")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    words = ["speedrun", "own", "tiny.yaml", "--text", str(corpus), "--target", "5.9", "--by", "me", "--seeds", "2"]
    with signals_kept(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main.run(words) == 0
    return folder


def test_a_record_says_what_was_run(place: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.chdir(place)
    record = records.read_record("record")
    text = open_text(TRACKS["own"], "speedrun", [])
    program = Maskwright(TRACKS["own"], "tiny.yaml", text)
    assert record.seeds == seeds_of(TRACKS["own"], program.identity, 2) and record.finished
    assert record.fingerprints == text.fingerprints
    assert (place / "record" / "recipe.yaml").read_bytes() == (place / "tiny.yaml").read_bytes()
    assert len({one.weights_sha256 for one in record.results}) == 2
    for one in record.results:
        (run,) = place.glob(f"speedrun/runs/*/seed-{one.seed}")
        lines = (place / "record" / f"metrics-{one.seed}.jsonl").read_text().splitlines()
        assert len(lines) == 8 and json.loads(lines[-1])["step"] == 6
        # The clock has the whole process in it: more than its own first and last line are apart.
        assert one.seconds > json.loads(lines[-1])["time"] - json.loads(lines[0])["time"]
        of = json.loads((run / "config.resolved.json").read_text())
        assert (of["config"]["seed"], of["store_fingerprint"], "validation" in of) == (
            one.seed,
            text.store.fingerprint,
            False,
        )
        assert of["config"]["engine.device"] == "cpu" and of["config"]["engine.threads"] == 2
    stamps = {path: path.stat().st_mtime_ns for path in place.glob("speedrun/runs/*/*/status.json")}
    code, out, _ = call("speedrun", "own", "tiny.yaml", "--target", "5.9", "--by", "me", "--seeds", "2")
    assert code == 0 and "The claim does not hold, p has to be below 0.01, and 3 seeds are the least" in out
    assert stamps == {path: path.stat().st_mtime_ns for path in place.glob("speedrun/runs/*/*/status.json")}


def test_what_is_judged_is_in_nobodys_reach(place: Path) -> None:
    """No document of the judged store is in the other, on either side."""

    def documents(store: TokenStore, side: Any) -> set[bytes]:
        return {one.tobytes() for one in documents_of(store.split(side))}

    text = open_text(TRACKS["own"], str(place / "speedrun"), [])
    judged = documents(text.judged, "valid")
    assert len(judged) == text.judged.split("valid").documents > 5
    assert text.judged.split("train").documents == 0
    chosen_by, trained_on = (documents(text.store, side) for side in ("valid", "train"))
    assert chosen_by and trained_on and not judged & (chosen_by | trained_on)


def test_the_claim_takes_p_and_seeds(place: Path) -> None:
    record = records.read_record(str(place / "record"))

    def judged(*values: float, target: float = 5.0) -> records.RecordVerdict:
        results = [record.results[0].model_copy(update={"value": value, "seconds": 1.0 + value}) for value in values]
        return records.judge(record.model_copy(update={"results": results, "target": target}))

    assert judged(4.90, 4.91, 4.92).holds and judged(4.90, 4.91, 4.92).seconds == pytest.approx(5.91)
    assert not judged(4.90, 4.91).holds  # p is 0.02, and two seeds are too few
    wide = judged(4.5, 4.9, 5.0)
    assert not wide.holds and wide.p == pytest.approx(
        stats.ttest_1samp([4.5, 4.9, 5.0], 5.0, alternative="less").pvalue
    )
    assert not judged(4.9, 4.9, 4.9).holds  # no spread was measured
    assert not judged(0.1, 0.1, 0.1).holds  # whose plain sum is not three times 0.1
    assert judged(5.10, 5.11, 5.12).p > 0.99


def test_a_record_is_reproduced(place: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.chdir(place)
    code, out, _ = call("reproduce", "record", "--check")
    assert code == 0 and "nothing was trained; it would be compared bit by bit" in out
    assert not (place / "reproduced").exists()
    code, out, _ = call("reproduce", "record")
    assert code == 0 and out.splitlines()[-1] == "  reproduced: the weights are bit-identical"
    changed = json.loads((place / "record" / "record.json").read_text())
    changed["results"][0]["weights_sha256"] = "0" * 64
    for name in ("same-kind", "other-kind", "other-values"):
        shutil.copytree(place / "record", place / name)
        if name != "same-kind":
            changed["kind"]["torch"] = "1.0"
        if name == "other-values":
            for one in changed["results"]:
                one["value"] += 10.0
        (place / name / "record.json").write_text(json.dumps(changed))
    with monkeypatch.context() as patch:  # trained above, bit-identical
        patch.setattr(again, "one_seed", trained_before(place))
        code, out, error = call("reproduce", "same-kind", "--to", "b")
        assert code == 1 and "NOT reproduced: the weights differ on a machine of the same kind" in out
        assert error.startswith("error: same-kind: was not reproduced. Fix: ")
        code, out, _ = call("reproduce", "other-kind", "--to", "c", "--json")
        found = json.loads(out)
        assert (code, found["exact"], len(found["other_kind"])) == (0, False, 1) and found["p"] > 0.01
        code, out, _ = call("reproduce", "other-values", "--to", "d")
        assert code == 1 and "NOT reproduced: the values differ with p = " in out


def trained_before(place: Path) -> Callable[..., Any]:
    record = records.read_record(str(place / "record"))
    return lambda *_: (record.results[0], record.kind, [])


def test_a_run_and_its_report_are_reproduced(
    place: Path, store: TokenStore, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(place)
    runs = sorted(path for path in place.glob("speedrun/runs/*/seed-*") if path.name[-1].isdigit())
    assert call("report", runs[0])[0] == 0
    assert call("report", *runs, "--to", "several.html")[0] == 0
    code, out, _ = call("reproduce", "report.html", "--to", "of-report")
    assert code == 0 and out.splitlines()[-1] == "  reproduced: the weights are bit-identical"
    code, out, _ = call("reproduce", runs[0], "--check")
    assert code == 0 and "tokenizer: " in out
    code, _, error = call("reproduce", "several.html")
    assert code == 2 and "is a report of 2 runs. Fix: " in error
    moved = place / "elsewhere"
    shutil.copytree(place / "speedrun" / "own" / "store", moved)
    assert call("reproduce", "report.html", "--check", "--store", moved)[0] == 0
    code, _, error = call("reproduce", "report.html", "--check", "--store", store.location)
    assert code == 2 and "report.html: its store has the fingerprint " in error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("speedrun sprint", "sprint: is not a track of the speedrun. Fix: give one of minute, ten, hour, gpu, own"),
        ("speedrun own tiny.yaml", "track own: has no target of its own. Fix: give --target LOSS"),
        ("speedrun minute tiny.yaml --target 3", "track minute: has a target of its own. Fix: leave --target out"),
        ("speedrun minute --work new", "new: holds no prepared text of this track. Fix: give --text with the folder"),
        ("speedrun minute --work new --text speedrun", "speedrun: has no folder Anthony Trollope. Fix: give what this"),
        (
            "speedrun own --text tiny.yaml.txt",
            "speedrun/own: holds the prepared text of other files. Fix: leave --text",
        ),
        (
            "speedrun own tiny.yaml --target 5.9 --layout lines",
            "speedrun/own: holds text that was not prepared with --layout lines. Fix: leave --layout out to take it",
        ),
        ("speedrun minute --work new --text a --layout lines", "--layout: is for a text of your own: a book is a file"),
        ("speedrun own from.yaml --target 5", "from.yaml: sets model.init_from. Fix: leave it out: a recipe begins"),
        ("speedrun own held.yaml --target 5", "held.yaml: sets data.validation. Fix: leave it out: a recipe begins"),
        ("speedrun own short.yaml --target 5", "short.yaml: takes 32 tokens, and rows of 128 are judged. Fix: set"),
        ("speedrun own tiny.yaml --target 5", "record: holds another record. Fix: choose another --to"),
        ("speedrun own tiny.yaml --target 5 --to speedrun", "speedrun: is not empty, and holds no record. Fix: choose"),
        ("reproduce nothing", "nothing: is not there. Fix: give the folder that"),
        ("reproduce edited", "edited: its recipe.yaml is not the recipe that was run. Fix: restore its files"),
        ("reproduce broken", "broken/record.json: is not a record: results.0.seconds: Input should be greater than 0"),
        ("reproduce foreign", "foreign: its store has the fingerprint 00000000, and not"),
        ("reproduce peers", "peers: was trained by benchmarks/peers/hf_trainer.py. Fix: its recipe.yaml says"),
    ],
)
def test_bad_input_is_one_line(place: Path, monkeypatch: pytest.MonkeyPatch, call: Call, words: str, says: str) -> None:
    monkeypatch.chdir(place)
    if not (place / "peers").exists():
        spoil(place)
    code, out, error = call(*words.split())
    assert (code, out) == (2, "")
    assert says.replace("00000000, and not", "") in error and error.startswith("error: ")


def test_two_at_once_leave_each_others_runs_alone(place: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    """A seed begins with the removal of its run, and a preparation with that of what an earlier one left."""
    monkeypatch.chdir(place)
    (runs,) = place.glob("speedrun/runs/*")
    words = ["speedrun", "own", "tiny.yaml", "--target", "5.9", "--by", "me", "--seeds", "2"]
    for folder, to in ((runs, "another"), (place / "record", "record")):
        with storage.locked(str(folder / "lock"), remove=True):
            code, _, error = call(*words, "--to", to)
        assert code == 2 and f"{folder.name}: is in use by process " in error and not (place / "another").exists()
        assert not (folder / "lock").exists()
    (place / "new").mkdir()
    with storage.locked(str(place / "new" / "own.lock"), remove=True):
        code, _, error = call("speedrun", "own", "--work", "new", "--text", ROOT / "README.md")
    assert code == 2 and "new: is in use by process " in error
    (place / "new").rmdir()


def spoil(place: Path) -> None:
    (place / "tiny.yaml.txt").write_text("other text\n")
    for name, section, key, value in (
        ("from", "model", "init_from", "x"),
        ("held", "data", "validation", "speedrun/own/judged"),
        ("short", "model", "max_seq_len", 32),
    ):
        recipe = RECIPE | {section: RECIPE[section] | {key: value}}
        (place / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    for name in ("edited", "broken", "foreign", "peers"):
        shutil.copytree(place / "record", place / name)
        path = place / name / "record.json"
        record = json.loads(path.read_text())
        if name == "edited":
            (place / name / "recipe.yaml").write_text("schedule: {steps: 7}\n")
        elif name == "broken":
            record["results"][0]["seconds"] = 0.0
        elif name == "foreign":
            record["fingerprints"]["store"] = "0" * 64
        else:
            record["program"] = "benchmarks/peers/hf_trainer.py"
        path.write_text(json.dumps(record))


def test_a_process_gets_no_more_cores_than_its_track(tmp_path: Path) -> None:
    before = hardware.usable_cpus()
    with hardware.confined_to(1, str(tmp_path)):
        assert len(hardware.usable_cpus()) == 1
    assert hardware.usable_cpus() == before
    with pytest.raises(InputError, match="100000 are needed"), hardware.confined_to(100_000, str(tmp_path)):
        pass


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("records_table", ROOT / "benchmarks" / "records.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_readme_has_the_records(table: ModuleType) -> None:
    """`python benchmarks/records.py` renews its table and plot."""
    found = table.read(ROOT / "records")
    assert table.section(found) in (ROOT / "docs" / "speedrun.md").read_text(encoding="utf-8")
    if any(found.values()):
        assert table.PLOT.read_text(encoding="utf-8") == table.plot(found)


@pytest.mark.parametrize(
    "place", sorted((ROOT / "records").glob("*/*")), ids=lambda place: f"{place.parent.name}-{place.name}"
)
def test_seeds_of_records_follow_from_their_recipes(place: Path) -> None:
    """So a new key of the configuration leaves the digests of runs without it as they were."""
    record = records.read_record(str(place))
    if record.program != "maskwright":
        return
    track = TRACKS[record.track]
    keys = {"data.store": "store", "seed": 0, **track.keys}
    digest = read_config(str(place / "recipe.yaml"), [f"{key}={value}" for key, value in keys.items()]).digest()
    assert seeds_of(track, digest, len(record.seeds)) == record.seeds


def test_a_table_names_the_best_that_holds(place: Path, table: ModuleType) -> None:
    record = records.read_record(str(place / "record"))
    verdicts = [
        records.RecordVerdict(5, seconds, 4.9, 0.01, p, p < 0.01)
        for seconds, p in ((90.0, 1e-4), (60.0, 1e-5), (30.0, 0.2))
    ]
    found = {"minute": [(f"records/minute/{n}", record, one) for n, one in enumerate(verdicts)], "ten": []}
    lines = table.table(found).splitlines()
    assert [line.rsplit(" | ", 1)[1] for line in lines[2:5]] == [" |", "**best** |", "does not hold |"]
    assert lines[5].startswith("| `ten` | none yet: loss below ")
    drawn = table.plot(found)
    assert drawn.count("<rect") == 3 and 'class="open"' in drawn and "ten:" not in drawn

    # Another machine has a best record of its own, and bars of its own scale.
    kind = {**record.kind, "processor": "Another(R) Processor", "engine": "torch on cpu, bfloat16"}
    other = record.model_copy(update={"kind": kind})
    found["minute"].append(("records/minute/3", other, verdicts[0]))
    lines = table.table(found).splitlines()
    assert [line.rsplit(" | ", 1)[1] for line in lines[2:6]] == [" |", "**best** |", "does not hold |", "**best** |"]
    assert "| Another, bf16 |" in lines[5]
    drawn = table.plot(found)
    assert drawn.count('class="head"') == 2 and drawn.count('width="340.0"') == 2


def test_a_record_is_of_one_kind_of_machine(tmp_path: Path) -> None:
    """One that was begun elsewhere goes on there: `reproduce` would judge all seeds by the machine of the last."""
    shutil.copytree(ROOT / "records" / "minute" / "2026-11-24-causal-first", tmp_path, dirs_exist_ok=True)
    record = records.read_record(str(tmp_path))
    kind = records.kind_of(environment(), engine=record.kind.get("engine"))
    for processor, results, refused in (("Another", 1, True), ("Another", 5, False), (kind["processor"], 1, False)):
        begun = record.model_copy(update={"kind": kind | {"processor": processor}, "results": record.results[:results]})
        records.write_record(str(tmp_path), begun)
        if refused:
            with pytest.raises(InputError, match="was begun on processor Another, here .* Fix: go on with it there"):
                race._begun(record, None, str(tmp_path))  # type: ignore[arg-type]
        else:
            assert race._begun(record, None, str(tmp_path)) == begun  # type: ignore[arg-type]
