"""Tokens added to a tokenizer: which ones, old ids, what transformers makes of the folder, the model's new rows."""

import json
import os
import random
import re
from collections import Counter

import numpy as np
import pytest
import transformers
from tokenizer_kinds import with_declared
from tokenizers import AddedToken

from maskwright.config.pretraining import ModelSection
from maskwright.core.errors import InputError, SourceError
from maskwright.model.config import model_config
from maskwright.model.initial import initial_parameters
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.export.resize import resized
from maskwright.tasks.models.load import TrainedModel, load_model, special_ids
from maskwright.text.dedup import is_held_out, text_key
from maskwright.text.encoder import open_encoder
from maskwright.text.extend import extend_tokenizer, report
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.vocabulary import read_vocabulary, token_ids, token_strings

WORDS = ["pneumothorax", "bronchoscopy", "tachycardia", "the", "patient", "had", "no", "acute", "Größe", "stenosis"]


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """Documents in which a few long words are frequent."""
    generator, path = random.Random(3), tmp_path_factory.mktemp("notes") / "notes.txt"
    lines = [" ".join(generator.choices(WORDS, k=12)) + f" {number}." for number in range(400)]
    path.write_text("\n".join(lines))
    return Sources([str(path)], layout="lines")


@pytest.mark.parametrize("kind", ["roberta", "bert", "xlm-roberta", "gemma"])
def test_letters_of_a_declared_token_are_no_word(kind, tokenizer_of, tmp_path):
    folder = with_declared(tokenizer_of(kind), tmp_path / "t", [AddedToken("[PLACEHOLDER]", special=True)])
    lines = [f"[PLACEHOLDER] had tachycardia [PLACEHOLDER] {number}" for number in range(200)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    sources = Sources([str(tmp_path / "a.txt")], layout="lines")
    extension, _ = extend_tokenizer(folder, sources, str(tmp_path / "new"), tokens=4)
    learned = "".join(extension.tokens)
    assert "ach" in learned and not re.search("PL|OLD|ER", learned)
    ids = load_tokenizer(str(tmp_path / "new"), special_tokens_are_text=True).encode(lines[0]).ids
    assert ids.count(token_ids(folder)["[PLACEHOLDER]"]) == 2


BPE = ("roberta", "modernbert", "gemma", "llama")


@pytest.mark.parametrize("kind", [*BPE, "bert", "bert-uncased", "xlm-roberta", "camembert"])
def test_old_ids_stay_and_transformers_agrees(kind, notes, tokenizer_of, tmp_path):
    old, new = tokenizer_of(kind), str(tmp_path / "new")
    wanted = 20 if kind in BPE else 6  # whole words, of which the text has few
    extension, vocabulary = extend_tokenizer(old, notes, new, tokens=wanted)
    before, after = token_ids(old), token_ids(new)
    size = read_vocabulary(old).size
    assert before.items() <= after.items() and len(extension.tokens) == wanted
    assert [after[token] for token in extension.tokens] == list(range(size, size + wanted))
    assert vocabulary.size == size + wanted and vocabulary.fingerprint != read_vocabulary(old).fingerprint
    assert extension.documents > 10 and extension.fertility[1] < 0.8 * extension.fertility[0]
    assert "held-out documents" in report(extension, vocabulary, new)

    names = {index: token for token, index in before.items()}
    for token, pieces in zip(extension.tokens, extension.pieces, strict=True):
        assert token == "".join(names[index].removeprefix("##") for index in pieces)

    theirs = transformers.AutoTokenizer.from_pretrained(new)
    ours, was = (load_tokenizer(folder, special_tokens_are_text=False) for folder in (new, old))
    texts = [
        "The old fox <mask> [MASK] saw  letters.",
        "stenosis\nthe\n\n  patient, (no)acute12345 東 had🙂",
        "naïve 東京",
        "",
        *[document.text for document in notes][:40],
    ]
    for text in texts:
        ids = ours.encode(text).ids
        assert theirs(text)["input_ids"] == ids
        split = [one for index in ids for one in (extension.pieces[index - size] if index >= size else [index])]
        if kind in BPE:  # a new merge puts old pieces together, and does nothing else
            assert split == was.encode(text).ids
        if max(ids, default=0) < size:
            assert ids == was.encode(text).ids
    encoder, referee = open_encoder(new)
    assert all(np.array_equal(encoder.encode([text])[0], referee.encode([text])[0]) for text in texts)


def test_merges_are_those_of_a_slow_twin(notes, tokenizer, tmp_path):
    """Counts all pairs anew for each merge."""
    extension, _ = extend_tokenizer(tokenizer, notes, str(tmp_path / "new"), tokens=25)
    again, _ = extend_tokenizer(tokenizer, notes, str(tmp_path / "again"), tokens=25)
    assert extension == again
    for name in os.listdir(tmp_path / "new"):
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()

    loaded, known = load_tokenizer(tokenizer, special_tokens_are_text=True), set(token_ids(tokenizer))
    counts = Counter()
    for document in notes:
        if not is_held_out(text_key(document.utf8), 0.1):
            for word, _ in loaded.pre_tokenizer.pre_tokenize_str(document.text):
                counts[tuple(piece.value for piece in loaded.model.tokenize(word))] += 1
    merges = []
    while len(merges) < len(extension.merges):
        pairs = Counter()
        for pieces, count in counts.items():
            for pair in zip(pieces, pieces[1:], strict=False):
                if "".join(pair) not in known:
                    pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        counts = Counter({_merged(pieces, best): count for pieces, count in counts.items()})
    assert merges == extension.merges


def _merged(pieces, pair):
    out = list(pieces)
    at = 0
    while at < len(out) - 1:
        if (out[at], out[at + 1]) == pair:
            out[at : at + 2] = ["".join(pair)]
        at += 1
    return tuple(out)


def test_wordpiece_takes_the_words_that_save_most(notes, tokenizer_of, tmp_path):
    old = tokenizer_of("bert-uncased")
    extension, _ = extend_tokenizer(old, notes, str(tmp_path / "new"), tokens=3)
    assert set(extension.tokens) <= {"pneumothorax", "bronchoscopy", "tachycardia", "stenosis", "patient"}
    assert token_strings(str(tmp_path / "new"))[-3:] == extension.tokens


@pytest.mark.parametrize("kind", ["roberta", "modernbert", "bert", "xlm-roberta", "gemma"])
def test_a_models_new_rows_are_means_of_old_ones(kind, notes, tokenizer_of, tmp_path):
    old, words = tokenizer_of(kind), read_vocabulary(tokenizer_of(kind))
    architecture = "modernbert" if kind == "gemma" else kind  # mmBERT
    shape = ModelSection(architecture=architecture, size="nano", hidden_size=32, num_attention_heads=2)
    config = model_config(shape, words.size + 2, 34, **special_ids(words))  # more rows than tokens, as ModernBERT has
    trained = TrainedModel(str(tmp_path), config, initial_parameters(config, 1), old, words)
    export(trained, str(tmp_path / "model"))
    extension, after = extend_tokenizer(old, notes, str(tmp_path / "tokenizer"), tokens=6)
    given = words, after, extension, str(tmp_path / "tokenizer")
    assert resized(str(tmp_path / "model"), *given, str(tmp_path / "grown"))
    grown = load_model(str(tmp_path / "grown"))
    assert grown.config.vocab_size == after.size == words.size + 6
    rows = [name for name, value in grown.parameters.items() if len(value) == after.size]
    assert len(rows) == 2
    for name in rows:
        new, was = grown.parameters[name], trained.parameters[name]
        np.testing.assert_array_equal(new[: words.size], was[: words.size])
        for number, pieces in enumerate(extension.pieces):
            np.testing.assert_allclose(new[words.size + number], was[pieces].mean(axis=0), atol=1e-7)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "grown")
    assert theirs.get_input_embeddings().weight.shape == (after.size, 32)
    with pytest.raises(InputError, match="has another tokenizer than the one that was changed"):
        resized(str(tmp_path / "grown"), *given, str(tmp_path / "x"))


def test_new_tokens_of_bpe_with_a_mark_are_of_letters(notes, tokenizer_of, tmp_path):
    """As SentencePiece's: no punctuation, no digits, no ▁ but the first. The class of Gemma's own folders makes the
    same tokenizer."""
    new = tmp_path / "new"
    extension, vocabulary = extend_tokenizer(tokenizer_of("gemma"), notes, str(new), tokens=60)
    assert all(token.removeprefix("▁").isalpha() for token in extension.tokens)
    assert any(token.startswith("▁") for token in extension.tokens)
    config = json.loads((new / "tokenizer_config.json").read_text())
    (new / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "GemmaTokenizerFast"}))
    theirs = transformers.AutoTokenizer.from_pretrained(new)
    assert type(theirs).__name__.startswith("Gemma") and len(theirs) == vocabulary.size
    ours = load_tokenizer(str(new), special_tokens_are_text=True)
    for document in [*notes][:40]:
        ids = theirs(document.text, add_special_tokens=False)["input_ids"]
        assert ids == ours.encode(document.text, add_special_tokens=False).ids


def test_what_is_refused(notes, tokenizer, tmp_path):
    with pytest.raises(InputError, match="is not empty"):
        extend_tokenizer(tokenizer, notes, tokenizer, tokens=5)
    (tmp_path / "short.txt").write_text("a b\n")
    with pytest.raises(SourceError, match="holds no word of several tokens"):
        extend_tokenizer(tokenizer, Sources([str(tmp_path / "short.txt")]), str(tmp_path / "x"), tokens=5)
    assert not (tmp_path / "x").exists()


def test_words_with_an_unknown_character_are_no_new_tokens(tokenizer_of, tmp_path):
    """Unigram names such a piece by its character, which has no id."""
    (tmp_path / "a.txt").write_text("the stenosis ☃☃stone\n" * 30)
    for kind in ("xlm-roberta", "bert"):
        notes, new = Sources([str(tmp_path / "a.txt")], layout="file"), str(tmp_path / kind)
        extension, _ = extend_tokenizer(tokenizer_of(kind), notes, new, tokens=9)
        assert [token.removeprefix("▁") for token in extension.tokens][:1] == ["stenosis"]
        assert not any("☃" in token for token in extension.tokens)


def test_new_tokens_of_byte_level_bpe_are_shown_as_letters(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("จังหวัดเชียงใหม่\n" * 40)
    sources = Sources([str(tmp_path / "a.txt")], layout="lines")
    folder = str(tmp_path / "new")
    shown = report(*extend_tokenizer(tokenizer, sources, folder, tokens=12), folder)
    assert "ยงใหม" in shown and "à" not in shown
