"""`maskwright quickstart`: from text to a compared model, by the same commands that a user would run. Each is printed
before it runs."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import yaml

from maskwright.core import storage
from maskwright.core.console import answer, human_count, human_seconds, say, typed
from maskwright.core.errors import HealthError, InputError, MaskwrightError, stopped
from maskwright.core.secrets import redact
from maskwright.machine.hardware import usable_cores
from maskwright.processes import child
from maskwright.run.directory import DATA_CARD, RunDirectory

DOCSTRING_BYTES = 8_000_000
VOCABULARY = 4096
DOCSTRING_SENTENCES = [
    "Return <mask> if the file exists, False otherwise.",
    "This function returns a <mask> of strings.",
    "Raises a ValueError if the <mask> is not valid.",
]
# In so short a time on two cores, two layers of 128 on short rows learn best (docs/experiments.md).
SIZE, SEQ_LEN, ROWS = "nano", 64, 16
NAMES = {"modernbert": "ModernBERT with Muon", "roberta": "RoBERTa with AdamW"}
TRY_OWN_TEXT = """  maskwright data audit 'my/text/*.txt'
  maskwright quickstart --text 'my/text/*.txt' --to my-quickstart
"""
VALID_FRACTION, VALID_FRACTION_DOCSTRINGS = 0.03, 0.1
"""More documentation strings than other texts are held out, since the verdict uses them too."""
PACKAGES, MOST_TRAIN, MOST_TEST = 10, 80, 100
"""Labels of the verdict, and the most strings of each to train on and to test on."""
VERDICT_BUDGET = ["--learning-rates", "3e-4,1e-3,3e-3,1e-2", "--seeds", "8"]


@dataclass(frozen=True)
class QuickstartPaths:
    """The files and folders of a quickstart."""

    corpus: str
    tokenizer: str
    store: str
    config: str
    run: str
    model: str
    train: str
    """Labelled strings to fine-tune on; `test` judges them."""
    test: str
    task: str
    """The YAML of fine-tuning; its name is the task's."""
    verdict: str
    report: str
    """The report's page."""

    @staticmethod
    def under(root: str) -> QuickstartPaths:
        names = ["text/docstrings.jsonl", "tokenizer", "store", "pretrain.yaml", "run", "model"]
        names += ["text/packages-train.jsonl", "text/packages-test.jsonl", "packages.yaml", "verdict", "report.html"]
        return QuickstartPaths(*(os.path.join(root, name) for name in names))


def quickstart(
    text: list[str],
    folder: str,
    *,
    architecture: str,
    steps: int,
    layout: str,
    text_column: str,
    verdict: bool = False,
) -> dict[str, Any]:
    """Runs the commands. Returns the scores that were reached, and the paths. Raises the first failing command's error.
    Called again on the same folder, it continues where it was stopped."""
    began = time.monotonic()
    if verdict and text:
        fix = (
            "leave --text out, or compare on labels of your own: maskwright compare RUN --base random --task TASK.yaml"
        )
        raise InputError("--verdict needs labels, and --text has none", fix=fix)
    paths = QuickstartPaths.under(folder)
    sources = text or [paths.corpus]
    options = [] if not text else ["--layout", layout, "--text-column", text_column]
    begun = any(os.path.exists(part) for part in (os.path.dirname(paths.corpus), paths.tokenizer, paths.store))
    if os.path.isdir(folder) and os.listdir(folder) and not begun:
        raise InputError("is neither empty nor a quickstart's folder", where=folder, fix="choose another --to")
    if os.path.exists(paths.config):
        _require_same(paths, architecture)
        say(f"{paths.config} exists already, and its number of steps stays. For other --steps, choose another --to")
    if not text and not os.path.exists(paths.corpus):
        _gather(paths.corpus)
    _run("data", "audit", *sources, *options)
    if not os.path.exists(os.path.join(paths.tokenizer, "tokenizer.json")):
        _run("tokenizer", "train", *sources, "--to", paths.tokenizer, "--vocab-size", str(VOCABULARY), *options)
    prepare = ["data", "prepare", *sources, "--tokenizer", paths.tokenizer, "--to", paths.store]
    _run(*prepare, "--valid-fraction", str(VALID_FRACTION if text else VALID_FRACTION_DOCSTRINGS), *options)
    if not os.path.exists(paths.config):
        _write_config(paths.config, _config(paths, architecture, steps, min(ROWS, _training_rows(paths))))
    _run("pretrain", paths.config, "--run", paths.run)
    _run("evaluate", paths.run)
    if not os.path.exists(paths.model):
        _run("export", paths.run, "--to", paths.model)
    sentences = _sentences_of_text(paths) if text else DOCSTRING_SENTENCES
    _run("fill", paths.model, "--", *sentences)  # a text may begin with a dash
    _run("report", paths.run, "--to", paths.report)
    reached = {**_reached(paths), "seconds": round(time.monotonic() - began, 1)}
    _print_summary(paths, reached, users_text=bool(text))
    if verdict:
        _compare_with_random(paths)
    return {**reached, "verdict": paths.verdict if verdict else None}


def _require_same(paths: QuickstartPaths, architecture: str) -> None:
    from maskwright.config.pretraining import read_config

    if (begun := read_config(paths.config).model.architecture) != architecture:
        what = f"holds a quickstart with --architecture {begun}"
        fix = f"give --architecture {begun} to continue it, or choose another --to"
        raise InputError(what, where=os.path.dirname(paths.config), fix=fix)


def _gather(path: str) -> None:
    from maskwright.tasks.docstrings import gather

    say(f"Collecting documentation strings of the installed Python code into {path}")
    storage.make_folder(os.path.dirname(path))
    documents = gather(path, max_bytes=DOCSTRING_BYTES)
    say(f"{documents:,} documents")


def _run(*arguments: str) -> None:
    """Runs a command in a process of its own, as a user would."""
    answer(f"\n$ {redact(typed(arguments))}")
    code = child.run(arguments)
    if kind := stopped(code):
        raise kind("run the same command again to continue")
    if code:
        kind = {2: InputError, 3: HealthError}.get(code, MaskwrightError)
        raise kind(f"`maskwright {' '.join(arguments[:2])}` ended with exit code {code}; its own message is above")


def _training_rows(paths: QuickstartPaths) -> int:
    from maskwright.data.rows import open_rows
    from maskwright.data.store import TokenStore

    return open_rows(TokenStore(paths.store), "train", SEQ_LEN, "documents").totals.rows


def _config(paths: QuickstartPaths, architecture: str, steps: int, rows: int) -> dict[str, Any]:
    optimizer: dict[str, Any] = {"kind": "muon", "learning_rate": 4e-3, "weight_decay": 0.3}
    quarter = -(-steps // 4)
    schedule = {"kind": "wsd", "steps": steps, "warmup_share": 0.06, "decay_share": 0.4}
    # 1.4 points more accuracy than 30 % masks throughout, and the same on labels (docs/experiments.md).
    masks: dict[str, Any] = {"masking": {"rate": 0.4}, "phases": [{"until_share": 0.25, "causal_share": 1.0}]}
    if architecture == "roberta":
        optimizer = {"kind": "adamw", "learning_rate": 3e-3}
        schedule = {"kind": "linear", "steps": steps, "warmup_share": 0.1}
        masks = {"masking": {"rate": 0.3}}
    return {
        "data": {"store": paths.store, "seq_len": SEQ_LEN},
        **masks,
        "model": {"architecture": architecture, "size": SIZE},
        "optimizer": optimizer,
        "schedule": schedule,
        "batch": {"micro_batch_rows": rows},
        "evaluation": {"every_steps": quarter},
        "checkpoint": {"save_every_steps": quarter},
        "logging": {"every_steps": max(1, steps // 50)},
    }


def _write_config(path: str, config: dict[str, Any], schema: str = "schema") -> None:
    content = yaml.safe_dump(config, sort_keys=False)
    with storage.atomic_writer(path) as file:
        file.write(
            f"# Written by `maskwright quickstart`; `maskwright {schema}` describes every key.\n{content}".encode()
        )
    answer(f"\n{path}:\n" + "\n".join(f"  {line}" for line in content.splitlines()))


def _sentences_of_text(paths: QuickstartPaths) -> list[str]:
    """Three held-out beginnings of the user's own text, each with one word hidden."""
    from maskwright.data.store import TokenStore
    from maskwright.text.tokenizer import load_tokenizer

    store = TokenStore(paths.store)
    split, words = store.split("valid"), store.vocabulary
    tokenizer = load_tokenizer(store.tokenizer_folder, special_tokens_are_text=True)
    sentences = []
    for beginning in islice(split.beginnings(24), 3):
        ids = beginning.tolist()
        starts = [i for i in range(1, len(ids)) if words.word_start[ids[i]]]
        if not starts:
            continue
        hidden = starts[len(starts) // 2]
        stop = next((i for i in starts if i > hidden), len(ids))
        sentences.append(tokenizer.decode(ids[:hidden]) + f" {words.mask_token}" + tokenizer.decode(ids[stop:]))
    return [" ".join(sentence.split()) for sentence in sentences] or ["<mask>"]


def _reached(paths: QuickstartPaths) -> dict[str, Any]:
    """The results for programs, as the run recorded them. Losses and accuracies are on held-out text."""
    run, where = RunDirectory(paths.run), asdict(paths)
    config, card, records = run.read_record().pretraining, storage.read_json(run.path(DATA_CARD)), run.read_metrics()
    held_out = [
        {"loss": record["valid_loss"], "accuracy": record["valid_accuracy"]}
        for record in records
        if "valid_loss" in record
    ]
    training = [record for record in records if "tokens_per_second" in record]
    return {
        "architecture": config.model.architecture,
        "steps": config.steps,
        "rows_per_step": config.rows_per_step,
        "before": held_out[0],
        "unigram": card["unigram"][""],
        "after": held_out[-1],
        "tokens": training[-1]["tokens"],
        "tokens_per_second": sorted(record["tokens_per_second"] for record in training)[len(training) // 2],
        **{name: where[name] for name in ("config", "store", "run", "model", "report")},
    }


def _print_summary(paths: QuickstartPaths, reached: dict[str, Any], *, users_text: bool) -> None:
    from maskwright.model.config import SIZES
    from maskwright.model.hf.families import FAMILIES

    architecture = reached["architecture"]
    layers, width, _ = SIZES[SIZE]
    class_begins = FAMILIES[architecture].class_begins
    answer(
        f"\n{'─' * 72}\n{NAMES[architecture]}, {layers} layers of {width}, trained for {reached['steps']:,} steps "
        f"of {reached['rows_per_step']} rows\n\nHeld-out text, 15 % masked{'':10}loss   masked accuracy"
    )
    for name, when in (("before training", "before"), ("unigram baseline", "unigram"), ("after training", "after")):
        answer(f"  {name:30}{reached[when]['loss']:8.3f}  {reached[when]['accuracy']:14.2%}")
    store = paths.store if users_text else "my-quickstart/store"
    words = ["pretrain", paths.config, "--run", "my-run", "--set", f"data.store={store}", "--set", "model.size=mini"]
    answer(
        f"\n{human_count(reached['tokens'])} tokens at {reached['tokens_per_second']:,.0f} tokens/s; "
        f"{human_seconds(reached['seconds'])} in all\n"
        f"\n  model      {paths.model}   ({class_begins}ForMaskedLM in transformers; logits proven equal)"
        f"\n  run        {paths.run}   (metrics.jsonl, TensorBoard in events/, checkpoints)"
        f"\n  store      {paths.store}"
        f"\n  config     {paths.config}\n"
        f"\nNext, {'a larger model' if users_text else 'on your own text'}:\n"
        f"{'' if users_text else TRY_OWN_TEXT}  {typed(words)}\n"
        "  (.venv/bin/maskwright, if the environment is not active)\n"
        f"\nThe report, for your browser: {paths.report}",
    )


def _compare_with_random(paths: QuickstartPaths) -> None:
    """Fine-tunes the run and random weights to identify the package of a documentation string, and compares them."""
    from maskwright.data.store import TokenStore
    from maskwright.tasks.docstrings import by_package

    if not os.path.exists(paths.task):
        sizes = by_package(
            paths.corpus,
            paths.train,
            paths.test,
            TokenStore(paths.store),
            packages=PACKAGES,
            most_train=MOST_TRAIN,
            most_test=MOST_TEST,
        )
        trained, tested = map(sum, zip(*sizes.values(), strict=True))
        answer(
            f"\nDid it help? A label that needs no annotator: which package is a string from? {len(sizes)} packages "
            f"({', '.join(sizes)}), {trained:,} strings to learn from, {tested:,} to be judged by. Pretraining has "
            "read the first without their labels, and none of the others: they are held-out documents of the store.",
        )
        _write_config(paths.task, _labelled(paths), "schema finetune")
    at_once = str(min(2, usable_cores()))
    compare = ["compare", f"pretrained={paths.run}", "--base", "random", "--task", paths.task, "--to", paths.verdict]
    _run(*compare, *VERDICT_BUDGET, "--workers", at_once)


def _labelled(paths: QuickstartPaths) -> dict[str, Any]:
    return {
        "data": {
            "train": paths.train,
            "test": paths.test,
            "text": "text",
            "label": "package",
            "validation_fraction": 0.25,
            "max_seq_len": SEQ_LEN,
        },
        "schedule": {"epochs": 5},
        "engine": {"threads": 1},
    }
