"""What the stand-in provider has made: in the fake cloud (STANDIN_CLOUD), or in a file (STANDIN_WORLD).

The file holds {"resources": {"TYPE|ID": state}, "faults": [{"method": regular expression, "code": 403, "message": "…",
"reason": "…", "times": 1}]}; a method is `terraform.TYPE.create`, `.update` or `.delete`. STANDIN_JOURNAL gets a JSON
line for each change that was done or refused: {"op", "type", "id", "state"} or {"op", "type", "id", "error"}.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

State = dict[str, Any]


class Refused(Exception):
    """In the words of Google's client: `googleapi: Error 403: what, reason`."""

    def __init__(self, code: int, what: str, reason: str = "") -> None:
        super().__init__(f"googleapi: Error {code}: {what}" + (f", {reason}" if reason else ""))


class FileWorld:
    def __init__(self, path: str) -> None:
        self._path = path

    @contextmanager
    def _open(self) -> Iterator[dict[str, Any]]:
        """Everything, alone; what is changed in it is kept."""
        with open(self._path + ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            whole: dict[str, Any] = {"resources": {}, "faults": []}
            if os.path.exists(self._path):
                with open(self._path, encoding="utf-8") as file:
                    whole |= json.load(file)
            yield whole
            with open(self._path, "w", encoding="utf-8") as file:
                json.dump(whole, file, indent=1, sort_keys=True)

    def get(self, kind: str, name: str) -> State | None:
        with self._open() as whole:
            found: State | None = whole["resources"].get(f"{kind}|{name}")
            return found

    def change(self, op: str, kind: str, name: str, state: State | None) -> State | None:
        """The state as it then is."""
        with self._open() as whole:
            for fault in whole["faults"]:
                if fault.get("times", 1) > 0 and re.fullmatch(fault["method"], f"terraform.{kind}.{op}"):
                    fault["times"] = fault.get("times", 1) - 1
                    break
            else:
                fault = None
            there = f"{kind}|{name}" in whole["resources"]
            if not fault and op == "create" and there:
                fault = {"code": 409, "message": f"The resource '{name}' already exists", "reason": "alreadyExists"}
            if not fault and op == "delete":
                whole["resources"].pop(f"{kind}|{name}", None)
            elif not fault:
                whole["resources"][f"{kind}|{name}"] = state
        if fault:
            raise Refused(fault["code"], fault["message"], fault.get("reason", ""))
        return state


class CloudWorld:
    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/__terraform"
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def _ask(self, query: str, body: dict[str, Any] | None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._url + query, data, {"Content-Type": "application/json"})
        try:
            with self._open(request, timeout=30) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as refused:
            text = refused.read().decode("utf-8", "replace")
            try:
                told = json.loads(text)["error"]
            except (ValueError, KeyError, TypeError):
                told = {"message": text}
            reasons = [one.get("reason", "") for one in told.get("errors", [])]
            raise Refused(refused.code, told.get("message", ""), *reasons[:1]) from None

    def get(self, kind: str, name: str) -> State | None:
        try:
            found = self._ask("?" + urllib.parse.urlencode({"type": kind, "id": name}), None)
        except Refused as refused:
            if "Error 404" in str(refused):
                return None
            raise
        return found.get("state", found) if found else None

    def change(self, op: str, kind: str, name: str, state: State | None) -> State | None:
        answer = self._ask("", {"op": op, "type": kind, "id": name, "state": state}) or {}
        return told(state, answer.get("state")) if state else None


def told(state: State, more: State | None) -> State:
    """`state` with what the cloud knows better: addresses, links. Of a block it may tell a part only."""
    whole = dict(state)
    for name, value in (more or {}).items():
        old = whole.get(name)
        blocks = [isinstance(x, list) and x and all(isinstance(one, dict) for one in x) for x in (old, value)]
        if name not in state:
            continue
        if all(blocks) and len(old or []) == len(value):
            whole[name] = [told(one, other) for one, other in zip(old or [], value, strict=True)]
        else:
            whole[name] = value
    return whole


def world() -> FileWorld | CloudWorld:
    if cloud := os.environ.get("STANDIN_CLOUD"):
        return CloudWorld(cloud)
    return FileWorld(os.environ["STANDIN_WORLD"])


def journal(op: str, kind: str, name: str, **more: Any) -> None:
    if path := os.environ.get("STANDIN_JOURNAL"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"op": op, "type": kind, "id": name, **more}) + "\n")
