import numpy as np
import pytest
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st
from reference import oracles

from maskwright.config.masking import Masking
from maskwright.data import bits
from maskwright.data.masking import LONGER_SPANS, Masker, mask_rows, slots_per_row

KINDS = ("token", "whole_word", "span")
VOCABULARY = 300
SPECIAL = {0, 1, 2, 3, VOCABULARY - 1}


def masker():
    special = np.zeros(VOCABULARY, bool)
    special[sorted(SPECIAL)] = True
    word_start = np.random.default_rng(5).random(VOCABULARY) < 0.6
    return Masker(special, word_start, np.flatnonzero(~special).astype(np.int32), VOCABULARY - 1)


def rows(count, length, seed):
    """Random chunks framed by specials, and padding at the end."""
    generator = np.random.default_rng(seed)
    ids, segments = np.ones((count, length), np.int32), np.zeros((count, length), np.int32)
    for row in range(count):
        place, segment = 0, 1
        while place + 3 <= length and generator.random() < 0.9:
            size = int(generator.integers(3, min(40, length - place) + 1))
            ids[row, place : place + size] = [0, *generator.integers(4, VOCABULARY - 1, size - 2), 2]
            segments[row, place : place + size] = segment
            place, segment = place + size, segment + 1
    return ids, segments


@given(
    kind=st.sampled_from(KINDS),
    rate=st.floats(0.01, 0.99),
    mask_share=st.floats(0.0, 1.0),
    rest=st.floats(0.0, 1.0),
    length=st.integers(3, 130),
    seed=st.integers(0, 2**32),
)
@cases(150)
def test_masking_equals_slow_twin(kind, rate, mask_share, rest, length, seed):
    """Row by row, of any epoch and number: so whole words are masked whole, special tokens and padding stay, and a row
    depends on nothing but its number and epoch."""
    ids, segments = rows(4, length, seed)
    names, epochs = seed % 1000 + np.arange(4), np.arange(4) % 3
    random_share, slots, tables = (1.0 - mask_share) * rest, slots_per_row(kind, rate, length), masker()
    masking = Masking(kind=kind, rate=rate, mask_share=mask_share, random_share=random_share)
    shown, index, labels, weights = mask_rows(
        tables, ids, segments, masking, seed=11, epochs=epochs, rows=names, slots=slots
    )
    assert index.shape == labels.shape == weights.shape == (4 * slots,)
    for row in range(4):
        expected, truth = oracles.mask_row(
            ids[row].tolist(),
            segments[row].tolist(),
            special=SPECIAL,
            word_start=tables.word_start.tolist(),
            mask_id=tables.mask_id,
            seed=11,
            epoch=int(epochs[row]),
            row=int(names[row]),
            kind=kind,
            rate=rate,
            slots=slots,
            mask_share=mask_share,
            random_share=random_share,
        )
        here = slice(row * slots, (row + 1) * slots)
        real = weights[here] > 0
        assert shown[row].tolist() == expected
        assert dict(zip((index[here][real] - row * length).tolist(), labels[here][real].tolist(), strict=True)) == truth


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("word_tokens", [1, 5, 10, 40, 10_000])
@pytest.mark.parametrize("length", [64, 512])
def test_rate_and_shares_hold_for_words_of_any_length(kind, word_tokens, length):
    """Words of 5 to 40 tokens, or one endless word as in Chinese: still 15 %, and few rows without any prediction."""
    generator = np.random.default_rng(word_tokens)
    starts = np.zeros(VOCABULARY, bool)
    starts[100 : 100 + 150] = True
    tables = Masker(masker().special, starts, masker().ordinary, VOCABULARY - 1)
    begins = np.arange(length)[None, :] % word_tokens == 0
    ids = np.where(begins, generator.integers(100, 250, (600, length)), generator.integers(4, 100, (600, length)))
    ids = ids.astype(np.int32)
    numbers, slots = np.arange(600), slots_per_row(kind, 0.15, length)
    shown, index, labels, weights = mask_rows(
        tables,
        ids,
        np.ones_like(ids),
        Masking(kind=kind, rate=0.15),
        seed=3,
        epochs=0 * numbers,
        rows=numbers,
        slots=slots,
    )
    assert weights.sum() / ids.size == pytest.approx(0.15, rel=0.06)
    # The worst case is a budget of 9.6 tokens and groups of 16: then 40 % of such short rows stay without.
    assert (weights.reshape(600, -1).sum(axis=1) == 0).mean() < (0.45 if length == 64 else 0.001)
    if (word_tokens, length) == (1, 512):  # 46,000 draws; a random replacement is the true token once in 295
        seen, truth = shown.reshape(-1)[index][weights > 0], labels[weights > 0]
        assert (seen == VOCABULARY - 1).mean() == pytest.approx(0.8, abs=0.01)
        assert (seen == truth).mean() == pytest.approx(0.1 + 0.1 / 295, abs=0.01)


def test_span_lengths_are_geometric_whatever_the_processor():
    """Whole numbers, each at most one draw of 2^53 from 2^53 (1 - 0.8^n)."""
    exact = [2**53 - 2**53 * 4**n // 5**n for n in range(1, 10)]
    assert np.abs(LONGER_SPANS.astype(np.int64) - exact).max() <= 1


@pytest.mark.parametrize("share", [0.0, 2.0**-53, 0.1, 0.8, 0.7 + 0.2, 1.0 - 2.0**-53, 1.0, 0.9 + 0.1 + 2.0**-52])
def test_draws_below_a_share_are_those_whose_number_is(share):
    """Also next to the share itself, and at both ends of the 64 bits."""
    border = min(int(share * 2**53), 2**53 - 1) << 11
    near = [min(max(border + step, 0), 2**64 - 1) for step in (-2049, -2048, -1, 0, 1, 2047, 2048, 4096)]
    draws = np.array([0, *near, 2**64 - 1], np.uint64)
    draws = np.append(draws, np.random.default_rng(0).integers(0, 2**64, 10_000, dtype=np.uint64))
    assert np.array_equal(bits.below(draws, share), bits.uniform(draws) < share)
