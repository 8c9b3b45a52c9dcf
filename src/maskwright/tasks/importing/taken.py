"""The import of another trainer's flags: a row for each flag, and the values of our configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import yaml

from maskwright.config import finetuning, pretraining
from maskwright.config.foreign_names import FINETUNING, FOREIGN, NOT_NEEDED
from maskwright.config.settings import Guide, is_misspelt, keys_in, nested
from maskwright.core.console import FALSE, one_line, printable, several, typed
from maskwright.core.errors import InputError
from maskwright.machine import tpus
from maskwright.tasks.importing.shell import as_written
from maskwright.tasks.importing.typed import GPUS, Typed

Fate = Literal["mapped", "default", "not needed", "left out", "unknown"]
"""default: the flag was not given, and the script's own default is used. not needed: the result is the same without the
flag."""
Verb = Literal["pretrain", "finetune"]
ON_CPU = ("use_cpu", "no_cuda", "cpu")
"""Flags of training on the CPU."""


@dataclass(frozen=True)
class FlagFate:
    flag: str
    value: str
    fate: Fate
    became: str
    """Keys and values, or a sentence."""


@dataclass
class Taken:
    typed: Typed
    rows: list[FlagFate] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """Values by dotted key."""
    before: list[str] = field(default_factory=list)
    """Commands that come before the training, such as `data prepare`."""
    push_to: str | None = None
    """The model's name on the Hub, if the command pushes it."""
    verb: Verb = "pretrain"
    run: str = "runs/imported"
    unnamed: set[str] = field(default_factory=set)
    """Flags of the command that have no row so far."""

    def __post_init__(self) -> None:
        self.unnamed = set(self.typed.flags)
        if self.typed.counted_by == GPUS and any(map(self.has, ON_CPU)):
            self.typed.devices = 1

    # ---- the command's flags ---------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether the command has the flag, with another value than False."""
        values = self.typed.flags.get(name)
        return values is not None and not (values and self.typed.known(values[0]).lower() in FALSE)

    def text(self, name: str) -> str | None:
        """The flag's value; several words are joined by a space. Raises `InputError` if the value needs a shell."""
        values = self.typed.flags.get(name)
        return " ".join(map(self.typed.known, values)) if values else None

    def number(self, name: str, default: float) -> float:
        """The flag's number. Raises `InputError` for a value that is not a finite number."""
        text = self.text(name)
        return default if text is None else number_of(text, self.typed.spelling.get(name, f"--{name}"))

    def whole(self, name: str, default: int) -> int:
        return int(self.number(name, default))

    def positive(self, name: str, default: float) -> float:
        """The flag's number. Raises `InputError` for one that is not above 0."""
        if (number := self.number(name, default)) <= 0:
            fix = "give a number above 0"
            raise InputError(f"{number:g} is not above 0", where=self.typed.spelling.get(name, f"--{name}"), fix=fix)
        return number

    def rename(self, names: Mapping[str, str]) -> None:
        """Renames flags."""
        for old, new in names.items():
            if old in self.typed.flags and new not in self.typed.flags:
                self.typed.flags[new] = self.typed.flags.pop(old)
                self.typed.spelling[new] = self.typed.spelling.pop(old, f"--{old}")
        self.unnamed = set(self.typed.flags)

    @property
    def count(self) -> str:
        """The number of devices and its source, for a row."""
        return f"{several(self.typed.devices, 'device')}{', by ' * bool(self.typed.counted_by)}{self.typed.counted_by}"

    def run_in(self, name: str) -> None:
        """Uses the folder of the flag `name` as the run's."""
        self.run = self.text(name) or self.run
        self.note(name, f"--run {self.run}", "mapped")

    # ---- rows ------------------------------------------------------------------------------------------------

    def row(self, name: str, fate: Fate, became: str) -> None:
        self.unnamed.discard(name)
        value = as_written(" ".join(self.typed.flags.get(name, [])))
        self.rows.append(FlagFate(self.typed.spelling.get(name, f"--{name}"), value, fate, became))

    def set(self, name: str, values: Mapping[str, Any], note: str = "") -> None:
        """Takes the flag `name` over as `values`, by dotted key."""
        self.values |= values
        became = ", ".join(f"{key}: {shown(value)}" for key, value in values.items())
        fate: Fate = "mapped" if name in self.typed.flags else "default"
        self.row(name, fate, f"{became} ({note})" if note else became)

    def note(self, names: str, became: str, fate: Fate = "left out") -> None:
        """Adds rows for the flags (separated by spaces) that the command gives."""
        for name in names.split():
            if name in self.unnamed:
                self.row(name, fate, became)

    @property
    def guide(self) -> Guide:
        return (pretraining if self.verb == "pretrain" else finetuning).GUIDE

    def key(self, name: str) -> str:
        """Our key for a flag, or several keys."""
        return self.guide.nearest(name) or name

    def betas(self, name: str, default: str) -> None:
        """Takes over a flag of two numbers, in any notation. Raises `InputError` for anything else."""
        text = self.text(name) or default
        given = self.guide.overrides(self.key(name), text)
        if isinstance(given, str):
            where = self.typed.spelling.get(name, f"--{name}")
            raise InputError(f"{text} is not a pair of numbers", where=where, fix=f"write it as '{default}'")
        self.set(name, {key: float(number) for key, number in given.items()})

    def take(self, flags: Mapping[str, float | type[int] | type[float]]) -> None:
        """Takes over flags of one number. `flags`: the script's default for each, or the kind of number for a flag that
        counts only if it is given and above 0."""
        for name, default in flags.items():
            if not isinstance(default, type):
                self.set(name, {self.key(name): type(default)(self.number(name, default))})
            elif (number := self.number(name, 0.0)) > 0:
                self.set(name, {self.key(name): default(number)})
            else:
                self.note(name, "it is off", "not needed")

    def patience(self, name: str) -> None:
        """Takes over a number of evaluations, if the command gives their interval."""
        if "evaluation.every_steps" in self.values or self.verb == "finetune":
            self.take({name: int})
        self.note(name, "set evaluation.patience and evaluation.every_steps")

    def precision(self) -> None:
        """Takes over --bf16 and --fp16, and the flags of training on the CPU."""
        on_cpu = [name for name in ON_CPU if self.has(name)]
        self.switch({name: {"engine.device": "cpu"} for name in on_cpu})
        elsewhere = "for GPUs: on a CPU set engine.dtype: auto, which takes bf16 or fp32"
        for name, note in (("bf16", ""), ("fp16", elsewhere)):
            if self.has(name) and name == "fp16" and on_cpu:
                self.set(name, {"engine.dtype": "fp32"}, f"fp16 is for GPUs, and --{on_cpu[0]} trains on the CPU")
            elif self.has(name):
                self.set(name, {"engine.dtype": name}, note)

    def switch(self, flags: Mapping[str, Mapping[str, Any]]) -> None:
        """Takes over flags that are on as keys and values."""
        for name, values in flags.items():
            if self.has(name):
                self.set(name, values)

    def close(
        self, mapped: Mapping[str, str] = {}, left_out: Mapping[str, str] = {}, not_needed: Mapping[str, str] = {}
    ) -> None:
        """Adds the rows of all remaining flags. The tables: names, with spaces between them -> a remark. Raises
        `InputError` for words that need a shell and may be flags."""
        for name, values in self.typed.flags.items():
            if len(values) == 1 and values[0].lower() in FALSE:
                self.note(name, "it is off", "not needed")
        fates: tuple[tuple[Fate, Mapping[str, str]], ...] = (
            ("mapped", mapped), ("left out", left_out), ("not needed", not_needed), ("not needed", NOT_NEEDED)
        )  # fmt: skip
        for fate, said in fates:
            for names, became in said.items():
                self.note(names, became, fate)
        known = FOREIGN if self.verb == "pretrain" else FINETUNING
        unknown = [name for name in self.typed.flags if name in self.unnamed]
        self._require_no_typo([name for name in unknown if name not in known], [*" ".join(mapped).split(), *known])
        for name in unknown:
            became = known.get(name, "")
            became = f"set {' and '.join(keys)}" if (keys := keys_in(became)) else became
            self.row(name, "left out" if became else "unknown", became or "unsupported")
        for word in self.typed.words:
            self.rows.append(FlagFate(self.typed.known(word), "", "unknown", "does not belong to a flag"))
        if self.typed.launcher and not self.typed.counted_by:
            what = f"{self.typed.launcher} may start it several times, which the command does not count: add --devices"
            self.rows.append(FlagFate("--devices", "", "left out", what))
        if self.typed.others:
            what = f"the script starts it {several(self.typed.others, 'more time')}: import each of those commands "
            what += "separately, in single quotes"
            self.rows.append(FlagFate(self.typed.script, "", "left out", what))

    def _require_no_typo(self, unknown: Iterable[str], known: Iterable[str]) -> None:
        """Raises `InputError` for a flag that is one of the script's with a typo, or the beginning of one alone: its
        value would be lost, and the script's default used."""
        has = {*known, *self.typed.switches, *(row.flag.lstrip("-").replace("-", "_") for row in self.rows)}
        for name in [name for name in unknown if name not in has]:
            begun = [each for each in has if each.startswith(name)]
            near = [each for each in sorted(has) if is_misspelt(name, each)] or begun[: len(begun) == 1]
            if near:
                where = self.typed.spelling.get(name, f"--{name}")
                right = near[0].replace("_", "-") if "-" in where.lstrip("-") else near[0]
                fix = f"write --{right}, or leave {where} out if it is a flag of your own script"
                raise InputError(f"is unknown, and close to --{right}", where=where, fix=fix)

    # ---- output ----------------------------------------------------------------------------------------------

    def yaml(self, command: str) -> str:
        head = "\n".join(f"# {line}".rstrip() for line in printable(command).strip().splitlines())
        text: str = yaml.safe_dump(nested(self.values), sort_keys=False, allow_unicode=True)
        return f"# Imported from:\n{head}\n{text}"

    def commands(self, config: str) -> list[str]:
        """The commands to type, in order."""
        push = ["--push", self.push_to] if self.push_to else []
        export = ["export", self.run, "--to", f"{self.run.rstrip('/')}-hf", *push]
        return [*self.before, typed([self.verb, config, "--run", self.run]), typed(export)]

    def on_tpu(self, config: str) -> list[str]:
        """The commands that replace the training if it is for a TPU: on the slice that the command names, or in an
        environment."""
        if self.values.get("engine.kind") != "jax":
            return []
        lines, source = [], []
        if self.typed.pod:
            kind, count = self.typed.pod
            lines.append(typed(["plan", config, "--on", f"{kind}:{tpus.topologies_by_chips(kind)[count]}"]))
        if store := self.values.get("data.store"):
            if self.values.get("data.format") == "pregenerated":
                given = ["--special-tokens", "remove", "--valid-fraction", "0"]
                tokenizer = self.values["model.init_from"]
                lines.append(typed(["data", "convert", store, "--tokenizer", tokenizer, "--to", "store", *given]))
                store, source = "store", ["--set", "data.format=store"]
            lines.append(typed(["data", "push", store, "--to", "gs://BUCKET/store"]))
            source = ["--set", "data.store=gs://BUCKET/store", *source]
        slice_there, cluster = ["slice", self.typed.slice], ["--env-file", "ENV.yaml", "--target", "slice"]
        place, options = (slice_there, []) if self.typed.slice else (["kubernetes"], cluster)
        return [*lines, typed(["submit", *place, config, "--run", self.run, *options, *source])]

    def as_json(self, config: str, text: str) -> dict[str, Any]:
        rows = [asdict(row) for row in self.rows]
        return {"yaml": text, "rows": rows, "commands": self.commands(config), "on_tpu": self.on_tpu(config)}


def number_of(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{text} is not a number", where=where, fix="write a number")
    return number


def shown(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True)).removesuffix("\n...\n").strip()


def table(rows: list[FlagFate]) -> str:
    """The rows as text: the command's flags first, then the script's defaults."""
    ordered = [row for row in rows if row.fate != "default"] + [row for row in rows if row.fate == "default"]
    cells = [(one_line(f"{row.flag} {row.value}"), row.fate, one_line(row.became)) for row in ordered]
    wide = min(max((len(flag) for flag, _, _ in cells), default=0), 44)
    return "\n".join(f"{flag:{wide}}  {fate:10}  {became}" for flag, fate, became in cells)
