"""Learning from a text of any size: which documents, which words, how much memory, and the same files as without it."""

import gzip
import json
import random
from collections import Counter

import pytest

from maskwright.core.errors import InputError
from maskwright.text import pieces, sample, tokenizer, word_counts
from maskwright.text.dedup import text_key
from maskwright.text.encoder import ODD_TEXTS
from maskwright.text.extend import extend_tokenizer
from maskwright.text.sample import learn_from
from maskwright.text.sequences import make_tokenizer
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import split_by, train_tokenizer
from maskwright.text.word_counts import WordCounts

KINDS = ("bpe", "wordpiece", "unigram")
SPACES = (" ", " ", " ", "  ", " \n", "\n", "\n\n ", "\t", "\u00a0", "\u3000 ", "\x1c", "\x85", " \u2028", "   ")
BITS = (
    *("the", "cat", "don't", "'s", "(x)", "foo,", "12", "3.14", "½", "É", "e\u0301", "\u0301", "東京", "。", "हिन्दी"),
    *("ไทย", "👩\u200d👩", "\ufeff", "▁low", "ΣΑΣ", "İ", "\x00", "\x1f", "\xad", "---", "a_b"),
)


def odd_texts():
    generator = random.Random(7)
    made = [
        "".join(generator.choice(BITS) + generator.choice(SPACES) for _ in range(generator.randrange(1, 40))).strip()
        for _ in range(300)
    ]
    return [*ODD_TEXTS, *made]


@pytest.mark.parametrize("kind", [*KINDS, "uncased"])
def test_words_are_those_of_whole_texts(kind, monkeypatch):
    """Also where a text is cut into pieces, between two letters."""
    split = split_by(*tokenizer._steps("wordpiece" if kind == "uncased" else kind, kind == "uncased"))
    expected = Counter[str]()
    for text in odd_texts():
        expected.update(split(text))
    for cut, pending in ((10**6, 10**6), (10**6, 100), (30, 500)):
        monkeypatch.setattr(pieces, "PIECE_CHARACTERS", cut)
        monkeypatch.setattr(word_counts, "PENDING_CHARACTERS", pending)
        counts, number = WordCounts(split, at_spaces=True), 0
        for text in odd_texts():
            parts = [*pieces.pieces(text)]
            parts = [text] if max(map(len, parts)) == 2 * cut else parts  # cut where there was no place
            number += len(parts)
            for part in parts:
                counts.add(part)
        assert counts.counted() == expected and (number > 330) == (cut == 30)


def test_pieces_are_bounded_without_a_place_to_cut(monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 100)
    for text in ("x" * 1_234, "a b" * 50, "", "x" * 200 + " a b" * 40):
        parts = [*pieces.pieces(text)]
        assert "".join(parts) == text and all(0 < len(part) <= 200 for part in parts)


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_those_of_the_library_fed_with_the_text(kind, tmp_path, monkeypatch):
    """The slow way: no counts of ours, no pieces, no lines."""
    texts = [text for text in odd_texts() if text]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sources = Sources([str(tmp_path / "a.jsonl")])
    train_tokenizer(sources, str(tmp_path / "new"), kind=kind, vocab_size=600)

    def plain(made, trainer, words):
        made.normalizer, made.pre_tokenizer = tokenizer._steps(kind, False)
        made.train_from_iterator((document.text for document in sources), trainer)

    monkeypatch.setattr(tokenizer, "_train", plain)
    train_tokenizer(sources, str(tmp_path / "plain"), kind=kind, vocab_size=600)
    for path in (tmp_path / "plain").iterdir():
        assert (tmp_path / "new" / path.name).read_bytes() == path.read_bytes()


@pytest.fixture(scope="module")
def documents():
    generator = random.Random(2)
    return [" ".join(generator.choices(["red", "fox", "größer", "12"], k=k)) + f" {k}" for k in range(1, 300)]


def written(folder, documents):
    """The same documents as files of several kinds and orders."""
    folder.mkdir()
    lines = [f"{text}\n" for text in documents]
    (folder / "a.txt").write_text("".join(lines))
    (folder / "b").mkdir()
    with gzip.open(folder / "b" / "1.txt.gz", "wt") as file:
        file.writelines(lines[100:])
    records = (json.dumps({"text": text, "more": "x" * 90}) for text in documents[:100])
    (folder / "b" / "2.jsonl").write_text("\n".join(records))
    return lambda: (Sources([str(folder / name)], layout="lines") for name in ("a.txt", "b"))


def test_a_sample_is_of_the_text_alone(documents, tmp_path, capsys):
    sources = written(tmp_path / "text", documents)
    size = sum(len(text.encode()) for text in documents)
    by_rank = sorted(documents, key=lambda text: sample._rank(text_key(text.encode())))
    for most in (1, 900, size // 3, size - 1, size, size + 1):
        expected, taken = [by_rank[0]], len(by_rank[0].encode())
        for text in by_rank[1:]:
            taken += len(text.encode())
            expected += [text] if taken <= most else []
        for one in sources():
            found = learn_from(one, most, list)
            assert {piece.text for piece in found} == {*expected} and len(found) == len(expected)
            assert all(piece.is_first and piece.document == text_key(piece.text.encode()) for piece in found)
            told = capsys.readouterr().err
            assert ("chosen by a hash of the documents' text" in told) == (most < size)


def test_a_long_document_is_taken_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(pieces, "PIECE_CHARACTERS", 1_000)
    monkeypatch.setattr(sample, "PIECE_CHARACTERS", 1_000)
    text = " ".join(f"word{number}x" for number in range(3_000))
    (tmp_path / "a.txt").write_text(text)
    whole = learn_from(Sources([str(tmp_path / "a.txt")], layout="file"), 10**6, list)
    whole.sort(key=lambda piece: text.index(piece.text))
    assert "".join(piece.text for piece in whole) == text and len(whole) > 20
    assert [piece.is_first for piece in whole] == [True, *[False] * (len(whole) - 1)]
    assert {piece.document for piece in whole} == {text_key(text.encode())}
    some = learn_from(Sources([str(tmp_path / "a.txt")], layout="file"), 5_000, list)
    assert 3 <= len(some) <= 5 and {*some} < {*whole} and sum(len(piece.text) for piece in some) <= 5_000


def test_more_than_the_library_can_count_is_refused(corpus, tokenizer, tmp_path):
    sources = Sources([str(corpus)])
    for make in (
        lambda: train_tokenizer(sources, str(tmp_path / "t"), max_bytes=2**31),
        lambda: make_tokenizer(sources, str(tmp_path / "t"), "characters", max_bytes=2**31),
        lambda: extend_tokenizer(tokenizer, sources, str(tmp_path / "t"), tokens=5, max_bytes=2**31),
    ):
        with pytest.raises(InputError, match="--max-bytes 2147483648 is too large.*2147483647"):
            make()
    assert not (tmp_path / "t").exists()


def test_a_text_of_too_many_words_is_halved_until_they_fit(tmp_path, monkeypatch, capsys):
    """Whatever the order and the files, and whether the text or a sample of it has too many. It is read once."""
    generator = random.Random(4)
    documents = [" ".join(str(generator.randrange(9_000)) for _ in range(30)) for _ in range(300)]
    sources = written(tmp_path / "text", documents)
    monkeypatch.setattr(word_counts, "MOST_CHARACTERS", 9_000)
    reads, read = list[Sources](), Sources.__iter__
    monkeypatch.setattr(Sources, "__iter__", lambda self: (reads.append(self), read(self))[1])

    def learn(pieces):
        counts = WordCounts(str.split, at_spaces=False)
        for piece in pieces:
            counts.add(piece.text)
        return counts.counted()

    ranked = {text: sample._rank(text_key(text.encode())) for text in documents}
    for most, tries in ((10**6, 2), (20_000, 1)):
        ranks = sample.RANKS
        while sum(len(text.encode()) for text, rank in ranked.items() if rank < ranks) > most:
            ranks -= 1_000  # some 43 bytes
        words = {"9" * 10_000: 1}
        halved = -1
        while sum(map(len, words)) > 9_000:
            words = Counter(" ".join(text for text, rank in ranked.items() if rank < ranks).split())
            ranks, halved = ranks // 2, halved + 1
        assert halved >= tries
        for one in sources():
            assert learn_from(one, most, learn) == words and reads.pop() is one and not reads
            assert capsys.readouterr().err.count("(too many different words)") == halved
