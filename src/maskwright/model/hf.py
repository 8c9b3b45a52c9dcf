"""Hugging Face folders, read with suspicion: weights as safetensors only, every tensor known and of the right shape."""

from __future__ import annotations

import os
import struct

import numpy as np

from maskwright.core import storage
from maskwright.core.errors import InputError, ModelError
from maskwright.model.config import ModelConfig
from maskwright.model.hf_config import FOR_MASKED_LM, read_hf_config
from maskwright.model.hf_names import Parameters, pieces

LONGEST_HEADER_BYTES = 100_000_000
# transformers writes the tied decoder under one of these names, or leaves it out.
TIED = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
    "decoder.weight": "model.embeddings.tok_embeddings.weight",
}


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
            head = piece.name.startswith("head.")
            fix = f"continue from a masked-LM folder ({FOR_MASKED_LM[config.architecture]})" if head else None
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
            f"has tensors that its architecture does not know: {', '.join(sorted(found)[:3])}",
            where=where,
            fix=f"continue from a plain {FOR_MASKED_LM[config.architecture]} folder",
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
