"""The common base of all YAML that users write: strict sections, YAML 1.2's scalars, errors that name the key."""

from __future__ import annotations

import difflib
import functools
import json
import math
import operator
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from maskwright.core import storage
from maskwright.core.errors import ConfigError
from maskwright.core.secrets import redact

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]
Resumable = Field(json_schema_extra={"resumable": True})
Needed = Field(json_schema_extra={"needed": True})
"""Sentence for a missing key, if neither it nor an alternative is given."""


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        use_attribute_docstrings=True,
        model_title_generator=lambda section: section.__name__.removesuffix("Section"),  # editors show it
    )


class Refused(ValueError):
    """The error of a section's validator: `what` is wrong, and the `fix`."""

    def __init__(self, what: str, *, fix: str) -> None:
        self.fix = fix
        super().__init__(what)


BOOL = "tag:yaml.org,2002:bool"
LARGEST_YAML, DEEPEST, LONGEST_INTEGER_BITS = 1 << 20, 100, 4096
"""Characters of the file, levels, bits of an integer: far beyond any real file."""
PLAIN = re.compile(r"[\w./~+@=-][\w./~+@=:*-]*")
"""Words that may need no quotes in YAML."""
MADE_TO_BREAK = "check where the file came from, since no run's configuration looks like this"


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars (unlike in YAML 1.1, `1e-3` is a number and `on` is a word), no key twice, and limits."""

    _depth = 0

    def fetch_flow_collection_start(self, kind: type[yaml.Token]) -> None:
        if self.flow_level >= DEEPEST:  # the scanner looks ahead to their end, in quadratic time
            raise _refused(f"is nested more than {DEEPEST} deep", self.get_mark())
        super().fetch_flow_collection_start(kind)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if event.anchor:  # a few letters may mean any number of values
            raise _refused(f"has an anchor or alias, {event.anchor}", event.start_mark, "write the value at each place")
        self._depth += 1
        if self._depth > DEEPEST:
            raise _refused(f"is nested more than {DEEPEST} deep", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except ValueError:  # an integer of over 4,300 digits, or a date that is none
            value = None if not isinstance(node, yaml.ScalarNode) else 1 << LONGEST_INTEGER_BITS
        if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER_BITS:
            raise _refused(f"{str(node.value)[:20]} is no valid number or date", node.start_mark)
        return value


def _refused(what: str, mark: yaml.Mark, fix: str = MADE_TO_BREAK) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=mark, note=fix)


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
    if len(text) > LARGEST_YAML:
        raise ConfigError(f"has more than {LARGEST_YAML:,} characters", where=where, fix=MADE_TO_BREAK)
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", error)
        place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        if isinstance(error, yaml.composer.ComposerError):  # anchors, its other subject, are refused before
            raise ConfigError("holds several documents", where=place, fix="keep one, without ---") from None
        began = getattr(error, "context_mark", None)
        fix = "indent with spaces, not tabs; write each key once, followed by a colon and a space"
        if began and text[began.index : began.index + 1] in ("[", "{"):
            fix = f"close the {text[began.index]} of line {began.line + 1}"
        raise ConfigError(f"is not YAML: {problem}", where=place, fix=getattr(error, "note", None) or fix) from None


def in_flow(value: Any) -> str:
    """The value in one line, as `--set` reads it: a number, a word, null, a list or a mapping."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{in_flow(str(key))}: {in_flow(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(in_flow, value)) + "]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value).replace("inf", ".inf").replace("nan", ".nan")
    if not isinstance(value, str):
        return json.dumps(value)
    if PLAIN.fullmatch(value) and _parses(value, value) and _parses(f"[{value}]", [value]):
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in quoted)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, str]:
    """The keys whose values differ, each with both in YAML: `key: old -> new`. An absent value is null."""
    differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return {key: f"{key}: {in_flow(old.get(key))} -> {in_flow(new.get(key))}" for key in differing}


def _parses(text: str, value: Any) -> bool:
    try:
        return bool(parse_yaml(text, text) == value)
    except ConfigError:
        return False


def read_yaml(location: str, begin: str) -> dict[str, Any]:
    """A mapping. Raises `ConfigError` (exit 2); `begin` is the advice when there is none."""
    with storage.open_binary(location) as file:
        content = file.read()
    try:
        values = parse_yaml(content.decode("utf-8"), location)
    except UnicodeDecodeError as error:
        fix = "save the file as UTF-8"
        raise ConfigError("is not UTF-8", where=f"{location}: byte {error.start}", fix=fix) from None
    if not isinstance(values, dict):
        raise ConfigError("is not a mapping of keys", where=location, fix=begin)
    return values


def require_no_secret(values: Any, where: str, overrides: Mapping[str, str] = {}, key: str = "") -> None:
    """Raises `ConfigError`, which names the key, if a text in nested `values` holds a secret.
    `overrides`: dotted keys that did not come from the file, each with its source for errors."""
    if isinstance(values, dict | list):
        for name, inner in values.items() if isinstance(values, dict) else enumerate(values):
            require_no_secret(inner, where, overrides, f"{key}.{name}".lstrip("."))
    elif isinstance(values, str) and redact(values) != values:
        fix = (
            "leave it out, since records and model cards repeat the configuration; file systems find credentials in "
            "the environment, and you can download from a signed address first"
        )
        raise ConfigError(f"{key} holds a secret: {redact(values)}", where=_blamed(key, overrides) or where, fix=fix)


def _blamed(dotted: str, overrides: Mapping[str, str]) -> str:
    """The source of a key for errors: its override, or the override of a section above it; "" for the file's keys."""
    return next((blamed for key, blamed in overrides.items() if f"{dotted}.".startswith(f"{key}.")), "")


# ---- keys ----------------------------------------------------------------------------------------------------------


class Key(NamedTuple):
    section: type[BaseModel]
    name: str

    @property
    def field(self) -> FieldInfo:
        return self.section.model_fields[self.name]

    @property
    def is_needed(self) -> bool:
        extra = self.field.json_schema_extra
        return self.field.is_required() or (isinstance(extra, dict) and bool(extra.get("needed")))

    @property
    def inner(self) -> type[BaseModel] | None:
        """The section in the key's value, if it is one."""
        return _section_in(self.field.annotation)

    @property
    def holds_many(self) -> bool:
        """Whether the value is a list or a mapping, of sections or other values."""
        kinds = (self.field.annotation, *typing.get_args(self.field.annotation))
        return any(typing.get_origin(kind) in (list, dict) for kind in kinds)

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of the value, null aside."""
        return next(choice for choice in self._choices() if choice.get("type") != "null")

    def allowed(self) -> str:
        """The accepted values, as in "a number > 0 and < 1; the default is 0.15"."""
        field = self.field
        text = takes(self.schema)
        text += f", each entry {entry}" if (entry := self.allowed_entry()) else ""
        text += ", or null" if len(self._choices()) > 1 else ""
        known = not field.is_required() and field.default not in (None, ...) and field.default_factory is None
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        default = f"[{', '.join(map(str, default))}]" if isinstance(default, list) else default
        return f"{text}; the default is {default}" if known else text

    def accepts(self, text: str) -> bool:
        """Whether `--set` takes this text for the key by itself."""
        try:
            kind: Any = Annotated[self.field.annotation, Field(), *self.field.metadata]
            TypeAdapter(kind).validate_python(parse_yaml(text, self.name), strict=True)
        except (ValidationError, ConfigError):
            return False
        return True

    def allowed_entry(self) -> str:
        """The accepted values of each entry of its list; empty if it is not a list of one kind of value."""
        entry = self.schema.get("items", {})
        return takes(entry) if "type" in entry else ""

    def _choices(self) -> list[dict[str, Any]]:
        schema: dict[str, Any] = self.section.model_json_schema()["properties"][self.name]
        return [schema | choice for choice in schema.get("anyOf", [schema])]


NAMES = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
}
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def takes(schema: dict[str, Any]) -> str:
    words = choices(schema)
    kind = NAMES.get(schema.get("type", ""), "a value")
    text = f"one of {', '.join(words)}" if words else f"{kind} {' and '.join(bounds(schema))}".rstrip()
    text += f" such as {schema['examples'][0]}" if "examples" in schema else ""
    return text + (f", by the pattern {schema['pattern']}" if "pattern" in schema else "")


def no_number(text: object, schema: dict[str, Any]) -> str:
    """The end of a fix for a number in another country's spelling; empty for any other text."""
    match = re.fullmatch(r"[-+]?\d+([.,]\d+)*([eE][-+]?\d+)?", text.strip()) if isinstance(text, str) else None
    if match is None or schema.get("type") not in ("integer", "number"):
        return ""
    if not match[0].isascii():
        return "; the digits are 0 to 9"
    if schema["type"] == "integer":
        return "; write 10000, without a separator" if match[1] else ""
    return "; use . as the decimal point" if "," in match[0] else ""


def choices(schema: dict[str, Any]) -> list[str]:
    """The words of a key that accepts a fixed set of them; empty for another key."""
    return [str(value) for value in schema.get("enum", [schema["const"]] if "const" in schema else [])]


def bounds(schema: dict[str, Any]) -> list[str]:
    """The limits of a number, as in ["> 0", "< 1"]."""
    return [f"{sign} {_number(schema[key])}" for key, sign in LIMITS.items() if key in schema]


def _number(value: float) -> str:
    return re.sub(r"\.0$", "", str(value)) if value < 2**40 else f"2^{int(value).bit_length() - 1}"


def keys_of(section: type[BaseModel], prefix: str = "") -> dict[str, Key]:
    """Every key below a section by its dotted name, in the order of the source."""
    keys: dict[str, Key] = {}
    for name in section.model_fields:
        key = Key(section, name)
        if key.inner is None or key.holds_many:
            keys[prefix + name] = key
        else:
            keys |= keys_of(key.inner, f"{prefix}{name}.")
    return keys


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """The section in an annotation: Nfs, for `Nfs`, `Nfs | None` and `list[Nfs]`."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    return next(filter(None, map(_section_in, typing.get_args(annotation))), None)


def resumable_keys(kind: type[BaseModel]) -> frozenset[str]:
    marked = {name: key.field.json_schema_extra for name, key in keys_of(kind).items()}
    return frozenset(name for name, extra in marked.items() if isinstance(extra, dict) and "resumable" in extra)


def flat(config: BaseModel) -> dict[str, Any]:
    """`{"data.seq_len": 512, …}` in the order of the source."""
    values = config.model_dump()
    return {name: functools.reduce(operator.getitem, name.split("."), values) for name in keys_of(type(config))}


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse of `flat`: `{"data": {"seq_len": 512, …}}`."""
    result: dict[str, Any] = {}
    for dotted, value in values.items():
        put(result, dotted, value, dotted)
    return result


def put(values: dict[str, Any], dotted: str, value: Any, where: str) -> None:
    """Sets a key of nested `values`. Raises `ConfigError` at `where` if a section above it is a value."""
    *sections, key = dotted.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{section} is not a section", where=where, fix="see the keys in `maskwright schema`")
    values[key] = value


def digest(config: BaseModel) -> str:
    """sha256 of every key that decides the numbers; resumable keys do not count."""
    kept = resumable_keys(type(config))
    return storage.sha256_of({key: value for key, value in flat(config).items() if key not in kept})


# ---- messages about mistakes ---------------------------------------------------------------------------------------


class _Mistake(NamedTuple):
    what: str
    fix: str
    where: str = ""
    """The place where it was typed, if not the file."""
    meant: str = ""
    """Key or section that an unknown one most likely means."""
    missing: str = ""
    """Missing key or section. It is not reported if an unknown one means it."""


class Guide(NamedTuple):
    """Explains mistakes in one kind of YAML."""

    section: type[BaseModel]
    whole: str
    """The thing that the YAML describes, as in "the run"."""
    known: str
    """The place where all keys are listed."""
    foreign: Mapping[str, str] = {}
    """Other programs' name of a key -> keys, KEY=VALUE, or a sentence (see `foreign_names.py`)."""
    values: Mapping[str, Mapping[str, str]] = {}
    """For a key, other programs' values in small letters -> ours, or a sentence."""

    def explain(self, error: ValidationError, where: str, overrides: Mapping[str, str] = {}) -> ConfigError:
        """The error for all mistakes, several as a line each below the first. `overrides`: dotted keys that did
        not come from the file, each with its source for errors, such as `--set seed`."""
        errors = sorted(error.errors(), key=lambda detail: detail["type"] == "missing")
        found = dict.fromkeys(mistake for detail in errors for mistake in self._mistakes(detail, overrides))
        meant = {mistake.meant for mistake in found} - {""}
        mistakes = [each for each in found if not {each.missing, each.missing.partition(".")[0]} & meant]
        if len(mistakes) == 1:
            (only,) = mistakes
            return ConfigError(only.what, where=only.where or where, fix=only.fix)
        lines = [str(ConfigError(each.what, where=each.where or None, fix=each.fix)) for each in mistakes]
        what = f"has {len(lines)} mistakes; each line below shows how to fix one"
        return ConfigError(what, where=where, fix=None, lines=lines)

    def _mistakes(self, error: Any, overrides: Mapping[str, str]) -> list[_Mistake]:
        loc, value = error["loc"], error["input"]
        dotted = ".".join(map(str, loc))
        name, where = dotted or self.whole, _blamed(dotted, overrides)
        below = {key: blamed for key, blamed in overrides.items() if dotted and key.startswith(f"{dotted}.")}
        key, needed = self._key_at(loc), self._required(dotted)
        keys = f"give it keys: {', '.join(key.inner.model_fields)}" if key and key.inner else ""
        match _kind_of(error, key, needed):
            case "unknown":
                return [self._unknown(*each) for each in _spread(dotted, value, where, below, self._sections())]
            case "refused":
                refused = error["ctx"]["error"]
                fix = refused.fix if isinstance(refused, Refused) else self.known
                return [_Mistake(f"{name}: {refused}", fix, where or ", ".join(below.values()))]
            case "missing":
                return [self._missing(each, where) for each in needed]
            case "absent section":
                return self._without_keys(loc, overrides)
            case "empty section":
                first = f"give it {', '.join(needed)}" if needed else "remove it"
                return [_Mistake(f"section {name} is empty", f"{first}, or {keys}", where)]
            case "no section":
                return [_Mistake(f"{name} is {value!r:.80}, but it is a section", keys, where)]
            case "wrong value" if key:
                allowed = (isinstance(loc[-1], int) and key.allowed_entry()) or key.allowed()
                ours = self.values.get(dotted, {}).get(str(value).lower(), "")
                fix = f"give {ours or allowed + no_number(value, key.schema)}"
                return [_Mistake(f"{name} is {value!r:.80}", ours if " " in ours else fix, where)]
        return [_Mistake(f"{name}: {error['msg']}, not {value!r:.80}", self.known, where)]

    def _unknown(self, dotted: str, value: Any, is_section: bool, where: str) -> _Mistake:
        what, advice = f"unknown key {dotted}", self.nearest(dotted, is_section) or self.known
        if is_section and " " not in advice:
            return _Mistake(what, f"did you mean {advice}?", where, advice)
        if not (words := keys_in(advice)):
            return _Mistake(what, advice, where)
        text = in_flow(value) if isinstance(value, str | int | float) else ""
        given = self.overrides(advice, text)
        ours = {} if isinstance(given, str) or not text else {key: f": {v}" for key, v in given.items() if v != text}
        names = [word.partition("=")[0] for word in words]
        fix = f"did you mean {' and '.join(name + ours.get(name, '') for name in names)}?"
        return _Mistake(what, f"{fix} {given}" if isinstance(given, str) else fix, where, names[0])

    def overrides(self, advice: str, typed: str) -> dict[str, str] | str:
        """The `--set` of each key that `advice`, an entry of `foreign`, names. `typed`: the value that was typed with
        the other name, or VALUE. A sentence if no run accepts it."""
        words, keys, result = keys_in(advice), keys_of(self.section), {}
        open_ = [word for word in words if "=" not in word]
        parts = [part for part in _SHARED.split(typed) if part] if len(open_) > 1 else [typed] * len(open_)
        if typed and len(parts) != len(open_):
            return f"give {' and '.join(open_)}"
        for name, _, fixed in (word.partition("=") for word in words):
            if fixed or not typed:
                result[name] = fixed or "VALUE"
                continue
            part = parts.pop(0)
            ours = self.values.get(name, {}).get(part.lower(), part)
            if ours != part and " " in ours:
                return ours
            fitting = (text for text in (ours, f"[{', '.join(ours.split())}]") if keys[name].accepts(text))
            if (text := next(fitting, None)) is None:
                return f"{name} takes {keys[name].allowed()}"
            result[name] = text
        return result if words else advice

    def nearest(self, dotted: str, is_section: bool = False) -> str | None:
        """Keys that an unknown one most likely means, KEY=VALUE, or a sentence on how to write it. A longer name in its
        own section comes before names elsewhere. A section is named only for a section."""
        if is_section:
            return next(iter(difflib.get_close_matches(dotted, self._sections(), n=1)), None)
        keys, (section, _, leaf) = keys_of(self.section), dotted.lower().replace("-", "_").rpartition(".")
        said = self.foreign.get(f"{section}.{leaf}".replace(".", "_")) or self.foreign.get(leaf)
        parts = ((key, *key.rpartition(".")) for key in keys)
        inside = [key for key, of, _, name in parts if section and of == section and f"_{leaf}_" in f"_{name}_"]
        if inside and not (said and said.startswith(f"{section}.")):
            return inside[0]
        if said:
            return said
        alike = [key for key in keys if is_misspelt(leaf, key.rpartition(".")[2])]
        return next(iter(difflib.get_close_matches(dotted, alike, n=1, cutoff=0.0)), None)

    def _without_keys(self, loc: tuple[str | int, ...], overrides: Mapping[str, str]) -> list[_Mistake]:
        """Mistakes that the section's own validators report when it is missing and all its keys are optional."""
        dotted, key = ".".join(map(str, loc)), self._key_at(loc)
        assert key and key.inner
        try:
            key.inner.model_validate({})
        except ValidationError as error:
            below = [{**detail, "loc": (*loc, *detail["loc"])} for detail in error.errors()]
            found = [mistake for detail in below for mistake in self._mistakes(detail, overrides)]
            return [mistake._replace(missing=dotted) for mistake in found]
        fix = f"add it, with keys: {', '.join(key.inner.model_fields)}"
        return [_Mistake(f"section {dotted} is missing", fix, missing=dotted)]

    def _missing(self, dotted: str, where: str) -> _Mistake:
        key = self._key_at(dotted.split("."))
        assert key is not None
        meaning = " ".join((key.field.description or "").split()).partition(". ")[0].rstrip(".")
        fix = f"add it, {key.allowed()}" + f": {meaning}" * bool(meaning)
        return _Mistake(f"key {dotted} is missing", fix, where, missing=dotted)

    def _required(self, dotted: str) -> list[str]:
        """The key itself, or the required keys of a section."""
        below = {name: key for name, key in keys_of(self.section).items() if name.startswith(f"{dotted}.")}
        return [name for name, key in below.items() if key.is_needed] if below else [dotted]

    def _sections(self) -> list[str]:
        return [name for name, field in self.section.model_fields.items() if _section_in(field.annotation)]

    def _key_at(self, loc: Sequence[str | int]) -> Key | None:
        """The key at a place; None below a value that is not a section. Numbers are entries of a list."""
        section: type[BaseModel] | None = self.section
        key = None
        for word in loc:
            if isinstance(word, int) or str(word).isdigit():
                continue
            if key and key.holds_many and section and word not in section.model_fields:
                continue  # the name of one of many sections
            key = Key(section, str(word)) if section and word in section.model_fields else None
            section = key.inner if key else None
        return key


_KEYS_IN = re.compile(r"(seed|\w+\.\w+)(=\S+)?( \w+\.\w+(=\S+)?)*")
_SHARED = re.compile(r"[\s,()\[\]_]+|(?<=\d)x(?=\d)")
"""Between the parts of a value that several keys share: 2x512, (0.9, 0.98), roberta_large."""


def keys_in(advice: str) -> list[str]:
    """The keys in an entry of `Guide.foreign`, each with its =VALUE if it has one; empty for a sentence."""
    return advice.split() if _KEYS_IN.fullmatch(advice) else []


LETTERS_A_TYPO = 4
"""A name of eight letters may have two typos. Names related by more than spelling are listed in `foreign_names.py`:
by letters alone, `accelerator` is like task.separator."""


def is_misspelt(word: str, name: str) -> bool:
    """Whether `word` is `name` except for a typo or two: a letter too many or too few, another letter, or two letters
    swapped."""
    most = min(2, len(word) // LETTERS_A_TYPO)
    if abs(len(word) - len(name)) > most:
        return False
    before, row = [0] * (len(name) + 1), list(range(len(name) + 1))
    for i, letter in enumerate(word, 1):
        above, before, row = before, row, [i]
        for j, other in enumerate(name, 1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other)))
            if i > 1 and j > 1 and (letter, word[i - 2]) == (name[j - 2], other):
                row[j] = min(row[j], above[j - 2] + 1)
    return row[-1] <= most


def _kind_of(error: Any, key: Key | None, needed: list[str]) -> str:
    """The error; empty for a place outside all sections."""
    is_missing, refused = error["type"] == "missing", error.get("ctx", {}).get("error")
    if error["type"] == "extra_forbidden":
        return "unknown"
    if isinstance(refused, ValueError):
        return "refused"
    if is_missing and needed:
        return "missing"
    if key is None or key.inner is None:
        return "wrong value" if key else ""
    if error["input"] is not None and not is_missing:
        return "no section"
    return "empty section" if needed or not key.field.is_required() else "absent section"


def _spread(
    dotted: str, values: Any, where: str, below: Mapping[str, str], sections: list[str]
) -> Iterator[tuple[str, Any, bool, str]]:
    """(name, value, whether it is a section's, where it was typed) of an unknown key; for an unknown section unlike any
    of `sections`, each key in it. `below`: keys in it that were typed elsewhere."""
    if below:
        yield from ((key, None, False, blamed) for key, blamed in below.items())
    elif isinstance(values, dict) and values and not difflib.get_close_matches(dotted, sections):
        for name, value in values.items():
            yield from _spread(f"{dotted}.{name}", value, where, {}, [])
    else:
        is_section = bool(difflib.get_close_matches(dotted, sections)) and isinstance(values, dict | types.NoneType)
        yield dotted, values, is_section, where
