"""What leaves the process for people and files to keep carries no secret: `redact` takes them out of text.

Secrets are passwords in a URL, its secret-looking query values, authorization headers, and the values of environment
variables whose names say that they hold one. What a program reads back (paths, configuration values) is never changed.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
SHORTEST_SECRET = 8
SECRET_VARIABLE = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?(_|$)", re.IGNORECASE)
USER = re.compile(r"([a-z][a-z0-9+.-]{0,30}://)([^\s/?#'\"]*)@", re.IGNORECASE)
SIGNS = "token|secret|passw|pwd|key|sig|credential|auth|sas"
IN_QUERY, IN_QUOTES = (rf"[^{ends}\s'\"]{{0,60}}(?:{SIGNS})[^{ends}\s'\"]{{0,60}}" for ends in ("=&?#", "=&"))
"""Names that say so. A name in a query ends at the sign of the next one, so that no part of a text is read for two."""
QUERY = re.compile(rf"([?&#]{IN_QUERY}=)[^&\s'\"<>]*[^&\s'\"<>.,:;)]", re.IGNORECASE)
QUOTED = re.compile(rf"(['\"]{IN_QUOTES}['\"]\s*[:=]\s*['\"])[^'\"]{{8,}}", re.IGNORECASE)
HEADER = re.compile(r"(authorization['\"]?\s*[:=]\s*['\"]?(?:\w+\s+)?|\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)


def redact(text: str) -> str:
    """`text` with each secret as `***`."""
    for value in _values():
        text = text.replace(value, HIDDEN)
    text = USER.sub(_user, text) if "://" in text else text
    for pattern in (QUERY, QUOTED, HEADER):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def redact_all(value: Any) -> Any:
    """The same for each text in a record of dicts and lists. Text by text, so that a key such as `mask_token` hides
    nothing behind it."""
    if isinstance(value, dict):
        return {key: redact_all(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [redact_all(inner) for inner in value]
    return redact(value) if isinstance(value, str) else value


def _user(match: re.Match[str]) -> str:
    """`https://token@host` may be all secret; `abfs://container@account` and `ssh://me@host` are names."""
    scheme, user = match.groups()
    name, colon, _ = user.partition(":")
    if scheme.lower() in ("http://", "https://"):
        return f"{scheme}{HIDDEN}@"
    return f"{scheme}{name}:{HIDDEN}@" if colon else match.group()


def _values() -> list[str]:
    """Long ones first. A variable that holds a path (GOOGLE_APPLICATION_CREDENTIALS) names a secret, but is none."""
    found = {
        value
        for name, value in os.environ.items()
        if len(value) >= SHORTEST_SECRET and SECRET_VARIABLE.search(name) and not os.path.exists(value)
    }
    return sorted(found | {quote(value, safe="") for value in found}, key=len, reverse=True)
