"""A trimmed tokenizer parts what its text has as before, and its model says the same of the tokens that stay."""

import json
import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import transformers
from tokenizer_kinds import KINDS

from maskwright.config.finetuning import Task
from maskwright.config.pretraining import ModelSection
from maskwright.core.errors import InputError, TokenizerError
from maskwright.model.config import model_config
from maskwright.model.hf.names import vocabulary_rows
from maskwright.model.initial import initial_parameters
from maskwright.model.torch.networks import logits_at
from maskwright.tasks.export.hugging_face import export
from maskwright.tasks.export.resize import resized
from maskwright.tasks.models.load import TrainedModel, load_model, special_ids
from maskwright.text.encoder import open_encoder
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import load_tokenizer
from maskwright.text.trim import OLD_IDS, report, trim_tokenizer
from maskwright.text.vocabulary import read_vocabulary, token_ids

WORDS = "the old fox saw a patient and then letters naïve 東京 under rivers when 1234 (trees)".split()  # noqa: SIM905
OTHERS = [
    "stenosis\nthe\n\n  patient, (no)acute12345 東 had🙂",
    "Mountains; <mask> [MASK]",
    "naïve 東京",
    "",
    "ﬁ Ω≈ç √∫˜",
]


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    generator, path = random.Random(4), tmp_path_factory.mktemp("notes") / "notes.txt"
    lines = [" ".join(generator.choices(WORDS, k=9)) + f", {number}." for number in range(300)]
    path.write_text("\n".join(lines))
    return Sources([str(path)], layout="lines")


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_kept_tokens_is_parted_as_before(kind, notes, tokenizer_of, tmp_path):
    old, new = tokenizer_of(kind), str(tmp_path / "new")
    trimming, vocabulary = trim_tokenizer(old, notes, new)
    before, after = token_ids(old), token_ids(new)
    words = read_vocabulary(old)
    assert json.loads((tmp_path / "new" / OLD_IDS).read_text()) == trimming.old_ids == sorted(trimming.old_ids)
    assert {token: trimming.old_ids[index] for token, index in after.items()}.items() <= before.items()
    assert vocabulary.size == len(trimming.old_ids) < words.size and trimming.removed == words.size - vocabulary.size
    assert {trimming.old_ids[index] for index in vocabulary.special} == words.special
    assert vocabulary.pad == words.pad and f"{trimming.removed:,} were removed" in report(trimming, vocabulary, new)
    assert trimming.documents > 10 and trimming.fertility[1] >= trimming.fertility[0]

    theirs = transformers.AutoTokenizer.from_pretrained(new)
    ours, was = (load_tokenizer(folder, special_tokens_are_text=False) for folder in (new, old))
    kept, unchanged = set(trimming.old_ids), 0
    mixed = [" ".join(random.Random(number).sample(WORDS, 5)) for number in range(40)]
    texts = [*(document.text for document in notes), *mixed, *OTHERS]
    for number, text in enumerate(texts):
        ids, old_ids = ours.encode(text).ids, was.encode(text).ids
        assert theirs(text)["input_ids"] == ids
        if number < 300:
            assert kept.issuperset(old_ids)
        if kept.issuperset(old_ids):
            assert [trimming.old_ids[index] for index in ids] == old_ids
            unchanged += number >= 300
        elif words.kind == "byte_level_bpe":  # nothing is lost where tokens were cut
            assert ours.decode(ids) == was.decode(old_ids)
    assert unchanged > 20
    encoder, referee = open_encoder(new)
    assert all(np.array_equal(encoder.encode([text])[0], referee.encode([text])[0]) for text in texts)


def test_the_most_frequent_tokens_stay(notes, tokenizer_of, tmp_path):
    old = tokenizer_of("roberta")
    everything, _ = trim_tokenizer(old, notes, str(tmp_path / "all"))
    often, _ = trim_tokenizer(old, notes, str(tmp_path / "often"), min_frequency=50)
    assert set(often.old_ids) < set(everything.old_ids) and often.fertility[1] >= everything.fertility[1]
    assert len(often.old_ids) > 262
    few, vocabulary = trim_tokenizer(old, notes, str(tmp_path / "few"), vocab_size=280)
    again, _ = trim_tokenizer(old, notes, str(tmp_path / "again"), vocab_size=280)
    assert vocabulary.size <= 280 and few == again and len(few.old_ids) >= 278
    assert (tmp_path / "few/tokenizer.json").read_bytes() == (tmp_path / "again/tokenizer.json").read_bytes()
    with pytest.raises(InputError, match=r"--vocab-size 100 is too small, since 261 tokens must stay. Fix: give 261"):
        trim_tokenizer(old, notes, str(tmp_path / "none"), vocab_size=100)
    with pytest.raises(InputError, match="is not empty"):
        trim_tokenizer(old, notes, str(tmp_path / "few"))


@pytest.mark.parametrize("kind", ["roberta", "modernbert", "bert", "xlm-roberta", "gemma"])
@pytest.mark.parametrize("task", ["masked_lm", "single_label_classification"])
def test_a_model_says_the_same_of_the_tokens_that_stay(kind, task, notes, tokenizer_of, tmp_path):
    old, words = tokenizer_of(kind), read_vocabulary(tokenizer_of(kind))
    architecture = "modernbert" if kind == "gemma" else kind  # mmBERT
    shape = ModelSection(architecture=architecture, size="nano", hidden_size=32, num_attention_heads=2)
    config = model_config(shape, words.size + 2, 34, **special_ids(words))  # more rows than tokens, as ModernBERT has
    labels = () if task == "masked_lm" else ("yes", "no", "perhaps")
    config = replace(config, task=task, num_labels=len(labels) or config.num_labels)
    named = {} if task == "masked_lm" else {"labels": labels, "task": Task(kind="single_label_classification")}
    trained = TrainedModel(str(tmp_path), config, initial_parameters(config, 1), old, words, **named)
    export(trained, str(tmp_path / "model"))
    trimming, after = trim_tokenizer(old, notes, str(tmp_path / "tokenizer"))
    given = str(tmp_path / "model"), words, after, trimming, str(tmp_path / "tokenizer")
    assert resized(*given, str(tmp_path / "small")) < 1e-4
    small = load_model(str(tmp_path / "small"))
    assert small.config.vocab_size == after.size == len(trimming.old_ids)
    assert json.loads((tmp_path / "small" / OLD_IDS).read_text()) == trimming.old_ids
    for name, value in small.parameters.items():
        was = trained.parameters[name]
        np.testing.assert_array_equal(value, was[trimming.old_ids] if name in vocabulary_rows(config) else was)
    text = next(iter(notes)).text
    ids = load_tokenizer(str(tmp_path / "small"), special_tokens_are_text=False).encode(text).ids[:32]
    places = [1, 5, 9] if task == "masked_lm" else [0]
    mine = logits_at(small.config, small.parameters, ids, places)
    theirs = logits_at(config, trained.parameters, [trimming.old_ids[index] for index in ids], places)
    expected = theirs[:, trimming.old_ids] if task == "masked_lm" else theirs
    np.testing.assert_allclose(mine[:, : expected.shape[1]], expected, atol=1e-5)
    with pytest.raises(InputError, match="has another tokenizer than the one that was changed"):
        resized(str(tmp_path / "small"), *given[1:], str(tmp_path / "x"))


def test_overlapping_kmers_are_kept_whole(notes, tmp_path):
    """Without one of them, sequences would no longer be spaced, and each be one unknown word."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*special, *map("".join, product("ACGT", repeat=2))]))
    with pytest.raises(TokenizerError, match="has overlapping 2-mers"):
        trim_tokenizer(str(tmp_path), notes, str(tmp_path / "new"))
