"""Names and links of the fake cloud's resources, and the filters of its lists."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from google_cloud.judge import Refused

if TYPE_CHECKING:
    from google_cloud.fake import Cloud

SEVERITIES = ["DEFAULT", "DEBUG", "INFO", "NOTICE", "WARNING", "ERROR", "CRITICAL", "ALERT", "EMERGENCY"]
COMPARISON = re.compile(r'\(?\s*([\w.-]+(?:\."[^"]+")?)\s*(!=|>=|<=|=|:|>|<|\beq\b|\bne\b)\s*("[^"]*"|[^\s)]+)\s*\)?')


def relative(link: str, place: str = "projects/lab-proj") -> str:
    """From a link in any of the spellings that Compute takes, "projects/…". `place`: of who names it."""
    link = link.partition("?")[0]  # a template's may have "?uniqueId=…"
    if "projects/" in link:
        return link[link.index("projects/") :]
    return f"{place.split('/zones/')[0].split('/global')[0].split('/regions/')[0]}/{link}"


def link(cloud: Cloud, name: str) -> str:
    return f"{cloud.url}/compute/v1/{name}"


def last(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1]


def matcher(text: str) -> Any:
    """Of a list's `filter`: comparisons joined by AND or spaces. OR is not known here."""
    wanted = COMPARISON.findall(text)
    if COMPARISON.sub("", text).replace("AND", "").strip():
        raise Refused(f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.")
    return lambda body: all(_holds(body, *one) for one in wanted)


def _holds(body: Any, field: str, sign: str, value: str) -> bool:
    for part in re.findall(r'"[^"]+"|[^.]+', field):
        body = body.get(part.strip('"')) if isinstance(body, dict) else None
    value = value.strip('"')
    found = str(body).lower() if isinstance(body, bool) else str(body)
    if sign in ("=", "!="):
        return (found == value) == (sign == "=")
    if sign in ("eq", "ne"):
        return (re.fullmatch(value, found) is not None) == (sign == "eq")
    if sign == ":":
        return body is not None and (value == "*" or value in found)
    if body is None and field != "severity":
        return False
    one, other = found, value
    if field == "severity":
        one, other = (f"{SEVERITIES.index(x)}" for x in (found if body else "DEFAULT", value))
    return {">": one > other, "<": one < other, ">=": one >= other, "<=": one <= other}[sign]
