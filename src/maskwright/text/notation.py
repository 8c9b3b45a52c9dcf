"""Documents that may not be plain text: those in the notation of data, markup or another tokenizer, whose brackets,
tags and marks would become tokens, lines between documents, and windows or k-mers that overlap."""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from maskwright.core.console import warn
from maskwright.text.document import Document

BEGINNING_CHARACTERS, SHOWN_CHARACTERS = 1_000, 60
HEAD_CHARACTERS, TAIL_CHARACTERS = 64, 100_000
"""What has to overlap, and how much of the document before is searched."""
MANY = 0.1
"""Share of documents from which on there is a warning."""
MANY_SEPARATORS = 0.01
SEPARATOR, NUMBERS, DECOMPOSED, OVERLAP = "separator", "numbers", "decomposed", "overlap"
KMERS = "k-mers"
NOTATIONS = {
    "list": (
        "are lists, whose brackets and quotes become tokens",
        'save them as JSON lines, such as {"text": ["first", "second"]}, where lists of words become text',
    ),
    "object": (
        "are objects as in JSON, whose keys become tokens",
        "save them as JSON lines in a file whose name ends in .jsonl",
    ),
    "markup": (
        "have tags of HTML or XML, which become tokens",
        "extract the text first, such as with trafilatura or BeautifulSoup",
    ),
    "rtf": (
        "are RTF, whose control words become tokens",
        "extract the text first, such as with striprtf",
    ),
    "entities": (
        "have entities of HTML such as &amp;, which become tokens",
        "decode them first, such as with html.unescape(text) in Python",
    ),
    "escapes": (
        r"have line ends or letters written out as \n or \u00e9, which become tokens",
        r'decode them first, such as with text.replace("\\n", "\n") in Python',
    ),
    "pieces": (
        "have another tokenizer's marks (▁the, lo@@ wer, go ##ing, <unk>, @-@), which become tokens",
        "give the text from before that step, or join them, such as with spm_decode or sed 's/@@ //g'",
    ),
    NUMBERS: (
        "are numbers alone, as ids of another tokenizer are",
        "give the text that they were made from; for items or events, train a tokenizer with --kind words",
    ),
    KMERS: (
        "are overlapping k-mers, which reveal a masked token in its neighbours, so that masks teach little",
        "give the sequences without spaces, and train a tokenizer with --kind kmer",
    ),
    "base64": (
        "are base64, as warc2text and Bitextor write text, whose letters become tokens",
        "decode each line first, such as with base64.b64decode(line) in Python",
    ),
    "mojibake": (
        "have letters that were decoded with a wrong encoding, such as Ã© for é",
        "read the original again with its own --encoding, or repair the text first, such as with ftfy",
    ),
    DECOMPOSED: (
        "have letters in two characters (e and an accent, Unicode's NFD), whose tokens differ from é in one (NFC)",
        "normalize the text first, such as with unicodedata.normalize('NFC', text) in Python",
    ),
    SEPARATOR: (
        "are lines that separate documents, while each line between them is a document of its own",
        "put blank lines in their place, and give --layout sentences",
    ),
    OVERLAP: (
        "begin inside the document before, so that held-out text is trained on too and its loss is too low",
        "cut the text without overlap, or hold whole files out with --valid-files",
    ),
}
"""Kind -> (description of such documents, fix)."""
Noted = Mapping[str, tuple[int, str]]
"""Kind -> (number of documents, the first one's place and beginning)."""
QUOTED = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
LIST = re.compile(rf"[\[(][\[(\s]*{QUOTED}\s*(?:,\s*)?(?:{QUOTED}|\])")
OBJECT = re.compile(rf"(?:\[\s*)?\{{\s*{QUOTED}\s*:")
TAGS = "html|head|body|div|span|p|br|ul|ol|li|table|tr|td|th|h[1-6]|img|strong|em|font|script|style|doc|title"
MARKUP = re.compile(rf"<(?:!doctype\s|\?xml\s|/?(?:{TAGS})(?:\s[^<>]*)?/?>|a\s+href)", re.IGNORECASE)
SEPARATORS = re.compile(r"<\|endoftext\|>|([-=*_#~.+])(?: ?\1){2,}")
ENTITIES = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#\d{2,5}|#x[\da-f]{2,4});", re.IGNORECASE)
ESCAPES = re.compile(r"""(?:\\n(?!["'a-z])|\\u[\da-fA-F]{4}).*(?:\\n(?!["'a-z])|\\u[\da-fA-F]{4})""")
PIECES = re.compile(r"(?:^| )▁\S+ .*▁|\w@@ \w|\w ##\w|<unk>|\[UNK\]| @-@ |(?:^| )Ġ\S+ Ġ\S+ Ġ|\wĠ\w+Ġ\w+Ġ")
MOJIBAKE = re.compile("Ã[\x80-\xba\xbc-\xbfœŸ]|Â[\xa0-\xba\xbc-\xbf]|â€|ï¿½|(?:[ÐÑ][\x80-\xbf\u2010-\u2122]){2}")
"""UTF-8 that was read as Latin-1 or Windows-1252: accents, signs, quotes, U+FFFD, Cyrillic."""
BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4}){16,}")
OVERLAPPING = re.compile(r"(?:[^\W\d_]([^\W\d_]+)\s(?=\1[^\W\d_]\b)){7}")
MOSTLY_NUMBERS = re.compile(r"\d+(?:[ \t]\d+){7,}[ \t]*")


def notation_of(document: Document) -> str:
    """The kind of notation that a document's text is in, by its beginning; empty for plain text."""
    text = document.parts[0]
    beginning = text[:BEGINNING_CHARACTERS]
    if text[0] in "[({":
        if LIST.match(beginning):
            return "list"
        if OBJECT.match(beginning):
            return "object"
        if beginning.startswith(r"{\rtf"):
            return "rtf"
    if (found := beginning.find("<")) >= 0 and MARKUP.search(beginning, found):
        return "markup"
    if text[0] in "<-=*_#~.+" and not document.has_sentences and SEPARATORS.fullmatch(text):
        return SEPARATOR
    if "&" in beginning and ENTITIES.search(beginning):
        return "entities"
    if "\\" in beginning and "\n" not in beginning and ESCAPES.search(beginning):
        return "escapes"
    if any(mark in beginning for mark in ("@@ ", " ##", "<unk>", "[UNK]", "@-@")) and PIECES.search(beginning):
        return "pieces"
    if text[0].isdigit() and MOSTLY_NUMBERS.fullmatch(beginning):
        return NUMBERS
    if OVERLAPPING.match(beginning):
        return KMERS
    if beginning.isascii():
        return "base64" if _is_base64(beginning) else ""
    if ("▁" in beginning or "Ġ" in beginning) and PIECES.search(beginning):
        return "pieces"
    if any(sign in beginning for sign in ("Ã", "Â", "â€", "ï¿½", "Ð", "Ñ")) and MOJIBAKE.search(beginning):
        return "mojibake"
    return DECOMPOSED if is_decomposed(beginning) else ""


def is_decomposed(text: str) -> bool:
    return len(unicodedata.normalize("NFC", text)) < len(text)


def _is_base64(beginning: str) -> bool:
    """Whether a text begins with base64 of a text, which letters of proteins or DNA decode to by chance alone."""
    if " " in beginning[:64] or not (found := BASE64.match(beginning)):
        return False
    decoded = base64.b64decode(found[0]).decode(errors="replace")
    # The last character may be cut. White space is joined, since to Python no-break spaces are not printable.
    return "".join(decoded[:-1].split()).isprintable() and "\ufffd" not in decoded[:-3]


def without_effect(kind: str, normalizer: Any) -> set[str]:
    """Notations that are no fault for a tokenizer. `kind`: as in `Vocabulary`. `normalizer`: None or one of
    `tokenizers`. SentencePiece's rules compose é there, but lose the tone of a decomposed ế: it becomes ê."""
    letters = [(letter, unicodedata.normalize("NFD", letter)) for letter in ("é", "ế")]
    composes = normalizer is not None and all(len({*map(normalizer.normalize_str, pair)}) == 1 for pair in letters)
    return {*([NUMBERS] if kind == "words" else []), *([DECOMPOSED] if composes else [])}


def overlaps(before: str, text: str) -> bool:
    """Whether a text begins inside the one before, as overlapping windows do: not where that begins, nor in a run."""
    head = text[:HEAD_CHARACTERS]
    is_candidate = len(head) == HEAD_CHARACTERS and len({*head}) > 3 and not before.startswith(head)
    return is_candidate and before.find(head, 1) > 0  # last, since it reads the whole tail


def beginning_of(place: str, text: str) -> str:
    """A document's place and beginning."""
    return f"{place}: {' '.join(text[:SHOWN_CHARACTERS].split())}"


def together(parts: Iterable[Noted]) -> Noted:
    """The notes of several parts, in their order."""
    result: dict[str, tuple[int, str]] = {}
    for part in parts:
        for kind, (count, first) in part.items():
            before, known = result.get(kind, (0, first))
            result[kind] = before + count, known
    return result


def warn_of_notations(documents: int, noted: Noted, besides: Collection[str] = ()) -> list[str]:
    """Warns of each notation that many of the documents are in, except for the kinds `besides`, and returns them."""
    least = {kind: (MANY_SEPARATORS if kind == SEPARATOR else MANY) * documents for kind in noted}
    kinds = [kind for kind, (count, _) in noted.items() if kind not in besides and count > least[kind]]
    for kind in kinds:
        (count, first), (what, fix) = noted[kind], NOTATIONS[kind]
        warn(f"{count:,} of {documents:,} documents {what}, such as {first} …; {fix}")
    return kinds
