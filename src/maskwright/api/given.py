"""Converts a Python program's arguments to the form that tasks expect: locations as `str`, plain values for
configurations."""

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
    """The location as `str`. Raises `InputError` for a value without one."""
    if isinstance(given, Located):
        return given.location
    try:
        return str(os.fspath(given))  # NumPy's strings are a kind of their own
    except TypeError:
        fix = "give a path, or a Run or Store of maskwright"
        raise InputError(f"{type(given).__name__} has no location", fix=fix) from None


def locations(given: Location | Sequence[Location]) -> list[str]:
    single = isinstance(given, str | os.PathLike | Located)
    return [location(given)] if single else [location(each) for each in given]  # type: ignore[arg-type, union-attr]


def integer(given: Any, where: str, least: int) -> int:
    """The value as `int`; NumPy's too. Raises `InputError` for another value, such as True, or one below `least`."""
    if not isinstance(given, Integral) or isinstance(given, bool) or given < least:
        raise InputError(f"is {given!r:.40}", where=where, fix=f"give an integer ≥ {least}")
    return int(given)


def number(given: Any, where: str) -> float:
    """The value as `float`; NumPy's too. Raises `InputError` for another value, such as True."""
    if not isinstance(given, Real) or isinstance(given, bool):
        raise InputError(f"is {given!r:.40}", where=where, fix="give a number")
    return float(given)


def require_word(given: Any, where: str, known: Any) -> None:
    """Raises `InputError` unless it is a word of `known`, a `Literal`."""
    if given not in (words := get_args(known)):
        raise InputError(f"is {given!r:.40}", where=where, fix=f"give one of {', '.join(words)}")


def plain(value: Any, where: str) -> Any:
    """A value as in YAML; from NumPy's numbers, paths, runs and stores too. Raises `ConfigError` for others."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        if strange := next((key for key in value if not isinstance(key, str)), None):
            raise ConfigError(f"the key {strange!r} is not a string", where=where, fix="put it in quotes")
        return {key: plain(inner, f"{where}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, f"{where}.{number}") for number, inner in enumerate(value)]
    if isinstance(value, str | os.PathLike | Located):
        return location(value)
    if callable(item := getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:
        return item()
    fix = "give a string, a number, a list or a dictionary"
    raise ConfigError(f"a {type(value).__name__} is not a value of a configuration", where=where, fix=fix)


def nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Nested sections from keys in both forms, `{"a": {"b": 1}}` and `{"a.b": 1}`. Raises `ConfigError` for a
    key that is given twice."""
    values: dict[str, Any] = {}
    for dotted, value in plain(given, "config").items():
        _merge(values, settings.nested({dotted: value}), "")
    return values


def _merge(values: dict[str, Any], additions: Mapping[str, Any], above: str) -> None:
    for key, value in additions.items():
        if key not in values:
            values[key] = value
        elif isinstance(value, dict) and isinstance(values[key], dict):
            _merge(values[key], value, f"{above}{key}.")
        else:
            raise ConfigError(f"{above}{key} is given twice", where="config", fix="give it once")


def overriding(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values by dotted keys. Raises `ConfigError` unless it is a mapping."""
    if not isinstance(overrides, Mapping):
        fix = 'give them as {"schedule.steps": 100}'
        raise ConfigError(f"{overrides!r:.40} is not a dictionary", where="overrides", fix=fix)
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
