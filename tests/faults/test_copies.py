"""Checkpoints on an object store that fails, lies and goes away."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from ended_runs import require_same_ends
from fsspec.implementations.memory import MemoryFileSystem
from made_record import saved

from maskwright.core import storage
from maskwright.core.errors import CheckpointError, ConfigError, InputError, MaskwrightError, StoppedEarly
from maskwright.core.folder import TRIES, Folder
from maskwright.prove.verify_resume import shortened
from maskwright.run.directory import RESULTS, RunDirectory
from maskwright.tasks.models.load import load_model
from maskwright.tasks.pretrain import run as task
from maskwright.training import checkpoint
from maskwright.training.copies import Copies
from maskwright.training.stop import StopRequest


class HttpError(Exception):
    def __init__(self, code):
        self.code = code
        super().__init__(f"HTTP {code}")


class ShakyStore(MemoryFileSystem):
    """A store in memory. `fail`: called before each operation with its name and path, may raise."""

    protocol = "shaky"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fail: Callable[[str, str], None] = staticmethod(lambda operation, path: None)

    def pipe_file(self, path, value, mode="overwrite", **options):
        type(self).fail("pipe", path)
        super().pipe_file(path, value, mode=mode, **options)

    def put_file(self, lpath, rpath, **options):
        type(self).fail("put", rpath)
        super().put_file(lpath, rpath, **options)

    def get_file(self, rpath, lpath, **options):
        type(self).fail("get", rpath)
        super().get_file(rpath, lpath, **options)

    def glob(self, path, **options):
        type(self).fail("list", path)
        return super().glob(path, **options)


URL, GCS = "shaky://bucket/run", "gs://bucket/runs/one"


@pytest.fixture(autouse=True)
def shaky():
    fsspec.register_implementation("shaky", ShakyStore, clobber=True)
    ShakyStore.store.clear()
    ShakyStore.pseudo_dirs[:] = [""]
    yield
    ShakyStore.fail = staticmethod(lambda operation, path: None)


def fail_with(failures):
    def fail(operation, path):
        error = next(failures, None)
        if error:
            raise error

    ShakyStore.fail = staticmethod(fail)


def same(record):
    """Accepts every run's copies."""


def put(copies, directory, step, keep=2):
    copies.put(directory, step, keep, None)


@pytest.mark.parametrize("url", [URL, GCS])
def test_copies_come_back_on_a_new_machine(url, tmp_path, request):
    cloud = request.getfixturevalue("gcs") if url == GCS else None
    numbers = 2_000_000 if cloud else 100  # 8 MB: sent in chunks
    first, copies = saved(tmp_path / "one", 10, 20, 30, numbers=numbers), Copies(url)
    (tmp_path / "one" / "tokenizer").mkdir()
    (tmp_path / "one" / "tokenizer" / "tokenizer.json").write_text("{}")
    (tmp_path / "one" / "sync").mkdir()
    (tmp_path / "one" / "sync" / "wandb.json").write_text('{"run_id": "a"}')
    Folder(url).put("step-00000005/model.safetensors", b"of a machine that was lost while it copied")
    Folder(url).put("step-00000099/model.safetensors", b"of one that has gone further")
    for step in (10, 20, 30):
        put(copies, first, step)
    assert copies.steps() == [20, 30]
    assert Folder(url).folders() == ["step-00000020", "step-00000030", "step-00000099"]
    writes = (
        [one for one in requests(cloud) if one.startswith("POST /upload") and "step-00000030" in one] if cloud else []
    )
    assert any("resumable" in one for one in writes) is bool(cloud)
    second = RunDirectory(str(tmp_path / "two"))
    copies.fetch(second, same)
    loaded = checkpoint.load_newest(second.checkpoints, set_aside=False)
    assert loaded and loaded[0].step == 30 and loaded[0].parameters["a"][0] == 30
    assert second.exists() and second.read_metrics() == [{"step": 1}]
    assert Path(second.path("tokenizer", "tokenizer.json")).read_text() == "{}"
    assert storage.read_json(second.path("sync", "wandb.json")) == {"run_id": "a"}  # W&B's run continues
    copies.fetch(second, same)  # nothing newer
    assert checkpoint.whole_steps(second.checkpoints) == [30]


def test_a_fetch_that_was_cut_off_before_the_best_checkpoint_goes_on_with_it(tmp_path):
    first, copies = saved(tmp_path / "one", 10, 20, 30, best=10), Copies(URL)
    for step in (10, 20, 30):
        put(copies, first, step, keep=3)
    second = RunDirectory(str(tmp_path / "two"))

    def fail(operation, path):
        if operation == "get" and "step-00000010" in path:
            raise KeyboardInterrupt

    ShakyStore.fail = staticmethod(fail)
    with pytest.raises(KeyboardInterrupt):
        copies.fetch(second, same)
    assert checkpoint.whole_steps(second.checkpoints) == [30]
    ShakyStore.fail = staticmethod(lambda operation, path: None)
    copies.fetch(second, same)
    assert checkpoint.whole_steps(second.checkpoints) == [10, 30]


def test_failures_that_pass_are_sat_out_with_growing_waits(tmp_path):
    waits = []
    copies, directory = Copies(URL, sleep=waits.append), saved(tmp_path / "one", 10)
    fail_with(iter([HttpError(503), HttpError(429), OSError("connection reset"), TimeoutError(), None]))
    put(copies, directory, 10)
    assert copies.steps() == [10]
    assert len(waits) == 4 and waits[-1] > waits[0] >= 0.25
    fail_with(iter([HttpError(403)] * 20))
    with pytest.raises(MaskwrightError, match="HTTP 403"):
        copies.steps()
    assert len(waits) == 4, "a refusal is not repeated"


def test_a_store_that_stays_away_leaves_no_half_copy(tmp_path):
    waits = []
    copies, directory = Copies(URL, sleep=waits.append), saved(tmp_path / "one", 10, 20)
    put(copies, directory, 10)

    def fail(operation, path):
        if "optimizer" in path:
            raise HttpError(503)

    ShakyStore.fail = staticmethod(fail)
    with pytest.raises(MaskwrightError, match="step-00000020/optimizer.safetensors: cannot be written: HTTP 503"):
        put(copies, directory, 20)
    assert len(waits) == TRIES - 1
    assert copies.steps() == [10]
    ShakyStore.fail = staticmethod(lambda operation, path: None)
    put(copies, directory, 20)
    assert copies.steps() == [10, 20]


def test_what_arrives_cut_is_noticed(tmp_path, monkeypatch):
    """And so is what arrives with another byte."""
    copies, directory = Copies(URL, sleep=lambda seconds: None), saved(tmp_path / "one", 10)
    for damage in (lambda content: content[:-1], lambda content: content[:-1] + b"\xff"):

        def put_file(self, lpath, rpath, damage=damage, **options):
            self.pipe_file(rpath, damage(Path(lpath).read_bytes()))

        monkeypatch.setattr(ShakyStore, "put_file", put_file)
        with pytest.raises(CheckpointError, match="did not arrive complete"):
            put(copies, directory, 10)
        assert copies.steps() == []


def test_two_runs_on_one_place_do_not_mix(tmp_path):
    one, other = saved(tmp_path / "one", 10), saved(tmp_path / "two", 10)
    (tmp_path / "two" / "metrics.jsonl").write_text('{"step": 2}\n')
    copies = Copies(URL)
    put(copies, one, 10)
    put(copies, one, 10)  # again: nothing to do
    with pytest.raises(CheckpointError, match="another run writes"):
        put(copies, saved(tmp_path / "three", 10, numbers=12), 10)
    content = dict(ShakyStore.store)
    rival = Copies(URL)
    rival.steps = list  # as in a race: it looked before the first one wrote
    with pytest.raises(CheckpointError, match="another run writes"):
        put(rival, other, 10)
    manifest = next(name for name in content if name.endswith("MANIFEST.json"))
    assert ShakyStore.store[manifest].getvalue() == content[manifest].getvalue()


@pytest.mark.parametrize("name", ["model.safetensors", "MANIFEST.json"])
def test_a_damaged_copy_is_named_and_the_one_before_taken(tmp_path, name, capfd):
    directory, copies = saved(tmp_path / "one", 10, 20), Copies(URL)
    for step in (10, 20):
        put(copies, directory, step)
    Folder(URL).put(f"step-00000020/{name}", b"{}")
    fresh = RunDirectory(str(tmp_path / "two"))
    copies.fetch(fresh, same)
    assert checkpoint.whole_steps(fresh.checkpoints) == [10]
    assert "step-00000020" in capfd.readouterr().err


def test_a_run_goes_on_on_another_machine_bit_for_bit(config, tmp_path):
    keys = {"schedule.steps": 12, "logging.every_steps": 1, "checkpoint.save_every_steps": 3}
    task.pretrain(config(**keys), str(tmp_path / "straight"))
    copied = config(**keys, **{"checkpoint.copy_to": URL})
    with pytest.raises(StoppedEarly):
        task.pretrain(copied, str(tmp_path / "lost"), stop_request=StopRequest(stop_after_steps=7))
    shutil.rmtree(tmp_path / "lost")
    task.pretrain(copied, str(tmp_path / "found"))
    require_same_ends(tmp_path / "straight", tmp_path / "found")
    assert (tmp_path / "found" / "tokenizer" / "tokenizer.json").exists()


def test_the_copy_of_the_best_checkpoint_stays_when_a_start_copies_first(config, tmp_path, monkeypatch):
    keys = {"schedule.kind": "constant", "optimizer.learning_rate": 0.3, "schedule.steps": 60}
    keys |= {"evaluation.every_steps": 2, "evaluation.patience": 2, "evaluation.max_rows": 4, "checkpoint.keep": 1}
    own = config(**keys, **{"checkpoint.copy_to": URL})
    task.pretrain(own, str(tmp_path / "run"))
    best, last = Copies(URL).steps()
    Copies(URL)._remove(last)  # as if the start had had no time for it
    removed, remove = [], Copies._remove
    monkeypatch.setattr(Copies, "_remove", lambda self, step: (removed.append(step), remove(self, step)))
    task.pretrain(own, str(tmp_path / "run"))
    assert Copies(URL).steps() == [best, last] and not removed
    assert load_model(URL).step == load_model(str(tmp_path / "run")).step == best
    for location in (URL, str(tmp_path / "run")):
        model = load_model(location)
        assert model.run and RunDirectory(model.folder).has_ended(model.run)

    def fail(operation, path):
        if "ended.json" in path:
            raise HttpError(403)

    ShakyStore.fail = staticmethod(fail)
    with pytest.raises(CheckpointError, match=r"its last evaluation is not copied: .*HTTP 403. Fix: start the same"):
        task.pretrain(own, str(tmp_path / "run"))


def test_what_a_run_writes_after_its_last_save_is_in_its_copy(tmp_path):
    """And is taken for that of the newest step alone, which must be the run's last."""
    directory, copies = saved(tmp_path / "one", 10), Copies(URL)
    put(copies, directory, 10)
    Path(directory.metrics).write_text('{"step": 10}\n')
    Path(directory.path(RESULTS)).write_text('{"step": 10}')
    copies.put_ended(directory, 10)
    for more in ((), (20,)):  # a run that has got more steps since
        for step in more:
            put(copies, saved(tmp_path / "one", step), step)
        fetched = RunDirectory(str(tmp_path / f"two{more}"))
        copies.fetch(fetched, same)
        copies.fetch_ended(fetched)
        assert Path(fetched.path(RESULTS)).exists() != bool(more)
        assert fetched.read_metrics() == [{"step": 1 if more else 10}]
    for damaged in (b"", b"[]", b"{", b'{"step": 20, "files": {"metrics.jsonl": 1}}', b'{"step": 20}'):
        Folder(URL).put("ended.json", damaged)
        copies.fetch_ended(fetched)
    assert fetched.read_metrics() == [{"step": 1}]


def test_a_store_that_is_away_does_not_stop_training_but_ends_it_with_an_error(config, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("maskwright.core.folder.FIRST_WAIT_SECONDS", 0.0)

    def fail(operation, path):
        if operation == "put":
            raise HttpError(503)

    ShakyStore.fail = staticmethod(fail)
    keys = {"schedule.steps": 6, "checkpoint.save_every_steps": 2, "checkpoint.copy_to": URL}
    with pytest.raises(CheckpointError, match="step 6 is saved here but not copied"):
        task.pretrain(config(**keys), str(tmp_path / "run"))
    assert "step 2 is saved here but not copied" in capfd.readouterr().err
    assert checkpoint.whole_steps(str(tmp_path / "run" / "checkpoints"))[-1] == 6
    ShakyStore.fail = staticmethod(lambda operation, path: None)
    task.pretrain(config(**keys), str(tmp_path / "run"))
    assert Copies(URL).steps() == [6]


def test_a_place_that_another_run_took_is_not_waited_for(config, tmp_path, monkeypatch):
    def put(copies, *_, **__):
        raise copies._taken()

    monkeypatch.setattr(Copies, "put", put)
    with pytest.raises(
        CheckpointError, match="another run writes .* Fix: give each run a checkpoint.copy_to of its own"
    ):
        task.pretrain(config(**{"schedule.steps": 6, "checkpoint.copy_to": URL}), str(tmp_path / "run"))


def test_another_runs_copies_change_nothing_here(config, tmp_path):
    keys = {"schedule.steps": 8}
    task.pretrain(config(**keys, **{"checkpoint.copy_to": URL}), str(tmp_path / "one"))
    with pytest.raises(StoppedEarly):
        task.pretrain(config(**keys, seed=7), str(tmp_path / "two"), stop_request=StopRequest(stop_after_steps=2))
    before = {path: path.read_bytes() for path in (tmp_path / "two").rglob("*") if path.is_file()}
    mixed = config(**keys, seed=7, **{"checkpoint.copy_to": URL})
    for run in ("two", "three"):
        with pytest.raises(ConfigError, match="seed: 0 -> 7"):
            task.pretrain(mixed, str(tmp_path / run))
    assert {path: path.read_bytes() for path in (tmp_path / "two").rglob("*") if path.is_file()} == before
    assert not [path for path in (tmp_path / "three").rglob("*") if path.is_file() and path.name != "lock"]


def test_a_proof_of_a_run_leaves_its_copies_and_its_services_alone(config):
    made = shortened(config(**{"checkpoint.copy_to": URL, "logging.report_to": ["wandb"]}), 20)
    assert (made.checkpoint.copy_to, made.logging.report_to) == (None, [])


# ---- through gcsfs, against a store on loopback that speaks Google Cloud Storage's protocol --------------------------

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs's own way with chunks


def requests(gcs):
    return [f"{one['verb']} {one['path']}?{one['query']}" for one in gcs.journal]


def test_the_manifest_comes_last_and_only_where_there_is_none(gcs, tmp_path):
    Copies(GCS).put(saved(tmp_path / "one", 10), 10, 2, None)
    uploads = [request for request in requests(gcs) if request.startswith("POST /upload")]
    assert "ifGenerationMatch=0" in uploads[-1]
    assert not [request for request in uploads[:-1] if "ifGenerationMatch" in request]
    assert list(gcs.files("bucket"))[-1].endswith("MANIFEST.json")
    assert not [request for request in requests(gcs) if "alt=media" in request], "the store's crc32c is enough"


def test_a_manifest_whose_answer_was_lost_is_ones_own(gcs, tmp_path):
    directory, copies = saved(tmp_path / "one", 10), Copies(GCS)
    gcs.fault("storage.objects.insert .*MANIFEST.json", 503, lost=True)
    copies.put(directory, 10, 2, None)
    assert copies.steps() == [10]


def test_what_the_network_spoils_is_noticed_by_crc32c(gcs, tmp_path):
    directory, copies = saved(tmp_path / "one", 10), Copies(GCS)
    content = os.path.join(directory.checkpoints, "step-00000010", "model.safetensors")
    gcs.arrives = lambda name, data: data[:-1] + b"\xff" if name.endswith("model.safetensors") else data
    with pytest.raises(CheckpointError, match="did not arrive complete"):
        copies.put(directory, 10, 2, None)
    assert os.path.getsize(content) == len(gcs.files("bucket")["runs/one/step-00000010/model.safetensors"])
    assert copies.steps() == []


def test_metrics_that_grow_while_they_are_copied_are_no_damage(gcs, tmp_path):
    directory = saved(tmp_path / "one", 10)

    def grow(name, content):
        with open(directory.metrics, "a") as file:
            file.write('{"step": 2}\n')
        return content

    gcs.arrives = grow
    Copies(GCS).put(directory, 10, 2, None)
    assert Copies(GCS).steps() == [10]
    manifest = json.loads(gcs.files("bucket")["runs/one/step-00000010/MANIFEST.json"])
    there = gcs.files("bucket")["runs/one/step-00000010/metrics.jsonl"]
    assert manifest["files"]["metrics.jsonl"]["bytes"] == len(there) < os.path.getsize(directory.metrics)


def test_a_bucket_that_is_not_there_is_said_at_the_start(gcs):
    assert Copies(GCS).steps() == []
    with pytest.raises(InputError, match=r"gs://typo/runs/one: there is no bucket typo\. Fix: .*create gs://typo$"):
        Copies("gs://typo/runs/one").steps()
