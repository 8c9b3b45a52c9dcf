"""`data prepare`: the store of the slow twin, byte for byte the same whoever computes the parts, in whatever order."""

import gzip
import itertools
import json
import random
import re
from dataclasses import asdict

import fsspec
import numpy as np
import pyarrow.parquet
import pytest
from conftest import documents
from reference.preparer import contents, expected
from reference.stored import documents_of
from runners import files_of

from maskwright.core.errors import InputError, MaskwrightError, SourceError
from maskwright.data.prepare import encode
from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.report import report
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.data.store import TokenStore
from maskwright.processes.runner import Runner
from maskwright.text.audit import audit
from maskwright.text.cleaning.steps import CleaningOptions
from maskwright.text.parts import columns, cut, duplicates, judge
from maskwright.text.sources import Sources


class Shuffled(Runner):
    """Computes parts in an order of its own, counts them, and is killed after some."""

    def __init__(self, seed=0, killed_after=None):
        super().__init__()
        self.seed, self.killed_after, self.computed = seed, killed_after, list[str]()

    def run(self, work, parts, sizes, bar):
        order = [item for item in parts if item]
        random.Random(self.seed).shuffle(order)
        for number, part in order:
            if len(self.computed) == self.killed_after:
                raise OSError("killed")
            self.computed.append(bar.label)
            yield number, work(part)


def stories(path, count, seed, more=""):
    text = "\n\n".join("\n".join(lines) for lines in documents(count, seed))
    path.write_text(f"{text}\n\n{more}".strip() + "\n", encoding="utf-8")


@pytest.fixture
def sentences(tmp_path):
    """Files of sentences with blank lines between documents, some of which are in several files."""
    folder = tmp_path / "text"
    folder.mkdir()
    shared = "A story that two files have.\nIt ends here."
    for number in range(7):
        stories(folder / f"part{number}.txt", 12 + 5 * number, number, shared if number in (1, 2, 5) else "")
    return folder


@pytest.fixture
def records(tmp_path):
    """JSON lines, plain and compressed, with copies and near copies in other files."""
    folder, generator = tmp_path / "records", random.Random(5)
    folder.mkdir()
    words = ["the", "garden", "of", "an", "old", "house", "and", "a", "red", "tree", "have", "to", "grow", "with"]
    said = [[" ".join(generator.choices(words, k=14)) + "." for _ in range(6)] for _ in range(60)]
    texts = [" ".join(one) if number % 2 else "Menu\n" + "\n".join(one) for number, one in enumerate(said)]
    texts += [texts[3] + " again", texts[4], f"Write to a.b@example.net, {texts[5]}", texts[4]]
    texts += ["short", "", texts[9][:-4]]
    random.Random(6).shuffle(texts)
    for number in range(5):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[number::5])
        if number == 3:
            (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        else:
            (folder / f"{number}.jsonl").write_text(lines)
    return folder


@pytest.fixture
def files(request):
    return lambda kind: request.getfixturevalue(kind)


def in_one_shard(shards):
    """The numbers of each split, as of one shard."""
    joined = {}
    for split, numbers in shards:
        whole = joined.setdefault(split, {role: [] for role in numbers})
        before = len(whole["tokens"])
        for role, values in numbers.items():
            whole[role] += [value + before for value in values] if role in ("documents", "sentences") else values
    return joined


def cut_into(monkeypatch, folder, parts):
    size = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(cut, "PART_BYTES", (size // parts, size // parts))


CASES = {
    "plain": {"options": PrepareOptions(0.1, shard_tokens=2_000)},
    "duplicates kept": {"options": PrepareOptions(0.1, keep_duplicates=True, shard_tokens=900), "held_out": True},
    "held out": {"options": PrepareOptions(0.0, min_characters=60, shard_tokens=1_500), "held_out": True},
    "cleaned": {
        "options": PrepareOptions(0.2, max_characters=5_000, shard_tokens=1_200),
        "cleaning": {"filters": ("gopher",), "near_duplicates": 0.7, "masked": ("email",)},
    },
    "cleaned, duplicates kept": {
        "options": PrepareOptions(0.0, keep_duplicates=True),
        "cleaning": {"filters": ("c4",), "near_duplicates": 0.7},
        "held_out": True,
    },
}


def request(case, kind, folder, tokenizer):
    held = kind.parent / "held"
    if CASES[case].get("held_out") and not held.exists():
        held.mkdir()
        first = sorted(kind.iterdir())[0]
        (held / first.name).write_bytes(first.read_bytes())
        (held / f"z{first.name}").write_text("")
    cleaning = CASES[case].get("cleaning")
    if cleaning and cleaning.get("near_duplicates"):
        pytest.importorskip("rensa", reason="the extra `clean` is not installed")
    return Request(
        Sources([str(kind)]),
        tokenizer,
        str(folder),
        CASES[case]["options"],
        "tokenizers",
        held_out=Sources([str(held)], on_bad_input="skip") if CASES[case].get("held_out") else None,
        cleaning=CleaningOptions(**cleaning) if cleaning else None,
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Many small batches and searches, and no waiting for the disk."""
    monkeypatch.setattr("os.fsync", lambda file: None)
    monkeypatch.setattr(encode, "BATCH_CHARACTERS", 3_000)
    monkeypatch.setattr(encode, "RUN_DOCUMENTS", 10)
    monkeypatch.setattr(duplicates, "KEYS_AT_ONCE", 32)
    monkeypatch.setattr(duplicates, "RUN_DOCUMENTS", 20)
    monkeypatch.setattr(judge, "BATCH_CHARACTERS", 2_000)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["sentences", "records"])
def test_the_store_is_that_of_the_slow_twin_in_any_number_of_parts(case, kind, tokenizer, tmp_path, monkeypatch, files):
    text = files(kind)
    one = request(case, text, tmp_path / "one", tokenizer)
    ready, twin = prepare(one), expected(one)
    counts = ready.manifest["counts"]
    assert contents(ready) == twin.shards and {split for split, _ in twin.shards} == {"train", "valid"}
    assert twin.counts["left_out"] == sum(counts.get("left_out", {}).values())
    assert {name: twin.counts[name] for name in counts if type(counts[name]) is int} == {
        name: count for name, count in counts.items() if type(count) is int
    }
    assert sum(twin.counts[name] for name in ("left_out", "duplicates")) > 1
    for parts in (1, 3, 7) if case == "plain" else (5,):
        cut_into(monkeypatch, text, parts)
        runner = Shuffled(seed=parts)
        made = prepare(request(case, text, tmp_path / f"in{parts}", tokenizer))
        prepare(request(case, text, tmp_path / f"other{parts}", tokenizer), runner)
        assert files_of(tmp_path / f"other{parts}") == files_of(tmp_path / f"in{parts}")
        assert in_one_shard(contents(made)) == in_one_shard(twin.shards) and made.manifest["counts"] == counts
        assert runner.computed.count("encode") >= (parts + 1) // 2
        assert runner.computed.count("judge") == (runner.computed.count("encode") if one.cleaning else 0)
        # Repeats within a part are dropped before it is encoded, and with cleaning those of others, too.
        assert parts < 5 or one.cleaning or runner.computed.count("finish")


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_a_large_file_is_cut_where_documents_end(kind, tokenizer, tmp_path, monkeypatch, files):
    text, options = tmp_path / "large", PrepareOptions(0.1, shard_tokens=2_000)
    text.mkdir()
    if kind == "txt":
        blank = ["\n\n", "\r\n\r\n", "\n \t\n", "\n\u3000\n", "\n\n\n\n"]
        parts = ["\n".join([*lines, "Ünïcödé."]) for lines in documents(90, 4)]
        content = "\ufeff" + "".join(part + blank[number % 5] for number, part in enumerate(parts)).rstrip("\n")
        (text / "a.txt").write_bytes(content.encode())
        stories(text / "b.txt", 5, 6)
    else:
        lines = [path.read_text() for path in sorted(files("records").glob("*.jsonl"))]
        (text / "a.jsonl").write_text("\n".join(lines) + "\n")
    name = text / f"a.{kind}"
    if kind == "parquet":
        texts = [json.loads(line) for line in "".join(lines).splitlines() if line]
        (text / "a.jsonl").unlink()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(texts), name, row_group_size=2)

    def sources():
        return Sources([str(text)], layout="sentences")

    one = Request(sources(), tokenizer, str(tmp_path / "one"), options)
    assert contents(prepare(one)) == expected(one).shards
    size = sum(path.stat().st_size for path in text.iterdir())
    for parts_ in (4, 30):
        monkeypatch.setattr(cut, "PART_BYTES", (size // parts_, size // parts_))
        runner = Shuffled(seed=parts_)
        made = prepare(Request(sources(), tokenizer, str(tmp_path / f"in{parts_}"), options), runner)
        assert in_one_shard(contents(made)) == in_one_shard(expected(one).shards)
        assert runner.computed.count("encode") >= parts_ // 2 and runner.computed.count("cut") >= parts_ // 2
    raw = name.read_bytes()
    if kind == "parquet":
        name.write_bytes(raw[:-10])
        with pytest.raises(SourceError, match="is not Parquet"):
            prepare(Request(sources(), tokenizer, str(tmp_path / "bad"), options), Shuffled(2))
        return
    lines_ = raw.split(b"\n")
    for number in (len(lines_) * 2 // 3, len(lines_) // 2):
        lines_[number] = b'{"text": "caf\xe9"}'
    name.write_bytes(b"\n".join(lines_))
    for number, runner_ in enumerate((Runner(), Shuffled(2))):
        with pytest.raises(SourceError, match=re.escape(f"{name}:{len(lines_) // 2 + 1}:")):
            prepare(Request(sources(), tokenizer, str(tmp_path / f"bad{number}"), options), runner_)


def test_text_behind_urls(tokenizer, tmp_path, monkeypatch, files):
    text, memory, options = files("records"), fsspec.filesystem("memory"), PrepareOptions(0.1, shard_tokens=2_000)
    for path in text.iterdir():
        memory.pipe(f"/parts-of-text/{path.name}", path.read_bytes())
    monkeypatch.setattr(cut, "PART_BYTES", (4_000, 4_000))

    def request_of(name):
        return Request(Sources(["memory://parts-of-text/*"]), tokenizer, str(tmp_path / name), options)

    one = request_of("one")
    prepare(Request(one.sources, tokenizer, one.folder, options))
    runner = Shuffled()
    prepare(request_of("parts"), runner)
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "one") and runner.computed.count("encode") > 2
    memory.rm("/parts-of-text", recursive=True)


def test_processes_and_kills_change_nothing_and_nothing_is_computed_twice(tokenizer, tmp_path, monkeypatch, files):
    text = files("records")
    cut_into(monkeypatch, text, 4)
    prepare(request("cleaned", text, tmp_path / "one", tokenizer))
    with Runner(2) as two:
        prepare(request("cleaned", text, tmp_path / "two", tokenizer), two)
    assert files_of(tmp_path / "two") == files_of(tmp_path / "one")
    whole = Shuffled()
    prepare(request("cleaned", text, tmp_path / "whole", tokenizer), whole)
    computed = []
    for attempt in range(100):
        runner = Shuffled(seed=attempt, killed_after=3)
        try:
            ready = prepare(request("cleaned", text, tmp_path / "killed", tokenizer), runner)
        except OSError as error:
            assert str(error) == "killed"
            with pytest.raises(InputError, match="its preparation never finished. Fix: run the same `"):
                TokenStore(str(tmp_path / "killed"))
            continue
        finally:
            computed += runner.computed
        break
    assert attempt > 4 and sorted(computed) == sorted(whole.computed)
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "one")
    again = Shuffled()
    assert prepare(request("cleaned", text, tmp_path / "killed", tokenizer), again).location == ready.location
    assert set(again.computed) == {"hash"}
    with pytest.raises(InputError, match="already holds another store: its text was cleaned"):
        prepare(request("plain", text, tmp_path / "killed", tokenizer), again)
    with pytest.raises(InputError, match="which must be read"):
        prepare(request("plain", text, text, tokenizer), again)


def test_a_file_of_columns_is_read_by_ranges_and_refused_when_cut(tmp_path):
    path = str(tmp_path / "found")
    parts = [np.arange(5, dtype="<u2"), np.zeros(0, "<u2"), np.arange(7, 10, dtype="<u2")]
    with columns.written(path) as writer:
        for part in parts:
            writer.append("a", part)
            writer.append("b", part.astype(">u8"))
        writer.note = {"é": 1}
    file, whole = columns.Columns(path), np.concatenate(parts)
    assert all(
        file.column(name, begin, 8).tolist() == whole[begin:].tolist() for name in "ab" for begin in (0, 3, 5, 8)
    )
    assert file.numbers("b", 5, 8).tolist() == whole[5:].tolist()
    assert file.note == {"é": 1} and file.count("a") == 8 and file.column("b").dtype == "<u8"
    content = (tmp_path / "found").read_bytes()
    for cut_at in (0, 3, len(content) - 1, len(content) - 9):
        (tmp_path / "found").write_bytes(content[:cut_at])
        with pytest.raises(MaskwrightError, match="cannot be read"):
            columns.Columns(path)


def test_the_first_fault_is_raised_and_only_its_part_is_computed_again(tokenizer, tmp_path, monkeypatch, files):
    text = files("records")
    good = {name: (text / name).read_bytes() for name in ("1.jsonl", "2.jsonl", "4.jsonl")}
    for name in good:
        (text / name).write_bytes(good[name] + b'{"text": "broken\n')
    plain, folder = CASES["plain"]["options"], tmp_path / "store"
    with pytest.raises(InputError) as one:
        prepare(Request(Sources([str(text)]), tokenizer, str(folder), plain, "tokenizers"))
    assert str(text / "1.jsonl") in str(one.value) and not folder.exists()
    monkeypatch.setattr(cut, "PART_BYTES", (4_000, 4_000))
    for seed in range(4):
        with pytest.raises(type(one.value)) as caught:
            prepare(request("plain", text, tmp_path / f"{seed}", tokenizer), Shuffled(seed))
        assert str(caught.value) == str(one.value)
    (text / "1.jsonl").write_bytes(good["1.jsonl"])
    with pytest.raises(InputError, match="2.jsonl"):
        prepare(request("plain", text, tmp_path / "0", tokenizer), Shuffled())
    for name in good:
        (text / name).write_bytes(good[name])
    runner = Shuffled()
    prepare(request("plain", text, tmp_path / "0", tokenizer), runner)
    assert runner.computed.count("encode") <= 3
    prepare(request("plain", text, tmp_path / "one", tokenizer))
    assert files_of(tmp_path / "0") == files_of(tmp_path / "one")


def test_skipped_faults_are_told_and_a_file_that_changes_is_refused(tokenizer, tmp_path, monkeypatch, files):
    text, options = files("records"), CASES["plain"]["options"]
    with open(text / "2.jsonl", "ab") as file:
        file.write(b'{"text": "broken\n{"text": "caf\xe9"}\n')
    monkeypatch.setattr(cut, "PART_BYTES", (4_000, 4_000))

    def sources(told):
        return Sources([str(text)], on_bad_input="skip", on_fault=told.append)

    told = []
    monkeypatch.setattr(cut, "PART_BYTES", (4_000, 4_000))
    expected = prepare(Request(sources(told), tokenizer, str(tmp_path / "one"), options))
    in_parts = []
    made = prepare(Request(sources(in_parts), tokenizer, str(tmp_path / "parts"), options), Shuffled())
    assert in_parts == told and len(told) == 2
    assert made.manifest == expected.manifest
    other = Request(sources([]), tokenizer, str(tmp_path / "other"), options)
    (text / "0.jsonl").write_text('{"text": "another"}\n')
    with pytest.raises(SourceError, match="was changed while it was read"):
        prepare(other, Shuffled())


@pytest.mark.parametrize("kind", ["sentences", "records"])
def test_the_audit_is_the_same_in_any_number_of_parts(kind, tokenizer, monkeypatch, files):
    pytest.importorskip("rensa", reason="the extra `clean` is not installed")
    text = files(kind)
    name = sorted(text.iterdir())[1]
    with open(name, "ab") as file:
        file.write(b"caf\xe9\n\n<mask> and \x01\n")
    (text / "other.bin").write_bytes(b"1")
    (text / "windows.txt").write_bytes("Plain words.\n\n".encode("utf-16") * 400)
    monkeypatch.setattr("maskwright.text.audit.SAMPLE_TEXTS", 40)
    every = CleaningOptions(filters=("gopher", "c4"), near_duplicates=0.6, masked=("email", "phone"))
    near = CleaningOptions(near_duplicates=0.5)
    for cleaning in (None, near, every) if kind == "records" else (every,):
        monkeypatch.undo()
        monkeypatch.setattr("maskwright.text.audit.SAMPLE_TEXTS", 40)
        whole = audit([str(text)], tokenizer=tokenizer, cleaning=cleaning)
        assert whole.findings["exact duplicate documents"].count > 1
        assert not cleaning or sum(found.count for found in whole.left_out.values()) > 0
        for parts in (1, 4):
            cut_into(monkeypatch, text, parts)
            runner = Shuffled(parts)
            found = audit([str(text)], runner, tokenizer=tokenizer, cleaning=cleaning)
            assert json.dumps(asdict(found)) == json.dumps(asdict(whole))
            assert runner.computed.count("audit") >= (parts - 1) // 2 and len(runner.computed) > 0


def test_no_side_has_what_the_tokenizer_cannot_tell_from_the_other(tokenizer_of, tmp_path):
    """Other case, line breaks, accents and spaces give the same ids, and so are duplicates; what has no id is no
    document."""
    own = [" ".join(lines) for lines in documents(60, seed=8, longest=4)]
    others = [
        one.upper() if number % 2 else one.replace(" ", "\n").replace("o", "o\u0301") for number, one in enumerate(own)
    ]
    texts = [*own, "\u200b\u200c", *others, "\u200d", *(one.replace(".", " .") for one in own)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def made(name, **options):
        sources, folder = Sources([str(tmp_path / "a.jsonl")]), str(tmp_path / name)
        request = Request(sources, tokenizer_of("bert-uncased"), folder, PrepareOptions(0.3, **options))
        return prepare(request)

    ready = made("store")
    counts = ready.manifest["counts"]
    assert (counts["read"], counts["kept"], counts["duplicates"], counts["empty"]) == (182, 60, 120, 2)
    both = made("both", keep_duplicates=True)
    assert both.manifest["counts"]["kept"] == 180 and both.manifest["counts"]["empty"] == 2
    for store in (ready, both):
        sides = [ids_of(store, side) for side in ("train", "valid")]
        assert not {*sides[0]} & {*sides[1]} and {*sides[0]} | {*sides[1]} == {
            *ids_of(ready, "train"),
            *ids_of(ready, "valid"),
        }
        assert sum(map(len, sides)) == store.manifest["counts"]["kept"]
    assert "2 empty" in report(ready.location, ready.manifest)
    found = audit([str(tmp_path / "a.jsonl")], tokenizer=tokenizer_of("bert-uncased"))
    assert found.findings["exact duplicate documents"].count == 120
    assert audit([str(tmp_path / "a.jsonl")]).findings["exact duplicate documents"].count == 0


def test_documents_whose_ids_differ_are_no_duplicates(tokenizer_of, tmp_path):
    """Without its spaces, `1 12 5` would be `11 2 5`."""
    lines = [" ".join(four) for four in itertools.product(("1", "2", "11", "12", "21", "22"), repeat=4)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    folder = tokenizer_of("bert-uncased")
    sources = Sources([str(tmp_path / "a.txt")], layout="lines")
    ready = prepare(Request(sources, folder, str(tmp_path / "store"), PrepareOptions(0.1)))
    assert ready.manifest["counts"]["kept"] == 1_296 == len({*ids_of(ready, "train"), *ids_of(ready, "valid")})
    found = audit([str(tmp_path / "a.txt")], layout="lines", tokenizer=folder)
    assert found.findings["exact duplicate documents"].count == 0


def ids_of(store, side):
    return [tuple(ids.tolist()) for ids in documents_of(store.split(side))]
