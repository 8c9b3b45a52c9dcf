"""Text, tables and labels in other encodings than UTF-8: read alike, refused with the place, and likely ones named."""

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maskwright.api.stores import prepare
from maskwright.config.finetuning import LabelledData, Task, build_finetune_config
from maskwright.core import extras, storage
from maskwright.core.errors import InputError, SourceError
from maskwright.data.store import TokenStore
from maskwright.labels.example import Reading
from maskwright.labels.read import read_examples
from maskwright.processes.runner import Runner
from maskwright.text.cleaning.contamination import read_evaluations
from maskwright.text.parts import cut
from maskwright.text.sources import Sources

POLISH = "Zażółć gęślą jaźń. Wczoraj poszedłem do sklepu i kupiłem świeże bułki oraz masło.\nPociąg do Łodzi jedzie.\n"
RUSSIAN = "Москва является столицей России и крупнейшим городом страны.\nВчера вечером мы ходили в театр.\n"
GREEK = "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας και η μεγαλύτερη πόλη της χώρας.\nΧθες το βράδυ πήγαμε στο θέατρο.\n"
KOREAN = "서울은 대한민국의 수도이자 최대 도시이다.\n어제 저녁에 우리는 극장에 갔다.\n"
TAIWANESE = "臺北市是中華民國的首都,也是臺灣的政治、文化中心。\n昨天晚上我們去看了電影。\n"
CHINESE = "北京是中华人民共和国的首都,也是全国的政治和文化中心。\n昨天晚上我们去看了电影。\n"
JAPANESE = "東京は日本の首都であり、世界最大の都市の一つです。\n昨日の夜、私たちは映画を見に行きました。\n"
GERMAN = "Die Straße führt über die Brücke zum Schloss. Schön, dass Sie da sind.\nDie Größe der Häuser überrascht.\n"
FRENCH = "L’été dernier, nous avons été à la plage. Ça coûte très cher, hélas.\nLe garçon a mangé le gâteau.\n"
ENGLISH = "He said “hello” to the people in the room.\nIt’s a fine day – isn’t it?\nNothing else to report.\n"
HEBREW = "ירושלים היא בירת ישראל והעיר הגדולה ביותר בה.\nאתמול בערב הלכנו לתיאטרון.\n"
ARABIC = "القاهرة هي عاصمة جمهورية مصر العربية وأكبر مدنها.\nذهبنا أمس إلى المسرح.\n"
TURKISH = "İstanbul Türkiye'nin en kalabalık şehridir. Dün akşam tiyatroya gittik, çok güzeldi.\n"
REVIEWS = "text,label\n" + "".join(
    f"{word} {number},pos\n" for number, word in enumerate(["плохо", "хорошо", "отлично"])
)
IN = {"cp1250": POLISH, "iso8859-2": POLISH, "cp1251": RUSSIAN, "koi8-r": RUSSIAN, "cp866": RUSSIAN, "cp1253": GREEK}
IN |= {"euc-kr": KOREAN, "big5": TAIWANESE, "gb18030": CHINESE, "shift_jis": JAPANESE, "euc_jp": JAPANESE}
IN |= {"cp1252": ENGLISH, "latin-1": GERMAN, "mac-roman": FRENCH, "cp850": GERMAN, "cp1254": TURKISH}
IN |= {"cp1255": HEBREW, "cp1256": ARABIC}
WIDE = {"utf-16": RUSSIAN, "utf-16-be": KOREAN, "utf-32": GREEK, "iso2022_jp": JAPANESE, "utf-7": GERMAN}
WIDE |= {"cp037": GERMAN}
"""Encodings whose lines cannot be cut before they are decoded."""


def write(path, raw):
    path.write_bytes(raw)
    return path


def read(path, **options):
    return [(document.text, document.line) for document in Sources([str(path)], **options)]


def fails(path, **options):
    with pytest.raises(SourceError) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


def files(text):
    """The text as each kind of file."""
    lines = text.splitlines()
    return {
        "a.txt": text,
        "a.md": "\r\n\r\n".join(lines),
        "a.jsonl": "".join(json.dumps({"text": line}, ensure_ascii=False) + "\n" for line in lines),
        "a.csv": "id,text\n" + "".join(f'{number},"{line}"\n' for number, line in enumerate(lines)),
        "a.tsv": "id\ttext\n" + "".join(f"{number}\t{line}\n" for number, line in enumerate(lines)),
    }


@pytest.mark.parametrize(("encoding", "text"), [*IN.items(), *WIDE.items(), ("utf-8-sig", POLISH)])
def test_every_kind_of_file_is_read_as_its_twin_in_utf8(encoding, text, tmp_path, monkeypatch):
    """Blocks of a few bytes, too: a character, or a mark, may lie across them."""
    for name, content in files(text).items():
        expected = read(write(tmp_path / name, content.encode()))
        assert expected
        raw = content.encode(encoding)
        for read_bytes in (1 << 20, 61) if encoding in WIDE else (1 << 20, 61, 3):
            monkeypatch.setattr(storage, "READ_BYTES", read_bytes)
            assert read(write(tmp_path / name, raw), encoding=encoding) == expected, name
        monkeypatch.undo()
        assert read(write(tmp_path / f"{name}.gz", gzip.compress(raw)), encoding=encoding) == expected, name


def test_labels_and_sequences_are_read_in_their_encoding(tmp_path):
    csv = write(tmp_path / "a.csv", REVIEWS.encode("cp1251"))
    found = read_examples(str(csv), Reading(LabelledData(train=str(csv), encoding="windows-1251"), Task()))
    assert [(one.text, one.labels, one.line) for one in found][1] == ("хорошо 1", ("pos",), 3)
    tags = write(tmp_path / "a.conll", "Οδός\tB-LOC\n\nκαι\tO\n".encode("utf-16"))
    task = Task(kind="token_classification")
    found = read_examples(str(tags), Reading(LabelledData(train=str(tags), encoding="utf-16"), task))
    assert [one.words for one in found] == [("Οδός",), ("και",)]
    fasta = write(tmp_path / "a.fa", ">größe\nACGT\n".encode("latin-1"))
    assert read(fasta, encoding="latin-1") == [("ACGT", 1)]
    write(tags, "".join(f"{word}\tO\n" for word in GREEK.split()).encode("cp1253"))
    with pytest.raises(InputError, match=r"a.conll:1:1: 0xc7, byte 1 of .*data.encoding: cp1253 \(“Η O”\)"):
        read_examples(str(tags), Reading(LabelledData(train=str(tags)), task))
    with pytest.raises(InputError, match=r"convert it from the.* iconv -f cp1251 -t utf-8 FILE > NEW \(“плохо"):
        read_evaluations([str(csv)])  # they are UTF-8, whatever the text is
    with pytest.raises(InputError, match=r"a.csv:2:1: 0xef, byte 12 .*: data.encoding: cp1251 \(“плохо 0,pos”\)"):
        read_examples(str(csv), Reading(LabelledData(train=str(csv)), Task()))


def test_the_likely_encodings_are_named_with_the_line_as_it_reads(tmp_path):
    """The right one is first, or at least third. latin-1, which reads any bytes, is never named: cp1252 is."""
    ranks = {}
    for encoding, text in {**IN, "windows-1251": REVIEWS}.items():
        raw = text.encode(encoding)
        said = fails(write(tmp_path / "a.txt", raw), layout="lines")
        assert " is not UTF-8. Fix: give the encoding" in said
        assert "--encoding latin" not in said and "iso8859-1 " not in said
        names = [part.split()[0] for part in said.split("--encoding ")[1:]]
        right = [rank for rank, name in enumerate(names) if raw.decode(name, "replace") == raw.decode(encoding)]
        shown = next(line for line in text.splitlines() if not line.isascii())[:12]
        assert right and shown in said, (encoding, said)
        ranks[encoding] = right[0]
    assert max(ranks.values()) <= 2 and sum(rank == 0 for rank in ranks.values()) >= len(ranks) - 1, ranks


TESTS_OF_PLACE = [
    # (bytes, encoding, place and byte, a part of the fix)
    (b"gut\n" + "schön".encode("latin-1") + b"\nmore\n", "utf-8", "2:4: 0xf6, byte 8 of the text, is not", "cp1252"),
    ("ab\n\u201cok\u201d \x81\n".encode("cp1252", "ignore") + b"\x81\n", "cp1252", "3:1: 0x81, byte 10 of", "give"),
    (b"\x93no\x94\n", "latin-1", "1:1: 0x93, byte 1 of the text, is not iso8859-1", "--encoding cp1252 (““no””)"),
    (b"\x93no\x94\n", "iso8859-15", "1:1: 0x93, byte 1 of the text, is not iso8859-15", "--encoding cp1252"),
    (RUSSIAN.encode("cp1251"), "euc-kr", "1:5: 0xff, byte 8 of the text, is not euc_kr", "--encoding cp1251 (“Москва"),
    (RUSSIAN.encode("utf-16-le") + b"\0\xd8", "utf-16-le", "3:1: 0x00, byte 189 of the text", "copy the file again"),
    ("aé\nb".encode("utf-16-be") + b"\xd8\0\0a", "utf-16-be", "2:2: 0xd8, byte 9 of the text", "copy the file again"),
    (RUSSIAN.encode("utf-16"), "utf-8", "1:1: is UTF-16", "give --encoding utf-16"),
    (RUSSIAN.encode("utf-32"), "cp1251", "1:1: is UTF-32", "give --encoding utf-32"),
    (RUSSIAN.encode("utf-16-le"), "utf-8", "1:1: is UTF-16 without its mark", "give --encoding utf-16-le"),
    (ENGLISH.encode("utf-16-be"), "utf-16", "1:1: is UTF-16 without its mark", "give --encoding utf-16-be"),
    (CHINESE.replace("\n", "").encode("utf-16-be"), "utf-16", "1:1: is not utf-16: it has no mark", "-le, or utf-16"),
    ("\ufeff".encode() + b"caf\xe9", "cp1252", "1:1: is UTF-8", "give --encoding utf-8"),
    (POLISH.encode(), "cp1250", "1:1: is UTF-8, not cp1250", "give --encoding utf-8"),
    ("größer\n".encode() * 9 + b"caf\xe9 au\n", "utf-8", "10:4: 0xe9, byte 85", "repair this line, which reads “caf"),
    ("größer\r".encode() * 9 + b"caf\xe9 au\r", "utf-8", "10:4: 0xe9, byte 85", "repair this line, which reads"),
    (b"caf\xe9\n", "ascii", "1:4: 0xe9, byte 4 of the text, is not ascii", "--encoding cp1252 (“café”)"),
]


@pytest.mark.parametrize(("raw", "encoding", "place", "fix"), TESTS_OF_PLACE)
def test_bytes_that_do_not_decode_are_placed(raw, encoding, place, fix, tmp_path):
    said = fails(write(tmp_path / "a.txt", raw), layout="lines", encoding=encoding)
    assert said.startswith(f"FILE:{place}") and fix in said.partition(". Fix: ")[2], said
    assert "--encoding latin" not in said


def test_a_faulty_line_is_replaced_or_skipped_in_any_encoding(tmp_path):
    path = write(tmp_path / "a.txt", "naïve\n".encode("cp1252") + b"x\x81y\nend\n")
    faults = []
    options = {"layout": "lines", "encoding": "cp1252", "on_fault": faults.append}
    assert read(path, on_bad_input="replace", **options) == [("naïve", 1), ("x\ufffdy", 2), ("end", 3)]
    assert read(path, on_bad_input="skip", **options) == [("naïve", 1), ("end", 3)]
    assert [fault.where for fault in faults] == [f"{path}:2:2"] * 2
    write(path, b"\x93no\x94\n")
    assert read(path, on_bad_input="replace", layout="lines", encoding="latin-1") == [("\ufffdno\ufffd", 1)]


def test_without_charset_normalizer_the_fix_is_said_without_guesses(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "installed", lambda package: package != "charset_normalizer")
    said = fails(write(tmp_path / "a.txt", b"caf\xe9\n"), layout="lines")
    assert "such as --encoding cp1252 or --encoding cp1251 or" in said and "scripts/install" in said


@pytest.mark.parametrize("name", ["cp125", "base64", "rot13", "idna", "undefined", "", "utf\0", "win-1252"])
def test_names_that_are_no_encoding_are_refused(name, tmp_path):
    with pytest.raises(InputError, match=r"--encoding: .* is no encoding. Fix: give a name of Python's codecs"):
        Sources([str(write(tmp_path / "a.txt", b"a"))], encoding=name)
    with pytest.raises(ValueError, match="is no encoding"):
        LabelledData(train="a.csv", encoding=name)


def test_a_large_file_is_cut_where_its_lines_end_as_bytes(tmp_path, monkeypatch):
    """Parts of a text in one byte a character, or several, hold what the whole does; UTF-16 is read in one piece."""
    monkeypatch.setattr(cut, "PART_BYTES", (400, 400))
    generator = random.Random(5)
    lines = [generator.choice([*JAPANESE, "ok", "テスト"]) * generator.randrange(1, 30) for _ in range(200)]
    for encoding, several in (("shift_jis", True), ("utf-16", False)):
        path = write(tmp_path / "a.txt", "\n".join(lines).encode(encoding))
        sources = Sources([str(path)], layout="lines", encoding=encoding)
        parts = cut.split(Runner(), str(tmp_path), cut.cut([sources]))
        assert (len(parts) > 5) == several
        expected = read(path, layout="lines", encoding=encoding)
        assert [(one.text, one.line) for part in parts for one in part.open()] == expected


def test_parquet_and_web_archives_keep_their_own_encoding(tmp_path):
    pq.write_table(pa.table({"text": ["größer"]}), path := tmp_path / "a.parquet")
    sources = Sources([str(path)], encoding="cp1252")
    assert [document.text for document in sources] == ["größer"]
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, pa.schema([("text", "str")])):
        pass
    assert "a.arrow is read as UTF-8" in Sources([str(tmp_path / "a.arrow")], encoding="cp1252").notes[0]
    assert sources.notes == [f"{path} is read as UTF-8, as all Parquet, Arrow, MDS and WARC is, not as cp1252"]


def test_a_run_remembers_its_encoding_only_where_it_has_one():
    def config(**data):
        values = {"data": {"train": "a.csv", **data}, "model": {"init_from": "m"}}
        return build_finetune_config(values, "x.yaml").digest()

    assert config() == config(encoding="utf8") == config(encoding="utf-8-sig") != config(encoding="cp1252")


def test_another_encoding_is_another_store(tokenizer, tmp_path):
    """The ids are those of the text in UTF-8. The manifest names the encoding, and what was begun in another is not
    continued."""
    text = write(tmp_path / "a.txt", "".join(f"Größe {number}\n" for number in range(30)).encode("cp1252"))
    twin = write(tmp_path / "b.txt", text.read_bytes().decode("cp1252").encode())
    store = prepare(text, tokenizer, tmp_path / "a", layout="lines", encoding="windows-1252", valid_fraction=0.1)
    same = prepare(twin, tokenizer, tmp_path / "b", layout="lines", valid_fraction=0.1)
    assert store.manifest["options"]["encoding"] == "cp1252" and "encoding" not in same.manifest["options"]
    assert [store.tokens(), store.documents()] == [same.tokens(), same.documents()]
    assert len({TokenStore(one.location).split("train").ids(0).tobytes() for one in (store, same)}) == 1
    with pytest.raises(InputError):
        prepare(text, tokenizer, tmp_path / "a", layout="lines", encoding="cp1250", valid_fraction=0.1)
