"""The kind of a folder or file that holds no model, and the way to a model."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from maskwright.core import storage
from maskwright.core.console import several, typed
from maskwright.core.errors import InputError, ModelError
from maskwright.core.hub import how_to_get

PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
NO_WEIGHTS = re.compile(r"(optimizer|scheduler|scaler|rng_state.*|training_args|openvino_model)\.\w+")
"""Files with such an ending that training writes next to the weights, and OpenVINO's, which is no pickle."""
JOINS = "zero_to_fp32.py"
"""The program that DeepSpeed puts next to the parts of a checkpoint, to join them."""


def require_folder(location: str) -> None:
    """Raises `InputError` unless it is a folder."""
    if os.path.isdir(location):
        return
    if not os.path.isfile(location):
        raise InputError("no such folder", where=location, fix=how_to_get(location))
    if location.endswith(PICKLED):
        raise ModelError("is a file of pickled weights", where=location, fix=_import(location))
    found = _foreign(os.path.dirname(location) or ".", [os.path.basename(location)])
    if found:
        raise ModelError(found[0], where=location, fix=found[1])
    raise InputError("is a file", where=location, fix=f"give its folder, {os.path.dirname(location) or '.'}")


def pickled_weights(names: Sequence[str]) -> list[str]:
    """A folder's names of pickled weights."""
    return [name for name in sorted(names) if name.endswith(PICKLED) and not NO_WEIGHTS.fullmatch(name)]


def without_config(folder: str) -> ModelError:
    """The error for a folder without config.json."""
    names = os.listdir(folder)
    if "config.resolved.json" in names:
        return ModelError(
            "is a run directory", where=folder, fix=f"{typed(['export', folder, '--to', 'FOLDER'])} first"
        )
    if {"starts.json", "status.json"} & {*names}:  # the record comes after them
        what = "is a run that was interrupted before it began, so it has no model"
        return ModelError(
            what, where=folder, fix="start its command again, which begins it, and let it save a checkpoint"
        )
    what = "has no config.json, and is not a run directory" if names else "is empty"
    if "adapter_config.json" in names:
        return _adapter(folder)
    if below := sorted(_models_in(folder), key=_number):
        others = f" (or {', '.join(os.path.basename(one) for one in below[:-1][:3])})" if below[1:] else ""
        return ModelError(what, where=folder, fix=f"give the folder inside it: {below[-1]}{others}")
    if near := storage.near(folder, "config.resolved.json"):
        return ModelError(what, where=folder, fix=f"did you mean {near}?")
    if found := _foreign(folder, names):
        return ModelError(found[0], where=folder, fix=found[1])
    if parent := model_above(folder):
        return ModelError(what, where=folder, fix=f"give the folder above it: {parent}")
    if pickled := pickled_weights(names):
        fix = f"{_import(os.path.join(folder, pickled[0]))}, for a fairseq checkpoint; for others, put config.json of "
        fix += "the model that was trained into the folder first"
        return ModelError("has no config.json next to its pickled weights", where=folder, fix=fix)
    if any(name.endswith(".safetensors") for name in names):
        fix = "put config.json of the model that was trained into the folder"
        return ModelError("has no config.json next to its weights", where=folder, fix=fix)
    return ModelError(what, where=folder, fix="give a folder with config.json and model.safetensors")


def without_weights(folder: str) -> ModelError:
    """The error for a folder with config.json, but without model.safetensors and its index."""
    names = os.listdir(folder)
    if "adapter_config.json" in names:
        return _adapter(folder)
    tensors = sorted(name for name in names if name.endswith(".safetensors"))
    if any(re.fullmatch(r"model-\d+-of-\d+\.safetensors", name) for name in tensors):
        fix = "copy model.safetensors.index.json too"
        return ModelError("has parts of its weights, but not their list", where=folder, fix=fix)
    if len(tensors) == 1:
        return ModelError(f"has no model.safetensors, but {tensors[0]}", where=folder, fix="rename that file")
    if pickled := pickled_weights(names):
        what = "holds pickled weights, which can run code when opened"
        source = folder if len(pickled) == 1 or pickled[0].startswith("pytorch_model") else None
        fix = _import(source or os.path.join(folder, pickled[-1]))
        return ModelError(what, where=os.path.join(folder, pickled[0]), fix=fix)
    if found := _foreign(folder, names):
        return ModelError(found[0], where=folder, fix=found[1])
    if below := sorted(_models_in(folder), key=_number):
        fix = f"give the folder inside it: {below[-1]}"
        return ModelError("has no model.safetensors", where=folder, fix=fix)
    fix = "save the model with transformers' save_pretrained"
    return ModelError("has no model.safetensors", where=folder, fix=fix)


def without_numbers(shapes: Mapping[str, tuple[int, ...]], where: str) -> ModelError | None:
    """The error for weights that are one process's part of a model, by their shapes; None for a model's. `where`: their
    folder or file."""
    if share := next((name for name in sorted(shapes) if "flat_param" in name), None):
        what = f"holds one process's part of a model that FSDP spread over several ({share})"
        fix = "in the code that made it, save the whole model: FSDP's FULL_STATE_DICT, or FULL_STATE_DICT of accelerate"
        return ModelError(what, where=where, fix=fix)
    empty = sorted(name for name, shape in shapes.items() if 0 in shape)
    matrices = [shape for name, shape in shapes.items() if name.endswith(".weight")]
    if matrices and set(matrices) == {(1,)}:  # older versions of DeepSpeed left one number
        empty = sorted(shapes)
    if not empty:
        return None
    what = f"{len(empty)} of its {several(len(shapes), 'tensor')} lack their numbers, such as {empty[0]}: "
    what += "DeepSpeed's ZeRO-3 had spread them over its processes"
    folder = where if os.path.isdir(where) else os.path.dirname(where) or "."
    return ModelError(what, where=where, fix=_joined(folder))


def model_above(folder: str) -> str | None:
    """The folder that `folder` lies in, such as `1_Pooling` in a model of sentence-transformers, if it is a model's."""
    parent = os.path.dirname(os.path.abspath(folder))
    return parent if _is_model(parent) else None


def _import(source: str) -> str:
    return typed(["import", "weights", source, "--to", "FOLDER"])


def _adapter(folder: str) -> ModelError:
    values = storage.read_json(os.path.join(folder, "adapter_config.json"))
    values = values if isinstance(values, dict) else {}
    kinds = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
    kinds |= {"QUESTION_ANS": "ForQuestionAnswering", "FEATURE_EXTRACTION": ""}
    kind = str(values.get("task_type"))
    base, auto = str(values.get("base_model_name_or_path") or "BASE"), f"AutoModel{kinds.get(kind, 'ForMaskedLM')}"
    arguments = f"{base!r}, num_labels=N" if kind in ("SEQ_CLS", "TOKEN_CLS") else f"{base!r}"
    fix = f"merge it first: from peft import PeftModel; from transformers import {auto}, AutoTokenizer; "
    fix += f"PeftModel.from_pretrained({auto}.from_pretrained({arguments}), {folder!r}).merge_and_unload()"
    fix += f".save_pretrained('NEW'); AutoTokenizer.from_pretrained({base!r}).save_pretrained('NEW')"
    return ModelError("is an adapter (PEFT, LoRA), which changes the weights of another model", where=folder, fix=fix)


def _foreign(folder: str, names: Sequence[str]) -> tuple[str, str] | None:
    """(what, fix) of weights that another library reads."""

    def first(*endings: str) -> str | None:
        return next((name for name in sorted(names) if name.endswith(endings)), None)

    if name := first(".distcp"):
        return f"holds a sharded checkpoint of FSDP ({name})", shlex.join(
            ["accelerate", "merge-weights", folder, "NEW"]
        )
    if JOINS in names:
        return "holds a checkpoint of DeepSpeed in parts", _joined(folder)
    if name := first(".ckpt.index", ".h5", ".ckpt.meta"):
        fix = (
            "convert it once, where transformers 4.49, tensorflow and tf-keras are installed: from transformers import "
        )
        if name.endswith(".h5"):
            fix += f"AutoModelForMaskedLM; AutoModelForMaskedLM.from_pretrained({folder!r}, from_tf=True)"
        else:
            stem = os.path.join(folder, name.rpartition(".")[0] + ".index")
            config = next((one for one in ("bert_config.json", "config.json") if one in names), "bert_config.json")
            fix += "BertConfig, BertForPreTraining; BertForPreTraining.from_pretrained("
            fix += f"{stem!r}, from_tf=True, config=BertConfig.from_json_file({os.path.join(folder, config)!r}))"
        return f"holds TensorFlow weights ({name})", f"{fix}.save_pretrained('NEW'); and copy the tokenizer into NEW"
    if name := first(".msgpack"):
        fix = "convert it once, where transformers 4.49 and flax are installed: from transformers import "
        fix += f"AutoModelForMaskedLM; AutoModelForMaskedLM.from_pretrained({folder!r}, from_flax=True)"
        return f"holds Flax weights ({name})", f"{fix}.save_pretrained('NEW'); and copy the tokenizer into NEW"
    if name := first(".gguf", ".onnx", "openvino_model.bin", "openvino_model.xml", ".tflite", ".mlmodel"):
        made = "use the folder with model.safetensors that it was made from"
        return f"holds {name}, which can be used, but not trained", made
    return None


def _joined(folder: str) -> str:
    """The way to whole weights from parts that DeepSpeed saved in `folder` or in a folder of it."""
    parts = [
        os.path.dirname(path)
        for pattern in ((JOINS,), ("*", JOINS))
        for path in glob.glob(os.path.join(glob.escape(folder), *pattern))
    ]
    if not parts:
        fix = f"use the checkpoint of that training with {JOINS}, or train again with "
        return f"{fix}stage3_gather_16bit_weights_on_model_save: true in DeepSpeed's configuration"
    newest = max(parts, key=_number)
    return f"python {JOINS} . NEW, in {newest}; then copy config.json and the tokenizer into NEW, and give NEW"


def _models_in(folder: str) -> Iterator[str]:
    """Folders in `folder`, or in the snapshots of a model in the cache of the Hub, with a model's config.json."""
    for pattern in (("*",), ("snapshots", "*")):
        for path in glob.glob(os.path.join(glob.escape(folder), *pattern, "config.json")):
            if _is_model(os.path.dirname(path)):
                yield os.path.dirname(path)


def _number(folder: str) -> tuple[int, str]:
    """Sorts checkpoint-1000 after checkpoint-500, and both after folders without a number."""
    name = os.path.basename(folder)
    match = re.fullmatch(r"checkpoint-(\d+)", name)
    return (int(match[1]) if match else -1, name)


def _is_model(folder: str) -> bool:
    values = None
    with suppress(InputError):  # a damaged one needs no remark here
        values = storage.read_json_or(None, folder, "config.json")
    return isinstance(values, dict) and isinstance(values.get("model_type"), str)
