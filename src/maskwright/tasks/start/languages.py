"""The languages of a token store, as a sample of its documents tells them."""

from __future__ import annotations

import math
from collections import Counter

from maskwright.core import extras
from maskwright.core.errors import TokenizerError
from maskwright.data.arrow_store import Judged
from maskwright.data.store import Split
from maskwright.text.records import SEQUENCE_ENDINGS
from maskwright.text.sources import file_kind
from maskwright.text.tokenizer import load_tokenizer

SAMPLE_DOCUMENTS = 2_000
"""Evenly spaced ones. With the model of the languages, they take about a second."""
SAMPLE_TOKENS = 256
"""From the beginning of each."""


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
