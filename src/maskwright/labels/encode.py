"""Examples to arrays: ids by the tokenizer's own template, and each row's targets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.config.finetuning import Task
from maskwright.core.console import note, several
from maskwright.core.errors import InputError
from maskwright.labels.example import Example, Skipped
from maskwright.text.encoder import CALL_CHARACTERS
from maskwright.text.notation import DECOMPOSED, MANY, NOTATIONS, is_decomposed, without_effect
from maskwright.text.spacing import spacing_of
from maskwright.text.special_tokens import config_files
from maskwright.text.tokenizer import load_tokenizer, parsed, template
from maskwright.text.unknown import first_unknown
from maskwright.text.vocabulary import added_tokens, read_tokenizer, read_vocabulary, tokenizer_file

Ints = NDArray[np.int32]
Offsets = NDArray[np.int64]
AT_ONCE = 1024
"""Most examples of a call to `tokenizers`, which spreads them over its threads."""


@dataclass(frozen=True)
class WordTargets:
    """Words of all rows, one after the other, without those that `max_seq_len` cut off."""

    position: Ints
    """(words,): index in its row of each word's first piece."""
    word: Ints
    """(words,): index of the word in its example."""
    tag: Ints
    """(words,): id of its tag; -1 for an unknown one."""
    offsets: Offsets
    """(rows + 1,): the words of row r are offsets[r]:offsets[r + 1]."""


@dataclass(frozen=True)
class SpanTargets:
    """Answers as in SQuAD: the first and the last piece, both included; 0 and 0 for no answer."""

    start: Ints
    """(rows,): index in its row."""
    end: Ints
    """(rows,)."""
    characters: Ints
    """(ids, 2): each id's characters [begin, end) in the context; -1 for ids outside the context."""

    def answer(self, encoded: EncodedRows, row: int, start: int, end: int, context: str) -> str:
        """A span's text without outer white space; empty for position 0 and for a span beyond the context."""
        first = encoded.offsets[row]
        begin, stop = int(self.characters[first + start, 0]), int(self.characters[first + end, 1])
        return context[begin:stop].strip() if 0 <= begin < stop else ""


@dataclass(frozen=True)
class EncodedRows:
    """Rows without padding: one for each example, or for each window of a question's context."""

    ids: Ints
    """(ids,): the rows one after the other, special tokens included."""
    offsets: Offsets
    """(rows + 1,): row r is ids[offsets[r]:offsets[r + 1]]."""
    example: Ints
    """(rows,): index of each row's example."""
    targets: NDArray[Any] | WordTargets | SpanTargets | None
    """int32 (rows,) class ids; uint8 (rows, labels) one or zero; float64 (rows,) numbers; words; spans. None for texts
    without labels, but word and span targets are always present: decoding needs them."""
    shift: Ints | None
    """(ids,): added to position ids by a model with token types; above 0 in the second text of a pair."""
    cut: int
    """Examples that `max_seq_len` cut; words for token classification; 0 for questions, which have windows."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, row_idx: int) -> Ints:
        return self.ids[self.offsets[row_idx] : self.offsets[row_idx + 1]]

    def examples_with(self, token: int | None) -> Ints:
        """Indices of the examples that have this id in one of their rows, in order; none for None."""
        rows = np.searchsorted(self.offsets, np.flatnonzero(self.ids == token), side="right") - 1
        return np.unique(self.example[rows])


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
) -> EncodedRows:
    """Encodes examples. `tokenizer_folder`: a folder with tokenizer.json, or the file. `labels`: in the order of their
    ids. `token_type_stride`: the model's (`ModelConfig`). `longest`: the model's `max_seq_len`, for the fix of a
    question that is too long.

    Ids equal the ids of `transformers`: its template, longest-first truncation of pairs at the tokenizer's
    `truncation_side`, windows of a context counted from its other end, special tokens in a text recognised; words as
    with `is_split_into_words` and `add_prefix_space`. Raises `TokenizerError`, `InputError`.
    """
    tokenizer = open_tokenizer(tokenizer_folder, words=task.kind == "token_classification")
    side = _side_that_is_cut(tokenizer_folder)
    if task.kind == "token_classification":
        return _words(tokenizer, examples, {name: id for id, name in enumerate(labels)}, max_seq_len, side)
    if task.kind == "question_answering":
        for _, error in _without_room(tokenizer, examples, task.doc_stride, max_seq_len, longest):
            raise error
        return _windows(tokenizer, examples, task.doc_stride, max_seq_len, token_type_stride, side)
    tokenizer.enable_truncation(max_seq_len, strategy="longest_first", direction=side)
    rows: list[NDArray[np.int32]] = []
    types: list[NDArray[np.int32]] = []
    cut = 0
    for batch in _batches(examples):
        texts = [example.text if example.text_pair is None else (example.text, example.text_pair) for example in batch]
        for encoding in tokenizer.encode_batch_fast(texts):
            rows.append(np.array(encoding.ids, np.int32))
            if token_type_stride:
                types.append(np.array(encoding.type_ids, np.int32))
            cut += bool(encoding.overflowing)
    targets = class_targets(examples, task, labels) if labelled else None
    shift = _flat(types) * token_type_stride if token_type_stride else None
    return EncodedRows(_flat(rows), _offsets(map(len, rows)), np.arange(len(rows), dtype=np.int32), targets, shift, cut)


def what_is_cut(count: int, max_seq_len: int, *, words: bool = False, training: bool = False) -> str:
    """A sentence on `EncodedRows.cut`, for texts or `words`; `training`: of the training examples."""
    noun = f"{'training ' if training else ''}{'word' if words else 'text'}"
    lost = several(count, noun) if words else f"the rest of {several(count, noun)}"
    return f"the model does not read {lost}, beyond {max_seq_len} tokens"


def what_is_unknown(tokenizer_folder: str, strange: Sequence[Example], count: int, noun: str = "text") -> str:
    """A sentence on the examples, of `count`, that `EncodedRows.examples_with` finds to have an unknown token."""
    first = strange[0]
    unknown = first_unknown(tokenizer_folder, _whole_text(first))
    example = f"{unknown.word} at {first.where} {unknown.why}" if unknown else f"the first at {first.where}"
    return f"{len(strange):,} of {several(count, noun)} have tokens that are unknown to the tokenizer; {example}"


def what_is_decomposed(tokenizer_folder: str, examples: Sequence[Example]) -> str:
    """A sentence on examples in NFD, if there are many, and if the tokenizer does not compose them; else empty."""
    found = [example for example in examples if is_decomposed(_whole_text(example))]
    if len(found) <= MANY * len(examples):
        return ""
    normalizer = load_tokenizer(tokenizer_folder, special_tokens_are_text=False).normalizer
    if DECOMPOSED in without_effect(read_vocabulary(tokenizer_folder).kind, normalizer):
        return ""
    what, fix = NOTATIONS[DECOMPOSED]
    return f"{len(found):,} of {several(len(examples), 'example')} {what}, such as {found[0].where}; {fix}"


def _whole_text(example: Example) -> str:
    return " ".join([*example.words, example.text, example.text_pair or ""])


def open_tokenizer(location: str, *, words: bool = False, adds_spaces: bool = True) -> Any:
    """Opens a `tokenizers.Tokenizer` that adds its model's special tokens. `words`: every word begins as after a space,
    even the first; export this tokenizer with a model of words (`.save(path)`). `adds_spaces`: see `load_tokenizer`.
    Raises `TokenizerError`."""
    # Unlike in pretraining, the name of a special token in a text counts as that token, as in `transformers`, with
    # which the model will be used.
    from_file = read_tokenizer(location)[0]
    content = {**from_file, "added_tokens": added_tokens(location)}
    if words:
        # The post-processor needs it too; otherwise its offsets mistake the first letter for the space.
        steps = ("pre_tokenizer", "post_processor")
        content = {**content, **{step: _with_prefix_space(content.get(step)) for step in steps}}
    path, spacing = tokenizer_file(location), spacing_of(location) if adds_spaces else None
    tokenizer = parsed(content, path, is_unchanged=content == from_file, spacing=spacing)
    if tokenizer.num_special_tokens_to_add(False) < 2 or not tokenizer.num_special_tokens_to_add(True):
        _add_template(tokenizer, location, prefix_space=words)
    return tokenizer


def _side_that_is_cut(location: str) -> str:
    """`truncation_side` of the files next to the tokenizer: `right`, or `left` for texts whose end counts."""
    sides = [content.get("truncation_side") for _, content in config_files(location)] if os.path.isdir(location) else []
    return "left" if "left" in sides else "right"


def _with_prefix_space(step: Any) -> Any:
    """A step of the tokenizer with `add_prefix_space` in its byte-level part, to split words as inside a text."""
    if isinstance(step, list):
        return [_with_prefix_space(part) for part in step]
    if not isinstance(step, dict):
        return step
    changed = {key: _with_prefix_space(value) for key, value in step.items()}
    return changed | ({"add_prefix_space": True} if step.get("type") in ("ByteLevel", "RobertaProcessing") else {})


def _add_template(tokenizer: Any, location: str, *, prefix_space: bool) -> None:
    """Adds the `template` of the tokenizer's kind."""
    from tokenizers import processors

    vocabulary = read_vocabulary(location)
    (begin, first), (end, last) = ((tokenizer.id_to_token(id), id) for id in (vocabulary.bos, vocabulary.eos))
    if end == "</s>" and vocabulary.kind == "byte_level_bpe":
        # Offsets matter for questions. With these, which are RoBERTa's, an answer begins after the space.
        tokenizer.post_processor = processors.RobertaProcessing(
            (end, last), (begin, first), trim_offsets=True, add_prefix_space=prefix_space
        )
    else:
        tokenizer.post_processor = template((begin, first), (end, last))
    note(f"{location}: has no template for special tokens, so texts are put between {begin} and {end}")


def _batches(examples: Sequence[Example]) -> Iterator[Sequence[Example]]:
    """Examples in runs of one call each."""
    begin = characters = 0
    for index, example in enumerate(examples):
        size = len(example.text) + len(example.text_pair or "") + sum(map(len, example.words))
        if index > begin and (index - begin == AT_ONCE or characters + size > CALL_CHARACTERS):
            yield examples[begin:index]
            begin, characters = index, 0
        characters += size
    yield examples[begin:]


def _flat(rows: Sequence[NDArray[np.int32]]) -> Ints:
    return np.concatenate([np.empty(0, np.int32), *rows])


def _offsets(lengths: Any) -> Offsets:
    return np.cumsum([0, *lengths], dtype=np.int64)


def class_targets(examples: Sequence[Example], task: Task, labels: Sequence[str]) -> NDArray[Any]:
    """int32 (examples,) class ids; uint8 (examples, labels) one or zero; or float64 (examples,) numbers."""
    if task.kind == "regression":
        return np.array([example.value for example in examples], np.float64)
    id_of = {name: id for id, name in enumerate(labels)}
    if task.kind == "single_label_classification":
        return np.array([id_of[example.labels[0]] for example in examples], np.int32)
    is_labelled = np.zeros((len(examples), len(labels)), np.uint8)
    for row, example in enumerate(examples):
        is_labelled[row, [id_of[name] for name in example.labels]] = 1
    return is_labelled


# ---- words -------------------------------------------------------------------------------------------------------


def _words(
    tokenizer: Any, examples: Sequence[Example], id_of: dict[str, int], max_seq_len: int, side: str
) -> EncodedRows:
    """Rows of words. A word that the tokenizer drops has no target."""
    tokenizer.enable_truncation(max_seq_len, direction=side)
    rows, positions, word_idxs, tags, cut = [], [], [], [], 0
    for batch in _batches(examples):
        # The fast variant does not give the word of each piece.
        encodings = tokenizer.encode_batch([list(example.words) for example in batch], is_pretokenized=True)
        for example, encoding in zip(batch, encodings, strict=True):
            word_of_piece = np.array([-1 if word is None else word for word in encoding.word_ids], np.int32)
            word_of_previous = np.concatenate([np.array([-1], np.int32), word_of_piece[:-1]])
            position = np.flatnonzero((word_of_piece >= 0) & (word_of_piece != word_of_previous)).astype(np.int32)
            tag_ids = np.array([id_of[tag] for tag in example.labels] or [-1] * len(example.words), np.int32)
            rows.append(np.array(encoding.ids, np.int32))
            positions.append(position)
            word_idxs.append(word_of_piece[position])
            tags.append(tag_ids[word_of_piece[position]])
            if encoding.overflowing:
                read = word_idxs[-1]
                unread = read.min(initial=len(example.words)), len(example.words) - 1 - read.max(initial=-1)
                cut += int(unread[side == "right"])
    targets = WordTargets(_flat(positions), _flat(word_idxs), _flat(tags), _offsets(map(len, positions)))
    return EncodedRows(_flat(rows), _offsets(map(len, rows)), np.arange(len(rows), dtype=np.int32), targets, None, cut)


# ---- questions ---------------------------------------------------------------------------------------------------


def _windows(
    tokenizer: Any, examples: Sequence[Example], doc_stride: int, max_seq_len: int, token_type_stride: int, side: str
) -> EncodedRows:
    """Each window begins with the question. An answer that is not wholly inside a window counts as no answer there."""
    tokenizer.enable_truncation(max_seq_len, stride=doc_stride, strategy="only_second", direction=side)
    rows, types, of_example, starts, ends, characters = [], [], [], [], [], []
    batches = ([(_question(one), one.text_pair or "") for one in batch] for batch in _batches(examples))
    for example_idx, encoding in enumerate(chain.from_iterable(map(tokenizer.encode_batch, batches))):
        for window in chain([encoding], encoding.overflowing):
            spans = np.array(window.offsets, np.int32).reshape(-1, 2)
            spans[np.array([part != 1 for part in window.sequence_ids], np.bool_)] = -1
            start, end = _span(spans, examples[example_idx])
            rows.append(np.array(window.ids, np.int32))
            if token_type_stride:
                types.append(np.array(window.type_ids, np.int32))
            of_example.append(example_idx)
            starts.append(start)
            ends.append(end)
            characters.append(spans)
    flat = np.concatenate([np.empty((0, 2), np.int32), *characters])
    targets = SpanTargets(np.array(starts, np.int32), np.array(ends, np.int32), flat)
    shift = _flat(types) * token_type_stride if token_type_stride else None
    return EncodedRows(_flat(rows), _offsets(map(len, rows)), np.array(of_example, np.int32), targets, shift, 0)


def _question(example: Example) -> str:
    """White space before some of SQuAD's questions would fill a window."""
    return example.text.lstrip()


def _span(spans: Ints, example: Example) -> tuple[int, int]:
    """Indices of the first answer's first and last id; (0, 0) if the window does not hold all of it."""
    inside = np.flatnonzero(spans[:, 0] >= 0)
    if not example.answers or not inside.size:
        return 0, 0
    begin, stop = example.answers[0].start, example.answers[0].start + len(example.answers[0].text)
    if spans[inside[0], 0] > begin or spans[inside[-1], 1] < stop:
        return 0, 0
    start = inside[np.searchsorted(spans[inside, 0], begin, side="right") - 1]
    end = inside[np.searchsorted(spans[inside, 1], stop, side="left")]
    # For a character of several ids, which all have its offsets, `start` is the last and `end` the first.
    return int(min(start, end)), int(max(start, end))


def _without_room(
    tokenizer: Any, examples: Sequence[Example], doc_stride: int, max_seq_len: int, longest: int
) -> Iterator[tuple[int, InputError]]:
    """(index, error) of each question that leaves a window no more of the context than it shares with the next."""
    specials = tokenizer.num_special_tokens_to_add(True)
    encode_batch = partial(tokenizer.encode_batch_fast, add_special_tokens=False)
    batches = ([*map(_question, batch)] for batch in _batches(examples))
    for index, encoding in enumerate(chain.from_iterable(map(encode_batch, batches))):
        room = max_seq_len - specials - len(encoding.ids)
        if room <= doc_stride:
            size, fixes = specials + len(encoding.ids), []
            # If the windows' overlap is not a key, it is at most a third of a row.
            enough = size + 1 + max(doc_stride, size // 2)
            if enough <= longest:
                fixes.append(f"set data.max_seq_len to {enough} or more")
            if room > 0:
                fixes.append(f"set task.doc_stride below {room}")
            what = f"the question's {len(encoding.ids)} tokens leave {max(room, 0)} of a row's {max_seq_len} for the "
            what += f"context, and windows share {doc_stride}"
            fixes = fixes or ["shorten the question", "use a model with longer rows"]
            fix = ", or ".join([*fixes, "data.on_bad_input: skip"])
            yield index, InputError(what, where=examples[index].where, fix=fix)


def without_long_questions(
    examples: Sequence[Example], tokenizer_folder: str, task: Task, max_seq_len: int
) -> tuple[list[Example], list[Skipped]]:
    """The examples that `encode` accepts, and those whose question leaves a row too little for its context. Raises
    `InputError` if all do."""
    if task.kind != "question_answering" or not examples:
        return list(examples), []
    tokenizer = open_tokenizer(tokenizer_folder)
    errors = dict(_without_room(tokenizer, examples, task.doc_stride, max_seq_len, 0))
    if len(errors) == len(examples):
        raise errors[0]
    kept = [example for index, example in enumerate(examples) if index not in errors]
    return kept, [Skipped(examples[index].where, error.what) for index, error in errors.items()]
