"""Hugging Face names: the one table that ties a `RobertaForMaskedLM` state dict and config to this model.

Parameters travel everywhere (checkpoints, engines, export) as fp32 numpy arrays under Hugging Face names. Inside,
query, key and value are one matrix and the vocabulary is padded; `pieces` says which rows of which inner parameter a
name is.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import ConfigError, InputError, ModelError
from maskwright.model.config import POSITION_OFFSET, ModelConfig

Parameters = dict[str, NDArray[np.float32]]
# What `RobertaConfig` takes for a key that config.json leaves out.
HF_DEFAULTS: dict[str, Any] = {
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
LARGEST_DIMENSION = 2**26
LONGEST_HEADER_BYTES = 100_000_000
# transformers writes the tied decoder under one of these names, or leaves it out.
TIED = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}


@dataclass(frozen=True)
class Piece:
    """`hf_name` is rows `rows` of the inner parameter `name`; `shape` is the Hugging Face shape."""

    hf_name: str
    name: str
    rows: slice
    shape: tuple[int, ...]


def pieces(config: ModelConfig) -> Iterator[Piece]:
    """Every trainable parameter of `RobertaForMaskedLM`, tied weights once."""
    V, D, F = config.vocab_size, config.hidden_size, config.intermediate_size

    def whole(hf_name: str, name: str, *shape: int) -> Piece:
        return Piece(hf_name, name, slice(0, shape[0]), shape)

    def linear(hf_name: str, name: str, rows: int, columns: int) -> Iterator[Piece]:
        yield whole(f"{hf_name}.weight", f"{name}.weight", rows, columns)
        yield whole(f"{hf_name}.bias", f"{name}.bias", rows)

    def norm(hf_name: str, name: str) -> Iterator[Piece]:
        yield whole(f"{hf_name}.weight", f"{name}.weight", D)
        yield whole(f"{hf_name}.bias", f"{name}.bias", D)

    embeddings = "roberta.embeddings"
    yield whole(f"{embeddings}.word_embeddings.weight", "word.weight", V, D)
    yield whole(f"{embeddings}.position_embeddings.weight", "position.weight", config.max_position_embeddings, D)
    yield whole(f"{embeddings}.token_type_embeddings.weight", "token_type.weight", config.type_vocab_size, D)
    yield from norm(f"{embeddings}.LayerNorm", "norm")
    for i in range(config.num_hidden_layers):
        theirs, ours = f"roberta.encoder.layer.{i}", f"layers.{i}"
        for part, role in enumerate(("query", "key", "value")):
            rows = slice(part * D, (part + 1) * D)
            yield Piece(f"{theirs}.attention.self.{role}.weight", f"{ours}.qkv.weight", rows, (D, D))
            yield Piece(f"{theirs}.attention.self.{role}.bias", f"{ours}.qkv.bias", rows, (D,))
        yield from linear(f"{theirs}.attention.output.dense", f"{ours}.out", D, D)
        yield from norm(f"{theirs}.attention.output.LayerNorm", f"{ours}.norm1")
        yield from linear(f"{theirs}.intermediate.dense", f"{ours}.up", F, D)
        yield from linear(f"{theirs}.output.dense", f"{ours}.down", D, F)
        yield from norm(f"{theirs}.output.LayerNorm", f"{ours}.norm2")
    yield from linear("lm_head.dense", "head.dense", D, D)
    yield from norm("lm_head.layer_norm", "head.norm")
    yield whole("lm_head.bias", "head.bias", V)


def initial_parameters(config: ModelConfig, seed: int) -> Parameters:
    """RoBERTa's initialisation: matrices and embeddings normal(0, 0.02), the pad rows, biases 0, LayerNorm 1 and 0.

    In numpy, each parameter from its own key (Philox of the seed and the name), so that every engine and every order of
    asking gives the same numbers.
    """
    result: Parameters = {}
    for piece in pieces(config):
        if piece.hf_name.endswith("bias"):
            value = np.zeros(piece.shape, np.float32)
        elif "norm" in piece.hf_name.lower():
            value = np.ones(piece.shape, np.float32)
        else:
            name_key = int.from_bytes(bytes.fromhex(storage.sha256_of(piece.hf_name)[:16]), "little")
            generator = np.random.Generator(np.random.Philox(key=np.array([seed, name_key], np.uint64)))
            value = generator.standard_normal(piece.shape, np.float32) * np.float32(config.initializer_range)
        if piece.name in ("word.weight", "position.weight"):
            value[config.pad_token_id] = 0.0
        result[piece.hf_name] = value
    return result


def to_hf_config(config: ModelConfig) -> dict[str, Any]:
    """`config.json` of a Hugging Face folder."""
    return {
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "hidden_size": config.hidden_size,
        "initializer_range": config.initializer_range,
        "intermediate_size": config.intermediate_size,
        "layer_norm_eps": config.layer_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "num_attention_heads": config.num_attention_heads,
        "num_hidden_layers": config.num_hidden_layers,
        "pad_token_id": config.pad_token_id,
        "tie_word_embeddings": True,
        "type_vocab_size": config.type_vocab_size,
        "dtype": "float32",
        "vocab_size": config.vocab_size,
    }


def read_hf_config(folder: str) -> ModelConfig:
    """Raises `ModelError` where the folder's model is not a RoBERTa that this one computes exactly."""
    path = os.path.join(folder, "config.json")
    if not os.path.isfile(path):
        raise ModelError("has no config.json", where=folder, fix="give a Hugging Face RoBERTa folder")
    values = storage.read_json(path)
    if not isinstance(values, dict) or values.get("model_type") != "roberta":
        found = values.get("model_type") if isinstance(values, dict) else None
        raise ModelError(f"model_type is {found!r}, not 'roberta'", where=path, fix="only RoBERTa models can be read")
    defaults = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
    for key, needed in defaults.items():
        if values.get(key, needed) not in (needed, None):
            raise ModelError(
                f"{key} is {values[key]!r}, only {needed!r} is supported",
                where=path,
                fix="only models with this setting can be read",
            )
    names = ModelConfig.__dataclass_fields__
    shape = HF_DEFAULTS | {key: values[key] for key in names if values.get(key) is not None}
    for key in names:
        value = shape.get(key)
        if not _plausible(key, value):
            raise ModelError(f"{key} is {value!r}, which it cannot be", where=path, fix="restore config.json")
    try:
        return ModelConfig(**shape)
    except ConfigError as error:
        raise ModelError(error.what, where=path, fix="restore config.json") from None


def _plausible(key: str, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if key.endswith("_prob"):
        return 0.0 <= value < 1.0
    if key in ("layer_norm_eps", "initializer_range"):
        return 0.0 <= value < 1.0
    if not isinstance(value, int):
        return False
    if key.endswith("_token_id"):
        return value >= 0
    return (POSITION_OFFSET if key == "max_position_embeddings" else 0) < value < LARGEST_DIMENSION


def read_hf_parameters(folder: str, config: ModelConfig) -> Parameters:
    """fp32 arrays under Hugging Face names from `model.safetensors` (or its numbered parts).

    Raises `ModelError` for a missing, extra or misshapen tensor, and for pickled weights, which are never opened.
    Only the pooler, which masked-LM training does not have, is left aside.
    """
    found: Parameters = {}
    for path in _weight_files(folder):
        _refuse_absurd_header(path)
        found |= _read_as_fp32(path)
    found = {
        name: value for name, value in found.items() if ".pooler." not in name and not name.endswith("position_ids")
    }
    for tied, name in TIED.items():
        if tied in found:
            found.setdefault(name, found[tied])
            if not np.array_equal(found.pop(tied), found[name]):
                raise ModelError(
                    f"{tied} is not tied to {name}",
                    where=folder,
                    fix="only models whose head shares the embeddings can be read",
                )
    return _checked(found, config, folder)


def _read_as_fp32(path: str) -> Parameters:
    from safetensors import SafetensorError, deserialize

    with storage.open_binary(path) as file:
        content = file.read()
    try:
        tensors = deserialize(content)
    except SafetensorError as error:
        raise ModelError(f"cannot be read: {error}", where=path, fix="copy it again") from None
    result: Parameters = {}
    for name, tensor in tensors:
        kind, data = tensor["dtype"], tensor["data"]
        if kind == "BF16":  # the upper half of an fp32
            value = (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
        elif kind in ("F16", "F32", "F64"):
            value = np.frombuffer(data, f"<f{int(kind[1:]) // 8}").astype(np.float32)
        elif kind == "I64":
            continue  # position_ids of old versions
        else:
            raise ModelError(
                f"{name} is {kind}, not a floating-point tensor", where=path, fix="save the model in fp32, bf16 or fp16"
            )
        result[name] = value.reshape(tensor["shape"])
    return result


def _checked(found: Parameters, config: ModelConfig, where: str) -> Parameters:
    result: Parameters = {}
    for piece in pieces(config):
        value = found.pop(piece.hf_name, None)
        if value is None:
            fix = "continue from a masked-LM folder (RobertaForMaskedLM)" if "lm_head" in piece.hf_name else None
            raise ModelError(f"has no tensor {piece.hf_name}", where=where, fix=fix)
        if value.shape != piece.shape:
            raise ModelError(
                f"{piece.hf_name} is {value.shape}, config.json says {piece.shape}",
                where=where,
                fix="restore config.json, or the weights that belong to it",
            )
        result[piece.hf_name] = value
    if found:
        raise ModelError(
            f"has tensors that RoBERTa does not know: {', '.join(sorted(found)[:3])}",
            where=where,
            fix="continue from a plain RobertaForMaskedLM folder",
        )
    return result


def _weight_files(folder: str) -> list[str]:
    single, index = (
        os.path.join(folder, "model.safetensors"),
        os.path.join(folder, "model.safetensors.index.json"),
    )
    if os.path.isfile(single):
        return [single]
    if os.path.isfile(index):
        content = storage.read_json(index)
        listed = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
            raise ModelError("has no weight_map of file names", where=index, fix="copy the folder again")
        names = sorted(set(listed.values()))
        for name in names:
            if os.path.basename(name) != name:
                raise ModelError(
                    f"names a file outside its folder: {name}",
                    where=index,
                    fix="do not use this folder unless you trust who made it",
                )
            if not os.path.isfile(os.path.join(folder, name)):
                raise ModelError("is missing", where=os.path.join(folder, name), fix="copy the folder again")
        return [os.path.join(folder, name) for name in names]
    for pickled in ("pytorch_model.bin", "pytorch_model.pt"):
        if os.path.exists(os.path.join(folder, pickled)):
            raise ModelError(
                "holds pickled weights, which can run code when opened",
                where=os.path.join(folder, pickled),
                fix="convert it once to model.safetensors: transformers' save_pretrained does, in a sandbox",
            )
    raise ModelError("has no model.safetensors", where=folder, fix="save the model with transformers' save_pretrained")


def _refuse_absurd_header(path: str) -> None:
    size = os.path.getsize(path)
    with storage.open_binary(path) as file:
        beginning = file.read(8)
    header = struct.unpack("<Q", beginning)[0] if len(beginning) == 8 else size + 1
    if header > min(size, LONGEST_HEADER_BYTES):
        raise ModelError(f"claims a header of {header:,} bytes in a file of {size:,}", where=path, fix="copy it again")


def read_model_folder(folder: str) -> tuple[ModelConfig, Parameters]:
    """Config and parameters of a Hugging Face folder. Raises `ModelError`."""
    if not os.path.isdir(folder):
        raise InputError("is not a folder", where=folder, fix="give a run directory or a Hugging Face folder")
    config = read_hf_config(folder)
    return config, read_hf_parameters(folder, config)
