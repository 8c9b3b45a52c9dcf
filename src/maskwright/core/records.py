"""Small JSON records that one process writes and another reads: dataclasses, by the types of their fields."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


@cache
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def strictly(kind: type[T], content: bytes | str) -> T:
    """Raises pydantic's `ValidationError` where a key is missing or a value is of another type. Keys that the dataclass
    does not know, as of a later version, are passed over."""
    found: T = _adapter(kind).validate_json(content, strict=True)
    return found


def read(kind: type[T], content: bytes | str | None) -> T | None:
    """None if the content is no such record."""
    try:
        return strictly(kind, content or b"")
    except ValidationError:
        return None
