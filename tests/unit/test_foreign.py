"""Stores of other tools: read with equal ids, trained on where they lie, written, and refused where they are broken.

The files are written here by the published layouts; where the library itself is installed, it is the judge too.
"""

import json
import os
import random
import shutil
import struct
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import fairseq_files
import fsspec
import numpy as np
import pyarrow as arrow
import pytest
from drawn import cases
from fairseq_files import write_index
from hypothesis import given
from hypothesis import strategies as st
from original_epochs import write_epoch
from pyarrow import ipc, parquet
from reference.stored import documents_of
from runners import Backwards, files_of
from tokenizer_kinds import with_declared

from maskwright.cli.main import run
from maskwright.config.data import Arrow
from maskwright.config.pretraining import build_config
from maskwright.core import storage
from maskwright.core.errors import ConfigError, InputError, MaskwrightError, SourceError, StoreError
from maskwright.data import converted_store, store
from maskwright.data.convert import Conversion, ConvertOptions, ForeignFiles, convert
from maskwright.data.converted_store import open_arrow
from maskwright.data.foreign import columns
from maskwright.data.foreign.blocks import held_out_files
from maskwright.data.foreign.columns import arrow_parts, grouped
from maskwright.data.foreign.write import write_parquet as write_out
from maskwright.data.opening import open_store
from maskwright.data.store import TokenStore
from maskwright.processes.runner import Runner
from maskwright.text.parts import cut
from maskwright.text.sources import Sources
from maskwright.text.vocabulary import read_vocabulary, token_ids, token_strings

ALL = ConvertOptions(valid_fraction=0.0)


def same(left, right):
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def documents(store):
    found = [*documents_of(store.split("valid")), *documents_of(store.split("train"))]
    random.Random(2).shuffle(found)
    return found[:90]


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASKWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def words(tokenizer):
    return read_vocabulary(tokenizer)


# ---- files as other tools write them ---------------------------------------------------------------------------------


def write_mds(folder, documents, *_, encoding="ndarray:uint16", packing=None):
    """Two shards, with a column of text before the ids and a number after them."""
    folder.mkdir(parents=True)
    shards = []
    for number, part in enumerate((documents[:40], documents[40:])):
        samples = []
        for document in part:
            ids, text = document.astype("<u2"), b"x" * (number + len(document) % 3)
            axes = [1] * (len(text) % 2) + [len(document)]  # some as [1, ids]
            shape = bytes([4 * len(axes) | 1]) + struct.pack(f"<{len(axes)}H", *axes)
            head = {"ndarray:uint16": shape, "ndarray": bytes([16]) + shape, "bytes": b""}[encoding]
            body = head + (ids.astype("<i8") if encoding == "bytes" else ids).tobytes()
            samples.append(struct.pack("<II", len(text), len(body)) + text + body + struct.pack("<q", len(ids)))
        config = b'{"columns": "as in index.json"}'
        begin = 4 + 4 * (len(samples) + 1) + len(config)
        places = np.cumsum([begin, *map(len, samples)]).astype("<u4")
        content = struct.pack("<I", len(samples)) + places.tobytes() + config + b"".join(samples)
        name = f"shard.{number:05d}.mds"
        record = {
            "column_encodings": ["str", encoding, "int"],
            "column_names": ["text", "input_ids", "len"],
            "column_sizes": [None, None, 8],
            "compression": packing,
            "format": "mds",
            "raw_data": {"basename": name, "bytes": len(content), "hashes": {}},
            "samples": len(samples),
            "version": 2,
            "zip_data": None,
        }
        if packing:
            content = arrow.compress(content, codec="zstd", asbytes=True)
            record["zip_data"] = {"basename": f"{name}.zstd", "bytes": len(content), "hashes": {}}
        (folder / (f"{name}.zstd" if packing else name)).write_bytes(content)
        shards.append(record)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def write_arrow(path, documents, *, lists, stream, offset=0, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = arrow.int16()
    schema = arrow.schema([("tokens", arrow.list_(kind) if lists else kind)])
    stored = [(one - offset).astype(np.int16) for one in documents]
    packed = ipc.IpcWriteOptions(**options)
    with (ipc.new_stream if stream else ipc.new_file)(str(path), schema, options=packed) as writer:
        sevens = ([one.tolist() for one in stored[first : first + 7]] for first in range(0, len(stored), 7))
        for some in sevens if lists else stored:
            writer.write_batch(arrow.record_batch([arrow.array(some, schema.field(0).type)], schema=schema))


def shards(folder, documents):
    """As the Ray seed has them: folders of data sets, ids stored as id - 200, counts beside them."""
    write_arrow(folder / "books" / "a.arrow", documents[:30], lists=False, stream=False, offset=200)
    write_arrow(folder / "books" / "b.arrow", documents[30:50], lists=False, stream=True, offset=200)
    write_arrow(folder / "news" / "a.arrow", documents[50:70], lists=True, stream=False, offset=200)
    write_arrow(folder / "news" / "b.arrow", documents[70:], lists=True, stream=True, offset=200)
    tokens = sum(map(len, documents[:30])), sum(map(len, documents[30:50]))
    (folder / "books" / "meta").mkdir()
    lines = ["dataset/filename,documents,tokens", f"a.arrow,30,{tokens[0]}", f"b.arrow,20,{tokens[1]}"]
    (folder / "books" / "meta" / "books_counts.csv").write_text("\n".join(lines) + "\n")


def in_sentences(documents):
    cut = [[part for part in np.split(one, [len(one) // 3, len(one) // 2]) if len(part)] for one in documents]
    return [part for parts in cut for part in parts], [len(parts) for parts in cut]


def write_fairseq(folder, documents, tokenizer, lacking=None):
    fairseq_files.write_fairseq(folder, [in_sentences([one])[0] for one in documents], tokenizer, lacking)


def write_parquet(path, documents, *_):
    table = arrow.table({"id": list(range(len(documents))), "input_ids": [one.tolist() for one in documents]})
    parquet.write_table(table, path, row_group_size=11)


def write_epochs(folder, documents, tokenizer):
    """Two epochs of pairs of documents, in which every third token is masked."""
    folder.mkdir()
    strings = token_strings(tokenizer)
    for epoch, own in enumerate((documents[:50], documents[50:])):
        examples = []
        for one, two in zip(own[::2], own[1::2], strict=True):
            text = ["<s>", *(strings[index] for index in one), "</s>", *(strings[index] for index in two), "</s>"]
            masked = [place for place in range(1, len(text) - 1, 3) if place != len(one) + 1]
            shown = ["[MASK]" if place in masked else token for place, token in enumerate(text)]
            segments = [0] * (len(one) + 2) + [1] * (len(two) + 1)
            examples.append((shown, segments, True, masked, [text[place] for place in masked]))
        write_epoch(folder, epoch, examples, 2_000)


def write_packed(path, documents, *_):
    write_arrow(path, documents, lists=True, stream=False, compression="zstd")


MADE = {
    "mds": ("mds", write_mds, {}),
    "mds-zstd": ("mds", partial(write_mds, encoding="ndarray", packing="zstd:7"), {}),
    "mds-bytes": ("mds", partial(write_mds, encoding="bytes"), {"dtype": "int64"}),
    "megatron": ("text_document.idx", lambda path, documents, _: write_index(path, *in_sentences(documents)), {}),
    "fairseq": ("bin", write_fairseq, {}),
    "parquet": ("ids.parquet", write_parquet, {}),
    "pregenerated": ("epochs", write_epochs, {"options": ConvertOptions(0.0, "remove")}),
    "arrow-zstd": ("a.arrow", write_packed, {}),
    "arrow": (
        "shards",
        lambda path, documents, _: shards(path, documents),
        {"options": replace(ALL, token_offset=200)},
    ),
}
"""File or folder of each tool, how it is written, and what a conversion needs besides."""


def make(name, folder, documents, tokenizer):
    """(the place to convert, what a conversion needs) of a store that a tool wrote below the folder."""
    entry, write, given = MADE[name]
    folder.mkdir(exist_ok=True)
    write(folder / entry, documents, tokenizer)
    entries = list(folder.iterdir())
    return str(entries[0] if len(entries) == 1 else folder), {"options": ALL, **given}


@pytest.mark.parametrize("name", MADE)
def test_ids_documents_and_order_are_those_of_the_other_tool(name, documents, tokenizer, tmp_path, monkeypatch):
    """As many parts as there are files, in turn, from the last to the first, and by several processes."""
    monkeypatch.setattr(cut, "PART_BYTES", (1, 1))
    for module in (store, columns):
        monkeypatch.setattr(module, "BLOCK_TOKENS", 1_000)
    place, options = make(name, tmp_path / "in", documents, tokenizer)
    options["options"] = replace(options["options"], shard_tokens=3_000)
    ready = convert(Conversion([place], tokenizer, str(tmp_path / "store"), **options))
    ready.verify()
    assert same(documents_of(ready.split("train")), documents)
    assert ready.manifest["counts"]["kept"] == len(documents)
    ends = [shard.sentence_ends() for shard in ready.split("train").shards]
    sentences = len(in_sentences(documents)[0]) if name in ("megatron", "fairseq") else 0
    assert sum(len(one) for one in ends if one is not None) == sentences
    again = convert(Conversion([place], tokenizer, str(tmp_path / "store"), **options))
    assert again.fingerprint == ready.fingerprint
    runner, parts = Runner(2) if name == "arrow" else Backwards(), str(tmp_path / "parts")
    convert(Conversion([place], tokenizer, parts, **options), runner).verify()
    assert not isinstance(runner, Backwards) or runner.computed == ready.manifest["sources"]["count"]
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "store")


def test_held_out_documents_follow_from_their_ids(documents, tokenizer, tmp_path):
    """In whatever format and order they lie."""
    sides = []
    for name, order in (("parquet", documents), ("mds", documents[::-1])):
        place, _ = make(name, tmp_path / name, order, tokenizer)
        options = ConvertOptions(valid_fraction=0.2)
        ready = convert(Conversion([place], tokenizer, str(tmp_path / f"{name}-store"), options))
        sides.append({one.tobytes() for one in documents_of(ready.split("valid"))})
    assert sides[0] == sides[1] and 5 < len(sides[0]) < 40


# ---- what the documents hold -----------------------------------------------------------------------------------------


def test_special_tokens_are_refused_stripped_or_removed(documents, tokenizer, words, tmp_path):
    framed = [np.array([words.bos, *one, words.eos, words.pad]) for one in documents]
    inside = [np.insert(one, 5, words.eos) for one in framed]
    for name, some in (("framed", framed), ("inside", inside)):
        make("parquet", tmp_path / name, some, tokenizer)

    def converted(name, how):
        options = ConvertOptions(valid_fraction=0.0, special_tokens=how)
        return convert(Conversion([str(tmp_path / name)], tokenizer, str(tmp_path / f"{name}-{how}"), options))

    stripped, removed = converted("framed", "strip"), converted("inside", "remove")
    for one in (stripped, removed):
        assert same(documents_of(one.split("train")), documents)
    assert stripped.manifest["counts"]["special_tokens"] == 3 * len(documents)
    assert removed.manifest["counts"]["special_tokens"] == 4 * len(documents)
    for name, how in (("framed", "refuse"), ("inside", "strip")):
        with refused(r"ids.parquet.*holds the special token \d+ inside a document"):
            converted(name, how)
        assert not (tmp_path / f"{name}-{how}").exists()


def test_declared_tokens_stay_in_documents(documents, tokenizer, tmp_path, capsys):
    folder = with_declared(tokenizer, tmp_path / "declared")
    words, user = read_vocabulary(folder), token_ids(folder)["[USER]"]
    marked = [np.insert(one, [0, 2, len(one)], user) for one in documents]
    for name, some in (("plain", marked), ("framed", [np.array([words.bos, *one, words.eos]) for one in marked])):
        make("parquet", tmp_path / name, some, folder)

    def converted(name, how, **options):
        to = str(tmp_path / f"{name}-{how}{len(options)}")
        return convert(Conversion([str(tmp_path / name)], folder, to, ConvertOptions(0.0, how), **options))

    for name, how in (("plain", "refuse"), ("framed", "strip"), ("framed", "remove")):
        capsys.readouterr()
        ready = converted(name, how)
        assert same(documents_of(ready.split("train")), marked)
        assert ready.vocabulary.size == words.size and ready.manifest["counts"]["additional_tokens"] == 3 * len(marked)
        assert f"{3 * len(marked):,} tokens are special tokens that the tokenizer declares" in capsys.readouterr().err


@contextmanager
def refused(said):
    """In one line, with a fix."""
    with pytest.raises(InputError, match=said) as caught:
        yield
    assert "\n" not in str(caught.value) and caught.value.fix


# ---- Arrow files of a run --------------------------------------------------------------------------------------------


def config(tmp, tokenizer, **arrow_keys):
    keys = {"tokenizer": tokenizer, "token_offset": 200, "valid_fraction": 0.2} | arrow_keys
    return build_config(
        {
            "data": {"store": str(tmp / "shards"), "format": "arrow", "arrow": keys, "seq_len": 64},
            "schedule": {"steps": 8, "warmup_steps": 1},
            "batch": {"micro_batch_rows": 4, "virtual_workers": 2},
            "masking": {"kind": "whole_word"},
        },
        "here",
    )


@pytest.fixture(scope="module")
def arrow_folder(documents, tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrow")
    shards(folder / "shards", documents)
    return folder


def test_a_store_of_arrow_files_is_the_converted_one(arrow_folder, tokenizer, tmp_path):
    options = ConvertOptions(valid_fraction=0.2, token_offset=200)
    files = [str(path) for path in sorted((arrow_folder / "shards").rglob("*.arrow"))]
    own = convert(Conversion(files, tokenizer, str(tmp_path / "own"), options))
    there = open_store(config(arrow_folder, tokenizer).data)
    assert there.fingerprint == own.fingerprint and there.location == str(arrow_folder / "shards")
    sides = ("train", "valid")
    for side in sides:
        assert there.origin(side, 1) == own.origin(side, 1)
        assert there.source_numbers(side, 0).tolist() == own.source_numbers(side, 0).tolist()
    other = config(arrow_folder, tokenizer, valid_fraction=0.3)
    assert open_store(other.data).fingerprint != there.fingerprint


def test_pretrain_evaluate_and_resume_on_arrow(arrow_folder, tokenizer, tmp_path, capsys):
    file, place = tmp_path / "config.yaml", str(tmp_path / "run")
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    file.write_text(json.dumps({**config(arrow_folder, tokenizer).model_dump(), "model": shape}))
    words = ["pretrain", str(file), "--run", place, "--set", "engine.device=cpu", "--set", "engine.threads=1"]
    assert run([*words, "--stop-after-steps", "4"]) == 76
    assert run(words) == 0
    assert run(["evaluate", place, "--device", "cpu"]) == 0
    assert "unigram baseline" in capsys.readouterr().out
    assert run(["evaluate", place, "--device", "cpu", "--store", str(arrow_folder)]) == 0
    assert "the baseline counts its frequencies in the held-out text itself" in capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "config.resolved.json").read_text())
    assert record["train"]["fingerprint"] == open_store(config(arrow_folder, tokenizer).data).fingerprint
    assert run([*words, "--set", "data.arrow.valid_fraction=0.5"]) == 2


def test_keys_of_another_format_are_refused():
    mixture = {"a": {"store": "x", "arrow": {"column": "ids"}}, "b": "y"}
    with pytest.raises(ConfigError, match="arrow is only for format: arrow"):
        build_config({"data": {"mixture": mixture}, "schedule": {"steps": 8}}, "here")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"token_offset": 0}, r"a.arrow:1 .*holds id -\d+"),
        ({"token_offset": 90_000}, r"a.arrow:1 .*holds id 9\d+, but the tokenizer ends at 399"),
        ({"column": "text"}, "has no column text; it has tokens"),
        ({"special_ids": {"bos": 0, "mask": 9}}, "mask is 9, but 4 in the tokenizer"),
        ({"tokenizer": None}, "has no tokenizer/"),
    ],
)
def test_wrong_keys_are_refused(keys, said, arrow_folder, tokenizer, words):
    given = {"tokenizer": tokenizer} | keys
    with refused(said.replace("4 in", f"{words.mask} in")):
        open_store(config(arrow_folder, **given).data)


def test_counts_beside_the_files_are_checked(documents, tokenizer, tmp_path):
    shards(tmp_path / "shards", documents)
    counts = tmp_path / "shards" / "books" / "meta" / "books_counts.csv"
    said, theirs = counts.read_text(), tmp_path / "shards" / "meta" / "combined_counts.csv"
    counts.write_text(said.replace("a.arrow,30,", "a.arrow,31,"))
    with refused(r"books_counts.csv:2: a.arrow has 30 documents"):
        open_store(config(tmp_path, tokenizer).data)
    counts.write_bytes(b"\xff\xfea,b\n")
    with refused(r"books_counts.csv:1:1: is UTF-16"):
        open_store(config(tmp_path, tokenizer).data)
    counts.unlink()
    theirs.parent.mkdir()
    for before in ("/", "/data/input/shards/"):  # as foundation-model-stack writes them, and as it reads them
        other = f"{before}code/x.arrow,5,50\n"  # of a data set that is not here
        whole = said.replace("\na.arrow", f"\n{before}books/a.arrow").replace("\nb.arrow", f"\n{before}books/b.arrow")
        theirs.write_text(whole + other)
        open_store(config(tmp_path, tokenizer).data)
        for wrong, message in ((",30,", "a.arrow has 30 documents"), ("b.arrow", "c.arrow is missing")):
            theirs.write_text(whole.replace(wrong, {",30,": ",31,"}.get(wrong, "c.arrow")))
            where = f"combined_counts.csv:[23]: {before}books/.*"
            with refused(where + message):
                open_store(config(tmp_path, tokenizer).data)


def test_a_folder_of_another_tool_is_no_store_but_has_a_way(arrow_folder, tmp_path):
    (tmp_path / "train.idx").write_bytes(b"")
    for folder, said in ((arrow_folder / "shards", "set data.format=arrow"), (tmp_path, "`maskwright data convert`")):
        with pytest.raises(StoreError, match="is not a token store") as caught:
            TokenStore(str(folder))
        assert said in str(caught.value)


# ---- broken files ----------------------------------------------------------------------------------------------------


FAR = struct.pack("<q", 1 << 40)


def put(path, at, content):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(content)


def other(at, content):
    """Other bytes at a place, counted from the end where it is negative."""
    return lambda path: put(path, at % path.stat().st_size, content)


def last_place(path):
    """The last sequence of Megatron's index lies outside the .bin."""
    (count,) = struct.unpack_from("<Q", path.read_bytes(), 18)
    put(path, 34 + 4 * count + 8 * (count - 1), FAR)


def above(path):
    """A shard lies outside its folder."""
    path.write_text(path.read_text().replace('"shard.00000.mds"', '"../shard.00000.mds"'))


BROKEN = [
    ("mds", "mds/index.json", above, "is not an index of MDS"),
    ("megatron", "text_document.idx", last_place, r"idx: sequence \d+ is recorded as ids 549,755,813,888"),
    ("megatron", "text_document.idx", other(-8, FAR), "text_document.idx.*documents"),
    ("megatron", "text_document.idx", other(34, struct.pack("<i", -5)), "text_document.idx: sequence 0"),
    ("fairseq", "bin/dict.txt", Path.unlink, "dict.txt.*is missing"),
]
"""What only a look at what the bytes say can find. Of Arrow, other tests damage each byte."""


def require_refused(place, options, tokenizer, folder, said):
    with refused(said):
        convert(Conversion([place], tokenizer, str(folder), **options))
    assert {path.name for path in folder.glob("*")} <= {"parts"}


@pytest.mark.parametrize(("name", "file", "damage", "said"), BROKEN)
def test_a_broken_store_is_one_line_and_leaves_finished_parts_alone(
    name, file, damage, said, documents, tokenizer, tmp_path
):
    place, options = make(name, tmp_path / "in", documents, tokenizer)
    damage(tmp_path / "in" / file)
    require_refused(place, options, tokenizer, tmp_path / "store", said)


@pytest.mark.parametrize("name", [name for name in MADE if name not in ("mds-bytes", "arrow-zstd")])
@given(at=st.floats(0, 1, exclude_max=True), file=st.integers(0, 99), flip=st.sampled_from([0, 0, 1, 128]))
@cases(8)
def test_any_cut_or_flipped_bit_is_one_line_or_the_same_ids(name, at, file, flip, documents, tokenizer, tmp_path):
    """No format but ours has sums, so a flipped bit of an id is another id: it is one of the vocabulary, and no crash.
    fairseq's dictionary has no end that a cut would take away."""
    if not (tmp_path / "in").exists():
        make(name, tmp_path / "in", documents, tokenizer)
    entries = list((tmp_path / "in").iterdir())
    place = str(entries[0] if len(entries) == 1 else tmp_path / "in")
    paths = [path for path in sorted((tmp_path / "in").rglob("*")) if path.is_file() and path.name != "dict.txt"]
    path = paths[file % len(paths)]
    content = path.read_bytes()
    where = int(at * len(content))
    path.write_bytes(content[:where] + (bytes([content[where] ^ flip]) + content[where + 1 :] if flip else b""))
    try:
        ready = convert(Conversion([place], tokenizer, str(tmp_path / "store"), **{"options": ALL, **MADE[name][2]}))
        found = documents_of(ready.split("train"))
        assert flip or same(found, documents)
        assert max(int(one.max()) for one in found) < ready.vocabulary.size
    except InputError as error:
        assert "\n" not in str(error) and error.fix and str(tmp_path) in str(error)
    finally:
        path.write_bytes(content)
        shutil.rmtree(tmp_path / "store", ignore_errors=True)


@pytest.mark.parametrize("name", [name for name in MADE if name != "pregenerated"])  # which has strings
def test_an_id_beyond_the_vocabulary_is_one_line(name, documents, tokenizer, tmp_path):
    beyond = [one.copy() for one in documents]
    beyond[60][1] = 60_000 if name in ("mds", "mds-zstd") else 400
    place, options = make(name, tmp_path / "in", documents if name == "fairseq" else beyond, tokenizer)
    if name == "fairseq":
        put(tmp_path / "in" / "bin" / "train.bin", 20, struct.pack("<H", 60_000))
    said = r"holds id (400|60000), but (the tokenizer|dict.txt) ends at 399"
    require_refused(place, options, tokenizer, tmp_path / "store", said)


def test_what_cannot_be_mapped_is_counted(documents, tokenizer, words, tmp_path, capsys):
    lacking = int(documents[0][0])
    write_fairseq(tmp_path / "bin", documents, tokenizer, lacking)
    ready = convert(Conversion([str(tmp_path / "bin")], tokenizer, str(tmp_path / "store"), ALL))
    count = sum(int((one == lacking).sum()) for one in documents)
    assert ready.manifest["counts"]["unknown_tokens"] == count > 0
    known = [np.where(one == lacking, words.unk, one) for one in documents]
    assert same(documents_of(ready.split("train")), known)
    assert "1 are not, such as 'absent'" in capsys.readouterr().err


def test_a_dictionary_of_numbers_needs_its_encoder(documents, tokenizer, tmp_path):
    write_fairseq(tmp_path / "bin", documents, tokenizer)
    names = [line.rpartition(" ")[0] for line in (tmp_path / "bin" / "dict.txt").read_text().splitlines()]
    (tmp_path / "encoder.json").write_text(json.dumps({name: 900 + number for number, name in enumerate(names)}))
    (tmp_path / "bin" / "dict.txt").write_text("".join(f"{900 + number} 5\n" for number in range(len(names))))
    with pytest.raises(InputError, match="is a dictionary of numbers"):
        convert(Conversion([str(tmp_path / "bin")], tokenizer, str(tmp_path / "store"), ALL))
    encoder = str(tmp_path / "encoder.json")
    ready = convert(Conversion([str(tmp_path / "bin")], tokenizer, str(tmp_path / "store"), ALL, encoder=encoder))
    assert same(documents_of(ready.split("train")), documents)


def test_shards_of_fairseq_by_colons_and_what_it_held_out(documents, tokenizer, tmp_path):
    write_fairseq(tmp_path / "shard0", documents[:50], tokenizer)
    write_fairseq(tmp_path / "shard1", documents[50:], tokenizer)
    for ending in (".bin", ".idx"):
        os.rename(tmp_path / "shard1" / f"train{ending}", tmp_path / "shard1" / f"valid{ending}")
    ready = convert(Conversion([f"{tmp_path}/shard0:{tmp_path}/shard1"], tokenizer, str(tmp_path / "store")))
    assert same(documents_of(ready.split("train")), documents[:50])
    assert same(documents_of(ready.split("valid")), documents[50:])


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["a.tar"], "WebDataset"),
        (["a.zarr"], "export the cache"),
        (["a.tfrecord"], "prepare the text that its examples were made from"),
        (["a.arrow", "b.parquet"], "several kinds of files: arrow, parquet"),
        (["a.txt"], "is not a store of a known format. Fix: name it"),
        (["a.json", "b.json"], "is not a store of a known format. Fix: save each document's ids as a list"),
    ],
)
def test_what_is_refused_says_why(files, said, tokenizer, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for name in files:
        (tmp_path / "in" / name).write_bytes(b"x")
    words = ["data", "convert", str(tmp_path / "in"), "--to", str(tmp_path / "store")]
    assert run([*words, "--tokenizer", tokenizer]) == 2
    assert said in capsys.readouterr().err
    assert run(words) == 2
    assert "--tokenizer is needed" in capsys.readouterr().err


# ---- out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.2, 1.0])
def test_each_document_keeps_its_side_out_and_back(fraction, documents, tokenizer, tmp_path):
    """What was held out never goes into training, for a store with both sides and with one alone."""
    source, _ = make("parquet", tmp_path / "in", documents, tokenizer)
    store = convert(Conversion([source], tokenizer, str(tmp_path / "store"), ConvertOptions(fraction)))
    own = [documents_of(store.split(side)) for side in ("train", "valid")]
    out = tmp_path / "out"
    assert write_out(store, str(out)) == dict(zip(("train", "valid"), map(len, own), strict=True))
    with pytest.raises(InputError, match="is not empty"):
        write_out(store, str(out))
    assert not list(tmp_path.glob("*.tmp-*"))
    options = ConvertOptions(valid_fraction=min(fraction, 0.01))
    back = convert(Conversion([str(out)], tokenizer, str(tmp_path / "back"), options))
    for side, expected in zip(("train", "valid"), own, strict=True):
        assert same(documents_of(back.split(side)), expected)


@pytest.mark.parametrize(
    ("files", "held_out"),
    [
        ("o/train/a.arrow o/valid/a.arrow", "1"),
        ("o/train/a.arrow o/validation/a.arrow o/test/a.arrow", "12"),
        ("o/train-0-of-2.parquet o/train-1-of-2.parquet o/dev-0-of-1.parquet", "2"),
        ("o/train.bin o/val.bin", "1"),
        ("o/valid/a.arrow o/valid/b.arrow", "01"),
        ("o/valid_text_document.bin", "0"),
        ("o/train.bin", ""),
        ("o/a.bin o/valid.bin", ""),  # held out of what nobody named for training
        ("o/epoch_0.json o/epoch_1.json", ""),
    ],
)
def test_files_are_held_out_by_their_names_below_the_folder(files, held_out, tmp_path):
    for name in ("test", "train", "data"):  # the folder's own name does not count
        (tmp_path / name / "o").mkdir(parents=True)
        paths = [str(tmp_path / name / file) for file in files.split()]
        assert "".join(map(str, sorted(held_out_files(paths, [str(tmp_path / name / "o")])))) == held_out


def test_datasets_reads_what_is_written(store, tmp_path):
    datasets = pytest.importorskip("datasets")
    write_out(store, str(tmp_path / "out"))
    files = sorted(map(str, (tmp_path / "out").glob("valid-*.parquet")))
    loaded = datasets.Dataset.from_parquet(files, cache_dir=str(tmp_path / "cache"))["input_ids"]
    assert same([np.array(one) for one in loaded], documents_of(store.split("valid")))


def of_datasets(folder, documents):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"input_ids": [one.tolist() for one in documents]}).save_to_disk(folder, num_shards=3)


def test_what_the_library_writes_is_read(documents, tokenizer, tmp_path):
    of_datasets(tmp_path / "in", documents)
    ready = convert(Conversion([str(tmp_path / "in")], tokenizer, str(tmp_path / "store"), ALL))
    assert same(documents_of(ready.split("train")), documents)


@pytest.mark.parametrize("packing", [None, "zstd"])
def test_text_in_mds_is_read_as_text(packing, documents, tokenizer, tmp_path):
    folder = tmp_path / "mds"
    write_mds(folder, documents, packing=packing)
    sizes = [number + len(one) % 3 for number, part in enumerate((documents[:40], documents[40:])) for one in part]
    fsspec.filesystem("memory").put(str(folder), f"/mds-{packing}/", recursive=True)
    for place in (str(folder), f"memory://mds-{packing}"):
        sources = Sources([place])
        assert [one.text for one in sources] == ["x" * size for size in sizes if size]
        assert sources.without_text == sizes.count(0) > 0 and not sources.notes
        assert sources.bytes_read == sum(sources.sizes)
    with pytest.raises(SourceError, match=r"record 1: 'len' is bytes, not text"):
        list(Sources([str(folder)], text_column="len"))
    with pytest.raises(SourceError, match=r"has no column 'body' .*`maskwright data convert` for token ids"):
        list(Sources([str(folder)], text_column="body"))
    index = (folder / "index.json").read_text()
    (folder / "index.json").write_text(index.replace("input_ids", "caption"))
    with pytest.raises(StoreError, match=r"no column of a known name.*column of text: maskwright data prepare"):
        convert(Conversion([str(folder)], tokenizer, str(tmp_path / "store")))
    shard = min(folder.glob("shard*"))
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match=r"has [\d,]+ bytes, but .* by index.json"):
        list(Sources([str(folder)]))
    shard.write_bytes(whole)
    (folder / "index.json").unlink()
    with pytest.raises(InputError, match=r"index.json: no such file"):
        list(Sources([str(folder)]))
    if packing:  # an unpacked shard counts, and not its packed twin
        (folder / "index.json").write_text(index)
        shard.with_suffix("").write_bytes(arrow.CompressedInputStream(arrow.BufferReader(whole), "zstd").read())
        assert len(list(Sources([str(folder)]))) == len(sizes) - sizes.count(0)


# ---- Arrow files that are trained on: converted once into the cache ---


@pytest.fixture
def folder(documents, tmp_path, monkeypatch):
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    shards(tmp_path / "shards", documents)
    return tmp_path / "shards"


@pytest.fixture
def conversions(monkeypatch):
    """The folders that are converted into from here on."""
    made = []

    def counted(conversion, convert=converted_store.convert):
        made.append(conversion.writer.folder)
        return convert(conversion)

    monkeypatch.setattr(converted_store, "convert", counted)
    return made


def opened(folder, tokenizer, **keys):
    return open_arrow(str(folder), Arrow(**{"tokenizer": tokenizer, "token_offset": 200, "valid_fraction": 0.2} | keys))


def test_a_later_start_converts_nothing_and_a_change_converts_anew(
    folder, documents, tokenizer, conversions, monkeypatch
):
    first = opened(folder, tokenizer)
    monkeypatch.chdir(folder.parent)
    again = open_arrow("shards", Arrow(tokenizer=tokenizer, token_offset=200, valid_fraction=0.2))
    assert again.fingerprint == first.fingerprint and again.origin("train", 3) == first.origin("train", 3)
    assert conversions == [first.folder] and first.location == str(folder)
    changes = [{"valid_fraction": 0.3}, {"token_offset": 199}, {"special_tokens": "strip"}]
    for options in [*changes, {"column": "tokens"}]:
        opened(folder, tokenizer, **options)
    assert len({*conversions}) == len(conversions) == 5
    write_arrow(folder / "news" / "a.arrow", documents[50:71], lists=True, stream=True, offset=200)
    second = opened(folder, tokenizer)
    assert second.fingerprint != first.fingerprint and len(conversions) == 6
    assert sum(split["documents"] for split in second.manifest["splits"].values()) == len(documents) + 1
    shutil.rmtree(folder.parent / "cache")
    assert opened(folder, tokenizer).fingerprint == second.fingerprint and len(conversions) == 7


def test_a_folder_of_held_out_text_is_held_out_in_full(documents, tokenizer, tmp_path):
    """Also where files are named for training and others to be held out."""
    for name, some in {"train": documents[:60], "valid": documents[60:]}.items():
        write_arrow(tmp_path / "both" / name / "a.arrow", some, lists=True, stream=False)
    keys = Arrow(tokenizer=tokenizer, valid_fraction=0.3)
    apart = open_arrow(str(tmp_path / "both"), keys)
    assert [apart.split(side).documents for side in ("train", "valid")] == [60, len(documents) - 60]
    whole = open_arrow(str(tmp_path / "both"), keys, all_held_out=True)
    assert [whole.split(side).documents for side in ("train", "valid")] == [0, len(documents)]


def test_a_file_that_changes_while_it_is_read_is_refused(folder, tokenizer, monkeypatch):
    def touched(self, number, check=ForeignFiles.require_unchanged):
        os.utime(self.source.files[number])
        check(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(ForeignFiles, "require_unchanged", touched)
        with pytest.raises(SourceError, match=r"books/a\.arrow: was changed while it was read"):
            opened(folder, tokenizer)
    assert not [*(folder.parent / "cache" / "converted").glob("*")]


def test_a_cache_that_cannot_be_written_is_one_line(folder, tokenizer, monkeypatch):
    (folder.parent / "cache").write_text("a file")
    with pytest.raises(InputError, match="MASKWRIGHT_CACHE"):
        opened(folder, tokenizer)
    (folder.parent / "cache").unlink()

    monkeypatch.setattr(storage, "sync_folder", Mock(side_effect=OSError(28, "No space left on device")))
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


def written(path, kind, stream, beside):
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
def test_documents_are_those_of_pyarrow(kind, beside, stream, block_tokens, tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "BLOCK_TOKENS", block_tokens)
    path = tmp_path / "a.arrow"
    written(path, KINDS[kind], stream, beside)
    with arrow.memory_map(str(path)) as source:
        batches = [*ipc.open_stream(source)] if stream else ipc.open_file(source).read_all().to_batches()
    listed = [batch.column("ids").to_pylist() for batch in batches]
    expected = listed if kind in ("plain", "wide") else [document for batch in listed for document in batch]
    found = []
    for block in grouped(arrow_parts(str(path), None), 0):
        assert block.first == len(found)
        ends = np.cumsum(block.sizes).tolist()
        found += [block.ids[begin:end].tolist() for begin, end in zip([0, *ends], ends, strict=False)]
        if kind in ("plain", "wide") and block_tokens == 20:
            assert len(block.ids) <= 20 or len(block.sizes) == 1
    assert found == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["plain", "list"])
def test_no_cut_is_taken_for_a_whole_file(kind, stream, tmp_path):
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
def test_a_damaged_file_is_refused_or_read_to_its_end(name, folder):
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
