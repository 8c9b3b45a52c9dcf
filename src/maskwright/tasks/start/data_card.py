"""`data.json` of a run directory: what the run trains on, and what guessing by frequency would reach on its held-out
text. It is written at the start, so that a report needs neither the store nor the examples."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import extras, storage
from maskwright.core.errors import TokenizerError
from maskwright.core.secrets import redact_all
from maskwright.data.arrow_store import ArrowStore, Judged
from maskwright.data.batch import Batch
from maskwright.data.mixture import Mixture
from maskwright.data.opening import Store
from maskwright.data.store import Split
from maskwright.labels.dataset import Dataset
from maskwright.run.directory import DATA_CARD, RunDirectory
from maskwright.tasks.start.prepared import Prepared
from maskwright.text.records import SEQUENCE_ENDINGS
from maskwright.text.sources import file_kind
from maskwright.text.tokenizer import load_tokenizer
from maskwright.training.job import Job

Int64 = NDArray[np.int64]
MOST_COUNTED_TOKENS = 1 << 26
"""Of a longer text, the frequencies are those of evenly spaced documents, so that counting takes about a second."""
AT_ONCE_TOKENS = 1 << 22
MOST_SOURCES = 20
"""Files that are named."""
MOST_WORDS = 100
"""Of a command that are kept: a shell makes a word for each file of `corpus/*.txt`."""
SAMPLE_DOCUMENTS = 2_000
"""Evenly spaced ones. With the model of the languages, they take about a second."""
SAMPLE_TOKENS = 256
"""From the beginning of each."""


def write_card(directory: RunDirectory, ready: Prepared, job: Job) -> None:
    """Once for a run; a later start, which may be on a machine that has only fetched the run, adds it if need be."""
    if not os.path.exists(directory.path(DATA_CARD)):
        chance = {} if job.objective.chance is None else {"chance": job.objective.chance}
        storage.write_json(directory.path(DATA_CARD), redact_all(ready.data_card() | chance))


def pretraining_card(store: Store, held_out: Mapping[str, Sequence[Batch]], *, own: bool) -> dict[str, Any]:
    """`held_out`: validation batches by the name of their set. `own`: whether they are from the sources of `store`
    itself."""
    parts: dict[str, Judged] = (
        {"": store} if not isinstance(store, Mixture) else dict(zip(store.names, store.stores, strict=True))
    )
    sides = {name: part.split("train").sampled() for name, part in parts.items()}
    counts = {name: token_counts(side, store.vocabulary.size) for name, side in sides.items()}
    together = np.sum([*counts.values()], axis=0)
    return {
        "kind": "text",
        "sources": [
            {
                "name": name,
                **_described(part),
                "documents_by_tokens": by_powers_of_two(sides[name].document_sizes()),
                "languages": languages_of(part, sides[name]),
            }
            for name, part in parts.items()
        ],
        "unigram": {
            name: dict(zip(("loss", "accuracy"), unigram(counts[name] if own else together, batches), strict=True))
            for name, batches in held_out.items()
        },
    }


def labelled_card(dataset: Dataset, sizes: Int64) -> dict[str, Any]:
    """`sizes`: tokens of each training example."""
    report = dataset.report
    return {
        "kind": "labelled",
        "examples": report.sizes,
        "labels": report.counts,
        "examples_by_tokens": by_powers_of_two(sizes),
        "findings": report.warnings(),
        "notes": [*report.notes],
    }


def _described(store: Judged) -> dict[str, Any]:
    manifest = store.manifest
    named, command = manifest.get("sources", []), manifest.get("command", [])
    return {
        "location": store.location,
        "format": "arrow" if isinstance(store, ArrowStore) else "store",
        "fingerprint": store.fingerprint,
        "vocab_size": store.vocabulary.size,
        "splits": manifest["splits"],
        **{key: manifest[key] for key in ("counts", "options", "versions") if key in manifest},
        **({"command": command[:MOST_WORDS], "command_words": len(command)} if command else {}),
        "files": [one["location"] for one in named[:MOST_SOURCES]],
        "file_count": len(named),
    }


def languages_of(store: Judged, split: Split) -> dict[str, int] | None:
    """Documents of the sample by language, the most frequent first; none where there is no language to be told, as in
    DNA. None where py3langid is not installed."""
    if not extras.installed("py3langid"):
        return None
    files = [str(one["location"]) for one in store.manifest.get("sources", [])]
    if files and all(file_kind(name) in SEQUENCE_ENDINGS for name in files):
        return {}
    from maskwright.text.cleaning.language import language_of

    return dict(Counter(language_of(text)[0] for text in _sample(store, split)).most_common())


def _sample(store: Judged, split: Split) -> list[str]:
    """Beginnings of documents; none with a tokenizer that makes no text of ids."""
    try:
        tokenizer = load_tokenizer(store.tokenizer_folder, special_tokens_are_text=False)
    except TokenizerError:  # training needs its vocabulary alone
        return []
    if tokenizer.decoder is None:
        return []
    apart = max(1, math.ceil(split.documents / SAMPLE_DOCUMENTS))
    ids = split.beginnings(SAMPLE_TOKENS, apart)
    return [text for text in tokenizer.decode_batch([one.tolist() for one in ids]) if text.strip()]


def by_powers_of_two(sizes: Int64) -> dict[str, int]:
    """How many there are by size: under n are those of n / 2 to n - 1, where n is a power of two."""
    if not len(sizes):
        return {}
    digits = np.frexp(sizes.astype(np.float64))[1]
    return {str(1 << power): int(count) for power, count in enumerate(np.bincount(digits)) if count}


def token_counts(split: Split, vocab_size: int) -> Int64:
    """[vocab_size]: how often each id occurs, in all of the text or in `MOST_COUNTED_TOKENS` of it."""
    return split.counts(vocab_size, apart=math.ceil(split.tokens / MOST_COUNTED_TOKENS))


def unigram(counts: Int64, batches: Sequence[Batch]) -> tuple[float, float]:
    """(loss, accuracy) of guessing by these frequencies alone, add-one smoothed."""
    labels = np.concatenate([batch.labels[batch.weights > 0] for batch in batches])
    if not len(labels):
        return 0.0, 0.0
    smoothed = counts.astype(np.float64) + 1.0
    log_share = np.log(smoothed / smoothed.sum())
    return float(-log_share[labels].mean()), float((labels == counts.argmax()).mean())
