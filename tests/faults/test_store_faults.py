"""A token store that is not what was written: what a run refuses before it uses a single id of it, and what only
`data verify`, which reads every byte, can see."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import Cli, ConfigFile
from runners import files_of

from maskwright.core import storage
from maskwright.data import manifest as manifests
from maskwright.data.store import TokenStore

TOKENS, DOCUMENTS = "train-00000.tokens.u16", "train-00000.documents.u64"
SECOND = "train-00001.tokens.u16"


@pytest.fixture
def copy(store: TokenStore, tmp_path: Path) -> Path:
    shutil.copytree(store.location, tmp_path / "store")
    return tmp_path / "store"


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def sign(folder: Path) -> None:
    """Makes the manifest agree with the files, as a faulty writer would have: counts, sizes, hashes, fingerprint."""

    def change(manifest: dict[str, Any]) -> None:
        for shard in manifest["shards"]:
            for role, file in shard["files"].items():
                found = storage.digest(str(folder / file["name"]))
                file |= {"bytes": found.bytes, "sha256": found.sha256, "crc32": found.crc32}
                shard[role] = found.bytes // (2 if role == "tokens" else 8)
        for split, totals in manifest["splits"].items():
            for name in totals:
                totals[name] = sum(shard[name] for shard in manifest["shards"] if shard["split"] == split)
        manifest["fingerprint"] = manifests.fingerprint(
            manifest["dtype"], manifest["tokenizer"]["fingerprint"], manifest["shards"]
        )

    edit(folder, change)


def exchange(folder: Path, one: str, other: str) -> None:
    os.rename(folder / one, folder / "aside")
    os.rename(folder / other, folder / one)
    os.rename(folder / "aside", folder / other)


def put(path: Path, place: int, value: int, kind: str = "<u2") -> None:
    content = np.fromfile(path, kind)
    content[place] = value
    content.tofile(path)


# ---- files ---------------------------------------------------------------------------------------------------------


def cut(folder: Path) -> str:
    path = folder / DOCUMENTS
    path.write_bytes(path.read_bytes()[:-8])
    return f"{DOCUMENTS}: has "


def longer(folder: Path) -> str:
    path = folder / TOKENS
    path.write_bytes(path.read_bytes() + b"\0\0")
    return f"{TOKENS}: has "


def missing(folder: Path) -> str:
    (folder / SECOND).unlink()
    return f"{SECOND}: is missing"


def link_that_loops(folder: Path) -> str:
    (folder / SECOND).unlink()
    (folder / SECOND).symlink_to(SECOND)
    return f"{SECOND}: is missing"


def folder_in_its_place(folder: Path) -> str:
    (folder / SECOND).unlink()
    (folder / SECOND).mkdir()
    return f"{SECOND}: is missing"


def pipe_in_its_place(folder: Path) -> str:
    (folder / SECOND).unlink()
    os.mkfifo(folder / SECOND)
    return f"{SECOND}: is missing"


def exchanged_files(folder: Path) -> str:
    exchange(folder, TOKENS, SECOND)
    return "bytes, the manifest says"


def flipped_end(folder: Path) -> str:
    put(folder / DOCUMENTS, 3, 1 + int(np.fromfile(folder / DOCUMENTS, "<u8")[3]), "<u8")
    return f"{DOCUMENTS}: "


def falling_ends(folder: Path) -> str:
    put(folder / DOCUMENTS, 3, 0, "<u8")
    sign(folder)
    return f"{DOCUMENTS}: does not rise to the end of its"


def ends_beyond_the_tokens(folder: Path) -> str:
    put(folder / DOCUMENTS, -1, 2**63 + 5, "<u8")
    sign(folder)
    return f"{DOCUMENTS}: does not rise to the end of its"


def falling_sentence_ends(folder: Path) -> str:
    put(folder / "train-00000.sentences.u64", 3, 0, "<u8")
    sign(folder)
    return "train-00000.sentences.u64: does not rise to the end of its"


def empty_shard(folder: Path) -> str:
    for role in ("tokens.u16", "documents.u64", "sentences.u64", "origins.u64"):
        (folder / f"train-00001.{role}").write_bytes(b"")
    sign(folder)
    return "shards.1.tokens: Input should be greater than or equal to 1, not 0"


def store_of_one_more_token_than_the_vocabulary(folder: Path) -> str:
    path = folder / TOKENS
    np.full(os.path.getsize(path) // 2, 400, "<u2").tofile(path)
    return f"{folder}: holds id 400, the tokenizer ends at 399"


@pytest.mark.parametrize(
    "spoil",
    [
        *(cut, longer, missing, link_that_loops, folder_in_its_place, pipe_in_its_place, exchanged_files),
        *(flipped_end, falling_ends, ends_beyond_the_tokens, empty_shard),
    ],
)
def test_damaged_files_are_refused_before_a_run_begins(
    spoil: Callable[[Path], str], cli: Cli, copy: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    words = spoil(copy)
    for command in (
        ("pretrain", config_file(data={"store": str(copy)}), "--run", tmp_path / "out"),
        ("data", "verify", copy),
    ):
        result = cli(*command)
        assert (result.code, words in result.error) == (2, True), result.err
    assert not (tmp_path / "out").exists()


def test_damaged_sentences_are_refused_where_they_are_used(
    cli: Cli, copy: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    words = falling_sentence_ends(copy)
    changed = config_file(data={"store": str(copy), "packing": "full_sentences"})
    for command in (("pretrain", changed, "--run", tmp_path / "out"), ("data", "verify", copy)):
        result = cli(*command)
        assert (result.code, words in result.error) == (2, True), result.err


def test_an_id_beyond_the_vocabulary_is_never_used(
    cli: Cli, copy: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    """400 lies inside the padded embedding, so nothing else would stop it. Only a first start reads the whole store."""
    whole = config_file(data={"store": str(copy)}, checkpoint={"save_every_steps": 1}, schedule={"steps": 30})
    assert cli("pretrain", whole, "--run", tmp_path / "out", "--stop-after-steps", 1).code == 76
    words = store_of_one_more_token_than_the_vocabulary(copy)
    result = cli("pretrain", whole, "--run", tmp_path / "out")
    assert (result.code, words in result.error) == (2, True), result.err
    assert "maskwright data verify" in result.error
    status = json.loads((tmp_path / "out" / "status.json").read_text())
    assert (status["phase"], status["exit"]) == ("failed", 2)
    assert "Traceback" not in result.err
    sign(copy)
    result = cli("data", "verify", copy)
    assert (result.code, f"{TOKENS}: holds id 400" in result.error) == (2, True), result.err


def test_a_run_goes_on_once_its_damaged_store_is_put_back(
    cli: Cli, copy: Path, store: TokenStore, config_file: ConfigFile, tmp_path: Path
) -> None:
    for name in (path.name for path in copy.glob("train-*.tokens.u16")):
        np.full(os.path.getsize(copy / name) // 2, 65535, "<u2").tofile(copy / name)
    begun = config_file(data={"store": str(copy)})
    assert cli("pretrain", begun, "--run", tmp_path / "out").code == 2
    shutil.copytree(store.location, copy, dirs_exist_ok=True)
    assert cli("pretrain", begun, "--run", tmp_path / "out").code == 0


def test_wide_ids_that_look_negative_are_refused(store: TokenStore) -> None:
    from maskwright.data.rows import open_rows

    rows = open_rows(store, "train", 32, "documents")
    wide = np.full(rows.split.shards[0].tokens, 2**31 + 7, np.uint32)
    rows.split.shards = (replace(rows.split.shards[0], ids=lambda: wide), *rows.split.shards[1:])
    with pytest.raises(manifests.StoreError, match=r"holds id 2147483655"):
        rows.materialize(np.arange(rows.totals.rows))


def test_what_only_reading_every_byte_can_see(cli: Cli, copy: Path) -> None:
    """Another id, and two files of one size under each other's names: sizes and structure are right."""
    was = int(np.fromfile(copy / TOKENS, "<u2")[5])
    put(copy / TOKENS, 5, 300 if was != 300 else 301)
    result = cli("data", "verify", copy)
    assert (result.code, f"{TOKENS}: is not what was written" in result.error) == (2, True), result.err
    for role in ("tokens.u16", "documents.u64", "sentences.u64", "origins.u64"):
        shutil.copy(copy / f"train-00000.{role}", copy / f"train-00001.{role}")
    put(copy / SECOND, 5, was)
    sign(copy)
    assert cli("data", "verify", copy).code == 0
    exchange(copy, TOKENS, SECOND)
    result = cli("data", "verify", copy)
    assert (result.code, f"{TOKENS}: is not what was written" in result.error) == (2, True), result.err


def test_files_that_the_manifest_does_not_name_are_named_and_never_read(
    cli: Cli, copy: Path, store: TokenStore
) -> None:
    shutil.copy(copy / TOKENS, copy / "train-00077.tokens.u16")
    result = cli("data", "verify", copy)
    assert result.code == 0
    assert "warning: " in result.err and "train-00077.tokens.u16" in result.err
    assert TokenStore(str(copy)).fingerprint == store.fingerprint


def test_shards_may_be_links(cli: Cli, copy: Path, tmp_path: Path) -> None:
    """Hub caches and larger disks are made of them; the manifest's hashes say what must be behind one."""
    shutil.move(copy / TOKENS, tmp_path / "elsewhere")
    (copy / TOKENS).symlink_to(tmp_path / "elsewhere")
    assert cli("data", "verify", copy).code == 0


# ---- the manifest --------------------------------------------------------------------------------------------------


def set_in(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: Any) -> None:
        for part in path[:-1]:
            manifest = manifest[part]
        manifest[path[-1]] = value

    return change


def file_of(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    return set_in("shards", 0, "files", *path, value=value)


CHANGED = "was changed after it was written"
NAMES = ["../x", "/etc/hostname", "a/b", "", ".", "..", "train-00000.tokens.u16\n", "train-00000.tokens.u32", None, 7]
EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "reordered": (lambda m: m["shards"].reverse(), CHANGED),
    "shard left out": (lambda m: m["shards"].pop(0), "splits."),
    "no shard": (set_in("shards", value=[]), "shards: "),
    "shards is null": (set_in("shards", value=None), "shards: "),
    "shard is a list": (set_in("shards", 0, value=[]), "shards.0: "),
    "listed twice": (lambda m: m["shards"].append(m["shards"][0]), "is listed twice"),
    "other split": (set_in("shards", 0, "split", value="test"), "shards.0.split: "),
    "moved to the other side": (set_in("shards", 0, "split", value="valid"), "of a valid shard"),
    "hash": (file_of("tokens", "sha256", value="0" * 64), CHANGED),
    "hash that is none": (file_of("tokens", "sha256", value="abc"), "sha256: "),
    "hash is null": (file_of("documents", "sha256", value=None), "sha256: "),
    "crc": (file_of("documents", "crc32", value=7), "crc32 differs"),
    "bytes": (file_of("tokens", "bytes", value=10), "is recorded with 10 bytes"),
    "negative bytes": (file_of("tokens", "bytes", value=-2), "bytes: "),
    "bytes are a word": (file_of("tokens", "bytes", value="many"), "bytes: "),
    "bytes are a fraction": (file_of("tokens", "bytes", value=1e300), "bytes: "),
    "tokens": (set_in("shards", 0, "tokens", value=5), "for 5 tokens"),
    "huge": (set_in("shards", 0, "tokens", value=10**300), "tokens: "),
    "true": (set_in("shards", 0, "documents", value=True), "documents: "),
    "no documents": (lambda m: m["shards"][0]["files"].pop("documents"), "lacks the file of its tokens, documents"),
    "strange role": (lambda m: m["shards"][0]["files"].update(x=1), "files.x"),
    "totals": (set_in("splits", "train", "tokens", value=5), "splits.train.tokens is 5, its shards have"),
    "totals are null": (set_in("splits", value=None), "splits: "),
    "dtype": (set_in("dtype", value="float64"), "dtype: "),
    "other dtype": (set_in("dtype", value="uint32"), "is not a name for the tokens"),
    "dtype is a list": (set_in("dtype", value=["uint16"]), "dtype: "),
    "newer format": (set_in("format", value=3), "has format 3, this version reads 2"),
    "format is a word": (set_in("format", value="x" * 1000), "has format xxxxxxxxxxxxxxxxxxxx, this"),
    "tokenizer is null": (set_in("tokenizer", value=None), "tokenizer: "),
    "other tokenizer": (set_in("tokenizer", "fingerprint", value="0" * 64), CHANGED),
    "fingerprint": (set_in("fingerprint", value="0" * 64), CHANGED),
    "no fingerprint": (lambda m: m.pop("fingerprint"), "fingerprint: "),
} | {f"name {name!r}": (file_of("tokens", "name", value=name), "name") for name in NAMES}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_manifest_is_refused(
    name: str, cli: Cli, copy: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    change, words = EDITS[name]
    edit(copy, change)
    before = files_of(copy)
    for command in (
        ("pretrain", config_file(data={"store": str(copy)}), "--run", tmp_path / "out"),
        ("data", "verify", copy),
    ):
        result = cli(*command)
        assert (result.code, words in result.error) == (2, True), result.err
        assert str(copy) in result.error
        assert len(result.error) < 600
    assert files_of(copy) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", "7", '"text"', "{}", '{"format": 2}', "\0"),
        "[" * 100_000,
        '{"format": ' + "1" * 5000 + "}",
    ],
    ids=lambda content: content[:12],
)
def test_a_manifest_that_is_something_else_is_refused(
    content: str, cli: Cli, copy: Path, corpus: Path, tokenizer: str
) -> None:
    (copy / "manifest.json").write_text(content)
    before = files_of(copy)
    for command in (
        ("data", "verify", copy),
        ("data", "inspect", copy),
        ("data", "prepare", corpus, "--tokenizer", tokenizer, "--to", copy),
    ):
        result = cli(*command)
        assert (result.code, "manifest.json" in result.error) == (2, True), result.err
    assert files_of(copy) == before


# ---- between two starts --------------------------------------------------------------------------------------------


def test_a_store_that_changed_between_two_starts_is_refused(
    cli: Cli, copy: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    used = config_file(data={"store": str(copy)})
    assert cli("pretrain", used, "--run", tmp_path / "out", "--stop-after-steps", 1).code == 76
    put(copy / TOKENS, 5, 300)
    put(copy / TOKENS, 6, 301)
    sign(copy)
    before = files_of(tmp_path / "out")
    result = cli("pretrain", used, "--run", tmp_path / "out")
    assert (result.code, "the run was started with another token store" in result.error) == (2, True), result.err
    assert files_of(tmp_path / "out") == before


def test_a_url_without_a_store_is_named(
    cli: Cli, config_file: ConfigFile, corpus: Path, tokenizer: str, tmp_path: Path
) -> None:
    result = cli("pretrain", config_file(data={"store": "memory://bucket/store"}), "--run", tmp_path / "out")
    assert (result.code, "memory://bucket/store: is not a token store: it has no" in result.error) == (2, True)
    epochs = config_file(data={"store": "memory://bucket/epochs", "format": "pregenerated"})
    result = cli("pretrain", epochs, "--run", tmp_path / "out")
    assert "must be a local folder, since it holds pregenerated epochs. Fix: where the epochs lie: `ma" in result.error
    result = cli("data", "prepare", corpus, "--tokenizer", tokenizer, "--to", "gs://b/s")
    assert (result.code, "gs://b/s: must be a local folder. Fix: give" in result.error) == (2, True)
