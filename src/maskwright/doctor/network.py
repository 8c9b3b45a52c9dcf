"""Checks of the proxies and certificates that the environment names. Nothing is sent."""

from __future__ import annotations

import os
from typing import Any

from maskwright.doctor.finding import DoctorFinding, first_of

PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def network() -> DoctorFinding:
    names = {name: os.environ.get(name) or os.environ.get(name.lower()) for name in PROXIES}
    proxies = {name: value for name, value in names.items() if value}
    bundles = {name: os.environ[name] for name in BUNDLES if os.environ.get(name)}
    detail = "; ".join(f"{name} {value}" for name, value in proxies.items()) or "no proxy is set"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        detail += "; HF_HUB_OFFLINE keeps the Hub away"
    values: dict[str, Any] = {"proxies": sorted(proxies), "certificates": sorted(bundles)}
    absent = [f"; {name}={path} does not exist" for name, path in bundles.items() if not os.path.exists(path)]
    fix = "name an existing file, or unset it, since every TLS request fails"
    return first_of("network", "settings", detail, values, [(True, "fail", more, fix) for more in absent])
