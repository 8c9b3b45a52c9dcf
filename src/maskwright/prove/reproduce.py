"""`maskwright reproduce`: trains a run again, and compares.

If processor, versions and way of computing are the same kind, every bit must be the same. Otherwise kernels add numbers
in another order, and differences in the last bits grow in training. Then held-out values must be as near as other
seeds' values, by a two-sided t-test at p < 0.01.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import Any

from maskwright.config.finetuning import build_finetune_config
from maskwright.config.pretraining import OF_ONE_RUN, build_config
from maskwright.config.settings import nested
from maskwright.core import storage
from maskwright.core.console import say, warn
from maskwright.core.errors import InputError, MaskwrightError, VerificationError, stopped
from maskwright.processes import child
from maskwright.report.run import RecordedRun
from maskwright.report.run import read as read_run
from maskwright.run.directory import RunDirectory
from maskwright.run.record import FromRun, RunRecord
from maskwright.tasks.finetune.prepare import prepare_finetuning
from maskwright.tasks.pretrain.prepare import prepare_run
from maskwright.tasks.start.engine import environment
from maskwright.tasks.start.prepared import Prepared
from maskwright.verdict.statistics import same_mean_p

ALPHA = 0.01


@dataclass
class Reproduction:
    what: str
    fingerprints: dict[str, str]
    """Fingerprints that were compared and are equal."""
    other_kind: list[str]
    """Differences of machine and versions; empty if every bit must be the same."""
    there: list[float]
    """Held-out values of the original."""
    here: list[float] = field(default_factory=list)
    exact: bool | None = None
    """Whether all weights are bit-identical; None before anything was trained."""
    p: float | None = None
    """Probability that values differ so much by chance; None if there are too few."""

    @property
    def differs(self) -> bool:
        if self.exact is not False:
            return False
        return not self.other_kind or (self.p is not None and self.p < ALPHA)

    def report(self) -> str:
        lines = [self.what, *(f"  {name}: {fingerprint[:16]}, fits" for name, fingerprint in self.fingerprints.items())]
        lines += [f"  another kind of machine: {difference}" for difference in self.other_kind]
        if self.exact is None:
            every = "by the spread" if self.other_kind else "bit by bit"
            return "\n".join([*lines, f"  nothing was trained; it would be compared {every}"])
        values = ", ".join(f"{value:.6f}" for value in self.here)
        lines.append(f"  there: {', '.join(f'{value:.6f}' for value in self.there)}")
        lines.append(f"  here:  {values}")
        if self.exact:
            return "\n".join([*lines, "  reproduced: the weights are bit-identical"])
        if not self.other_kind:
            return "\n".join([*lines, "  NOT reproduced: the weights differ on a machine of the same kind"])
        if self.p is None:
            return "\n".join(
                [*lines, "  not judged: one run shows no spread; --seeds 3 trains two other seeds as well"]
            )
        verdict = "NOT reproduced" if self.differs else "reproduced"
        return "\n".join([*lines, f"  {verdict}: the values differ with p = {self.p:.2g}"])


def require_reproduced(reproduction: Reproduction) -> None:
    """Raises `VerificationError` (exit code 1) if it differs."""
    if reproduction.differs:
        fix = "check the machine with `maskwright doctor`; try --seeds 3, or a machine of the same kind"
        raise VerificationError("was not reproduced", where=reproduction.what, fix=fix)


def reproduce(what: str, to: str, *, store: str | None = None, seeds: int = 1, check: bool = False) -> Reproduction:
    """Trains again and compares. Raises `InputError` if there is nothing to reproduce or a fingerprint differs."""
    to = storage.require_local(to)
    original, record = _original(what)
    keys = _keys(record, what, store)
    ready = _prepared(record, keys, what)
    expected, actual = map(_fingerprints, (record, ready.record(ready.config, record.dtype, None)))
    fix = "restore the run's own"
    if record.kind == "pretrain":
        fix += ", or give --store PATH if its token store has moved"
    require_same(actual, expected, what, fix)
    then, engine = _kind(original), _engine(original)
    reproduction = Reproduction(what, expected, other_kind(then, kind_of(environment(), engine=engine)), [])
    reproduction.there += _loss(original)
    if check:
        return reproduction
    if os.path.exists(to):
        raise InputError("already exists", where=to, fix="choose another --to")
    storage.make_folder(to)
    made: list[RecordedRun] = []
    for number in range(seeds):
        seed = keys["seed"] + number
        made.append(_trained(record, keys | {"seed": seed}, os.path.join(to, f"seed-{seed}" if number else "run")))
    first = made[0]
    reproduction.other_kind = other_kind(then, _kind(first))
    reproduction.here = [loss for one in made for loss in _loss(one)]
    reproduction.exact = first.saved.get("weights_sha256") == original.saved["weights_sha256"]
    reproduction.p = (
        same_mean_p(reproduction.there, reproduction.here) if reproduction.there and reproduction.here else None
    )
    return reproduction


def _original(what: str) -> tuple[RecordedRun, RunRecord]:
    """A run and its record. Raises `InputError` for a run that one command cannot reproduce."""
    run = read_run(what)
    record = run.record
    if record is None or not run.has_ended or not run.saved.get("weights_sha256"):
        command = f"`maskwright {record.kind if record else 'pretrain'} … --run {run.location}`"
        fix = f"wait for its end; if it no longer runs, continue it with the command that started it: {command}"
        raise InputError("belongs to a run that has not ended", where=what, fix=fix)
    if not record.repeats:
        keys = ", ".join(key for change in record.changes if change.decides for key in change.keys)
        fix = "repeat the commands of its starts by hand, one for each configuration"
        raise InputError(f"its configuration changed between two starts ({keys})", where=what, fix=fix)
    return run, record


def _kind(run: RecordedRun) -> dict[str, str]:
    return kind_of(run.environment, engine=_engine(run))


def _engine(run: RecordedRun) -> str | None:
    started = run.at("started")
    return started[-1].get("engine") if started else None


def _loss(run: RecordedRun) -> list[float]:
    loss = run.score("valid_loss")
    return [] if loss is None else [loss]


def _fingerprints(record: RunRecord) -> dict[str, str]:
    held_out = storage.sha256_of([[name, text.fingerprint] for name, text in record.held_out.items()])
    found = {"text": record.train.fingerprint, "held-out text": held_out, "tokenizer": record.tokenizer_fingerprint}
    found |= {"order of rows": str(record.rows)} if record.kind == "pretrain" else {}
    return found | ({"base weights": storage.sha256_of(record.began_from.sha256s)} if record.began_from else {})


def _keys(record: RunRecord, what: str, store: str | None) -> dict[str, Any]:
    """The configuration by dotted key. The number of threads is the original's, since another gives other low bits.
    Older records of JAX runs claim exact sums, which jax has never had."""
    keys = record.keys | OF_ONE_RUN
    keys |= {"engine.reproducibility": "fast"} if keys.get("engine.kind") == "jax" else {}
    if store is not None:
        if record.kind == "finetune":
            raise InputError("is a fine-tuned run, which has no token store", where=what, fix="leave --store out")
        keys |= {"data.store": store}
    return keys | ({"engine.threads": record.threads} if record.threads else {})


def _prepared(record: RunRecord, keys: dict[str, Any], what: str) -> Prepared:
    if record.kind == "finetune":
        return prepare_finetuning(build_finetune_config(nested(keys), what), RunDirectory(""))
    config, origin = build_config(nested(keys), what), record.began_from
    if isinstance(origin, FromRun) and origin.via == "--from":
        return prepare_run(config, None, origin.origin, fresh_optimizer=origin.optimizer == "fresh")
    return prepare_run(config)


def _trained(record: RunRecord, keys: dict[str, Any], run: str) -> RecordedRun:
    file = f"{run}.yaml"
    storage.write_json(file, nested(keys))  # JSON is YAML
    say(f"training again: {run}")
    code = child.run(record.command(file, run))
    if kind := stopped(code):
        shutil.rmtree(os.path.dirname(run), ignore_errors=True)  # so that the same command begins again
        raise kind("a stopped reproduction is discarded; the same command begins again")
    if code:
        raise MaskwrightError(f"ended with exit code {code}; its own message is above", where=run)
    made = read_run(run)
    if made.saved.get("weights_sha256") is None:
        warn(f"{run}: left no checkpoint")
    return made


def require_same(actual: dict[str, str], expected: dict[str, str], where: str, fix: str) -> None:
    """Raises `InputError` for the first fingerprint that differs."""
    for name, value in expected.items():
        if actual.get(name) != value:
            start = (actual.get(name) or "missing")[:16]
            raise InputError(f"its {name} has the fingerprint {start}, not {value[:16]}", where=where, fix=fix)


def kind_of(environment: dict[str, Any], **computed: object) -> dict[str, str]:
    """The processor, the versions and, in `computed`, the way of computing. Runs that agree in these must agree in
    every bit. Facts that an older record lacks are left out."""
    hardware, packages = environment.get("hardware") or {}, environment.get("packages") or {}
    facts = {"processor": hardware.get("cpu"), "instructions": hardware.get("instructions")}
    facts |= {name: packages.get(name) for name in ("torch", "numpy", "jax", "transformers")}
    facts |= {"maskwright": environment.get("maskwright"), **computed}
    return {name: str(value) for name, value in facts.items() if value is not None}


def other_kind(first: dict[str, str], second: dict[str, str]) -> list[str]:
    """The differences between two kinds, as in `torch 2.12.0, here 2.13.0`."""
    names = sorted({*first, *second})
    return [
        f"{name} {first.get(name, 'not known')}, here {second.get(name, 'not known')}"
        for name in names
        if first.get(name) != second.get(name)
    ]
