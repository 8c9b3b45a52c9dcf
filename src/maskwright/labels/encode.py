"""Examples to arrays: ids by the tokenizer's own template, and what is to be predicted for each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core.console import note
from maskwright.core.errors import InputError
from maskwright.core.finetuning import Task
from maskwright.labels.example import IN_CONFIGURATION, Example, Spelt
from maskwright.text.tokenizer import parsed
from maskwright.text.vocabulary import read_tokenizer, read_vocabulary, tokenizer_file

Ints = NDArray[np.int32]
Offsets = NDArray[np.int64]
AT_ONCE = 1024
"""Examples that are handed to `tokenizers` together; it spreads them over its threads."""


@dataclass(frozen=True)
class WordTargets:
    """Words of all rows, one after the other; those that `max_seq_len` cut off are not among them."""

    position: Ints
    """(words,): index in its row of each word's first piece."""
    word: Ints
    """(words,): index of the word in its example."""
    tag: Ints
    """(words,): id of its tag; -1 when it is not known."""
    offsets: Offsets
    """(rows + 1,): the words of row r are offsets[r]:offsets[r + 1]."""


@dataclass(frozen=True)
class SpanTargets:
    """Answers as official SQuAD has them: from the first piece to the last, both included; 0 for both means none."""

    start: Ints
    """(rows,): index in its row."""
    end: Ints
    """(rows,)."""
    characters: Ints
    """(ids, 2): the characters [begin, end) of the context that each id stands for; -1 for ids outside the context."""

    def answer(self, encoded: Encoded, row: int, start: int, end: int, context: str) -> str:
        """A span's text without outer white space; empty for position 0 and for what is no span of the context."""
        first = encoded.offsets[row]
        begin, stop = int(self.characters[first + start, 0]), int(self.characters[first + end, 1])
        return context[begin:stop].strip() if 0 <= begin < stop else ""


@dataclass(frozen=True)
class Encoded:
    """Rows without padding. There is a row for each example, and for a question one for each window of its context."""

    ids: Ints
    """(ids,): the rows one after the other, special tokens included."""
    offsets: Offsets
    """(rows + 1,): row r is ids[offsets[r]:offsets[r + 1]]."""
    example: Ints
    """(rows,): which example each row comes from."""
    targets: NDArray[Any] | WordTargets | SpanTargets | None
    """int32 (rows,) class ids; uint8 (rows, labels) one or zero; float32 (rows,) numbers; words; spans. None for
    texts without labels, except words and windows, which are needed to read off what a model says."""
    shift: Ints | None
    """(ids,): what a model with token types adds to position ids; above 0 in the second text of a pair."""
    cut: int
    """Examples that `max_seq_len` cut; words for token classification; 0 for questions, which have windows."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, number: int) -> Ints:
        return self.ids[self.offsets[number] : self.offsets[number + 1]]


def encode(
    examples: Sequence[Example],
    tokenizer_folder: str,
    task: Task,
    labels: Sequence[str],
    max_seq_len: int,
    *,
    labelled: bool = True,
    token_type_stride: int = 0,
    longest: int = 0,
    spelt: Spelt = IN_CONFIGURATION,
) -> Encoded:
    """`tokenizer_folder`: a folder with tokenizer.json, or the file. `labels`: in the order of their ids.
    `token_type_stride`: the model's (`ModelConfig`), and `longest` its `max_seq_len`, from which the fix of a question
    that is too long follows.

    Ids equal those of `transformers`: its template, longest-first truncation of pairs, special tokens in a text
    recognised; words as with `is_split_into_words` and `add_prefix_space`. Raises `TokenizerError`, `InputError`.
    """
    tokenizer = open_tokenizer(tokenizer_folder, words=task.kind == "token_classification")
    if task.kind == "token_classification":
        return _words(tokenizer, examples, {name: id for id, name in enumerate(labels)}, max_seq_len)
    if task.kind == "question_answering":
        questions = [one.text.lstrip() for one in examples]  # SQuAD has some that would fill a window with white space
        _refuse_long(tokenizer, examples, questions, task.doc_stride, max_seq_len, longest, spelt)
        return _windows(tokenizer, examples, questions, task.doc_stride, max_seq_len, token_type_stride)
    tokenizer.enable_truncation(max_seq_len, strategy="longest_first")
    rows: list[NDArray[np.int32]] = []
    types: list[NDArray[np.int32]] = []
    cut = 0
    for batch in _batches(examples):
        texts = [one.text if one.text_pair is None else (one.text, one.text_pair) for one in batch]
        for encoding in tokenizer.encode_batch_fast(texts):
            rows.append(np.array(encoding.ids, np.int32))
            if token_type_stride:
                types.append(np.array(encoding.type_ids, np.int32))
            cut += bool(encoding.overflowing)
    targets = _class_targets(examples, task, labels) if labelled else None
    shift = _flat(types) * token_type_stride if token_type_stride else None
    return Encoded(_flat(rows), _offsets(map(len, rows)), np.arange(len(rows), dtype=np.int32), targets, shift, cut)


def open_tokenizer(location: str, *, words: bool = False) -> Any:
    """A `tokenizers.Tokenizer` that adds its model's special tokens. `words`: each word begins as after a space, also
    the first; a tokenizer that is exported with a model of words has to be saved from here (`.save(path)`).

    Unlike pretraining, a special token that is spelt out in a text counts as one: so does `transformers`, with which
    the model will be used. Raises `TokenizerError`.
    """
    content = read_tokenizer(location)[0]
    if words:
        # The post-processor has to know of the space as well, or it takes the first letter for it in the offsets.
        steps = ("pre_tokenizer", "post_processor")
        content = {**content, **{step: _with_prefix_space(content.get(step)) for step in steps}}
    tokenizer = parsed(content, tokenizer_file(location), as_it_is=not words)
    if tokenizer.num_special_tokens_to_add(False) < 2:
        _add_template(tokenizer, location, prefix_space=words)
    return tokenizer


def _with_prefix_space(step: Any) -> Any:
    """A step of the tokenizer with `add_prefix_space` in its byte-level part: words are then split as in running
    text."""
    if isinstance(step, list):
        return [_with_prefix_space(part) for part in step]
    if not isinstance(step, dict):
        return step
    changed = {key: _with_prefix_space(value) for key, value in step.items()}
    return changed | ({"add_prefix_space": True} if step.get("type") in ("ByteLevel", "RobertaProcessing") else {})


def _add_template(tokenizer: Any, location: str, *, prefix_space: bool) -> None:
    """`<s> a </s></s> b </s>` where a row ends in `</s>`, as RoBERTa, XLM-R and CamemBERT have it; else BERT's
    `[CLS] a [SEP] b [SEP]`."""
    from tokenizers import processors

    vocabulary = read_vocabulary(location)
    (begin, first), (end, last) = ((tokenizer.id_to_token(id), id) for id in (vocabulary.bos, vocabulary.eos))
    if end == "</s>" and vocabulary.kind == "byte_level_bpe":
        # Offsets matter for questions, and these are RoBERTa's: an answer begins behind the space.
        tokenizer.post_processor = processors.RobertaProcessing(
            (end, last), (begin, first), trim_offsets=True, add_prefix_space=prefix_space
        )
    else:
        pair = [begin, "$A", end, end, "$B", end] if end == "</s>" else [begin, "$A", end, "$B:1", f"{end}:1"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[begin, "$A", end], pair=pair, special_tokens=[(begin, first), (end, last)]
        )
    note(f"{location}: has no template for special tokens: texts are put between {begin} and {end}")


def _batches(examples: Sequence[Example]) -> Iterator[Sequence[Example]]:
    for first in range(0, len(examples), AT_ONCE):
        yield examples[first : first + AT_ONCE]


def _flat(rows: Sequence[NDArray[np.int32]]) -> Ints:
    return np.concatenate([np.empty(0, np.int32), *rows])


def _offsets(lengths: Any) -> Offsets:
    return np.cumsum([0, *lengths], dtype=np.int64)


def _class_targets(examples: Sequence[Example], task: Task, labels: Sequence[str]) -> NDArray[Any]:
    if task.kind == "regression":
        return np.array([one.value for one in examples], np.float32)
    id_of = {name: id for id, name in enumerate(labels)}
    if task.kind == "single_label_classification":
        return np.array([id_of[one.labels[0]] for one in examples], np.int32)
    hot = np.zeros((len(examples), len(labels)), np.uint8)
    for row, one in enumerate(examples):
        hot[row, [id_of[name] for name in one.labels]] = 1
    return hot


# ---- words -------------------------------------------------------------------------------------------------------


def _words(tokenizer: Any, examples: Sequence[Example], id_of: dict[str, int], max_seq_len: int) -> Encoded:
    """A word that the tokenizer makes nothing of counts as cut too."""
    tokenizer.enable_truncation(max_seq_len)
    rows, positions, numbers, tags = [], [], [], []
    for batch in _batches(examples):
        # The fast variant leaves out which word a piece comes from.
        encodings = tokenizer.encode_batch([list(one.words) for one in batch], is_pretokenized=True)
        for one, encoding in zip(batch, encodings, strict=True):
            words = np.array([-1 if word is None else word for word in encoding.word_ids], np.int32)
            before = np.concatenate([np.array([-1], np.int32), words[:-1]])
            position = np.flatnonzero((words >= 0) & (words != before)).astype(np.int32)
            known = np.array([id_of[tag] for tag in one.labels] or [-1] * len(one.words), np.int32)
            rows.append(np.array(encoding.ids, np.int32))
            positions.append(position)
            numbers.append(words[position])
            tags.append(known[words[position]])
    targets = WordTargets(_flat(positions), _flat(numbers), _flat(tags), _offsets(map(len, positions)))
    cut = sum(len(one.words) for one in examples) - len(targets.position)
    return Encoded(_flat(rows), _offsets(map(len, rows)), np.arange(len(rows), dtype=np.int32), targets, None, cut)


# ---- questions ---------------------------------------------------------------------------------------------------


def _windows(
    tokenizer: Any,
    examples: Sequence[Example],
    questions: list[str],
    doc_stride: int,
    max_seq_len: int,
    token_type_stride: int,
) -> Encoded:
    """The question stands first in each window. An answer that is not wholly inside a window is no answer there."""
    tokenizer.enable_truncation(max_seq_len, stride=doc_stride, strategy="only_second")
    rows, types, of_example, starts, ends, characters = [], [], [], [], [], []
    for first in range(0, len(examples), AT_ONCE):
        pairs = [
            (questions[at], examples[at].text_pair or "") for at in range(first, min(first + AT_ONCE, len(examples)))
        ]
        for number, encoding in enumerate(tokenizer.encode_batch(pairs), first):
            for window in chain([encoding], encoding.overflowing):
                spans = np.array(window.offsets, np.int32).reshape(-1, 2)
                spans[np.array([part != 1 for part in window.sequence_ids], np.bool_)] = -1
                start, end = _span(spans, examples[number])
                rows.append(np.array(window.ids, np.int32))
                if token_type_stride:
                    types.append(np.array(window.type_ids, np.int32))
                of_example.append(number)
                starts.append(start)
                ends.append(end)
                characters.append(spans)
    flat = np.concatenate([np.empty((0, 2), np.int32), *characters])
    targets = SpanTargets(np.array(starts, np.int32), np.array(ends, np.int32), flat)
    shift = _flat(types) * token_type_stride if token_type_stride else None
    return Encoded(_flat(rows), _offsets(map(len, rows)), np.array(of_example, np.int32), targets, shift, 0)


def _span(spans: Ints, one: Example) -> tuple[int, int]:
    """Index of the first and of the last id of the first answer; (0, 0) when the window does not hold all of it."""
    inside = np.flatnonzero(spans[:, 0] >= 0)
    if not one.answers or not inside.size:
        return 0, 0
    begin, stop = one.answers[0].start, one.answers[0].start + len(one.answers[0].text)
    if spans[inside[0], 0] > begin or spans[inside[-1], 1] < stop:
        return 0, 0
    start = inside[np.searchsorted(spans[inside, 0], begin, side="right") - 1]
    end = inside[np.searchsorted(spans[inside, 1], stop, side="left")]
    return int(start), int(end)


def _refuse_long(
    tokenizer: Any,
    examples: Sequence[Example],
    questions: list[str],
    doc_stride: int,
    max_seq_len: int,
    longest: int,
    spelt: Spelt,
) -> None:
    """Each window needs room for more of the context than it shares with the next one."""
    specials = tokenizer.num_special_tokens_to_add(True)
    for first in range(0, len(examples), AT_ONCE):
        batch = tokenizer.encode_batch_fast(questions[first : first + AT_ONCE], add_special_tokens=False)
        for one, encoding in zip(examples[first:], batch, strict=False):
            room = max_seq_len - specials - len(encoding.ids)
            if room <= doc_stride:
                size, fixes = specials + len(encoding.ids), []
                # Where nobody can name the windows' overlap, it is at most a third of a row.
                enough = size + 1 + (doc_stride if spelt.doc_stride else size // 2)
                if spelt.max_seq_len and enough <= longest:
                    fixes.append(f"set {spelt.max_seq_len} to {enough} or more")
                if spelt.doc_stride and room > 0:
                    fixes.append(f"set {spelt.doc_stride} below {room}")
                raise InputError(
                    f"the question's {len(encoding.ids)} tokens leave {max(room, 0)} of a row's {max_seq_len} for the "
                    f"context, and windows share {doc_stride}",
                    where=one.where,
                    fix=", or ".join(fixes) or "shorten the question, or take a model of longer rows",
                )
