"""What a run was made of: its data, its configuration, what it came from, where it ran, how to make it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from maskwright.core import recipes
from maskwright.core.config import RunConfig
from maskwright.core.console import human_bytes, human_count, several
from maskwright.core.errors import ConfigError
from maskwright.core.finetuning import FinetuneConfig
from maskwright.core.settings import keys_of, parse_yaml
from maskwright.report import plots, words
from maskwright.report.document import Block, Code, Drawing, Facts, Folded, Listing, Words
from maskwright.report.run import Run
from maskwright.report.tables import Table
from maskwright.run.lineage import describe

MOST_LABELS = 30
COUNTED = {
    "read": "documents read",
    "kept": "kept",
    "duplicates": "left out as exact duplicates",
    "too_short": "left out as too short",
    "too_long": "left out as too long",
}
PREPARED_WITH = ("valid_fraction", "min_characters", "max_characters", "layout", "text_column", "on_bad_input")
"""Options of a store's manifest that `data prepare` takes under the same names."""


# ---- data ----------------------------------------------------------------------------------------------------------


def data(run: Run) -> list[Block]:
    card = run.card
    if not card:
        where = run.record.get("store")
        return [Words(f"This run has no data.json. It trained on {where}." if where else "The run has no data card.")]
    if card.get("kind") == "labelled":
        return _labelled(card)
    if card.get("kind") != "text":
        return [Words(f"Pregenerated examples of {card.get('location')}.")]
    found: list[Block] = []
    for source in card.get("sources", []):
        found += _source(source)
    return found


def in_short(card: Mapping[str, Any]) -> list[str]:
    """A line for each source of text, and one for each unigram baseline, as a model card has them."""
    found = []
    for source in card.get("sources") or []:
        train, valid = (source["splits"][side] for side in ("train", "valid"))
        of = f" of {source['name']}" if source.get("name") else ""
        repeats = (source.get("counts") or {}).get("duplicates")
        left_out = f"; {several(repeats, 'repeat')} left out" if repeats else ""
        found.append(
            f"text{of}: {several(train['documents'], 'document')}, {human_count(train['tokens'])} tokens, and "
            f"{several(valid['documents'], 'document')} held out{left_out}"
        )
    for name, baseline in (card.get("unigram") or {}).items():
        of = f" of {name}" if name else ""
        guessed = f"{baseline['loss']:.4f}, accuracy {baseline['accuracy']:.2%}"
        found.append(f"held-out loss{of} of guessing by frequency alone: {guessed}")
    return found


def _source(source: Mapping[str, Any]) -> list[Block]:
    splits, name = source.get("splits", {}), source.get("name") or "The store"
    rows = [("Where", str(source.get("location")))]
    for split, said in (("train", "Training text"), ("valid", "Held out")):
        totals = splits.get(split) or {}
        rows.append(
            (said, f"{several(totals.get('documents', 0), 'document')}, {human_count(totals.get('tokens', 0))} tokens")
        )
    counts = source.get("counts") or {}
    rows += [(said.capitalize(), f"{counts[key]:,}") for key, said in COUNTED.items() if counts.get(key)]
    options = {key: value for key, value in (source.get("options") or {}).items() if value not in (None, False, {})}
    cleaning = options.pop("cleaning", None)
    rows.append(("Prepared with", ", ".join(f"{key} {value}" for key, value in options.items()) or "no options"))
    if isinstance(cleaning, dict):
        filters = ", ".join(f"{key} {value}" for key, value in cleaning.items() if value not in (None, False, []))
        rows.append(("Filters", filters))
    files, count = source.get("files") or [], source.get("file_count", 0)
    more = f" and {count - len(files):,} more" if count > len(files) else ""
    rows.append(("Files", f"{', '.join(map(str, files))}{more}"))
    rows.append(("Fingerprint", str(source.get("fingerprint"))))
    found: list[Block] = [Facts((("Source", name), *rows) if source.get("name") else tuple(rows))]
    for key, heading in (("left_out", "What cleaning left out"), ("changed", "What cleaning changed")):
        if counts.get(key):
            listed = tuple((str(rule), f"{number:,}") for rule, number in counts[key].items())
            found.append(Table(heading, ("rule", "documents" if key == "left_out" else "times"), listed))
    return [*found, *_lengths(source.get("documents_by_tokens") or {}, "document")]


def _lengths(counts: Mapping[str, int], of: str) -> list[Block]:
    if not counts:
        return []
    named = {words.span(int(size) // 2, int(size) - 1, "token"): count for size, count in counts.items()}
    rows = tuple((name, f"{count:,}") for name, count in named.items())
    table = Table(f"Lengths of {of}s", ("length", f"{of}s"), rows)
    return [Drawing(f"<h3>Lengths of {of}s</h3>{plots.bars(named, of)}", numbers=table)]


def _labelled(card: Mapping[str, Any]) -> list[Block]:
    sizes = card.get("examples") or {}
    found: list[Block] = [
        Facts(tuple((split.capitalize(), several(count, "example")) for split, count in sizes.items()))
    ]
    labels: Mapping[str, Mapping[str, int]] = card.get("labels") or {}
    if train := labels.get("train"):
        rows = tuple(
            (label, *(f"{labels[split].get(label, 0):,}" for split in labels)) for label in [*train][:MOST_LABELS]
        )
        more = f"; {len(train) - MOST_LABELS} more are left out" if len(train) > MOST_LABELS else ""
        found.append(Table(f"Examples of each label{more}", ("label", *labels), rows))
    notes = [str(one) for one in [*(card.get("findings") or []), *(card.get("notes") or [])]]
    found += [Listing(tuple(notes))] if notes else []
    return [*found, *_lengths(card.get("examples_by_tokens") or {}, "training example")]


# ---- configuration -------------------------------------------------------------------------------------------------


def _defaults(run: Run) -> dict[str, Any]:
    keys = keys_of(FinetuneConfig if run.is_finetuning else RunConfig)
    return {
        name: None if key.field.is_required() else key.field.get_default(call_default_factory=True)
        for name, key in keys.items()
    }


def _recipe(run: Run) -> str | None:
    """The recipe that the run was started with, by the text of its config.yaml."""
    if run.given is None:
        return None
    kinds: tuple[recipes.Kind, ...] = ("pretrain", "finetune")
    known = [name for kind in kinds for name in recipes.names(kind)]
    return next((name for name in known if recipes.read(name) == run.given), None)


def _written(text: str | None) -> dict[str, Any]:
    """Values of a YAML file by dotted key."""
    try:
        values = parse_yaml(text or "", "config.yaml")
    except ConfigError:
        return {}
    found: dict[str, Any] = {}

    def take(section: Any, prefix: str) -> None:
        for key, value in section.items() if isinstance(section, dict) else ():
            found[f"{prefix}{key}"] = value
            take(value, f"{prefix}{key}.")

    take(values, "")
    return found


def configuration(run: Run) -> list[Block]:
    if not run.config:
        return [Words("The run has no configuration yet.")]
    recipe, defaults = _recipe(run), _defaults(run)
    begun = defaults | ({key: value for key, value in _written(run.given).items() if key in defaults} if recipe else {})
    rows = tuple(
        (key, _value(value), _value(begun[key]))
        for key, value in run.config.items()
        if key in begun and not _equal(value, begun[key])
    )
    base = f"the recipe {recipe}" if recipe else "the defaults"
    what = f"Of {len(run.config)} keys, these differ from {base}."
    found: list[Block] = [Words(what if rows else f"Every key is as in {base}.")]
    if rows:
        found.append(Table(f"Differences from {base}", ("key", "this run", "recipe" if recipe else "default"), rows, 3))
    every = tuple((key, _value(value)) for key, value in run.config.items() if value is not None)
    found.append(Folded("Every key that has a value", (Table("The whole configuration", ("key", "value"), every, 2),)))
    if run.record.get("digest"):
        found.append(Words(f"Digest of what decides the numbers: {run.record['digest']}", faint=True))
    return found


def differences(runs: Sequence[Run]) -> list[Block]:
    """Keys in which several runs differ, a column for each run."""
    keys = sorted({key for run in runs for key in run.config})
    told = [[_value(run.config.get(key, _defaults(run).get(key))) for run in runs] for key in keys]
    rows = tuple((key, *values) for key, values in zip(keys, told, strict=True) if len(set(values)) > 1)
    if not rows:
        return [Words("The runs have the same configuration.")]
    header = ("key", *(run.name for run in runs))
    return [Table("Keys in which the runs differ", header, rows, len(header))]


def _equal(mine: Any, other: Any) -> bool:
    return bool(mine == other) or (mine is None and other in ({}, [])) or _value(mine) == _value(other)


def _value(value: Any) -> str:
    """As YAML has it on a line, without what is not set."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_value(one)}' for key, one in value.items() if one is not None)}}}"
    return _value(value.model_dump(mode="json")) if hasattr(value, "model_dump") else str(value)


# ---- where from, where, and how again ------------------------------------------------------------------------------


def lineage(run: Run) -> list[Block]:
    lines = [f"This run {line}." if line.startswith("began") else f"{line}." for line in describe(run.look.lineage)]
    base = run.record.get("base")
    if isinstance(base, dict) and not lines:
        step = f", step {base['step']:,}" if isinstance(base.get("step"), int) else ""
        lines.append(f"The run began with the weights of {base.get('location')}{step}.")
    for name, digest in (run.record.get("base_weights") or {}).items():
        lines.append(f"Base weights {name}: sha256 {digest}.")
    if not lines:
        named = run.config.get("model.init_from")
        lines.append(f"The run began with the weights of {named}." if named else "The run began with random weights.")
    return [Listing(tuple(lines))]


def environment(run: Run) -> list[Block]:
    found, hardware = run.environment, run.environment.get("hardware") or {}
    if not found:
        return [Words("The run has no environment.json.")]
    packages = ", ".join(f"{name} {version}" for name, version in (found.get("packages") or {}).items())
    engines = sorted({str(line["engine"]) for line in run.at("started") if line.get("engine")})
    memory = hardware.get("memory_bytes")
    rows = [
        ("maskwright", f"{found.get('maskwright')}, revision {found.get('revision') or 'not known'}"),
        ("Packages", packages),
        ("Engine", "; ".join(engines)),
        ("Machine", f"{hardware.get('cpu')}, {_cores(hardware.get('cores'))}" if hardware else ""),
        ("Memory", human_bytes(memory) if isinstance(memory, int | float) else ""),
        ("System", f"{hardware.get('platform')}, Python {hardware.get('python')}" if hardware else ""),
    ]
    return [Facts(tuple((term, said) for term, said in rows if said))]


def _cores(count: object) -> str:
    return several(count, "core") if isinstance(count, int) else "cores not known"


def again(run: Run) -> list[Block]:
    """The commands that make such a run."""
    if not run.config:
        return []
    verb, lines = "finetune" if run.is_finetuning else "pretrain", []
    for source in run.card.get("sources", []) if run.card.get("kind") == "text" else []:
        lines += _preparation(source)
    recipe = _recipe(run)
    config = recipe or "config.yaml"
    given = _written(run.given)
    changed = {
        key: value
        for key, value in run.config.items()
        if key in given and not _equal(value, given[key]) and not isinstance(given[key], dict)
    }
    changed |= {
        key: value
        for key, value in run.config.items()
        if key not in given and not _equal(value, _defaults(run).get(key)) and not _inside(key, given)
    }
    changed = {key: value for key, value in changed.items() if value is not None and not isinstance(value, dict | list)}
    if "schedule.epochs" in given:
        changed.pop("schedule.steps", None)
    typed = [
        "maskwright",
        verb,
        config,
        "--run",
        "NEW",
        *(w for k, v in changed.items() for w in ("--set", f"{k}={_value(v)}")),
    ]
    parents = run.look.lineage
    if isinstance(parents, dict) and "run" in parents and not run.config.get("model.init_from"):
        typed += ["--from", f"{parents['run']}@{parents.get('step')}"]
    lines.append(shlex.join(typed))
    lines.append("maskwright export NEW --to MODEL")
    found: list[Block] = [Code("\n".join(lines))]
    if not recipe and run.given:
        found.append(Folded("config.yaml", (Code(run.given.rstrip()),)))
    return found


def _inside(key: str, given: Mapping[str, Any]) -> bool:
    """Whether a section above holds it in a form of its own, such as a mixture's sources."""
    return any(key.startswith(f"{one}.") and not isinstance(given[one], dict) for one in given)


def _preparation(source: Mapping[str, Any]) -> list[str]:
    files, options, where = source.get("files") or [], source.get("options") or {}, str(source.get("location"))
    if source.get("format") != "store" or not files or "layout" not in options:
        return []
    typed = ["maskwright", "data", "prepare", *map(str, files), "--tokenizer", f"{where}/tokenizer", "--to", where]
    for key in PREPARED_WITH:
        if options.get(key) not in (None, False):
            typed += [f"--{key.replace('_', '-')}", str(options[key])]
    typed += ["--keep-duplicates"] if options.get("keep_duplicates") else []
    lines = [shlex.join(typed)]
    if options.get("cleaning"):
        lines.insert(0, "# and with the filters of the data card:")
    if source.get("file_count", 0) > len(files):
        lines.insert(0, f"# and {source['file_count'] - len(files):,} more files:")
    return lines
