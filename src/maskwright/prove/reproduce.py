"""`maskwright reproduce`: trains a run, the run of a report, or a record of the speedrun again, and compares.

If processor, versions and way of computing are the same kind, every bit must be the same. Otherwise kernels add numbers
up in another order, and differences in the last bits grow in training. Then held-out values must be as near as those of
other seeds: a two-sided t-test at p < 0.01 decides.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from maskwright.config.finetuning import build_finetune_config
from maskwright.config.pretraining import OF_ONE_RUN, build_config, without_gone
from maskwright.config.settings import nested
from maskwright.core import storage
from maskwright.core.console import say, warn
from maskwright.core.errors import InputError, MaskwrightError, VerificationError, stopped
from maskwright.processes import child
from maskwright.report.made_of import FORMAT, made_of, read_page
from maskwright.report.run import read as read_run
from maskwright.run.directory import RunDirectory
from maskwright.speedrun.race import Maskwright, one_seed, seeds_of
from maskwright.speedrun.record import RECIPE, RECORD, SpeedrunRecord, kind_of, other_kind, read_record, track_named
from maskwright.speedrun.text import open_text, require_same
from maskwright.speedrun.tracks import ALPHA
from maskwright.tasks.finetune.prepare import prepare_finetuning
from maskwright.tasks.pretrain.prepare import PretrainRun, prepare_run, require_same_rows
from maskwright.tasks.start.engine import environment
from maskwright.tasks.start.prepared import Prepared
from maskwright.verdict.statistics import same_mean_p

PAGE = "report.html"
NOT_WHOLE = "make the report again with this version, or give the run directory"


@dataclass(frozen=True)
class TextPaths:
    """Locations of the training text."""

    store: str | None
    text: Sequence[str]
    pairs: str | None
    work: str


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
    seconds: list[float] = field(default_factory=list)
    """For a record: the time of its seeds on this machine."""
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
        lines.append(f"  here:  {values}" + "".join(f", {seconds:.1f} s" for seconds in self.seconds))
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
        fix = "`maskwright doctor` looks at the machine; try --seeds 3, or a machine of the same kind"
        raise VerificationError("was not reproduced", where=reproduction.what, fix=fix)


def reproduce(what: str, to: str, paths: TextPaths, *, seeds: int = 1, check: bool = False) -> Reproduction:
    """Trains again and compares. Raises `InputError` if there is nothing to reproduce or a fingerprint differs."""
    again = _record if os.path.exists(os.path.join(what, RECORD)) else _run
    return again(what, None if check else storage.require_local(to), paths, seeds)


def _make_new(to: str) -> None:
    if os.path.exists(to):
        raise InputError("already exists", where=to, fix="choose another --to")
    storage.make_folder(to)


# ---- a record of the speedrun ----------------------------------------------------------------------------------------


def _record(what: str, to: str | None, paths: TextPaths, seeds: int) -> Reproduction:
    record = read_record(what)
    if record.program != Maskwright.name:
        fix = "its recipe.yaml says with which script of benchmarks/ it was made, and how"
        raise InputError(f"was trained by {record.program}", where=what, fix=fix)
    if not record.finished:
        raise InputError("is not finished", where=what, fix="let `maskwright speedrun` go on with it first")
    if seeds > len(record.seeds):
        raise InputError(f"has {len(record.seeds)} seeds", where=what, fix=f"give --seeds {len(record.seeds)} or fewer")
    track = track_named(record.track)
    text = open_text(track, paths.work, paths.text, pairs=paths.pairs)
    fix = "take the text that the record was made with: its track's page says which"
    require_same(text.fingerprints, record.fingerprints, what, fix)
    program = Maskwright(track, os.path.join(what, RECIPE), text)
    if seeds_of(track, program.identity, len(record.seeds)) != record.seeds:
        fix = "this version reads the recipe in another way: take maskwright " + record.kind.get("maskwright", "")
        raise InputError("its seeds do not follow from its recipe", where=what, fix=fix)
    kind_here = kind_of(environment(), engine=record.kind.get("engine"))
    reproduction = Reproduction(what, record.fingerprints, other_kind(record.kind, kind_here), _values(record))
    if to is None:
        return reproduction
    _make_new(to)
    same = []
    for seed_result in record.results[:seeds]:
        result, kind, _ = one_seed(track, text, program, seed_result.seed, os.path.join(to, f"seed-{seed_result.seed}"))
        reproduction.other_kind = other_kind(record.kind, kind)
        reproduction.here.append(result.value)
        reproduction.seconds.append(result.seconds)
        same.append(result.weights_sha256 == seed_result.weights_sha256)
    reproduction.exact, reproduction.p = all(same), same_mean_p(reproduction.there, reproduction.here)
    return reproduction


def _values(record: SpeedrunRecord) -> list[float]:
    return [result.value for result in record.results]


# ---- a run, or the data of one in a report --------------------------------------------------------------------------


def _run(what: str, to: str | None, paths: TextPaths, seeds: int) -> Reproduction:
    original = _original(what)
    config = _config(original, what, paths.store)
    verb = str(original["kind"])
    ready = _prepared(verb, config, what)
    if isinstance(ready, PretrainRun):
        # A report has no `row_planning`; its weights are compared in any case.
        require_same_rows({**original, "row_planning": True}, ready.loader)
    expected, actual = (
        {name: str(one[f"{name}_fingerprint"]) for name in ("store", "tokenizer")} for one in (original, ready.identity)
    )
    if original["base_weights"]:
        expected["base weights"] = storage.sha256_of(original["base_weights"])
        actual["base weights"] = storage.sha256_of(ready.base_weights().get("base_weights"))
    if (base := original.get("base") or {}).get("sha256"):  # of a fine-tuning
        expected["base model"], actual["base model"] = base["sha256"], ready.base_weights()["base"]["sha256"]
    require_same(actual, expected, what, "give the text that the run had: --store PATH")
    then = kind_of(original["environment"], engine=original["engine"])
    reproduction = Reproduction(what, expected, other_kind(then, kind_of(environment(), engine=original["engine"])), [])
    if original["valid_loss"] is not None:
        reproduction.there.append(float(original["valid_loss"]))
    if to is None:
        return reproduction
    _make_new(to)
    made: list[dict[str, Any]] = []
    for number in range(seeds):
        run = os.path.join(to, "run" if number == 0 else f"seed-{config['seed'] + number}")
        made.append(_trained(verb, config | {"seed": config["seed"] + number}, original, run))
    first = made[0]
    reproduction.other_kind = other_kind(then, kind_of(first["environment"], engine=first["engine"]))
    reproduction.here = [float(one["valid_loss"]) for one in made if one["valid_loss"] is not None]
    reproduction.exact = first["weights_sha256"] == original["weights_sha256"]
    reproduction.p = (
        same_mean_p(reproduction.there, reproduction.here) if reproduction.there and reproduction.here else None
    )
    return reproduction


def _original(what: str) -> dict[str, Any]:
    """The data of a run directory or page. Raises `InputError` for a run that one command cannot reproduce."""
    page = os.path.join(what, PAGE) if os.path.exists(os.path.join(what, PAGE)) else what
    if os.path.isfile(page):
        try:
            with storage.open_binary(page) as file:
                carried = read_page(file.read().decode())
        except ValueError:
            raise InputError("its data of the run is damaged", where=page, fix=NOT_WHOLE) from None
        if len(carried) != 1:
            many = f"is a report of {len(carried)} runs" if carried else "is not a report of a run, or an older one"
            raise InputError(many, where=page, fix="give a report of one run, or a run directory")
        data = carried[0]
    else:
        if not storage.is_url(what):
            RunDirectory(what).require()
        data = made_of(read_run(what))
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError("its data of the run is of another version", where=page, fix=NOT_WHOLE)
    if not data["weights_sha256"] or not data["ended"]:
        command = f"`maskwright {data['kind']} … --run {data['run']}`"
        fix = f"let it end first; where it no longer runs, the command that started it goes on with it: {command}"
        raise InputError("is of a run that has not ended", where=what, fix=fix)
    if data["changes"]:
        fix = "a run whose configuration changed on its way takes several commands: its report has them"
        raise InputError("its configuration changed between two starts", where=what, fix=fix)
    return data


def _config(original: dict[str, Any], what: str, store: str | None) -> dict[str, Any]:
    """The configuration by dotted key. The number of threads is the original's, since another gives other low bits."""
    config = without_gone(original["config"]) | OF_ONE_RUN
    if store is not None:
        if "data.store" not in config:
            raise InputError("is a fine-tuned run, which has no token store", where=what, fix="leave --store out")
        config["data.store"] = store
    if original["threads"]:
        config["engine.threads"] = original["threads"]
    return config


def _prepared(verb: str, config: dict[str, Any], what: str) -> Prepared:
    if verb == "finetune":
        return prepare_finetuning(build_finetune_config(nested(config), what), RunDirectory(""))
    return prepare_run(build_config(nested(config), what))


def _trained(verb: str, config: dict[str, Any], original: dict[str, Any], run: str) -> dict[str, Any]:
    """Trains to the end in `run`; returns the provenance of that run."""
    file = f"{run}.yaml"
    storage.write_json(file, nested(config))  # JSON is YAML
    words = [verb, file, "--run", run]
    if parent := original["lineage"]:
        words += ["--from", f"{parent['run']}@{parent['step']}"]
        words += ["--fresh-optimizer"] if parent.get("optimizer") == "fresh" else []
    say(f"training again: {run}")
    code = child.run(words)
    if kind := stopped(code):
        shutil.rmtree(os.path.dirname(run), ignore_errors=True)  # so that the same command begins again
        raise kind("nothing is kept of a stopped reproduction; the same command begins again")
    if code:
        raise MaskwrightError(f"ended with exit code {code}; its own message is above", where=run)
    provenance = made_of(read_run(run))
    if provenance["weights_sha256"] is None:
        warn(f"{run}: left no checkpoint")
    return provenance
