"""Packed masked copies against one copy a row in `transformers`' own models, and JAX against torch."""

from contextlib import nullcontext
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import transformers
from finetuned import save_model
from tokenizer_kinds import with_declared
from torch import Tensor

from maskwright.config.pretraining import EngineSection
from maskwright.engines.base import AtOnce
from maskwright.engines.torch.passes import Passes
from maskwright.engines.torch.processes import Peers
from maskwright.model.config import ModelConfig
from maskwright.model.hf.names import pieces
from maskwright.tasks.measure import pseudo_likelihood as task
from maskwright.tasks.models.load import TrainedModel
from maskwright.text.vocabulary import read_vocabulary

LENGTHS = np.array([1, 2, 30, 7, 7, 3, 1, 12, 29, 5, 5, 5, 18])
OFTEN = 9
"""An id that the models like and the texts have often, so that some labels are the likeliest."""


def random_model(tokenizer, architecture):
    """Its log-probabilities differ by several nats, so that an exchanged one shows."""
    words, generator = read_vocabulary(tokenizer), np.random.default_rng(7)
    config = ModelConfig(words.size, 32, 2, 2, 64, 34, architecture=architecture)
    parameters = {
        piece.hf_name: (generator.standard_normal(piece.shape) * 0.4 + ("norm" in piece.hf_name.lower())).astype("f4")
        for piece in pieces(config)
    }
    bias = next(piece.hf_name for piece in pieces(config) if piece.name == "head.bias")
    parameters[bias][OFTEN] += 6.0
    return TrainedModel("random", config, parameters, tokenizer, words)


def texts(words):
    generator, count = np.random.default_rng(1), int(LENGTHS.sum())
    return np.where(generator.random(count) < 0.3, OFTEN, generator.integers(5, words.size, count))


@torch.no_grad()
def slow_twin(model, folder, ids, lengths):
    """[tokens]: one masked copy after the other through what transformers makes of the exported weights."""
    save_model(folder, model.parameters, model.config)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    found, words = [], model.vocabulary
    for text in np.split(ids, np.cumsum(lengths)[:-1]):
        framed = torch.tensor([[words.bos, *text.tolist(), words.eos]])
        for place in range(1, framed.shape[1] - 1):
            copy = framed.clone()
            copy[0, place] = words.mask
            found.append(torch.log_softmax(theirs(copy).logits[0, place].double(), -1)[framed[0, place]])
    return torch.stack(found).numpy()


@pytest.mark.parametrize("architecture", ["roberta", "modernbert"])
def test_packed_copies_equal_one_copy_a_row(architecture, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(task, "BATCH_TOKENS", 256)
    model = random_model(tokenizer, architecture)
    ids = texts(model.vocabulary)
    copies = task.MaskedCopies.of(ids, LENGTHS, model.vocabulary)
    batches = list(copies.batches())
    assert len(batches) > 5 and len({(batch.input_ids.shape, batch.labels.shape) for batch in batches}) == 1
    assert sum(batch.text_tokens for batch in batches) == copies.positions == (LENGTHS * (LENGTHS + 2)).sum()

    expected = slow_twin(model, tmp_path / "model", ids, LENGTHS)
    scorer = task.open_scorer(model, EngineSection(device="cpu", threads=1))
    found = task.score_texts(scorer, model.vocabulary, ids, LENGTHS)
    assert np.ptp(expected) > 5.0
    np.testing.assert_allclose(found.log_probs, expected, rtol=0, atol=1e-4)
    sums = [part.sum() for part in np.split(expected, np.cumsum(LENGTHS)[:-1])]
    np.testing.assert_allclose(found.sums, sums, rtol=0, atol=1e-4)

    scorer.at_once = AtOnce(1)  # as after memory ran out
    again = task.score_texts(scorer, model.vocabulary, ids, LENGTHS)
    np.testing.assert_allclose(again.log_probs, found.log_probs, rtol=0, atol=1e-5)


def test_declared_tokens_are_seen_and_not_scored(tokenizer, tmp_path):
    model = random_model(with_declared(tokenizer, tmp_path / "declared"), "roberta")
    ids = texts(model.vocabulary)
    declared = np.isin(ids, sorted(model.vocabulary.additional))
    assert declared.any() and model.vocabulary.additional
    expected = slow_twin(model, tmp_path / "model", ids, LENGTHS)
    scorer = task.open_scorer(model, EngineSection(device="cpu", threads=1))
    found = task.score_texts(scorer, model.vocabulary, ids, LENGTHS)
    np.testing.assert_allclose(found.log_probs, expected[~declared], rtol=0, atol=1e-4)
    sums = [part.sum() for part in np.split(expected * ~declared, np.cumsum(LENGTHS)[:-1])]
    np.testing.assert_allclose(found.sums, sums, rtol=0, atol=1e-4)


class OneOfThree(Peers):
    """Ranks that compute one after another: the last one gets the numbers of all."""

    def __init__(self, rank, of_ranks):
        self.rank, self.world_size, self._of_ranks = rank, 3, of_ranks

    def gather_numbers(self, numbers):
        self._of_ranks.append(numbers)
        return torch.stack([*self._of_ranks, *[numbers] * (2 - self.rank)])


@pytest.mark.parametrize("count", [1, 3, 5])
def test_ranks_share_batches_out_and_compute_none_twice(tokenizer, monkeypatch, count):
    monkeypatch.setattr(task, "BATCH_TOKENS", 256)
    model = random_model(tokenizer, "roberta")
    batches = list(task.MaskedCopies.of(texts(model.vocabulary), LENGTHS, model.vocabulary).batches())[:count]
    scorer = task.open_scorer(model, EngineSection(device="cpu", threads=1))
    expected = scorer.evaluate(batches), *scorer.log_probs(batches)
    forward, computed, of_ranks = Passes.forward, list[object](), (list[Tensor](), list[Tensor]())
    monkeypatch.setattr(Passes, "forward", lambda *given: computed.append(given) or forward(*given))
    scorer.waiting = waiting = Mock(side_effect=nullcontext)  # of a rank that waits for one that hangs
    for rank in range(3):
        scorer._scorer._processes = OneOfThree(rank, of_ranks[0])
        stats = scorer.evaluate(batches)
        scorer._scorer._processes = OneOfThree(rank, of_ranks[1])
        scores, likeliest = scorer.log_probs(batches)
    assert len(computed) == 2 * count and stats == expected[0] and waiting.call_count == 6
    np.testing.assert_array_equal(scores, expected[1])
    np.testing.assert_array_equal(likeliest, expected[2])


def test_jax_gives_the_same_on_several_devices_and_in_parts(tokenizer, monkeypatch):
    pytest.importorskip("jax", reason="needs the extra jax")
    from reference import parity

    parity.use_virtual_devices()
    monkeypatch.setattr(task, "BATCH_TOKENS", 256)
    model = random_model(tokenizer, "modernbert")
    ids, words = texts(model.vocabulary), model.vocabulary
    batches = list(task.MaskedCopies.of(ids, LENGTHS, words).batches())
    plain = task.open_scorer(model, EngineSection(device="cpu", threads=1))
    expected, likeliest = plain.log_probs(batches)
    assert len(batches) % 3 and 0 < np.count_nonzero(likeliest) < len(likeliest)
    scorer = task.open_scorer(model, EngineSection(kind="jax", device="cpu", devices=3))
    for scorer.at_once in (AtOnce(), AtOnce(1)):
        found, correct = scorer.log_probs(batches)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(correct, likeliest)
    ours, theirs = plain.evaluate(batches), scorer.evaluate(batches)  # fewer batches than devices at the end
    assert (theirs.loss_sum, theirs.weight) == (pytest.approx(ours.loss_sum, rel=1e-5), ours.weight)
    whole = task.score_texts(scorer, words, ids, LENGTHS).log_probs
    np.testing.assert_allclose(whole[task.MaskedCopies.of(ids, LENGTHS, words).order], expected, rtol=0, atol=1e-4)
