"""Small JSON records that one process writes and another reads: dataclasses, checked by the types of their fields."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")
_adapters: dict[type, TypeAdapter[Any]] = {}
"""Cached, since creating one takes 10 to 30 ms."""


def strictly(kind: type[T], content: bytes | str) -> T:
    """Parses a record. Raises pydantic's `ValidationError` if a key is missing or a value has another type. Unknown
    keys, such as a later version's, are ignored."""
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    value: T = _adapters[kind].validate_json(content, strict=True)
    return value


def read(kind: type[T], content: bytes | str | None) -> T | None:
    """Parses a record; None if the content is not such a record."""
    try:
        return strictly(kind, content or b"")
    except ValidationError:
        return None
