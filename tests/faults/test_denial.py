"""What was downloaded, and is made to take all time or memory: refused at once, on one line."""

import io
import json
import os
import tarfile
import time

import pytest

from maskwright.config.settings import parse_yaml
from maskwright.core import storage
from maskwright.core.errors import ConfigError, InputError
from maskwright.data import remote


@pytest.fixture(autouse=True)
def quickly():
    """Each took minutes, or all memory."""
    began = time.process_time()
    yield
    assert time.process_time() - began < 30


YAML = {
    "anchor": (
        "a: [1]\nb: &all [x]\n",
        "f.yaml:2:4: is not YAML: has an anchor or alias, all. Fix: write the value at each",
    ),
    "bracket": ("data: {store: s}\nschedule: [1\n", "f.yaml:3:1: is not YAML"),
    "twice": ("data: 1\nseed: 1\nseed: 2\n", "f.yaml:3:1: is not YAML"),
    "documents": ("a: 1\n---\nb: 1\n", "f.yaml:2:1: holds several documents. Fix: keep one, without ---"),
    "alias": ("a: *b", "f.yaml:1:4: is not YAML: has an anchor or alias, b."),
    "brackets": ("[" * 500_000, "f.yaml:1:101: is not YAML: is nested more than 100 deep"),
    "dashes": ("- " * 20_000, "is nested more than 100 deep"),
    "integer": (f"a: {'9' * 6000}", "f.yaml:1:4: is not YAML: 99999999999999999999 is no valid number or date"),
    "hexadecimal": (f"a: 0x{'f' * 6000}", "is no valid number or date"),
    "date": ("a: 2026-99-99", "2026-99-99 is no valid number or date"),
    "long": (f"a: {'x' * (2 << 20)}", "f.yaml: has more than 1,048,576 characters"),
}


@pytest.mark.parametrize("name", YAML)
def test_yaml(name):
    text, words = YAML[name]
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f.yaml")
    assert words in str(caught.value) and ". Fix: " in str(caught.value)
    assert "\n" not in str(caught.value)


def splitting(pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"type": "Sequence", "pretokenizers": [split, letters]}


@pytest.mark.parametrize(
    ("pattern", "text"), [("((a+)+", "a"), ("(a+)+$", "a" * 40 + "!"), (r"(\w|[a-z])*$", "a" * 40 + "!")]
)
def test_a_pattern_that_takes_exponentially_long_is_one_line(pattern, text, cli, tokenizer, tmp_path):
    """The library counts the steps of a match, and gives up after ten millions."""
    content = storage.read_json(os.path.join(tokenizer, "tokenizer.json"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**content, "pre_tokenizer": splitting(pattern)}))
    (tmp_path / "a.txt").write_text(f"{text}\n")
    for words in (
        ["tokenizer", "inspect", tmp_path],
        ["data", "prepare", "--to", tmp_path / "store", "--tokenizer", tmp_path],
    ):
        found = cli(*words, tmp_path / "a.txt")
        said = "cannot be loaded: " if text == "a" else "the library fails: "
        last = found.err.splitlines()[-1]
        assert found.code == 2 and last.startswith(f"error: {tmp_path}") and said in last and ". Fix: " in last


def archive(path, names, finish=lambda _: None):
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as file:
        for name in names:
            member = tarfile.TarInfo(name)
            finish(member)
            file.addfile(member, io.BytesIO(b"\0" * member.size))
    return str(path)


def test_archives_and_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "MOST_SMALL_FILES", 100)

    def long_name(member):
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
