"""`data prepare` in parts gives the store of one machine, byte for byte, whoever computes the parts and in which order."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import documents

from maskwright.core.errors import InputError, MaskwrightError, SourceError
from maskwright.core.runner import Here
from maskwright.data import prepare as preparing
from maskwright.data.parts.driver import prepare_in_parts
from maskwright.data.prepare import PrepareOptions, Request, prepare
from maskwright.text.cleaning.steps import CleaningOptions
from maskwright.text.parts import cut, repeats
from maskwright.text.sources import Sources


@dataclass
class Shuffled:
    """Computes parts in an order of its own, counts them, and is killed after some."""

    seed: int = 0
    killed_after: int | None = None
    computed: list[str] = field(default_factory=list)

    def require_seen(self, folder: str, files: Sequence[str]) -> None:
        assert Path(folder).is_dir() and all(Path(file).is_file() for file in files)

    def run(
        self, work: Callable[[Any], Any], parts: Sequence[Any], title: str, sizes: Sequence[int]
    ) -> Generator[tuple[int, Any]]:
        assert len(parts) == len(sizes)
        order = list(range(len(parts)))
        random.Random(self.seed).shuffle(order)
        for number in order:
            if len(self.computed) == self.killed_after:
                raise OSError("killed")
            self.computed.append(title)
            yield number, work(parts[number])


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def stories(path: Path, count: int, seed: int, more: str = "") -> None:
    text = "\n\n".join("\n".join(lines) for lines in documents(count, seed))
    path.write_text(f"{text}\n\n{more}".strip() + "\n", encoding="utf-8")


@pytest.fixture
def sentences(tmp_path: Path) -> Path:
    """Files of sentences with blank lines between documents, some of which are in several files."""
    folder = tmp_path / "text"
    folder.mkdir()
    shared = "A story that two files have.\nIt ends here."
    for number in range(7):
        stories(folder / f"part{number}.txt", 12 + 5 * number, number, shared if number in (1, 2, 5) else "")
    return folder


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """JSON lines, plain and compressed, with copies and near copies in other files."""
    folder, generator = tmp_path / "records", random.Random(5)
    folder.mkdir()
    texts = [
        " ".join(generator.choices("the garden is far from an old red house and we walk".split(), k=90))
        for _ in range(60)
    ]
    texts += [
        texts[3] + " again",
        texts[4],
        f"Write to a.b@example.net, {texts[5]}",
        texts[4],
        "short",
        "",
        texts[9][:-4],
    ]
    random.Random(6).shuffle(texts)
    for number in range(5):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[number::5])
        if number == 3:
            (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        else:
            (folder / f"{number}.jsonl").write_text(lines)
    return folder


def cut_into(monkeypatch: pytest.MonkeyPatch, folder: Path, parts: int) -> None:
    size = sum(path.stat().st_size for path in folder.iterdir())
    monkeypatch.setattr(cut, "PART_BYTES", (size // parts, size // parts))


CASES: dict[str, dict[str, Any]] = {
    "plain": {"options": PrepareOptions(0.1, shard_tokens=2_000)},
    "duplicates kept": {"options": PrepareOptions(0.1, keep_duplicates=True, shard_tokens=900), "held_out": True},
    "held out": {"options": PrepareOptions(0.0, min_characters=60, shard_tokens=1_500), "held_out": True},
    "cleaned": {
        "options": PrepareOptions(0.2, max_characters=5_000, shard_tokens=1_200),
        "cleaning": {"filters": ("gopher",), "near_duplicates": 0.7, "masked": ("email",)},
    },
    "cleaned, duplicates kept": {
        "options": PrepareOptions(0.0, keep_duplicates=True),
        "cleaning": {"filters": ("c4",), "near_duplicates": 0.7},
        "held_out": True,
    },
}


def request(case: str, kind: Path, folder: Path, tokenizer: str) -> Request:
    held = kind.parent / "held"
    if CASES[case].get("held_out") and not held.exists():
        held.mkdir()
        first = sorted(kind.iterdir())[0]
        (held / first.name).write_bytes(first.read_bytes())
        (held / f"z{first.name}").write_text("")
    cleaning = CASES[case].get("cleaning")
    if cleaning and cleaning.get("near_duplicates"):
        pytest.importorskip("rensa", reason="the extra `clean` is not installed")
    return Request(
        Sources([str(kind)]),
        tokenizer,
        str(folder),
        CASES[case]["options"],
        held_out=Sources([str(held)], on_bad_input="skip") if CASES[case].get("held_out") else None,
        cleaning=CleaningOptions(**cleaning) if cleaning else None,
    )


@pytest.mark.parametrize("kind", ["sentences", "records"])
@pytest.mark.parametrize("case", CASES)
def test_the_store_is_that_of_one_machine(
    case: str, kind: str, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: Any
) -> None:
    text = request_.getfixturevalue(kind)
    monkeypatch.setattr(preparing, "ENCODE_CHARACTERS", 3_000)
    one = request(case, text, tmp_path / "one", tokenizer)
    ready = prepare(one.sources, tokenizer, one.folder, one.options, held_out=one.held_out, cleaning=one.cleaning)
    assert len(ready.shards) > 3 or case == "cleaned, duplicates kept"
    expected = content(tmp_path / "one")
    monkeypatch.setattr(repeats, "KEYS_AT_ONCE", 16)
    for parts in (1, 3, 7):
        cut_into(monkeypatch, text, parts)
        runner = Shuffled(seed=parts)
        prepare_in_parts(request(case, text, tmp_path / f"in{parts}", tokenizer), runner)
        assert content(tmp_path / f"in{parts}") == expected
        assert runner.computed.count("judge") == runner.computed.count("encode") >= min(parts, 5)


@pytest.fixture
def request_(request: pytest.FixtureRequest) -> pytest.FixtureRequest:
    return request
