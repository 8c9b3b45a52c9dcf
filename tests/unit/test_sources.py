import base64
import bz2
import glob
import gzip
import json
import lzma
import random
import re
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from loopback import Handler, serving

from maskwright.core import storage
from maskwright.core.errors import InputError, MaskwrightError, SourceError
from maskwright.processes.runner import Runner
from maskwright.text import lines as lines_module
from maskwright.text import sources as sources_module
from maskwright.text.compression import ByteSpan, guarded
from maskwright.text.document import Fault
from maskwright.text.layout import sampled
from maskwright.text.parts import cut as parts_module
from maskwright.text.parts.cut import cut, split
from maskwright.text.sources import Sources

TEXT = "One two.\nThree.\n\nFour é.\n\n\n  Five  \nSix\n"


def zstd(raw):
    return bytes(pa.compress(raw, "zstd", asbytes=True))


PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstd,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


def read(path, **options):
    return [(document.text, document.line) for document in Sources([str(path)], **options)]


def fails(path, **options):
    with pytest.raises(SourceError) as caught:
        read(path, **options)
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("sentences", [("One two. Three.", 1), ("Four é.", 4), ("Five Six", 7)]),
        ("lines", [("One two.", 1), ("Three.", 2), ("Four é.", 4), ("Five", 7), ("Six", 8)]),
        ("file", [(TEXT.strip(), 1)]),
    ],
)
@pytest.mark.parametrize("compression", ["", ".gz", ".zst", ".xz", ".bz2"])
@pytest.mark.parametrize("is_named", [True, False], ids=["named", "by its first bytes"])
def test_plain_text_layouts_and_compressions(layout, expected, compression, is_named, tmp_path):
    path = tmp_path / f"a.txt{compression if is_named else ''}"
    raw, pack = TEXT.encode(), PACK[compression]
    path.write_bytes(pack(raw[:9]) + pack(raw[9:]))
    assert read(path, layout=layout) == expected
    if compression and layout == "lines":
        assert not cut([Sources([str(path)], layout="lines")])[0].splittable
        path.write_bytes(pack(b""))
        assert fails(path).startswith("FILE: holds no text. Fix: remove it")


def test_auto_layout_looks_at_the_largest_files_and_at_some_from_first_to_last(tmp_path):
    (tmp_path / "z.txt").write_text("a b\nc d\n")
    assert Sources([str(tmp_path)]).layout == "lines"
    (tmp_path / "z.txt").write_text("a b\n\nc d\n")
    assert Sources([str(tmp_path)]).layout == "sentences"
    for number in range(60):
        (tmp_path / f"{number:02}.txt").write_text("short\n")
    (tmp_path / "z.txt").write_text("one more line\n" * 100_000)
    assert (sources := Sources([str(tmp_path)])).layout == "lines" and sources.guess and sources.guess.files == 20
    assert sampled([7] * 18) == [*range(18)]
    found = sampled([1] * 500 + [9] + [1] * 500)
    assert len(found) == 20 and 500 in found and found[-1] == 1000
    assert max(np.diff(found)) <= 75


SENTENCES = "\n\n".join(f"Story {number} begins.\nIt goes on.\n“It ends!”" for number in range(21)) + "\n"
WRAPPED = "\n\n".join(["This line goes on into\nthe next one, and ends. That\none does not.", "A title"] * 20)
CODE = "package a;\n\nimport b;\nimport c;\n\nclass A {\n    int a;\n    int b;\n    int c;\n\n"
CODE += "    int d() {\n        a = b;\n        return c;\n    }\n}\n"
PARAGRAPHS = "\n\n".join(["One paragraph is a line. It has sentences."] * 20)


@pytest.mark.parametrize(
    ("text", "layout", "said"),
    [
        (SENTENCES, "sentences", "42 documents in the 2 files sampled; 2 with --layout file, 126 with --layout line"),
        (SENTENCES.replace("\n", "\r\n"), "sentences", "42 documents"),
        *((re.sub("[.!”]", end, SENTENCES), "sentences", "42 documents") for end in ("።", "។", "།", "။", "॥", "。」")),
        (WRAPPED, "file", "2 documents in the 2 files sampled; 80 with --layout sentences"),
        (PARAGRAPHS, "file", "40 with --layout sentences"),
        (CODE, "file", "8 with --layout sentences"),
    ],
)
def test_small_files_of_sentences_are_told_from_prose(text, layout, said, tmp_path):
    """Two files of 21 documents were taken for two documents, none of which was held out."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(text)
    sources = Sources([str(tmp_path)])
    assert sources.layout == layout
    assert said in str(sources.guess)
    assert len(list(sources)) == sources.guess.documents[sources.layout]


def test_files_come_in_sorted_order_and_others_are_left_out(tmp_path):
    for name in ("b.txt", "a.txt", "c.py", "wiki_00", "info.json", ".hidden.txt"):
        (tmp_path / name).write_text(name)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\n")
    (tmp_path / "void.py").write_text(" \n")
    texts = ["a.txt", "b.txt", "c.py", "wiki_00"]
    left_out = "leaving out 1 file of another kind (1 .json) and 2 files w"
    for pattern, options, expected, said in (
        ("DIR", {}, texts[:2], "leaving out 5 files of another kind (2 .py, 1 .json, 1 .png, 1 without an ending)"),
        ("DIR", {"layout": "file"}, texts, left_out),  # what has text, whatever its ending
        ("DIR/*", {"layout": "auto"}, texts, left_out),
        ("DIR/*.py", {}, ["c.py"], "leaving out 1 file without text (1 .py)"),
    ):
        sources = Sources([pattern.replace("DIR", str(tmp_path))], **options)
        assert [document.text for document in sources] == expected and sources.bytes_read == sum(sources.sizes)
        assert said in "; ".join(sources.choice)
    assert read(tmp_path / "wiki_00") == [("wiki_00", 1)]
    assert fails(tmp_path / "info.json").startswith("FILE:1: is not JSON")
    assert fails(tmp_path / "picture.png") == "FILE: is binary, not text. Fix: leave the file out"
    (tmp_path / "list.json").write_text('[{"text": "of a table"}]')
    with pytest.raises(InputError, match="matches no file"):
        Sources([str(tmp_path / "*.csv")])
    both = Sources([str(tmp_path), f"{tmp_path}/*", f"{tmp_path}/list.json"])  # names one .json, and no other
    assert {Path(name).name for name in both.files} == {*texts, "list.json"}
    (tmp_path / "state.json").write_text('{"epoch": 3}')  # of another program than `datasets`
    for path in tmp_path.glob("*.txt"):
        path.unlink()
    assert fails(tmp_path).startswith("FILE: holds no readable file, but 7 files of another kind (3 .json, 2 .py")


def test_one_file_in_several_spellings_is_read_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("seen")
    (tmp_path / "corpus" / "b.txt").symlink_to("a.txt")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0a1b").write_text("as the Hub keeps it")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "c.txt").symlink_to("../blobs/0a1b")
    spellings = ["corpus", "./corpus/a.txt", f"{tmp_path}/corpus/a.txt", f"file://{tmp_path}/corpus/*.txt"]
    assert storage.expand(spellings) == ["./corpus/a.txt"] == storage.expand(spellings[::-1])
    assert storage.expand(["."]) == ["./corpus/a.txt", "./snapshot/c.txt"]
    (tmp_path / "copy.txt").write_text("seen")
    assert storage.expand(["copy.txt", "corpus"]) == ["copy.txt", "corpus/a.txt"]


def test_old_macs_lines_in_blocks_and_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "READ_BYTES", 8)
    (tmp_path / "a.txt").write_bytes(raw := b"one\rtwo\rthree\rfour\r\nfive\rsix\nseven\reight\n")
    expected = [("one", 1), ("two", 2), ("three", 3), ("four", 4), ("five\rsix", 5), ("seven\reight", 6)]
    assert read(tmp_path / "a.txt", layout="lines") == expected
    monkeypatch.setattr(parts_module, "PART_BYTES", (8, 8))
    parts = split(Runner(), str(tmp_path), cut([Sources([str(tmp_path / "a.txt")], layout="lines")]))
    assert [part.span for part in parts if part.span][1].begin == raw.index(b"five")
    assert [(document.text, document.line) for part in parts for document in part.open()] == expected


def test_texts_that_do_not_decode_are_encoding_faults_in_tables_too(tmp_path):
    half, bad = tmp_path / "a.jsonl", tmp_path / "a.parquet"
    half.write_text('{"text": "fine"}\n{"text": "bad \\ud800"}\n')
    raw = pa.array([b"fine", b"bad \xff"], pa.binary())
    pq.write_table(pa.table({"text": pa.Array.from_buffers(pa.string(), 2, raw.buffers())}), bad)
    assert fails(half).startswith("FILE:2: U+D800 is half a surrogate pair. Fix: ")
    (half.parent / "half.json").write_text('[\n\n\n{"text": "\\ud800"}]')
    assert fails(half.parent / "half.json").startswith("FILE record 1: U+D800 is half a surrogate pair. Fix: ")
    assert fails(bad).startswith("FILE record 2: 0xff, byte 5 of the text, is not UTF-8")
    for path in (half, bad):
        assert [text for text, _ in read(path, on_bad_input="replace")] == ["fine", "bad \ufffd"]
        assert [text for text, _ in read(path, on_bad_input="skip")] == ["fine"]


def test_deep_globs_follow_no_links_and_give_the_names_of_glob(tmp_path, monkeypatch):
    """Two links back, each followed in every order, would never end."""
    for name in ("a.txt", "one/b.txt", "one/two/c.txt", "one/two/[x]/d.txt", ".hidden/e.txt", "one/.f.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("seen")
    monkeypatch.chdir(tmp_path)
    patterns = ("**/*.txt", "*/**/*.txt", "one/**", "./**/c.txt", "**/two/**/*.txt", f"{tmp_path}/**/*.txt", "o*/**/d*")
    expected = [sorted({n for n in glob.glob(pattern, recursive=True) if Path(n).is_file()}) for pattern in patterns]
    for link in ("back", "again"):
        (tmp_path / "one" / link).symlink_to(tmp_path)
    (tmp_path / "one" / "dead.txt").symlink_to("nowhere")
    assert [storage.expand([pattern]) for pattern in patterns] == expected


def test_fsspec_locations_are_read():
    import fsspec

    with fsspec.open("memory://corpus/a.txt", "wb") as file:
        file.write(b"One.\nTwo.\n")
    assert read("memory://corpus/*.txt", layout="lines") == [("One.", 1), ("Two.", 2)]
    for name in ("[draft] a*b.txt", "why?.txt"):  # no globs, where such a file is there
        with fsspec.open(f"memory://odd/{name}", "wb") as file:
            file.write(name.encode())
    for name in (".ipynb_checkpoints/a-checkpoint.txt", ".b.txt", "below/c.txt"):
        with fsspec.open(f"memory://corpus/{name}", "wb") as file:
            file.write(b"hidden")
    for patterns, names in {
        "memory://corpus": ["a.txt", "below/c.txt"],
        "memory://corpus/*": ["a.txt"],
        "memory://corpus/**/*.txt": ["a.txt", "below/c.txt"],
        "memory://corpus/.*.txt": [".b.txt"],
        "memory://corpus/.b.txt": [".b.txt"],
        "memory://corpus/.ipynb_checkpoints": [".ipynb_checkpoints/a-checkpoint.txt"],
    }.items():
        assert storage.expand([patterns]) == [f"memory:///corpus/{name}" for name in names]
    (part,) = cut([Sources(["memory://odd"], layout="lines")])
    assert [document.text for document in part.open()] == ["[draft] a*b.txt", "why?.txt"]


def test_a_web_address_of_unknown_size_is_read():
    class Silent(Handler):
        """Answers without the size, as servers do for what they make while they send it."""

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"One.\nTwo.\n" if "full" in self.path else b"")

    with serving(Silent) as address:
        faults = list[Fault]()
        addresses = [f"{address}/full.txt", f"{address}/void.txt"]
        sources = Sources(addresses, layout="lines", on_bad_input="skip", on_fault=faults.append)
        assert [document.text for document in sources] == ["One.", "Two."]
        assert [(fault.kind, fault.where) for fault in faults] == [("empty_file", f"{address}/void.txt")]


def test_records_without_text_are_counted(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": null}\n{"text": ""}\n{"text": "x"}\n')
    (tmp_path / "b.csv").write_text("id,text\n1,\n2,y\n3,  \n")
    pq.write_table(pa.table({"text": ["z", None, " \n"]}), tmp_path / "c.parquet")
    (tmp_path / "d.fastq").write_text("@1\n\n+\n\n@2\nAC\n+\n!!\n")
    sources = Sources([str(tmp_path)])
    for _ in range(2):  # of the last reading
        assert [document.text for document in sources] == ["x", "y", "z", "AC"]
        assert (sources.documents, sources.without_text) == (4, 7)
    found = [place.replace(f"{tmp_path}/", "") for place in sources.places_without_text]
    assert found == ["a.jsonl:1", "a.jsonl:2", "b.csv:2", "b.csv:4", "c.parquet record 2"]
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"other": "y"}\n')
    sources = Sources([str(tmp_path / "a.jsonl")], on_bad_input="skip")
    assert [document.text for document in sources] == ["x"] and sources.without_text == 1


def test_lists_of_words_are_text(tmp_path):
    lists = [["a", "b c"], [["a", "b"], ["c"]], [[["a"], ["b"]], [["c", "d"]]], ["é"], []]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps({'text': words})}\n" for words in lists))
    (tmp_path / "b.json").write_text(json.dumps([{"text": words} for words in lists]))
    expected = ["a b c", "a b\nc", "a\nb\nc d", "é"]
    for name in ("a.jsonl", "b.json"):
        sources = Sources([str(tmp_path / name)])
        assert [document.text for document in sources] == expected and sources.without_text == 1
    pq.write_table(pa.table({"tokens": lists[:1], "lines": lists[1:2], "ids": [[5, 6]]}), tmp_path / "c.parquet")
    for column, text in (("tokens", "a b c"), ("lines", "a b\nc")):
        assert read(tmp_path / "c.parquet", text_column=column) == [(text, 1)]
    fix = "Fix: write words, or use `maskwright data convert` for token ids"
    assert fix in fails(tmp_path / "c.parquet", text_column="ids")
    for bad in (["a", 5], ["a", ["b"]], [["a"], [5]], ["a", None]):
        (tmp_path / "d.jsonl").write_text(json.dumps({"text": bad}))
        assert "'text' is a list, but not of words" in fails(tmp_path / "d.jsonl")


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("list", ["['a', 'b']", '[["a", "b"], ["c"]]', "[[['é', 'it\\'s']]]", "('a', 'b')", "['a' 'b']", '[ "a"]']),
        ("object", ['{"text": "a"}', "{'text': 'a'}", '[{"a": 1}]', '{ "a b" : []']),
        ("markup", ["<!DOCTYPE html>", "<p>a</p>", "a<br />b", '<DIV class="x">', "<?xml version", '<doc id="1">']),
        ("rtf", [r"{\rtf1\ansi\deff0 a\par }"]),
        ("entities", ["a &amp; b", "it&#39;s", "a&nbsp;b", "&#x2019;", "caf\u00e9 &lt;3"]),
        ("escapes", [r"One.\n\nTwo", r"one\n Two\r\n", r"caf\u00e9 na\u00efve"]),
        (
            "pieces",
            ["▁The ▁lo wer", "the lo@@ wer", "go ##ing on", "ĠThe Ġlow Ġend Ġof", "a <unk> word", "role @-@ play"],
        ),
        ("numbers", ["464 3290 318 257 922 3290 11 13", "1\t2\t3 4 5 6 7 8 9"]),
        ("decomposed", ["cafe\u0301", "\u1112\u1161\u11ab", "tie\u0302\u0301ng Vie\u0323\u0302t"]),
        (
            "base64",
            [*(base64.b64encode((text * 9).encode()).decode() for text in ("a tale\n", "Größe\u00a0", "日本の"))],
        ),
        ("k-mers", ["ACGTAC CGTACA GTACAT TACATG ACATGG CATGGA ATGGAC TGGACC", "mkt kta tay ayi yia iak akq kqr qrs"]),
        ("separator", ["<|endoftext|>", "-----", "* * *"]),
        (
            "mojibake",
            [*(text.encode().decode("cp1252") for text in ("café", "“so", "привет", "5 °C", "Straße", "\ufffd"))],
        ),
        ("", ["R&D; A&M", "&c", r"C:\new\names", r'printf("a\n"); puts("b\n")', r"$\nabla \neq \nu$", "Ġurnata Ġdida"]),
        ("", ["## Title", "see #12", "me@@home", "▂▁▂▃", "1 2 3", "12 May 2020 10 11 12 13 14 15 16", "caf\u00e9"]),
        ("", ["SÃO PAULO", "AMANHÔ", "Âne", "Ñandú", "Ð er íslenskt", "Straße, „Spaß“", "naïve café", "привет"]),
        ("", ["\u0634\u0651\u064e", "\u0958", "-- said", "--- a/file"]),
        ("", ["ACGTAC CGTACA GTACAT", "AAA AAT GGC TTA CCA GGT AAC TTG", "a b c d e f g h i", "ACG TAC GTA CAT GGA"]),
        ("", ["ACGT" * 40, "MKTAYIAKQRQISFVKSHFSRQ" * 5, "0123456789abcdef" * 8, "ab" * 60]),
        ("", ["plain", '("Yes," she said)', "[1] Smith", "{braces}", "a < p > b", "<user> and <e1>", "<3", "(a)"]),
        ("", ["['a' is", "if a<b: p", "[[link]]", '("aside") it', "{'", "[", "<path/to/file>", "x" * 2_000 + "<p>"]),
    ],
)
def test_notations_of_data_and_markup_are_noted(kind, texts, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n".join(["first", *texts]))
    sources = Sources([str(path)], layout="lines")
    for _ in range(2):  # of the last reading
        assert [document.text for document in sources] == ["first", *texts]
        first = f"{path}:2: {texts[0][:60]}"
        assert sources.notations == ({kind: (len(texts), first)} if kind else {})
    if kind == "separator":  # a break between paragraphs, not between lines
        path.write_text("\n\n".join(["first", *texts]))
        assert len([*(sources := Sources([str(path)], layout="sentences"))]) == 4 and not sources.notations


LETTERS = "".join(random.Random(7).choices("ACGT", k=2_000))


@pytest.mark.parametrize(
    ("texts", "noted"),
    [
        ([LETTERS[begin : begin + 200] for begin in range(0, 1_801, 100)], 18),
        ([LETTERS[begin : begin + 200] for begin in range(0, 1_801, 136)], 13),
        ([LETTERS[begin : begin + 200] for begin in range(0, 1_801, 140)], 0),
        ([LETTERS[:80] + LETTERS[begin : begin + 100] for begin in range(100, 1_801, 100)], 0),
        (["A" * 100 + letter for letter in LETTERS[:10]], 0),
        (["begins anew " * 10 + f"for the {number}th time" for number in range(10)], 0),
    ],
    ids=["half", "64 letters", "60 letters", "a header", "a run", "a phrase"],
)
def test_windows_that_overlap_are_noted(texts, noted, tmp_path):
    path = tmp_path / "a.fa"
    path.write_text("".join(f">{number}\n{text}\n" for number, text in enumerate(texts)))
    plain = tmp_path / "a.txt"
    plain.write_text("\n".join(texts))
    for sources in (
        Sources([str(plain)], layout="lines"),
        *[Sources([str(path)])] * ({*texts[0]} <= {*"ACGT"}),
    ):
        assert len(list(sources)) == len(texts)
        assert {kind: count for kind, (count, _) in sources.notations.items()} == ({"overlap": noted} if noted else {})


def test_zstd_of_any_window_in_several_frames_is_read(tmp_path):
    """Frames as of `zstd --long=31`: of 2 GiB, and as long as its content; behind each one that is to be skipped."""
    skipped = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    content = (12 << 3 | 1).to_bytes(3, "little") + b"hello world\n"
    windows = (bytes([0, 21 << 3]), b"\xe0" + (12).to_bytes(8, "little"))
    frames = b"".join(b"\x28\xb5\x2f\xfd" + window + content + skipped for window in windows)
    path = tmp_path / "a.txt.zst"
    path.write_bytes(frames + zstd(b"ok\n" * 1000) + skipped)
    assert [text for text, _ in read(path, layout="lines")] == ["hello world"] * 2 + ["ok"] * 1000
    for rest in (skipped[:7], b"\x28\xb5\x2f\xfd", b"\x28\xb5\x2f\xfd\0", b"more"):
        path.write_bytes(frames + rest)
        assert fails(path, layout="lines").startswith("FILE:3: is cut short or damaged")


def test_a_disk_or_network_that_fails_is_no_damaged_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n")

    def failing(error):
        raise error
        yield b""

    for name, error in ((str(path), OSError(5, "Input/output error")), ("memory://a.txt", TimeoutError("too slow"))):
        with pytest.raises(MaskwrightError, match="cannot be read: ") as caught:
            list(guarded(name, failing(error)))
        assert "damaged" not in str(caught.value) and not isinstance(caught.value, SourceError)


@pytest.mark.parametrize("options", [{"layout": "lines"}, {}], ids=["lines", "auto"])
def test_a_cut_archive_is_cut_at_the_line_that_is_named(options, tmp_path):
    generator = random.Random(4)
    raw = "\n".join(f"line {number} {generator.getrandbits(256):x}" for number in range(10_000)).encode()
    unpack = {".gz": zlib.decompressobj, ".xz": lzma.LZMADecompressor, ".bz2": bz2.BZ2Decompressor}
    for ending, unpacker in unpack.items():
        path, whole = tmp_path / f"a.txt{ending}", PACK[ending](raw)
        path.write_bytes(b"not an archive at all")
        assert fails(path, **options).startswith("FILE:1: is cut short or damaged")
        for share in (0.02, 0.9):
            path.write_bytes(whole[: int(len(whole) * share)])
            left = (unpacker(31) if ending == ".gz" else unpacker()).decompress(path.read_bytes())
            assert int(fails(path, **options).split(":")[1]) == left.count(b"\n") + 1


def test_the_fix_of_a_record_without_text_follows_from_the_others(tmp_path):
    path = tmp_path / "a.jsonl"
    for content, said in (
        ('{"text": "x"}\n{"body": "y"}\n', "FILE:2: has no 'text' (keys: body). Fix: give it one"),
        ('{"body": "y"}\n{"text": "x"}\n', "FILE:1: has no 'text' (keys: body). Fix: name the text with --text-column"),
        (
            '{"text": {"id": 1, "pt-BR": "a"}}\n',
            "FILE:1: 'text' holds objects with the keys id, pt-BR, not text. Fix: write JSON lines with the text "
            'alone, such as by jq -c \'{text: ."text"."pt-BR"}\'',
        ),
        (
            '{"text": [{"role": "u", "of": "a b"}]}\n',
            "FILE:1: 'text' holds objects with the keys role, of, not text. Fix: write JSON lines with the text alone, "
            'such as by jq -c \'{text: [."text"[]."of"]}\'',
        ),
        ('{"text": 5}\n', "FILE:1: 'text' is int, not text. Fix: name the text with --text-column"),
    ):
        path.write_text(content)
        assert fails(path) == f"{said}, or --on-bad-input skip"


def test_other_encodings_and_kinds_are_named(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"name" + bytes(3000))
    assert "is binary, not text" in fails(path)
    path.write_bytes(b"\x7fELF\0\xff\n" * 3)
    assert fails(path, on_bad_input="replace") == "FILE: is binary, not text. Fix: leave the file out"
    for raw, what in (
        (path.read_bytes(), "is binary, not text"),
        ("Words.\nMore\n".encode("utf-16-le"), "is UTF-16 without its mark"),
    ):
        path.write_bytes(raw)
        faults = []
        skipping = Sources([str(path)], layout="lines", on_bad_input="skip", on_fault=faults.append)
        for span in (None, ByteSpan(14, len(raw), 2)):  # who reads a later part does not tell of it again
            skipping.span = span
            assert [*skipping] == [] and [fault.what for fault in faults] == [what]
    path.write_bytes(b"")
    assert fails(path).startswith("FILE: is empty")
    for raw, said in {
        b"%PDF-1.7\n%\xe2\xe3": "is a PDF. Fix: extract its text first",
        b"a.txt".ljust(257, b"\0") + b"ustar  \0": "is a tar archive. Fix: unpack it",
        b"PAR1\x15\x04": "is Parquet. Fix: rename it to end in .parquet",
        b"\xff\xff\xff\xff\x78\x01\0\0\x10\0\0\0": "is Arrow. Fix: ",
    }.items():
        for name, pack in (("a.dat", bytes), ("a", gzip.compress), ("a.log.xz", lzma.compress)):
            (tmp_path / name).write_bytes(pack(raw))
            assert fails(tmp_path / name).startswith(f"FILE: {said}")


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("layout", ["lines", "sentences", "file"])
def test_blocks_of_lines_equal_line_by_line(seed, layout, tmp_path, monkeypatch):
    """Blocks of a few bytes: characters, line ends and whole lines are cut by their borders in every way."""
    generator = random.Random(seed)
    parts = ["a", "bc ", "é", "中", "😀", "\n", "\n\n", "\r\n", " ", "\t", "\u3000", "x" * 40]
    has_mark = seed % 3 == 0
    parts += ["\0"] * has_mark  # without a mark, many of them are those of UTF-16
    text = "a" + "".join(generator.choices(parts, k=120))
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" * has_mark + text.encode())
    monkeypatch.setattr("maskwright.core.storage.READ_BYTES", generator.randint(3, 9))
    found = [
        (document.text, document.parts if document.has_sentences else None, document.line)
        for document in Sources([str(path)], layout=layout)
    ]

    lines = [line.rstrip("\r") for line in text.split("\n")]
    expected = []
    if layout == "file":
        expected = [("\n".join(lines).strip(), None, 1)]
    elif layout == "lines":
        expected = [(line.strip(), None, number) for number, line in enumerate(lines, 1) if line.strip()]
    else:
        together = []
        for number, line in enumerate([*lines, ""], 1):
            if line.strip():
                together.append((number, line.strip()))
            elif together:
                sentences = tuple(sentence for _, sentence in together)
                expected.append((" ".join(sentences), sentences, together[0][0]))
                together = []
    assert found == expected


@pytest.mark.parametrize(
    ("name", "layout", "at", "found"),
    [
        ("a.txt", "lines", 2, [("one", 1), ("two", 3), ("xxxxx", 4)]),
        ("a.txt.gz", "lines", 2, [("one", 1), ("two", 3), ("xxxxx", 4)]),  # as a bomb is
        ("a.txt", "file", 1, []),
        ("a.txt", "sentences", 3, [("one", 1), ("three", 4 + (1 << 20)), ("four", 6 + (1 << 20))]),
    ],
)
def test_what_has_no_end_is_refused_before_it_fills_memory(name, layout, at, found, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "READ_BYTES", 1 << 16)
    for module in (lines_module, sources_module):
        monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 1 << 18)
    content = b"one\n\n" + b"a sentence of it\n" * (1 << 20) + b"\nthree\n\nfour\n"
    if layout == "lines":
        content = b"one\n" + b"\0" * (64 << 20) + b"\ntwo\n" + b"x" * (1 << 18) + b"\nthree\xff"
    (tmp_path / name).write_bytes(gzip.compress(content, 1) if name.endswith(".gz") else content)
    (tmp_path / "b.txt").write_text("five\n")
    tracemalloc.start()
    with pytest.raises(SourceError) as caught:
        list(Sources([str(tmp_path)], layout=layout))
    what = f"begins a document of over 262,144 characters in layout {layout}"
    what = "has a line of over 262,144 bytes" if layout == "lines" else what
    assert caught.value.where == f"{tmp_path}/{name}:{at}" and caught.value.what.startswith(what)
    faults = []
    skipping = Sources([str(tmp_path)], layout=layout, on_bad_input="skip", on_fault=faults.append)
    assert [(document.text[:5], document.line) for document in skipping] == [*found, ("five", 1)]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 8 << 20 and faults[0].where == caught.value.where
    if layout == "lines":
        assert faults[1].where == f"{tmp_path}/{name}:5:6" and f"byte {len(content):,} of the text" in faults[1].what
