"""Labelled files of each kind to examples, and each mistake in them as one line with file and line."""

import gzip
import itertools
import json
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from pydantic import ValidationError

from maskwright.config.finetuning import LabelledData, Task
from maskwright.core.errors import InputError
from maskwright.labels.annotations import spans_in, word_offsets
from maskwright.labels.example import Reading
from maskwright.labels.read import read_examples

TOKENS = Task(kind="token_classification")
QUESTIONS = Task(kind="question_answering")
SEVERAL = Task(kind="multi_label_classification")
NUMBERS = Task(kind="regression")
SEVERAL_BY_BAR = Task(kind="multi_label_classification", separator="|")
NAMED_TAGS = Task(kind="token_classification", labels={0: "O", 3: "B-X"})
WORLD = Task(labels={1: "World", 2: "Sports"})


def reading(path, task=Task(), labelled=True, **data):  # noqa: B008 - frozen
    return Reading(LabelledData(train=str(path), **data), task, labelled)


def read(path, task=Task(), **data):  # noqa: B008 - frozen
    return read_examples(str(path), reading(path, task, **data))


def fails(path, task=Task(), **data):  # noqa: B008 - frozen
    with pytest.raises(InputError) as caught:
        read(path, task, **data)
    assert caught.value.exit_code == 2 and ". Fix: " in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


def seen(examples):
    return [(one.text, one.text_pair, one.labels, one.line) for one in examples]


def test_tsv_has_no_quotes_and_pairs_are_found_by_gluesnames(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text('index\tsentence1\tsentence2\tlabel\n0\t"open\tHe said "x"\tyes\n1\tb \tc\tno\n')
    task = reading(path)
    assert seen(read_examples(str(path), task)) == [('"open', 'He said "x"', ("yes",), 2), ("b ", "c", ("no",), 3)]
    assert list(task.notes) == ["the text is column 'sentence1', its pair 'sentence2'", "the label is column 'label'"]


VECTORS = [[1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 1]]


@pytest.mark.parametrize("labels", [None, ["a", "b", "c", "d"], {0: "a", 1: "b", 2: "c", 3: "d"}])
@pytest.mark.parametrize(
    ("kind", "as_written"),
    [
        ("jsonl", list),
        ("jsonl", lambda vector: [*map(float, vector)]),
        ("jsonl", lambda vector: [*map(str, vector)]),
        ("parquet", list),
        ("parquet", lambda vector: [*map(bool, vector)]),
        ("parquet", lambda vector: [*map(float, vector)]),
        ("csv", str),
        ("csv", lambda vector: str([*map(bool, vector)])),
        ("csv", lambda vector: "[" + " ".join(f"{value}." for value in vector) + "]"),  # numpy
        ("csv", lambda vector: ",".join(map(str, vector))),
        ("csv", lambda vector: ",".join(map(str, map(float, vector)))),
        ("csv", lambda vector: str(tuple(vector))),
    ],
)
def test_vectors_of_0_and_1_are_labels_by_their_places(kind, as_written, labels, tmp_path):
    records = [{"text": f"text {vector}", "labels": as_written(vector)} for vector in VECTORS]
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    else:
        path.write_text("text,labels\n" + "".join(f'"{one["text"]}","{one["labels"]}"\n' for one in records))
    task = reading(path, Task(kind="multi_label_classification", labels=labels))
    names = "abcd" if labels else "0123"
    found = [one.labels for one in read_examples(str(path), task)]
    assert found == [tuple(itertools.compress(names, vector)) for vector in VECTORS]
    assert any(note.startswith("the labels are vectors of 0 and 1, whose positions are") for note in task.notes)
    assert task.class_names == (() if labels else ("0", "1", "2", "3"))


@pytest.mark.parametrize(
    ("lists", "labels", "message"),
    [
        (VECTORS, ["a", "b", "c"], "FILE:1: has a vector of 4 labels, but 3 are named. Fix: name 4 labels in task.lab"),
        ([[1, 0, 1], [1, 0]], None, "FILE:1: has the label 1 twice in its list of 3. Fix: write each label once, or v"),
        ([[1, 0], [0, 0.5]], None, "FILE:2: column 'labels' has 0.5 in its list, but a label applies or not; shares"),
        ([[1, 0], [0, None]], None, "FILE:2: column 'labels' has no value at position 1 of its 2, counted from 0"),
        ([{"a": 1, "b": 2}], None, "FILE:1: column 'labels' gives the label 'b' the value 2, not 0 or 1"),
        ([[["a"], ["b"]]], None, "FILE:1: column 'labels' holds a list in its list"),
        (["[a, b]"], None, "FILE:1: column 'labels' holds a list that cannot be read: [a, b]"),
        (["{a,b}"], None, "FILE:1: column 'labels' holds a list that cannot be read: {a,b}"),
    ],
)
def test_lists_that_are_neither_names_nor_vectors(lists, labels, message, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x", "labels": one}) + "\n" for one in lists))
    assert fails(path, Task(kind="multi_label_classification", labels=labels)).startswith(message)


def test_records_without_a_vector_among_vectors_are_faults(tmp_path):
    path = tmp_path / "a.jsonl"
    lists = [*VECTORS, [1, 0], [], [2], *VECTORS]
    path.write_text("".join(json.dumps({"text": "x", "labels": one}) + "\n" for one in lists))
    assert fails(path, SEVERAL).startswith("FILE:4: has no vector of 0 and 1 with 4 positions, unlike most records. F")
    skipping = reading(path, SEVERAL, on_bad_input="skip")
    found = [one.labels for one in read_examples(str(path), skipping)]
    assert found == [("0", "2"), (), ("1", "2", "3")] * 2 and len(skipping.skipped) == 3
    path.write_text("".join(json.dumps({"text": "x", "labels": one}) + "\n" for one in [[0, 1], [1, 0], [1]]))
    assert [one.labels for one in read(path, SEVERAL)] == [("0", "1"), ("1", "0"), ("1",)]  # names


# ---- one file, its examples --------------------------------------------------------------------------------------

CELLS = "text,labels,toxic,mild\na,x|y |x,1,0\nb,,0,0\nc,y,1,1\n"
FLAGS = {"text": "text", "label": ["toxic", "mild"]}
PLACES = {"text": 0, "label": 1}
CONLL = "-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n \n# POS # O\n. . O O\n"
MARKS = ("a\tO", "-DOCSTART-\tO", "b\tO", "# newdoc id = 2", "c\tO", "# newpar", "d\tO", "# sent_id = 1", "e\tO")
MARKS += ("#end document", "#begin document (x); part 000", "f\tB-X")
COMMENTS = "#MeToo O\n# O\n\n# id a-b\tdomain=en\n# x = y\nParis B-LOC\n"  # words, and MultiCoNER's comments
NAMES_IN_CELLS = {"[2,3]": "2 3", "['a', 'b']": "a b", '[""a"", ""b""]': "a b", "['a' 'b']": "a b", "{'a', 'b'}": "a b"}
NAMES_IN_CELLS |= {"{'a': 1, 'b': 0}": "a", "[]": "", "[0, 1]": "0 1", "": ""}
GLUE = {
    "sentence label": "sentence > label",
    "index sentence1 sentence2 label": "sentence1 | sentence2 > label",
    "index question sentence label": "question | sentence > label",
    "id qid1 qid2 question1 question2 is_duplicate": "question1 | question2 > is_duplicate",
    "index genre sentence1_parse sentence1 sentence2 label1 gold_label": "sentence1 | sentence2 > gold_label",
    "index genre filename year source1 source2 sentence1 sentence2 score": "sentence1 | sentence2 > score",
}
"""The header lines of GLUE's sets. CoLA has none, and MRPC's names are its own: these two need data.text and label."""
READ = [
    # (name, content, task, keys of data, `LINE TEXT > LABELS` of each example)
    ("a.csv", '2,T,"B, c"\n1,T,B\n', WORLD, {"text": [1, 2], "label": 0}, ["1 T B, c > Sports", "2 T B > World"]),
    ("a.csv", "n,text, label,n\n1,x,a,2\n", Task(), {}, ["2 x > a"]),  # what is not read may be there twice
    ("a.csv", "0,1\nx,a\n", Task(), PLACES, ["2 x > a"]),  # of pandas, for columns without names
    ("a.csv", ",0,1\n7,x,a\n", Task(), PLACES, ["2 x > a"]),
    ("a.csv", CELLS, SEVERAL_BY_BAR, {}, ["2 a > x y", "3 b > ", "4 c > y"]),
    ("a.csv", CELLS, SEVERAL, FLAGS, ["2 a > toxic", "3 b > ", "4 c > toxic mild"]),
    ("a.csv", "text,toxic,mild\na,1.0,0.0\n", SEVERAL, FLAGS, ["2 a > toxic"]),  # pandas, where a cell was empty
    (
        "a.csv",
        "text,labels\n" + "".join(f'x,"{cell}"\n' for cell in NAMES_IN_CELLS),
        SEVERAL,
        {},
        [f"{line} x > {names}" for line, names in enumerate(NAMES_IN_CELLS.values(), 2)],
    ),
    ("a.jsonl", '{"text": "a", "labels": [3, 1]}\n{"text": "b", "labels": []}\n', SEVERAL, {}, ["1 a > 3 1", "2 b > "]),
    ("a.jsonl", '{"text": "a", "label": 1.0}\n{"text": "a", "label": true}\n', Task(), {}, ["1 a > 1", "2 a > true"]),
    ("a.tsv", "sentence1\tsentence2\tscore\na\tb\t-1e2\n", NUMBERS, {}, ["2 a | b > -100.0"]),
    ("a.jsonl", '{"tokens": ["A", "b"], "ner_tags": [3, 0]}\n', NAMED_TAGS, {}, ["1 A|b > B-X O"]),
    ("a.jsonl", '{"sentence_id": 4, "words": ["a", "b"], "labels": ["O", "O"]}\n', TOKENS, {}, ["1 a|b > O O"]),
    ("a.conll", CONLL, TOKENS, {}, ["3 EU|rejects > B-ORG O", "6 #|. > O O"]),
    ("a.conll", CONLL.replace("\n", "\r"), TOKENS, {}, ["3 EU|rejects > B-ORG O", "6 #|. > O O"]),
    ("a.conll", CONLL, TOKENS, PLACES, ["3 EU|rejects > NNP VBZ", "6 #|. > POS ."]),
    ("a.conll", "# id 1\na b\tO\nc\tB-X\n", TOKENS, {}, ["2 a b|c > O B-X"]),
    ("a.conll", COMMENTS, TOKENS, {}, ["1 #MeToo|# > O O", "6 Paris > B-LOC"]),
    ("a.txt", "en:R.H.\tB-PER\nen:a:b\tO\n\nen:(\tO\n", TOKENS, {}, ["1 R.H.|a:b > B-PER O", "4 ( > O"]),  # WikiANN
    ("a.txt", "en:a\tO\nen:b\tO\n\nzh-yue:c\tO\n\nsimple:d\tO\n", TOKENS, {}, ["1 a|b > O O", "4 c > O", "6 d > O"]),
    ("a.txt", "en:a\tO\nam:b\tO\n", TOKENS, {}, ["1 en:a|am:b > O O"]),
    ("a.txt", "en:R.H.\tB-PER\nde:x\tO\n", TOKENS, {}, ["1 en:R.H.|de:x > B-PER O"]),
    *(("a.tsv", f"{one}\n{one}\n".replace(" ", "\t"), Task(), {}, [f"2 {read}"]) for one, read in GLUE.items()),
]


@pytest.mark.parametrize(("name", "content", "task", "data", "expected"), READ, ids=range(len(READ)))
def test_a_file_is_read_as_its_examples(name, content, task, data, expected, tmp_path):
    (tmp_path / name).write_bytes(content.encode())
    found = []
    for one in read(tmp_path / name, task, **data):
        text = "|".join(one.words) or (f"{one.text} | {one.text_pair}" if one.text_pair else one.text)
        found.append(f"{one.line} {text} > {one.value if task is NUMBERS else ' '.join(one.labels)}")
    assert found == expected


def test_marks_of_documents_and_comments_end_a_sentence(tmp_path):
    for content in ("\n".join(MARKS), "\n".join(MARKS).replace("\t", " "), "\n\n".join(MARKS)):
        (tmp_path / "a.conll").write_text(content + "\n")
        assert "".join(one.words[0] for one in read(tmp_path / "a.conll", TOKENS)) == "abcdef"


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (COMMENTS, "FILE: 2 comments left out (from # to the line's end)"),
        ("a O\n" * 250, "FILE: no blank line splits its 250 words, so they are one sentence"),
        ("en:a\tO\n", "each word begins with 'en:', as in WikiANN: it is removed"),
    ],
)
def test_what_is_read_of_a_file_of_words_is_noted(content, note, tmp_path):
    path = tmp_path / "a.conll"
    path.write_text(content)
    task = reading(path, TOKENS)
    read_examples(str(path), task)
    assert [one.replace(str(path), "FILE") for one in task.notes] == [note]


def test_words_without_tags_words_twice_and_labels_twice(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("Paris is big\n")
    task = reading(path, TOKENS, labelled=False)
    assert read_examples(str(path), task)[0].words == ("Paris",)
    assert list(task.notes) == [f"{path}: a word is the first of the 3 columns of a line; the others are not read"]
    rows = ("1-2\tdu", "1\tde", "2\tle", "2.1\tx")  # CoNLL-U has words twice, and words that are not there
    path.write_text("# text = du\n" + "".join(row + "\t_" * 7 + "\tO\n" for row in rows))
    assert read(path, TOKENS, text=1, label=9)[0].words == ("de", "le")
    (tmp_path / "a.csv").write_text("id,sentence\n1,Eva paid.\n")
    texts = reading(tmp_path / "a.csv", TOKENS, labelled=False, text="sentence")
    assert read_examples(str(tmp_path / "a.csv"), texts)[0].words == ("Eva", "paid", ".")
    (tmp_path / "a.jsonl").write_text('{"text": "a", "labels": ["x", "y", "x"]}\n')
    task = reading(tmp_path / "a.jsonl", SEVERAL)
    assert read_examples(str(tmp_path / "a.jsonl"), task)[0].labels == ("x", "y")
    assert "a label is repeated in 1 record, and counts once" in " ".join(task.notes)


# ---- what Hugging Face's `datasets` writes -----------------------------------------------------------------------

NAMES = ("World", "Sports", "Tech")


def hub_file(path, records, column, feature):
    """As the Hub's Parquet files and `save_to_disk` have the features in the schema's metadata."""
    info = {"info": {"features": {"text": {"dtype": "string", "_type": "Value"}, column: feature}}}
    table = pa.Table.from_pylist(records).replace_schema_metadata({"huggingface": json.dumps(info)})
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return path
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    (path.parent / "state.json").write_text(json.dumps({"_data_files": [{"filename": path.name}]}))
    (path.parent / "dataset_info.json").write_text("{}")
    return path.parent


CLASS = {"names": [*NAMES], "_type": "ClassLabel"}


@pytest.mark.parametrize("name", ["a.parquet", "saved/data-00000-of-00001.arrow"])
@pytest.mark.parametrize(
    ("kind", "values", "feature", "labels"),
    [
        ("single_label_classification", [2, 0], CLASS, ["Tech", "World"]),
        ("multi_label_classification", [[2, 0]], {"feature": CLASS, "_type": "List"}, ["Tech World"]),
        ("multi_label_classification", [[0, 1], [0, 1]], [CLASS], ["World Sports", "World Sports"]),
        ("token_classification", [[1, 0]], {"feature": CLASS, "_type": "Sequence"}, ["Sports World"]),
    ],
)
def test_class_names_of_a_schema(name, kind, values, feature, labels, tmp_path):
    text = {"words": ["a", "b"]} if kind == "token_classification" else {"text": "a"}
    path = hub_file(tmp_path / name, [text | {"label": value} for value in values], "label", feature)
    task = reading(path, Task(kind=kind))
    assert [" ".join(one.labels) for one in read_examples(str(path), task)] == labels
    assert task.class_names == NAMES
    for keys in (NAMES, (0, 1, 2)):
        task = reading(path, Task(kind=kind, labels=dict(zip(keys, "wst", strict=True))))
        found = [[*one.labels] for one in read_examples(str(path), task)]
        assert found == [[label[0].lower() for label in one.split()] for one in labels]
    exchanged = fails(path, Task(kind=kind, labels={1: "World", 2: "Sports", 3: "Tech"}))
    assert ": the label 1 is 'Sports' in the file, but 'World' in task.labels. Fix: " in exchanged


@pytest.mark.parametrize("name", ["a.parquet", "saved/data-00000-of-00001.arrow"])
@pytest.mark.parametrize("of_lists", [False, True])
def test_class_names_of_spans_are_their_labels(name, of_lists, tmp_path):
    """A list of records, or the record of lists that a `Sequence` of records is written as; beside columns that nobody
    reads, and that cannot be read."""
    spans = [{"start": 0, "end": 3, "label": 2}, {"start": 4, "end": 6, "label": 0}]
    lists = {key: [span[key] for span in spans] for key in spans[0]}
    feature = {"start": {"dtype": "int32", "_type": "Value"}, "label": CLASS}
    records = [{"text": "Eva is", "spans": lists if of_lists else spans, "raw": "unread"}]
    records.append({"text": "No", "spans": {"start": [], "end": [], "label": []} if of_lists else [], "raw": "y"})
    schema = {"feature": feature, "_type": "Sequence"} if of_lists else [feature]
    path = hub_file(tmp_path / name, records, "spans", schema)
    file = next(file for file in tmp_path.rglob(Path(name).name))
    file.write_bytes(file.read_bytes().replace(b"unread", b"\xffnread"))
    assert [one.labels for one in read(path, TOKENS)] == [("B-Tech", "B-World"), ("O",)]
    spans[0]["label"] = lists["label"][0] = 3
    hub_file(tmp_path / name, records, "spans", [feature])
    assert "record 1: has the label 3, which has no name (3 are named)" in fails(path, TOKENS)


def test_a_class_that_is_missing_and_a_folder_with_caches(tmp_path):
    records = [{"text": "a", "label": -1}, {"text": "b", "label": 1}]
    folder = hub_file(tmp_path / "saved" / "d.arrow", records, "label", CLASS)
    assert "record 1: has the label -1, which means none (3 are named)" in fails(folder)
    skipping = reading(folder, on_bad_input="skip")
    assert [one.text for one in read_examples(str(folder), skipping)] == ["b"] and len(skipping.skipped) == 1
    (folder / "cache-1.arrow").write_bytes((folder / "d.arrow").read_bytes())  # of `map`, and no part of the data set
    assert len(read(folder, on_bad_input="skip")) == 1
    whole = (folder / "d.arrow").read_bytes()
    (folder / "d.arrow").write_bytes(whole[:-8])
    assert fails(folder, on_bad_input="skip").startswith("FILE/d.arrow: is an Arrow stream without its end")
    (folder / "d.arrow").write_bytes(b"no Arrow")
    assert fails(folder).startswith("FILE/d.arrow: is not a whole Arrow file or stream")
    (folder / "d.arrow").unlink()
    assert fails(folder).startswith("FILE/d.arrow: is missing")
    (folder / "state.json").write_text('{"_data_files": [{"filename": "d.arrow"}], "_indices_data_files": [{}]}')
    assert "has a selection or another order of its rows stored next to them" in fails(folder)


def test_sequences_are_texts_of_letters_and_never_labelled(tmp_path):
    path = tmp_path / "a.fasta"
    path.write_text(">one\nmkt\nAY\n>two\nMK8\n")
    for task in (Task(), TOKENS):
        with pytest.raises(InputError, match=r"a.fasta: holds sequences without labels\. Fix: write a table"):
            read(path, task)
        with pytest.raises(InputError, match="a.fasta:5: has '8'"):
            read_examples(str(path), reading(path, task, labelled=False))
        skipping = reading(path, task, labelled=False, on_bad_input="skip")
        found = [(one.line, one.text, one.words) for one in read_examples(str(path), skipping)]
        assert found == [(1, "", tuple("MKTAY")) if task == TOKENS else (1, "MKTAY", ())] and [
            one.where for one in skipping.skipped
        ] == [f"{path}:5"]
    path.write_text(">one\nMKT\n", encoding="utf-16")
    how = reading(path, labelled=False, encoding="utf-16")
    assert [one.text for one in read_examples(str(path), how)] == ["MKT"]


def test_lines_of_fasttext_and_lines_of_text(tmp_path):
    lines = "__label__a __label__b-c Eva  paid .\n\n__label__a Lima, __label\nno end __label__d\nnone\n"
    (tmp_path / "cooking.train").write_text(lines)
    (tmp_path / "a.ft.txt.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "a.ft.zst").write_bytes(zstandard.compress(lines.encode()))
    texts = ["Eva  paid .", "Lima, __label", "no end", "none"]
    for path in (tmp_path / "cooking.train", tmp_path / "a.ft.txt.gz", tmp_path / "a.ft.zst"):
        expected = [*zip(texts, [("a", "b-c"), ("a",), ("d",), ()], [1, 3, 4, 5], strict=True)]
        assert [(one.text, one.labels, one.line) for one in read(path, SEVERAL)] == expected
        how = reading(path, SEVERAL, labelled=False)
        unlabelled = read_examples(str(path), how)
        assert f"{path}: 1 blank line left out" in " ".join(how.notes)
        assert [(one.text, one.labels) for one in unlabelled] == [(text, ()) for text in texts]
    path = tmp_path / "a.txt"
    for content, words in (
        ("Eva paid.\nLima (Peru) too\n\n", [("Eva", "paid", "."), ("Lima", "(", "Peru", ")", "too")]),
        ("Eva\npaid.\n", [("Eva", "paid.")]),
        ("Eva paid.", [("Eva", "paid", ".")]),
        ("Eva X\npaid. O\n\nLima X\n", [("Eva", "paid."), ("Lima",)]),
    ):
        path.write_text(content)
        assert [one.words for one in read_examples(str(path), reading(path, TOKENS, labelled=False))] == words
    path.write_text("__label__2 good\n__label__1 bad\n")
    assert [one.labels for one in read(path, Task(labels={1: "neg", 2: "pos"}))] == [("pos",), ("neg",)]
    assert "FILE: has fastText's lines, not columns" in fails(path, label="label")
    path.write_text("__label__a x\n", encoding="utf-16")
    assert [one.text for one in read(path, encoding="utf-16")] == ["x"]
    path.write_text("__label__2 good\n")
    assert fails(path, NUMBERS).startswith("FILE: is of a kind that cannot be read")
    for content, message in (
        (lines, "FILE:1: has 2 labels, not one. Fix: set task.kind: multi_label_classification"),
        ("__label__a x\ny\n", "FILE:2: has 0 labels, not one. Fix: write __label__NAME before the text"),
        ("__label__a\n", "FILE:1: has labels but no text"),
        ("good\n", "FILE: is of a kind that cannot be read"),
    ):
        path.write_text(content)
        assert fails(path).startswith(message)
    for task in (Task(), NUMBERS):  # the last content
        assert [one.text for one in read_examples(str(path), reading(path, task, labelled=False))] == ["good"]


# ---- words and questions -----------------------------------------------------------------------------------------


ONE_WORD_A_ROW = {
    "a.csv": "sentence_id,words,labels\n0,Eva,B-PER\n0,paid,O\n7,Lima,B-LOC\n",
    "a.tsv": "sentence_id\twords\tlabels\n0\tEva\tB-PER\n0\tpaid\tO\n7\tLima\tB-LOC\n",
    "b.csv": ",Sentence #,Word,POS,Tag\n0,Sentence: 1,Eva,N,B-PER\n1,,paid,V,O\n2,Sentence: 2,Lima,N,B-LOC\n",
    "a.jsonl": """{"sentence_id": 0, "words": "Eva", "labels": "B-PER"}
        {"sentence_id": 0, "words": "paid", "labels": "O"}
        {"sentence_id": 7, "words": "Lima", "labels": "B-LOC"}""",
    "a.txt": "word tag\nEva B-PER\npaid O\n\nLima B-LOC\n",
    "a.conll": "tag\tword\nB-PER\tEva\nO\tpaid\n\nB-LOC\tLima\n",
}


@pytest.mark.parametrize("name", ONE_WORD_A_ROW)
def test_tables_with_one_word_a_row_are_sentences(name, tmp_path):
    (tmp_path / name).write_text(ONE_WORD_A_ROW[name])
    expected = [(("Eva", "paid"), ("B-PER", "O")), (("Lima",), ("B-LOC",))]
    assert [(one.words, one.labels) for one in read(tmp_path / name, TOKENS)] == expected
    texts = read_examples(str(tmp_path / name), reading(tmp_path / name, TOKENS, labelled=False))
    assert [(one.words, one.labels) for one in texts] == [(words, ()) for words, _ in expected]
    if name == "a.jsonl":
        rows = [json.loads(line) for line in ONE_WORD_A_ROW[name].splitlines()]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
        assert [(one.words, one.labels) for one in read(tmp_path / "a.parquet", TOKENS)] == expected
    columns = {"text": "words", "label": "labels"} if name[0] == "a" and "words" in ONE_WORD_A_ROW[name] else {}
    lines = {"a.jsonl": [1, 3], "a.txt": [2, 5], "a.conll": [2, 5]}.get(name, [2, 4])
    assert [one.line for one in read(tmp_path / name, TOKENS, **columns)] == lines


PAID = "Mrs Eva Brandt paid in Lima."
PAID_WORDS = ("Mrs", "Eva", "Brandt", "paid", "in", "Lima", ".")
PAID_TAGS = ("O", "B-PER", "I-PER", "O", "O", "B-LOC", "O")
REGIONS = [
    {"value": {"start": 4, "end": 14, "text": "Eva Brandt", "labels": ["PER"]}, "type": "labels", "id": "a"},
    {"value": {"choices": ["news"]}, "type": "choices"},
    {"value": {"start": 23, "end": 27, "text": "Lima", "labels": ["LOC"]}, "type": "labels", "id": "b"},
    {"from_id": "a", "to_id": "b", "type": "relation"},
]
OFFSETS = {"start": 4, "end": 14}, {"start": 23, "end": 27}
SPANS = [OFFSETS[0] | {"label": "PER"}, OFFSETS[1] | {"label": "LOC"}]
LISTED = [[4, 14, "PER"], [23, 27, "LOC"]]
ENTITIES = [{"start_offset": start, "end_offset": end, "label": name} for start, end, name in LISTED[::-1]]
ON_TOKENS = [SPANS[0] | {"token_start": 1, "token_end": 2}, SPANS[1] | {"token_start": 5, "token_end": 5}]
CANCELLED = {"was_cancelled": True, "result": []}
ANNOTATED = {
    "doccano": ({"id": 1, "text": PAID, "label": LISTED}, {}),
    "newer doccano": ({"text": PAID, "Comments": [], "relations": [], "entities": ENTITIES}, {}),
    "Prodigy": ({"text": PAID, "tokens": [{"text": "Mrs", "id": 0}], "answer": "accept", "spans": ON_TOKENS}, {}),
    "Label Studio": ({"data": {"text": PAID, "x": "y"}, "annotations": [CANCELLED, {"result": REGIONS}]}, {}),
    "its own key": ({"data": {"body": PAID, "x": "y"}, "annotations": [{"result": REGIONS}]}, {"text": "body"}),
    "Label Studio, short": ({"id": 1, "text": PAID, "label": [REGIONS[0]["value"], REGIONS[2]["value"]]}, {}),
    "texts with words beside": ({"tokens": ["x"], "text": PAID, "entities": [SPANS[0], LISTED[1]]}, {}),
    "GLiNER": ({"tokenized_text": [*PAID_WORDS], "ner": [[1, 2, "PER"], [5, 5, "LOC"]]}, {}),
    "Argilla": ({"text": PAID, "annotation": [["PER", 4, 14], ["LOC", 23, 27]]}, {}),
    "spaCy": ({"text": PAID, "ents": SPANS}, {}),
    "outer white space, twice the same": (
        {"body": PAID, "marks": [[3, 15, "PER"], LISTED[1], LISTED[1]]},
        {"text": "body", "label": "marks"},
    ),
}


@pytest.mark.parametrize("tool", ANNOTATED)
def test_spans_of_annotation_tools_are_words_and_tags(tool, tmp_path):
    record, data = ANNOTATED[tool]
    records = [{"text": "No one.", "label": []}, record] if tool == "doccano" else [record]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "a.json").write_text(json.dumps(records))
    paths = [tmp_path / "a.jsonl", tmp_path / "a.json"]
    if tool in ("newer doccano", "Label Studio, short", "spaCy"):  # Parquet holds no lists of numbers and texts
        pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
        paths.append(tmp_path / "a.parquet")
    for path in paths:
        found = read(path, TOKENS, **data)[-1]
        assert (found.words, found.labels) == (PAID_WORDS, PAID_TAGS)
        texts = {key: value for key, value in data.items() if key == "text"}
        if tool == "texts with words beside":
            continue
        unlabelled = read_examples(str(path), reading(path, TOKENS, labelled=False, **texts))[-1]
        assert (unlabelled.words, unlabelled.labels) == (PAID_WORDS, ())
    short = Task(kind="token_classification", labels={"O": "O", "B-PER": "B-P", "I-PER": "I-P", "B-LOC": "B-L"})
    assert read(path, short, **data)[-1].labels == ("O", "B-P", "I-P", "O", "O", "B-L", "O")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"label": [[4, 13, "PER"]]}, "span 4 to 13, 'Eva Brand' (PER) cuts the word 'Brandt'. Fix: extend it from 4"),
        ({"label": [[5, 7, "PER"]]}, "span 5 to 7, 'va' (PER) cuts the word 'Eva'. Fix: extend it from 4 to 7, 'Eva'"),
        ({"label": [[4, 14, "PER"], [8, 14, "LAST"]]}, "span 8 to 14, 'Brandt' (LAST) overlaps span 4 to 14, 'Eva Bra"),
        ({"label": [[4, 7, "PER"], [4, 7, "X"]]}, "span 4 to 7, 'Eva' (X) overlaps span 4 to 7"),
        ({"label": [[4, 4, "PER"]]}, "span 4 to 4, '' (PER) holds no word. Fix: delete it, or write the position"),
        ({"label": [[3, 4, "PER"]]}, "span 3 to 4, ' ' (PER) holds no word"),
        ({"label": [[23, 40, "LOC"]]}, "span 23 to 40, 'Lima.' (LOC) is not inside the 28 characters. Fix: count"),
        ({"label": [[-4, 4, "LOC"]]}, "span -4 to 4, 'Mrs ' (LOC) is not inside the 28 characters"),
        ({"label": [[4, 14, "PER"], [15, "x", "LOC"]]}, "[15, 'x', 'LOC'] is no span with start, end and name. Fix: w"),
        ({"label": [[4, 14, " "]]}, "span 4 to 14 has no labels. Fix: give it one"),
        ({"label": [{"start": 4, "end": 14, "labels": ["PER", "ORG"]}]}, "span 4 to 14 has 2 labels"),
        ({"label": [{"start": 4, "end": 14, "text": "Lima", "label": "LOC"}]}, "span 4 to 14, 'Eva Brandt' (LOC) is n"),
        (
            {"text": f"🙂 {PAID}", "label": [[7, 17, "PER"]]},  # in UTF-16
            "span 7 to 17, 'va Brandt ' (PER) cuts the word 'Eva'. Fix: count start and end in characters, if they "
            "count 🙂 as two, as JavaScript does; else extend it from 6 to 16, 'Eva Brandt'",
        ),
        ({"label": "PER"}, "has texts, but no column with their spans (columns: text, label). Fix: write"),
        ({"label": None}, "has no list of spans in 'label'. Fix: delete the record, or write an empty list"),
        ({"text": "", "label": []}, "has no words"),
        ({"text": ["Eva"], "label": [[0, 1, "PER"]]}, "has no column with a usual name for the text"),
        ({"text": None, "words": ["Eva"], "ents": [{"start": 0, "end": 1, "type": "PER"}]}, "has words in 'words' and"),
        ({"text": None, "tokenized_text": ["Eva"], "ner": [[0, 1, "PER"]]}, "span 0 to 2, 'Eva' (PER) is not inside t"),
        ({"text": None, "data": {"text": PAID}, "annotations": []}, "is not annotated. Fix: delete the record"),
        ({"text": None, "data": {"a": "x", "b": "y"}, "annotations": []}, "has no text with a usual name in 'data' (k"),
    ],
)
def test_mistakes_in_spans(record, message, tmp_path):
    path = tmp_path / "a.jsonl"
    record = {key: value for key, value in {"text": PAID, **record}.items() if value is not None or key == "label"}
    path.write_text(json.dumps(record) + "\n")
    assert fails(path, TOKENS).startswith(f"FILE:1: {message}")


def test_records_with_one_mistake_are_counted_or_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    good, cut, empty = ({"text": PAID, "label": [[4, end, "PER"]]} for end in (14, 13, 4))
    path.write_text("".join(json.dumps(record) + "\n" for record in (good, cut, empty, cut, cut)))
    assert "FILE:2: span 4 to 13, 'Eva Brand'" in (error := fails(path, TOKENS)) and "the first of 4 such" in error
    skipping = reading(path, TOKENS, on_bad_input="skip")
    assert len(read_examples(str(path), skipping)) == 1 and len(skipping.skipped) == 4
    rejected = {"text": PAID, "spans": [], "answer": "reject"}
    path.write_text(json.dumps(rejected) + "\n" + json.dumps({"text": "Eva", "answer": "accept"}))
    rejecting = reading(path, TOKENS)
    assert [one.words for one in read_examples(str(path), rejecting)] == [("Eva",)]
    assert [one.what for one in rejecting.skipped] == ["has the answer 'reject' of Prodigy"]


def test_words_of_a_text_stand_between_white_space_and_punctuation():
    from tokenizers.pre_tokenizers import BertPreTokenizer

    draw, letters = random.Random(1), "aé1Ж  \t\n.,-'(«\u201c_"
    for _ in range(500):
        text = "".join(draw.choices(letters, k=draw.randrange(30)))
        assert word_offsets(text) == [place for _, place in BertPreTokenizer().pre_tokenize_str(text)]
    for text, words in (
        ("東京は大きい、ね", "東 京 は 大 き い 、 ね"),
        ("हिन्दी भाषा", "हिन्दी भाषा"),
        ("e\u0301ta.\u0301x", "e\u0301ta .\u0301 x"),
        ("5€ 👩\u200d💻x", "5 € 👩\u200d 💻 x"),
        ("สวัสดี", "ส วั ส ดี"),
    ):
        assert [text[begin:end] for begin, end in word_offsets(text)] == words.split(" ")
    tags = ["O", *["B-PER", "I-PER"], "O", "O", "B-LOC", "O"]
    assert spans_in(PAID, tags) == [
        {"start": 4, "end": 14, "label": "PER", "text": "Eva Brandt"},
        {"start": 23, "end": 27, "label": "LOC", "text": "Lima"},
    ]


def squad(path, **question):
    asked = {"id": "q2", "question": "Who?", "answers": [{"text": "Éva", "answer_start": 3}], **question}
    first = {"id": "q1", "question": "What?", "answers": [], "is_impossible": True}
    paragraphs = [{"context": "As Éva says.", "qas": [first, asked]}]
    path.write_text(json.dumps({"version": "v2.0", "data": [{"title": "T", "paragraphs": paragraphs}]}))
    return path


def test_squad_and_its_flat_relatives(tmp_path):
    found = read(squad(tmp_path / "dev.json"), QUESTIONS)
    assert [(one.text, one.text_pair, one.answers, one.key, one.line) for one in found] == [
        ("What?", "As Éva says.", (), "q1", 1),
        ("Who?", "As Éva says.", (("Éva", 3),), "q2", 2),
    ]
    asked = {"id": "q2", "question": "Who?", "context": "As Éva says."}
    record = asked | {"answers": {"text": ["Éva"], "answer_start": [3]}}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "lines.json").write_text(json.dumps(record) + "\n" + json.dumps(record) + "\n")
    (tmp_path / "field.json").write_text(json.dumps({"data": [record]}, indent=1))
    pq.write_table(pa.Table.from_pylist([record]), tmp_path / "a.parquet")
    listed = asked | {"answers": [{"text": "Éva", "answer_start": 3}]}
    (tmp_path / "list.jsonl").write_text(json.dumps(listed) + "\n" + json.dumps(asked | {"answers": []}) + "\n")
    pq.write_table(pa.Table.from_pylist([listed]), tmp_path / "list.parquet")
    assert read(tmp_path / "list.jsonl", QUESTIONS)[1].answers == ()
    (tmp_path / "one.jsonl").write_text(json.dumps(asked | {"answers": {"text": "Éva", "answer_start": 3}}))
    for name in ("a.jsonl", "lines.json", "field.json", "a.parquet", "list.jsonl", "list.parquet", "one.jsonl"):
        one = read(tmp_path / name, QUESTIONS)[0]
        assert (one.text, one.text_pair, one.answers, one.key) == ("Who?", "As Éva says.", (("Éva", 3),), "q2")


def test_an_answer_that_is_not_in_its_context(tmp_path):
    path = squad(tmp_path / "dev.json", answers=[{"text": "Éva", "answer_start": 4}])
    assert fails(path, QUESTIONS).startswith(
        "FILE record 2: answer 'Éva' is not in its context at character 4, where 'va ' is: it is at 3, "
        "1 less than written. Fix: count answer_start in characters from 0, or data.on_bad_input"
    )
    skipping = reading(path, QUESTIONS, on_bad_input="skip")
    assert len(read_examples(str(path), skipping)) == 1 and skipping.skipped[0].where == f"{path} record 2"
    path = squad(tmp_path / "dev.json", answers=[{"text": "Éva"}])
    assert "FILE record 2: answer 'Éva' is not in its context" in fails(path, QUESTIONS)
    assert "FILE record 2: U+DC00 is half" in fails(squad(tmp_path / "dev.json", question="\udc00"), QUESTIONS)
    assert "FILE record 2: the question is empty" in fails(squad(tmp_path / "dev.json", question=" "), QUESTIONS)
    path.write_text('{"data": [{"paragraphs": [{"context": "x"}]}]}')
    assert "is not SQuAD's JSON: a part without the list 'qas'" in fails(path, QUESTIONS)
    path.write_text('{"data": [\n{"paragraphs"\n')
    assert fails(path, QUESTIONS).startswith("FILE:2: is not JSON")


@pytest.mark.parametrize(
    ("context", "start", "said"),
    [
        ("🙂🙂 Éva said it.", 5, "it is at 3, 2 less than written"),
        ("As Éva says, Éva.", 10, "it is at 13, 3 more than written"),
        ("As Eve says.", -1, "it is absent"),
    ],
)
def test_answers_elsewhere_are_placed_and_counted(context, start, said, tmp_path):
    record = {"question": "Who?", "context": context, "answers": {"text": ["Éva"], "answer_start": [start]}}
    (tmp_path / "a.jsonl").write_text(3 * (json.dumps(record) + "\n"))
    absent = "copy the answer from its context, or give [] as the answers if it has none"
    fix = absent if "absent" in said else "count answer_start in characters from 0"
    error = fails(tmp_path / "a.jsonl", QUESTIONS)
    assert f" is: {said} (the first of 3 such records). Fix: {fix}" in error


# ---- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "data", "message"),
    [
        ("a.csv", "body,label\nx,1\n", {}, "FILE:1: has no column with a usual name for the text (columns: body, labe"),
        ("a.csv", "text,kind\nx,1\n", {}, "FILE:1: has no column with a usual name for the labels"),
        ("a.csv", "text,kind\nx,1\n", {"label": "sort"}, "FILE:1: has no column 'sort' (columns: text, kind)"),
        ("a.csv", "x,1\n", {"text": 2, "label": 1}, "FILE:1: has no column 2 (columns: 0, 1)"),
        ("a.csv", "label,x\nx,1\n", {"text": "label"}, "FILE:1: has no column with a usual name for the labels"),
        ("a.csv", "text,label\nx,1\n  ,0\n", {}, "FILE:3: column 'text' is empty"),
        ("a.csv", "text,label\nx,1\ny,\n", {}, "FILE:3: column 'label' has no label"),
        ("a.csv", "text,label\n", {}, "FILE: holds no examples"),
        (
            "a.csv",
            "sentence1,sentence2,text,label\nx,y,z,0\n",
            {},
            "FILE:1: has several columns with a usual name for the text: sentence1, sentence2, text. Fix: name one as "
            "data.text, or a pair as data.text and data.text_pair",
        ),
        ("a.jsonl", '{"text": "x", "label": [0.7, 0.3]}\n', {}, "FILE:1: column 'label' holds shares of labels"),
        ("a.jsonl", '{"text": "x", "label": {"a": 0.7, "b": 0.3}}\n', {}, "FILE:1: column 'label' holds shares of lab"),
        ("a.xlsx", "x", {}, "FILE: is of a kind that cannot be read"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "y"}\n', {}, "FILE:2: has no 'label' (keys: text)"),
        ("a.jsonl", '{"text": 5, "label": 1}\n', {}, "FILE:1: column 'text' is int, not text"),
        ("a.jsonl", '{"text": "x", "label": NaN}\n', {}, "FILE:1: column 'label' has no label"),
        ("a.jsonl", '{"text": "x", "label": [1]}\n', {}, "FILE:1: column 'label' is list, not one label"),
        ("a.json", '[["x", 1], ["y", 2]]', {}, "FILE record 1: is not an object with keys"),
        ("a.json", '{"text": ["x", "y"], "label": [1, 2]}', {}, "FILE record 1: column 'text' is list, not text"),
        ("a.csv", CELLS, {"label": ["toxic", "labels"]}, "FILE:2: column 'labels' is 'x|y |x', not 0 or 1"),
        ("a.csv", 'text,label\nx,"[0, 1, 0]"\n', {}, "FILE:2: column 'label' is a vector of 0 and 1, not one label"),
        ("a.csv", "text,label\nx,\"['a']\"\n", {}, "FILE:2: column 'label' is list, not one label. Fix: write"),
        ("a.tsv", "text\tscore\na\t3.25\nc\thigh\n", {}, "FILE:3: label 'high' in column 'score' is not a number"),
        ("a.tsv", "text\tscore\na\t3.25\nc\tnan\n", {}, "FILE:3: label 'nan' in column 'score' is not a number"),
        ("a.tsv", "text\tscore\na\t3.25\nc\t\n", {}, "FILE:3: label '' in column 'score' is not a number"),
    ],
)
def test_mistakes_in_tables(name, content, data, message, tmp_path):
    """Files that are no tables: tests/unit/test_tables.py."""
    path = tmp_path / name
    path.write_text(content)
    if "text" not in data and "label" in data:
        data = {**data, "text": "text"}
    task = NUMBERS if "score" in content else SEVERAL if isinstance(data.get("label"), list) else Task()
    assert fails(path, task, **data).startswith(message)


@pytest.mark.parametrize(
    ("name", "content", "data", "message"),
    [
        ("a.txt", "a\tO\nb\n\nc\tO\n", {}, "FILE:2: has 1 columns, but the first word has 2"),
        ("a.txt", "a\tO\n\t O\n", {}, "FILE:2: has no word"),
        ("a.txt", "en:a\tO\nen:\tO\n", {}, "FILE:2: has no word"),
        ("a.txt", "a\tO\nb\t\n", {}, "FILE:2: has no tag"),
        (
            "a.tsv",
            '1\t"[{""start"": 0}]"\n',
            {},
            'FILE:1: has a list as its tag, \'"[{""start"": 0}]"\'. Fix: give spans',
        ),
        ("a.txt", "a\n", {}, "FILE:1: has one column, but no tags"),
        ("a.txt", "b O\n#a\n", {}, "FILE:2: has 1 columns, but the first word has 2"),
        ("a.conllu", "# text = A b\n1\tA\tX\n2\tb\tY\n\n1\tc\tX\n", {}, "FILE:2: has a first column that counts the"),
        ("a.txt", "a\tO\n", {"text": 2}, "FILE:1: has 2 columns, no column 2"),
        ("a.txt", "a\tO\n", {"text": "word"}, "FILE:1: has columns without names, so none is 'word'"),
        ("a.txt", "-DOCSTART- O\n\n", {}, "FILE: holds no sentence"),
        ("a.csv", "a,O\n", {}, "FILE:1: has no column that numbers the sentences of its words (columns: a, O)"),
        ("a.csv", "sentence_id,words,labels\n0,a,O\n1,b,O\n0,c,O\n", {}, "FILE:4: continues the sentence '0' of"),
        ("a.csv", "Sentence #,Word,Tag\n,a,O\n", {}, "FILE:2: has no sentence in column 'Sentence #'"),
        ("a.csv", "sentence_id,words,labels\n0,a,O\n1,b,O\n1, ,O\n", {}, "FILE:3: word 2 of 2 is empty"),
        ("a.csv", "sentence_id,form,labels\n0,a,O\n", {}, "FILE:1: has no column with a usual name for the text"),
        ("a.txt", "sentence_id\tword\ttag\n1\ta\tO\n", {}, "FILE:1: is a table with a column that numbers"),
        ("a.tsv", "sentence_id\tword\ttag\n1\ta\tO\n", {"text": 1}, "FILE:1: is a table with a column that numbers"),
        ("a.jsonl", '{"words": ["a"], "tags": ["O", "O"]}\n', {}, "FILE:1: has 1 words and 2 tags"),
        ("a.jsonl", '{"words": "a", "tags": ["O"]}\n', {}, "FILE:1: column 'words' is str, not a list"),
        ("a.jsonl", '{"words": [], "tags": []}\n', {}, "FILE:1: has no words"),
        ("a.jsonl", '{"words": ["a", ""], "tags": [0, 1]}\n', {}, "FILE:1: word 2 of 2 is empty"),
        ("a.jsonl", '{"words": ["a", "b"], "tags": [0, null]}\n', {}, "FILE:1: word 2 of 2 has no tag"),
    ],
)
def test_mistakes_in_tagged_words(name, content, data, message, tmp_path):
    (tmp_path / name).write_text(content)
    assert fails(tmp_path / name, TOKENS, **data).startswith(message)


def test_skipped_records_are_named_and_the_rest_is_read(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\na\t1\nb\n\t0\nc\t0\n")
    skipping = reading(path, on_bad_input="skip")
    assert [one.text for one in read_examples(str(path), skipping)] == ["a", "c"]
    assert [one.where for one in skipping.skipped] == [f"{path}:3", f"{path}:4"]


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        (Task, {"labels": ["a"]}, "which leaves no choice"),
        (Task, {"labels": ["a", "a"]}, "which leaves no choice"),
        (Task, {"labels": [1, 2, "1"]}, "names one label twice"),
        (Task, {"kind": "regression", "labels": ["a", "b"]}, "has no labels"),
        (LabelledData, {"train": "x", "text": 0, "label": "y"}, "partly by number and partly by name"),
        (LabelledData, {"train": "x", "text_pair": "y"}, "text_pair is set without text"),
        (LabelledData, {"train": "x", "text": ["text", "label"], "label": "label"}, "are the same column, 'label'"),
        (LabelledData, {"train": "x", "text": 0, "text_pair": 1, "label": 1}, "are the same column, 1"),
        (LabelledData, {"train": "x", "fraction": 0.0}, "greater than 0"),
        (LabelledData, {"train": "x", "text": True}, "True is not a column"),
        (LabelledData, {"train": "x", "label": [1, -1]}, r"\[1, -1\] is not a column"),
        (LabelledData, {"train": "x", "text": [], "label": []}, r"\[\] is not a column"),
        (Task, {"labels": "no, yes"}, "'no, yes' is not a list of labels"),
        (Task, {"labels": {"a": None, "b": 1}}, "null without quotes is not a word in YAML"),
        (Task, {"labels": ["yes", None]}, "null without quotes is not a word in YAML"),
        (Task, {"labels": [1.5, 2]}, "1.5 without quotes is not a word in YAML"),
        (LabelledData, {"train": ["a.csv", "b.csv"]}, "is a list, but one location is needed"),
    ],
)
def test_sections_refuse_what_contradicts_itself(section, values, message):
    with pytest.raises(ValidationError, match=message):
        section(**values)
