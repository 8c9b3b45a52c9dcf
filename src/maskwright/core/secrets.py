"""Keeps secrets out of everything that the process shows or records: `redact` removes them from text.

Secrets are passwords in a URL, its secret-looking query values, authorization headers, the tokens of well-known
services, and the values of environment variables with names of secrets. Values that a program reads back (paths,
configuration values) never change.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import quote

HIDDEN = "***"
SHORTEST_SECRET = 8
SECRET_VARIABLE = re.compile(
    r"((^|_|API|ACCESS|PRIVATE|ACCOUNT)KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL)S?(_|$)", re.IGNORECASE
)
"""KEY ends other words too, such as MONKEY."""
USER = re.compile(r"([a-z][a-z0-9+.-]{0,30}://)([^\s/?#'\"]*)@", re.IGNORECASE)
SIGNS = (
    "(?<!(?:bos|eos|pad|unk|sep|cls)_)(?<!mask_)token(?!i[sz])|secret|passw|pwd|key(?!word|board)"
    "|(?<!de)sig(?!nal)|credential|auth(?!or(?!i[sz]))|sas"
)
"""Parts of names of secrets, but for a model's special tokens, `tokenizer_class`, `keyword`, `signal`, `author`."""
IN_QUERY, IN_QUOTES = (rf"[^{ends}\s'\"]{{0,60}}(?:{SIGNS})[^{ends}\s'\"]{{0,60}}" for ends in ("=&?#", "=&"))
"""Names of secrets. A name in a query ends where the next one begins, so that no part of a text is matched twice."""
QUERY = re.compile(rf"([?&#]{IN_QUERY}=)[^&\s'\"<>]*[^&\s'\"<>.,:;)]", re.IGNORECASE)
QUOTED = re.compile(rf"(['\"]{IN_QUOTES}['\"]\s*[:=]\s*['\"])[^'\"]{{8,}}", re.IGNORECASE)
TOKEN = re.compile(r"\b((?:hf_|gh[opsu]_)(?=[A-Za-z0-9]{30})|github_pat_|glpat-|wandb_v\d_)[\w-]{20,}")
"""Tokens of the Hugging Face Hub, GitHub, GitLab and W&B."""
HEADER = re.compile(r"(authorization['\"]?\s*[:=]\s*['\"]?(?:\w+\s+)?|\bbearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)


def redact(text: str) -> str:
    """`text` with `***` for each secret."""
    for value in _values():
        text = text.replace(value, HIDDEN)
    text = USER.sub(_user, text) if "://" in text else text
    for pattern in (QUERY, QUOTED, HEADER, TOKEN):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def redact_all(value: Any) -> Any:
    """A record of dicts and lists with each text redacted by itself, so that a key such as `mask_token` does not hide
    its value."""
    if isinstance(value, dict):
        return {key: redact_all(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [redact_all(inner) for inner in value]
    return redact(value) if isinstance(value, str) else value


def _user(match: re.Match[str]) -> str:
    """Redacts a URL's user: `https://token@host` may be secret; `abfs://container@account` is not."""
    scheme, user = match.groups()
    name, colon, _ = user.partition(":")
    if scheme.lower() in ("http://", "https://"):
        return f"{scheme}{HIDDEN}@"
    return f"{scheme}{name}:{HIDDEN}@" if colon else match.group()


_seen: tuple[Any, list[str]] = (None, [])
"""The environment when it was last searched, and what was found."""


def _values() -> list[str]:
    """Values to remove, long ones first. A path in a variable (GOOGLE_APPLICATION_CREDENTIALS) is not a secret itself.
    Searched again only when the environment has changed, since a log has a million lines."""
    global _seen
    variables = getattr(os.environ, "_data", os.environ)  # undecoded bytes take a fortieth of the time
    if _seen[0] != variables:
        secrets = {
            value
            for name, value in os.environ.items()
            if len(value) >= SHORTEST_SECRET and SECRET_VARIABLE.search(name) and not os.path.exists(value)
        }
        quoted = {quote(value, safe="") for value in secrets}
        _seen = dict(variables), sorted(secrets | quoted, key=len, reverse=True)
    return _seen[1]
