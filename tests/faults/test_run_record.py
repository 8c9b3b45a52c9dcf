"""`config.resolved.json` of a run: of another format, or not what `pretrain` wrote. Nothing in the folder changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from in_process import Cli, ConfigFile


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"}


def without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda record: {name: value for name, value in record.items() if name != key}


def shaped(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda record: record | {"model": (record["model"] | changes) if changes else {}}


SHAPE = "its `model` is not the shape of a model"
SPOILT: list[tuple[Callable[[Any], Any] | str, str]] = [
    (lambda record: record | {"format": 1}, "has format 1, but this version reads 2. Fix: use maskwright 0.3.0, which"),
    (lambda record: [], "is not a run's record"),
    (lambda record: None, "is not a run's record"),
    (without("format"), "is not a run's record"),
    *((without(key), f"lacks `{key}`") for key in ("config", "model", "dtype", "train")),
    (lambda record: record | {"config": []}, "lacks `config`"),
    (lambda record: record | {"dtype": "int8"}, "dtype is 'int8'"),
    (lambda record: record | {"model": None}, "lacks `model`"),
    *((shaped(**changes), SHAPE) for changes in ({}, {"extra": 1}, {"hidden_size": "wide"})),
    *((text, "JSON") for text in ("", "{", "[" * 100_000, '{"format": ' + "1" * 5000 + "}")),
]


def test_a_record_that_is_something_else(cli: Cli, config_file: ConfigFile, tmp_path: Path) -> None:
    run, model = tmp_path / "run", tmp_path / "model"
    assert cli("pretrain", config_file(), "--run", run, "--stop-after-steps", 1).code == 76
    path = run / "config.resolved.json"
    record = json.loads(path.read_text())
    for change, words in SPOILT:
        path.write_text(change if isinstance(change, str) else json.dumps(change(record)))
        before = everything(run)
        for command in (("export", run, "--to", model), ("evaluate", run), ("fill", run, "a <mask>")):
            result = cli(*command)
            assert (result.code, words in result.error, str(path) in result.error) == (2, True, True), result.err
        result = cli("pretrain", config_file(), "--run", run)  # which finds first that another shape was asked for
        assert result.code == 2 and (words in result.error or words == SHAPE), result.err
        assert everything(run) == before and not model.exists()


def test_a_run_does_not_begin_on_a_store_with_another_id(
    cli: Cli, store: Any, config_file: ConfigFile, tmp_path: Path
) -> None:
    """Within the vocabulary, so that neither sizes nor the check of each batch can tell."""
    shutil.copytree(store.location, tmp_path / "store")
    path = tmp_path / "store" / "train-00000.tokens.u16"
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    result = cli("pretrain", config_file(data={"store": str(tmp_path / "store")}), "--run", tmp_path / "run")
    assert (result.code, f"{path}: is not what was written" in result.error) == (2, True), result.err
    assert not (tmp_path / "run").exists()
