"""Slow, obvious versions: one number at a time, in plain Python, written from the descriptions rather than from the
code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

MASK_64 = 2**64 - 1


def mix(x: int) -> int:
    """SplitMix64's finaliser."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK_64
    return x ^ (x >> 31)


def extend(key: int, number: int) -> int:
    return mix((key + (number + 1) * 0x9E3779B97F4A7C15) & MASK_64)


def key(*numbers: int) -> int:
    result = 0
    for number in numbers:
        result = extend(result, number)
    return result


def uniform(bits: int) -> float:
    return (bits >> 11) / 2**53


def order(seed: int, epoch: int, index: int, size: int) -> int:
    a = 1
    while a * a < size:
        a += 1
    b = math.ceil(size / a)
    while True:
        left, right = index // b, index % b
        for number in (0, 2, 4):
            left = (left + extend(key(seed, epoch, 1, number), right)) % a
            right = (right + extend(key(seed, epoch, 1, number + 1), left)) % b
        index = left * b + right
        if index < size:
            return index


def best_fit_rows(sizes: list[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing by looking at every open row for every item; rows as sorted sizes."""
    rows: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        fitting = [row for row in rows if sum(row) + size <= capacity]
        if fitting:
            max(fitting, key=sum).append(size)
        else:
            rows.append([size])
    return sorted(sorted(row) for row in rows)


def full_sentences(stories: list[list[list[int]]], seq_len: int, bos: int, eos: int) -> list[list[int]]:
    """fairseq's blocks: `<s>` and then units, each a sentence with `</s>`, a lone `</s>` between documents."""
    units: list[list[int]] = []
    for number, story in enumerate(stories):
        if number:
            units.append([eos])
        for ids in story:
            while len(ids) > seq_len - 2:
                units.append(ids[: seq_len - 2])
                ids = ids[seq_len - 2 :]
            units.append([*ids, eos])
    rows: list[list[int]] = []
    row: list[int] = []
    for unit in units:
        if row and len(row) + len(unit) > seq_len - 1:
            rows.append([bos, *row])
            row = []
        row = row + unit
    return [*rows, [bos, *row]]


def mask_row(
    ids: list[int],
    segments: list[int],
    *,
    special: set[int],
    word_start: list[bool],
    mask_id: int,
    seed: int,
    epoch: int,
    row: int,
    kind: str,
    rate: float,
    slots: int,
    mask_share: float,
    random_share: float,
) -> tuple[list[int], dict[int, int]]:
    """(ids as shown, {position: label})."""
    row_key = extend(extend(key(seed, 2), epoch), row)
    candidates = [t for t in range(len(ids)) if segments[t] > 0 and ids[t] not in special]
    words, word_of = _words(ids, segments, special, word_start)
    if kind == "token":
        group_key = {t: extend(row_key, t) for t in range(len(ids))}
    else:
        per_word = [extend(row_key, w) for w in range(len(words))]
        first_word = list(range(len(words)))
        if kind == "span":
            per_word, first_word = _spans(per_word, [segments[word[0]] for word in words])
        group_key = {}
        for t in range(len(ids)):
            word_key = per_word[word_of[t]]
            piece = (t - words[first_word[word_of[t]]][0]) // (16 if kind == "span" else 8)
            group_key[t] = word_key if piece == 0 else extend(word_key, 2**34 + piece)
    groups: dict[int, list[int]] = {}
    for t in candidates:
        groups.setdefault(group_key[t], []).append(t)
    budget, edge = rate * len(candidates), uniform(extend(row_key, 2**32 + 1))
    assert slots >= len(candidates) or slots >= budget
    chosen: list[int] = []
    taken_before = 0
    for group in sorted(groups):
        size = len(groups[group])
        if taken_before + edge * size < budget:
            chosen += groups[group]
        taken_before += size
    shown, labels = list(ids), {}
    ordinary = [i for i in range(len(word_start)) if i not in special]
    for t in chosen:
        labels[t] = ids[t]
        mixed = extend(group_key[t], 2**32 + 2)
        action = uniform(mixed)
        if action < mask_share:
            shown[t] = mask_id
        elif action < mask_share + random_share:
            shown[t] = ordinary[extend(mixed, 2**33 + t) % len(ordinary)]
    return shown, labels


def _words(
    ids: list[int], segments: list[int], special: set[int], word_start: list[bool]
) -> tuple[list[list[int]], list[int]]:
    words: list[list[int]] = []
    word_of = []
    for t, index in enumerate(ids):
        begins = (
            t == 0 or word_start[index] or index in special or ids[t - 1] in special or segments[t] != segments[t - 1]
        )
        if begins:
            words.append([])
        words[-1].append(t)
        word_of.append(len(words) - 1)
    return words, word_of


def _spans(per_word: list[int], segment_of_word: list[int]) -> tuple[list[int], list[int]]:
    """Best priority that covers each word, and the word where that span starts."""
    best, starts = list(per_word), list(range(len(per_word)))
    for start, priority in enumerate(per_word):
        draw = 1.0 - uniform(extend(priority, 2**32 + 3))
        length = min(10, 1 + math.floor(math.log(draw) / math.log(0.8)))
        for word in range(start, min(start + length, len(per_word))):
            if segment_of_word[word] == segment_of_word[start] and priority < best[word]:
                best[word], starts[word] = priority, start
    return best, starts


def adamw(
    weight: np.ndarray, gradients: list[np.ndarray], rates: list[float], options: Any, decay: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loshchilov and Hutter 2019, algorithm 2, in float64: (weight, first moment, second moment)."""
    w = weight.astype(np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        g = gradient.astype(np.float64)
        m = options.beta1 * m + (1 - options.beta1) * g
        v = options.beta2 * v + (1 - options.beta2) * g * g
        step = (m / (1 - options.beta1**t)) / (np.sqrt(v / (1 - options.beta2**t)) + options.eps)
        w = w - rate * decay * w - rate * step
    return w, m, v
