"""What a tokenizer drops of words before it looks for tokens: vowel signs, accents, the joiners without width inside a
word, and capitals. BERT's rules for lower case drop all but these joiners, which its other rules drop."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

from maskwright.core.console import warn

JOINERS = "\u200c\u200d"
MANY = 0.1
"""Share of words from which there is a warning."""
SAMPLE_TEXTS, SAMPLE_CHARACTERS = 2_000, 10_000
CAPITAL_INSIDE = re.compile(r"^[^a-z]*[a-z][^A-Z]*[A-Z]")
"""In 0 to 1.4 % of the words of prose and documentation, and 78 % of the formulas of molecules (SMILES). Words that are
not of ASCII alone do not count: a line of Chinese is one, with names such as iPhone in it."""
CASED = "use the tokenizer of a cased model, or train one without --lowercase"
WITH_JOINERS = "train one with --kind unigram or bpe, which keep joiners"


def warn_of_dropped_marks(where: str, normalizer: Any, texts: Iterable[str]) -> None:
    """Warns if `normalizer`, None or one of `tokenizers`, drops marks in many words of the first texts, or capitals
    that many have behind small letters."""
    if normalizer is None:
        return
    words, read = Counter[str](), 0
    for text in islice(texts, SAMPLE_TEXTS):
        words.update(unicodedata.normalize("NFC", text[:SAMPLE_CHARACTERS]).split())
        if (read := read + len(text)) > SAMPLE_TEXTS * SAMPLE_CHARACTERS:  # whole books
            break
    marked = [word for word in words if not word.isascii() and any(map(str.isalpha, word)) and _marks(word)]
    normal = ((word, normalizer.normalize_str(word)) for word in marked)
    changed = {word: short for word, short in normal if _marks(short) < _marks(word) and short.strip()}
    if (dropped := sum(words[word] for word in changed)) > MANY * words.total():
        word = max(changed, key=lambda word: words[word])
        line = f"{where}: drops vowel signs, accents or joiners of {dropped / words.total():.0%} of the words, such as "
        line += f"{word}, which becomes {changed[word]}: words that differ in nothing else become one"
        joined = word.translate(dict.fromkeys(map(ord, JOINERS)))
        warn(f"{line}; {WITH_JOINERS if _marks(joined) == _marks(changed[word]) else CASED}")
    lowers = normalizer.normalize_str("A") == "a"
    cased = [word for word in words if lowers and word.isascii() and CAPITAL_INSIDE.match(word)]
    if (lowered := sum(words[word] for word in cased)) > MANY * words.total():
        line = f"{where}: lowers the case, and {lowered / words.total():.0%} of the words have capitals inside, as "
        line += f"{max(cased, key=lambda word: words[word])[:30]} does: formulas or code"
        warn(f"{line}: words that differ in nothing else become one; {CASED}")


def _marks(word: str) -> int:
    return sum(unicodedata.category(c)[0] == "M" or c in JOINERS for c in unicodedata.normalize("NFD", word))
