"""Several labels as other tools write them: a list in a cell, labels with 0 or 1 each, a vector of 0 and 1."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from typing import Any

from maskwright.core.console import several
from maskwright.core.errors import ConfigError, SourceError
from maskwright.labels.example import Example, Reading, Unusable
from maskwright.labels.names import INTEGER, shortened
from maskwright.text.names import cell_name

STATES = {"0": False, "1": True, "false": False, "true": True}
PART = re.compile(r"""'[^']*'|"[^"]*"|[^\s'"]+""")


def state_of(cell: Any) -> bool | None:
    """Whether an entry of a vector is 1; None for one that is neither 0 nor 1."""
    return STATES.get(cell_name(cell).lower().removesuffix(".0"))  # pandas, where a cell was empty


def list_in(cell: str) -> list[Any] | None:
    """The list in a cell in the notation of JSON, Python or numpy, or a mapping's keys with 1; None for other cells.
    Raises `Unusable` for a mapping to anything but 0 and 1."""
    text = cell.strip()
    if text[:1] + text[-1:] not in ("[]", "()", "{}"):
        return None
    parts = PART.findall(text[1:-1])
    if len(parts) > 1 and "," not in text and ":" not in text:  # numpy, whose lists have no commas
        text = f"[{', '.join(part.rstrip('.') for part in parts)}]"
    value: Any = None
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        try:
            value = json.loads(text)
        except ValueError:
            value = ast.literal_eval(text)
    if isinstance(value, dict):
        return keys_of(value)
    return sorted(value, key=str) if isinstance(value, set) else [*value] if isinstance(value, list | tuple) else None


def keys_of(mapping: dict[Any, Any]) -> list[Any]:
    """The labels to which a mapping gives 1. Raises `Unusable` for values that are not 0 or 1."""
    for label, value in mapping.items():
        if type(value) not in (bool, int, float) or value not in (0, 1):
            raise Unusable(f"gives the label {label!r:.40} the value {value!r:.40}, not 0 or 1", "write 0 or 1")
    return [label for label, value in mapping.items() if value]


def require_labels(cell: list[Any]) -> None:
    """Raises `Unusable` for lists of lists, shares of labels, and numbers with a missing one."""
    for place, value in enumerate(cell):
        if isinstance(value, list | dict):
            raise Unusable(f"holds a {type(value).__name__} in its list", "write a list of labels")
        if value is None or value != value:
            if not any(isinstance(other, str) for other in cell):
                what = f"has no value at position {place} of its {len(cell)}, counted from 0"
                raise Unusable(what, "write 0 or 1, or delete the record")
        elif isinstance(value, float) and not value.is_integer():
            what = f"has {value:g} in its list, but a label applies or not; shares cannot be learned"
            raise Unusable(what, "write 1 for labels that the text has, and 0 for others")


def is_one_hot(cell: list[Any]) -> bool:
    """Whether a list is a vector with a single 1."""
    states = [*map(state_of, cell)]
    return len(states) > 1 and states.count(True) == 1 and None not in states


def named(examples: list[Example], reading: Reading) -> list[Example]:
    """The examples of a split with each label once, and by its name.

    If all have equally many labels, two or more, each of them 0 or 1, these are vectors. `task.labels` or the model's
    labels name the positions, or else their numbers from 0. If most are vectors, the others are faults. Raises
    `ConfigError` for another number of names, `SourceError` for vectors unlike the training split's."""
    places = _places(examples, reading)
    if reading.places not in (None, places):
        what = f"has vectors of {places} positions" if places else "has no vectors of 0 and 1"
        others = f"vectors of {reading.places} positions" if reading.places else "names"
        fix = "write the labels of all splits in the same way"
        raise SourceError(f"{what}, but the training split has {others}", where=examples[0].where, fix=fix)
    reading.places = places
    if not places:
        return _each_once(examples, reading)
    names, kept = _names_of(places, examples[0], reading), []
    for example in examples:
        if len(example.labels) == places and _is_vector(example):
            labels = [name for name, state in zip(names, example.labels, strict=True) if state_of(state)]
            kept.append(replace(example, labels=tuple(dict.fromkeys(labels))))
        else:
            what = f"has no vector of 0 and 1 with {places} positions, unlike most records"
            reading.fault(example.where, what, "write 0 or 1 for each label")
    return kept


def _is_vector(example: Example) -> bool:
    return len(example.labels) > 1 and None not in map(state_of, example.labels)


def _places(examples: list[Example], reading: Reading) -> int:
    """Positions of the vectors; 0 for lists of names."""
    if reading.places == 0 or len(reading.data.label_columns) > 1 or (reading.class_names and not reading.places):
        return 0
    sizes = Counter(len(example.labels) for example in examples if _is_vector(example))
    size, count = max(sizes.items(), key=itemgetter(1), default=(0, 0))
    may_be_names = all(len({*one.labels}) == size for one in examples if len(one.labels) == size)
    if count < len(examples) and (may_be_names or 2 * count <= len(examples)):
        return 0
    return 0 if may_be_names and len(reading.names) not in (0, size) else size  # of many labels, all have those two


def _names_of(places: int, first: Example, reading: Reading) -> list[str]:
    numbers = [str(place) for place in range(places)]
    translation, names = reading.task.translation, [*reading.names]
    if {*translation} == {*numbers}:
        names = [translation[number] for number in numbers]
    if len(names) not in (0, places):
        what = f"has a vector of {places} labels, but {len(names)} are named"
        fix = f"name {places} labels in task.labels, in the order of the positions"
        raise ConfigError(what, where=first.where, fix=fix if reading.task.labels else "write 0 or 1 for each label")
    if names:
        reading.note(f"the labels are vectors of 0 and 1, whose positions are {shortened(names)}")
    else:
        said = f"the labels are vectors of 0 and 1, whose positions are called 0 to {places - 1}"
        reading.note(f"{said}; name them in task.labels, in the same order")
        reading.class_names = tuple(numbers)
    return names or numbers


def _each_once(examples: list[Example], reading: Reading) -> list[Example]:
    kept, repeating = [], list[Example]()
    done = (reading.task.fixed_labels if reading.class_names else None) or ()  # by the schema of one of the files
    translation = {value: name for value, name in reading.task.translation.items() if value not in done}
    for example in examples:
        labels = tuple(dict.fromkeys(example.labels))
        if len(labels) < len(example.labels):
            if all(INTEGER.fullmatch(label) or state_of(label) is not None for label in labels):
                what = (
                    f"has the label {max(labels, key=example.labels.count)} twice in its list of {len(example.labels)}"
                )
                fix = "write each label once, or vectors of 0 and 1 of equal length"
                if reading.split != "train":
                    fix = "write the labels of all splits in the same way: the training split has names"
                reading.fault(example.where, what, fix)
                continue
            repeating.append(example)
        labels = tuple(dict.fromkeys(translation.get(label, label) for label in labels))
        kept.append(replace(example, labels=labels))
    if repeating:
        first = f"the first at {repeating[0].where}"
        reading.note(f"a label is repeated in {several(len(repeating), 'record')}, and counts once ({first})")
    return kept
