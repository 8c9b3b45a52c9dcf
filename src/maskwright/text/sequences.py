"""DNA, RNA and proteins: FASTA and FASTQ files, and tokenizers of single letters or of k letters in a row."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Literal

from maskwright.core import storage
from maskwright.core.console import warn
from maskwright.core.errors import InputError
from maskwright.text.sample import MAX_BYTES, learn_from
from maskwright.text.sources import Sources
from maskwright.text.special_tokens import BERT, keyed, letters_of
from maskwright.text.tokenizer import wordpiece_of, write_tokenizer
from maskwright.text.unknown import fix_of
from maskwright.text.vocabulary import Vocabulary, read_vocabulary, token_strings

SequenceKind = Literal["characters", "kmer"]
Alphabet = Literal["dna", "protein"]
LETTERS: dict[Alphabet, str] = {"dna": "ACGT", "protein": "ACDEFGHIKLMNPQRSTVWY"}
AMBIGUOUS: dict[Alphabet, str] = {"dna": "NRYSWKMBDHVU-", "protein": "XBZJUO*-"}
"""IUPAC's codes for one of several bases or residues (Cornish-Bowden 1985, https://doi.org/10.1093/nar/13.9.3021), with
RNA's U, rare residues, stops and gaps."""
LARGEST = 1 << 20
LARGEST_OF_LETTERS, FEW_OTHERS, MANY_SINGLE = 64, 0.05, 0.3
"""Most tokens of a tokenizer of letters (ESM-2's has 33), and shares of tokens from which on they are misread."""


def make_tokenizer(
    sources: Sources,
    folder: str,
    kind: SequenceKind,
    alphabet: Alphabet | None = None,
    kmer: int = 6,
    max_bytes: int = MAX_BYTES,
) -> Vocabulary:
    """Writes a tokenizer of letters. Raises `InputError` for a folder that is not empty or a vocabulary too large.

    `characters`: a token is a letter of the alphabet or, without one, of the text, or of a sample of `max_bytes` of a
    larger text. `kmer`: a token is `kmer` plain letters in a row, or else a single letter; tokens do not overlap. The
    case of an alphabet's letters does not matter."""
    storage.require_empty(folder)
    if kind == "kmer" and alphabet is None:
        raise InputError("--kind kmer needs an alphabet", fix="give --alphabet dna or protein")
    counts = learn_from(
        sources, max_bytes, lambda pieces: _letters(piece.text.upper() if alphabet else piece.text for piece in pieces)
    )
    letters = [*LETTERS[alphabet], *AMBIGUOUS[alphabet]] if alphabet else sorted(counts)
    unknown = {letter: count for letter, count in counts.items() if letter not in set(letters)}
    if unknown:
        share = sum(unknown.values()) / counts.total()
        warn(f"{share:.2%} of the text has no token, such as {min(unknown)!r}, and becomes {BERT['unk']}")
    tokens = list(letters)
    if kind == "kmer":
        assert alphabet is not None
        if kmer < 2 or len(LETTERS[alphabet]) ** kmer > LARGEST:
            fix = "give from 2 to 10 for dna, 2 to 4 for protein"
            raise InputError(f"--kmer {kmer} gives too few or too many tokens", fix=fix)
        tokens += ["".join(letters) for letters in itertools.product(LETTERS[alphabet], repeat=kmer)]
    _write(folder, tokens, alphabet, f"[{LETTERS[alphabet]}]{{{kmer}}}|." if kind == "kmer" and alphabet else ".")
    return read_vocabulary(folder)


def misread(location: str, counts: Counter[str]) -> str | None:
    """What is wrong, and the fix, if a tokenizer of letters reads sequences of another kind; None for any other, and if
    nothing is wrong. `counts`: of the tokens in a sample."""
    singles = Counter({token: count for token, count in counts.items() if len(token) == 1})
    is_protein = {*LETTERS["protein"]} <= {*(tokens := token_strings(location))} and len(tokens) <= LARGEST_OF_LETTERS
    bases = sum(singles[letter] for letter in "ACGTUN") / max(counts.total(), 1)
    if is_protein and bases > 1 - FEW_OTHERS:
        what = f"{bases:.0%} of the letters are A, C, G, T, U or N, as in DNA, and are read as amino acids"
        return f"{what}: translate them first, or make a tokenizer with --alphabet dna"
    if "{" in (letters_of(location) or "") and singles.total() > MANY_SINGLE * counts.total():
        letter = max(singles, key=lambda letter: (singles[letter], letter))
        share = singles.total() / counts.total()
        what = f"{share:.0%} of the tokens are single letters, most often {letter}, which is in no k-mer"
        return f"{what}: {fix_of(letter)}"
    return None


def _letters(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    return counts


def _write(folder: str, tokens: list[str], alphabet: Alphabet | None, pattern: str) -> None:
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    tokenizer = wordpiece_of({token: index for index, token in enumerate([*BERT.values(), *tokens])})
    if alphabet:
        letters = sorted({*LETTERS[alphabet], *AMBIGUOUS[alphabet]} - {"*", "-"})
        capitals = [normalizers.Replace(letter.lower(), letter) for letter in letters]
        tokenizer.normalizer = normalizers.Sequence(capitals)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"(?m:{pattern})"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    write_tokenizer(
        folder, tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", **keyed(BERT), "letters": pattern}
    )
