"""Checks of the network: the settings that the environment names and, on request, servers."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from maskwright.doctor.finding import DoctorFinding, first_of

PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
REACH_SECONDS = 3.0


def network(*, reach: bool) -> Iterator[DoctorFinding]:
    """Findings about the network. `reach`: also connect to the servers that commands need; else nothing is sent."""
    names = {name: os.environ.get(name) or os.environ.get(name.lower()) for name in PROXIES}
    proxies = {name: value for name, value in names.items() if value}
    bundles = {name: os.environ[name] for name in BUNDLES if os.environ.get(name)}
    detail = "; ".join(f"{name} {value}" for name, value in proxies.items()) or "no proxy is set"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        detail += "; HF_HUB_OFFLINE keeps the Hub away"
    values: dict[str, Any] = {"proxies": sorted(proxies), "certificates": sorted(bundles)}
    absent = [f"; {name}={path} is not there" for name, path in bundles.items() if not os.path.exists(path)]
    fix = "name a file that is there, or unset it: every request with TLS fails"
    yield first_of("network", "settings", detail, values, [(True, "fail", more, fix) for more in absent])
    if not reach:
        unasked = "nothing was asked; --network tries the Hub and Google's storage"
        yield DoctorFinding("network", "servers", "ok", unasked)
        return
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(_reach, *zip(*_servers(), strict=True))


def _servers() -> list[tuple[str, str, str]]:
    """(name, address, what needs it) of each server."""
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    google = "https://storage.googleapis.com"
    return [("the Hub", hub, "hf:// models"), ("Google", google, "gs:// addresses and `env`")]


def _reach(name: str, address: str, wanted_by: str) -> DoctorFinding:
    """Checks that a server answers. A refusal counts too: it comes from the server, or from a proxy."""
    try:
        request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "maskwright-doctor"})
        # `urlopen` keeps the proxies that were set when it was first called.
        with urllib.request.build_opener().open(request, timeout=REACH_SECONDS) as answer:
            code = answer.status
    except urllib.error.HTTPError as error:
        code = error.code
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        fix = f"only {wanted_by} need it; behind a proxy, set HTTPS_PROXY"
        return DoctorFinding("network", name, "warn", f"{address} does not answer: {why}", fix, {"reached": False})
    if code == 407:
        detail, fix = f"the proxy refuses {address} (407)", "give HTTPS_PROXY a name and a password"
        return DoctorFinding("network", name, "warn", detail, fix, {"reached": False})
    return DoctorFinding("network", name, "ok", f"{address} answers ({code})", None, {"reached": True})
