"""Model folders that are wrong or meant to harm: refused in one line, and nothing is run, unpickled or allocated."""

import json
import os
import shutil
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from drawn import cases
from hypothesis import given
from hypothesis import strategies as st
from in_process import SHAPE
from safetensors.numpy import save_file

from maskwright.core.errors import InputError, TokenizerError
from maskwright.model.hf.folder import read_model_folder
from maskwright.model.initial import initial_parameters
from maskwright.text.tokenizer import load_tokenizer

WEIGHTS = "model.safetensors"


@pytest.fixture
def refused(cli, folder, config_file, tmp_path):
    """What each command that opens a model folder says, after a look at its exit code and at what it left."""
    commands = (
        ("pretrain", config_file(model={"init_from": str(folder)}), "--run", tmp_path / "out"),
        ("fill", folder, "a <mask>"),
        ("export", folder, "--to", tmp_path / "out"),
    )

    def said():
        found = [cli(*command) for command in commands]
        assert [result.code for result in found] == [2, 2, 2], [result.err for result in found]
        assert not (tmp_path / "out").exists() and all(len(result.error) < 500 for result in found)
        return [result.error for result in found]

    return said


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "last.ckpt", "weights.pth", "x.pkl"])
def test_pickled_weights_are_never_opened(refused, name, folder):
    os.rename(folder / WEIGHTS, folder / name)
    for line in refused():
        assert f"{folder}/{name}: holds pickled weights, which can run code when opened. Fix: " in line
        assert "Fix: maskwright import weights " in line and line.endswith(" --to FOLDER")


# ---- safetensors ---------------------------------------------------------------------------------------------------


def raw(header, data=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def tensor(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


FOUR, EIGHT, TWELVE = (b"\0" * size for size in (4, 8, 12))
ABSURD = {
    "header of 2^63": raw({}, size=2**63),
    "header of all ones": raw({}, size=2**64 - 1),
    "long": raw(b" " * 20_000_000),
    "not UTF-8": raw(b'{"\xff\xfe": 1}'),
    "a number": raw(b"7" * 5000),
    "nested deeply": raw(b'{"a":' * 50_000),
    "overlapping": raw({"a": tensor(0, 8, [2]), "b": tensor(4, 12, [2])}, TWELVE),
    "one behind two names": raw({"a": tensor(0, 8, [2]), "b": tensor(0, 8, [2])}, EIGHT),
    "a hole": raw({"a": tensor(0, 4, [1]), "b": tensor(8, 12, [1])}, TWELVE),
    "data after the last": raw({"a": tensor(0, 4, [1])}, TWELVE),
    "shape that overflows": raw({"a": tensor(0, 4, [2**33, 2**33])}, FOUR),
    "whole numbers": raw({"a": tensor(0, 4, [1], "I32")}, FOUR),
    "four bits": raw({"a": tensor(0, 4, [8], "F4")}, FOUR),
    "a name twice": raw(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
        EIGHT,
    ),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_safetensors_are_refused(refused, name, folder):
    (folder / WEIGHTS).write_bytes(ABSURD[name])
    for line in refused():
        assert str(folder) in line


ODD = (None, [], {}, True, -4, 7, 2**70, 10**300, 1.5, "big", "F31", [None], ["a"], [10**9], [-1], [4, 0])


@given(data=st.data(), value=st.sampled_from(ODD))
@cases(100)
def test_any_edit_of_a_header_is_refused(data, value, folder):
    content = raw_of(folder)
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    name = data.draw(st.sampled_from([name for name in header if name != "__metadata__"]))
    key = data.draw(st.sampled_from([None, "dtype", "shape", "data_offsets"]))
    if key is None:
        header[name] = value
    else:
        header[name][key] = value
    (folder / WEIGHTS).write_bytes(raw(header, content[8 + size :]))
    require_one_line(folder)


@given(at=st.floats(0, 1, exclude_max=True), flip=st.sampled_from([0, 1, 128]))
@cases(100)
def test_any_cut_or_flipped_bit_of_a_header_is_refused_or_changes_nothing(at, flip, folder):
    content = raw_of(folder)
    where = int(at * (8 + int.from_bytes(content[:8], "little") if flip else len(content)))
    (folder / WEIGHTS).write_bytes(
        content[:where] + (bytes([content[where] ^ flip]) + content[where + 1 :] if flip else b"")
    )
    try:
        found = read_model_folder(str(folder))[1]
    except InputError:
        require_one_line(folder)
    else:
        assert flip and all(np.array_equal(found[name], value) for name, value in initial_parameters(SHAPE, 0).items())


def raw_of(folder):
    """The good weights, also after a case that spoilt them."""
    good = folder / "good"
    if not good.exists():
        shutil.copy(folder / WEIGHTS, good)
    return good.read_bytes()


def require_one_line(folder):
    with pytest.raises(InputError) as caught:
        read_model_folder(str(folder))
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_name_that_is_there_twice_is_refused(refused, folder):
    """Also one of the model's own, which would otherwise be whichever came last."""
    content = (folder / WEIGHTS).read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + size].strip()
    entry = json.loads(header)["lm_head.bias"]
    header = header[:-1] + b',"lm_head.bias":' + json.dumps(entry).encode() + b"}"
    (folder / WEIGHTS).write_bytes(raw(header, content[8 + size :]))
    assert "lm_head.bias" in refused()[0]


def test_a_tensor_in_two_parts_is_refused(refused, folder):
    shutil.copy(folder / WEIGHTS, folder / "a.safetensors")
    shutil.move(folder / WEIGHTS, folder / "b.safetensors")
    (folder / f"{WEIGHTS}.index.json").write_text('{"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}')
    assert "is in two of its files" in refused()[0]


def test_a_file_much_larger_than_the_model_is_not_read(cli, folder):
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


NAMES = ("../secret.safetensors", "/etc/hostname", "..", "", "x\0y", "sub/x.safetensors", "pytorch_model.bin", None)


@pytest.mark.parametrize(
    "listing", [*({"weight_map": {"a": name}} for name in NAMES), {"weight_map": []}, {}, [], None], ids=str
)
def test_an_index_that_names_something_else_is_refused(refused, listing, folder, tmp_path):
    (folder / WEIGHTS).rename(tmp_path / "secret.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(listing))
    assert str(folder) in refused()[0]


def test_links_to_weights_are_followed_and_those_that_loop_refused(refused, cli, folder, tmp_path):
    """Hub caches are made of links."""
    (folder / WEIGHTS).rename(tmp_path / "blob")
    (folder / WEIGHTS).symlink_to(tmp_path / "blob")
    assert cli("fill", folder, "a <mask>").code == 0
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(WEIGHTS)
    assert str(folder) in refused()[0]
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    assert "has no config.json" in refused()[0]


# ---- config.json ---------------------------------------------------------------------------------------------------


SHAPES = {
    "num_hidden_layers": [10**12, 10**300, "twelve", -2, 2.5, [2]],
    "hidden_size": [2**40, True],
    "vocab_size": [{"a": 1}],
    "pad_token_id": [400, -1],
    "max_position_embeddings": [2],
    "hidden_dropout_prob": [3],
    "layer_norm_eps": [float("nan")],
    "initializer_range": [float("inf")],
    "attention_probs_dropout_prob": ["0.1"],
    "model_type": [["roberta"], None, {}],
    "hidden_act": [["gelu"]],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in SHAPES.items() for value in values])
def test_absurd_shapes_are_refused(refused, key, value, folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    for line in refused():
        assert key in line and str(folder) in line


def test_a_shape_of_a_million_layers_allocates_nothing(refused, folder):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 60_000_000}))
    assert "has no tensor roberta.encoder.layer.2" in refused()[0]


@pytest.mark.parametrize("content", ["", "[]", "null", "[" * 100_000, '{"hidden_size": ' + "1" * 5000 + "}", "\xff"])
def test_a_config_that_is_something_else_is_refused(refused, content, folder):
    (folder / "config.json").write_text(content, encoding="latin-1")
    assert f"{folder}/config.json" in refused()[0]


# ---- tokenizer.json ------------------------------------------------------------------------------------------------


STEPS = {
    "pre_tokenizer": [
        None,
        [[["ByteLevel"]]],
        {"type": "Sequence", "pretokenizers": 7},
        {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, 7]},
    ],
    "normalizer": [{"type": "NoSuch"}, {"type": "Replace", "pattern": {"Regex": "(((("}, "content": ""}],
    "decoder": [7],
}
NO_TOKENIZER = [((key,), value) for key, values in STEPS.items() for value in values]
NO_TOKENIZER += [(("model", "type"), "WordPiece"), (("model", "merges"), ["no such pair of tokens"])]
EVERY_VALUE = [
    *(("model",), ("model", "type"), ("model", "vocab"), ("model", "vocab", "a"), ("model", "merges")),
    *(("model", "merges", 0), ("added_tokens",), ("added_tokens", 0, "content"), ("added_tokens", 0, "id")),
]
WRONG = (None, True, -1, 2_000_000_000, 10**300, "0", ["<s>"], [["a", None]], {"a": "b"})
NO_TOKENIZER += [(path, value) for path in EVERY_VALUE for value in WRONG if (path[-1], value) != ("content", "0")]
"""(path in tokenizer.json, a value there that makes no tokenizer)."""


def test_absurd_tokenizers_are_refused(tokenizer, tmp_path):
    content = (Path(tokenizer) / "tokenizer.json").read_text()
    for path, value in NO_TOKENIZER:
        part = whole = json.loads(content)
        for name in path[:-1]:
            part = part[name]
        part[path[-1]] = value
        (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
        with pytest.raises(TokenizerError) as caught:
            load_tokenizer(str(tmp_path), special_tokens_are_text=True)
            pytest.fail(f"{path} {value} is read")
        line = str(caught.value)
        assert str(tmp_path / "tokenizer.json") in line and "\n" not in line and len(line) < 700, (path, value, line)


@pytest.mark.parametrize("content", ["", "[]", "null", "{}", "[" * 100_000, "\xff\xfe", '{"model": ' + "1" * 5000])
def test_a_tokenizer_that_is_something_else_is_refused(content, cli, corpus, tmp_path):
    (tmp_path / "tokenizer.json").write_text(content, encoding="latin-1")
    for command in (
        ("data", "prepare", corpus, "--tokenizer", tmp_path, "--to", tmp_path / "out"),
        ("tokenizer", "inspect", tmp_path, corpus),
    ):
        result = cli(*command)
        assert (result.code, str(tmp_path / "tokenizer.json") in result.error) == (2, True), result.err


def test_a_tokenizer_of_steps_in_steps_is_refused(cli, tokenizer, corpus, tmp_path):
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


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_named(refused, folder, value):
    """Training would only find a loss of nan, and advise a lower learning rate."""
    parameters = initial_parameters(SHAPE, 0)
    name = next(name for name in parameters if name.endswith("query.weight"))
    parameters[name][1, 2] = value
    save_file(parameters, str(folder / WEIGHTS))
    for line in refused():
        assert f"{name} holds numbers that are not finite" in line
