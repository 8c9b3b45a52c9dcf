"""What a Python program gives, as the tasks take it: locations as `str`, configurations as plain values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from maskwright.config import settings
from maskwright.core.errors import ConfigError, InputError


@runtime_checkable
class Located(Protocol):
    """A `Run`, a `Store`, a `Comparison`."""

    @property
    def location(self) -> str: ...


Location = str | os.PathLike[str] | Located
Device = Literal["auto", "cpu", "cuda", "mps"]


def location(given: Location) -> str:
    """Raises `InputError` for what has no location."""
    if isinstance(given, Located):
        return given.location
    try:
        return str(os.fspath(given))  # NumPy's strings are a kind of their own
    except TypeError:
        fix = "give a path, or a Run or Store of maskwright"
        raise InputError(f"{type(given).__name__} has no location", fix=fix) from None


def locations(given: Location | Sequence[Location]) -> list[str]:
    alone = isinstance(given, str | os.PathLike | Located)
    return [location(given)] if alone else [location(one) for one in given]  # type: ignore[arg-type, union-attr]


def integer(given: Any, where: str, least: int) -> int:
    """As `int`; NumPy's too. Raises `InputError` for another value, such as True, or a smaller one."""
    if not isinstance(given, Integral) or isinstance(given, bool) or given < least:
        raise InputError(f"is {given!r:.40}", where=where, fix=f"give an integer ≥ {least}")
    return int(given)


def number(given: Any, where: str) -> float:
    """As `float`; NumPy's too. Raises `InputError` for another value, such as True."""
    if not isinstance(given, Real) or isinstance(given, bool):
        raise InputError(f"is {given!r:.40}", where=where, fix="give a number")
    return float(given)


def require_word(given: Any, where: str, known: Any) -> None:
    """Raises `InputError` unless it is a word of `known`, a `Literal`."""
    if given not in (words := get_args(known)):
        raise InputError(f"is {given!r:.40}", where=where, fix=f"give one of {', '.join(words)}")


def plain(value: Any, where: str) -> Any:
    """Values as YAML has them: of NumPy's numbers, paths, runs and stores too. Raises `ConfigError` for others."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        if strange := next((key for key in value if not isinstance(key, str)), None):
            raise ConfigError(f"the key {strange!r} is no string", where=where, fix="put it in quotes")
        return {key: plain(one, f"{where}.{key}") for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, f"{where}.{number}") for number, one in enumerate(value)]
    if isinstance(value, str | os.PathLike | Located):
        return location(value)
    if callable(item := getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:
        return item()
    fix = "give a string, a number, a list or a dictionary"
    raise ConfigError(f"a {type(value).__name__} is no value of a configuration", where=where, fix=fix)


def nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Sections within sections, of keys in both forms, `{"a": {"b": 1}}` and `{"a.b": 1}`. Raises `ConfigError` for a
    key that is given twice."""
    values: dict[str, Any] = {}
    for dotted, value in plain(given, "config").items():
        _merge(values, settings.nested({dotted: value}), "")
    return values


def _merge(values: dict[str, Any], more: Mapping[str, Any], above: str) -> None:
    for key, value in more.items():
        if key not in values:
            values[key] = value
        elif isinstance(value, dict) and isinstance(values[key], dict):
            _merge(values[key], value, f"{above}{key}.")
        else:
            raise ConfigError(f"{above}{key} is given twice", where="config", fix="give it once")


def overriding(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values by dotted keys. Raises `ConfigError` for what is no mapping."""
    if not isinstance(overrides, Mapping):
        fix = 'give them as {"schedule.steps": 100}'
        raise ConfigError(f"{overrides!r:.40} is no dictionary", where="overrides", fix=fix)
    keys: dict[str, Any] = plain(overrides, "overrides")
    return keys


def override(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, str]:
    """Sets keys of a nested configuration, and returns what is blamed for each. Raises `ConfigError` for one that names
    a section."""
    blamed = {}
    for dotted, value in overriding(overrides).items():
        if isinstance(value, dict) and "." not in dotted:
            fix = f'write "{dotted}.{next(iter(value), "KEY")}"'
            raise ConfigError(f"{dotted} names a whole section", where="overrides", fix=fix)
        blamed[dotted] = f"overrides: {dotted}"
        settings.put(values, dotted, value, blamed[dotted])
    return blamed
