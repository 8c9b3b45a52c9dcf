"""One odd file, one answer: as text to train on, as labelled examples, and as evaluation examples."""

import csv
import gzip
import io
import json
import random
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maskwright.config.finetuning import LabelledData, Task
from maskwright.core import storage
from maskwright.core.errors import SourceError
from maskwright.labels.example import Reading
from maskwright.labels.read import read_examples
from maskwright.text.audit import audit
from maskwright.text.cleaning.contamination import Contamination, read_evaluations
from maskwright.text.sources import Sources
from maskwright.text.tables import open_table

ONE = "the old bridge; over the river: was closed | again in spring"
TWO = 'she said "no, never" and he left,\nbefore the long summer — had begun at last'
HUGE = "one word more than nine of them are in here " * 4_000


def as_text(path, columns):
    sources = Sources([str(path)], text_column=str(columns.get("text", "text")))
    return [(document.text, document.line) for document in sources]


def as_labels(path, columns):
    examples = read_examples(str(path), Reading(LabelledData(train=str(path), **columns), Task()))
    return [(example.text, example.line) for example in examples]


def as_evaluation(path, _):
    """Of the texts here, those that are found as examples."""
    found = Contamination(read_evaluations([str(path)])).examples_in([text.encode() for text in (ONE, TWO, HUGE)])
    at = [place and int(place.replace(" record ", ":").rpartition(":")[2]) for place in found]
    return [(text, number) for text, number in zip((ONE, TWO, HUGE), at, strict=True) if number]


def answer(read, path, columns):
    """(text, line or record) of each record, or the error as `where: what`, with FILE for the file."""
    try:
        return [(" ".join(text.split()), line) for text, line in read(path, columns)]
    except SourceError as error:
        assert error.fix and "\n" not in str(error)
        return f"{error.where}: {error.what}".replace(str(path), "FILE")


def rows(*cells, delimiter=",", line_end="\n"):
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=line_end).writerows(cells)
    return text.getvalue()


def parquet(names, *columns):
    file = io.BytesIO()
    pq.write_table(pa.table([*columns], names=names), file)
    return file.getvalue()


HEADER, BOTH = ["text", "label"], [["text", "label"], [ONE, "a"], [TWO, "b"]]
RECORDS = [{"text": ONE, "label": "a"}, {"text": TWO, "label": "b"}]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 2, pa.array([b"fine", b"bad \xff"], pa.binary()).buffers())
READ, READ_RECORDS = [(ONE, 2), (TWO, 3)], [(ONE, 1), (TWO, 2)]
NUMBERS = {"text": 0, "label": 1}
CASES = [
    ("a.csv", rows(*BOTH), {}, READ),
    ("a.csv", rows(*BOTH, delimiter=";"), {}, READ),
    ("a.csv", rows(*BOTH, delimiter="\t"), {}, READ),
    ("a.csv", rows(*BOTH, delimiter="|"), {}, READ),
    ("a.csv", "\ufeff" + rows(*BOTH, line_end="\r\n").replace("left,\n", "left,\r\n"), {}, READ),
    ("a.csv", "\n\n" + rows(*BOTH), {}, [(ONE, 4), (TWO, 5)]),
    ("a.csv", rows([" text", "label "], *BOTH[1:]), {}, READ),
    ("a.csv", rows(*BOTH[1:]), NUMBERS, READ_RECORDS),
    ("a.csv", rows(*BOTH[1:], delimiter=";"), NUMBERS, READ_RECORDS),
    ("a.csv", rows(["0", "1"], *BOTH[1:]), NUMBERS, READ),
    ("a.csv", "text, long;label\n" + rows(*BOTH[1:], delimiter=";"), {"text": "text, long", "label": "label"}, READ),
    ("a.csv", rows(HEADER, [ONE, "a"], [HUGE, "b"]), {}, [(ONE, 2), (HUGE, 3)]),
    ("a.csv", rows(HEADER, [ONE, "a"], [TWO]), {}, "FILE:3: has 1 column, but the first row has 2"),
    ("a.csv", "text;label\n" + "x;a\n" * 30 + "x\n", {}, "FILE:32: has 1 column, but the first row has 2"),
    ("a.csv", rows(*BOTH) + f'"{ONE},a\n', {}, "FILE:5: is not CSV: unexpected end of data, in the record that begins"),
    ("a.csv", rows(*BOTH, line_end="\r"), {}, "FILE:1: has a carriage return (CR) inside a cell without quotes, in th"),
    ("a.csv", rows(*BOTH).encode("cp1252"), {}, "FILE:4:24: 0x97, byte 135 of the text, is not UTF-8"),
    ("a.tsv", rows(HEADER, [ONE, "a"]).replace(",", "\t"), {}, [(ONE, 2)]),
    ("a.tsv", f'text\tlabel\n{ONE}\ta\n"open\tb\n', {}, [(ONE, 2), ('"open', 3)]),
    ("a.tsv", "text\tlabel\nx\n", {}, "FILE:2: has 1 column, but the first row has 2"),
    ("a.jsonl", LINES.replace("\n", "\r\n\n"), {}, [(ONE, 1), (TWO, 3)]),
    ("a.jsonl", LINES + '{"text": "x\n', {}, "FILE:3: is not JSON: Unterminated string starting at"),
    ("a.jsonl", "[" * 100_000, {}, "FILE:1: is not JSON: nested too deeply, or a number is too long"),
    ("a.jsonl", LINES + '{"text": ' + "9" * 5_000 + "}", {}, "FILE:3: is not JSON: nested too deeply, or a number is"),
    ("a.jsonl", LINES + '["x", 1]\n', {}, "FILE:3: is not an object with keys"),
    ("a.jsonl", json.dumps(RECORDS), {}, "FILE:1: is not an object with keys"),
    ("a.jsonl", LINES + '{"text": "\\ud800", "label": "a"}\n', {}, "FILE:3: U+D800 is half a surrogate pair"),
    ("a.jsonl", '{"text": "x", "label": "a", "text": "y"}\n', {}, "FILE:1: has several keys 'text'"),
    ("a.jsonl", LINES.encode() + b'{"text": "\xe9"}', {}, "FILE:3:11: 0xe9, byte 209 of the text, is not UTF-8"),
    ("a.jsonl", LINES.encode("utf-16"), {}, "FILE:1:1: is UTF-16"),
    ("a.jsonl", LINES.encode("utf-16-le"), {}, "FILE:1:1: is UTF-16 without its mark"),
    ("a.csv", rows(*BOTH).encode("utf-32"), {}, "FILE:1:1: is UTF-32"),
    ("a.csv", b"\x7fELF\0\xff\n" * 3, {}, "FILE: is binary, not text"),
    ("a.csv", b"\x80\x05\x95 of pandas", {}, "FILE: is a pickle, which can run any program when it is opened"),
    ("a.xlsx", b"PK\x03\x04", {}, "FILE: is a zip archive, as .docx, .xlsx and .epub are"),
    ("a.csv", "sep=;\n" + rows(*BOTH, delimiter=";"), {}, [(ONE, 3), (TWO, 4)]),
    ("a.csv", '"sep=:"\n' + rows(HEADER, [ONE, "a"], delimiter=":"), {}, [(ONE, 3)]),
    ("a.csv", rows(HEADER, [ONE, "a"], line_end="\r"), {}, [(ONE, 2)]),
    ("a.csv", b"", {}, "FILE: is empty"),
    ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)[:-9], {}, "FILE:3: is cut short or damaged: Compressed file"),
    ("a.parquet", parquet(HEADER, [ONE, TWO], ["a", "b"]), {}, READ_RECORDS),
    ("a.jsonl.zst", bytes(pa.compress(LINES.encode(), "zstd", asbytes=True)), {}, READ_RECORDS),
    ("a.parquet.gz", gzip.compress(parquet(HEADER, [ONE, TWO], ["a", "b"])), {}, READ_RECORDS),
    ("a.parquet", parquet([*HEADER, "text"], ["x"], ["a"], ["y"]), {}, "FILE: has several columns 'text'"),
    ("a.parquet", parquet(HEADER, NOT_UTF8, ["a", "b"]), {}, "FILE record 2: 0xff, byte 5 of the text, is not UTF-8"),
    ("a.parquet", b"PAR1 nonsense", {}, "FILE: is not Parquet: "),
]


@pytest.mark.parametrize(("name", "content", "columns", "expected"), CASES, ids=range(len(CASES)))
def test_an_odd_file_gets_one_answer(name, content, columns, expected, tmp_path):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    csv.field_size_limit(131_072)  # Python's own, in a process that has read no CSV yet
    for read in (as_text, as_labels, as_evaluation):
        found = answer(read, path, columns)
        if isinstance(expected, str):
            assert isinstance(found, str) and found.startswith(expected), read
        else:
            wanted = [(" ".join(text.split()), line) for text, line in expected]
            wanted = [one for one in wanted if read is not as_evaluation or len(one[0]) > 20]
            assert found == wanted, read


def test_a_column_that_is_there_twice_loses_nothing_where_all_are_read(tmp_path):
    """The first line of evaluation CSV may be its first example, and no name of a column."""
    path = tmp_path / "a.csv"
    path.write_text(rows(["text", "label", "text"], [ONE, "a", TWO]))
    assert answer(as_text, path, {}) == answer(as_labels, path, {}) == "FILE:1: has several columns 'text'"
    assert dict(as_evaluation(path, {})) == {ONE: 2, TWO: 2}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (json.dumps(RECORDS, indent=1), READ_RECORDS),
        (json.dumps({"version": 2, "data": RECORDS}), READ_RECORDS),
        (json.dumps(RECORDS[0], indent=1), READ_RECORDS[:1]),
        (LINES, READ_RECORDS),
        (f"{json.dumps(RECORDS)}\n{json.dumps(RECORDS)}", "FILE:2: has more after the end of its list"),
        (json.dumps(RECORDS[0], indent=1) + json.dumps(RECORDS[1]), "FILE:4: has more after the end of its object"),
        (LINES + "nonsense", "FILE:3: is not JSON: Expecting value"),
        ('[{"text": "x", "label": "a", "text": "y"}]', "FILE:1: has several keys 'text'"),
        ('{"data": [\n{"text": 1,\n', "FILE:2: is not JSON: Expecting property name enclosed in double quotes"),
        ("[[1, 2]]", "FILE record 1: is not an object with keys"),
        ("3", "FILE record 1: is not an object with keys"),
    ],
)
def test_json_gets_one_answer(content, expected, tmp_path):
    """As labels and as evaluation examples; .json is no text to train on."""
    path = tmp_path / "a.json"
    path.write_text(content)
    for read in (as_labels, as_evaluation):
        found = answer(read, path, {})
        wanted = expected if isinstance(expected, str) else [(" ".join(text.split()), line) for text, line in expected]
        assert found == wanted, read


def test_a_file_without_records_is_no_error_of_its_columns(tmp_path):
    for name, content in (("a.csv", "\n\n"), ("a.jsonl", "\n \n"), ("a.json", " ")):
        (tmp_path / name).write_text(content)
        assert answer(as_labels, tmp_path / name, {}) == "FILE: holds no examples"
        assert name == "a.json" or as_text(tmp_path / name, {}) == []
    (tmp_path / "a.jsonl").write_text("{}\n" + LINES)
    assert answer(as_text, tmp_path / "a.jsonl", {}) == "FILE:1: has no 'text' (keys: )"


def test_a_guessed_delimiter_is_said_once_for_many_files(tmp_path, capsys):
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text(rows(*BOTH, delimiter=";" if number else ","))
    assert Sources([str(tmp_path)]).notes == [f"{tmp_path}/1.csv: columns are separated by semicolons"]
    audit([str(tmp_path)])
    assert "".join(capsys.readouterr()).count("1.csv: columns are separated by semicolons\n") == 1
    reading = Reading(LabelledData(train="x"), Task())
    read_examples(f"{tmp_path}/1.csv", reading)
    assert next(iter(reading.notes)) == f"{tmp_path}/1.csv: columns are separated by semicolons"


def test_cells_in_quotes_are_noted_in_tsv_and_read_in_csv(tmp_path):
    """pandas writes quotes to a file of tabs only where a cell needs them, and Excel also does."""
    said = 'he said "no, never" and left'
    written = rows(["id", "text"], *[[str(number), ONE] for number in range(60)], ["60", said], delimiter="\t")
    for name, content, where in (
        ("a.tsv", written, ":62: has a cell in quotes, which are characters"),
        ("b.tsv", 'id\ttext\n1\t"Oh" he said, "no"\n2\t"open\n3\t"\n4\t""\n', ""),
        ("c.csv", written, ": columns are separated by tabs"),
    ):
        (tmp_path / name).write_text(content)
        notes = Sources([str(tmp_path / name)]).notes
        assert bool(notes) == bool(where) and "".join(notes).startswith(f"{tmp_path}/{name}{where}" * bool(where))
    assert as_text(tmp_path / "a.tsv", {})[60] == ('"he said ""no, never"" and left"', 62)
    assert as_text(tmp_path / "c.csv", {})[60] == (said, 62)
    assert len(Sources([str(tmp_path)]).notes) == 2


def test_one_column_without_a_header_may_hold_semicolons(tmp_path):
    path = tmp_path / "a.csv"
    for lines in (["one; two", "three"], ["one; two; three", "four; five"], ["alone; here"]):
        path.write_text("\n".join(lines))
        assert as_text(path, {"text": 0}) == [(line, number) for number, line in enumerate(lines, 1)]


@pytest.mark.parametrize("seed", range(12))
def test_csv_equals_pythons_reader_of_the_whole_file(seed, tmp_path, monkeypatch):
    generator, delimiter = random.Random(seed), ",;\t|"[seed % 4]
    parts = ["a", "bc ", '"', '""', "\n", "\n\n", ",", ";", "|", "\t", "é", "中", "x" * 30]
    cells = [["".join(generator.choices(parts, k=generator.randrange(9))) for _ in range(3)] for _ in range(40)]
    content = rows(["one", "two", "three"], *cells, delimiter=delimiter, line_end="\r\n" if seed % 3 else "\n")
    (tmp_path / "a.csv").write_text(content, newline="")
    monkeypatch.setattr(storage, "READ_BYTES", generator.randint(3, 40))
    reader = csv.reader(io.StringIO(content.replace("\r\n", "\n"), newline=""), delimiter=delimiter)
    expected, start = [], 1
    for row in reader:
        expected.append((start, row))
        start = reader.line_num + 1
    with open_table(str(tmp_path / "a.csv")) as table:
        found = [(line, [*record.values()]) for line, record in table.rows()]
    assert found == expected[1:]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_memory_does_not_grow_with_the_file(name, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "READ_BYTES", 1 << 14)
    words = "some words " * 100
    line = {"a.csv": f"{words},b\n", "a.tsv": f"{words}\tb\n", "a.jsonl": f'{{"text": "{words}"}}\n'}[name]
    header = {"a.csv": "text,b\n", "a.tsv": "text\tb\n", "a.jsonl": ""}[name]
    (tmp_path / name).write_text(header + line * 5_000)
    tracemalloc.start()
    assert sum(1 for _ in Sources([str(tmp_path / name)])) == 5_000
    with open_table(str(tmp_path / name), has_header=False) as table:
        assert sum(1 for _ in table.rows()) == 5_000 + bool(header)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 20
