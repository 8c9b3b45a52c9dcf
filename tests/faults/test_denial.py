"""What was downloaded, and is made to take all time or memory: refused at once, on one line."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from in_process import Cli

from maskwright.config.settings import parse_yaml
from maskwright.core import storage
from maskwright.core.errors import ConfigError, InputError, TokenizerError
from maskwright.data import remote
from maskwright.text import bounds
from maskwright.text.tokenizer import load_tokenizer

LAUGHS = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 11))
CHAIN = "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 300))


@pytest.fixture(autouse=True)
def quickly() -> Iterator[None]:
    """Each took minutes, or all memory."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"a0: &a0 [x]\n{LAUGHS}", "f.yaml:6:5: is not YAML: has aliases that make more than 100,000 values"),
        (f"a0: &a0 [x]\n{CHAIN}", "has aliases that make more than 100,000 values, or 100 levels"),
        ("a: &a [*a]", "has aliases"),
        ("[" * 500_000, "f.yaml:1:101: is not YAML: is nested more than 100 deep"),
        ("- " * 20_000, "is nested more than 100 deep"),
        (f"a: {'9' * 6000}", "f.yaml:1:4: is not YAML: 99999999999999999999 is no number or date to be read"),
        (f"a: 0x{'f' * 6000}", "is no number or date to be read"),
        ("a: 2026-99-99", "2026-99-99 is no number or date to be read"),
        (f"a: {'x' * (2 << 20)}", "f.yaml: has more than 1,048,576 characters"),
    ],
    ids=["laughs", "chain", "itself", "brackets", "dashes", "integer", "hexadecimal", "date", "long"],
)
def test_yaml(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    assert words in str(caught.value) and ". Fix: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_with_anchors_as_people_write_them() -> None:
    assert parse_yaml("a: &a {x: [1, 2]}\nb: *a\nc: [*a, *a]", "f.yaml")["c"] == [{"x": [1, 2]}] * 2


def replaced(pattern: dict[str, str], content: str, times: int = 1, kind: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", kind: [{"type": "Replace", "pattern": pattern, "content": content}] * times}


def splitting(pattern: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"type": "Sequence", "pretokenizers": [split, letters]}


GROWS, SLOW = "characters, over 100. Fix: ", "takes exponentially long on some texts. Fix: "


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"normalizer": replaced({"String": "a"}, "a" * 1000, 4)}, GROWS),
        ({"normalizer": replaced({"String": "a"}, "aa", 40)}, GROWS),
        ({"normalizer": replaced({"Regex": "(?=.)"}, "b", 40)}, GROWS),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 1_000_000}}, GROWS),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}}, GROWS),
        ({"decoder": replaced({"String": "a"}, "a" * 1000, 4, "decoders")}, GROWS),
        ({"normalizer": replaced({"String": "a"}, "b", 2000)}, "has 2,002 steps, over 1,000. Fix: "),
        ({"pre_tokenizer": splitting("a" * 20_000)}, "has a pattern of more than 10,000 characters. Fix: "),
        ({"pre_tokenizer": splitting("((a+)+")}, "cannot be loaded: "),
        ({"pre_tokenizer": splitting("(a+)+$")}, SLOW),
        ({"pre_tokenizer": splitting(r"(\w|[a-z])*$")}, SLOW),
    ],
    ids=[
        "replace",
        "doubling",
        "at every place",
        "prepend",
        "bytes",
        "decoder",
        "steps",
        "length",
        "no pattern",
        "repeats",
        "choices",
    ],
)
def test_tokenizer(changes: dict[str, Any], words: str, tokenizer: str, tmp_path: Path) -> None:
    content = storage.read_json(os.path.join(tokenizer, "tokenizer.json"))
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**content, **changes}))
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(str(tmp_path), special_tokens_are_text=True)
    assert str(caught.value).startswith(f"{path}: ") and words in str(caught.value)


def test_a_pattern_that_breaks_the_library_off_is_one_line(
    cli: Cli, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that its trial did not find."""
    monkeypatch.setattr(bounds, "_may_explode", lambda pattern: False)
    content = storage.read_json(os.path.join(tokenizer, "tokenizer.json"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "pre_tokenizer": splitting("(a+)+$")}))
    (tmp_path / "a.txt").write_text("a" * 40 + "!\n")
    found = cli("tokenizer", "inspect", tmp_path, tmp_path / "a.txt")
    last = found.err.splitlines()[-1]
    assert found.code == 2 and last.startswith(f"error: {tmp_path}: the library gives up: ") and ". Fix: " in last


@pytest.mark.parametrize(
    "pattern",
    [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
        r"(?m:([ACGT]{3}|.))",
    ],
)
def test_patterns_in_use_need_no_trial(pattern: str) -> None:
    assert not bounds._may_explode(pattern)


def test_replacements_in_use_are_taken() -> None:
    """Emojis by name, line feeds as a token, T5's table."""
    names = [
        {"type": "Replace", "pattern": {"String": chr(0x1F600 + n)}, "content": f" :face-{n}: "} for n in range(60)
    ]
    lines = [{"type": "Replace", "pattern": {"String": "\n"}, "content": "<|newline|>"}]
    spaces = [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}, {"type": "NFKC"}]
    normalizer = {"type": "Sequence", "normalizers": [*names, *lines, *spaces]}
    bounds.require_bounded({"model": {}, "normalizer": normalizer}, "tokenizer.json")


def archive(path: Path, names: Iterator[str], finish: Callable[[tarfile.TarInfo], None] = lambda _: None) -> str:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as file:
        for name in names:
            member = tarfile.TarInfo(name)
            finish(member)
            file.addfile(member, io.BytesIO(b"\0" * member.size))
    return str(path)


def test_archives_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_SMALL_FILES", 100)

    def long_name(member: tarfile.TarInfo) -> None:
        member.type, member.size = tarfile.XHDTYPE, 2 << 20

    many = archive(tmp_path / "many.tar", (f"d/{number}" for number in range(102)))
    deep = archive(tmp_path / "deep.tar", iter(["d/" * 3000 + "a"]))
    named = archive(tmp_path / "named.tar", iter(["a"]), long_name)
    refusals = {
        many: "holds more than 100 files of less than 4.1 kB",
        deep: "its folders are nested more than 100 deep",
        named: "a name claims 2,097,152 bytes",
    }
    for path, words in refusals.items():
        with pytest.raises(InputError, match=words):
            remote.pull(path, str(tmp_path / "out"))
        assert sorted(os.listdir(tmp_path)) == ["deep.tar", "many.tar", "named.tar"]
    os.makedirs(tmp_path / "in" / ("d/" * 900))
    for pattern in (tmp_path / "in", tmp_path / "in" / "**" / "*.txt"):
        with pytest.raises(InputError, match="nested more than 100 deep"):
            storage.expand([str(pattern)])
