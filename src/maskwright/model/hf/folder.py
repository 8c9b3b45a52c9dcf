"""Reading untrusted Hugging Face folders: weights only as safetensors, every tensor known and of the right shape."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import InputError, ModelError
from maskwright.model.config import ModelConfig
from maskwright.model.hf.config import class_name, read_hf_config
from maskwright.model.hf.names import Parameters, Piece, pieces
from maskwright.model.hf.safetensors_file import Tensor, tensors_of

# transformers writes the tied decoder under one of these names, or leaves it out.
TIED = {
    "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight",
    "decoder.weight": "model.embeddings.tok_embeddings.weight",
}
OLD_ENDS = {".gamma": ".weight", ".beta": ".bias"}
"""What the first BERTs call the numbers of a LayerNorm; transformers renames them too."""
OTHER_HEADS = (".pooler.", "cls.seq_relationship.")
"""Parts that masked-LM training does not have: BERT's pooler and its next-sentence head."""


PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def read_hf_parameters(folder: str, config: ModelConfig) -> Parameters:
    """fp32 arrays under Hugging Face names from `model.safetensors` (or its numbered parts).

    Raises `ModelError` for a missing, extra or misshapen tensor, for numbers that are not finite, and for pickled
    weights, which are never opened. Only the pooler, which masked-LM training does not have, is left aside.
    """
    found: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        for name, tensor in tensors_of(path).items():
            if name in found:
                raise ModelError(f"{name} is in two of its files", where=folder, fix="copy the folder again")
            if ".pooler." not in name and not name.endswith("position_ids"):
                found[name] = tensor
    twins = {name: found.pop(tied) for tied, name in TIED.items() if tied in found}
    for name, twin in twins.items():
        found.setdefault(name, twin)
    _require_fit(found, config, folder)
    result = {piece.hf_name: found[piece.hf_name].read() for piece in pieces(config)}
    for name, value in result.items():
        if not np.isfinite(value).all():
            fix = "take an earlier copy of the model"
            raise ModelError(f"{name} holds numbers that are not finite", where=folder, fix=fix)
    for name, twin in twins.items():
        if found[name] is not twin and not _equal(twin, result[name]):
            fix = "only models whose head shares the embeddings can be read"
            raise ModelError(f"{twin.name} is not tied to {name}", where=folder, fix=fix)
    return result


def weight_digests(folder: str) -> dict[str, str]:
    """sha256 of each file of a folder's weights, as the Hugging Face hub shows it. Raises `ModelError`."""
    return {os.path.basename(path): storage.sha256_of_file(path) for path in _weight_files(folder)}


def _equal(twin: Tensor, value: NDArray[np.float32]) -> bool:
    return twin.shape == value.shape and np.array_equal(twin.read(), value)


def _require_fit(found: dict[str, Tensor], config: ModelConfig, where: str) -> None:
    """Raises `ModelError` unless the tensors are those of `config`, each of its shape. None of them is read yet."""
    known = set()
    for piece in pieces(config):
        tensor = found.get(piece.hf_name)
        if tensor is None:
            raise _lacking(piece, found, config, where)
        if tensor.shape != piece.shape:
            fix = "restore config.json, or the weights that belong to it"
            raise ModelError(f"{piece.hf_name} is {tensor.shape}, config.json says {piece.shape}", where=where, fix=fix)
        known.add(piece.hf_name)
    if extra := sorted(set(found) - known):
        what = f"has tensors that its architecture does not know: {', '.join(extra[:3])}"[:300]
        raise ModelError(what, where=where, fix=f"continue from a plain {class_name(config)} folder")


def _lacking(piece: Piece, found: dict[str, Tensor], config: ModelConfig, where: str) -> ModelError:
    bare, kind = piece.hf_name.partition(".")[2], class_name(config)
    if bare in found:
        head = "masked-LM head" if config.task == "masked_lm" else "head"
        what = f"is a bare encoder, saved without its {head}: it has {bare}, not {piece.hf_name}"
        return ModelError(what, where=where, fix=f"take the {kind} folder that it was made from")
    fix = "restore config.json, or the weights that belong to it"
    if piece.name.startswith("head.") and config.task == "masked_lm":
        fix = f"continue from a masked-LM folder ({kind})"
    return ModelError(f"has no tensor {piece.hf_name}", where=where, fix=fix)


def _weight_files(folder: str) -> list[str]:
    single, index = (
        os.path.join(folder, "model.safetensors"),
        os.path.join(folder, "model.safetensors.index.json"),
    )
    if os.path.isfile(single):
        return [single]
    if os.path.isfile(index):
        return _listed(folder, index)
    pickled = [name for name in sorted(os.listdir(folder)) if name.endswith(PICKLED)]
    if pickled:
        raise ModelError(
            "holds pickled weights, which can run code when opened",
            where=os.path.join(folder, pickled[0]),
            fix="in a sandbox without network, once: from transformers import AutoModelForMaskedLM; "
            "AutoModelForMaskedLM.from_pretrained(OLD).save_pretrained(NEW); see docs/pickled-weights.md",
        )
    raise ModelError("has no model.safetensors", where=folder, fix="save the model with transformers' save_pretrained")


def _listed(folder: str, index: str) -> list[str]:
    """The files that an index names, all in its folder. They may be links, as in hub caches."""
    content = storage.read_json(index)
    listed = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(listed, dict) or not listed or not all(isinstance(name, str) for name in listed.values()):
        raise ModelError("has no weight_map of file names", where=index, fix="copy the folder again")
    names = sorted(set(listed.values()))
    for name in names:
        if os.path.basename(name) != name or not name.endswith(".safetensors") or "\0" in name:
            what = f"names a file outside its folder, or of another kind: {name[:80]!r}"
            raise ModelError(what, where=index, fix="do not use this folder unless you trust who made it")
        if not os.path.isfile(os.path.join(folder, name)):
            raise ModelError("is missing", where=os.path.join(folder, name), fix="copy the folder again")
    return [os.path.join(folder, name) for name in names]


def read_model_folder(folder: str) -> tuple[ModelConfig, Parameters]:
    """Config and parameters of a Hugging Face folder. Raises `ModelError`."""
    if not os.path.isdir(folder):
        raise InputError("is not a folder", where=folder, fix="give a run directory or a Hugging Face folder")
    config = read_hf_config(folder)
    return config, read_hf_parameters(folder, config)
