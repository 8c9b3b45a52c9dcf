"""The origins of a batch, kept for a step that cannot be computed.

RUN/not-finite/step-00001234/
  step.json              step, seeds, rates, the checkpoint before it, each row's documents with file and line
  batch-000.safetensors  the batch of virtual worker 0 as the model gets it
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from maskwright.core import storage
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.data.opening import Store
from maskwright.run.directory import RunDirectory, step_folder
from maskwright.training.masked_lm import masks_at
from maskwright.training.tensor_file import write_tensors

FOLDER = "not-finite"


@dataclass(frozen=True)
class Origin:
    """A document of the store's train side, and `file:line` of the text that it was prepared from."""

    document: int
    place: str


@dataclass(frozen=True)
class RowOrigin:
    """The origin of a row of a batch."""

    virtual_worker: int
    row: int
    epoch: int
    documents: list[Origin]


def origins(loader: Loader, store: Store, step: int) -> list[RowOrigin]:
    """The origins of all rows of the batch at `step`, by virtual worker."""
    result, step_rows = [], loader.rows_at(step)
    for virtual_worker in range(loader.config.batch.virtual_workers):
        epochs, rows = loader.row_numbers(step, virtual_worker)
        for number, (epoch, row) in enumerate(zip(epochs.tolist(), rows.tolist(), strict=True)):
            documents = [Origin(document, store.origin("train", document)) for document in step_rows.documents(row)]
            result.append(RowOrigin(virtual_worker, number, epoch, documents))
    return result


def write_bundle(directory: RunDirectory, loader: Loader, store: Store, *, step: int, details: dict[str, Any]) -> str:
    """Writes the folder of the step, and returns it."""
    rows = [asdict(row) for row in origins(loader, store, step)]
    masks = masks_at(loader, step)
    record = {"seed": loader.config.seed, **masks, **details, "rows": rows}
    return _write(directory, loader.batches(step), step, record)


def write_examples(
    directory: RunDirectory, batches: Sequence[Batch], places: list[str], *, step: int, details: dict[str, Any]
) -> str:
    """Writes the folder for a step of fine-tuning; `places` are `file:line` of its examples. Returns the folder."""
    return _write(directory, batches, step, {**details, "examples": places})


def _write(directory: RunDirectory, batches: Sequence[Batch], step: int, record: dict[str, Any]) -> str:
    folder = directory.path(FOLDER, step_folder(step))
    storage.make_folder(folder)
    for virtual_worker, batch in enumerate(batches):
        write_tensors(os.path.join(folder, f"batch-{virtual_worker:03d}.safetensors"), batch.arrays)
    storage.write_json(os.path.join(folder, "step.json"), {"step": step, **record})
    return folder
