import json
import random
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import transformers
from conftest import prepared
from reference.stored import documents_of
from runners import files_of
from tokenizer_kinds import with_declared

from maskwright.core.errors import InputError, StoreError
from maskwright.data import passages, remote
from maskwright.data.prepare import shards
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.report import came_from
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import TokenStore, shard_names, token_dtype
from maskwright.text.sample import learn_from
from maskwright.text.sources import Sources
from maskwright.text.vocabulary import read_vocabulary

OPTIONS = PrepareOptions(valid_fraction=0.1, shard_tokens=8_000)


def test_a_manifest_does_not_grow_with_the_files_and_a_list_in_one_is_read(tokenizer, tmp_path):
    files = [str(tmp_path / f"{number:02d}.txt") for number in range(30)]
    for number, file in enumerate(files):
        Path(file).write_text(f"{number} documents, each in a file of its own\n")
    made = prepared(Sources(files, layout="file"), tokenizer, str(tmp_path / "store"), PrepareOptions(valid_fraction=0))
    assert came_from(made.manifest) == f"text: 30 files, {', '.join(files[:10])} and 20 more"
    assert made.origin("train", 29) == f"{files[29]}:1" and files[29] not in json.dumps(made.manifest)
    older = {**made.manifest, "sources": list(made.sources())}
    (tmp_path / "store" / "manifest.json").write_text(json.dumps(older))
    (tmp_path / "store" / "sources.jsonl").unlink()
    assert TokenStore(made.location).locations == files and came_from(older) == came_from(made.manifest)
    (tmp_path / "store" / "manifest.json").write_text(json.dumps(made.manifest))
    with pytest.raises(StoreError, match="is missing"):
        TokenStore(made.location)


def test_documents_of_a_group_are_held_out_together(tokenizer, tmp_path):
    """Also in another file, of another kind and spelling; a text without a group is refused or left out."""
    texts = [(f"note {number} of a patient", number % 30) for number in range(300)]
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{text}", "of": {of}}}\n' for text, of in texts[:150]))
    (tmp_path / "b.csv").write_text("of,text\n" + "".join(f"{of:02d}.0,{text}\n" for text, of in texts[150:]))
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.csv")]
    made = prepared(Sources(files, group_column="of"), tokenizer, str(tmp_path / "store"), OPTIONS)
    sides = {"train": set(), "valid": set()}
    for side, groups in sides.items():
        for number in range(made.split(side).documents):
            file, _, line = made.origin(side, number).rpartition(":")
            groups.add(texts[int(line) - 1 if file == files[0] else 148 + int(line)][1])
    assert len(sides["valid"]) in range(1, 9) and not sides["train"] & sides["valid"]
    assert made.split("valid").documents == 10 * len(sides["valid"])
    (tmp_path / "a.jsonl").write_text('{"text": "a", "of": 1}\n{"text": "b"}\n')
    with pytest.raises(InputError, match="a.jsonl:2: has no 'of'. Fix: give it one, or leave --group-column out"):
        list(Sources(files, group_column="of"))
    left_out = Sources(files[:1], group_column="of", on_bad_input="skip")
    assert [document.group for document in left_out] == ["1"] and not left_out.without_text
    (tmp_path / "a.jsonl").write_text('{"text": "a", "of": 1}\n{"text": "b", "of": 1}\n')
    with pytest.raises(InputError, match="none of the groups .* Fix: use a --valid-fraction such as 1e-08, or 0"):
        options = PrepareOptions(valid_fraction=1e-9)
        prepared(Sources(files[:1], group_column="of"), tokenizer, str(tmp_path / "none"), options)


@pytest.mark.parametrize("fail_at", [0, 2, 4, 9])
def test_a_stopped_preparation_continues_to_the_same_bytes(fail_at, corpus, tokenizer, store, tmp_path, monkeypatch):
    """Killed where a shard, or its final name, is written, after `fail_at` of them."""
    folder, written = tmp_path / "store", 0

    def failing(original):
        def called(*arguments):
            nonlocal written
            written += 1
            if written > fail_at:
                raise KeyboardInterrupt
            return original(*arguments)

        return called

    with monkeypatch.context() as patch:
        patch.setattr(shards._Shard, "closed", failing(shards._Shard.closed))
        patch.setattr(shards, "_link", failing(shards._link))
        with pytest.raises(KeyboardInterrupt):
            prepare(Request(Sources([str(corpus)], layout="sentences"), tokenizer, str(folder), OPTIONS))
    with pytest.raises(StoreError, match=r"not a token store|never finished"):
        TokenStore(str(folder))
    prepare(Request(Sources([str(corpus)], layout="sentences"), tokenizer, str(folder), OPTIONS))
    assert files_of(folder) == files_of(Path(store.location))


@pytest.mark.parametrize(("lists", "is_warned_of"), [(100, False), (101, True)])
def test_many_documents_of_data_or_markup_are_warned_of(lists, is_warned_of, tokenizer, tmp_path, capsys):
    lines = [f"['word', '{number}']" if number < lists else f"word {number}" for number in range(1_000)]
    for name, text in (("a.txt", lines[:500]), ("b.txt", lines[500:])):
        (tmp_path / name).write_text("\n".join(text))
    sources = Sources([str(tmp_path)], layout="lines")
    prepare(Request(sources, tokenizer, str(tmp_path / "store")))
    learn_from(sources, 1_000_000, list)
    warning = "warning: 101 of 1,000 documents are lists, whose brackets and quotes become tokens, such as "
    warning += f"{tmp_path}/a.txt:1: ['word', '0'] …; save them as JSON lines"
    assert capsys.readouterr().err.count(warning) == 2 * is_warned_of


def test_parts_of_somebody_else_are_not_touched(corpus, tokenizer, tmp_path):
    (mine := tmp_path / "parts").mkdir()
    shutil.copy(corpus, mine / "a.txt")
    with pytest.raises(InputError, match="holds .*/parts/a.txt, which must be read"):
        prepared(Sources([str(mine)], layout="sentences"), tokenizer, tmp_path, OPTIONS)
    request = Request(Sources([str(corpus)], layout="sentences"), tokenizer, str(tmp_path), OPTIONS)
    with pytest.raises(InputError, match=r"is not empty: it holds parts/a.txt"):
        prepare(request)
    assert files_of(tmp_path) == {"parts/a.txt": corpus.read_bytes()}
    (mine / "a.txt").unlink()
    for name in ("train-00000.tokens.u16", "tokenizer"):  # without a result in parts, not of a killed command
        (tmp_path / name).mkdir()
        with pytest.raises(InputError, match=f"is not empty: it holds {name}"):
            prepare(request)
        (tmp_path / name).rmdir()
    (tmp_path / "tokenizer").mkdir()
    result = f"encode-000000-{0:020x}"
    for name in ("train-00000.tokens.u16.tmp-1", f"parts/{result}", f"parts/{result}.tmp-1"):  # of a killed command
        (tmp_path / name).write_bytes(b"")
    ready = prepare(request)
    assert not mine.exists() and "train-00000.tokens.u16.tmp-1" not in files_of(tmp_path)
    mine.mkdir()
    (mine / "a.txt").write_text("precious")
    assert prepare(request).fingerprint == ready.fingerprint and (mine / "a.txt").exists()


def test_a_folder_of_save_to_disk_is_read_and_its_test_split_named(tokenizer, tmp_path, capsys):
    for split in ("train", "test"):
        (folder := tmp_path / "saved" / split).mkdir(parents=True)
        table = pa.table({"text": [f"{split} document {number}" for number in range(20)]})
        for name in ("data-00000-of-00001.arrow", "cache-1.arrow"):  # a cache of `map` is no part of the data set
            with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
        (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
    for place, documents in ((tmp_path / "saved", 40), (tmp_path / "saved" / "train", 20)):
        sources = Sources([str(place)])
        options = PrepareOptions(valid_fraction=0.25, keep_duplicates=True)
        ready = prepare(Request(sources, tokenizer, str(tmp_path / f"store-{documents}"), options))
        assert ready.manifest["counts"]["read"] == documents
        warned = f"named for validation or test: 1 of 2 files, the first {tmp_path}/saved/test/data-00000-of-00001"
        assert (warned in capsys.readouterr().err) == (documents == 40)


def test_large_vocabularies_get_wider_ids():
    assert (token_dtype(65_536), token_dtype(65_537)) == ("uint16", "uint32")
    assert shard_names("valid", 3, "uint32", False)["tokens"] == "valid-00003.tokens.u32"


def test_the_layout_in_use_is_not_offered_where_nothing_is_held_out(tokenizer, tmp_path):
    """Short, and repeated: more documents were guessed than are kept."""
    (tmp_path / "a.txt").write_text("One sentence.\nTwo here.\n\n" * 3 + "Another one.\nAnd two.\n")
    with pytest.raises(InputError, match="none of 2 documents") as caught:
        prepare(Request(Sources([str(tmp_path / "a.txt")]), tokenizer, str(tmp_path / "store"), PrepareOptions(0.001)))
    assert "--layout lines" in str(caught.value) and "--layout sentences" not in str(caught.value)


def test_a_text_whose_declared_tokens_were_spelt_out_is_refused(tokenizer, tmp_path):
    """The manifest says by which rules a text was encoded. Ids of another tool's are not of a text."""
    folder, location = with_declared(tokenizer, tmp_path / "declared"), tmp_path / "store"
    (tmp_path / "a.csv").write_bytes(b'id,text\r\n1,"[USER] saw\r\n<sep> it"\r\n2,"[user] saw </e1> it\r\n"\r\n')
    request = Request(Sources([str(tmp_path / "a.csv")]), folder, str(location), PrepareOptions(0.0))
    found = [document.tolist() for document in documents_of(prepare(request).split("train"))]
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ("[USER] saw\n<sep> it", "[user] saw </e1> it")
    assert found == [auto(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert TokenStore(str(location)).vocabulary.additional and prepare(request)  # nothing to do

    path = location / "manifest.json"
    made = json.loads(path.read_text())
    digest, options = made["tokenizer"].pop("additional_sha256"), made["options"]
    for recorded, changed_options, refusal in (
        ({}, options, r"tokenizer \(\[USER\], <e1>, </e1> …\) in a text were encoded as text, and are now tokens"),
        ({"additional_sha256": "0" * 64}, options, "were found in a text by other rules. Fix: prepare the text again"),
        ({"additional_sha256": digest}, options, None),
        ({}, {"special_tokens": "strip"}, None),  # converted
    ):
        tokens = {**made["tokenizer"], **recorded}
        path.write_text(json.dumps({**made, "tokenizer": tokens, "options": changed_options}))
        with pytest.raises(StoreError, match=refusal) if refusal else nullcontext():
            assert TokenStore(str(location)).vocabulary.size == len(auto)

    content = json.loads(Path(folder, "tokenizer.json").read_text())
    next(token for token in content["added_tokens"] if token["content"] == "[USER]")["lstrip"] = True
    Path(folder, "tokenizer.json").write_text(json.dumps(content))
    path.write_text(json.dumps({**made, "tokenizer": {**made["tokenizer"], "additional_sha256": digest}}))
    with pytest.raises(InputError, match="already holds another store: the tokenizer is another. Fix"):
        prepare(replace(request))
    (tmp_path / "a.csv").write_text("text\nanother\n")
    (tmp_path / "b.csv").write_text("text\nanother\n")
    more = Sources([str(tmp_path / name) for name in ("a.csv", "b.csv")])
    differs = r"a.csv has changed; b.csv is new; the tokenizer is another; valid_fraction: 0.0 -> 0.5"
    with pytest.raises(InputError, match=differs):
        prepare(replace(request, sources=more, options=PrepareOptions(0.5)))


def test_another_mask_of_the_same_ids_is_another_store(tokenizer, tmp_path, monkeypatch):
    """The roles are in the files beside tokenizer.json, which the fingerprint does not cover."""
    mended, at_first = tmp_path / "mended", tmp_path / "first"
    for folder, roles in ((mended, {}), (at_first, {"mask_token": "<pad>", "pad_token": "<mask>"})):
        shutil.copytree(tokenizer, folder)
        config = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | roles))
    first, now = (read_vocabulary(str(folder)) for folder in (at_first, mended))
    assert first.fingerprint == now.fingerprint and first.mask != now.mask
    (tmp_path / "a.txt").write_text("It saw a fox.\n\nAnd another.\n")
    sources, refusal = Sources([str(tmp_path / "a.txt")]), "was made with other begin, end, padding, mask or "
    request = Request(sources, str(at_first), str(tmp_path / "store"), PrepareOptions(0.0))
    made = prepare(request)
    assert made.manifest["tokenizer"]["roles_sha256"] == first.roles_sha256
    prepare(request)  # nothing to do
    for roles in (first.roles_sha256, None):  # as an older store, which has none
        made.manifest["tokenizer"]["roles_sha256"] = roles
        (tmp_path / "store" / "manifest.json").write_text(json.dumps(made.manifest))
        with pytest.raises(StoreError, match=refusal):
            prepare(replace(request, tokenizer=str(mended)))

    remote.push(made.location, "memory://roles/store")
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "cache"))
    assert TokenStore("memory://roles/store").vocabulary.mask == first.mask
    anew = prepare(replace(request, tokenizer=str(mended), folder=str(tmp_path / "anew")))
    assert anew.fingerprint == made.fingerprint
    remote.push(anew.location, "memory://roles/store")
    assert TokenStore("memory://roles/store").vocabulary.mask == now.mask, "not that of the cache"

    shutil.copytree(at_first, tmp_path / "anew" / "tokenizer", dirs_exist_ok=True)
    with pytest.raises(StoreError, match=refusal):
        _ = TokenStore(anew.location).vocabulary


def test_shuffled_windows_that_overlap_are_told(tokenizer, tmp_path, capfd):
    """Windows of DNA or of a log, overlapping and shuffled: held-out text was trained on without a word."""
    draw = random.Random(3)
    letters = "".join(draw.choices("ACGT", k=60_000))
    for step, warned in ((250, True), (500, False)):
        windows = [letters[begin : begin + 500] for begin in range(0, 59_500, step)]
        draw.shuffle(windows)
        (tmp_path / f"{step}.txt").write_text("\n".join(windows))
        sources = Sources([str(tmp_path / f"{step}.txt")], layout="lines")
        made = prepared(sources, tokenizer, tmp_path / f"{step}", PrepareOptions(valid_fraction=0.1))
        trained, held_out = ({*_passages(made.split(side))} for side in ("train", "valid"))
        share = len(trained & held_out) / len(held_out)
        assert passages.also_trained_on(made) == pytest.approx(share, abs=0.05) and (share > 0.5) == warned
        assert ("are in the training text too" in capfd.readouterr().err) == warned
    halves = [
        Sources([str(tmp_path / "250.txt")], layout="lines"),
        Sources([str(tmp_path / "500.txt")], layout="lines"),
    ]
    prepared(halves[0], tokenizer, tmp_path / "apart", PrepareOptions(valid_fraction=0), held_out=halves[1])
    assert "or name other files as --valid-files" in capfd.readouterr().err


def _passages(side):
    """The slow twin of `passages.chosen`, of all passages."""
    ids = [int(index) for shard_idx in range(len(side.shards)) for index in side.ids(shard_idx)]
    return (tuple(ids[begin : begin + passages.PASSAGE]) for begin in range(len(ids) - passages.PASSAGE + 1))
