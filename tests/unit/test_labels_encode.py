"""Examples to arrays: ids as `transformers` gives them, for each kind of tokenizer; targets of each kind
against slow twins."""

import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers

from maskwright.config.finetuning import Task
from maskwright.core.errors import InputError, TokenizerError
from maskwright.labels.answers import _best_span, best_answers
from maskwright.labels.encode import WordTargets, encode, without_long_questions
from maskwright.labels.example import Answer, Example

SINGLE, TOKENS = Task(), Task(kind="token_classification")
TEXTS = [
    "The fox saw the garden.",
    " two  spaces\t\n and a <mask> or [MASK], </s> too ",
    "Größe 東京 🙂 e\u0301",
    "a long story of a fox and a garden " * 6,
    "x",
]


@pytest.fixture(params=["roberta", "modernbert", "bert-uncased", "xlm-roberta"])
def folder(request, tokenizer_of):
    """A tokenizer of each kind that has a way of its own to mark words."""
    return tokenizer_of(request.param)


def classified(texts, pairs=None):
    seconds = pairs or [None] * len(texts)
    both = zip(texts, seconds, strict=True)
    return [Example("a", number, *sides, labels=("x",)) for number, sides in enumerate(both)]


def rows(encoded):
    return [encoded.row(number).tolist() for number in range(len(encoded))]


def cut_at(side, folder, to):
    """A copy of the tokenizer with that `truncation_side`."""
    shutil.copytree(folder, to / "cut")
    path = to / "cut" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation_side": side}))
    return str(to / "cut")


@pytest.mark.parametrize(("max_seq_len", "side"), [(8, "right"), (8, "left"), (31, "left"), (512, "right")])
def test_ids_are_those_of_transformers(folder, max_seq_len, side, tmp_path):
    folder = cut_at(side, folder, tmp_path)
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = encode(classified(TEXTS), folder, SINGLE, ["x"], max_seq_len)
    expected = auto(TEXTS, truncation=True, max_length=max_seq_len)["input_ids"]
    assert rows(encoded) == expected and encoded.ids.dtype == np.int32
    assert encoded.cut == sum(len(ids) > max_seq_len for ids in auto(TEXTS)["input_ids"])
    for token in (*range(5, 60, 7), auto.eos_token_id or auto.sep_token_id, len(auto)):
        assert encoded.examples_with(token).tolist() == [row for row, ids in enumerate(expected) if token in ids]
    assert not len(encoded.examples_with(None))
    seconds = TEXTS[::-1]
    encoded = encode(classified(TEXTS, seconds), folder, SINGLE, ["x"], max_seq_len)
    assert rows(encoded) == auto(TEXTS, seconds, truncation="longest_first", max_length=max_seq_len)["input_ids"]
    assert encoded.cut == sum(len(ids) > max_seq_len for ids in auto(TEXTS, seconds)["input_ids"])


def test_a_pair_without_a_template_gets_one(tokenizer_of, tmp_path):
    """The library would put the second text right after the first, without a frame."""
    content = json.loads((Path(tokenizer_of("bert-uncased")) / "tokenizer.json").read_text())
    two = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
    without = content | {"post_processor": content["post_processor"] | {"pair": two}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(without))
    for texts in (TEXTS, None):
        examples = classified(TEXTS[::-1], texts)
        ours, whole = (encode(examples, of, SINGLE, ["x"], 64) for of in (str(tmp_path), tokenizer_of("bert-uncased")))
        assert rows(ours) == rows(whole)


def test_tokenizers_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(TokenizerError, match="has no tokenizer.json"):
        encode(classified(["a"]), str(tmp_path), SINGLE, ["x"], 8)
    tokenizers.Tokenizer(models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="is a BPE tokenizer that neither splits"):
        encode(classified(["a"]), str(tmp_path), SINGLE, ["x"], 8)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(TokenizerError, match="has no model"):
        encode(classified(["a"]), str(tmp_path), SINGLE, ["x"], 8)


def test_targets_of_texts(tokenizer):
    examples = [
        Example("a", 1, "one", labels=("x",), value=0.5),
        Example("a", 2, "two", labels=("y", "x"), value=-2.0),
        Example("a", 3, "three", labels=(), value=3.0),
    ]
    labels = ["y", "x"]
    assert encode(examples[:2], tokenizer, SINGLE, labels, 16).targets.tolist() == [1, 0]
    hot = encode(examples, tokenizer, Task(kind="multi_label_classification"), labels, 16).targets
    assert isinstance(hot, np.ndarray) and hot.dtype == np.uint8 and hot.tolist() == [[0, 1], [1, 1], [0, 0]]
    values = encode(examples, tokenizer, Task(kind="regression"), [], 16).targets
    assert isinstance(values, np.ndarray) and values.dtype == np.float64 and values.tolist() == [0.5, -2.0, 3.0]
    unknown = encode(examples, tokenizer, SINGLE, labels, 16, labelled=False)
    assert unknown.targets is None and len(unknown) == 3 and unknown.example.tolist() == [0, 1, 2]


def test_no_examples_are_no_rows(folder):
    for kind in ("single_label_classification", "token_classification", "question_answering"):
        encoded = encode([], folder, Task(kind=kind, doc_stride=2), ["x"], 16)
        assert len(encoded) == 0 and encoded.ids.size == 0 and encoded.ids.dtype == np.int32


# ---- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_seq_len", "side"), [(9, "right"), (9, "left"), (64, "right")])
def test_words_and_their_first_pieces_are_those_of_transformers(folder, max_seq_len, side, tmp_path):
    """As run_ner.py aligns them: the first piece of a word has its tag, other pieces have none."""
    is_modernbert, folder = "modernbert" in folder, cut_at(side, folder, tmp_path)
    sentences = [["R.H.", "Saunders", "(", "<mask>", "東京", ")"], ["The", "garden"], ["a\u00a0b", "x" * 30, "fox"]]
    draw = random.Random(0)
    labels = ["B-X", "I-X", "O"]
    tags = [[draw.choice(labels) for _ in words] for words in sentences]
    both = zip(map(tuple, sentences), map(tuple, tags), strict=True)
    examples = [Example("a", 1, words=words, labels=own) for words, own in both]
    encoded = encode(examples, folder, TOKENS, labels, max_seq_len)
    targets = encoded.targets
    auto = transformers.AutoTokenizer.from_pretrained(folder, add_prefix_space=True)
    if is_modernbert:  # its class does not heed add_prefix_space
        auto.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    expected = auto(sentences, is_split_into_words=True, truncation=True, max_length=max_seq_len)
    assert rows(encoded) == expected["input_ids"]
    for row, own in enumerate(tags):
        wanted, before = [], None
        for position, word in enumerate(expected.word_ids(row)):
            if word is not None and word != before:
                wanted.append((position, word, labels.index(own[word])))
            before = word
        found = slice(targets.offsets[row], targets.offsets[row + 1])
        assert [*zip(targets.position[found], targets.word[found], targets.tag[found], strict=True)] == wanted
    assert encoded.cut == sum(map(len, sentences)) - len(targets.position)
    assert (encoded.cut > 0) == (max_seq_len == 9)
    unknown = encode([Example("a", 1, words=("The", "fox"))], folder, TOKENS, [], 64).targets
    assert isinstance(unknown, WordTargets) and unknown.tag.tolist() == [-1, -1] and unknown.word.tolist() == [0, 1]


def test_a_word_that_the_tokenizer_keeps_nothing_of_is_not_cut(folder, tmp_path):
    content = json.loads(Path(folder, "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Replace", "pattern": {"String": "\u200b"}, "content": ""}  # as BERT's does
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    words = ("The", "\u200b", "fox", "\u200b")
    for max_seq_len, kept, cut in ((64, [0, 2], 0), (3, [0], 3)):
        encoded = encode([Example("a", 1, words=words)], str(tmp_path), TOKENS, [], max_seq_len)
        assert (encoded.targets.word.tolist(), encoded.cut) == (kept, cut)


# ---- questions ---------------------------------------------------------------------------------------------------


def asked():
    """Contexts of one window and of many, answers at every place, none, and in characters of several bytes."""
    draw = random.Random(1)
    words = ["The", "fox", "saw", "the", "東京", "garden", "and", "é🙂", "a", "brown,", "old", "bridge.", ""]
    examples = []
    for number in range(40):
        context = " ".join(draw.choices(words, k=draw.choice([3, 12, 60])))
        start = draw.randrange(len(context) - 2)
        stop = min(len(context), start + draw.randint(1, 14))
        text = context[start:stop].strip() or context[:1]
        answers = () if number % 5 == 0 else (Answer(text, context.index(text)),)
        examples.append(Example("a", number, f" Where is number {number}?", context, answers=answers))
    return examples


@pytest.mark.parametrize(("max_seq_len", "doc_stride", "side"), [(40, 7, "left"), (48, 0, "right"), (384, 128, "left")])
def test_windows_and_answers_are_those_of_run_qa(folder, max_seq_len, doc_stride, side, tmp_path):
    folder, examples = cut_at(side, folder, tmp_path), asked()
    encoded = encode(examples, folder, Task(kind="question_answering", doc_stride=doc_stride), [], max_seq_len)
    targets = encoded.targets
    auto = transformers.AutoTokenizer.from_pretrained(folder)
    expected = auto(
        [one.text.lstrip() for one in examples],
        [one.text_pair for one in examples],
        truncation="only_second",
        max_length=max_seq_len,
        stride=doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert rows(encoded) == expected["input_ids"]
    assert encoded.example.tolist() == expected["overflow_to_sample_mapping"]
    assert (len(encoded) > len(examples)) == (max_seq_len < 384)
    answered = 0
    for row, sample in enumerate(expected["overflow_to_sample_mapping"]):
        spans = expected["offset_mapping"][row]
        wanted = slow_span(spans, expected.sequence_ids(row), examples[sample])
        found = int(targets.start[row]), int(targets.end[row])
        assert found == wanted
        cut = targets.answer(encoded, row, *found, examples[sample].text_pair or "")
        if found == (0, 0):
            assert cut == ""
        else:
            answered += 1
            assert examples[sample].answers[0].text in cut
    assert answered >= 30


def slow_span(spans, parts, one):
    """Walks inwards from both ends of the context, piece by piece."""
    if not one.answers:
        return 0, 0
    begin, stop = one.answers[0].start, one.answers[0].start + len(one.answers[0].text)
    first = min(place for place, part in enumerate(parts) if part == 1)
    last = max(place for place, part in enumerate(parts) if part == 1)
    if spans[first][0] > begin or spans[last][1] < stop:
        return 0, 0
    start, end = first, last
    while start + 1 <= last and spans[start + 1][0] <= begin:
        start += 1
    while end - 1 >= first and spans[end - 1][1] >= stop:
        end -= 1
    return min(start, end), max(start, end)


def test_whole_words_come_back_as_they_were(folder):
    context = "In 1888 the Éva bridge, near 東京, was closed."
    answers = ["1888", "the Éva bridge", "東京", "In", "closed."]
    examples = [Example("a", 1, "Which?", context, answers=(Answer(text, context.index(text)),)) for text in answers]
    encoded = encode(examples, folder, Task(kind="question_answering", doc_stride=8), [], 200)
    targets = encoded.targets
    for row, answer in enumerate(answers):
        assert targets.answer(encoded, row, int(targets.start[row]), int(targets.end[row]), context) == answer
    assert targets.answer(encoded, 0, 0, 0, context) == targets.answer(encoded, 0, 1, 2, context) == ""


def test_a_question_without_room_for_its_context_is_named(folder):
    examples = [Example("dev.json", 1, "Who?", "fox"), Example("dev.json", 2, "Who " * 20, "fox")]
    wide, narrow = Task(kind="question_answering", doc_stride=128), Task(kind="question_answering", doc_stride=8)
    with pytest.raises(InputError, match=r"^dev.json:2: the question's \d+ tokens leave 0 of a row's 24 for") as caught:
        encode(examples, folder, narrow, [], 24)
    assert caught.value.exit_code == 2 and (caught.value.fix or "").startswith("shorten the question")
    with pytest.raises(InputError) as caught:
        encode(examples[:1], folder, wide, [], 64, longest=64)
    stride = re.fullmatch(r"set task.doc_stride below (\d+), or data.on_bad_input: skip", caught.value.fix or "")
    assert len(encode(examples[:1], folder, wide.model_copy(update={"doc_stride": int(stride[1]) - 1}), [], 64))
    with pytest.raises(InputError) as caught:
        encode(examples, folder, narrow, [], 24, longest=512)
    enough = re.fullmatch(r"set data.max_seq_len to (\d+) or more, or data.on_bad_input: skip", caught.value.fix or "")
    assert enough and len(encode(examples, folder, narrow, [], int(enough[1]))) == 2


def test_questions_without_room_can_be_left_out(tokenizer):
    long = Example("dev.json", 2, "Who " * 20, "fox")
    examples = [Example("dev.json", 1, "Who?", "fox"), long, Example("dev.json", 3, "What?", "fox")]
    task = Task(kind="question_answering", doc_stride=8)
    kept, skipped = without_long_questions(examples, tokenizer, task, 24)
    assert kept == [examples[0], examples[2]] and len(encode(kept, tokenizer, task, [], 24)) == 2
    assert [one.where for one in skipped] == ["dev.json:2"] and "leave 0 of a row's 24" in skipped[0].what
    assert without_long_questions([], tokenizer, task, 24) == ([], [])
    with pytest.raises(InputError, match=r"^dev.json:2: the question's"):
        without_long_questions([long, long], tokenizer, task, 24)


def test_the_best_span_is_that_of_the_whole_table():
    """Equal scores too, tokens without characters, and spans as long as the window."""
    draw = np.random.default_rng(0)
    for trial in range(400):
        size, longest = draw.integers(1, 40), int(draw.integers(1, 50))
        starts, ends = draw.integers(0, 4, (2, size)).astype(np.float64) if trial % 2 else draw.normal(size=(2, size))
        widths = draw.integers(0, 3, size)
        stops = np.cumsum(widths)
        characters = np.stack([stops - widths, stops], 1).astype(np.int32)
        sums = starts[:, None] + ends
        lengths = np.arange(size) - np.arange(size)[:, None] + 1
        sums[(lengths < 1) | (lengths > longest) | (characters[:, :1] >= characters[:, 1])] = -np.inf
        first, last = divmod(int(sums.argmax()), size)
        found = _best_span(starts, ends, characters, longest)
        assert found[2] == sums[first, last] and (found[:2] == (first, last) or found[2] == -np.inf)


@pytest.mark.parametrize("may_be_none", [False, True])
def test_best_answers_are_those_of_trying_every_span(tokenizer, may_be_none):
    examples = asked()
    encoded = encode(examples, tokenizer, Task(kind="question_answering", doc_stride=7), [], 40)
    targets = encoded.targets
    draw = np.random.default_rng(0)
    starts, ends = draw.normal(size=(2, len(encoded.ids))).astype(np.float32)
    starts[encoded.offsets[:-1]] += 4.0  # so that some have no answer and some do
    found = best_answers(encoded, examples, starts, ends, 5, may_be_none=may_be_none)
    for number, one in enumerate(examples):
        spans, none = [], []
        for row in np.flatnonzero(encoded.example == number):
            first, stop = encoded.offsets[row], encoded.offsets[row + 1]
            none.append(float(starts[first]) + float(ends[first]))
            for start in range(first, stop):
                for end in range(start, min(start + 5, stop)):
                    if targets.characters[start, 0] >= 0 and targets.characters[end, 0] >= 0:
                        text = (one.text_pair or "")[targets.characters[start, 0] : targets.characters[end, 1]]
                        spans += [(float(starts[start]) + float(ends[end]), text)] if text else []
        score, text = max(spans)
        assert found[number] == ("" if may_be_none and min(none) > score else text.strip())
    assert may_be_none == ("" in found) and any(found)
