"""A run's configuration: what it has that others have not, and the commands that make the same run again."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from maskwright.config import recipes
from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.config.settings import keys_of, parse_yaml
from maskwright.core.console import one_line, several
from maskwright.core.errors import ConfigError
from maskwright.core.shell import typed
from maskwright.report.document import Block, Code, Folded, Paragraph
from maskwright.report.made_of import can_be_reproduced
from maskwright.report.run import RecordedRun
from maskwright.report.tables import ReportTable

PLAIN = re.compile(r"[\w./~+@=-][\w./~+@=:*-]*")
"""Words that may need no quotes in YAML."""


# ---- what differs --------------------------------------------------------------------------------------------------


def configuration(run: RecordedRun) -> list[Block]:
    if not run.config:
        return [Paragraph("The run has no configuration yet.")]
    recipe = _recipe(run)
    begun = _written(run.given) if recipe else {}
    defaults = _defaults(run)
    rows = tuple(
        (key, shown(value), shown(_at(begun, key, defaults[key])))
        for key, value in _changed(run, begun).items()
        if key in defaults
    )
    base = f"the recipe {recipe}" if recipe else "the defaults"
    found: list[Block] = [Paragraph(f"Every key is as in {base}.")]
    if rows:
        what = f"Of {len(run.config)} keys, these differ from {base}"
        found = [ReportTable(what, ("key", "this run", "recipe" if recipe else "default"), rows, 3)]
    every = tuple((key, shown(value)) for key, value in run.config.items() if value is not None)
    found.append(
        Folded("Every key that has a value", (ReportTable("The whole configuration", ("key", "value"), every, 2),))
    )
    if run.record.get("digest"):
        found.append(Paragraph(f"Digest of what decides the numbers: {run.record['digest']}", faint=True))
    return found


def differences(runs: Sequence[RecordedRun]) -> list[Block]:
    """Keys in which several runs differ, a column for each run."""
    rows = []
    for key in sorted({key for run in runs for key in run.config}):
        values = [run.config.get(key, _defaults(run).get(key)) for run in runs]
        if any(not _equal(value, values[0]) for value in values):
            rows.append((key, *map(shown, values)))
    if not rows:
        return [Paragraph("The runs have the same configuration.")]
    header = ("key", *(run.name for run in runs))
    return [ReportTable("Keys in which the runs differ", header, tuple(rows), len(header))]


def _defaults(run: RecordedRun) -> dict[str, Any]:
    keys = keys_of(FinetuneConfig if run.is_finetuning else RunConfig)
    return {
        name: None if key.field.is_required() else key.field.get_default(call_default_factory=True)
        for name, key in keys.items()
    }


def _recipe(run: RecordedRun) -> str | None:
    """The recipe that the run was started with, by the text of its config.yaml."""
    if run.given is None:
        return None
    known = recipes.names("finetune" if run.is_finetuning else "pretrain")
    return next((name for name in known if recipes.read(name) == run.given), None)


def _written(text: str | None) -> dict[str, Any]:
    """The sections of a YAML file; none of what is no such file."""
    try:
        values = parse_yaml(text or "", "config.yaml")
    except ConfigError:
        return {}
    return values if isinstance(values, dict) else {}


def _at(values: Mapping[str, Any], dotted: str, default: Any) -> Any:
    """A key within sections."""
    found: Any = values
    for name in dotted.split("."):
        if not isinstance(found, dict) or name not in found:
            return default
        found = found[name]
    return found


def _changed(run: RecordedRun, begun: Mapping[str, Any]) -> dict[str, Any]:
    """The run's keys that `begun`, sections of a YAML, and the defaults do not give as they are. A list or mapping that
    is written there in another way than it is recorded is among them."""
    defaults = _defaults(run)
    return {key: value for key, value in run.config.items() if not _equal(value, _at(begun, key, defaults.get(key)))}


def _equal(mine: Any, other: Any) -> bool:
    return bool(_set(mine) == _set(other)) or (mine is None and other in ({}, []))


def shown(value: Any) -> str:
    """With all digits, so that two values that differ look so."""
    if value is None:
        return "not set"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return value if isinstance(value, str) else in_flow(_set(value))


def _set(value: Any) -> Any:
    """Without the keys that are not set."""
    if isinstance(value, Mapping):
        return {key: _set(one) for key, one in value.items() if one is not None}
    return [*map(_set, value)] if isinstance(value, list | tuple) else value


def in_flow(value: Any) -> str:
    """One line of which `--set` makes this value: a number, a word, null, a list or a mapping."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{in_flow(str(key))}: {in_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_flow, value)) + "]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value).replace("inf", ".inf").replace("nan", ".nan")
    if not isinstance(value, str):
        return json.dumps(value)
    if PLAIN.fullmatch(value) and _parses(value, value) and _parses(f"[{value}]", [value]):
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(one if one.isprintable() else f"\\U{ord(one):08x}" for one in quoted)


def _parses(text: str, value: Any) -> bool:
    try:
        return bool(parse_yaml(text, text) == value)
    except ConfigError:
        return False


# ---- how again -----------------------------------------------------------------------------------------------------


def again(run: RecordedRun, page: str | None = None) -> list[Block]:
    """The commands that make the same run. `page`: the file that this is written to, if it carries the run."""
    if not run.config:
        return []
    found: list[Block] = []
    if can_be_reproduced(run):
        elsewhere = ", or add --store with the place of its token store" if run.config.get("data.store") else ""
        said = (
            "This trains the run again and compares: bit by bit on a machine of the same kind, and else by the spread."
        )
        found.append(Paragraph(f"{said} Give it in the folder in which the run was started{elsewhere}."))
        found.append(Code(typed(["reproduce", page or _near(run.location)])))
        found.append(Paragraph("These are the single steps, for the same folder:"))
    lines: list[str] = []
    for source in run.card.get("sources", []) if run.card.get("kind") == "text" else []:
        lines += _preparation(source)
    recipe, begun = _recipe(run), _written(run.given)
    changed = _changed(run, begun)
    given = run.given if begun else _as_yaml(changed)
    command = ["finetune" if run.is_finetuning else "pretrain", recipe or "config.yaml", "--run", "NEW"]
    for key, value in changed.items() if begun else ():
        command += ["--set", f"{key}={in_flow(_set(value))}"]
    parents = run.look.lineage
    if isinstance(parents, dict) and "run" in parents and not run.config.get("model.init_from"):
        command += ["--from", f"{parents['run']}@{parents.get('step')}"]
        command += ["--fresh-optimizer"] if parents.get("optimizer") == "fresh" else []
    lines += [typed(command), "maskwright export NEW --to MODEL"]
    found.append(Code("\n".join(lines)))
    if not recipe and given:
        found.append(Folded("config.yaml", (Code(given.rstrip()),)))
    return found


def _as_yaml(values: Mapping[str, Any]) -> str:
    """Of values by dotted key, in which the keys of a section follow each other."""
    lines: list[str] = []
    before: list[str] = []
    for dotted, value in values.items():
        *sections, key = dotted.split(".")
        for depth, name in enumerate(sections, 1):
            if sections[:depth] != before[:depth]:
                lines.append(f"{'  ' * (depth - 1)}{name}:")
        before = sections
        lines.append(f"{'  ' * len(sections)}{key}: {in_flow(_set(value))}")
    return "\n".join(lines)


def _near(location: str) -> str:
    """As one would type it here."""
    near = location if "://" in location else os.path.relpath(location)
    return location if near.startswith("..") else near


def _preparation(source: Mapping[str, Any]) -> list[str]:
    """The command that made a source, as it was typed."""
    where = one_line(str(source.get("location")))
    if not (command := as_typed(source)):
        return [f"# no command is recorded that made {where}: it has to be there"]
    return [command, *([f"# what it made was then brought to {where}"] if "://" in where else [])]


def as_typed(source: Mapping[str, Any]) -> str:
    """Empty where no command is recorded."""
    command = source.get("command") or []
    more = source.get("command_words", 0) - len(command)
    rest = f" # and {several(more, 'more word')}: the store's manifest has all" if more > 0 else ""
    return f"{typed(command)}{rest}" if command else ""
