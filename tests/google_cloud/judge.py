"""Google's discovery documents as a judge of requests and responses: `Api`, one document.

The documents are those that google-api-python-client ships (JSON files; the client library itself is not imported).
They say which methods there are, where their parameters go, and what a body may hold. What they leave open, such as
which fields must be there or exclude one another, is written by hand in the fakes of the services.
"""

import json
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import pytest

STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
}
REASONS = {  # of the errors of compute and storage, whose services are older than google.rpc.Status
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "alreadyExists",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
}
OUTPUT_ONLY = re.compile(r"\s*\[?output[ -]only", re.IGNORECASE)
FRAME = {"alt", "$alt", "prettyPrint", "$prettyPrint", "$unique", "userProject", "upload_id", "uploadType", "name_"}
FRAME |= {"returnPartialSuccess"}
"""Query parameters of every call, in spellings that not every document lists; the last is Compute's for lists, which
gcloud sends and this revision of the document leaves out."""


class Refused(Exception):
    """Answered with an error, in Google's shape."""

    def __init__(
        self, message: str, code: int = 400, status: str = "", reason: str = "", details: list[Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.status = code, status or STATUS.get(code, "UNKNOWN")
        self.reason = reason or REASONS.get(code, "backendError")
        self.details = details or []

    def body(self) -> dict[str, Any]:
        errors = [{"message": str(self), "domain": "global", "reason": self.reason}]
        error = {"code": self.code, "message": str(self), "status": self.status, "errors": errors}
        return {"error": error | ({"details": self.details} if self.details else {})}


class Api:
    def __init__(self, document: dict[str, Any]) -> None:
        self.name, self.version = str(document["name"]), str(document["version"])
        self.schemas, self.common = document["schemas"], document.get("parameters", {})
        self.prefix = str(document["servicePath"])
        self.methods: dict[str, list[tuple[re.Pattern[str], dict[str, Any], bool]]] = {}
        self._collect(document)

    def _collect(self, node: dict[str, Any]) -> None:
        for method in node.get("methods", {}).values():
            ways = [(self.prefix + method.get("flatPath", method["path"]), False)]
            for upload in method.get("mediaUpload", {}).get("protocols", {}).values():
                ways.append((upload["path"].lstrip("/"), True))
            if "{+" in method["path"]:  # Cloud Build's operations have more parts than flatPath says
                ways.append((self.prefix + method["path"], False))
            for template, media in dict.fromkeys(ways):
                self.methods.setdefault(method["httpMethod"], []).append((_pattern(template), method, media))
        for resource in node.get("resources", {}).values():
            self._collect(resource)

    def match(self, verb: str, path: str) -> tuple[dict[str, Any], dict[str, str], bool]:
        """(method, path parameters, whether it is an upload) of the most specific method. Refuses what none takes."""
        hits = []
        for pattern, method, media in self.methods.get(verb, []):
            found = pattern.fullmatch(path)
            if found and all(_fits(method, name, value) for name, value in found.groupdict().items()):
                names = found.groupdict()
                hits.append((sum(map(len, names.values())), method, names, media))
        if not hits:
            raise Refused(
                f"The requested URL {path} was not found: {self.name} {self.version} has no {verb} there", 404
            )
        _, method, names, media = min(hits, key=lambda hit: hit[0])
        return method, names, media

    def check_request(
        self, method: dict[str, Any], path: dict[str, str], query: dict[str, list[str]], body: Any
    ) -> None:
        parameters = method.get("parameters", {})
        for name, values in query.items():
            spec = parameters.get(name) or self.common.get(name)
            if spec is None:
                if name in FRAME or name.split(".")[0] in parameters:
                    continue
                raise Refused(
                    f'Invalid JSON payload received. Unknown name "{name}": Cannot bind query parameter. '
                    f"Field '{name}' could not be found in request message."
                )
            for value in values:
                if "enum" in spec and name != "alt" and value not in spec["enum"]:
                    raise Refused(f"Invalid value at '{name}', \"{value}\"")
                if spec.get("type") == "boolean" and value.lower() not in ("true", "false"):
                    raise Refused(f"Invalid value at '{name}' (TYPE_BOOL), \"{value}\"")
        for name, spec in parameters.items():
            if spec.get("required") and spec["location"] == "query" and name not in query:
                raise Refused(f"Required parameter: {name}")
            if "pattern" in spec and name in path and not re.fullmatch(spec["pattern"], path[name]):
                raise Refused(
                    f"Invalid value '{path[name]}'. Values must match the following regular expression: "
                    + spec["pattern"]
                )
        if "request" in method:
            self._check(method["request"], body if body is not None else {}, "", response=False)
        elif body:
            raise Refused(f"Invalid JSON payload received: {method['id']} takes no body")

    def check_response(self, method: dict[str, Any], body: Any) -> None:
        """The fake's own answer; what fails here is a fault of the fake."""
        if "response" in method:
            try:
                self._check(method["response"], body, "", response=True)
            except Refused as error:
                raise AssertionError(f"the answer to {method['id']} is none of Google's: {error}") from None

    def check_schema(self, schema: str, value: Any) -> None:
        self._check({"$ref": schema}, value, "", response=True)

    def read_only(self, method: dict[str, Any]) -> set[str]:
        """Fields of the body that Google sets itself, whatever is sent."""
        properties = self.schemas[method["request"]["$ref"]].get("properties", {})
        return {
            name
            for name, spec in properties.items()
            if spec.get("readOnly") or OUTPUT_ONLY.match(spec.get("description", ""))
        }

    def list_key(self, method: dict[str, Any]) -> str:
        """Of the response of a `list`: the field that holds the items."""
        properties = self.schemas[method["response"]["$ref"]]["properties"]
        lists = [name for name, spec in properties.items() if spec.get("type") == "array" and "$ref" in spec["items"]]
        return "items" if "items" in lists else lists[0]

    def _check(self, schema: dict[str, Any], value: Any, where: str, *, response: bool) -> None:
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"]]
        kind, form = schema.get("type"), schema.get("format", "")
        said = json.dumps(value)[:80]
        if kind in (None, "any") or (value is None and response):
            return
        if kind == "object":
            self._check_object(schema, value, where, response)
        elif kind == "array":
            if not isinstance(value, list):
                raise Refused(f"Invalid value at '{where}' (list), {said}")
            for index, one in enumerate(value):
                self._check(schema["items"], one, f"{where}[{index}]", response=response)
        elif kind == "string":
            _check_string(schema, value, where, response)
        elif kind == "boolean" and not isinstance(value, bool):
            raise Refused(f"Invalid value at '{where}' (TYPE_BOOL), {said}")
        elif kind == "integer" and (isinstance(value, bool) or not re.fullmatch(r"-?\d+", str(value))):
            raise Refused(f"Invalid value at '{where}' (TYPE_{form.upper() or 'INT32'}), {said}")
        elif kind == "number" and (isinstance(value, bool) or not isinstance(value, int | float | str)):
            raise Refused(f"Invalid value at '{where}' (TYPE_{form.upper() or 'DOUBLE'}), {said}")

    def _check_object(self, schema: dict[str, Any], value: Any, where: str, response: bool) -> None:
        if not isinstance(value, dict):
            raise Refused(f"Invalid value at '{where}' ({schema.get('id', 'object')}), {json.dumps(value)[:80]}")
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, one in value.items():
            inner = properties.get(name, others)
            if inner is None:
                raise Refused(
                    f"Invalid JSON payload received. Unknown name \"{name}\" at '{where}': Cannot find field."
                )
            self._check(inner, one, f"{where}.{name}" if where else name, response=response)


@dataclass
class Request:
    """A call that the documents allow. `name` is the path without version: "projects/p/zones/z/disks/d"."""

    api: Api
    method: dict[str, Any]
    name: str
    path: dict[str, str]
    query: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    base: str = ""

    @property
    def id(self) -> str:
        return str(self.method["id"])

    @property
    def verb(self) -> str:
        return self.id.rsplit(".", 1)[1]

    @property
    def key(self) -> str:
        """Of the resource in the fake's world."""
        return f"{self.api.name}/{self.name}"


@cache
def api(name: str, version: str) -> Api | None:
    """None when there is no such document. Compute's takes 40 ms to read, so each is read once, when it is needed."""
    try:
        folder = files("googleapiclient") / "discovery_cache" / "documents"
    except ModuleNotFoundError:
        pytest.skip("needs google-api-python-client (Google's discovery documents)")
    file = folder / f"{name}.{version}.json"
    return Api(json.loads(file.read_text())) if file.is_file() else None


def _check_string(schema: dict[str, Any], value: Any, where: str, response: bool) -> None:
    form, said = schema.get("format", ""), json.dumps(value)[:80]
    if form in ("int64", "uint64"):
        if isinstance(value, bool) or not re.fullmatch(r"-?\d+", str(value)):
            raise Refused(f"Invalid value at '{where}' (TYPE_INT64), {said}")
        return
    if not isinstance(value, str):
        raise Refused(f"Invalid value at '{where}' (TYPE_STRING), {said}")
    if "enum" in schema and value not in schema["enum"]:
        raise Refused(f"Invalid value at '{where}' ({schema.get('id', 'enum')}), {said}")
    if "pattern" in schema and not response and not re.fullmatch(schema["pattern"], value):
        raise Refused(
            f"Invalid value for field '{where}': '{value}'. Must be a match of regex '{schema['pattern']}'", 400
        )
    if form == "google-duration" and not re.fullmatch(r"-?\d+(\.\d{1,9})?s", value):
        raise Refused(f"Invalid value at '{where}' (type.googleapis.com/google.protobuf.Duration), {said}")
    if form == "google-datetime" and not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", value):
        raise Refused(f"Invalid value at '{where}' (type.googleapis.com/google.protobuf.Timestamp), {said}")


def _fits(method: dict[str, Any], name: str, value: str) -> bool:
    """The template's {+name} takes anything; the parameter's pattern says how it looks."""
    spec = method.get("parameters", {}).get(name, {})
    return "/" not in value or bool(re.fullmatch(spec.get("pattern", ".*"), value))


def _pattern(template: str) -> re.Pattern[str]:
    """Of a path as it comes, with what its parameters hold still quoted. Only storage's objects have a slash in theirs,
    as %2F; a colon ends a name before a verb (`:cancel`) where the template has one."""
    colon = bool(re.search(r":\w+$", template))
    parts = []
    for literal, any_depth, name in re.findall(r"([^{]*)(?:\{(\+?)(\w+)\})?", template):
        parts.append(re.escape(literal))
        if name:
            parts.append(f"(?P<{name}>[^{'' if any_depth else '/'}{':' if colon else ' '}]+)")
    return re.compile("/" + "".join(parts))
