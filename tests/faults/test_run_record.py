"""`config.resolved.json` of a run: of another format, or not what `pretrain` wrote. Nothing in the folder changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import Cli, ConfigFile


@pytest.fixture
def stopped(cli: Cli, config_file: ConfigFile, tmp_path: Path) -> Path:
    assert cli("pretrain", config_file(), "--run", tmp_path / "run", "--stop-after-steps", 1).code == 76
    return tmp_path / "run"


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"}


def refused(words: str, run: Path, cli: Cli, config_file: ConfigFile, tmp_path: Path) -> None:
    before = everything(run)
    for command in (
        ("pretrain", config_file(), "--run", run),
        ("export", run, "--to", tmp_path / "model"),
        ("evaluate", run),
        ("fill", run, "a <mask>"),
    ):
        result = cli(*command)
        assert (result.code, words in result.error) == (2, True), (command, result.err)
        assert "config.resolved.json" in result.error
    assert everything(run) == before
    assert not (tmp_path / "model").exists()


def leave_out(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda record: {name: value for name, value in record.items() if name != key}


def test_a_run_of_another_format(stopped: Path, cli: Cli, config_file: ConfigFile, tmp_path: Path) -> None:
    path = stopped / "config.resolved.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))
    refused(
        "has format 1, this version reads 2. Fix: use maskwright 0.3.0, which wrote it",
        stopped,
        cli,
        config_file,
        tmp_path,
    )


SPOILT: list[tuple[Callable[[Any], Any], str]] = [
    (lambda record: [], "is not a run's record"),
    (lambda record: None, "is not a run's record"),
    (leave_out("format"), "is not a run's record"),
    *((leave_out(key), f"lacks `{key}`") for key in ("config", "model", "dtype", "train")),
    (lambda record: record | {"config": []}, "lacks `config`"),
    (lambda record: record | {"dtype": "int8"}, "dtype is 'int8'"),
    (lambda record: record | {"model": None}, "lacks `model`"),
]


def test_a_record_that_is_something_else(stopped: Path, cli: Cli, config_file: ConfigFile, tmp_path: Path) -> None:
    path = stopped / "config.resolved.json"
    record = json.loads(path.read_text())
    for change, words in SPOILT:
        path.write_text(json.dumps(change(record)))
        refused(words, stopped, cli, config_file, tmp_path)


def test_a_shape_that_is_none(stopped: Path, cli: Cli, config_file: ConfigFile, tmp_path: Path) -> None:
    path = stopped / "config.resolved.json"
    record = json.loads(path.read_text())
    model = record["model"]
    for shape in ({}, model | {"extra": 1}, model | {"hidden_size": "wide"}):
        path.write_text(json.dumps(record | {"model": shape}))
        before = everything(stopped)
        for command in (
            ("export", stopped, "--to", tmp_path / "model"),
            ("evaluate", stopped),
            ("fill", stopped, "<mask>"),
        ):
            result = cli(*command)
            assert (result.code, f"{path}: its `model` is not the shape of a model" in result.error) == (2, True), (
                result.err
            )
        assert cli("pretrain", config_file(), "--run", stopped).code == 2
        assert everything(stopped) == before


def test_a_record_that_is_no_json(stopped: Path, cli: Cli, config_file: ConfigFile, tmp_path: Path) -> None:
    for content in ("", "{", "[" * 100_000, '{"format": ' + "1" * 5000 + "}"):
        (stopped / "config.resolved.json").write_text(content)
        refused("is not JSON", stopped, cli, config_file, tmp_path)


def test_a_run_does_not_begin_on_a_store_with_another_id(
    cli: Cli, store: Any, config_file: ConfigFile, tmp_path: Path
) -> None:
    """Within the vocabulary, so that neither sizes nor the check of each batch can tell."""
    import shutil

    shutil.copytree(store.location, tmp_path / "store")
    path = tmp_path / "store" / "train-00000.tokens.u16"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    result = cli("pretrain", config_file(data={"store": str(tmp_path / "store")}), "--run", tmp_path / "run")
    assert (result.code, f"{path}: is not what was written" in result.error) == (2, True), result.err
    assert not (tmp_path / "run").exists()
