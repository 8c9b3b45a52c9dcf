"""The documentation's pages of keys, made from the pydantic models so that page and model cannot differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import groupby
from typing import Any

from maskwright.config.settings import Key, bounds, choices, keys_of

RUN = """\
# Configuration

<!-- Made by `maskwright schema > docs/configuration.md`. -->

*Reference, generated from the configuration's schema.* A run is described by a YAML file or by the name of a
[recipe](recipes.md): `maskwright pretrain small …`. `maskwright recipes small` prints a recipe to begin your own file
with. `--set section.key=value` overrides a key. An unknown key is refused with the nearest name, and a wrong type with
its path. You may change keys marked *resumable* when you continue a run, and no others. `maskwright schema --json`
prints the JSON schema, for completion in an editor. The [glossary](glossary.md) explains rows, sequences and virtual
workers.

Set either `data.store` or `data.mixture`, and either `schedule.steps` or `schedule.epochs`.
"""
FINETUNING = """\
# Configuration of a fine-tuning run

<!-- Made by `maskwright schema finetune > docs/finetuning-configuration.md`. -->

*Reference, generated from the configuration's schema.* A [fine-tuning](finetuning.md) run is described by a YAML file
or by the name of a [preset](finetuning.md#presets): `maskwright finetune banking77 …`. `--set section.key=value`
overrides a key. You may change keys marked *resumable* when you continue a run.

Set `data.train`, and either `model.init_from` or `model.tokenizer`.
"""
RETRIEVAL = """\
## Retrieval

A YAML with `task.kind: retrieval` takes only these keys ([an encoder for search](search.md)).
"""
ENVIRONMENT = """\
# An environment's YAML

<!-- Made by `maskwright schema environment > docs/google-cloud-environment.md`. -->

*Reference, generated from the environment's schema.* One YAML file describes one environment on Google Cloud. A part
that is `null` or left out does not exist: without `slice:`, `maskwright env up` removes the slice. Unknown keys and
wrong values are refused.
"""


def run_page() -> str:
    from maskwright.config.phases import Phase
    from maskwright.config.pretraining import RESUMABLE_KEYS, RunConfig

    phases = (
        "An entry of `phases` takes these keys ([phases](mixtures.md#phases)). "
        "The file decides about keys that it leaves out."
    )
    return f"{RUN}\n{_table(keys_of(RunConfig), RESUMABLE_KEYS)}\n{phases}\n\n{_table(keys_of(Phase, 'phases[].'))}"


def finetuning_page() -> str:
    from maskwright.config.finetuning import FinetuneConfig
    from maskwright.config.retrieval import RetrievalConfig
    from maskwright.config.settings import resumable_keys

    labelled = _table(keys_of(FinetuneConfig), resumable_keys(FinetuneConfig))
    return f"{FINETUNING}\n{labelled}\n{RETRIEVAL}\n{_table(keys_of(RetrievalConfig))}"


def environment_page() -> str:
    """A table for each section, below the docstring of its class."""
    from maskwright.cloud.environment import Environment, Fallback

    parts = [ENVIRONMENT]
    for section, group in groupby(keys_of(Environment).items(), lambda item: item[0].rpartition(".")[0]):
        keys = dict(group)
        title = f"## {section}\n\n{next(iter(keys.values())).section.__doc__}\n\n" if section else ""
        parts.append(title + _table(keys))
    fallbacks = _table(keys_of(Fallback, "fallbacks[]."))
    return "\n".join([*parts, f"Each entry of `fallbacks`, of a slice or a group, takes these keys:\n\n{fallbacks}"])


def _table(keys: Mapping[str, Key], resumable: Collection[str] = ()) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for dotted, key in keys.items():
        default = "" if key.field.is_required() else f"`{key.field.get_default(call_default_factory=True)}`"
        meaning = " ".join((key.field.description or "").split()) + " *Resumable.*" * (dotted in resumable)
        default = default.replace("`None`", "not set")
        lines.append(f"| `{dotted}` | {_type(key.schema)} | {default} | {meaning.strip()} |")
    return "\n".join(lines) + "\n"


def _type(schema: dict[str, Any]) -> str:
    words = [f"`{word}`" for word in choices(schema)]
    return ", ".join(words) if words else " ".join([schema.get("type", "list"), *bounds(schema)])
