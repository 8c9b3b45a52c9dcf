"""Small JSON records that one process writes and another reads: dataclasses, by the types of their fields."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
_adapters: dict[type, TypeAdapter[Any]] = {}
"""Making one takes 10 to 30 ms."""


def strictly(kind: type[T], content: bytes | str) -> T:
    """Raises pydantic's `ValidationError` where a key is missing or a value is of another type. Keys that the dataclass
    does not know, as of a later version, are passed over."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    found: T = _adapters[kind].validate_json(content, strict=True)
    return found


def read(kind: type[T], content: bytes | str | None) -> T | None:
    """None if the content is no such record."""
    try:
        return strictly(kind, content or b"")
    except ValidationError:
        return None
