"""`run_glue.py` of transformers' examples: a task of GLUE, or the user's own CSV or JSON files."""

from __future__ import annotations

import itertools
import os
from typing import Any

from maskwright.config import recipes
from maskwright.config.foreign_names import VALUES
from maskwright.config.settings import parse_yaml
from maskwright.core import hub
from maskwright.core.console import several
from maskwright.core.errors import InputError
from maskwright.labels.scoring import METRICS
from maskwright.tasks.importing.run_mlm import fetched_data
from maskwright.tasks.importing.taken import Taken, shown
from maskwright.tasks.importing.trainer import NOT_NEEDED, SWITCHES, devices, from_json, training
from maskwright.tasks.importing.typed import ScriptSignature, Typed
from maskwright.text.tables import open_table

SCRIPT = ScriptSignature(("run_glue.py", "run_glue_no_trainer.py", "run_classification.py"), switches=SWITCHES)
COLUMNS = ("data.text", "data.text_pair", "data.label")
LOOKED_AT = 200
"""Lines of the training file that are read to see whether its labels are numbers with a fraction."""


def run_glue(typed: Typed) -> Taken:
    taken = Taken(typed, verb="finetune")
    from_json(taken)
    devices(taken)
    taken.run_in("output_dir")
    if task := taken.text("task_name"):
        _task(taken, task)
    else:
        _files(taken)
    name_or_path = taken.text("model_name_or_path") or "model"
    folder = hub.as_location(name_or_path, taken.text("model_revision"))
    taken.set("model_name_or_path", {"model.init_from": folder})
    taken.note("model_revision", "model.init_from has it, behind an @", "mapped")
    taken.note("trust_remote_code", "code that comes with a model is never run")
    for name in ("config_name", "tokenizer_name"):
        same = taken.text(name) in (name_or_path, folder)
        became = (
            "the folder of --model_name_or_path has it" if same else "the model's own is taken: put it into its folder"
        )
        taken.note(name, became, "not needed" if same else "left out")
    taken.note("model_type", "the folder of --model_name_or_path decides", "not needed")
    taken.note("ignore_mismatched_sizes", "the head always begins from random weights", "not needed")
    taken.set("max_seq_length", {"data.max_seq_len": taken.whole("max_seq_length", 128)})
    _batch(taken)
    for name in ("max_train_samples", "max_eval_samples", "max_predict_samples"):
        became = "data.fraction takes a share of the training examples" if "train" in name else "give a shorter file"
        taken.note(name, became)
    training(taken)
    if "label_smoothing_factor" in typed.flags:
        smoothing = taken.number("label_smoothing_factor", 0.0)
        taken.set("label_smoothing_factor", {"optimizer.label_smoothing": smoothing})
    _best(taken)
    taken.close(NOT_NEEDED)
    return taken


def _task(taken: Taken, task: str) -> None:
    """Takes over the recipe of a GLUE task. Scripts before transformers 4 name the tasks like their folders below
    --data_dir, such as SST-2 and STS-B."""
    known = [name.removeprefix("glue-") for name in recipes.names("finetune") if name.startswith("glue-")]
    recipe = f"glue-{task.lower().replace('-', '')}"
    if recipe not in recipes.names("finetune"):
        fix = f"one of {', '.join(known)}; own files are given by --train_file"
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
        taken.note("dataset_name", "data.train: its Parquet files; look where the folder has them", "mapped")
        taken.note("dataset_config_name", "the folder of those files", "mapped")
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
    note = "as the script chooses them from the file's first line" if names else "look whether they are the file's"
    became = ", ".join(f"{key}: {shown(taken.values[key])}" for key in COLUMNS if key in taken.values)
    taken.row("train_file", "mapped", f"{became} ({note})")
    for name in ("train_split_name", "validation_split_name", "test_split_name", "remove_splits"):
        taken.note(name, "data.train, data.validation and data.test name the files of each part")
    taken.note("remove_columns", "columns that no key names are not read", "not needed")
    taken.note("text_column_delimiter", "between the columns that data.text lists")
    for name in ("text_column_names", "label_column_name", "do_regression"):
        taken.note(name, "see --train_file", "mapped")


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


def _batch(taken: Taken) -> None:
    rows, steps = taken.whole("per_device_train_batch_size", 8), taken.whole("gradient_accumulation_steps", 1)
    processes = taken.typed.world_size
    note = f"{rows} x {steps} accumulated x {several(processes, 'process', 'processes')}"
    taken.set("per_device_train_batch_size", {"batch.examples": rows * steps * processes}, note)
    taken.note("gradient_accumulation_steps", "see --per_device_train_batch_size", "mapped")
    if processes > 1:
        taken.values["batch.virtual_workers"] = processes


def _best(taken: Taken) -> None:
    kept, named = "the best checkpoint is kept and exported", taken.text("metric_for_best_model")
    if taken.has("load_best_model_at_end") and named is None:  # the Trainer's own default is the loss
        taken.set("load_best_model_at_end", {"evaluation.metric": "loss"}, kept)
    else:
        taken.note("load_best_model_at_end", kept, "mapped")
    metric = (named or "").removeprefix("eval_")
    if metric == "f1" and "task_name" in taken.typed.flags:  # GLUE's own, of the second of two labels
        taken.set("metric_for_best_model", {"evaluation.metric": "f1"})
    elif (ours := VALUES["evaluation.metric"].get(metric, metric)) in {"loss", *itertools.chain(*METRICS.values())}:
        taken.set("metric_for_best_model", {"evaluation.metric": ours})
    else:
        taken.note("metric_for_best_model", "evaluation.metric takes loss, accuracy, f1_macro and others")
    taken.note("greater_is_better", "follows from the metric", "not needed")
    if "early_stopping_patience" in taken.typed.flags:
        taken.set("early_stopping_patience", {"evaluation.patience": taken.whole("early_stopping_patience", 1)})
