"""The index of Arrow files that are trained on in place: made once, believed only whole, and where pyarrow says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from arrow_files import Documents, shards, write_arrow
from pyarrow import ipc
from reference.stored import documents_of, spans_of

from maskwright.config.data import Arrow
from maskwright.core import storage
from maskwright.core.errors import InputError, MaskwrightError, StoreError
from maskwright.data import arrow_index
from maskwright.data.arrow_store import ArrowStore
from maskwright.data.foreign import columns
from maskwright.data.foreign.columns import arrow_parts, grouped
from maskwright.data.rows import open_rows
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
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose ids are read from here on."""
    found: list[str] = []

    def counted(path: str, column: str | None, *, with_offsets: bool) -> Iterator[columns.ColumnPart]:
        found.append(os.path.relpath(path, Path(path).parents[1]))
        return arrow_parts(path, column, with_offsets=with_offsets)

    monkeypatch.setattr(arrow_index, "arrow_parts", counted)
    return found


def opened(folder: Path, tokenizer: str, **keys: Any) -> dict[str, Any]:
    """All that a store says of its documents, but not their ids."""
    store = ArrowStore(
        str(folder), Arrow(**{"tokenizer": tokenizer, "token_offset": 200, "valid_fraction": 0.2} | keys)
    )
    found: dict[str, Any] = {"fingerprint": store.fingerprint, "splits": store.manifest["splits"]}
    for side in ("train", "valid"):
        split = store.split(side)  # type: ignore[arg-type]
        count = split.documents
        found[f"{side} spans"] = [*spans_of(split)]
        found[f"{side} origins"] = [store.origin(side, number) for number in range(count)]  # type: ignore[arg-type]
        found[f"{side} sources"] = [
            store.source_numbers(side, number).tolist()  # type: ignore[arg-type]
            for number in range(len(split.shards))
        ]
    return found


FILES = ["books/a.arrow", "books/b.arrow", "news/a.arrow", "news/b.arrow"]


def spoil(path: Path) -> None:
    """Other bytes of the same size and time: whoever reads them fails."""
    status = path.stat()
    path.write_bytes(b"\0" * status.st_size)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_later_start_reads_no_id(folder: Path, tokenizer: str, reads: list[str]) -> None:
    first = opened(folder, tokenizer)
    assert reads == FILES
    whole = {name: (folder / name).read_bytes() for name in FILES}
    for name in FILES:
        spoil(folder / name)
    assert opened(folder, tokenizer) == first and reads == FILES
    for options in ({"valid_fraction": 0.3}, {"token_offset": 199}, {"special_tokens": "strip"}, {"column": "tokens"}):
        with pytest.raises(StoreError, match="not a whole Arrow IPC"):
            opened(folder, tokenizer, **options)
    for name, content in whole.items():
        (folder / name).write_bytes(content)
    shutil.rmtree(folder.parent / "cache")
    assert opened(folder, tokenizer) == first and reads[-4:] == FILES


def test_only_a_file_that_changed_is_read_again(
    folder: Path, documents: Documents, tokenizer: str, reads: list[str]
) -> None:
    first = opened(folder, tokenizer)
    for name in FILES:
        if name != "news/a.arrow":
            spoil(folder / name)
    write_arrow(folder / "news" / "a.arrow", documents[50:71], lists=True, stream=True, offset=200)
    reads.clear()
    second = opened(folder, tokenizer)
    assert reads == ["news/a.arrow"] and second["fingerprint"] != first["fingerprint"]
    assert sum(split["documents"] for split in second["splits"].values()) == len(documents) + 1
    os.utime(folder / "news" / "a.arrow")
    assert opened(folder, tokenizer) == second and reads == ["news/a.arrow"] * 2
    shutil.rmtree(folder.parent / "cache")
    shutil.rmtree(folder)
    shards(folder, documents)  # as if all were read anew
    write_arrow(folder / "news" / "a.arrow", documents[50:71], lists=True, stream=True, offset=200)
    assert opened(folder, tokenizer) == second


def test_the_same_documents_in_files_of_another_form_have_the_same_rows(
    documents: Documents, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fingerprint, but other places in the files, and plans of rows are kept with places."""
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    stores = []
    for name, lists in (("one", False), ("other", True)):
        write_arrow(tmp_path / name / "a.arrow", documents, lists=lists, stream=lists)
        stores.append(ArrowStore(str(tmp_path / name), Arrow(tokenizer=tokenizer, valid_fraction=0.0)))
    one, other = (open_rows(store, "train", 64, "documents") for store in stores)
    for left, right in zip(*(rows.materialize(np.arange(rows.plan.rows)) for rows in (one, other)), strict=True):
        np.testing.assert_array_equal(left, right)
    assert stores[0].fingerprint == stores[1].fingerprint


@pytest.mark.parametrize("damage", ["cut", "another one's", "a bit"])
def test_a_damaged_index_is_made_again(damage: str, folder: Path, tokenizer: str, reads: list[str]) -> None:
    first = opened(folder, tokenizer)
    made = sorted((folder.parent / "cache" / "arrow").iterdir())
    whole = [path.read_bytes() for path in made]
    assert len(made) == len(FILES) + 1 and all(path.suffix == ".columns" for path in made)
    generator = np.random.default_rng(0)
    for _ in range(8):
        for number, (path, content) in enumerate(zip(made, whole, strict=True)):
            damaged, at = bytearray(content), int(generator.integers(0, len(content)))
            if damage == "cut":
                del damaged[at:]
            elif damage == "a bit":
                damaged[at] ^= 1 << int(generator.integers(0, 8))
            path.write_bytes(whole[number - 1] if damage == "another one's" else damaged)
        reads.clear()
        assert opened(folder, tokenizer) == first
        if damage != "a bit":  # which may be one that changes no number
            assert sorted(reads) == FILES
            assert [path.read_bytes() for path in made] == whole
        assert sorted((folder.parent / "cache" / "arrow").iterdir()) == made


def test_what_a_killed_process_left_goes_when_the_index_is_made(folder: Path, tokenizer: str) -> None:
    opened(folder, tokenizer)
    cache = folder.parent / "cache" / "arrow"
    names = sorted(path.name for path in cache.iterdir())
    for name in names:
        (cache / name).rename(cache / f"{name}.tmp-123")
    opened(folder, tokenizer)
    assert sorted(path.name for path in cache.iterdir()) == names


OPEN = """
import sys
from maskwright.config.data import Arrow
from maskwright.data import arrow_index
from maskwright.data.arrow_store import ArrowStore

parts = arrow_index.arrow_parts

def counted(path, column, *, with_offsets):
    print(path)
    return parts(path, column, with_offsets=with_offsets)

arrow_index.arrow_parts = counted
arrow_index.WAIT_SECONDS = 0.01
print("ready", flush=True)
sys.stdin.readline()
print(ArrowStore(sys.argv[1], Arrow(tokenizer=sys.argv[2], token_offset=200, valid_fraction=0.2)).fingerprint)
"""


def test_processes_that_start_at_once_read_each_file_once(folder: Path, tokenizer: str) -> None:
    command = [sys.executable, "-c", OPEN, str(folder), tokenizer]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in processes:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    lines = [process.communicate(timeout=240)[0].splitlines() for process in processes]
    assert sorted(lines[0][:-1] + lines[1][:-1]) == [str(folder / name) for name in FILES]
    assert lines[0][-1] == lines[1][-1] == opened(folder, tokenizer)["fingerprint"]


def test_a_waiting_process_goes_on_when_another_gives_up(
    folder: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one's locks are held, here by this process, until its end."""
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(folder.parent / "other"))
    opened(folder, tokenizer)
    names = [path.name for path in (folder.parent / "other" / "arrow").iterdir()]
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(folder.parent / "cache"))
    cache = folder.parent / "cache" / "arrow"
    cache.mkdir(parents=True)
    held = [storage.locked(str(cache / f"{name}.lock"), remove=True) for name in names]
    for lock in held:
        lock.__enter__()

    def wait(seconds: float) -> None:
        held.pop().__exit__(None, None, None)

    monkeypatch.setattr(arrow_index.time, "sleep", wait)
    first = opened(folder, tokenizer)
    assert not held and first == opened(folder, tokenizer)


def test_a_file_that_changes_while_it_is_read_is_refused(
    folder: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touching(path: str, column: str | None, *, with_offsets: bool) -> Iterator[columns.ColumnPart]:
        yield from arrow_parts(path, column, with_offsets=with_offsets)
        os.utime(path)

    with monkeypatch.context() as patch:
        patch.setattr(arrow_index, "arrow_parts", touching)
        with pytest.raises(StoreError, match=r"books/a\.arrow: was changed while it was read"):
            opened(folder, tokenizer)
    assert not [*(folder.parent / "cache" / "arrow").glob("*")]


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
    with pytest.raises(MaskwrightError, match=r"No space left on device.*MASKWRIGHT_CACHE"):
        opened(folder, tokenizer)


# ---- where pyarrow says ----------------------------------------------------------------------------------------------

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
def test_documents_and_their_places_are_those_of_pyarrow(
    kind: str, beside: bool, stream: bool, block_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "BLOCK_TOKENS", block_tokens)
    path = tmp_path / "a.arrow"
    written(path, KINDS[kind], stream, beside)
    with arrow.memory_map(str(path)) as source:
        batches = [*ipc.open_stream(source)] if stream else ipc.open_file(source).read_all().to_batches()
    listed = [batch.column("ids").to_pylist() for batch in batches]
    expected = listed if kind in ("plain", "wide") else [document for batch in listed for document in batch]
    content, found, numbers = path.read_bytes(), [], []
    for block, places in grouped(arrow_parts(str(path), None, with_offsets=True), 0):
        ends = np.cumsum(block.sizes)
        numbers.append(block.first)
        assert numbers[-1] == len(found)
        for begin, end, place in zip((ends - block.sizes).tolist(), ends.tolist(), places.tolist(), strict=True):
            found.append(block.ids[begin:end].tolist())
            assert np.frombuffer(content, block.ids.dtype, end - begin, place).tolist() == found[-1] or begin == end
        if kind in ("plain", "wide") and block_tokens == 20:
            assert len(block.ids) <= 20 or len(block.sizes) == 1
    assert found == expected
    without = [block.ids.tolist() for block, _ in grouped(arrow_parts(str(path), None), 0)]
    assert without == [block.ids.tolist() for block, _ in grouped(arrow_parts(str(path), None, with_offsets=True), 0)]


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
    assert sum(len(sizes) for _, sizes, _ in arrow_parts(str(path), None)) == (9 if kind == "list" else 3)
    for end in range(0, len(content), 1 if stream else 11):
        path.write_bytes(content[:end])
        with pytest.raises(StoreError):
            [*arrow_parts(str(path), None)]


@pytest.mark.parametrize("name", ["books/a.arrow", "books/b.arrow", "news/a.arrow", "news/b.arrow"])
def test_a_damaged_file_is_refused_or_read_inside_it(name: str, folder: Path) -> None:
    path = folder / name
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(300):
        damaged = np.frombuffer(content, np.uint8).copy()
        damaged[generator.integers(0, len(damaged), 5)] = generator.integers(0, 256, 5)
        path.write_bytes(damaged.tobytes())
        try:
            parts = [*arrow_parts(str(path), None, with_offsets=True)]
        except StoreError as error:
            assert "\n" not in str(error)
            continue
        for ids, sizes, places in parts:
            some = sizes > 0
            assert len(ids) == sizes.sum() and (sizes >= 0).all() and (places[some] >= 0).all()
            assert (places[some] + sizes[some] * ids.itemsize <= len(content)).all()
