"""Access to the page's server: for a browser with its address, and with the token for all but the page's own files."""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import platform
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from maskwright.core.errors import InputError

TOKEN_VARIABLE = "MASKWRIGHT_WATCH_TOKEN"
SHORTEST_TOKEN = 16
LOOPBACK = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Plotly sets inline styles. Its WebGL curves would need `unsafe-eval` too, so the page has none."""

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


def given_token() -> str | None:
    """The token of the environment, or None. Raises `InputError` for a token that can be guessed."""
    token = os.environ.get(TOKEN_VARIABLE)
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        fix = f"give at least {SHORTEST_TOKEN} letters and digits, or leave it out for a random one"
        raise InputError("is too short, or is not ASCII", where=TOKEN_VARIABLE, fix=fix)
    return token


def new_token() -> str:
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Guard:
    """Guards an ASGI application. `host`: the address that the server is bound to."""

    app: App
    token: str
    host: str

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(key.lower().encode(), value.encode()) for key, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        refused = self._refuses(scope["method"], scope["path"], headers)
        if refused is None:
            return await self.app(scope, receive, with_headers)
        code, error = refused
        content = json.dumps({"error": error}).encode()
        sent = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await with_headers({"type": "http.response.start", "status": code, "headers": sent})
        await with_headers({"type": "http.response.body", "body": content})

    def _refuses(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, Any]] | None:
        """(HTTP status, error) of a refused request; None for an accepted one."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            # DNS rebinding: another site's page points its name to this machine, and the browser then sends that name.
            fix = "open the address that `maskwright watch --web` printed"
            return 403, {"what": "is not an address of this server", "where": host[:200], "fix": fix}
        changes = method not in ("GET", "HEAD")
        origin = headers.get("origin")
        if changes and origin is not None and urlsplit(origin).netloc != host:
            return 403, {"what": "came from another page", "where": origin[:200], "fix": "use the buttons of this page"}
        if path.startswith("/api/") and not self._has_token(headers):  # on loopback too, for other users
            fix = "open the address with #token= that `maskwright watch --web` printed"
            return 401, {"what": "the token is missing or wrong", "where": path[:200], "fix": fix}
        return None

    def _has_token(self, headers: dict[str, str]) -> bool:
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self.token.encode())

    def _is_ours(self, host: str) -> bool:
        """Whether `host` names this server. A tunnel may change the port. A numeric address cannot be rebound."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in (*LOOPBACK, self.host.lower()):
            return True
        if is_loopback(self.host):
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name == platform.node().lower()
        return True
