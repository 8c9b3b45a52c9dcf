"""Token stores in buckets: memory://, a made-up Cloud Storage that fails on demand, and moto's S3, all on loopback."""

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import ANY

import fsspec
import pytest
from conftest import prepared, small_config
from ended_runs import require_same_ends

from maskwright.cli.main import run as command
from maskwright.core import folder as folders
from maskwright.core import storage
from maskwright.core.errors import InputError, MaskwrightError, StoreError
from maskwright.data import remote
from maskwright.data.loader import Loader
from maskwright.data.manifest import files_of
from maskwright.data.prepare.report import report
from maskwright.data.prepare.request import PrepareOptions
from maskwright.data.store import TokenStore
from maskwright.run.directory import RunDirectory
from maskwright.tasks.models.runs import held_out_stores
from maskwright.tasks.pretrain import run as task


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(folders, "FIRST_WAIT_SECONDS", 0.001)
    yield tmp_path / "cache" / "stores"
    fsspec.filesystem("memory").store.clear()


def files(folder):
    root = Path(folder)
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_store_goes_to_a_bucket_and_trains_from_there(store, cache, tmp_path, monkeypatch, capsys):
    remote.push(store.location, "memory://bucket/store")
    remote.push(store.location, "memory://bucket/store")  # nothing is left to do
    remote.pull("memory://bucket/store", str(tmp_path / "back"))
    listed = {record["name"] for record in files_of(store.manifest)}
    back = files(tmp_path / "back")
    fetched = []
    with monkeypatch.context() as patch:
        patch.setattr(remote, "_download", lambda *words: fetched.append(words))
        assert command(["data", "inspect", "memory://bucket/store"]) == 0
    shown, own = capsys.readouterr().out, report(store.location, store.manifest)
    *shown, text = shown.splitlines()
    assert "\n".join(shown).partition(": ")[2] == own.partition(": ")[2] and not fetched and not cache.exists()
    assert text == f"text: 1 file, {store.locations[0]}"
    assert command(["data", "inspect", "memory://bucket/none"]) == 2
    assert "is not a token store: it has no manifest.json" in capsys.readouterr().err
    damaged = next(path for path in (tmp_path / "back").iterdir() if ".tokens." in path.name)
    damaged.write_bytes(back[damaged.name][:-1] + b"?")
    remote.pull("memory://bucket/store", str(tmp_path / "back"))
    assert files(tmp_path / "back") == back, "what was damaged here is fetched again"
    assert listed < set(back) and all(back[name] == content for name, content in files(store.location).items())

    here, there = tmp_path / "here", tmp_path / "there"
    task.pretrain(small_config(store.location), str(here))
    task.pretrain(small_config("memory://bucket/store"), str(there))
    require_same_ends(here, there)
    record = RunDirectory(str(there)).read_record()
    assert record.train.location == "memory://bucket/store" == held_out_stores(record)[""].location
    folder = cache / remote._cache_name(store.manifest)
    assert [*cache.iterdir()] == [folder]
    (folder / "manifest.json").unlink()  # as after a stop on the way: what is there stays
    (folder / "tokenizer" / "vocab.json.tmp-7").write_text("half")
    shards = {path: path.stat().st_mtime_ns for path in folder.glob("*.u*")}
    assert TokenStore("memory://bucket/store").fingerprint == store.fingerprint
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*.u*")} == shards
    assert not [*folder.rglob("*.tmp-*")]


def test_the_same_text_from_another_place_is_pushed_over(tokenizer, tmp_path):
    """Its sources, and the lines that its documents begin at, are files of the same sizes."""
    made, opened = list[TokenStore](), list[TokenStore]()
    for name, text in ("one", "a b\n\nc d\n\n"), ("two", "\n\na b\n\nc d"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(text)
        options = PrepareOptions(valid_fraction=0.0)
        made.append(prepared(tmp_path / name / "text.txt", tokenizer, tmp_path / f"store-{name}", options))
    sizes = [{name: len(content) for name, content in files(one.folder).items() if "." in name} for one in made]
    assert made[0].fingerprint == made[1].fingerprint and sizes[0] == {**sizes[1], "manifest.json": ANY}
    for one in (*made, made[0]):
        remote.push(one.location, "memory://bucket/store")
        opened.append(TokenStore("memory://bucket/store"))
        opened[-1].verify()
    for one, there in zip((*made, made[0]), opened, strict=True):  # an open store is left alone
        assert there.origin("train", 1) == one.origin("train", 1)
    assert opened[0].folder == opened[2].folder != opened[1].folder


def test_what_lies_elsewhere_is_refused(store, tmp_path):
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
    with pytest.raises(InputError, match="is not empty, but no pull was begun there"):
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


def test_a_damaged_shard_never_gets_its_name(store, cache):
    remote.push(store.location, "memory://bucket/store")
    there = fsspec.filesystem("memory")
    name = next(path for path in there.find("/bucket/store") if ".tokens." in path)
    content = there.cat_file(name)
    there.pipe_file(name, content[:-2] + b"??")
    with pytest.raises(StoreError, match=rf"{os.path.basename(name)}: is not what was written \(its sha256 differs\)"):
        TokenStore("memory://bucket/store")
    there.rm_file(name)
    with pytest.raises(StoreError, match=f"{os.path.basename(name)}: is missing"):
        TokenStore("memory://bucket/store")
    left = files(cache / remote._cache_name(store.manifest))
    assert not {os.path.basename(name), "manifest.json"} & {*left} and not [path for path in left if ".tmp-" in path]
    there.pipe_file(name, content[:-2])
    with pytest.raises(StoreError, match=f"{os.path.basename(name)}: has .* bytes, but .* by the manifest"):
        TokenStore("memory://bucket/store")
    there.pipe_file(name, content)
    opened = TokenStore("memory://bucket/store")
    opened.verify()
    shard = Path(opened.folder) / os.path.basename(name)
    shard.write_bytes(content[:-2])
    with pytest.raises(StoreError, match=r"has .* bytes, but .* by the manifest. Fix: delete .*, which is"):
        TokenStore("memory://bucket/store")


@pytest.mark.parametrize("how", ["too small", "filled meanwhile"])
def test_a_disk_without_room_is_named_and_the_rest_comes_later(how, store, tmp_path, cache, monkeypatch):
    remote.push(store.location, "memory://bucket/store")
    folder, whole = cache / remote._cache_name(store.manifest), sum(record["bytes"] for _, record in store._files())
    tokens, bring = store._path(store.shards[0], "tokens"), folders.Folder.download
    with monkeypatch.context() as patch:
        if how == "too small":
            patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=whole - 1, total=whole, used=1))
            said = f"{folder}: has .* free, but memory://bucket/store needs .*"
        else:
            file_system = type(folders.Folder("memory://bucket/store")._files)

            def get_file(self, name, to, get=file_system.get_file, **more):
                if name.endswith(os.path.basename(tokens)):
                    raise OSError(28, "No space left on device")
                get(self, name, to, **more)

            patch.setattr(file_system, "get_file", get_file)
            said = f"{folder}/{os.path.basename(tokens)}: cannot be written: No space left on device"
        with pytest.raises(MaskwrightError, match=f"{said}. Fix: set MASKWRIGHT_CACHE to a folder on a larger disk"):
            TokenStore("memory://bucket/store")
        with pytest.raises(MaskwrightError, match="Fix: pull it to a larger disk"):
            remote.pull("memory://bucket/store", str(tmp_path / "pulled"))
    here, fetched = {*files(folder)}, list[str]()
    assert bool(here) is (how == "filled meanwhile") and not [name for name in here if ".tmp-" in name]

    def download(self, name, to):
        fetched.append(name)
        bring(self, name, to)

    monkeypatch.setattr(folders.Folder, "download", download)
    TokenStore("memory://bucket/store").verify()
    shard_files = {os.path.basename(path) for path, _ in store._files()}
    assert {*fetched} & shard_files == shard_files - here, "what is there already stays"


def test_processes_that_ask_at_once_bring_each_file_once(store, cache):
    """file:// is the one address that several processes share here."""
    code = (
        "import sys; from maskwright.data import remote, store; bring = remote._download\n"
        "def fetch(*a): sys.stdout.write(a[1] + '\\n'); bring(*a)\n"
        "remote._download = fetch; store.TokenStore(sys.argv[1]).verify()"
    )
    command = [sys.executable, "-c", code, f"file://{store.location}"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    fetched = [line for process in started for line in process.communicate(timeout=240)[0].splitlines()]
    assert [process.returncode for process in started] == [0] * 3
    assert len(fetched) == len({*fetched}) == len([name for name in files(store.location) if name != "manifest.json"])


def test_cloud_storage_that_fails_now_and_then(gcs, store):
    gcs.fault(".*", 503)
    remote.push(store.location, "gs://bucket/stores/one")
    gcs.fault(".*", 429)
    opened = TokenStore("gs://bucket/stores/one")
    opened.verify()
    assert all(files(opened.folder)[name] == content for name, content in files(store.location).items() if "." in name)
    gcs.arrives = lambda name, content: content[:-1]
    with pytest.raises(MaskwrightError, match=r"arrived with [\d,]+ of [\d,]+ bytes"):
        remote.push(store.location, "gs://bucket/stores/two")
    assert "stores/two/manifest.json" not in gcs.files("bucket")


def test_s3(store, monkeypatch):
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


def archive(path, members):
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


def test_archives_are_unpacked_safely(tmp_path, monkeypatch):
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


def test_an_archive_that_is_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "SHARE_OF_DISK", 1e-12)
    location = archive(tmp_path / "bomb.tar.gz", {"zeros": b"\0" * 10_000_000})
    with pytest.raises(InputError, match="unpacks to more than"):
        remote.pull(location, str(tmp_path / "out"))
    assert not list(tmp_path.glob("out*"))
