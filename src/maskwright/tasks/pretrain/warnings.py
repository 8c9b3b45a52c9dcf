"""Warnings about values and data that are allowed, but usually a mistake."""

from __future__ import annotations

import math
from collections.abc import Mapping

from maskwright.config.pretraining import RunConfig, masked_rates
from maskwright.core.console import several
from maskwright.data.opening import Store
from maskwright.data.store import TokenStore
from maskwright.engines.muon import GROWTH, INITIAL_RMS, LARGE_RMS, UPDATE_RMS
from maskwright.text.sources import PLAIN, file_kind

MOST_EPOCHS = 40
"""Epochs of BERT's training (arXiv:1810.04805, A.2). At RoBERTa's rate a token was then predicted six times."""
LEAST_HELD_OUT_DOCUMENTS = 100
"""Held-out documents that suffice. Shares of right predictions lie in 0 … 1, so their standard deviation between
documents is at most 0.5, and the standard error of a mean over 100 documents at most 5 points."""
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


def unusual_data(epochs: float, held_out: Mapping[str, TokenStore]) -> list[str]:
    """`epochs`: how often the run reads its text. `held_out`: the stores that it is judged by."""
    lines = []
    if epochs > MOST_EPOCHS:
        lines.append(
            f"the run reads its text {epochs:,.0f} times, and BERT read its own {MOST_EPOCHS} times: "
            "prepare more text, or lower schedule.steps"
        )
    for name, store in held_out.items():
        documents, part = documents_held_out(store), f" in {name}" if name else ""
        if 0 < documents < LEAST_HELD_OUT_DOCUMENTS:
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
