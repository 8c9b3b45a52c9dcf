"""Reads untrusted Hugging Face folders: weights only as safetensors, every tensor known and of the right shape."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.console import note, several
from maskwright.core.errors import ModelError
from maskwright.model.config import SEQUENCE_TASKS, ModelConfig
from maskwright.model.hf.config import class_name, read_hf_config
from maskwright.model.hf.former import in_names_of_the_class, without_wrappers
from maskwright.model.hf.names import (
    Parameters,
    WeightSlice,
    encoder_pieces,
    encoder_prefix,
    has_pooler,
    pieces,
    tied_names,
)
from maskwright.model.hf.other_folders import without_numbers, without_weights
from maskwright.model.hf.safetensors_file import Tensor, tensors_of

MASKED_LM_HEADS = ("lm_head.", "cls.predictions.", "vocab_transform.", "head.")
NEW_HEAD = "; or pretrain with --set model.new_head=true"


def read_encoder(folder: str, config: ModelConfig) -> Parameters:
    """Reads parameters like `read_hf_parameters`, without the head, from a folder with any head or none. `config.task`
    is the requested head, not the folder's."""
    return _without_head(_tensors(folder, config), config, folder)


def _without_head(found: dict[str, Tensor], config: ModelConfig, folder: str) -> Parameters:
    prefix = encoder_prefix(config)
    tensors = {name if name.startswith(prefix) else prefix + name: tensor for name, tensor in found.items()}
    _require(encoder_pieces(config), tensors, config, folder)
    return _finite({piece.hf_name: tensors[piece.hf_name].read() for piece in encoder_pieces(config)}, folder)


def read_hf_parameters(folder: str, config: ModelConfig) -> Parameters:
    """fp32 arrays under Hugging Face names from `model.safetensors` (or its numbered parts).

    Raises `ModelError` for a missing, extra or misshapen tensor, for numbers that are not finite, and for pickled
    weights, which are never opened. A pooler and BERT's next-sentence head are ignored, since masked-LM training has
    neither; so are the head of ESM-2 for contacts, the heads of DeBERTa v3's own training, and the unused table of
    positions that the first folders of both have.
    """
    return _with_head(_tensors(folder, config), config, folder)


def _with_head(found: dict[str, Tensor], config: ModelConfig, folder: str) -> Parameters:
    keeps_pooler = config.task in SEQUENCE_TASKS and has_pooler(config)
    ignored = ("position_ids", "cls.seq_relationship.", *([] if keeps_pooler else [".pooler."]))
    if config.architecture == "esm":
        ignored += (".contact_head.", ".inv_freq", ".position_embeddings.")
    if config.facts.relative == "terms":
        ignored += ("lm_predictions.", "mask_predictions.")
        ignored += () if config.learned_positions else (".position_embeddings.",)
    tensors = {name: tensor for name, tensor in found.items() if not any(part in name for part in ignored)}
    twins = {name: tensors.pop(tied) for tied, name in tied_names(config).items() if tied in tensors}
    for name, twin in twins.items():
        tensors.setdefault(name, twin)
    _require_fit(tensors, config, folder)
    result = _finite({piece.hf_name: tensors[piece.hf_name].read() for piece in pieces(config)}, folder)
    for name, twin in twins.items():
        if tensors[name] is not twin and not _equal(twin, result[name]):
            fix = "use a model whose head shares the embeddings"
            raise ModelError(f"{twin.name} is not tied to {name}", where=folder, fix=fix)
    return result


def _tensors(folder: str, config: ModelConfig) -> dict[str, Tensor]:
    files: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        found = tensors_of(path)
        if twice := sorted(files.keys() & found.keys()):
            raise ModelError(f"{twice[0]} is in two of its files", where=folder, fix="copy the folder again")
        files |= found
    if error := without_numbers({name: tensor.shape for name, tensor in files.items()}, folder):
        raise error
    if any(".lora_" in name for name in files) or os.path.isfile(os.path.join(folder, "adapter_config.json")):
        fix = "merge it: MODEL.merge_and_unload().save_pretrained(NEW); if it is merged, remove adapter_config.json"
        raise ModelError("has an adapter's weights (PEFT, LoRA) as well as the model's", where=folder, fix=fix)
    names, taken_off = without_wrappers(files, config)
    if taken_off:
        note(f"weights: {' and '.join(taken_off)} in the names of {folder} is a wrapper's prefix, which is removed")
    tensors: dict[str, Tensor] = {}
    for old, whole in files.items():
        for name, tensor in in_names_of_the_class(names[old], whole, config.architecture):
            if name in tensors:
                raise ModelError(f"has two tensors for {name}", where=folder, fix="save the model again")
            tensors[name] = tensor
    return tensors


def _finite(parameters: Parameters, folder: str) -> Parameters:
    for name, value in parameters.items():
        if not np.isfinite(value).all():
            fix = "use an earlier copy of the model"
            raise ModelError(f"{name} holds numbers that are not finite", where=folder, fix=fix)
    return parameters


def weight_digests(folder: str) -> dict[str, str]:
    """sha256 of each file of a folder's weights, as the Hugging Face hub shows it. Raises `ModelError`."""
    return {os.path.basename(path): storage.sha256_of_file(path) for path in _weight_files(folder)}


def _equal(twin: Tensor, value: NDArray[np.float32]) -> bool:
    return twin.shape == value.shape and np.array_equal(twin.read(), value)


def _require_fit(tensors: dict[str, Tensor], config: ModelConfig, where: str) -> None:
    """Raises `ModelError` unless the tensors match `config` in names and shapes. None of them is read yet."""
    _require(pieces(config), tensors, config, where)
    if extra := sorted(set(tensors) - {piece.hf_name for piece in pieces(config)}):
        what = f"has tensors that its architecture lacks: {', '.join(extra[:3])}"[:300]
        raise ModelError(what, where=where, fix=f"continue from a plain {class_name(config)} folder")


def _require(expected: Iterable[WeightSlice], tensors: dict[str, Tensor], config: ModelConfig, where: str) -> None:
    for piece in expected:
        tensor = tensors.get(piece.hf_name)
        if tensor is None:
            raise _lacking(piece, tensors, config, where)
        if tensor.shape != piece.shape:
            fix = "restore config.json, or the weights that belong to it"
            what = f"{piece.hf_name} is {tensor.shape}, not {piece.shape} of config.json"
            raise ModelError(what, where=where, fix=fix)


def _lacking(piece: WeightSlice, tensors: dict[str, Tensor], config: ModelConfig, where: str) -> ModelError:
    bare, kind = piece.hf_name.partition(".")[2], class_name(config)
    ends = () if piece.name.startswith("head.") else (f".{piece.hf_name}", f".{bare}")
    if wrapped := next((name for name in sorted(tensors) if name.endswith(ends)), None):
        what = f"has {wrapped} in place of {piece.hf_name}: a wrapper's names, or another model's"
        fix = "save the model inside the wrapper again: MODEL.save_pretrained(FOLDER)"
        return ModelError(what, where=where, fix=fix)
    if bare in tensors:
        head = "masked-LM head" if config.task == "masked_lm" else "head"
        what = f"is a bare encoder, saved without its {head}: it has {bare}, not {piece.hf_name}"
        return ModelError(what, where=where, fix=f"use the {kind} folder that it was made from{NEW_HEAD}")
    fix = "restore config.json, or the weights that belong to it"
    if piece.name.startswith("head.") and config.task == "masked_lm":
        fix = f"continue from a masked-LM folder ({kind}){NEW_HEAD}"
    return ModelError(f"has no tensor {piece.hf_name}", where=where, fix=fix)


def _weight_files(folder: str) -> list[str]:
    single, index = (
        os.path.join(folder, "model.safetensors"),
        os.path.join(folder, "model.safetensors.index.json"),
    )
    if os.path.isfile(single):
        return [single]
    if os.path.isfile(index):
        return listed(folder, index, ".safetensors")
    raise without_weights(folder)


def listed(folder: str, index: str, ending: str) -> list[str]:
    """The files that an index names, all in its folder. They may be links, as in hub caches. Raises `ModelError`."""
    content = storage.read_json(index)
    file_of = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(file_of, dict) or not file_of or not all(isinstance(name, str) for name in file_of.values()):
        raise ModelError("has no weight_map of file names", where=index, fix="copy the folder again")
    names = sorted(set(file_of.values()))
    for name in names:
        if os.path.basename(name) != name or not name.endswith(ending) or "\0" in name:
            what = f"names a file outside its folder, or of another kind: {name[:80]!r}"
            raise ModelError(what, where=index, fix="do not use this folder unless you trust its author")
    paths = [os.path.join(folder, name) for name in names]
    if missing := [path for path in paths if not os.path.isfile(path)]:
        which = "it" if len(missing) == 1 else f"it and {', '.join(map(os.path.basename, missing[1:4]))}"
        what = f"is missing; {index} lists {several(len(names), 'file')}, and {len(missing)} of them are not here"
        raise ModelError(what, where=missing[0], fix=f"copy {which} too")
    return paths


def read_model_folder(folder: str, *, bare: bool = False) -> tuple[ModelConfig, Parameters]:
    """Config and parameters of a Hugging Face folder. Raises `ModelError`.

    `bare`: an encoder without a head is accepted, and BERT's pooler is read too if there is one: it is the first matrix
    of BERT's classifiers."""
    config = read_hf_config(folder)
    if not bare or config.task != "masked_lm":
        return config, read_hf_parameters(folder, config)
    tensors = _tensors(folder, config)
    whole = any(name.startswith(MASKED_LM_HEADS) for name in tensors)
    parameters = (_with_head if whole else _without_head)(tensors, config, folder)
    if has_pooler(config):
        prefix = encoder_prefix(config)
        pooler = {name: tensor.read() for name, tensor in tensors.items() if "pooler.dense." in name}
        parameters |= _finite({prefix + name.removeprefix(prefix): value for name, value in pooler.items()}, folder)
    return config, parameters
