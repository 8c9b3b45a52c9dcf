"""Warnings about values and data that are allowed, but usually a mistake."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from maskwright.config.pretraining import RunConfig, masked_rates
from maskwright.core.console import several
from maskwright.data.masking import LONGEST_GROUP_TOKENS
from maskwright.data.opening import Store
from maskwright.data.store import TokenStore
from maskwright.engines.muon import GROWTH, INITIAL_RMS, LARGE_RMS, UPDATE_RMS
from maskwright.tasks.start.data_card import SAMPLE_DOCUMENTS, SAMPLE_TOKENS
from maskwright.text.records import SEQUENCE_ENDINGS
from maskwright.text.sources import PLAIN, file_kind

MOST_EPOCHS = 40
"""Epochs of BERT's training (arXiv:1810.04805, A.2). At RoBERTa's rate a token was then predicted six times."""
LEAST_HELD_OUT_DOCUMENTS = 100
"""Held-out documents that suffice. Shares of right predictions lie in 0 … 1, so their standard deviation between
documents is at most 0.5, and the standard error of a mean over 100 documents at most 5 points."""
LEAST_LONG, ALONE = 0.01, 0.03
"""Shares of the tokens: in documents of more than half a row, and inside words."""
MOST_HELD_OUT = 0.3
"""The largest --valid-fraction that a warning proposes."""


def unusual_settings(config: RunConfig) -> list[str]:
    lines, rates = list[str](), masked_rates(config)
    if max(rates, default=0.0) > 0.5:
        lines.append(
            f"masking.rate {max(rates):g}: rows keep less than half of their tokens, and short ones may keep none"
        )
    if config.optimizer.learning_rate > 0.05:
        lines.append(f"optimizer.learning_rate {config.optimizer.learning_rate:g} is far above the usual 1e-4 to 1e-2")
    if config.optimizer.kind == "muon" and (rms := muon_rms(config, config.optimizer.weight_decay)) > LARGE_RMS:
        decays = (0.03, 0.1, 0.3, 1.0, 3.0)
        enough = next((decay for decay in decays if muon_rms(config, decay) < 0.75 * LARGE_RMS), 10.0)
        lines.append(
            f"optimizer.weight_decay {config.optimizer.weight_decay:g}: Muon's updates make the matrices some "
            f"{rms / INITIAL_RMS:.0f} times as large as they begin, and such a model fine-tunes badly: "
            f"--set optimizer.weight_decay={enough:g}, or a lower optimizer.learning_rate as well"
        )
    if not rates or config.masking.mask_share == 0.0:
        key = "mask_share 0" if rates else "causal_share 1"
        lines.append(f"masking.{key}: the model never sees <mask>, so `fill` and most evaluations are useless")
    return lines


def muon_rms(config: RunConfig, weight_decay: float) -> float:
    """The root mean square of Muon's matrices at the end of the run, roughly: each update adds its square, and decay
    removes its share (equilibrium: Kosson et al. 2023, arXiv 2305.17212)."""
    steps, square = config.steps, 0.0
    length = max(1, steps // 1000)
    for step in range(0, steps, length):
        rate = config.learning_rate_at(step)
        lost = 2.0 * rate * weight_decay * length
        added = (GROWTH * UPDATE_RMS * rate) ** 2 * length
        square = square * math.exp(-lost) + (added * -math.expm1(-lost) / lost if lost else added)
    return math.sqrt(square)


def unusual_text(config: RunConfig, stores: Sequence[TokenStore], *, is_random: bool) -> list[str]:
    """Warnings about the documents' lengths and words, by a sample. `is_random`: the run begins with random weights."""
    sides = [(store, store.split("train").sampled()) for store in stores]
    sizes, row = np.concatenate([side.document_sizes() for _, side in sides]) + 2, config.data.seq_len
    lines, kinds = list[str](), {stage.config.masking.kind for stage in config.stages}
    if is_random and config.data.packing == "documents" and sizes[sizes > row / 2].sum() < LEAST_LONG * sizes.sum():
        lines.append(
            f"data.seq_len {row}: {1 - LEAST_LONG:.0%} of the text is in documents of at most {row // 2} tokens, so "
            "that the model learns nothing about longer texts: prepare whole documents (see --layout), or set "
            f"data.seq_len={1 << int(np.quantile(sizes, 0.99) - 1).bit_length()}"
        )
    for store, side in sides if kinds != {"token"} else ():
        apart = max(1, side.documents // SAMPLE_DOCUMENTS)
        documents = [*side.beginnings(SAMPLE_TOKENS, apart)]
        begins = np.array(store.vocabulary.word_start, bool)[np.concatenate(documents)]
        if begins.mean() > 1 - ALONE and "whole_word" in kinds:
            lines.append(
                f"masking.kind whole_word: nearly every token of {store.location} is a word, as in Chinese with "
                "WordPiece, so that it hides single tokens: --set masking.kind=span hides neighbours together"
            )
        elif (length := len(begins) / (begins.sum() + len(documents))) > LONGEST_GROUP_TOKENS["whole_word"]:
            kind = min(kinds - {"token"})
            lines.append(
                f"masking.kind {kind}: words of {store.location} have {length:.0f} tokens, as in "
                f"text without spaces, and are hidden in runs of {LONGEST_GROUP_TOKENS[kind]}: --set masking.kind="
                "token, or put spaces between words and train another tokenizer"
            )
    return lines


def unusual_data(epochs: Mapping[str, float], held_out: Mapping[str, TokenStore], seq_len: int) -> list[str]:
    """`epochs`: how often the run reads each of its stores, by name, in rows of `seq_len`. `held_out`: the stores that
    it is judged by."""
    lines = []
    if often := {name: times for name, times in epochs.items() if times > MOST_EPOCHS}:
        name = max(often, key=lambda name: often[name])
        others = f", and {several(len(often) - 1, 'other')} above {MOST_EPOCHS} times" if len(often) > 1 else ""
        lines.append(
            f"the run reads {name or 'its text'} {often[name]:,.0f} times{others}, and BERT read its own {MOST_EPOCHS} "
            f"times: prepare more text, or lower schedule.steps{' or its weight' if name else ''}"
        )
    for name, store in held_out.items():
        documents, part = documents_held_out(store), f" in {name}" if name else ""
        is_sequence = all(file_kind(source["location"]) in SEQUENCE_ENDINGS for source in store.sources())
        rows = store.split("valid").tokens // seq_len if is_sequence else 0  # a chromosome is one document
        if 0 < documents < LEAST_HELD_OUT_DOCUMENTS and rows < LEAST_HELD_OUT_DOCUMENTS:
            lines.append(
                f"only {several(documents, 'document')} {'is' if documents == 1 else 'are'} held out{part}, too few to "
                f"compare runs by: {_more_held_out(store, documents)}"
            )
    return lines


def documents_held_out(store: Store) -> int:
    return int(store.manifest["splits"]["valid"]["documents"])


def _more_held_out(store: TokenStore, documents: int) -> str:
    """How to hold out more. The default share is the same for a small text, so that documents stay held out when the
    text grows."""
    if "valid_files" in store.manifest.get("options", {}):
        return "name more files as --valid-files"
    share = LEAST_HELD_OUT_DOCUMENTS / (documents + int(store.manifest["splits"]["train"]["documents"]))
    if share > MOST_HELD_OUT:
        by_file = store.manifest.get("options", {}).get("layout") == "file"
        if by_file and any(file_kind(source["location"]) == PLAIN for source in store.sources()):
            return "add more text, or prepare with --layout lines or sentences if a file has several"
        return "add more text"
    return f"prepare into another folder with --valid-fraction {math.ceil(100 * share) / 100:g}"
