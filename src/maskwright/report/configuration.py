"""A run's configuration: what it has that others have not, and the commands that make the same run again."""

from __future__ import annotations

import copy
import json
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from maskwright.config import recipes
from maskwright.config.finetuning import FinetuneConfig, build_finetune_config
from maskwright.config.pretraining import RunConfig, build_config
from maskwright.config.settings import flat, keys_of, parse_yaml, put
from maskwright.core.console import several
from maskwright.core.errors import ConfigError
from maskwright.report.document import Block, Code, Folded, Paragraph
from maskwright.report.made_of import can_be_reproduced
from maskwright.report.run import RecordedRun
from maskwright.report.tables import ReportTable

PREPARED_WITH = (
    *("valid_fraction", "min_characters", "max_characters", "shard_tokens"),
    *("layout", "text_column", "on_bad_input", "letters"),
)
"""Options of a store's manifest that `data prepare` takes under the same names."""
LISTED = {"filters": "--filter", "languages": "--language", "masked": "--mask-pii"}
"""Options of cleaning that are lists, by their keys in a manifest."""
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
        (key, _value(value), _value(_at(begun, key, defaults[key])))
        for key, value in _changed(run, begun).items()
        if key in defaults
    )
    base = f"the recipe {recipe}" if recipe else "the defaults"
    found: list[Block] = [Paragraph(f"Every key is as in {base}.")]
    if rows:
        what = f"Of {len(run.config)} keys, these differ from {base}"
        found = [ReportTable(what, ("key", "this run", "recipe" if recipe else "default"), rows, 3)]
    every = tuple((key, _value(value)) for key, value in run.config.items() if value is not None)
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
            rows.append((key, *map(_value, values)))
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
    """The run's keys that `begun`, sections of a YAML, and the defaults do not give as they are."""
    defaults = _defaults(run)
    changed = {key: value for key, value in run.config.items() if not _equal(value, _at(begun, key, defaults.get(key)))}
    whole = _built(run, begun, changed)
    for key, value in list(changed.items()):  # a list or mapping may be written in other ways than it is recorded
        if whole is not None and isinstance(value, list | dict):
            without = {other: value for other, value in changed.items() if other != key}
            shorter = (without, changed | {key: _without_nulls(value)})
            changed = next((one for one in shorter if _built(run, begun, one) == whole), changed)
    return changed


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def _built(run: RecordedRun, begun: Mapping[str, Any], changed: Mapping[str, Any]) -> Any:
    """What such a file and `--set` of what was `changed` make; None where they are refused."""
    values = copy.deepcopy(dict(begun))
    build = build_finetune_config if run.is_finetuning else build_config
    try:
        for key, value in changed.items():
            put(values, key, value, key)
        return json.loads(json.dumps(flat(build(values, "config.yaml"))))
    except ConfigError:
        return None


def _equal(mine: Any, other: Any) -> bool:
    return bool(mine == other) or (mine is None and other in ({}, []))


def _value(value: Any) -> str:
    """With all digits, so that two values that differ look so."""
    if value is None:
        return "not set"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return value if isinstance(value, str) else in_flow(_without_unset(value))


def _without_unset(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_unset(one) for key, one in value.items() if one is not None}
    return [_without_unset(one) for one in value] if isinstance(value, list | tuple) else value


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
        found.append(Code(shlex.join(["maskwright", "reproduce", page or _near(run.location)])))
        found.append(Paragraph("These are the single steps, for the same folder:"))
    lines: list[str] = []
    for source in run.card.get("sources", []) if run.card.get("kind") == "text" else []:
        lines += _preparation(source, run.location)
    recipe, begun = _recipe(run), _written(run.given)
    changed = _changed(run, begun)
    given = run.given if begun else _as_yaml(changed)
    typed = ["maskwright", "finetune" if run.is_finetuning else "pretrain", recipe or "config.yaml", "--run", "NEW"]
    for key, value in changed.items() if begun else ():
        typed += ["--set", f"{key}={in_flow(value)}"]
    parents = run.look.lineage
    if isinstance(parents, dict) and "run" in parents and not run.config.get("model.init_from"):
        typed += ["--from", f"{parents['run']}@{parents.get('step')}"]
        typed += ["--fresh-optimizer"] if parents.get("optimizer") == "fresh" else []
    lines += [shlex.join(typed), "maskwright export NEW --to MODEL"]
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
        lines.append(f"{'  ' * len(sections)}{key}: {in_flow(value)}")
    return "\n".join(lines)


def _near(location: str) -> str:
    """As one would type it here."""
    near = location if "://" in location else os.path.relpath(location)
    return location if near.startswith("..") else near


def _preparation(source: Mapping[str, Any], run: str) -> list[str]:
    """`run`: its location, where a copy of the tokenizer lies. The store has one too, but only once it is made."""
    files, options, where = source.get("files") or [], source.get("options") or {}, str(source.get("location"))
    if source.get("format") != "store" or not files or "layout" not in options:
        return []
    count = max(source.get("file_count", 0), len(files))
    first_held_out = count - options.get("valid_files", 0)  # they are named last
    trained, held_out = files[:first_held_out], files[first_held_out:]
    tokenizer, to, notes = f"{_near(run)}/tokenizer", where, []
    if "://" in run:
        notes.append(f"# the run's copy of the tokenizer is {tokenizer}: bring it here as the folder TOKENIZER")
        tokenizer = "TOKENIZER"
    else:
        notes.append("# with the run's copy of the tokenizer: where the first one lay is not recorded")
    if "://" in where:
        to = f"NEW-{os.path.basename(where.rstrip('/'))}"
    typed = ["maskwright", "data", "prepare", *map(str, trained), "--tokenizer", tokenizer, "--to", to]
    for name in held_out:
        typed += ["--valid-files", str(name)]
    for key in PREPARED_WITH:
        if options.get(key) is not None and not (key == "valid_fraction" and options.get("valid_files")):
            typed += [f"--{key.replace('_', '-')}", str(options[key])]
    typed += ["--keep-duplicates"] if options.get("keep_duplicates") else []
    cleaning = options.get("cleaning") or {}
    typed += _cleaning(cleaning)
    if cleaning.get("evaluation_files"):
        notes.append("# of each file of --decontaminate, the name is recorded, and not where it lay")
    if more := options.get("valid_files", 0) - len(held_out):
        notes.append(f"# and {more:,} more --valid-files:")
    if more := count - options.get("valid_files", 0) - len(trained):
        notes.append(f"# and {several(more, 'more file')}:")
    pushed = [shlex.join(["maskwright", "data", "push", to, where])] if to != where else []
    return [*notes, shlex.join(typed), *pushed]


def _cleaning(recorded: Mapping[str, Any]) -> list[str]:
    """The options of `data prepare` that a manifest's record of cleaning came from."""
    typed: list[str] = []
    for key, option in LISTED.items():
        typed += [option, ",".join(recorded[key])] if recorded.get(key) else []
    if recorded.get("languages") and "language_probability" in recorded:
        typed += ["--language-probability", str(recorded["language_probability"])]
    if recorded.get("near_duplicates") is not None:
        typed += ["--near-duplicates", str(recorded["near_duplicates"])]
    for name in recorded.get("evaluation_files") or ():
        typed += ["--decontaminate", str(name)]
    if recorded.get("evaluation_files") and "contamination_words" in recorded:
        typed += ["--decontaminate-words", str(recorded["contamination_words"])]
    return typed
