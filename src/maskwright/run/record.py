"""`config.resolved.json`: the record of a run. Each start writes it whole; every reader of a run uses it.

The file holds the configuration by dotted key (`config`), and the other fields of `RunRecord` unchanged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from maskwright.core import records
from maskwright.core.errors import InputError
from maskwright.core.storage import sha256_of
from maskwright.run.best import Best

if TYPE_CHECKING:
    from maskwright.config.finetuning import FinetuneConfig
    from maskwright.config.pretraining import RunConfig

CONFIG = "config.resolved.json"
FORMAT = 2
OPTIMIZERS = {"fresh": "a fresh optimizer", "kept": "its optimizer's state"}
RESTORE = "restore the file, or start a new run"


# ---- texts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedText:
    """A text of a run: a token store or labelled examples."""

    location: str
    """Absolute, or a URL, as of the last start."""
    fingerprint: str

    def require(self, fingerprint: str, noun: str = "token store") -> None:
        """Raises `InputError` unless the opened text is the one that the run has read."""
        if fingerprint != self.fingerprint:
            what = f"is another {noun} than the run had ({fingerprint[:12]}, then {self.fingerprint[:12]})"
            fix = "restore it, or evaluate other text with --store or --input"
            raise InputError(what, where=self.location, fix=fix)


# ---- beginnings ------------------------------------------------------------------------------------------------------

Via = Literal["--from", "model.init_from"]


@dataclass(frozen=True)
class FromFolder:
    location: str
    """Absolute; for a model of the Hub, its address with the commit."""
    sha256s: dict[str, str]
    """sha256 of each file of weights."""

    def named(self) -> str:
        return self.location


@dataclass(frozen=True)
class FromRun:
    """A checkpoint of another run. The facts are of that time, since that run may be gone now."""

    run: str
    step: int
    optimizer: Literal["kept", "fresh"]
    via: Via
    weights_sha256: str
    digest: str
    text: str
    """The fingerprint of its training text."""
    tokens: int
    """Tokens that it was trained on until then."""
    seed: int
    seq_len: int | None
    """None for a fine-tuned run."""
    began_from: FromFolder | FromRun | None

    @property
    def origin(self) -> str:
        """RUN@STEP"""
        return f"{self.run}@{self.step}"

    def named(self) -> str:
        """In words, as in `runs/a@60 with a fresh optimizer`."""
        return self.origin + (" with a fresh optimizer" if self.optimizer == "fresh" else "")

    @property
    def sha256s(self) -> dict[str, str]:
        return {"model.safetensors": self.weights_sha256}


BeganFrom = FromFolder | FromRun | None
"""None for random weights."""


def parse_origin(origin: str) -> tuple[str, int | None]:
    """(run directory, step) of RUN or RUN@STEP."""
    location, at, step = origin.rpartition("@")
    if at and step.isdigit() and not os.path.isdir(origin):
        return location, int(step)
    return origin, None


def ancestors(began_from: BeganFrom) -> tuple[list[FromRun], FromFolder | None]:
    """The runs that a run goes back to, the nearest first, and the folder that the oldest continued."""
    runs = []
    while isinstance(began_from, FromRun):
        runs.append(began_from)
        began_from = began_from.began_from
    return runs, began_from


def describe(began_from: BeganFrom) -> list[str]:
    """A line for each ancestor."""
    runs, folder = ancestors(began_from)
    lines = [
        f"{'which ' if number else ''}began from step {run.step} of {run.run}, with {OPTIMIZERS[run.optimizer]}"
        for number, run in enumerate(runs)
    ]
    return lines + ([f"{'which ' if runs else ''}began with the weights of {folder.location}"] if folder else [])


# ---- the record ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedChange:
    """A start's changes of the configuration."""

    step: int
    time: float
    """Unix seconds."""
    keys: tuple[str, ...]
    """`key: old -> new`"""
    decides: bool
    """Whether one of them decides numbers, so that no single command repeats the run."""


@dataclass(frozen=True)
class RunRecord:
    """The whole record of a run, which needs no other file."""

    kind: Literal["pretrain", "finetune"]
    keys: dict[str, Any]
    """The configuration by dotted key, with absolute paths. Use `config` to read it."""
    steps: int
    """Updates in the whole run."""
    digest: str
    """sha256 of the keys that decide the numbers."""
    model: dict[str, Any]
    """Its shape: see `model.config.recorded_config`."""
    dtype: Literal["bfloat16", "float16", "float32"]
    tokenizer_fingerprint: str
    roles_sha256: str
    train: RecordedText
    held_out: dict[str, RecordedText]
    """Held-out texts, by name; a single one has no name."""
    began_from: BeganFrom
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    """Values for fine-tuning alone in config.json of the base, except the run's own; its export repeats them."""
    rows: int | None = None
    """The version of the order of rows, of a pretraining run."""
    test: RecordedText | None = None
    metric: str = "loss"
    """The metric by which its evaluations are compared."""
    lower_is_better: bool = True
    labels: tuple[str, ...] = ()
    """Names of a classifier's outputs."""
    unit: tuple[float, float] | None = None
    """Only for numbers: (mean, standard deviation) of the training labels. The outputs of its checkpoints are labels
    less the mean, in deviations, which bf16 can hold also for labels such as years."""
    may_be_none: bool | None = None
    """Only for questions: whether some of the training questions have no answer."""
    pairs: bool | None = None
    """Only for classes and numbers of texts: whether each training example is a pair of texts."""
    warmup_share: float | None = None
    """Share of the steps, if the configuration gives a share."""
    threads: int | None = None
    compiled: bool | None = None
    """Whether layers are compiled on CUDA devices; None before the run has been on one."""
    by_mkl: bool | None = None
    """Whether it began on CPUs with gradients of matrices by MKL; None before it has been on one."""
    changes: tuple[RecordedChange, ...] = ()

    @cached_property
    def config(self) -> RunConfig | FinetuneConfig:
        return self.pretraining if self.kind == "pretrain" else self.finetuning

    @cached_property
    def pretraining(self) -> RunConfig:
        from maskwright.config.pretraining import build_config
        from maskwright.config.settings import nested

        return build_config(nested(self.keys), CONFIG)

    @cached_property
    def finetuning(self) -> FinetuneConfig:
        from maskwright.config.finetuning import build_finetune_config
        from maskwright.config.settings import nested

        return build_finetune_config(nested(self.keys), CONFIG)

    @property
    def judges(self) -> str:
        """Identifies the text of its evaluations, as in each of their lines."""
        rows = self.keys.get("evaluation.max_rows")
        return sha256_of([[name, text.fingerprint] for name, text in self.held_out.items()] + [rows])[:16]

    @property
    def keeps_best(self) -> bool:
        """Whether its evaluations choose the model, instead of its last step."""
        return self.kind == "finetune" or self.keys["evaluation.patience"] is not None

    def best(self, lines: Iterable[Mapping[str, Any]], saved: Collection[int]) -> Best:
        """The evaluations that count: on the present held-out text, up to the newest checkpoint, since later ones are
        repeated. Step 0 has none. `lines`: of metrics.jsonl; `saved`: steps of its checkpoints."""
        best = Best(self.keys["evaluation.patience"], self.lower_is_better)
        newest = max(saved, default=0)
        key = f"valid_{self.metric}"
        seen = [(line["step"], line[key]) for line in evaluations(lines, self.judges) if 0 < line["step"] <= newest]
        best.remember(seen, saved if self.kind == "pretrain" else {step for step, _ in seen})
        return best

    def chosen(self, lines: Iterable[Mapping[str, Any]], saved: Collection[int]) -> int | None:
        """*The* step of the model: its best evaluation if evaluations choose it, else its newest checkpoint."""
        newest = max(saved, default=None)
        return (self.best(lines, saved).step if self.keeps_best else None) or newest

    def has_ended(self, lines: Iterable[Mapping[str, Any]], saved: Collection[int], *, has_results: bool) -> bool:
        """Whether it has trained to its last step, or stopped improving. `has_results`: see `RESULTS`."""
        if self.kind == "finetune":
            return has_results
        return self.steps in saved or (self.keeps_best and self.best(lines, saved).settled)

    def command(self, config: str, run: str, overrides: Iterable[str] = ()) -> list[str]:
        """The words that train it again from its beginning. `config`: a file or recipe that gives its configuration
        with `overrides` (KEY=VALUE); `run`: the new folder."""
        words = [self.kind, config, "--run", run]
        for override in overrides:
            words += ["--set", override]
        origin = self.began_from
        if isinstance(origin, FromRun) and origin.via == "--from":
            words += ["--from", origin.origin]
            words += ["--fresh-optimizer"] if origin.optimizer == "fresh" else []
        return words

    @property
    def repeats(self) -> bool:
        """Whether one command repeats it."""
        return not any(change.decides for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        return {"format": FORMAT, "kind": values.pop("kind"), "config": values.pop("keys"), **values}


def evaluations(lines: Iterable[Mapping[str, Any]], judges: str) -> list[Mapping[str, Any]]:
    """The lines of metrics.jsonl with evaluations on one text."""
    return [line for line in lines if "valid_loss" in line and line.get("judges") == judges]


def parse(values: Any, where: str, version: str = "") -> RunRecord:
    """`values`: the JSON of the file at `where`. `version`: the version of maskwright that wrote it, if known. Raises
    `InputError`."""
    if not isinstance(values, dict) or "format" not in values:
        raise InputError("is not a run's record", where=where, fix=RESTORE)
    if values["format"] != FORMAT:
        what = f"has format {str(values['format'])[:20]}, but this version reads {FORMAT}"
        wrote = f"maskwright {version}, which wrote it" if version else "the maskwright that wrote it"
        raise InputError(what, where=where, fix=f"use {wrote}, or start a new run")
    given = {name: value for name, value in values.items() if name != "config"} | {"keys": values.get("config")}
    try:
        record = records.strictly(RunRecord, json.dumps(given))
    except ValidationError as error:
        first = error.errors()[0]
        name, value = "config" if first["loc"][0] == "keys" else first["loc"][0], first["input"]
        what = f"{name} is {value!r:.40}" if isinstance(value, str | int | float) else f"lacks `{name}`"
        raise InputError(what, where=where, fix=RESTORE) from None
    if absent := sorted(_keys_of(record.kind) - record.keys.keys()):
        raise InputError(f"lacks `config.{absent[0]}`", where=where, fix=RESTORE)
    return record


def _keys_of(kind: Literal["pretrain", "finetune"]) -> set[str]:
    from maskwright.config.finetuning import FinetuneConfig
    from maskwright.config.pretraining import RunConfig
    from maskwright.config.settings import keys_of

    return {*keys_of(RunConfig if kind == "pretrain" else FinetuneConfig)}
