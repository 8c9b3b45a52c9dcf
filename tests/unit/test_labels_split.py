"""Labels in a stable order, stratified and nested shares, and what is said of duplicates and of splits that overlap."""

import json
import random
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from maskwright.config.finetuning import LabelledData, Task
from maskwright.core.errors import InputError
from maskwright.labels.annotations import cut_otherwise
from maskwright.labels.dataset import read_dataset
from maskwright.labels.example import Answer, Example, Reading, folded
from maskwright.labels.files import with_splits
from maskwright.labels.names import in_order, in_terms_of, odd_labels, tag_scheme, with_known
from maskwright.labels.report import examine, odd_targets
from maskwright.labels.split import hold_out, take_fraction

SINGLE, SEVERAL = Task(), Task(kind="multi_label_classification")
TOKENS, NUMBERS = Task(kind="token_classification"), Task(kind="regression")
QUESTIONS = Task(kind="question_answering")
FRACTIONS = (0.003, 0.02, 0.1, 0.11, 0.2, 0.5, 0.77, 1.0)
SIZES = {"often": 400, "half": 180, "rare": 12, "once": 1}


def some(task, *, repeats=True):
    """593 examples of classes of very different sizes; every 9th text comes twice."""
    draw = random.Random(5)
    classes = [name for name, size in SIZES.items() for _ in range(size)]
    draw.shuffle(classes)
    examples = []
    for number, name in enumerate(classes):
        text = f"text {number - (number % 9 // 8 if repeats else 0)}"
        one = Example("a.csv", number + 2, text, labels=(name,), value=draw.gauss(0, 1))
        if task.kind == "regression":
            one = replace(one, labels=())
        elif task.kind == "multi_label_classification":
            one = replace(one, labels=tuple(n for n in SIZES if n == name or (n == "often" and draw.random() < 0.9)))
        elif task.kind == "token_classification":
            words = tuple(text.split())
            one = replace(one, text="", words=words, labels=("O", name))
        elif task.kind == "question_answering":
            answers = (Answer("c", 0),) if name == "often" else ()
            one = replace(one, text_pair=f"context {number // 4}", answers=answers, labels=())
        examples.append(one)
    return examples


@pytest.mark.parametrize("task", [SINGLE, SEVERAL, TOKENS, NUMBERS, QUESTIONS], ids=lambda task: task.kind)
@pytest.mark.parametrize("seed", [0, 2**62 + 1])
def test_smaller_shares_lie_inside_larger_ones_and_every_label_stays(task, seed):
    examples = some(task)
    labels = {name for one in examples for name in one.labels}
    last = set()
    for fraction in FRACTIONS:
        taken = take_fraction(examples, task, seed, fraction)
        lines = [one.line for one in taken]
        assert lines == sorted(lines) and last <= set(lines)
        assert {name for one in taken for name in one.labels} == labels
        assert abs(len(taken) - fraction * len(examples)) <= 12  # four labels, texts twice, four questions a context
        last = set(lines)
    assert len(last) == len(examples)


def test_shares_are_stratified():
    counts = Counter(one.labels[0] for one in take_fraction(some(SINGLE, repeats=False), SINGLE, 3, 0.5))
    assert all(abs(counts[name] - size / 2) <= 1.5 for name, size in SIZES.items())
    _, validation = hold_out(some(SINGLE, repeats=False), SINGLE, 3, 0.25)
    counts = Counter(one.labels[0] for one in validation)
    assert all(abs(counts[name] - size / 4) <= 2 for name, size in SIZES.items())
    values = sorted(one.value for one in hold_out(some(NUMBERS), NUMBERS, 3, 0.25)[1])
    assert -0.85 < values[len(values) // 4] < -0.5 and 0.5 < values[3 * len(values) // 4] < 0.85  # quartiles: ±0.67


@pytest.mark.parametrize("task", [SINGLE, SEVERAL, TOKENS, NUMBERS, QUESTIONS], ids=lambda task: task.kind)
def test_nothing_is_held_out_that_training_sees_or_needs(task):
    examples = some(task)
    train, validation = hold_out(examples, task, 1, 0.1)
    assert sorted([*train, *validation], key=lambda one: one.line) == examples
    assert abs(len(validation) - len(examples) / 10) <= 12
    same = (lambda one: one.text_pair) if task is QUESTIONS else (lambda one: one.content)
    assert not set(map(same, train)) & set(map(same, validation))
    for kept in (train, hold_out(examples, task, 1, 0.9)[0]):
        assert {n for one in kept for n in one.labels} == {n for one in examples for n in one.labels}
    lines = {one.line for one in validation}
    assert {one.line for one in hold_out(examples, task, 2, 0.1)[1]} != lines
    shuffled = random.Random(0).sample(examples, len(examples))
    assert {one.line for one in hold_out(shuffled, task, 1, 0.1)[1]} == lines
    taken = [take_fraction(some, task, 1, 0.2) for some in (examples, shuffled)]
    assert len({frozenset(one.line for one in part) for part in taken}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("The cat sat.", None), ("the CAT  sat", None)),
        (("“Où?” — ici…", None), ("Où ici", None)),
        (("Ａｂ　１", None), ("ab1", None)),
        (("A cat.", "A dog."), ("a dog", "a cat")),
    ],
)
def test_nearly_equal_texts_stay_on_one_side(one, other):
    for seed in range(6):
        texts = [(f"t{n}", None) for n in range(10)] + [one, other] * 5
        examples = [Example("a", line, *text, labels=("x",)) for line, text in enumerate(texts)]
        train, validation = hold_out(examples, SINGLE, seed, 0.5)
        assert {sum(example.line >= 10 for example in side) for side in (train, validation)} == {0, 10}
    different = {"कि", "की", "😀", "😡", "?!", "a1", "a2", "C1CCCCC1", "c1ccccc1", "C(C)O"}
    assert set(map(folded, different)) == different


def test_the_same_seed_gives_these_very_examples():
    """A change here would change the splits of every run that has been made."""
    examples = [Example("a", n, f"t{n}", labels=(str(n % 2),)) for n in range(20)]
    assert [one.line for one in hold_out(examples, SINGLE, 0, 0.2)[1]] == [4, 9, 10, 11]
    assert [one.line for one in take_fraction(examples, SINGLE, 0, 0.2)] == [0, 9, 11, 14]


def test_one_sentence_cannot_be_parted():
    one = Example("a.conll", 1, words=("a",) * 500, labels=("O",) * 500)
    with pytest.raises(InputError, match=r"^a.conll:1: holds one sentence of 500 words, so .* Fix: put a blank line a"):
        hold_out([one], TOKENS, 0, 0.1)


def test_labels_are_ordered_by_number_or_code_point():
    assert in_order(["10", "9", "-1"]) == ("-1", "9", "10")
    assert in_order(["10", "9", "x"]) == ("10", "9", "x")
    assert in_order(["O", "I-b", "B-b", "é", "a"]) == ("B-b", "I-b", "O", "a", "é")


BY_WORD = "has no prefix such as B- or I-: each word is judged by itself"


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ("O B-X I-X O B-Y", "tags follow IOB2"),
        ("O I-X B-X", "1 spans begin with I-, as in IOB1 and not in IOB2 (first: a:1 word 2)"),
        ("O I-X I-X", "tags follow IO: "),
        ("O B-X E-X S-Y", "tags follow IOBES"),
        ("B-X L-X U-Y", "tags follow BILOU"),
        ("NOUN VERB X-RAY", "tag 'NOUN' has no prefix such as B- or I-: each word is judged by itself"),
        ("0 3 0", "the tags are integers: name them in task.labels, as in {0: O, 1: B-PER}"),
        ("O B_PER", f"tag 'B_PER' {BY_WORD}. If it means 'B-PER', write that to judge entities"),
        ("O b_per", f"tag 'b_per' {BY_WORD}. If it means 'B-per', write that to judge entities"),
        ("O PER-B", f"tag 'PER-B' {BY_WORD}. If it means 'B-PER', write that to judge entities"),
        ("O B I", "tags follow IOB2"),
        ("O S", f"tag 'S' {BY_WORD}"),
        ("O B-X M-X E-X", "tags follow BMES"),
        ("0 B-PER", f"tag '0' {BY_WORD}. If it means the letter O, write that to judge entities"),
        ("O B-X Y", f"tag 'Y' {BY_WORD}, though 1 of 3 tags have one. Give each tag but O a prefix"),
    ],
)
def test_schemes_of_tags_are_told_apart(tags, said):
    found = tag_scheme([Example("a", 1, labels=tuple(tags.split()))])
    assert found.startswith(said) and ("to judge entities" in found) == ("If" in said or "Give" in said)


def test_words_that_predict_would_cut_are_noted():
    whole, cut = Example("a", 1, words=("Eva",) * 60), Example("a", 2, words=("paid", "U.S."))
    assert cut_otherwise([whole] * 3) is None and cut_otherwise([whole, replace(cut, text="paid U.S.")]) is None
    assert str(cut_otherwise([whole, cut])).startswith("1.6% of the words, such as 'U.S.', are several where `predict`")


# ---- whole data sets ---------------------------------------------------------------------------------------------


def write(folder, **files):
    """TSV files with the header `text label`; a text is all but the last word of its line."""
    for name, rows in files.items():
        lines = ["\t".join(row.strip().rsplit(" ", 1)) for row in rows.split(",")]
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    return {name: str(folder / f"{name}.tsv") for name in files}


def dataset(folder, task=SINGLE, data=None, **files):
    return read_dataset(LabelledData(**write(folder, **files), **(data or {})), task, seed=0)


def test_duplicates_conflicts_and_leaks_are_counted_and_placed(tmp_path):
    files = {"train": "a x, b y, a x, a  y, c x, a z", "validation": "d x, b x, b y", "test": "e x, d x, « D! x"}
    found = dataset(tmp_path, **files)
    assert [str(one).replace(f"{tmp_path}/", "") for one in found.report.findings] == [
        "train: 1 example repeats an earlier one with its label (train.tsv:4 as line 2)",
        "train: 2 examples repeat an earlier text with another label "
        "(train.tsv:5 'y' as line 2 'x', train.tsv:7 'z' as line 2 'x')",
        "validation: 1 example repeats an earlier text with another label (validation.tsv:4 'y' as line 3 'x')",
        "validation: 2 examples repeat a text of the train split, 1 with another label "
        "(validation.tsv:3 'x' as train.tsv:3 'y', validation.tsv:4 as train.tsv:3)",
        "test: 2 examples repeat a text of the validation split, 1 with other case, spaces, punctuation or order "
        "(test.tsv:3 as validation.tsv:2, test.tsv:4 as validation.tsv:2)",
    ]
    assert found.report.sizes == {"train": 6, "validation": 3, "test": 3}
    assert found.report.counts["train"] == {"x": 3, "y": 2, "z": 1}
    assert found.report.warnings() == list(map(str, found.report.findings))


def test_labels_of_other_kinds_are_compared_as_what_they_are():
    a, b = Example("a", 1, "t", labels=("x", "y")), Example("a", 2, "t", labels=("y", "x"))
    assert [one.kind for one in examine({"train": [a, b]}, SEVERAL)] == ["duplicate"]
    for value, other, said in ((0.0, 0.5, "'0.5' as line 1 '0'"), (20210104.0, 20210105.0, "'20210105.0' as line")):
        two = [replace(a, value=value), replace(b, value=other)]
        (found,) = examine({"train": two}, NUMBERS)
        assert found.kind == "conflict" and said in str(found)
    words = [replace(one, text="", words=("p", "q")) for one in (a, b)]
    assert [one.kind for one in examine({"train": words}, TOKENS)] == ["conflict"]
    asked = [replace(a, text_pair="c", answers=answers) for answers in ((), (Answer("c", 0),))]
    (found,) = examine({"train": [replace(one, counted="record") for one in asked]}, QUESTIONS)
    assert found.kind == "conflict" and found.places == ("a record 1 'c' as record 1 'no answer'",)


def test_without_a_validation_file_a_share_is_held_out_of_training(tmp_path):
    rows = ", ".join(f"t{n} {n % 2}" for n in range(100))
    found = dataset(tmp_path, data={"fraction": 0.5}, train=rows, test="u 0, v 1")
    assert [len(split) for split in (found.train, found.validation, found.test)] == [44, 10, 2]
    assert found.labels == ("0", "1")
    assert found.report.notes[-2:] == (
        "10 of 100 training examples are held out for validation (data.validation_fraction 0.1)",
        "44 of 90 training examples are used (data.fraction 0.5)",
    )
    whole = dataset(tmp_path, train=rows, test="u 0, v 1")
    assert found.validation == whole.validation and set(found.train) < set(whole.train)


def test_a_group_stays_on_one_side(tmp_path):
    """Windows of one document, of which another group has one as well: both groups are one part."""
    rows = [f"window {n},{'abcdef'[n // 6 % 6]},doc {n // 6}\n" for n in range(180)]
    rows[13] = "window 0,b,doc 2\n"
    files = {"train.csv": rows, "test.csv": ["text of a test,a,DOC_5\n", "another,b,_\n"]}
    for name, lines in files.items():
        (tmp_path / name).write_text("text,label,source\n" + "".join(lines))
    data = LabelledData(train=str(tmp_path / "train.csv"), test=str(tmp_path / "test.csv"), group="source")
    for seed in range(20):
        found = read_dataset(data, SINGLE, seed)
        sides = [{one.group for one in side} for side in (found.train, found.validation)]
        assert len(found.train) + len(found.validation) == 180 and not sides[0] & sides[1] and sides[1]
        assert ("doc 0" in sides[0]) == ("doc 2" in sides[0])
        assert 18 <= len(found.validation) < 18 + 12, "a tenth, and less than another part"
        assert " of the 30 groups)" in found.report.notes[-1]
    said = f"test: 1 example of groups of the train split (the first at {tmp_path / 'test.csv'}:2)"
    assert [line for line in found.report.warnings() if "groups" in line] in (
        [said],
        [said.replace("train", "validation")],
    )
    (tmp_path / "test.csv").write_text("text,label\ntext of a test,a\n")
    notes = " ".join(read_dataset(data, SINGLE, 0).report.notes)
    assert f"{tmp_path / 'test.csv'}: data.group is 'source', but these files give no groups" in notes
    (tmp_path / "a.conll").write_text("a O\nb B-X\n\nc O\n")
    with pytest.raises(InputError, match=r"data.group is 'source', but these files give no groups. Fix: write a table"):
        read_dataset(LabelledData(train=str(tmp_path / "a.conll"), group="source"), TOKENS, 0)
    (tmp_path / "test.csv").write_text("sentence1,sentence2,label\nx,y,a\n")
    with pytest.raises(InputError, match=r"test.csv:2: has a pair of texts, but .*train.csv:2 has one text. Fix: name"):
        read_dataset(data.model_copy(update={"group": None}), SINGLE, 0)


@pytest.mark.parametrize(("labels", "groups", "out"), [(20, 40, 100), (2, 3, 25)])
def test_groups_hold_out_their_share(labels, groups, out):
    """Also with labels of two groups each, of which one would be half."""
    rows = [(group % labels, group, number) for group in range(groups) for number in range(25)]
    examples = [Example("a", 1, f"{n} of {g}", labels=(str(label),), group=f"{g}") for label, g, n in rows]
    for seed in range(4):
        train, held = hold_out(examples, SINGLE, seed, 0.1)
        assert len(held) == out and len({one.labels for one in train}) == labels
    many = [Example("a", 1, text, labels=("x",), group=f"{n}") for n in range(5000) for text in ("ok", f"{n} {n}")]
    with pytest.raises(InputError, match="have only 1 part; those that share a text or a group .* Fix: check data.gr"):
        hold_out(many, SINGLE, 0, 0.1)


def test_fixed_labels_may_be_missing_from_training(tmp_path):
    task = Task(labels=["z", "y", "x"])
    found = dataset(tmp_path, task, train="a x, b y, c x", validation="d z")
    assert found.labels == ("z", "y", "x")
    assert found.report.warnings() == ["no training example has the label z"]


def test_columns_of_zero_and_one_keep_their_order(tmp_path):
    (tmp_path / "a.csv").write_text("text,toxic,mild\na,1,0\nb,0,1\nc,1,1\nd,0,0\n")
    data = LabelledData(train=str(tmp_path / "a.csv"), text="text", label=["toxic", "mild"], validation_fraction=0.4)
    assert read_dataset(data, SEVERAL, 0).labels == ("toxic", "mild")


@pytest.mark.parametrize(
    ("task", "files", "message"),
    [
        (SINGLE, {"train": "a x, b y, c y", "test": "d x, e w"}, "test.tsv:3: label 'w' is in the test split, but no"),
        (SINGLE, {"train": "a x, b y, c y", "validation": "d w"}, "validation.tsv:2: label 'w' is in the validation s"),
        (Task(labels=["x", "y"]), {"train": "a x, b y, c w"}, "train.tsv:4: label 'w' is not in task.labels (x, y)"),
        (SINGLE, {"train": "a x, b x"}, "train.tsv:2: has only the label 'x' in all 2 examples. Fix: "),
        (NUMBERS, {"train": "a 1, b 1.0"}, "train.tsv:2: has only the label 1 in all 2 examples. Fix: "),
        (SINGLE, {"train": "a 1.5, b 2.5, c 3"}, "train.tsv:2: has as many labels as the 3 examples"),
        (Task(labels=list("xyz")), {"train": "a x, b y"}, "train.tsv:2: has more labels than the 2 examples (x, y, z)"),
        (SINGLE, {"train": "a x, b y, c y", "test": " b  y, a x"}, "test.tsv: holds no text that is not in the train"),
        (SINGLE, {"train": "a x, b y, c y"}, "data.validation_fraction: too few training examples (3) to hold out"),
        (SINGLE, {"train": "a x, b y" + ", a x, b y" * 14}, "train.tsv:2: 30 training examples have only 2 different"),
    ],
)
def test_data_sets_that_cannot_be_learnt_from(task, files, message, tmp_path):
    with pytest.raises(InputError) as caught:
        dataset(tmp_path, task, **files)
    text = str(caught.value).replace(f"{tmp_path}/", "")
    assert text.startswith(message) and caught.value.exit_code == 2 and "Fix: " in text and "\n" not in text


def test_one_file_is_not_two_splits(tmp_path):
    train = write(tmp_path, train="a x, b y")["train"]
    (tmp_path / "link.tsv").symlink_to(train)
    for path, test in ((train, str(tmp_path / "link.tsv")), (f"{tmp_path}/*.tsv", train)):
        with pytest.raises(InputError, match=r"\.tsv: is in the train and in the test split"):
            read_dataset(LabelledData(train=path, test=test), SINGLE, 0)


@pytest.mark.parametrize(
    ("files", "sizes"),
    [
        (["data/train-00000-of-00001", "data/test-00000-of-00001"], {"train": 36, "validation": 4, "test": 40}),
        (["train", "dev"], {"train": 40, "validation": 40}),
        (["train/a", "train/b", "valid/a", "test/a"], {"train": 80, "validation": 40, "test": 40}),
        (["eng.train", "eng.testa", "eng.testb"], {"train": 40, "validation": 40, "test": 40}),
        (["reviews", "reviews_test"], {"train": 36, "validation": 4, "test": 40}),
        (["train", "validation_matched", "validation_mismatched", "unsupervised"], {"train": 40, "validation": 80}),
        (["2023", "2024"], {"train": 72, "validation": 8}),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", ["folder", "glob"])
def test_each_split_of_a_folder_has_its_own_files(files, sizes, kind, tmp_path):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path, **{name: ", ".join(f"{name} {number} {'xy'[number % 2]}" for number in range(40))})
    (tmp_path / "README.md").write_text("# Data")
    (tmp_path / "dataset_infos.json").write_text("{}")
    data = with_splits(LabelledData(train=str(tmp_path) if kind == "folder" else f"{tmp_path}/**/*.tsv"))
    found = read_dataset(data, SINGLE, 0)
    assert found.report.sizes == sizes
    if files[-1] == "unsupervised":
        assert any("1 file of no split, not read, the first unsupervised.tsv" in note for note in found.report.notes)


def test_a_split_that_is_named_goes_before_that_of_the_folder(tmp_path):
    rows = {name: ", ".join(f"{name} {n} {'xy'[n % 2]}" for n in range(40)) for name in ("train", "test", "more")}
    paths = write(tmp_path, **rows)
    data = with_splits(LabelledData(train=str(tmp_path), test=paths["test"]))
    assert data.test == paths["test"] and read_dataset(data, SINGLE, 0).report.sizes["train"] == 36
    data = with_splits(LabelledData(train=str(tmp_path), test=paths["more"]))
    assert read_dataset(data, SINGLE, 0).test[0].text == "more 0"
    (tmp_path / "test.tsv").unlink()
    data = with_splits(LabelledData(train=str(tmp_path), test=paths["more"]))
    found = read_dataset(data, SINGLE, 0)
    assert found.report.sizes == {"train": 36, "validation": 4, "test": 40}
    assert found.report.notes[0] == f"{paths['more']} is in data.train and in data.test, so it is not trained on"
    (tmp_path / "train.tsv").rename(tmp_path / "dev.tsv")
    (tmp_path / "more.tsv").unlink()
    with pytest.raises(InputError, match=r"holds files of validation and none of train, by their names\. Fix: name"):
        read_dataset(with_splits(LabelledData(train=str(tmp_path))), SINGLE, 0)


@pytest.mark.parametrize("test", ["text\na\nb\n", "text\tlabel\na\t-1\nb\t-1\n"])
def test_test_files_without_labels_are_named_with_the_way_to_leave_them_out(test, tmp_path):
    write(tmp_path, train=", ".join(f"t{n} {n % 3}" for n in range(60)))
    (tmp_path / "test.tsv").write_text(test)
    with pytest.raises(InputError, match=r"test\.tsv:.*, or leave these files out with data\.test: null$") as caught:
        read_dataset(with_splits(LabelledData(train=str(tmp_path))), SINGLE, 0)
    assert ("label '-1', which means none," in str(caught.value)) == ("-1" in test)
    data = with_splits(LabelledData(train=str(tmp_path), test=None))
    assert read_dataset(data, SINGLE, 0).report.sizes == {"train": 54, "validation": 6}


@pytest.mark.parametrize("of_names", [("anger", "joy"), (0, 1)])
def test_a_mapping_is_for_files_with_class_names_and_others(of_names, tmp_path):
    feature = {"feature": {"names": ["anger", "joy"], "_type": "ClassLabel"}, "_type": "List"}
    table = pa.Table.from_pylist([{"text": f"t{n}", "labels": [[], [0], [0, 1]][n % 3]} for n in range(20)])
    info = json.dumps({"info": {"features": {"labels": feature}}})
    pq.write_table(table.replace_schema_metadata({"huggingface": info}), tmp_path / "train.parquet")
    (tmp_path / "test.csv").write_text(f"text,labels\na,{of_names[1]}\nb,{of_names[0]};{of_names[1]}\n")
    names = dict(zip(of_names, ("Zorn", "Freude"), strict=True))
    task = Task(kind="multi_label_classification", separator=";", labels=names)
    found = read_dataset(with_splits(LabelledData(train=str(tmp_path))), task, 0)
    assert found.labels == ("Zorn", "Freude")
    assert [one.labels for one in found.test] == [("Freude",), ("Zorn", "Freude")]
    assert {one.labels for one in found.train} == {(), ("Zorn",), ("Zorn", "Freude")}


def test_labels_of_a_model_without_names_are_places():
    numbered, reading = ("LABEL_0", "LABEL_1"), Reading(LabelledData(train="x"), SINGLE)
    numbers = [Example("a", 1, labels=("1",)), Example("a", 2, labels=("LABEL_0",))]
    assert [one.labels[0] for one in in_terms_of(numbered, numbers, reading)] == ["LABEL_1", "LABEL_0"]
    assert [*reading.notes] == ["the model's labels are LABEL_0, LABEL_1: the file's are their positions, from 0"]
    named = replace(reading, class_names=("no", "yes"))
    assert in_terms_of(numbered, [Example("a", 1, labels=("yes",))], named)[0].labels == ("LABEL_1",)
    places = "positions of the model's labels, from 0 to 1"
    for labels, wrong, said in ((numbered, "2", places), (("n", "y"), "1", "labels of")):
        with pytest.raises(InputError, match=f"label '{wrong}' is none of the model's .*Fix: write the {said}"):
            in_terms_of(labels, [Example("a", 1, labels=(wrong,))], reading)


def test_records_without_a_label_of_the_configuration_can_be_left_out(tmp_path):
    rows = ", ".join(f"t{n} {'xy-'[n % 3]}" for n in range(60))
    (odd,) = dataset(tmp_path, train=rows).report.warnings()
    assert odd.startswith(f"the label - (20 examples, the first at {tmp_path}/train.tsv:4) counts as a class")
    assert odd.endswith('with data.on_bad_input: skip and task.labels: ["x", "y"]')
    found = dataset(tmp_path, Task(labels=["x", "y"]), {"on_bad_input": "skip"}, train=rows)
    assert found.report.sizes == {"train": 36, "validation": 4} and len(found.report.skipped) == 20


def test_a_tag_that_training_lacks_names_its_word(tmp_path):
    (tmp_path / "train.txt").write_text("a\tO\nb\tB-X\n")
    (tmp_path / "dev.txt").write_text("a\tO\n\nb\tO\nc\tB-Y\n")
    data = LabelledData(train=str(tmp_path / "train.txt"), validation=str(tmp_path / "dev.txt"))
    with pytest.raises(InputError, match=r"dev\.txt:3: label 'B-Y' of word 2, 'c', is in the validation split"):
        read_dataset(data, TOKENS, 0)


def test_the_fingerprint_is_of_the_content(tmp_path):
    (tmp_path / "moved").mkdir()
    files = {"train": "a x, b y, c y", "validation": "d x"}
    prints = [dataset(folder, **files).fingerprint for folder in (tmp_path, tmp_path / "moved")]
    prints += [dataset(tmp_path, **{**files, "validation": text}).fingerprint for text in ("d y", "e x")]
    assert prints[0] == prints[1] and len(set(prints)) == 3


def test_a_header_line_that_is_taken_for_an_example_is_noted(tmp_path):
    files = write(tmp_path, train="a x, b y, c y, d x", validation="d x")
    data = LabelledData(**files, text=0, label=1)
    with pytest.raises(InputError, match="validation.tsv: holds no text that is not in the train split"):
        read_dataset(data, SINGLE, 0)
    (tmp_path / "validation.tsv").write_text("e\tx\n")
    notes = read_dataset(data, SINGLE, 0).report.notes
    assert f"only {tmp_path}/train.tsv:1 has the label 'label': if it is a header line" in notes[-1]
    tagged = "Wort Art\n" + "Paris B-LOC\nis O\n\n" * 3
    (tmp_path / "train.conll").write_text(tagged)
    (tmp_path / "valid.conll").write_text("x O\n")
    data = LabelledData(train=str(tmp_path / "train.conll"), validation=str(tmp_path / "valid.conll"))
    notes = read_dataset(data, TOKENS, 0).report.notes
    assert any(note.startswith(f"only the word 'Wort' ({tmp_path}/train.conll:1) has the tag 'Art'") for note in notes)
    (tmp_path / "train.conll").write_text(tagged.partition("\n")[2])
    assert not [note for note in read_dataset(data, TOKENS, 0).report.notes if "only the word" in note]


def test_labels_that_are_most_likely_one_or_none_are_named():
    alike = "count as 2 different ones. If they are one, write them alike"
    for labels, task, said in (
        (("a", "b", "1", "2.5", "none"), SINGLE, []),
        (("A", "a", "b"), SINGLE, [f"the labels A, a {alike}"]),
        (("0", "1", "1.0"), SINGLE, [f"the labels 1, 1.0 {alike}"]),
        (("01", "1", "not_a", "not a"), SINGLE, [f"the labels 01, 1 {alike}", f"the labels not_a, not a {alike}"]),
        (("caf\xe9", "cafe\u0301", "a\u200b", "b"), SINGLE, [rf"the labels caf\xe9, cafe\u0301 {alike}"]),
        (("-1", "1"), SINGLE, []),
        (("+", "-"), SINGLE, []),
        ((".", "``", "X"), TOKENS, []),
    ):
        assert odd_labels(labels, task) == said
    for name in ("NaN", "-1", "-100", "-", "?", "Unknown", "NA", "--", "#N/A", "\\N"):
        (missing,) = odd_labels((name, *(["0", "1"] if name.startswith("-1") else ["b"])), SINGLE)
        assert missing.startswith(f"the label {name} counts as a class like others. If it marks a missing label")
    assert odd_labels(("a", "a;b"), SEVERAL) == [
        "the label 'a;b' is one label: task.separator is ','; if ';' separates labels, set it to that"
    ]
    for mark in (";", "|", "\n", "\t", " / "):
        assert len(odd_labels(("a", f"a{mark}b"), SEVERAL)) == 1
    assert odd_labels(("a", "Sci/Tech"), SEVERAL) == []
    for labels, said in (("ab", "every training example has all 2 labels"), ("a", "no training example has two")):
        (warning,) = odd_labels(("a", "b"), SEVERAL, [Example("a", n, labels=tuple(labels)) for n in range(3)])
        assert warning.startswith(said)


@pytest.mark.parametrize(("second", "said"), [("no yes", 1), ("1 yes", 0), ("no", 0), ("2 3 4", 0)])
def test_files_of_one_split_that_name_their_labels_otherwise_are_named(second, said):
    files = (("a.csv", "0 1"), ("b.csv", second))
    examples = [Example(file, 1, labels=(name,)) for file, names in files for name in names.split()]
    expected = "b.csv has other labels (no, yes) than a.csv (0, 1). If they are the same, write them alike"
    assert odd_labels(("0", "1", "no", "yes"), SINGLE, examples) == [expected] * said


def test_splits_that_hide_their_labels_or_count_otherwise_are_named():
    """As GLUE's and shared tasks' test files do, whose one number, tag or no label at all would count as wrong."""

    def valued(*values):
        return [Example("a", line, value=float(value)) for line, value in enumerate(values, 1)]

    def labelled(*labels):
        return [Example("a", line, labels=labels) for line in range(12)]

    train, some = valued(*range(6), *range(6)), valued(*(n / 10 for n in range(12)))
    for task, splits, said in (
        (NUMBERS, {"train": train, "test": valued(*[-1] * 12)}, "test: all 12 examples have the label '-1'. If they"),
        (NUMBERS, {"train": train, "test": valued(*[-1] * 9)}, ""),
        (NUMBERS, {"train": train, "test": some}, "test: its numbers are 0 to 1.1, and 0 to 5 in the training split"),
        (NUMBERS, {"train": train, "test": train}, ""),
        (NUMBERS, {"train": [*train, *valued(-1, -1, -1)]}, "the number -1 (3 examples, the first at a:1) counts like"),
        (NUMBERS, {"train": [*train, *valued(999, 999, 999)]}, "the number 999 (3 examples"),
        (NUMBERS, {"train": [*train, *valued(6, 6, 6)]}, ""),
        (NUMBERS, {"train": valued(*[-1, 0, 1] * 4)}, ""),
        (NUMBERS, {"train": valued(*[0] * 60, 3, 3, 4)}, ""),
        (NUMBERS, {"train": valued(*range(99), 9999), "test": valued(*range(99))}, ""),
        (NUMBERS, {"train": valued(*[0] * 60, 3), "test": valued(*[0] * 12)}, ""),
        (SEVERAL, {"train": labelled("a"), "test": labelled()}, "test: all 12 examples have no label"),
        (SEVERAL, {"train": labelled("a"), "test": [*labelled(), *labelled("a")]}, ""),
        (
            TOKENS,
            {"train": labelled("O", "B-X"), "test": labelled("O", "O")},
            "test: all 12 examples have the label 'O'",
        ),
        (TOKENS, {"train": labelled("O", "B-X"), "test": labelled("O", "B-X")}, ""),
        (TOKENS, {"train": [*labelled("O") * 4, *labelled("B-X")], "test": labelled("O")}, ""),
        (SINGLE, {"train": labelled("a"), "test": [*labelled("a"), *labelled("b")]}, ""),
    ):
        lines = odd_targets(splits, task)
        assert len(lines) == bool(said) and all(line.startswith(said) for line in lines), (said, lines)
    with pytest.raises(InputError, match="label 'A', unlike 'a', is in the test split, but no training example has it"):
        with_known("test", labelled("A"), ("a", "b"), Reading(LabelledData(train="a"), SINGLE))
