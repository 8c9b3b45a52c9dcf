"""The encoding of a text: decoding, cutting lines, and the likely encodings of a text that does not decode."""

from __future__ import annotations

import re
from dataclasses import dataclass

from maskwright.core import extras
from maskwright.core.encodings import UTF8, codec_name
from maskwright.core.errors import InputError

STATEFUL = ("iso2022", "hz", "utf-7")
"""Families of encodings in which earlier bytes decide the meaning of later ones, even beyond the line's end."""
C1 = re.compile("[\x80-\x9f]")
"""Control characters that ISO 8859 gives the bytes 0x80 to 0x9f. In a text, such a byte is a letter or a quote of
another encoding: cp1252 instead of latin-1."""
COMMON = (
    *("cp1252", "cp1251", "cp932", "gb18030", "big5", "cp949", "koi8_r", "cp1250", "iso8859_2", "cp1253", "cp1254"),
    *("cp1255", "cp1256", "cp1257", "euc_jp", "cp866", "cp850", "cp852", "cp437", "mac_roman", "cp874", "koi8_u"),
    *("mac_cyrillic", "mac_greek", "mac_latin2", "mac_turkish", "iso8859_5", "iso8859_7", "iso8859_9", "iso8859_15"),
    *("cp1258", "big5hkscs", "euc_jis_2004", "johab", "cp1125"),
)
"""Encodings that are tried, as charset-normalizer names them: the first of those that decode a text to the same result,
and the widest of a family, such as Windows' cp932 for Shift-JIS."""
MOST_LIKELY = 3
"""Encodings that are named, and one more if the words alone, or letters that are mostly ASCII, suggest another."""
SAMPLE_BYTES = 1 << 17
"""Bytes of lines that are not ASCII, by which the encoding is judged in a tenth of a second."""
FEWEST_BEYOND = 5
"""Characters beyond ASCII that show UTF-8 if all decode. With this many Chinese ones in GBK, one text in 20,000 would
be mistaken for UTF-8."""
BETWEEN_WORDS = re.compile(rb"[\x00-\x2f\x3a-\x3f]+")
"""Bytes that are ASCII in each of `COMMON`, and no second half of a character."""
UTF8_SHARE = 0.75
"""Lowest share of the characters beyond ASCII that decode in a damaged UTF-8 text."""
SHOWN_BEFORE, SHOWN_AFTER = 16, 32
"""Characters of a line that are shown before and after the first byte beyond ASCII."""


@dataclass(frozen=True)
class Encoding:
    """The encoding of a user's files, by the name that `codec_name` gives."""

    name: str = UTF8
    option: str = ""
    """The user's words before a name: `--encoding ` or `data.encoding: `. Empty for files that are always UTF-8."""

    @classmethod
    def named(cls, name: str, option: str) -> Encoding:
        """Raises `InputError` for a name that Python lacks."""
        try:
            return cls(codec_name(name), option)
        except LookupError as error:
            raise InputError(f"{name!r:.40} is no encoding", where=option.strip(" :"), fix=str(error)) from None

    @property
    def is_utf8(self) -> bool:
        return self.name == UTF8

    @property
    def title(self) -> str:
        return "UTF-8" if self.is_utf8 else self.name

    @property
    def keeps_line_feeds(self) -> bool:
        """Whether the byte 0x0a is a line's end and nothing else, so that lines can be cut before they are decoded."""
        try:
            return b"\n".decode(self.name) == "\n" and not self.name.startswith(STATEFUL)
        except UnicodeDecodeError:  # UTF-16 and UTF-32
            return False

    def decode(self, raw: bytes, errors: str = "strict") -> str:
        """The text of whole lines. Raises `UnicodeDecodeError` for the first byte that is not text."""
        text = raw.decode(self.name, errors)
        if self.name.startswith("iso8859") and (match := C1.search(text)):
            if errors == "strict":
                raise UnicodeDecodeError(self.name, raw, *match.span(), "is a control character")
            text = C1.sub("\ufffd", text)
        return text

    def give(self, name: str) -> str:
        """The fix for files in the encoding `name`."""
        return f"{'give' if self.option else 'convert it:'} {self.set_to(name)}"

    def set_to(self, name: str) -> str:
        """The option for files in the encoding `name`."""
        if self.option:
            return f"{self.option}{name}"
        iconv = "macintosh" if name == "mac-roman" else name.replace("_", "-")
        return f"iconv -f {iconv} -t utf-8 FILE > NEW"

    def fix(self, raw: bytes, start: int, beginning: bytes) -> str:
        """The fix for the byte `start` of the line `raw`. `beginning`: whole lines from the file's first ones."""
        raw, start = _around(raw, start)
        sample, size = [raw], len(raw)
        for line in beginning.split(b"\n"):
            if not line.isascii() and line != raw and (size := size + len(line)) <= SAMPLE_BYTES:
                sample.append(line)
        if self.is_utf8 and _is_damaged_utf8(b"\n".join(sample)):
            return f"repair this line, which reads {_shown(raw, start, self.name)}, as other lines are UTF-8"
        if not extras.installed("charset_normalizer"):
            such = " or ".join(map(self.set_to, ("cp1252", "cp1251", "cp932")))
            fix = extras.missing("charset_normalizer").fix
            return f"give the text's encoding, such as {such}; to see the likely ones, {fix}"
        readings: dict[str, list[str]] = {}
        for name in _likely(b"\n".join(sample), self.name):
            readings.setdefault(_shown(raw, start, name), []).append(name)
        if not readings:
            return f"find out its encoding from the program that wrote it, and {self.give('NAME')}"
        return self._among([f"{' or '.join(map(self.set_to, names))} ({text})" for text, names in readings.items()])

    def _among(self, choices: list[str]) -> str:
        what = "give the encoding" if self.option else "convert it from the encoding"
        which = " in which the line reads right" if len(choices) > 1 else ""
        return f"{what}{which}: {', or '.join(choices)}"


def _around(raw: bytes, start: int) -> tuple[bytes, int]:
    """(a part of a very long line around its byte `start`, the byte's position in it). The part begins and ends at
    ASCII that is no second half of a character in any encoding."""
    if len(raw) <= SAMPLE_BYTES:
        return raw, start
    cuts = (b" ", b'"', b",")
    begin = max(raw.rfind(cut, max(0, start - SAMPLE_BYTES // 2), start) for cut in cuts) + 1 or start
    end = max(raw.rfind(cut, start + 1, start + SAMPLE_BYTES // 2) for cut in cuts)
    return raw[begin : end if end > start else start + SAMPLE_BYTES // 2], start - begin


def is_utf8(sample: bytes) -> bool:
    """Whether these bytes are text beyond ASCII in UTF-8, which does not happen by chance."""
    try:
        return sum(character > "\x7f" for character in sample.decode()) >= FEWEST_BEYOND
    except UnicodeDecodeError:
        return False


def _is_damaged_utf8(sample: bytes) -> bool:
    text = sample.decode(errors="replace")
    beyond, wrong = sum(character > "\x7f" for character in text), text.count("\ufffd")
    return beyond - wrong >= UTF8_SHARE * beyond


def _likely(sample: bytes, tried: str) -> list[str]:
    """The likeliest encodings of lines that are not ASCII, best first, without the encoding that was tried: of the
    lines, then of their words alone, since columns such as the tags of words mislead."""
    words = b" ".join(word for word in BETWEEN_WORDS.split(sample) if not word.isascii())
    of_lines, of_words = _ranked(sample, tried), _ranked(words, tried)
    names = [*dict.fromkeys([*of_lines[:MOST_LIKELY], *of_words[:1]])]
    if "cp1252" not in (*names, tried) and _may_be_western(sample):
        names = [*names[:MOST_LIKELY], "cp1252"]
    return names


def _ranked(sample: bytes, tried: str) -> list[str]:
    from charset_normalizer import from_bytes

    names: list[str] = []
    for match in from_bytes(sample, cp_isolation=[*COMMON]):
        alike = [name for name in COMMON if name in match.could_be_from_charset and codec_name(name) != tried]
        names += [codec_name(name) for name in alike[:1]]
    return names


def _may_be_western(sample: bytes) -> bool:
    """Whether most letters are ASCII in cp1252, since a few words with quotes are too short for charset-normalizer."""
    try:
        letters = [character for character in sample.decode("cp1252") if character.isalpha()]
    except UnicodeDecodeError:
        return False
    return sum(character > "\x7f" for character in letters) <= 0.25 * len(letters)


def _shown(raw: bytes, start: int, name: str) -> str:
    """The line around its byte `start`, as it reads in an encoding."""
    column = len(raw[:start].decode(name, "replace"))
    text = raw.decode(name, "replace").strip("\r")
    return f"“{text[max(0, column - SHOWN_BEFORE) : column + SHOWN_AFTER].strip()}”"
