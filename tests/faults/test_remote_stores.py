"""Token stores in buckets: memory://, a made-up Cloud Storage that fails on demand, and moto's S3, all on loopback."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from conftest import small_config
from fake_gcs import FakeGcs, fake_gcs

from maskwright.cli.main import run as command
from maskwright.config.pretraining import RunConfig
from maskwright.core import folder as folders
from maskwright.core import storage
from maskwright.core.errors import InputError, MaskwrightError, StoreError
from maskwright.data import remote
from maskwright.data.data_phases import windows_at
from maskwright.data.loader import Loader, validation_batches
from maskwright.data.mixture import MixedRows
from maskwright.data.opening import open_held_out, open_store, recorded_stores
from maskwright.data.prefetch import ShardPrefetcher
from maskwright.data.prepare.report import report
from maskwright.data.prepare.request import Request
from maskwright.data.store import TokenStore
from maskwright.run.directory import RunDirectory
from maskwright.tasks.pretrain import run as task
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.training import checkpoint


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(folders, "FIRST_WAIT_SECONDS", 0.001)
    yield tmp_path / "cache" / "stores"
    fsspec.filesystem("memory").store.clear()


def files(folder: Path | str) -> dict[str, bytes]:
    root = Path(folder)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_store_goes_to_a_bucket_and_trains_from_there(
    store: TokenStore,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    remote.push(store.location, "memory://bucket/store")
    remote.push(store.location, "memory://bucket/store")  # nothing is left to do
    remote.pull("memory://bucket/store", str(tmp_path / "back"))
    listed = {record["name"] for shard in store.shards for record in shard["files"].values()}
    back = files(tmp_path / "back")
    fetched = []
    with monkeypatch.context() as patch:
        patch.setattr(remote, "_download", lambda *words: fetched.append(words))
        assert command(["data", "inspect", "memory://bucket/store"]) == 0
    shown, own = capsys.readouterr().out, report(store.location, store.manifest)
    *shown, text = shown.splitlines()
    assert "\n".join(shown).partition(": ")[2] == own.partition(": ")[2] and not fetched and not cache.exists()
    assert text == f"text: 1 file, {store.manifest['sources'][0]['location']}"
    assert command(["data", "inspect", "memory://bucket/none"]) == 2
    assert "is not a token store: it has no manifest.json" in capsys.readouterr().err
    damaged = next(path for path in (tmp_path / "back").iterdir() if ".tokens." in path.name)
    damaged.write_bytes(back[damaged.name][:-1] + b"?")
    remote.pull("memory://bucket/store", str(tmp_path / "back"))
    assert files(tmp_path / "back") == back, "what was damaged here is fetched again"
    assert listed < set(back) and all(back[name] == content for name, content in files(store.location).items())

    ends = []
    for location in (store.location, "memory://bucket/store"):
        run = tmp_path / location.rpartition("/")[2] / "run"
        task.pretrain(small_config(location), str(run))
        ends.append(checkpoint.load(str(run / "checkpoints/step-00000012"))[0].parameters)
    assert all((ends[0][name] == ends[1][name]).all() for name in ends[0])
    record = RunDirectory(str(run)).read_config()
    assert record["store"] == "memory://bucket/store" == recorded_stores(record)[""].location
    (folder,) = (entry for entry in cache.iterdir() if entry.is_dir())
    assert folder.name == store.fingerprint[:32]
    (folder / "manifest.json").unlink()  # as after a stop on the way: what is there stays
    (folder / "tokenizer" / "vocab.json.tmp-7").write_text("half")
    shards = {path: path.stat().st_mtime_ns for path in folder.glob("*.u*")}
    assert TokenStore("memory://bucket/store").fingerprint == store.fingerprint
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.u*")} == shards
    assert not [*folder.rglob("*.tmp-*")]


def test_what_lies_elsewhere_is_refused(store: TokenStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"is not a token store: it has no manifest.json.*data push"):
        TokenStore("memory://bucket/none")
    files_there = fsspec.filesystem("memory")
    files_there.pipe("/bucket/other/manifest.json", b'{"format": 2, "fingerprint": "x"}')
    for attempt in (lambda: TokenStore("memory://bucket/other"), lambda: remote.pull("memory://bucket/other", "x")):
        with pytest.raises(StoreError, match="memory://bucket/other/manifest.json: "):
            attempt()
    with pytest.raises(InputError, match="another store lies there"):
        remote.push(store.location, "memory://bucket/other")
    remote.push(store.location, "memory://bucket/pulled")
    thesis = tmp_path / "thesis"
    (thesis / "tokenizer").mkdir(parents=True)
    (thesis / "tokenizer" / "tokenizer.json").write_text("mine")
    with pytest.raises(InputError, match="is not empty, and no pull was begun there"):
        remote.pull("memory://bucket/pulled", str(thesis))
    assert (thesis / "tokenizer" / "tokenizer.json").read_text() == "mine" and len([*thesis.rglob("*")]) == 2
    stopped, whole = tmp_path / "stopped", remote._download
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "_download", lambda _, name, *more: whole(_, name, *more) if "valid" in name else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            remote.pull("memory://bucket/pulled", str(stopped))
    assert (stopped / remote.LOCK).exists()
    remote.pull("memory://bucket/pulled", str(stopped))
    assert {*files(stopped)} == {*files(store.location)}
    damaged = tmp_path / "damaged"
    shutil.copytree(store.location, damaged)
    shard = next(damaged.glob("train-*.tokens.*"))
    shard.write_bytes(bytes([shard.read_bytes()[0] ^ 1]) + shard.read_bytes()[1:])
    with pytest.raises(StoreError, match=f"{shard.name}: is not what was written"):
        remote.push(str(damaged), "memory://bucket/damaged")
    assert not files_there.exists("/bucket/damaged/manifest.json")


def test_a_damaged_shard_never_gets_its_name(store: TokenStore, cache: Path) -> None:
    remote.push(store.location, "memory://bucket/store")
    there = fsspec.filesystem("memory")
    name = next(path for path in there.find("/bucket/store") if ".tokens." in path)
    content = there.cat_file(name)
    there.pipe_file(name, content[:-2] + b"??")
    with pytest.raises(StoreError, match=rf"{os.path.basename(name)}: is not what was written \(its sha256 differs\)"):
        TokenStore("memory://bucket/store").verify()
    there.rm_file(name)
    with pytest.raises(StoreError, match=f"{os.path.basename(name)}: is missing"):
        TokenStore("memory://bucket/store")
    (folder,) = (entry for entry in cache.iterdir() if entry.is_dir())
    left = files(folder)
    assert os.path.basename(name) not in left and not [path for path in left if ".tmp-" in path]
    there.pipe_file(name, content[:-2])
    with pytest.raises(StoreError, match=f"{os.path.basename(name)}: has .* bytes, the manifest says"):
        TokenStore("memory://bucket/store")
    there.pipe_file(name, content)
    TokenStore("memory://bucket/store").verify()


def test_a_cache_that_is_deleted_meanwhile_is_filled_again(store: TokenStore, cache: Path) -> None:
    remote.push(store.location, "memory://bucket/store")
    opened = remote.Cache("memory://bucket/store")
    name, record = next(iter(remote._files(store.manifest).items()))
    for gone in (cache / store.fingerprint[:32], cache):
        shutil.rmtree(gone)
        assert opened.read(name, lambda file: len(file.read())) == record["bytes"]


def of_shards(tokenizer: str, place: Path, ends: str = "stones") -> TokenStore:
    """A store of many shards."""
    from maskwright.data.prepare.driver import prepare
    from maskwright.data.prepare.request import PrepareOptions
    from maskwright.text.sources import Sources

    lines = [f"A dog saw {number} {ends}.\n\nNobody crossed bridge {number * 7}?\n\n" for number in range(900)]
    place.with_suffix(".txt").write_text("".join(lines), encoding="utf-8")
    options = PrepareOptions(valid_fraction=0.02, keep_duplicates=True, shard_tokens=1_000)
    return prepare(Request(Sources([str(place.with_suffix(".txt"))]), tokenizer, str(place), options))


@pytest.fixture
def shards(store: TokenStore, tmp_path: Path) -> TokenStore:
    return of_shards(store.tokenizer_folder, tmp_path / "shards")


def in_windows(location: str) -> RunConfig:
    config = small_config(location)
    return config.model_copy(update={"data": config.data.model_copy(update={"window_shards": 2})})


def test_a_store_larger_than_the_cache_trains_in_windows(
    shards: TokenStore, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.push(shards.location, "memory://bucket/shards")
    here = Loader(in_windows(shards.location), shards)
    small = sum(map(len, files(shards.tokenizer_folder).values())) + len(files(shards.location)["manifest.json"])
    limit = small + int(0.6 * sum(shard["files"]["tokens"]["bytes"] for shard in shards.shards))
    monkeypatch.setenv("MASKWRIGHT_CACHE_GB", str(limit / 1e9))
    there = Loader(in_windows("memory://bucket/shards"), TokenStore("memory://bucket/shards"))
    steps = 2 * here.rows.plan.rows // here.config.rows_per_step
    assert len(shards.split("train").shards) > 8 and steps > 50
    for step in [*range(steps), 3, steps // 2, steps - 1]:  # in order, then resumed anywhere
        for mine, remote_one in zip(here.batches(step), there.batches(step), strict=True):
            assert all((getattr(mine, name) == getattr(remote_one, name)).all() for name in ("input_ids", "labels"))
        assert sum(size_of(path) for path in cache.rglob("*")) <= limit
    with pytest.raises(StoreError, match=r"needs .* at once, and .*Fix: set data\.window_shards, raise"):
        Loader(small_config("memory://bucket/shards"), TokenStore("memory://bucket/shards"))
    one_window, one_more = shards.mapped_at_once(1), shards.largest_other
    monkeypatch.setenv("MASKWRIGHT_CACHE_GB", str((small + one_window + one_more) / 1e9))
    with pytest.raises(StoreError, match=r"needs .* at once, and .*Fix: lower data\.window_shards, raise"):
        Loader(in_windows("memory://bucket/shards"), TokenStore("memory://bucket/shards"))
    monkeypatch.setenv("MASKWRIGHT_CACHE_GB", str((small + one_window + one_more - 1) / 1e9))
    with pytest.raises(StoreError, match=r"needs .* at once, and it has room for .*Fix: raise MASKWRIGHT_CACHE_GB"):
        Loader(in_windows("memory://bucket/shards"), TokenStore("memory://bucket/shards"))
    for given in ("many", "inf", "-1", "nan"):
        monkeypatch.setenv("MASKWRIGHT_CACHE_GB", given)
        with pytest.raises(InputError, match=f"'{given}' is not a size"):
            Loader(in_windows("memory://bucket/shards"), TokenStore("memory://bucket/shards"))


def test_held_out_stores_in_buckets_are_counted(
    shards: TokenStore, store: TokenStore, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the windows, one file at a time: the largest of any of them."""
    remote.push(shards.location, "memory://bucket/shards")
    remote.push(store.location, "memory://bucket/held-out")
    held_out = max(
        record["bytes"] for shard in store.shards if shard["split"] == "valid" for record in shard["files"].values()
    )
    assert held_out > shards.largest_other
    opened = TokenStore("memory://bucket/shards")
    TokenStore("memory://bucket/held-out")
    small = sum(size_of(path) for path in cache.rglob("*"))
    for location, training, its_own in (
        ("memory://bucket/shards", shards.mapped_at_once(2), shards.largest_other),
        (shards.location, 0, 0),
    ):
        config = in_windows(location)
        keys = {"validation": {"near": store.location, "far": "memory://bucket/held-out"}}
        judged = config.model_copy(update={"data": config.data.model_copy(update=keys)})
        given = opened if training else shards
        monkeypatch.setenv("MASKWRIGHT_CACHE_GB", str((small + training + held_out) / 1e9))
        validation = open_held_out(judged.data).values()
        Loader(judged, given, validation)
        monkeypatch.setenv("MASKWRIGHT_CACHE_GB", str((small + training + held_out - 1) / 1e9))
        with pytest.raises(StoreError, match=r"a run needs .* of it at once") as raised:
            Loader(judged, given, validation)
        with pytest.raises(StoreError, match=r"a run needs .* of it at once"):
            prepare_run(judged)
        assert ("lower data.window_shards" in str(raised.value)) is bool(training)
        monkeypatch.setenv("MASKWRIGHT_CACHE_GB", str((small + training + its_own) / 1e9))
        Loader(config, given)


def test_one_file_at_a_time_must_fit_beside_what_is_mapped(
    shards: TokenStore, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validation leaves nothing mapped. The error is true where the tokenizer alone fills the cache."""
    remote.push(shards.location, "memory://bucket/shards")
    there = TokenStore("memory://bucket/shards")
    largest = max(record["bytes"] for shard in there.shards for record in shard["files"].values())
    small = sum(size_of(path) for path in cache.rglob("*"))
    monkeypatch.setenv("MASKWRIGHT_CACHE_GB", str((small + largest) / 1e9))
    given: Any = {"seq_len": 32, "packing": "documents", "max_rows": 64, "micro_batch_rows": 8}
    for mine, theirs in zip(validation_batches(shards, **given), validation_batches(there, **given), strict=True):
        assert (mine.labels == theirs.labels).all()
    there.verify()
    monkeypatch.setenv("MASKWRIGHT_CACHE_GB", str((small + 100) / 1e9))
    with pytest.raises(remote.NoRoom, match="has room for 100 bytes, and the next file has [^;]*. Fix: raise"):
        there.verify()


PHASES = [{"until_step": 20}, {"until_step": 45, "seq_len": 16}, {"until_share": 1.0}]


@pytest.fixture(params=["store", "mixture", "phases", "both"])
def reading(request: pytest.FixtureRequest, shards: TokenStore, tmp_path: Path) -> tuple[RunConfig, list[TokenStore]]:
    """A run in windows of two shards on stores in a bucket, and those stores as they lie here."""
    stores = [shards]
    keys: dict[str, Any] = {"schedule.steps": 160, "data.window_shards": 2}
    if request.param in ("phases", "both"):
        keys["phases"] = PHASES
    if request.param in ("mixture", "both"):
        stores.append(of_shards(shards.tokenizer_folder, tmp_path / "others", "trees"))
        sources = {
            "a": {"store": "memory://bucket/0", "weight": 3.0},
            "b": {"store": "memory://bucket/1", "weight": 1.0},
        }
        keys |= {"data.store": None, "data.mixture": sources}
    for number, one in enumerate(stores):
        remote.push(one.location, f"memory://bucket/{number}")
    return small_config("memory://bucket/0", **keys), stores


def read_at(loader: Loader, step: int) -> list[set[int]]:
    """[sources]: the shards that an update's rows come from."""
    rows = loader.rows_at(step)
    chosen = np.concatenate([loader.row_numbers(step, worker)[1] for worker in range(2)])
    sources = rows.sources if isinstance(rows, MixedRows) else [rows]
    own = {source: some for source, _, some in rows._by_source(chosen)} if isinstance(rows, MixedRows) else {0: chosen}
    none = np.zeros(0, np.int64)
    return [{*one._pieces(own.get(source, none))[0].tolist()} for source, one in enumerate(sources)]


def test_the_next_window_of_every_store_is_known(reading: tuple[RunConfig, list[TokenStore]]) -> None:
    """All rows come from the window of the update's first row or the one after; no window comes unannounced."""
    config, stores = reading
    loader = Loader(config, open_store(config.data))
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardPrefetcher, "request", lambda self, windows: seen.append(windows))
        read = [read_at(loader, step) for step in range(160)]
    assert len(seen) == 160, "once for each update"
    changes = [0] * len(stores)
    for step, of_step in enumerate(read):
        for source, (window, shard_idxs) in enumerate(zip(seen[step], of_step, strict=True)):
            assert shard_idxs <= {*window.now, *window.following} and 1 <= len(window.now) <= 2
            before = seen[max(step - 1, 0)][source]
            assert {*window.now} <= {*before.now, *before.following}
            changes[source] += window.now != before.now
    assert min(changes) > 2


def test_the_next_window_is_there_before_its_rows_are_taken(
    reading: tuple[RunConfig, list[TokenStore]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several shards come at once."""
    config, stores = reading
    loader = Loader(config, open_store(config.data))
    bring, coming, most = remote._download, set[str](), [0]

    def fetch(there: Any, name: str, path: str, sha256: str) -> None:
        coming.add(path)
        most.append(len(coming))
        time.sleep(0.02)  # as a bucket that is far away
        bring(there, name, path, sha256)
        coming.remove(path)

    monkeypatch.setattr(remote, "_download", fetch)
    for step in (0, 19):  # at 19, the next window may be of the next phase
        for path in cache.rglob("*.tokens.*"):
            path.unlink()
        loader.batches(step)
        leg = loader._data_phase(step)
        windows = windows_at(
            leg, step * config.rows_per_step, loader.data_phases[1] if len(loader.data_phases) > 1 else None
        )
        wanted = set[Path]()
        for one, window in zip(stores, windows, strict=True):
            names = [shard["files"]["tokens"]["name"] for shard in one.shards if shard["split"] == "train"]
            wanted |= {cache / one.fingerprint[:32] / names[shard] for shard in window.following}
        assert len(wanted) >= len(stores)
        ends = time.monotonic() + 120
        while not wanted <= {*cache.rglob("*.tokens.*")}:
            assert time.monotonic() < ends, "the thread brings them"
            time.sleep(0.01)
        assert len([*cache.rglob("*.tokens.*")]) <= 4 * len(stores), "and no others"
    assert 2 <= max(most) <= remote.AT_ONCE + 1, "the run itself may bring one"


def test_a_cache_as_large_as_the_run_needs_is_enough(
    reading: tuple[RunConfig, list[TokenStore]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for before a run on a mixture and with phases is all that its rows need, with the same batches."""
    config, stores = reading
    opened = open_store(config.data)
    small = sum(size_of(path) for path in cache.rglob("*"))
    limit = small + sum(one.mapped_at_once(2) for one in stores) + max(one.largest_other for one in stores)
    monkeypatch.setenv("MASKWRIGHT_CACHE_GB", str(limit / 1e9))
    there = Loader(config, opened)
    with monkeypatch.context() as patch:
        patch.delenv("MASKWRIGHT_CACHE_GB")
        patch.setenv("MASKWRIGHT_CACHE", str(cache.parents[1] / "roomy"))
        here = Loader(config, open_store(config.data))
        wanted = [here.batches(step) for step in range(160)]
    for step in range(160):
        for mine, theirs in zip(wanted[step], there.batches(step), strict=True):
            assert (mine.input_ids == theirs.input_ids).all()
        with remote._locked(str(cache)):  # the thread may be bringing a file into one folder for one of another
            assert sum(size_of(path) for path in cache.rglob("*")) <= limit


def test_damage_in_one_shard_is_named_when_it_is_read(shards: TokenStore) -> None:
    remote.push(shards.location, "memory://bucket/shards")
    there = fsspec.filesystem("memory")
    name = next(path for path in there.find("/bucket/shards") if "train-00003.tokens." in path)
    there.pipe_file(name, b"?" * there.size(name))
    loader = Loader(in_windows("memory://bucket/shards"), TokenStore("memory://bucket/shards"))
    what = r"train-00003\.tokens\..*: is not what was written.*push the store again"
    with pytest.raises(StoreError, match=what):
        for step in range(loader.rows.plan.rows // loader.config.rows_per_step):
            loader.batches(step)


def test_two_processes_train_from_one_small_cache(
    shards: TokenStore, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = (
        "import sys, hashlib\n"
        "from maskwright.config.pretraining import RunConfig; from maskwright.data.loader import Loader\n"
        "from maskwright.data.store import TokenStore; config = RunConfig.model_validate_json(sys.argv[2])\n"
        "loader = Loader(config, TokenStore(sys.argv[1])); h = hashlib.sha256()\n"
        "for step in range(loader.rows.plan.rows // loader.config.rows_per_step):\n"
        "    for batch in loader.batches(step): h.update(batch.input_ids.tobytes())\n"
        "print(h.hexdigest())"
    )
    small = sum(map(len, files(shards.tokenizer_folder).values())) + len(files(shards.location)["manifest.json"])
    limit = small + int(0.8 * sum(shard["files"]["tokens"]["bytes"] for shard in shards.shards))
    monkeypatch.setenv("MASKWRIGHT_CACHE_GB", str(limit / 1e9))
    places = [shards.location, *[f"file://{shards.location}"] * 2]
    config = small_config(shards.location, **{"data.window_shards": 2}).model_dump_json()
    started = [
        subprocess.Popen([sys.executable, "-c", code, one, config], stdout=subprocess.PIPE, text=True) for one in places
    ]
    outputs = []
    for process in started:
        while process.poll() is None:
            assert sum(size_of(path) for path in cache.rglob("*")) <= limit
            time.sleep(0.01)
        outputs.append(process.communicate()[0])
    assert outputs[0] and outputs == outputs[:1] * 3


def size_of(path: Path) -> int:
    """0 for what is removed meanwhile, and for folders."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def test_what_is_mapped_is_never_removed(shards: TokenStore, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote.push(shards.location, "memory://bucket/shards")
    opened = TokenStore("memory://bucket/shards")
    opened.verify()
    one, other = opened.split("train"), TokenStore("memory://bucket/shards").split("train")
    kept = one.ids(0)
    monkeypatch.setattr(remote, "_room", lambda base: -1)  # never enough
    first, second = [shard["files"]["tokens"]["name"] for shard in opened.shards if shard["split"] == "train"][:2]
    (cache / opened.fingerprint[:32] / second).unlink()
    with pytest.raises(
        remote.NoRoom, match=r"has room for 0 bytes, and the next file has .*; another .* being read. Fix: wait"
    ):
        other.ids(1)
    left = [path.name for path in cache.rglob("*.tokens.*")]
    assert left == [first]
    assert (kept == shards.split("train").ids(0)).all()


def test_processes_that_ask_at_once_bring_each_file_once(store: TokenStore, cache: Path) -> None:
    """file:// is the one address that several processes share here."""
    code = (
        "import sys; from maskwright.data import remote, store; bring = remote._download\n"
        "def fetch(*a): print('fetched', a[1]); bring(*a)\n"
        "remote._download = fetch; store.TokenStore(sys.argv[1]).verify()"
    )
    command = [sys.executable, "-c", code, f"file://{store.location}"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    fetched = [line for process in started for line in process.communicate(timeout=240)[0].splitlines()]
    assert [process.returncode for process in started] == [0] * 3
    assert len(fetched) == len({*fetched}) == len([name for name in files(store.location) if name != "manifest.json"])


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGcs]:
    with fake_gcs() as there:
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "endpoint_url": there.url})
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield there


def test_cloud_storage_that_fails_now_and_then(gcs: FakeGcs, store: TokenStore, tmp_path: Path) -> None:
    gcs.failures = [503]
    remote.push(store.location, "gs://bucket/stores/one")
    gcs.failures = [429]
    opened = TokenStore("gs://bucket/stores/one")
    opened.verify()
    assert all(files(opened.folder)[name] == content for name, content in files(store.location).items() if "." in name)
    gcs.spoil = True  # what is uploaded loses its last byte
    with pytest.raises(MaskwrightError, match=r"arrived with [\d,]+ of [\d,]+ bytes"):
        remote.push(store.location, "gs://bucket/stores/two")
    assert "stores/two/manifest.json" not in gcs.objects


def test_s3(store: TokenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("s3fs", reason="needs the extra s3")
    server = pytest.importorskip("moto.server", reason="needs moto").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {"KEY_ID": "testing", "SECRET_ACCESS_KEY": "testing"}.items():  # moto takes any
            monkeypatch.setenv(f"AWS_ACCESS_{name}" if name == "KEY_ID" else f"AWS_{name}", value)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        fsspec.filesystem("s3").mkdir("bucket")
        remote.push(store.location, "s3://bucket/store")
        config = small_config("s3://bucket/store")
        here, there = (Loader(config, TokenStore(place)) for place in (store.location, "s3://bucket/store"))
        assert (here.batches(7)[1].input_ids == there.batches(7)[1].input_ids).all()
        with pytest.raises(MaskwrightError, match="s3://elsewhere/store"):
            TokenStore("s3://elsewhere/store")
    finally:
        server.stop()


def archive(path: Path, members: dict[str, bytes | tuple[bytes, str]]) -> str:
    """A name's content, or (type, target) of a member that is no file."""
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                member.type, member.linkname = content
                file.addfile(member)
            else:
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
    return str(path)


def test_archives_are_unpacked_safely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = archive(tmp_path / "good.tar.gz", {"set/a.arrow": b"a" * 5000, "set/meta/counts.csv": b"b"})
    with open(good, "rb") as file:
        fsspec.filesystem("memory").pipe("/bucket/good.tar.gz", file.read())
    remote.pull("memory://bucket/good.tar.gz", str(tmp_path / "out"))
    assert files(tmp_path / "out") == {"set/a.arrow": b"a" * 5000, "set/meta/counts.csv": b"b"}
    with pytest.raises(InputError, match="is not empty"):
        remote.pull(good, str(tmp_path / "out"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    remote.pull(good, str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink() and files(tmp_path / "empty") == files(tmp_path / "out")
    for name in ("unfinished.tmp-12", "lost+found"):  # of a process that was killed, and of a new disk
        (tmp_path / "disk" / name).mkdir(parents=True)
    remote.pull(good, str(tmp_path / "disk"))
    (tmp_path / "disk" / "lost+found").rmdir()
    assert files(tmp_path / "disk") == files(tmp_path / "out") and not [*(tmp_path / "disk").glob("*.tmp-*")]
    (tmp_path / "here").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "here")
        remote.pull(good, ".")
    assert files(tmp_path / "here") == files(tmp_path / "out")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="already exists"):
        remote.pull(good, str(tmp_path / "file"))
    for name in ("good.tar.gz", "good.tar"):  # a signed address
        address = f"https://bucket.example/{name}?X-Signature=1a2b"
        with monkeypatch.context() as patch, gzip.open(good) as plain, open(good, "rb") as packed:
            patch.setattr(storage, "open_binary", {address: plain if name == "good.tar" else packed}.__getitem__)
            remote.pull(address, str(tmp_path / name.replace(".", "-")))
    assert (tmp_path / "good-tar" / "set" / "a.arrow").read_bytes() == b"a" * 5000
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(Path(good).read_bytes()[:-40])
    cases = {
        archive(tmp_path / "up.tar.gz", {"a": b"1", "x/../../up": b"2"}): "would leave the folder",
        archive(tmp_path / "root.tgz", {"/root": b"2"}): "would leave the folder",
        archive(tmp_path / "link.tgz", {"link": (tarfile.SYMTYPE, "/etc/passwd")}): "is a link or a device",
        archive(tmp_path / "hard.tgz", {"a": b"1", "hard": (tarfile.LNKTYPE, "a")}): "is a link or a device",
        archive(tmp_path / "both.tgz", {"a": b"1", "a/b": b"2"}): "has a file and a folder of one name",
        str(cut): "is not a whole archive",
    }
    for location, why in cases.items():
        with pytest.raises(InputError, match=why):
            remote.pull(location, str(tmp_path / "refused"))
        assert not list(tmp_path.glob("refused*"))
    assert not (tmp_path.parent / "up").exists()


def test_an_archive_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SHARE_OF_DISK", 1e-12)
    location = archive(tmp_path / "bomb.tar.gz", {"zeros": b"\0" * 10_000_000})
    with pytest.raises(InputError, match="unpacks to more than"):
        remote.pull(location, str(tmp_path / "out"))
    assert not list(tmp_path.glob("out*"))
