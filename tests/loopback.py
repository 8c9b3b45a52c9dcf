"""Servers on loopback that stand in for services."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Handler(BaseHTTPRequestHandler):
    """Answers in JSON, and writes no log."""

    def log_message(self, *_: object) -> None:
        pass

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, code: int, value: object = None, headers: dict[str, str] | None = None) -> None:
        """`value`: bytes as they are, else for JSON."""
        content = value if isinstance(value, bytes) else json.dumps(value or {}).encode()
        self.send_response(code)
        for key, text in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(key, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Its address. `context`: for TLS."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
