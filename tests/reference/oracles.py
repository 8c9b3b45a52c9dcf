"""Slow, obvious versions: one number at a time, in plain Python, written from the descriptions rather than from the
code."""

import math
from functools import cache
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
    priority = [_priority(row_key, t, len(ids)) for t in range(len(ids))]
    begin_of = list(range(len(ids)))
    if kind != "token":
        begins = [word[0] for word in words]
        if kind == "span":
            begins = _spans(row_key, begins, priority, segments)
        for t in range(len(ids)):
            begin, longest = begins[word_of[t]], 16 if kind == "span" else 8
            begin_of[t] = begin + (t - begin) // longest * longest
    groups: dict[int, list[int]] = {}
    for t in candidates:
        groups.setdefault(priority[begin_of[t]], []).append(t)
    budget, edge = rate * len(candidates), uniform(extend(row_key, 2**32))
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
        action = uniform(extend(row_key, 2**33 + begin_of[t]))
        if action < mask_share:
            shown[t] = mask_id
        elif action < mask_share + random_share:
            shown[t] = ordinary[extend(row_key, 2**34 + t) % len(ordinary)]
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


def _priority(row_key: int, t: int, length: int) -> int:
    """31 bits: random ones, and the position in the lowest, as many as the row's length needs."""
    low = 1
    while low < length:
        low *= 2
    pair = extend(row_key, t // 2)
    half = pair >> 32 if t % 2 else pair & 0xFFFFFFFF
    return (half // 2) // low * low + t


def _spans(row_key: int, begins: list[int], priority: list[int], segments: list[int]) -> list[int]:
    """By word: where the best span that covers it begins. `begins`: first token of each word."""
    best = list(begins)
    for number, begin in enumerate(begins):
        draw = 1.0 - uniform(extend(row_key, 2**35 + begin))
        length = min(10, 1 + math.floor(math.log(draw) / math.log(0.8)))
        for word in range(number, min(number + length, len(begins))):
            if segments[begins[word]] == segments[begin] and priority[begin] < priority[best[word]]:
                best[word] = begin
    return best


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


def orthogonalized(matrix: np.ndarray) -> np.ndarray:
    """Four odd quintics on the singular values themselves, in float64; `optimal_quintics` finds them."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalized(matrix.T).T
    u, s, vt = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    s = s / (np.sqrt((s * s).sum()) + 1e-7)
    s = s / (1.01 * np.sqrt(np.sqrt((s**4).sum())) + 1e-7)
    for a, b, c in optimal_quintics(4, 2e-3):
        s = a * s + b * s**3 + c * s**5
    return (0.9 * u * s) @ vt


@cache
def optimal_quintics(steps: int, low: float) -> list[tuple[float, float, float]]:
    """Of each step, the odd quintic a x + b x^3 + c x^5 that is nearest to 1 on the interval that the step before left,
    from [low, 1] on (Remez), 1 % narrower from the second on for rounding."""
    high, found = 1.0, []
    for step in range(steps):
        q, r, error, before = (3 * low + high) / 4, (low + 3 * high) / 4, math.inf, None
        while before is None or abs(before - error) > 1e-14:
            before = error
            rows = [[x, x**3, x**5, sign] for x, sign in ((low, 1), (q, -1), (r, 1), (high, -1))]
            a, b, c, error = np.linalg.solve(np.array(rows), np.ones(4))
            q, r = np.sqrt((-3 * b + np.array([-1, 1]) * np.sqrt(9 * b * b - 20 * a * c)) / (10 * c))
        room = 1.01 if step else 1.0
        found.append((a / room, b / room**3, c / room**5))
        low, high = 1 - error, 1 + error
    return found


def muon(
    weight: np.ndarray, gradients: list[np.ndarray], rates: list[float], options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """(weight, momentum) of one matrix, in float64, by the descriptions that engines/optimizers.py names."""
    w, m = weight.astype(np.float64), np.zeros(weight.shape)
    for gradient, rate in zip(gradients, rates, strict=True):
        m = options.momentum * m + (1 - options.momentum) * gradient
        ahead = options.momentum * m + (1 - options.momentum) * gradient
        update = 0.2 * math.sqrt(max(weight.shape)) * orthogonalized(ahead)
        w = w - rate * options.weight_decay * w - rate * update
    return w, m
