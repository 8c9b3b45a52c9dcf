"""`data.json` of a run directory: what the run trains on, and the result of guessing by frequency on its held-out text.
It is written at the start, so that a report needs neither the store nor the examples."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from maskwright.core import extras, storage
from maskwright.core.errors import TokenizerError
from maskwright.core.secrets import redact_all
from maskwright.data.batch import Batch
from maskwright.data.manifest import sources_in
from maskwright.data.mixture import Mixture
from maskwright.data.opening import Store
from maskwright.data.store import Split, TokenStore
from maskwright.labels.dataset import Dataset
from maskwright.run.directory import DATA_CARD, RunDirectory
from maskwright.tasks.start.prepared import Prepared
from maskwright.text.arrays import Int64
from maskwright.text.records import SEQUENCE_ENDINGS
from maskwright.text.sources import file_kind
from maskwright.text.tokenizer import load_tokenizer
from maskwright.training.job import Job

MOST_COUNTED_TOKENS = 1 << 26
"""In a longer text, evenly spaced documents are counted instead of all, so that counting lasts about a second."""
MOST_SOURCES = 20
"""Most source files that the card names."""
MOST_WORDS = 100
"""Most words of a command that are kept, since a shell makes a word for each file of `corpus/*.txt`."""
SAMPLE_DOCUMENTS = 2_000
"""Evenly spaced documents whose language is identified, which lasts about a second."""
SAMPLE_TOKENS = 256
"""Tokens from the beginning of each sampled document."""


def write_card(directory: RunDirectory, ready: Prepared, job: Job) -> None:
    """Writes the card once for a run. A later start adds a missing card, as on a machine that has only fetched
    the run."""
    if not os.path.exists(directory.path(DATA_CARD)):
        chance = {} if job.objective.chance is None else {"chance": job.objective.chance}
        storage.write_json(directory.path(DATA_CARD), redact_all(ready.data_card() | chance))


def pretraining_card(store: Store, held_out: Mapping[str, Sequence[Batch]], *, of_store: bool) -> dict[str, Any]:
    """The card of a pretraining run. `held_out`: validation batches by the name of their set. `of_store`: whether they
    are held out of the sources of `store` itself."""
    parts: dict[str, TokenStore] = (
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
            name: dict(zip(("loss", "accuracy"), unigram(counts[name] if of_store else together, batches), strict=True))
            for name, batches in held_out.items()
        },
    }


def labelled_card(dataset: Dataset, sizes: Int64) -> dict[str, Any]:
    """The card of a fine-tuned run. `sizes`: tokens of each training example."""
    report = dataset.report
    return {
        "kind": "labelled",
        "examples": report.sizes,
        "labels": report.counts,
        "examples_by_tokens": by_powers_of_two(sizes),
        "findings": report.warnings(),
        "notes": [*report.notes],
    }


def _described(store: TokenStore) -> dict[str, Any]:
    manifest = store.manifest
    command = manifest.get("command", [])
    return {
        "location": store.location,
        "fingerprint": store.fingerprint,
        "vocab_size": store.vocabulary.size,
        "splits": manifest["splits"],
        **{key: manifest[key] for key in ("counts", "options", "versions") if key in manifest},
        **({"command": command[:MOST_WORDS], "command_words": len(command)} if command else {}),
        "files": [source["location"] for source in islice(store.sources(), MOST_SOURCES)],
        "file_count": sources_in(manifest)[0],
    }


def languages_of(store: TokenStore, split: Split) -> dict[str, int] | None:
    """Documents of the sample by language, the most frequent first. Empty if the text has no language, such as DNA;
    None if py3langid is not installed."""
    if not extras.installed("py3langid"):
        return None
    names = (str(source["location"]) for source in store.sources())
    if sources_in(store.manifest)[0] and all(file_kind(name) in SEQUENCE_ENDINGS for name in names):
        return {}
    from maskwright.text.cleaning.language import language_of

    return dict(Counter(language_of(text)[0] for text in _sample(store, split)).most_common())


def _sample(store: TokenStore, split: Split) -> list[str]:
    """Beginnings of documents; empty with a tokenizer that cannot decode."""
    try:
        tokenizer = load_tokenizer(store.tokenizer_folder, special_tokens_are_text=False)
    except TokenizerError:  # training needs only the vocabulary
        return []
    if tokenizer.decoder is None:
        return []
    apart = max(1, math.ceil(split.documents / SAMPLE_DOCUMENTS))
    ids = split.beginnings(SAMPLE_TOKENS, apart)
    return [text for text in tokenizer.decode_batch([row.tolist() for row in ids]) if text.strip()]


def by_powers_of_two(sizes: Int64) -> dict[str, int]:
    """Counts by size: key n, a power of two, counts the sizes from n / 2 to n - 1."""
    if not len(sizes):
        return {}
    digits = np.frexp(sizes.astype(np.float64))[1]
    return {str(1 << power): int(count) for power, count in enumerate(np.bincount(digits)) if count}


def token_counts(split: Split, vocab_size: int) -> Int64:
    """[vocab_size]: how often each id occurs, in all of the text or, if it is long, in evenly spaced documents of some
    shards (about `MOST_COUNTED_TOKENS`)."""
    part = split.sampled()
    return part.counts(vocab_size, apart=math.ceil(part.tokens / MOST_COUNTED_TOKENS))


def unigram(counts: Int64, batches: Sequence[Batch]) -> tuple[float, float]:
    """(loss, accuracy) of guessing by these frequencies alone, add-one smoothed."""
    labels = np.concatenate([batch.labels[batch.weights > 0] for batch in batches])
    if not len(labels):
        return 0.0, 0.0
    smoothed = counts.astype(np.float64) + 1.0
    log_share = np.log(smoothed / smoothed.sum())
    return float(-log_share[labels].mean()), float((labels == counts.argmax()).mean())
