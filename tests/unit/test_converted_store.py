"""Arrow files that are trained on: converted once into the cache, anew for other files, and read as pyarrow reads them.

`tests/faults/test_pregenerated.py` has the same for pregenerated epochs: one function opens both."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from arrow_files import Documents, shards, write_arrow
from pyarrow import ipc
from reference.stored import documents_of

from maskwright.config.data import Arrow
from maskwright.core import storage
from maskwright.core.errors import InputError, MaskwrightError, StoreError
from maskwright.data import converted_store
from maskwright.data.convert import ForeignFiles
from maskwright.data.converted_store import open_arrow
from maskwright.data.foreign import columns
from maskwright.data.foreign.columns import arrow_parts, grouped
from maskwright.data.store import TokenStore


@pytest.fixture(scope="module")
def documents(store: TokenStore) -> Documents:
    return documents_of(store.split("train"))[:90]


@pytest.fixture
def folder(documents: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    shards(tmp_path / "shards", documents)
    return tmp_path / "shards"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are converted into from here on."""
    made: list[str] = []

    def counted(conversion: Any, convert: Any = converted_store.convert) -> TokenStore:
        made.append(conversion.writer.folder)
        return convert(conversion)  # type: ignore[no-any-return]

    monkeypatch.setattr(converted_store, "convert", counted)
    return made


def opened(folder: Path, tokenizer: str, **keys: Any) -> TokenStore:
    return open_arrow(str(folder), Arrow(**{"tokenizer": tokenizer, "token_offset": 200, "valid_fraction": 0.2} | keys))


def test_a_later_start_converts_nothing_and_a_change_converts_anew(
    folder: Path, documents: Documents, tokenizer: str, conversions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(folder, tokenizer)
    monkeypatch.chdir(folder.parent)
    again = open_arrow("shards", Arrow(tokenizer=tokenizer, token_offset=200, valid_fraction=0.2))
    assert again.fingerprint == first.fingerprint and again.origin("train", 3) == first.origin("train", 3)
    assert conversions == [first.folder] and first.location == str(folder)
    changes: list[dict[str, Any]] = [{"valid_fraction": 0.3}, {"token_offset": 199}, {"special_tokens": "strip"}]
    for options in [*changes, {"column": "tokens"}]:
        opened(folder, tokenizer, **options)
    assert len({*conversions}) == len(conversions) == 5
    write_arrow(folder / "news" / "a.arrow", documents[50:71], lists=True, stream=True, offset=200)
    second = opened(folder, tokenizer)
    assert second.fingerprint != first.fingerprint and len(conversions) == 6
    assert sum(split["documents"] for split in second.manifest["splits"].values()) == len(documents) + 1
    shutil.rmtree(folder.parent / "cache")
    assert opened(folder, tokenizer).fingerprint == second.fingerprint and len(conversions) == 7


def test_a_folder_of_held_out_text_is_held_out_in_full(documents: Documents, tokenizer: str, tmp_path: Path) -> None:
    """Also where files are named for training and others to be held out."""
    for name, some in {"train": documents[:60], "valid": documents[60:]}.items():
        write_arrow(tmp_path / "both" / name / "a.arrow", some, lists=True, stream=False)
    keys = Arrow(tokenizer=tokenizer, valid_fraction=0.3)
    apart = open_arrow(str(tmp_path / "both"), keys)
    assert [apart.split(side).documents for side in ("train", "valid")] == [60, len(documents) - 60]  # type: ignore[arg-type]
    whole = open_arrow(str(tmp_path / "both"), keys, all_held_out=True)
    assert [whole.split(side).documents for side in ("train", "valid")] == [0, len(documents)]  # type: ignore[arg-type]


def test_a_file_that_changes_while_it_is_read_is_refused(
    folder: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touched(self: ForeignFiles, number: int, check: Any = ForeignFiles.require_unchanged) -> None:
        os.utime(self.source.files[number])
        check(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(ForeignFiles, "require_unchanged", touched)
        with pytest.raises(StoreError, match=r"books/a\.arrow: was changed while it was read"):
            opened(folder, tokenizer)
    assert not [*(folder.parent / "cache" / "converted").glob("*")]


def test_a_cache_that_cannot_be_written_is_one_line(
    folder: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "cache").write_text("a file")
    with pytest.raises(InputError, match="MASKWRIGHT_CACHE"):
        opened(folder, tokenizer)
    (folder.parent / "cache").unlink()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "sync_folder", full)
    with pytest.raises(MaskwrightError, match=r"No space left on device.*MASKWRIGHT_CACHE.*data convert"):
        opened(folder, tokenizer)


# ---- as pyarrow reads them -------------------------------------------------------------------------------------------

KINDS = {
    "plain": arrow.uint16(),
    "wide": arrow.int64(),
    "list": arrow.list_(arrow.int32()),
    "large list": arrow.large_list(arrow.uint16()),
    "fixed list": arrow.list_(arrow.uint32(), 5),
}


def written(path: Path, kind: Any, stream: bool, beside: bool) -> None:
    """Batches of many sizes, with another column or alone."""
    generator = np.random.default_rng(0)
    is_plain = arrow.types.is_integer(kind)
    fields = [("text", arrow.string())] * beside + [("ids", kind)]
    with (ipc.new_stream if stream else ipc.new_file)(str(path), arrow.schema(fields)) as writer:
        for rows in (3, 0, 1, 40, 7, *[2] * 70):
            if is_plain:
                ids = arrow.array(generator.integers(0, 9_000, rows), kind)
            else:
                lengths = [5] * rows if arrow.types.is_fixed_size_list(kind) else generator.integers(0, 30, rows)
                ids = arrow.array([generator.integers(0, 9_000, length).tolist() for length in lengths], kind)
            writer.write_batch(arrow.record_batch([["x"] * rows] * beside + [ids], schema=arrow.schema(fields)))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block_tokens", [20, 1 << 22])
def test_documents_are_those_of_pyarrow(
    kind: str, beside: bool, stream: bool, block_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "BLOCK_TOKENS", block_tokens)
    path = tmp_path / "a.arrow"
    written(path, KINDS[kind], stream, beside)
    with arrow.memory_map(str(path)) as source:
        batches = [*ipc.open_stream(source)] if stream else ipc.open_file(source).read_all().to_batches()
    listed = [batch.column("ids").to_pylist() for batch in batches]
    expected = listed if kind in ("plain", "wide") else [document for batch in listed for document in batch]
    found: list[list[int]] = []
    for block in grouped(arrow_parts(str(path), None), 0):
        assert block.first == len(found)
        ends = np.cumsum(block.sizes).tolist()
        found += [block.ids[begin:end].tolist() for begin, end in zip([0, *ends], ends, strict=False)]
        if kind in ("plain", "wide") and block_tokens == 20:
            assert len(block.ids) <= 20 or len(block.sizes) == 1
    assert found == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["plain", "list"])
def test_no_cut_is_taken_for_a_whole_file(kind: str, stream: bool, tmp_path: Path) -> None:
    path, schema = tmp_path / "a.arrow", arrow.schema([("ids", KINDS[kind])])
    with (ipc.new_stream if stream else ipc.new_file)(str(path), schema) as writer:
        for rows in (3, 0, 6):
            # 65,535 twice and padding look like the marker behind the last message.
            ids = [[65_535] * (rows % 5)] * rows if kind == "list" else [65_535] * rows
            writer.write_batch(arrow.record_batch([arrow.array(ids, KINDS[kind])], schema=schema))
    content = path.read_bytes()
    assert sum(len(sizes) for _, sizes in arrow_parts(str(path), None)) == (9 if kind == "list" else 3)
    for end in range(0, len(content), 1 if stream else 11):
        path.write_bytes(content[:end])
        with pytest.raises(StoreError):
            [*arrow_parts(str(path), None)]


@pytest.mark.parametrize("name", ["books/a.arrow", "books/b.arrow", "news/a.arrow", "news/b.arrow"])
def test_a_damaged_file_is_refused_or_read_to_its_end(name: str, folder: Path) -> None:
    path = folder / name
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(300):
        damaged = np.frombuffer(content, np.uint8).copy()
        damaged[generator.integers(0, len(damaged), 5)] = generator.integers(0, 256, 5)
        path.write_bytes(damaged.tobytes())
        try:
            parts = [*arrow_parts(str(path), None)]
        except StoreError as error:
            assert "\n" not in str(error)
            continue
        for ids, sizes in parts:
            assert len(ids) == sizes.sum() and (sizes >= 0).all()
