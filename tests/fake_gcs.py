"""A Google Cloud Storage of its own on loopback, as far as gcsfs uses it: objects with generations and crc32c, the
precondition on creating, uploads in one piece and in chunks, and failures on demand."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c
from loopback import Handler, serving


class FakeGcs:
    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.failures: list[int] = []
        """Status codes that the next requests are answered with."""
        self.requests: list[str] = []
        self.spoil = False
        """Uploads lose their last byte on the way."""
        self.lose_answers = False
        """What creates an object is done, and then answered with 503."""
        self.creating = threading.Lock()
        self.url = ""

    def describe(self, name: str) -> dict[str, Any]:
        content = self.objects[name]
        checksum = google_crc32c.Checksum(content)
        return {
            "kind": "storage#object",
            "bucket": "bucket",
            "name": name,
            "size": str(len(content)),
            "generation": "1",
            "crc32c": base64.b64encode(checksum.digest()).decode(),
            "timeCreated": "2026-01-01T00:00:00Z",
            "updated": "2026-01-01T00:00:00Z",
        }

    def store(self, name: str, content: bytes) -> None:
        self.objects[name] = content[:-1] if self.spoil else content


@contextmanager
def fake_gcs() -> Iterator[FakeGcs]:
    store = FakeGcs()
    with serving(type("OfStore", (_Handler,), {"gcs": store})) as store.url:
        yield store


class _Handler(Handler):
    gcs: FakeGcs
    protocol_version = "HTTP/1.1"

    def _begin(self) -> tuple[str, dict[str, str], bytes] | None:
        """Path, query and body; None when the request was answered with a failure."""
        body = self.body()
        parts = urlsplit(self.path)
        self.gcs.requests.append(f"{self.command} {parts.path}?{parts.query}")
        if self.gcs.failures:
            self.reply(self.gcs.failures.pop(0), {"error": {"message": "as was asked for"}})
            return None
        return parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()}, body

    def _object(self, path: str) -> str:
        return unquote(path.partition("/o/")[2])

    def do_GET(self) -> None:
        if not (begun := self._begin()):
            return
        path, query, _ = begun
        if "/b/bucket" not in path:
            self.reply(404, {"error": {"message": "The specified bucket does not exist."}})
        elif path.endswith("/o"):
            prefix = query.get("prefix", "")
            found = sorted(name for name in self.gcs.objects if name.startswith(prefix))
            cut = query.get("delimiter")
            folders = {prefix + name[len(prefix) :].split("/")[0] + "/" for name in found if "/" in name[len(prefix) :]}
            items = [name for name in found if not (cut and "/" in name[len(prefix) :])]
            self.reply(
                200, {"items": [self.gcs.describe(n) for n in items], "prefixes": sorted(folders) if cut else []}
            )
        elif path.endswith("/b/bucket"):
            self.reply(200, {"name": "bucket", "kind": "storage#bucket"})
        elif (name := self._object(path)) not in self.gcs.objects:
            self.reply(404, {"error": {"message": "Not Found"}})
        elif query.get("alt") == "media":
            self.reply(200, self.gcs.objects[name])
        else:
            self.reply(200, self.gcs.describe(name))

    def do_POST(self) -> None:
        if not (begun := self._begin()):
            return
        path, query, body = begun
        if path.startswith("/batch/"):
            self._batch(body)
        elif path.startswith("/chunks/"):
            self._chunk(path, body)
        elif query.get("uploadType") == "resumable":
            self.reply(200, {}, {"Location": f"{self.gcs.url}/chunks/o/{query['name']}?upload_id=1"})
        else:
            metadata, content = self._parts(body)
            self._create(json.loads(metadata)["name"], content, query)

    def _create(self, name: str, content: bytes, query: dict[str, str]) -> None:
        with self.gcs.creating:
            if query.get("ifGenerationMatch") == "0" and name in self.gcs.objects:
                self.reply(412, {"error": {"message": "conditionNotMet"}})
                return
            self.gcs.store(name, content)
        if self.gcs.lose_answers:
            self.gcs.lose_answers = False
            self.reply(503, {})
        else:
            self.reply(200, self.gcs.describe(name))

    def _parts(self, body: bytes) -> tuple[bytes, bytes]:
        _, first, second = body.split(b"--==0==", 2)
        content = second.partition(b"\n\n")[2]
        return first.partition(b"\n\n")[2], content.removesuffix(b"\n--==0==--")

    def _chunk(self, path: str, body: bytes) -> None:
        first, last, total = map(int, re.findall(r"\d+", self.headers["Content-Range"]))
        name = self._object(path)
        self.gcs.objects[name] = (self.gcs.objects.get(name, b"") if first else b"") + body
        if last + 1 < total:
            self.reply(308, {}, {"Range": f"bytes=0-{last}"})
        else:
            self.gcs.store(name, self.gcs.objects[name])
            self.reply(200, self.gcs.describe(name))

    def do_DELETE(self) -> None:
        if begun := self._begin():
            found = self.gcs.objects.pop(self._object(begun[0]), None)
            self.reply(204 if found is not None else 404, b"")

    def _batch(self, body: bytes) -> None:
        names = [unquote(name) for name in re.findall(r"DELETE /storage/v1/b/bucket/o/(\S+)", body.decode())]
        for name in names:
            self.gcs.objects.pop(name, None)
        answers = "".join(
            f"--==1==\r\nContent-Type: application/http\r\nContent-ID: <response-{n}>\r\n\r\n"
            "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n\r\n"
            for n, _ in enumerate(names)
        )
        self.reply(200, (answers + "--==1==--").encode(), {"Content-Type": "multipart/mixed; boundary===1=="})
