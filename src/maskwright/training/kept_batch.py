"""The origins of a batch, kept for a step that cannot be computed.

RUN/not-finite/step-00001234/
  step.json              step, seeds, rates, the checkpoint before it, each row's documents with file and line
  batch-000.safetensors  the batch of virtual worker 0 as the model gets it
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from maskwright.core import storage
from maskwright.data.batch import Batch
from maskwright.data.loader import Loader
from maskwright.data.opening import Store
from maskwright.run.directory import RunDirectory, step_folder
from maskwright.training.tensor_file import write_tensors

FOLDER = "not-finite"


def origins(loader: Loader, store: Store, step: int) -> list[dict[str, Any]]:
    """The origins of all rows of the batch at `step`, by virtual worker: documents of the store's train side, each with
    `file:line` of the text that it was prepared from."""
    result, step_rows = [], loader.rows_at(step)
    for virtual_worker in range(loader.config.batch.virtual_workers):
        epochs, rows = loader.row_numbers(step, virtual_worker)
        for number, (epoch, row) in enumerate(zip(epochs.tolist(), rows.tolist(), strict=True)):
            documents = [{"document": one, "place": store.origin("train", one)} for one in step_rows.documents(row)]
            result.append({"virtual_worker": virtual_worker, "row": number, "epoch": epoch, "documents": documents})
    return result


def write_batches(directory: RunDirectory, batches: Sequence[Batch], step: int, record: dict[str, Any]) -> str:
    """Writes the folder of the step, and returns it. `batches`: by virtual worker."""
    folder = directory.path(FOLDER, step_folder(step))
    storage.make_folder(folder)
    for virtual_worker, batch in enumerate(batches):
        write_tensors(os.path.join(folder, f"batch-{virtual_worker:03d}.safetensors"), batch.arrays)
    storage.write_json(os.path.join(folder, "step.json"), {"step": step, **record})
    return folder
