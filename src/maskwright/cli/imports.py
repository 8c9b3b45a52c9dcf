"""`maskwright import`."""

from __future__ import annotations

import dataclasses
import os
from typing import Literal

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, app, print_result
from maskwright.core.errors import InputError


@command(app, "import")
def import_(
    script: Literal["run_mlm", "run_glue", "fairseq", "tpu_pretrain", "weights"],
    command: str,
    out: str | None = None,
    devices: int | None = None,
    assignments: list[str] | None = None,
    files: list[str] | None = None,
    as_json: AsJson = False,
) -> None:
    """Turn another trainer's command into a run's YAML, and report what becomes of each flag; or turn pickled weights
    into a model folder.

    SCRIPT: What the command runs: run_mlm or run_glue (examples of transformers), fairseq, or tpu_pretrain (allenai's
        pretrain.py). Or weights, to convert a folder with pytorch_model.bin or a checkpoint of fairseq's RoBERTa.
    COMMAND: The whole command in single quotes, or a shell script that contains it. For weights: the folder or file.
    out --to FILE: YAML to write. Default: it is printed. For weights: the folder to write.
    --devices 1≤N (no SCRIPT weights): GPUs or TPU cores on all machines together, if the command does not set them.
    assignments --var NAME=VALUE (no SCRIPT weights): Value of a shell variable in the command. Repeatable.
    files --var-file FILE (no SCRIPT weights): File of NAME=VALUE lines that the script reads first. Repeatable.
    """
    from maskwright.core import storage
    from maskwright.core.console import answer, say, warn
    from maskwright.tasks.importing import imported
    from maskwright.tasks.importing.taken import table

    if script == "weights":
        _weights(command, out, as_json)
        return
    if out is not None and os.path.exists(out):
        raise InputError("is there already", where=out, fix="give --to another name, or move the file away")
    taken, text = imported(script, command, devices, assignments or (), files or ())
    if unknown := [row.flag for row in taken.rows if row.fate == "unknown"]:
        warn(f"{', '.join(unknown)}: unsupported, so left out")
    for row in taken.rows:
        if row.flag == "--devices" or (row.fate == "left out" and not row.flag.startswith("-")):
            warn(row.became)
    config = out or "run.yaml"
    if out is not None:
        storage.make_folder(os.path.dirname(os.path.abspath(out)))
        with storage.atomic_writer(out) as file:
            file.write(text.encode())
    if as_json:
        print_result("", taken.as_json(config, text), True)
    elif out is None:
        say(table(taken.rows))
        answer(text.rstrip("\n"))
    else:
        answer(table(taken.rows))
        for title, lines in (("Next", taken.commands(config)), ("On a TPU", taken.on_tpu(config))):
            if lines:
                answer(f"\n{title}:\n" + "\n".join(f"  {line}" for line in lines))


def _weights(source: str, folder: str | None, as_json: bool) -> None:
    from maskwright.core.console import typed, warn
    from maskwright.tasks.importing.weights import import_weights
    from maskwright.tasks.models.modules import warn_of_modules

    if folder is None:
        raise InputError("is missing", where="--to", fix=f"{typed(['import', 'weights', source, '--to'])} FOLDER")
    made = import_weights(source, folder)
    warn_of_modules(source, source)
    if made.left_out:
        warn(f"{len(made.left_out)} tensors are left out: {', '.join(made.left_out[:8])}")
    if not made.has_tokenizer:
        warn(f"{folder} has no tokenizer: copy the model's into it (tokenizer.json, or vocab.json and merges.txt)")
    if made.task != "masked_lm":
        kind = f"has the head of {made.task}" if made.task else "is a bare encoder"
        warn(f"{folder} {kind}, so it predicts no masked words; pretraining adds a new head, which must be trained")
    lines = [
        f"{made.folder}: {made.tensors} tensors. Computed with them, the model's numbers differ by at most "
        f"{made.difference:.2g} from transformers' and {made.compared_with}.",
        "\nNext:",
        *(f"  {line}" for line in made.commands),
    ]
    print_result("\n".join(lines), dataclasses.asdict(made), as_json)
