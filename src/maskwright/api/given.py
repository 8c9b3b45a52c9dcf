"""A Python program's arguments: checked by the annotations of the called function, and locations and configurations as
plain values."""

from __future__ import annotations

import functools
import inspect
import os
import re
import typing
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema

from maskwright.config import settings
from maskwright.core.errors import ConfigError, InputError, MaskwrightError, as_typed, of_texts

Function = TypeVar("Function", bound=Callable[..., Any])


@runtime_checkable
class Located(Protocol):
    """A `Run`, a `Store`, a `Comparison`."""

    @property
    def location(self) -> str: ...


Location = str | os.PathLike[str] | Located
Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["fp32", "bf16", "fp16"]
A_PATH = "give a path, or a Run or Store of maskwright"


def checked(function: Function) -> Function:
    """Checks arguments by their annotations, strictly: True is no number, and NumPy's numbers are numbers. Raises
    `InputError`, which names the argument. `texts` may be of any kind, such as a column of a data frame."""
    signature, adapters = inspect.signature(function), dict[str, Any]()

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named)
        if not adapters:
            hints = typing.get_type_hints(function, include_extras=True)
            strict = ConfigDict(strict=True, arbitrary_types_allowed=True)
            names = (name for name in hints if name not in ("return", "texts"))
            adapters.update({name: TypeAdapter(hints[name], config=strict) for name in names})
        for name, value in given.arguments.items():
            if name in adapters:
                try:
                    given.arguments[name] = adapters[name].validate_python(_of_python(value))
                except ValidationError:
                    raise _refused(name, value, adapters[name]) from None
        try:
            return function(*given.args, **given.kwargs)
        except MaskwrightError as error:
            if "texts" in signature.parameters or "text_column" in signature.parameters:
                as_typed(error, of_texts(signature.parameters))
            if isinstance(error, InputError):
                error.what = _in_python(error.what, signature.parameters)
                error.fix = error.fix and _in_python(error.fix, signature.parameters)
                error.where = error.where and _in_python(error.where, signature.parameters)
            raise

    return call  # type: ignore[return-value]


def _in_python(said: str, names: Container[str]) -> str:
    """Replaces a command's options by arguments of the same names. Whole commands, in backticks, stay."""

    def argument(option: re.Match[str]) -> str:
        return name if (name := option[1].replace("-", "_")) in names else option[0]

    parts = said.split("`")
    parts[::2] = [re.sub(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)", argument, part) for part in parts[::2]]
    return "`".join(parts)


def _of_python(value: Any) -> Any:
    """Python's number, string or list for one of NumPy's, and a list for an iterator."""
    if isinstance(getattr(value, "ndim", None), int) and callable(listed := getattr(value, "tolist", None)):
        return listed()
    return list(value) if isinstance(value, Iterator) else value


def _refused(name: str, value: Any, adapter: TypeAdapter[Any]) -> InputError:
    fix = "give a function"
    with suppress(PydanticInvalidForJsonSchema):  # only functions raise it
        schema = adapter.json_schema()
        kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
        takes = [settings.takes(kind) for kind in kinds if kind.get("format") != "path"]
        if len(takes) < len(kinds):
            takes[:1] = [A_PATH.removeprefix("give ")]
        fix = f"give {', or '.join(takes)}"
    return InputError(f"is {shown(value)}", where=name, fix=fix)


def shown(value: Any) -> str:
    """The beginning of a value's `repr`, in one line."""
    return " ".join(repr(value).split())[:40]


def location(given: Location) -> str:
    """The location as `str`. Raises `InputError` for a value without one."""
    if isinstance(given, Located):
        return given.location
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"{shown(given)} has no location", fix=A_PATH)
    return str(os.path.expanduser(given))  # NumPy's strings are a kind of their own


def location_if_any(given: Location | None) -> str | None:
    return None if given is None else location(given)


def locations(given: Location | Sequence[Location]) -> list[str]:
    single = isinstance(given, str | os.PathLike | Located)
    return [location(given)] if single else [location(each) for each in given]  # type: ignore[arg-type, union-attr]


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
    if (listed := _of_python(value)) is not value:
        return plain(listed, where)
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


def override(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, str]:
    """Sets keys of a nested configuration, and returns the source of each for errors. Raises `ConfigError` for a key
    that names a section."""
    blamed = {}
    for dotted, value in plain(overrides, "overrides").items():
        if isinstance(value, dict) and "." not in dotted:
            fix = f'write "{dotted}.{next(iter(value), "KEY")}"'
            raise ConfigError(f"{dotted} names a whole section", where="overrides", fix=fix)
        blamed[dotted] = f"overrides: {dotted}"
        settings.put(values, dotted, value, blamed[dotted])
    return blamed
