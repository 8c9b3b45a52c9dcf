"""A token store that is not what was written: what a run refuses before it uses a single id of it, and what only
`data verify`, which reads every byte, can see."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawn import cases
from hypothesis import assume, given
from hypothesis import strategies as st
from runners import files_of

from maskwright.core import storage
from maskwright.core.errors import StoreError
from maskwright.data import manifest as manifests
from maskwright.data.store import TokenStore

TOKENS, DOCUMENTS = "train-00000.tokens.u16", "train-00000.documents.u64"
SECOND = "train-00001.tokens.u16"


@pytest.fixture
def copy(store, tmp_path):
    shutil.copytree(store.location, tmp_path / "store")
    return tmp_path / "store"


def edit(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def sign(folder):
    """Makes the manifest agree with the files, as a faulty writer would have: counts, sizes, hashes, fingerprint."""

    def change(manifest):
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


def exchange(folder, one, other):
    os.rename(folder / one, folder / "aside")
    os.rename(folder / other, folder / one)
    os.rename(folder / "aside", folder / other)


def put(path, place, value, kind="<u2"):
    content = np.fromfile(path, kind)
    content[place] = value
    content.tofile(path)


# ---- files ---------------------------------------------------------------------------------------------------------


def in_place_of_a_shard(make):
    return lambda folder: ((folder / SECOND).unlink(), make(folder / SECOND))


def numbers(name, place, value, *, signed=True):
    """Another number among the ends of a shard, which a faulty writer would have signed."""
    return lambda folder: (put(folder / name, place, value, "<u8"), signed and sign(folder))


def empty_shard(folder):
    for role in ("tokens.u16", "documents.u64", "sentences.u64", "origins.u64"):
        (folder / f"train-00001.{role}").write_bytes(b"")
    sign(folder)


FALLS, MISSING = "does not rise to the end of its", f"{SECOND}: is missing"
DAMAGES = {
    "cut": (lambda folder: os.truncate(folder / DOCUMENTS, 64), f"{DOCUMENTS}: has "),
    "longer": (lambda folder: os.truncate(folder / TOKENS, 1 << 20), f"{TOKENS}: has "),
    "missing": (lambda folder: (folder / SECOND).unlink(), MISSING),
    "a link that loops": (in_place_of_a_shard(lambda path: path.symlink_to(SECOND)), MISSING),
    "a folder": (in_place_of_a_shard(Path.mkdir), MISSING),
    "a pipe": (in_place_of_a_shard(os.mkfifo), MISSING),
    "exchanged": (lambda folder: exchange(folder, TOKENS, SECOND), " by the manifest"),
    "another id": (lambda folder: put(folder / TOKENS, 10, 390), f"{TOKENS}: is not what was written"),
    "another end": (numbers(DOCUMENTS, 3, 7, signed=False), f"{DOCUMENTS}: "),
    "ends that fall": (numbers(DOCUMENTS, 3, 0), f"{DOCUMENTS}: {FALLS}"),
    "ends beyond the tokens": (numbers(DOCUMENTS, -1, 2**63 + 5), f"{DOCUMENTS}: {FALLS}"),
    "sentences that fall": (numbers("train-00000.sentences.u64", 3, 0), f"train-00000.sentences.u64: {FALLS}"),
    "an empty shard": (empty_shard, "shards.1.tokens: Input should be greater than or equal to 1, not 0"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files_are_refused_before_a_run_begins(name, cli, copy, config_file, tmp_path):
    spoil, words = DAMAGES[name]
    spoil(copy)
    data = {"store": str(copy), "packing": "full_sentences" if "sentences" in words else "documents"}
    for command in (("pretrain", config_file(data=data), "--run", tmp_path / "out"), ("data", "verify", copy)):
        result = cli(*command)
        assert (result.code, words in result.error) == (2, True), result.err
    assert "sentences" in words or not (tmp_path / "out").exists()


def test_an_id_beyond_the_vocabulary_is_never_used(cli, copy, config_file, tmp_path):
    """400 lies inside the padded embedding, so nothing else would stop it. Only a first start reads the whole store."""
    whole = config_file(data={"store": str(copy)}, checkpoint={"save_every_steps": 1}, schedule={"steps": 30})
    assert cli("pretrain", whole, "--run", tmp_path / "out", "--stop-after-steps", 1).code == 76
    np.full(os.path.getsize(copy / TOKENS) // 2, 400, "<u2").tofile(copy / TOKENS)
    words = f"{copy}: holds id 400, but the tokenizer ends at 399"
    result = cli("pretrain", whole, "--run", tmp_path / "out")
    assert (result.code, words in result.error) == (2, True), result.err
    assert "maskwright data verify" in result.error
    status = json.loads((tmp_path / "out" / "status.json").read_text())
    assert (status["phase"], status["exit"]) == ("failed", 2)
    assert "Traceback" not in result.err
    sign(copy)
    result = cli("data", "verify", copy)
    assert (result.code, f"{TOKENS}: holds id 400" in result.error) == (2, True), result.err


def test_wide_ids_that_look_negative_are_refused(store):
    from maskwright.data.rows import open_rows

    rows = open_rows(store, "train", 32, "documents")
    wide = np.full(rows.split.shards[0].tokens, 2**31 + 7, np.uint32)
    rows.split.shards = (replace(rows.split.shards[0], ids=lambda: wide), *rows.split.shards[1:])
    with pytest.raises(StoreError, match=r"holds id 2147483655"):
        rows.materialize(np.arange(rows.totals.rows))


def test_files_that_the_manifest_does_not_name_are_named_and_never_read(cli, copy, store):
    shutil.copy(copy / TOKENS, copy / "train-00077.tokens.u16")
    result = cli("data", "verify", copy)
    assert result.code == 0
    assert "warning: " in result.err and "train-00077.tokens.u16" in result.err
    assert TokenStore(str(copy)).fingerprint == store.fingerprint


# ---- the manifest --------------------------------------------------------------------------------------------------


ODD = (None, [], {}, True, -2, 7, 10**300, 1e300, "", "x" * 1000, "../x", "/etc/hostname", "0" * 64, "uint32", "valid")
DECIDE = ("format", "dtype", "fingerprint", "shards", "splits")
"""Keys of a manifest on which ids depend; and the tokenizer's fingerprint."""


def places(value, *above):
    """The path to each value inside another."""
    for name, inside in [*value.items()] if isinstance(value, dict) else [*enumerate(value)]:
        yield (*above, name)
        if isinstance(inside, dict | list):
            yield from places(inside, *above, name)


@given(data=st.data(), value=st.sampled_from([*ODD, "taken away"]))
@cases(150)
def test_an_edited_manifest_is_refused(data, value, store, tmp_path):
    """Whatever of it that decides: any value in place of any other, and any that is gone."""
    folder = tmp_path / "store"
    if not folder.exists():
        shutil.copytree(store.location, folder)
    manifest = json.loads(Path(store.location, "manifest.json").read_text())
    *path, last = data.draw(st.sampled_from([place for place in places(manifest) if decides(place)]))
    inside = manifest
    for name in path:
        inside = inside[name]
    assume(value != inside[last] or value is True)
    if value == "taken away":
        del inside[last]
    else:
        inside[last] = value
    (folder / "manifest.json").write_text(json.dumps(manifest))
    before = files_of(folder)
    with pytest.raises(StoreError) as caught:
        TokenStore(str(folder)).verify()
    assert str(folder) in str(caught.value) and len(str(caught.value)) < 600 and "\n" not in str(caught.value)
    assert files_of(folder) == before


def decides(place):
    return place[0] in DECIDE or place == ("tokenizer",) or place == ("tokenizer", "fingerprint")


EDITS = {
    "reordered": (lambda m: m["shards"].reverse(), "was changed after it was written"),
    "shard left out": (lambda m: m["shards"].pop(0), "splits."),
    "a side left out": (lambda m: m["splits"].pop("train"), "splits.train is missing"),
    "listed twice": (lambda m: m["shards"].append(m["shards"][0]), "is listed twice"),
    "moved to the other side": (lambda m: m["shards"][0].update(split="valid"), "of a valid shard"),
    "strange role": (lambda m: m["shards"][0]["files"].update(x=1), "files.x"),
    "newer format": (lambda m: m.update(format=3), "has format 3, not this version"),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_manifest_is_named_for_what_it_is(name, cli, copy, config_file, tmp_path):
    change, words = EDITS[name]
    edit(copy, change)
    for command in (
        ("pretrain", config_file(data={"store": str(copy)}), "--run", tmp_path / "out"),
        ("data", "verify", copy),
    ):
        result = cli(*command)
        assert (result.code, words in result.error, str(copy) in result.error) == (2, True, True), result.err
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
def test_a_manifest_that_is_something_else_is_refused(content, cli, copy, corpus, tokenizer):
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


def test_a_store_that_changed_between_two_starts_is_refused(cli, copy, config_file, tmp_path):
    used = config_file(data={"store": str(copy)})
    assert cli("pretrain", used, "--run", tmp_path / "out", "--stop-after-steps", 1).code == 76
    put(copy / TOKENS, 5, 300)
    put(copy / TOKENS, 6, 301)
    sign(copy)
    before = files_of(tmp_path / "out")
    result = cli("pretrain", used, "--run", tmp_path / "out")
    assert (result.code, "the run was started with another token store" in result.error) == (2, True), result.err
    assert files_of(tmp_path / "out") == before


def test_a_url_without_a_store_is_named(cli, config_file, corpus, tokenizer, tmp_path):
    result = cli("pretrain", config_file(data={"store": "memory://bucket/store"}), "--run", tmp_path / "out")
    assert (result.code, "memory://bucket/store: is not a token store: it has no" in result.error) == (2, True)
    epochs = config_file(data={"store": "memory://bucket/epochs", "format": "pregenerated"})
    result = cli("pretrain", epochs, "--run", tmp_path / "out")
    assert "must be a local folder, since it holds pregenerated epochs. Fix: there, run `ma" in result.error
    result = cli("data", "prepare", corpus, "--tokenizer", tokenizer, "--to", "gs://b/s")
    assert (result.code, "gs://b/s: must be a local folder. Fix: give" in result.error) == (2, True)
