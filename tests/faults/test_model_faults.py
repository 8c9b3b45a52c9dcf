"""Model folders that are wrong or meant to harm: refused in one line, and nothing is run, unpickled or allocated."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import SHAPE, Cli, ConfigFile
from safetensors.numpy import save_file

from maskwright.core.errors import TokenizerError
from maskwright.model.initial import initial_parameters
from maskwright.text.vocabulary import read_vocabulary

WEIGHTS = "model.safetensors"


def refused(cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path) -> list[str]:
    """What each command that opens a model folder says, after a look at its exit code and at what it left."""
    lines = []
    for command in (
        ("pretrain", config_file(model={"init_from": str(folder)}), "--run", tmp_path / "out"),
        ("fill", folder, "a <mask>"),
        ("export", folder, "--to", tmp_path / "out"),
    ):
        result = cli(*command)
        assert result.code == 2, (command, result.err)
        assert not (tmp_path / "out").exists()
        assert len(result.error) < 500
        lines.append(result.error)
    return lines


# ---- pickled weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "pytorch_model-00001-of-00002.bin",
        "pytorch_model.pt",
        "model.pt",
        "last.ckpt",
        "weights.pth",
        "x.pkl",
    ],
)
def test_pickled_weights_are_never_opened(
    name: str, cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    os.rename(folder / WEIGHTS, folder / name)
    for line in refused(cli, folder, config_file, tmp_path):
        assert f"{folder}/{name}: holds pickled weights, which can run code when opened. Fix: " in line
        assert "Fix: maskwright import weights " in line and line.endswith(" --to FOLDER")


# ---- safetensors ---------------------------------------------------------------------------------------------------


def raw(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def tensor(begin: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


ABSURD: dict[str, bytes] = {
    "empty file": b"",
    "five bytes": b"\1\0\0\0\0",
    "header longer than the file": raw({}, size=1000),
    "header of 2^63": raw({}, size=2**63),
    "header of all ones": raw({}, size=2**64 - 1),
    "empty header": raw(b""),
    "not JSON": raw(b"{not json}", b"\0" * 8),
    "not UTF-8": raw(b'{"\xff\xfe": 1}'),
    "a list": raw([]),
    "null": raw(None),
    "a number": raw(b"7" * 5000),
    "nested deeply": raw(b'{"a":' * 50_000),
    "tensor is null": raw({"a": None}),
    "no offsets": raw({"a": {"dtype": "F32", "shape": [1]}}, b"\0" * 4),
    "offsets beyond the file": raw({"a": tensor(0, 4000, [1000])}, b"\0" * 4),
    "offsets beyond 64 bits": raw({"a": tensor(0, 2**70, [2**68])}, b"\0" * 4),
    "negative offsets": raw({"a": tensor(-4, 0, [1])}, b"\0" * 4),
    "offsets that fall": raw({"a": tensor(4, 0, [1])}, b"\0" * 4),
    "overlapping": raw({"a": tensor(0, 8, [2]), "b": tensor(4, 12, [2])}, b"\0" * 12),
    "one behind two names": raw({"a": tensor(0, 8, [2]), "b": tensor(0, 8, [2])}, b"\0" * 8),
    "a hole": raw({"a": tensor(0, 4, [1]), "b": tensor(8, 12, [1])}, b"\0" * 12),
    "data after the last": raw({"a": tensor(0, 4, [1])}, b"\0" * 12),
    "shape larger than its bytes": raw({"a": tensor(0, 4, [10**9])}, b"\0" * 4),
    "shape that overflows": raw({"a": tensor(0, 4, [2**33, 2**33])}, b"\0" * 4),
    "negative shape": raw({"a": tensor(0, 4, [-1])}, b"\0" * 4),
    "shape is text": raw({"a": tensor(0, 4, "big")}, b"\0" * 4),  # type: ignore[arg-type]
    "dtype of another size": raw({"a": tensor(0, 4, [1], "F64")}, b"\0" * 4),
    "no such dtype": raw({"a": tensor(0, 4, [1], "F31")}, b"\0" * 4),
    "whole numbers": raw({"a": tensor(0, 4, [1], "I32")}, b"\0" * 4),
    "four bits": raw({"a": tensor(0, 4, [8], "F4")}, b"\0" * 4),
    "a name twice": raw(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        b"\0" * 8,
    ),
    "metadata that is no text": raw({"__metadata__": {"a": 1}, "a": tensor(0, 4, [1])}, b"\0" * 4),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_safetensors_are_refused(
    name: str, cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    (folder / WEIGHTS).write_bytes(ABSURD[name])
    for line in refused(cli, folder, config_file, tmp_path):
        assert str(folder) in line


def test_a_name_that_is_there_twice_is_refused(cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path) -> None:
    """Also one of the model's own, which would otherwise be whichever came last."""
    content = (folder / WEIGHTS).read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].strip()
    entry = json.loads(header)["lm_head.bias"]
    header = header[:-1] + b',"lm_head.bias":' + json.dumps(entry).encode() + b"}"
    (folder / WEIGHTS).write_bytes(raw(header, content[8 + size :]))
    assert "lm_head.bias" in refused(cli, folder, config_file, tmp_path)[0]


def test_a_tensor_in_two_parts_is_refused(cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path) -> None:
    shutil.copy(folder / WEIGHTS, folder / "a.safetensors")
    shutil.move(folder / WEIGHTS, folder / "b.safetensors")
    (folder / f"{WEIGHTS}.index.json").write_text('{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}')
    assert "is in two of its files" in refused(cli, folder, config_file, tmp_path)[0]


def test_a_file_much_larger_than_the_model_is_not_read(cli: Cli, folder: Path, tmp_path: Path) -> None:
    """100 GB that take no room on disk, under a header that describes them truly."""
    size = 100_000_000_000
    (folder / WEIGHTS).write_bytes(raw({"a": tensor(0, size, [size // 4])}))
    os.truncate(folder / WEIGHTS, os.path.getsize(folder / WEIGHTS) + size)
    tracemalloc.start()
    result = cli("fill", folder, "a <mask>")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (result.code, "has no tensor roberta" in result.error) == (2, True), result.err
    assert peak < 100_000_000


def test_a_long_header_is_not_parsed(cli: Cli, folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(raw(b" " * 20_000_000))
    result = cli("fill", folder, "a <mask>")
    assert (result.code, "claims a header of 20,000,000 bytes" in result.error) == (2, True), result.err


@pytest.mark.parametrize(
    "listing",
    [
        {"weight_map": {"a": "../secret.safetensors"}},
        {"weight_map": {"a": "/etc/hostname"}},
        {"weight_map": {"a": ".."}},
        {"weight_map": {"a": "."}},
        {"weight_map": {"a": ""}},
        {"weight_map": {"a": "x\0y"}},
        {"weight_map": {"a": "sub/x.safetensors"}},
        {"weight_map": {"a": "pytorch_model.bin"}},
        {"weight_map": {"a": None}},
        {"weight_map": []},
        {"weight_map": {}},
        {},
        None,
    ],
    ids=str,
)
def test_an_index_that_names_something_else_is_refused(
    listing: Any, cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    (folder / WEIGHTS).rename(tmp_path / "secret.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(listing))
    assert str(folder) in refused(cli, folder, config_file, tmp_path)[0]


def test_links_to_weights_are_followed_and_those_that_loop_refused(
    cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    """Hub caches are made of links."""
    (folder / WEIGHTS).rename(tmp_path / "blob")
    (folder / WEIGHTS).symlink_to(tmp_path / "blob")
    assert cli("fill", folder, "a <mask>").code == 0
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(WEIGHTS)
    assert str(folder) in refused(cli, folder, config_file, tmp_path)[0]
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    assert "has no config.json" in refused(cli, folder, config_file, tmp_path)[0]


# ---- config.json ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", 10**12),
        ("num_hidden_layers", 10**300),
        ("num_hidden_layers", "twelve"),
        ("num_hidden_layers", -2),
        ("num_hidden_layers", 2.5),
        ("num_hidden_layers", [2]),
        ("hidden_size", 2**40),
        ("hidden_size", True),
        ("vocab_size", {"a": 1}),
        ("pad_token_id", 400),
        ("pad_token_id", -1),
        ("layer_norm_eps", float("nan")),
        ("initializer_range", float("inf")),
        ("attention_probs_dropout_prob", "0.1"),
        ("model_type", ["roberta"]),
        ("model_type", None),
        ("model_type", {}),
        ("hidden_act", ["gelu"]),
    ],
)
def test_absurd_shapes_are_refused(
    key: str, value: Any, cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    for line in refused(cli, folder, config_file, tmp_path):
        assert key in line and str(folder) in line


def test_a_shape_of_a_million_layers_allocates_nothing(
    cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 60_000_000}))
    assert "has no tensor roberta.encoder.layer.2" in refused(cli, folder, config_file, tmp_path)[0]


@pytest.mark.parametrize("content", ["", "[]", "null", "[" * 100_000, '{"hidden_size": ' + "1" * 5000 + "}", "\xff"])
def test_a_config_that_is_something_else_is_refused(
    content: str, cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path
) -> None:
    (folder / "config.json").write_text(content, encoding="latin-1")
    assert f"{folder}/config.json" in refused(cli, folder, config_file, tmp_path)[0]


# ---- tokenizer.json ------------------------------------------------------------------------------------------------


def tokenizer_with(content: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    part = content
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = value
    return content


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model",), None),
        (("model",), "BPE"),
        (("model", "type"), ["BPE"]),
        (("model", "type"), "WordPiece"),
        (("model", "vocab"), []),
        (("model", "vocab"), {}),
        (("model", "vocab", "a"), "seven"),
        (("model", "vocab", "a"), -1),
        (("model", "vocab", "a"), 2_000_000_000),
        (("model", "vocab", "a"), 10**300),
        (("model", "vocab", "a"), True),
        (("model", "vocab", "a"), None),
        (("model", "merges"), 7),
        (("model", "merges"), [7]),
        (("model", "merges"), ["no such pair of tokens"]),
        (("model", "merges"), [["a", None]]),
        (("model", "merges"), {"a": "b"}),
        (("added_tokens",), 7),
        (("added_tokens",), [7]),
        (("added_tokens", 0, "content"), None),
        (("added_tokens", 0, "content"), ["<s>"]),
        (("added_tokens", 0, "id"), "0"),
        (("pre_tokenizer",), None),
        (("pre_tokenizer",), [[["ByteLevel"]]]),
        (("pre_tokenizer",), {"type": "Sequence", "pretokenizers": 7}),
        (("pre_tokenizer",), {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, 7]}),
        (("normalizer",), {"type": "NoSuch"}),
        (("normalizer",), {"type": "Replace", "pattern": {"Regex": "(((("}, "content": ""}),
        (("decoder",), 7),
    ],
    ids=str,
)
def test_absurd_tokenizers_are_refused(
    path: tuple[Any, ...], value: Any, cli: Cli, tokenizer: str, corpus: Path, tmp_path: Path
) -> None:
    content = json.loads((Path(tokenizer) / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_with(content, *path, value=value)))
    result = cli("data", "prepare", corpus, "--tokenizer", tmp_path, "--to", tmp_path / "out")
    assert (result.code, str(tmp_path / "tokenizer.json") in result.error) == (2, True), result.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", "[" * 100_000, "\xff\xfe", '{"model": ' + "1" * 5000])
def test_a_tokenizer_that_is_something_else_is_refused(content: str, cli: Cli, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="latin-1")
    for command in (
        ("data", "prepare", corpus, "--tokenizer", tmp_path, "--to", tmp_path / "out"),
        ("tokenizer", "inspect", tmp_path, corpus),
    ):
        result = cli(*command)
        assert (result.code, str(tmp_path / "tokenizer.json") in result.error) == (2, True), result.err


def test_a_tokenizer_of_steps_in_steps_is_refused(cli: Cli, tokenizer: str, corpus: Path, tmp_path: Path) -> None:
    """Also where Python would go deeper, as after an import of torch's compiler."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    content = json.loads((Path(tokenizer) / "tokenizer.json").read_text())
    for _ in range(300):
        content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [content["pre_tokenizer"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    try:
        result = cli("data", "prepare", corpus, "--tokenizer", tmp_path, "--to", tmp_path / "out")
    finally:
        sys.setrecursionlimit(before)
    assert (result.code, "is nested too deeply" in result.error) == (2, True), result.err


def test_an_id_of_two_thousand_million_allocates_nothing(tokenizer: str, tmp_path: Path) -> None:
    content = json.loads((Path(tokenizer) / "tokenizer.json").read_text())
    content["model"]["vocab"]["far"] = 2_000_000_000
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match="not a small whole number"):
        read_vocabulary(str(tmp_path))


def test_the_store_of_a_broken_tokenizer_is_refused(
    cli: Cli, store: Any, config_file: ConfigFile, tmp_path: Path
) -> None:
    shutil.copytree(store.location, tmp_path / "store")
    for content in ("{", "[]"):
        (tmp_path / "store" / "tokenizer" / "tokenizer.json").write_text(content)
        used = config_file(data={"store": str(tmp_path / "store")})
        result = cli("pretrain", used, "--run", tmp_path / "out")
        assert (result.code, "tokenizer.json" in result.error) == (2, True), result.err
    assert not (tmp_path / "out").exists()


def test_weights_of_half_precision_are_still_read(cli: Cli, folder: Path) -> None:
    save_file({n: a.astype(np.float16) for n, a in initial_parameters(SHAPE, 0).items()}, str(folder / WEIGHTS))
    assert cli("fill", folder, "a <mask>").code == 0


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_named(
    cli: Cli, folder: Path, config_file: ConfigFile, tmp_path: Path, value: float
) -> None:
    """Training would only find a loss of nan, and advise a lower learning rate."""
    parameters = initial_parameters(SHAPE, 0)
    name = next(name for name in parameters if name.endswith("query.weight"))
    parameters[name][1, 2] = value
    save_file(parameters, str(folder / WEIGHTS))
    for line in refused(cli, folder, config_file, tmp_path):
        assert f"{name} holds numbers that are not finite" in line


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "intermediate_size", "max_seq_len"])
def test_absurd_shapes_of_a_configuration_are_refused(
    cli: Cli, config_file: ConfigFile, tmp_path: Path, key: str
) -> None:
    result = cli("pretrain", config_file(model={key: 10**12}), "--run", tmp_path / "out")
    assert (result.code, f"model.{key}" in result.error) == (2, True), result.err
