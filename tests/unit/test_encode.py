"""Bulk encoding: gigatoken against tokenizers, and sentence borders against encoding each sentence."""

import importlib.util
import json
import random
from pathlib import Path

import conftest
import numpy as np
import pytest
from tokenizer_kinds import KINDS

from maskwright.core.errors import InputError, TokenizerError
from maskwright.data.encode import encode_documents
from maskwright.text import encoder as encoders
from maskwright.text.document import Document
from maskwright.text.encoder import GigatokenEncoder, TokenizersEncoder, open_encoder, require_equal
from maskwright.text.vocabulary import read_vocabulary

needs_gigatoken = pytest.mark.skipif(
    importlib.util.find_spec("gigatoken") is None, reason="gigatoken (the fast extra) is not installed"
)
ALPHABET = "aaabcdeeest THE 'sdlm0123.,!?-\t\n\u00a0é中の😀\u200d\u0301<s>/mask|ſİ\x1c\x85\u2028"


def random_text(generator, longest):
    return "".join(generator.choices(ALPHABET, k=generator.randrange(1, longest)))


@needs_gigatoken
@pytest.mark.parametrize("kind", ["roberta", "modernbert", "gemma", "llama"])
def test_gigatoken_gives_the_ids_of_tokenizers(kind, tokenizer_of):
    generator = random.Random(0)
    texts = [random_text(generator, 60) for _ in range(3000)] + [chr(code) * 2 + "a" for code in range(1, 0x3000)]
    texts += [*(f"e{chr(code)} x" for code in range(0x300, 0x3100)), ""]
    fast, slow = GigatokenEncoder(tokenizer_of(kind)), TokenizersEncoder(tokenizer_of(kind))
    for found, expected in zip(fast.encode(texts), slow.encode(texts), strict=True):
        assert np.array_equal(found, expected)


class Whole(TokenizersEncoder):
    """The reference encoder, given whole documents."""

    by_sentence = False


class Wrong:
    name = "wrong"
    by_sentence = False

    def __init__(self, location):
        self.samples: list[str] = []
        self._right = TokenizersEncoder(location)

    def encode(self, texts):
        ids, counts = self._right.encode(texts)
        return (ids + (ids == ids.max(initial=0))).astype(np.uint32), counts


def test_an_encoder_that_differs_is_refused(tokenizer, monkeypatch, capfd):
    with pytest.raises(TokenizerError, match="from token 0 on"):
        require_equal(Wrong(tokenizer), TokenizersEncoder(tokenizer), ["a"], tokenizer)
    monkeypatch.setattr(encoders, "GigatokenEncoder", Wrong)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(TokenizerError, match="differently from tokenizers"):
        open_encoder(tokenizer, "gigatoken")
    assert isinstance(open_encoder(tokenizer)[0], TokenizersEncoder)
    assert "differently from tokenizers (from token 24 on): encoding with tokenizers" in capfd.readouterr().err
    assert isinstance(open_encoder(tokenizer, "tokenizers")[0], TokenizersEncoder)


@needs_gigatoken
def test_a_kind_that_gigatoken_cannot_read_is_encoded_with_tokenizers(tokenizer_of, capfd):
    assert isinstance(open_encoder(tokenizer_of("bert"))[0], TokenizersEncoder)
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith("encoding with tokenizers; gigatoken, which is faster, does not support this kind")
    assert "WordPiece" in said
    with pytest.raises(TokenizerError, match="gigatoken cannot read it: .*WordPiece"):
        open_encoder(tokenizer_of("bert"), "gigatoken")


LONG = [*"abcdeéß THE 'sd019.,!?-\t\n中の漢한ไทĐ", " ", " ", " the ", " story "]
LONG += ["\n", "\n\n", ". ", "ing ", "<s>", "  ", "\r\n"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_in_pieces_has_the_ids_of_the_whole(kind, tokenizer_of, monkeypatch):
    generator = random.Random(7)
    texts = ["".join(generator.choices(LONG, k=generator.choice([10, 300, 2_000]))) for _ in range(30)]
    texts += [" ".join(conftest.sentence(generator) for _ in range(200)), "x" * 900, "中" * 900, ""]
    kinds = [TokenizersEncoder, *([GigatokenEncoder] if importlib.util.find_spec("gigatoken") else [])]
    for make in kinds[: 1 if kind.startswith("bert") or kind in ("xlm-roberta", "camembert") else None]:
        encoder = make(tokenizer_of(kind))
        expected = encoder.encode(texts)
        sizes, encode = list[list[int]](), type(encoder)._encode
        with monkeypatch.context() as patch:
            patch.setattr(encoders, "PIECE_CHARACTERS", 100)
            patch.setattr(encoders, "CALL_CHARACTERS", 1_000)

            def noted(self, some, encode=encode, sizes=sizes):
                sizes.append([*map(len, some)])
                return encode(self, some)

            patch.setattr(type(encoder), "_encode", noted)
            for one in (texts, [text.encode() for text in texts]):
                for found, wanted in zip(encoder.encode(one), expected, strict=True):
                    assert np.array_equal(found, wanted)
        longest = [size for call in sizes for size in call]
        assert len([size for size in longest if 100 <= size < 300]) > 300
        if make is TokenizersEncoder:
            assert max(sum(call) for call in sizes if len(call) > 1) <= 1_000


def test_gigatoken_that_is_asked_for_and_absent_is_an_error(tokenizer, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="not installed"):
        open_encoder(tokenizer, "gigatoken")
    assert isinstance(open_encoder(tokenizer)[0], TokenizersEncoder)


def documents(seed, *, of_sentences=True):
    generator = random.Random(seed)
    result = []
    for number in range(12):
        sentences = [random_text(generator, 30).replace("\n", " ").strip() for _ in range(generator.randrange(1, 9))]
        sentences = [sentence for sentence in sentences if sentence] or ["x"]
        result.append(Document(tuple(sentences) if of_sentences else (" ".join(sentences),), of_sentences, "f", number))
    return result


def one_by_one(location, texts):
    encoder = TokenizersEncoder(location)
    ids = []
    sentence_sizes, document_sizes = [], []
    for document in texts:
        before = len(ids)
        for number, sentence in enumerate(document.parts):
            found = encoder.encode([sentence if number == 0 else f" {sentence}"])[0].tolist()
            ids += found
            sentence_sizes.append(len(found))
        document_sizes.append(len(ids) - before)
    return ids, sentence_sizes, document_sizes


def parts(encoded):
    return encoded.ids.tolist(), encoded.sentence_sizes.tolist(), encoded.document_sizes.tolist()


def lengths(location):
    return np.array(read_vocabulary(location).byte_length, np.int64)


@pytest.mark.parametrize("kind", [TokenizersEncoder, Whole])
@pytest.mark.parametrize("seed", range(20))
def test_sentences_of_whole_documents_equal_sentences_alone(tokenizer, seed, kind):
    """Also where an id's bytes are unknown."""
    known = lengths(tokenizer)
    for of_sentences, sizes in ((True, known), (False, known), (True, np.full_like(known, -1))):
        texts = documents(seed, of_sentences=of_sentences)
        encoded = encode_documents(kind(tokenizer), texts, sizes)
        assert parts(encoded) == one_by_one(tokenizer, texts)


def test_a_token_across_sentences_makes_that_document_encode_by_sentence(tokenizer, tmp_path):
    """An added token that holds a space: `the end. And` must not become one token over two sentences."""
    content = json.loads((Path(tokenizer) / "tokenizer.json").read_text())
    content["added_tokens"].append(
        {"id": len(content["model"]["vocab"]) + 1, "content": "end. And", "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False, "special": False}
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    texts = [Document(("no such thing.", "Here"), True, "f", 1), Document(("the end.", "And so"), True, "f", 2)]
    encoded = encode_documents(Whole(str(tmp_path)), texts, lengths(str(tmp_path)))
    assert parts(encoded) == one_by_one(str(tmp_path), texts)
    whole = TokenizersEncoder(str(tmp_path)).encode([texts[1].text])[0]
    assert len(whole) < encoded.document_sizes[1]
