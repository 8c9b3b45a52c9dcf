"""Reads weights that torch pickled, with torch's restricted reader, which runs no code from a file.

That reader rebuilds tensors and plain values, and refuses every other name. Trainers also save their settings, whose
classes have names of their own: for those in `SETTINGS`, it gets our own class, which keeps an object's content from
the file and does nothing. Nothing that a file names is imported.
"""

from __future__ import annotations

import os
import pickletools
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING  # Python 2's names, with which protocol 2 is written
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from maskwright.core import storage
from maskwright.core.errors import ModelError
from maskwright.model.hf.other_folders import without_numbers
from maskwright.model.hf.safetensors_file import HOW_TO_PULL, LFS_POINTER

SETTINGS = (
    *("argparse", "datetime", "enum", "fairseq", "lightning", "lightning_fabric", "numpy", "omegaconf", "pathlib"),
    *("pytorch_lightning", "transformers", "types", "typing"),
)
"""Packages of the classes of settings and measurements."""
PLAIN = ("bool", "bytearray", "bytes", "complex", "dict", "float", "int", "list", "object", "set", "str", "tuple")
"""Built-in types that settings name."""
OF_TORCH = ("torch", "collections", "_codecs")
"""Packages for which torch's reader itself decides what it accepts."""
STATES = ("model", "state_dict", "module", "model_state_dict")
"""Keys of a checkpoint under which the weights are: of fairseq, Lightning, DeepSpeed and tutorials."""
LARGEST_PICKLE_BYTES = 100_000_000
"""Without the numbers. A checkpoint of 1,000 layers with its optimizer needs 5 MB."""
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
SAVE = "run torch.save(model.state_dict(), FILE) with the code that made it"


class Inert:
    """An object of a file's settings: the arguments and the state that the file gives it."""

    def __new__(cls, *arguments: Any) -> Inert:
        self = object.__new__(cls)
        self.arguments, self.state = arguments, {}
        return self

    def __init__(self, *arguments: Any) -> None:
        self.arguments: tuple[Any, ...]
        self.state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state


def read_pickled(path: str) -> Any:
    """The content of a file: tensors, plain values, and `Inert` objects. Tensors of files that torch 1.6 or a later one
    wrote stay on the disk until they are read. Raises `ModelError`."""
    stand_ins: list[Any] = [(_no_entries, "collections.defaultdict"), *((Inert, name) for name in _names(path))]
    try:
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=_is_archive(path))
    except Exception as error:  # a damaged file may raise nearly any
        told = (
            str(error).rpartition("WeightsUnpickler error: ")[2] or type(error).__name__
        )  # not torch's advice before it
        what = f"torch's restricted reader does not read it: {told.partition('. ')[0][:200]}"
        raise ModelError(what, where=path, fix=f"copy it again; or, {SAVE}") from None


def _no_entries(*arguments: Any) -> dict[Any, Any]:
    return {}


def _names(path: str) -> set[str]:
    """The classes and functions of other libraries that a file names. Raises `ModelError` for unneeded names."""
    try:
        found = set(_all_names(path))
    except (ValueError, zipfile.BadZipFile, EOFError, IndexError, UnicodeDecodeError) as error:
        with storage.open_binary(path) as file:
            is_pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
        if is_pointer:
            raise ModelError("is a pointer of Git LFS in place of the weights", where=path, fix=HOW_TO_PULL) from None
        raise ModelError(
            f"is no file that torch saved, or is cut off: {error}", where=path, fix="copy it again"
        ) from None
    if any(name.startswith("torch.nn.modules.") for name in found):
        raise ModelError("is a whole model, pickled with the code of its classes", where=path, fix=SAVE)
    result = {name for name in found if name.partition(".")[0] not in OF_TORCH}
    plain = {f"builtins.{name}" for name in PLAIN}
    if others := sorted(name for name in result if name.partition(".")[0] not in SETTINGS and name not in plain):
        what = f"names {', '.join(others[:3])}"[:200] + ", which no weights need, so it may be meant to run code"
        raise ModelError(what, where=path, fix=f"do not open it; if you trust its author, {SAVE}")
    return result


def _all_names(path: str) -> Iterator[str]:
    if not _is_archive(path):
        with storage.open_binary(path) as file:
            first = list(_steps(file))
            if LEGACY_MAGIC not in [value for _, value in first]:
                raise ValueError("it does not begin like such a file")
            for _ in range(3):  # the format's version, the machine, and the object
                yield from _named(_steps(file))
        return
    with zipfile.ZipFile(path) as archive:
        if any(os.path.basename(name) == "constants.pkl" for name in archive.namelist()):
            raise ModelError("is a TorchScript program", where=path, fix=SAVE)
        pickles = [info for info in archive.infolist() if os.path.basename(info.filename) == "data.pkl"]
        if len(pickles) != 1:
            raise ValueError("it has no data.pkl")
        if pickles[0].file_size > LARGEST_PICKLE_BYTES:
            raise ValueError(f"its data.pkl has {pickles[0].file_size:,} bytes")
        yield from _named(_steps(archive.read(pickles[0])))


def _is_archive(path: str) -> bool:
    """Whether torch 1.6 or a later one wrote the file."""
    with storage.open_binary(path) as file:
        return file.read(4) == b"PK\3\4"


def _steps(source: bytes | BinaryIO) -> Iterator[tuple[str, Any]]:
    for step, value, _ in pickletools.genops(source):
        yield step.name, value


def _named(steps: Iterator[tuple[str, Any]]) -> Iterator[str]:
    for step, value in steps:
        if step == "STACK_GLOBAL":
            raise ValueError("its protocol is 4 or later, which torch does not save with")
        if step in ("GLOBAL", "INST"):
            package, _, name = value.partition(" ")
            yield ".".join(NAME_MAPPING.get((package, name), (IMPORT_MAPPING.get(package, package), name)))


def state_of(content: Any, path: str) -> dict[str, torch.Tensor]:
    """The weights in what `read_pickled` returned, by their names. Raises `ModelError` without weights."""
    inner = [content.get(key) for key in STATES] if isinstance(content, Mapping) else []
    for state in (content, *inner):
        if isinstance(state, Mapping):
            tensors = {str(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}
            if error := without_numbers({name: tuple(value.shape) for name, value in tensors.items()}, path):
                raise error
            if any(value.ndim > 1 and value.is_floating_point() for value in tensors.values()):
                return tensors
    keys = ", ".join(map(str, list(content)[:5])) if isinstance(content, Mapping) else type(content).__name__
    raise ModelError(f"contains no weights, but {keys:.100}", where=path, fix=SAVE)


def arrays_of(state: Mapping[str, torch.Tensor], path: str) -> dict[str, NDArray[np.float32]]:
    """The floating-point tensors in fp32; others are counters and positions. Raises `ModelError` for tensors of other
    kinds, and for those that claim more numbers than their file has."""
    result: dict[str, NDArray[np.float32]] = {}
    for name, tensor in state.items():
        if tensor.is_quantized or tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise ModelError(f"{name} is quantised, sparse or without numbers", where=path, fix=SAVE)
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ModelError(f"{name} claims more numbers than the file has", where=path, fix="do not use this file")
        if tensor.is_floating_point():
            result[name] = tensor.detach().to(torch.float32).numpy()
    if sum(value.nbytes for value in result.values()) > 4 * max(os.path.getsize(path), 1):  # tied ones, of 16 bits
        raise ModelError("has the same numbers in very many tensors", where=path, fix="do not use this file")
    return result


def settings_of(content: Any, keys: Sequence[str]) -> dict[str, Any]:
    """The plain values of the settings at the first of `keys`, each a path such as `cfg.model`, that has any. They may
    be a dict, an `argparse.Namespace` or of omegaconf."""
    for path in keys:
        found = content
        for key in path.split("."):
            found = _entries(found).get(key)
        if entries := _entries(found):
            return {str(key): _value(value) for key, value in entries.items()}
    return {}


def _entries(value: Any) -> Mapping[Any, Any]:
    state = value.state if isinstance(value, Inert) else value
    state = state.get("_content", state) if isinstance(value, Inert) and isinstance(state, Mapping) else state
    return state if isinstance(state, Mapping) else {}


def _value(value: Any) -> Any:
    """The value of a node of omegaconf (`_val`) or of a member of an enumeration (its argument)."""
    if not isinstance(value, Inert):
        return value
    state = value.state if isinstance(value.state, Mapping) else {}
    return state.get("_val", value.arguments[0] if value.arguments else None)
