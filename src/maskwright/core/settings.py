"""What every YAML that a user writes has in common: strict sections, YAML 1.2's scalars, errors that name the key."""

from __future__ import annotations

import difflib
import re
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from maskwright.core import storage
from maskwright.core.errors import ConfigError


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


BOOL = "tag:yaml.org,2002:bool"


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars (unlike in YAML 1.1, `1e-3` is a number and `on` is a word), and no key twice."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(BOOL, re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))

_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+0123456789."),
)


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if not isinstance(key, str | int | float):
            raise yaml.MarkedYAMLError(problem="a key is not a word", problem_mark=key_node.start_mark)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"key '{key}' is given twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise ConfigError(
            f"is not YAML: {error.problem}", where=place, fix="correct the line; YAML indents with spaces"
        ) from None
    except yaml.YAMLError as error:
        raise ConfigError(
            f"is not YAML: {error}", where=where, fix="correct the file; YAML indents with spaces"
        ) from None


def read_yaml(location: str, begin: str) -> dict[str, Any]:
    """A mapping. Raises `ConfigError` (exit 2); `begin` is the advice when there is none."""
    with storage.open_binary(location) as file:
        content = file.read()
    try:
        values = parse_yaml(content.decode("utf-8"), location)
    except UnicodeDecodeError as error:
        raise ConfigError(
            "is not UTF-8", where=f"{location}: byte {error.start}", fix="save the file as UTF-8"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError("is not a mapping of keys", where=location, fix=begin)
    return values


def explain(
    error: ValidationError, where: str, *, whole: str, keys: list[str], sections: list[str], known: str
) -> ConfigError:
    """One line of pydantic's many: the first key that is wrong. `known` says where all `keys` are listed."""
    first = error.errors()[0]
    dotted = ".".join(str(part) for part in first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        nearest = _nearest(dotted, keys, sections)
        return ConfigError(
            f"unknown key {dotted}{more}", where=where, fix=f"did you mean {nearest}?" if nearest else known
        )
    if first["type"] == "missing":
        return ConfigError(f"key {dotted} is missing{more}", where=where, fix=f"add it; {known}")
    message = first["msg"].removeprefix("Value error, ")
    given = f", not {first['input']!r}" if not isinstance(first["input"], dict | BaseModel) else ""
    return ConfigError(f"{dotted or whole}: {message}{given}{more}", where=where, fix=f"correct it; {known}")


def _nearest(dotted: str, keys: list[str], sections: list[str]) -> str | None:
    """The same name in another section, or else the most similar section or dotted name."""
    leaf = dotted.rsplit(".", 1)[-1]
    elsewhere = [key for key in keys if key.rsplit(".", 1)[-1] == leaf]
    similar = difflib.get_close_matches(dotted, [*sections, *keys], n=1, cutoff=0.6)
    return next(iter([*elsewhere, *similar]), None)
