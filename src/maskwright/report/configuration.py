"""A run's configuration: its difference from defaults or other runs, and the commands that repeat the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from maskwright.config import recipes
from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.config.settings import in_flow, keys_of, parse_yaml
from maskwright.core.console import one_line, several, typed
from maskwright.core.errors import ConfigError
from maskwright.report.document import Block, Code, Folded, Paragraph
from maskwright.report.frame import ReportTable
from maskwright.report.run import RecordedRun

# ---- differences --------------------------------------------------------------------------------------------------


def configuration(run: RecordedRun) -> list[Block]:
    if not run.config:
        return [Paragraph("The run has no configuration yet.")]
    recipe = _recipe(run)
    written = _written(run.config_text) if recipe else {}
    defaults = _defaults(run)
    rows = tuple(
        (key, shown(value), shown(_at(written, key, defaults[key])))
        for key, value in _changed(run, written).items()
        if key in defaults
    )
    base = f"the recipe {recipe}" if recipe else "the defaults"
    blocks: list[Block] = [Paragraph(f"Every key is as in {base}.")]
    if rows:
        caption = f"Of {len(run.config)} keys, these differ from {base}"
        blocks = [ReportTable(caption, ("key", "this run", "recipe" if recipe else "default"), rows, 3)]
    all_rows = tuple((key, shown(value)) for key, value in run.config.items() if value is not None)
    blocks.append(
        Folded("Every key that has a value", (ReportTable("The whole configuration", ("key", "value"), all_rows, 2),))
    )
    if run.record:
        blocks.append(Paragraph(f"Digest of what decides the numbers: {run.record.digest}", faint=True))
    return blocks


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
    if run.config_text is None:
        return None
    known = recipes.names("finetune" if run.is_finetuning else "pretrain")
    return next((name for name in known if recipes.read(name) == run.config_text), None)


def _written(text: str | None) -> dict[str, Any]:
    """The sections of a YAML file; none for other text."""
    try:
        values = parse_yaml(text or "", "config.yaml")
    except ConfigError:
        return {}
    return values if isinstance(values, dict) else {}


def _at(values: Mapping[str, Any], dotted: str, default: Any) -> Any:
    value: Any = values
    for name in dotted.split("."):
        if not isinstance(value, dict) or name not in value:
            return default
        value = value[name]
    return value


def _changed(run: RecordedRun, written: Mapping[str, Any]) -> dict[str, Any]:
    """The run's values that differ from `written` (sections of a YAML) and the defaults, or are lists or
    mappings that are written differently there."""
    defaults = _defaults(run)
    return {key: value for key, value in run.config.items() if not _equal(value, _at(written, key, defaults.get(key)))}


def _equal(value: Any, other: Any) -> bool:
    return bool(_set(value) == _set(other)) or (value is None and other in ({}, []))


def shown(value: Any) -> str:
    """A value with all digits, so that two values that differ look different."""
    if value is None:
        return "not set"
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return value if isinstance(value, str) else in_flow(_set(value))


def _set(value: Any) -> Any:
    """The value without keys that are not set."""
    if isinstance(value, Mapping):
        return {key: _set(entry) for key, entry in value.items() if entry is not None}
    return [*map(_set, value)] if isinstance(value, list | tuple) else value


# ---- repetition ----------------------------------------------------------------------------------------------------


def how_to_repeat(run: RecordedRun) -> list[Block]:
    if run.record is None:
        return []
    blocks: list[Block] = []
    if not run.record.repeats:
        blocks.append(Paragraph("Its configuration changed between two starts, so no single command repeats the run."))
    lines: list[str] = []
    for source in run.card.get("sources", []) if run.card.get("kind") == "text" else []:
        lines += _preparation(source)
    recipe, written = _recipe(run), _written(run.config_text)
    changed = _changed(run, written)
    config_text = run.config_text if written else _as_yaml(changed)
    overrides = [f"{key}={in_flow(_set(value))}" for key, value in changed.items()] if written else []
    command = run.record.command(recipe or "config.yaml", "NEW", overrides)
    lines += [typed(command), "maskwright export NEW --to MODEL"]
    blocks.append(Code("\n".join(lines)))
    if not recipe and config_text:
        blocks.append(Folded("config.yaml", (Code(config_text.rstrip()),)))
    return blocks


def _as_yaml(values: Mapping[str, Any]) -> str:
    """YAML of values by dotted key. The keys of a section must follow one another."""
    lines: list[str] = []
    previous: list[str] = []
    for dotted, value in values.items():
        *sections, key = dotted.split(".")
        for depth, name in enumerate(sections, 1):
            if sections[:depth] != previous[:depth]:
                lines.append(f"{'  ' * (depth - 1)}{name}:")
        previous = sections
        lines.append(f"{'  ' * len(sections)}{key}: {in_flow(_set(value))}")
    return "\n".join(lines)


def _preparation(source: Mapping[str, Any]) -> list[str]:
    """The lines with the command that created a source, as it was typed."""
    location = one_line(str(source.get("location")))
    if not (command := as_typed(source)):
        return [f"# {location} must exist: no command was recorded that makes it"]
    return [command, *([f"# its result was then copied to {location}"] if "://" in location else [])]


def as_typed(source: Mapping[str, Any]) -> str:
    """The recorded command of a source; empty without one."""
    command = source.get("command") or []
    missing_words = source.get("command_words", 0) - len(command)
    rest = f" # and {several(missing_words, 'more word')}: the store's manifest lists all" if missing_words > 0 else ""
    return f"{typed(command)}{rest}" if command else ""
