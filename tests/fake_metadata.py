"""The metadata server of a Google host, on loopback: attributes, name, address, and tokens of a service account."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from fake_tpu import serving

TOKEN = "fake-token-0123456789"
"""The one that the fake cloud takes."""
PREFIX = "/computeMetadata/v1/instance/"


class FakeMetadata:
    def __init__(self, name: str, attributes: Mapping[str, str]) -> None:
        self.host = ""
        self.asked: list[str] = []
        self.failures: list[int] = []
        """Status codes that the next requests are answered with."""
        self.values: dict[str, str] = {
            "name": name,
            "zone": "projects/1/zones/us-east5-b",
            "network-interfaces/0/ip": "127.0.0.1",
            "service-accounts/default/token": json.dumps({"access_token": TOKEN, "expires_in": 3599}),
        }
        self.attributes = dict(attributes)

    def find(self, path: str) -> str | None:
        if path.startswith("attributes/"):
            return self.attributes.get(path.removeprefix("attributes/"))
        return self.values.get(path)


@contextmanager
def fake_metadata(name: str, attributes: Mapping[str, str]) -> Iterator[FakeMetadata]:
    """`host` is what GCE_METADATA_HOST says. As Google's: 403 without the header, 404 for what there is not."""
    fake = FakeMetadata(name, attributes)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0].removeprefix(PREFIX)
            fake.asked.append(path)
            value = fake.find(path)
            code = 403 if self.headers.get("Metadata-Flavor") != "Google" else 404 if value is None else 200
            code = fake.failures.pop(0) if fake.failures else code
            body = (value or "").encode() if code == 200 else b"<html>no</html>"
            self.send_response(code)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler) as url:
        fake.host = url.removeprefix("http://")
        yield fake
