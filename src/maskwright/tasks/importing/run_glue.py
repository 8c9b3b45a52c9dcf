"""`run_glue.py` of transformers' examples: a task of GLUE, or the user's own CSV or JSON files."""

from __future__ import annotations

import itertools
import os
from typing import Any

from maskwright.config import recipes
from maskwright.config.foreign_names import VALUES
from maskwright.config.settings import parse_yaml
from maskwright.core import hub
from maskwright.core.errors import InputError
from maskwright.labels.scoring import METRICS
from maskwright.tasks.importing.run_mlm import fetched_data
from maskwright.tasks.importing.taken import Taken, shown
from maskwright.tasks.importing.trainer import LEFT_OUT, MAPPED, NOT_NEEDED, SWITCHES, begin, training
from maskwright.tasks.importing.typed import ScriptSignature, Typed
from maskwright.text.tables import open_table

SCRIPT = ScriptSignature(("run_glue.py", "run_glue_no_trainer.py", "run_classification.py"), switches=SWITCHES)
COLUMNS = ("data.text", "data.text_pair", "data.label")
LOOKED_AT = 200
"""Lines of the training file that are read to see whether its labels are numbers with a fraction."""


def run_glue(typed: Typed) -> Taken:
    taken = Taken(typed, verb="finetune")
    begin(taken)
    taken.run_in("output_dir")
    if task := taken.text("task_name"):
        _task(taken, task)
    else:
        _files(taken)
    name_or_path = taken.text("model_name_or_path") or "model"
    folder = hub.as_location(name_or_path, taken.text("model_revision"))
    taken.set("model_name_or_path", {"model.init_from": folder})
    for name in ("config_name", "tokenizer_name"):
        if taken.text(name) in (name_or_path, folder):
            taken.note(name, "part of the folder of --model_name_or_path", "not needed")
    rows, steps = taken.whole("per_device_train_batch_size", 8), taken.whole("gradient_accumulation_steps", 1)
    note = f"{rows} x {steps} accumulated x {taken.count}"
    taken.set("per_device_train_batch_size", {"batch.examples": rows * steps * typed.devices}, note)
    if typed.devices > 1:
        taken.values["batch.virtual_workers"] = typed.devices
    taken.take({"max_seq_length": 128})
    training(taken)
    taken.take({"label_smoothing_factor": float})
    _best(taken)
    taken.patience("early_stopping_patience")
    parts = "data.train, data.validation and data.test name the files of each split"
    left_out = {
        "config_name tokenizer_name": "the model's own is used; to use yours, put it into its folder",
        "max_train_samples": "data.fraction takes a share of the training examples",
        "max_eval_samples max_predict_samples": "use a shorter file",
        "train_split_name validation_split_name test_split_name remove_splits": parts,
        "text_column_delimiter": "the columns of data.text are joined by a space",
    }
    not_needed = {
        "model_type": "the folder of --model_name_or_path decides",
        "remove_columns": "columns that no key names are not read",
        "greater_is_better": "follows from the metric",
    }
    mapped = {"text_column_names label_column_name do_regression": "see --train_file"}
    taken.close(MAPPED | mapped, LEFT_OUT | left_out, NOT_NEEDED | not_needed)
    return taken


def _task(taken: Taken, task: str) -> None:
    """Takes over the recipe of a GLUE task. Scripts before transformers 4 name the tasks like their folders below
    --data_dir, such as SST-2 and STS-B."""
    known = [name.removeprefix("glue-") for name in recipes.names("finetune") if name.startswith("glue-")]
    recipe = f"glue-{task.lower().replace('-', '')}"
    if recipe not in recipes.names("finetune"):
        fix = f"choose one of {', '.join(known)}; give your own files with --train_file"
        raise InputError(f"{task} is not a task of GLUE", where="--task_name", fix=fix)
    content: Any = parse_yaml(recipes.read(recipe), recipe)
    values = {
        f"{section}.{key}": value
        for section in ("task", "data", "evaluation")
        for key, value in content.get(section, {}).items()
    }
    where = os.path.dirname(values["data.train"])
    if folder := taken.text("data_dir"):
        moved = {key: value for key, value in values.items() if str(value).startswith(f"{where}/")}
        values |= {key: os.path.join(folder, os.path.basename(value)) for key, value in moved.items()}
        where = folder.rstrip("/")
        taken.note("data_dir", "the folder of data.train and its neighbours", "mapped")
    taken.values |= values
    own = f"GLUE's own, in {where}/ (gluebenchmark.com/tasks)"
    taken.note("task_name", f"the files and columns of the recipe {recipe}: {own}", "mapped")


def _files(taken: Taken) -> None:
    for name, key in (("train_file", "data.train"), ("validation_file", "data.validation"), ("test_file", "data.test")):
        if file := taken.text(name):
            taken.set(name, {key: file})
    train = taken.values.get("data.train")
    if train is None and "dataset_name" in taken.typed.flags:
        folder = fetched_data(taken)
        taken.values["data.train"] = f"{folder}/train-*.parquet"
        taken.note("dataset_name", "data.train: its Parquet files; check their path in the folder", "mapped")
    label = taken.text("label_column_name") or "label"
    names, regression = _columns(train, label) if train else ([], False)
    texts = [name for name in names if name != label]
    both = [name for name in ("sentence1", "sentence2") if name in texts]
    pair = both if len(both) == 2 else texts[:2] or ["sentence1"]
    if text_columns := taken.text("text_column_names"):  # of run_classification.py, which joins them to one text
        pair = [text_columns]
    taken.values |= {
        "data.text": text_columns.split(",") if text_columns and "," in text_columns else pair[0],
        "data.label": label,
    }
    if len(pair) == 2:
        taken.values["data.text_pair"] = pair[1]
    if regression or taken.has("do_regression"):
        taken.values["task.kind"] = "regression"
    note = "as the script chooses them from the file's first line" if names else "check them against the file"
    became = ", ".join(f"{key}: {shown(taken.values[key])}" for key in COLUMNS if key in taken.values)
    taken.row("train_file", "mapped", f"{became} ({note})")


def _columns(file: str, label: str) -> tuple[list[str], bool]:
    """(columns of a CSV file, whether its labels are numbers with a fraction); ([], False) for other files."""
    if not file.endswith(".csv") or not os.path.isfile(file):
        return [], False
    with open_table(file) as table:
        names = [str(column) for column in table.columns]
        rows = table.rows([label] if label in names else [])
        labels = [record.get(label, "") for _, record in itertools.islice(rows, LOOKED_AT)]
    return names, bool(labels) and all(_fraction(label_text) for label_text in labels)


def _fraction(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return "." in label


def _best(taken: Taken) -> None:
    kept, named = "the best checkpoint is kept and exported", taken.text("metric_for_best_model")
    if taken.has("load_best_model_at_end") and named is None:  # the Trainer's own default is the loss
        taken.set("load_best_model_at_end", {"evaluation.metric": "loss"}, kept)
    taken.note("load_best_model_at_end", kept, "mapped")
    metric = (named or "").removeprefix("eval_")
    ours = VALUES["evaluation.metric"].get(metric, metric)
    ours = (
        metric if metric == "f1" and "task_name" in taken.typed.flags else ours
    )  # GLUE's, of the second of two labels
    if ours in {"loss", *itertools.chain(*METRICS.values())}:
        taken.set("metric_for_best_model", {"evaluation.metric": ours})
    taken.note("metric_for_best_model", "set evaluation.metric to loss, accuracy, f1_macro or another")
