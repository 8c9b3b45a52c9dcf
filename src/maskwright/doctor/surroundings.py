"""Checks of the network and of credentials, whose content never gets into a finding."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import yaml

from maskwright.doctor.finding import DoctorFinding, credential
from maskwright.doctor.services import services

PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY")
BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
REACH_SECONDS = 3.0
KINDS = {
    "service_account": "a service account's key",
    "authorized_user": "a person's, by `gcloud auth application-default login`",
    "external_account": "another provider's identity (workload identity federation)",
    "impersonated_service_account": "an impersonated service account",
}
SCOPES = "http://{host}/computeMetadata/v1/instance/service-accounts/default/scopes"


# ---- network --------------------------------------------------------------------------------------------------------


def network(*, reach: bool) -> Iterator[DoctorFinding]:
    """Findings about the network. `reach`: also connect to the servers that commands need; else nothing is sent."""
    names = {name: os.environ.get(name) or os.environ.get(name.lower()) for name in PROXIES}
    proxies = {name: value for name, value in names.items() if value}
    bundles = {name: os.environ[name] for name in BUNDLES if os.environ.get(name)}
    detail = "; ".join(f"{name} {value}" for name, value in proxies.items()) or "no proxy is set"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        detail += "; HF_HUB_OFFLINE keeps the Hub away"
    values: dict[str, Any] = {"proxies": sorted(proxies), "certificates": sorted(bundles)}
    if absent := [f"{name}={path}" for name, path in bundles.items() if not os.path.exists(path)]:
        fix = "name a file that is there, or unset it: every request with TLS fails"
        yield DoctorFinding("network", "settings", "fail", f"{detail}; {absent[0]} is not there", fix, values)
    else:
        yield DoctorFinding("network", "settings", "ok", detail, None, values)
    if not reach:
        yield DoctorFinding(
            "network", "servers", "ok", "nothing was asked; --network tries the Hub and Google's storage"
        )
        return
    with ThreadPoolExecutor(4) as pool:
        yield from pool.map(_reach, *zip(*_servers(), strict=True))


def _servers() -> list[tuple[str, str, str]]:
    """(name, address, what needs it) of each server."""
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    servers = [
        ("the Hub", hub, "hf:// models"),
        ("Google", "https://storage.googleapis.com", "gs:// addresses and `env`"),
    ]
    if ray := os.environ.get("RAY_API_SERVER_ADDRESS"):
        servers.append(("Ray's head", ray, "`submit ray`"))
    return servers


def _reach(name: str, address: str, wanted_by: str) -> DoctorFinding:
    """Checks that a server answers. A refusal counts too: it comes from the server, or from a proxy."""
    try:
        request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "maskwright-doctor"})
        with urllib.request.urlopen(request, timeout=REACH_SECONDS) as answer:
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


# ---- credentials ----------------------------------------------------------------------------------------------------


def credentials(*, reach: bool) -> Iterator[DoctorFinding]:
    yield hub()
    yield google(reach=reach)
    yield amazon()
    yield kubernetes()
    yield from services()


def hub() -> DoctorFinding:
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    path = os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
    if os.environ.get("HF_TOKEN"):
        return credential(
            "Hub", "a token in HF_TOKEN; which models it may read or write, only the Hub knows", [], source="HF_TOKEN"
        )
    if os.path.exists(path):
        return credential("Hub", f"a token in {path}; what it may do, only the Hub knows", [path], source=path)
    return credential("Hub", "no token: public models can be read, and nothing can be pushed", [], source=None)


def google(*, reach: bool) -> DoctorFinding:
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    folder = os.environ.get("CLOUDSDK_CONFIG") or os.path.expanduser("~/.config/gcloud")
    path = named or os.path.join(folder, "application_default_credentials.json")
    if named and not os.path.exists(named):
        fix = "name a file that is there, or unset it: every gs:// address fails"
        return DoctorFinding(
            "credentials", "Google", "fail", f"GOOGLE_APPLICATION_CREDENTIALS: {named} is not there", fix
        )
    if os.path.exists(path):
        kind = _kind(path)
        if kind is None:
            fix = "gcloud auth application-default login"
            return DoctorFinding("credentials", "Google", "warn", f"{path} holds no credentials that are known", fix)
        return credential("Google", f"{KINDS.get(kind, kind)}, in {path}", [path], source=path, kind=kind)
    if reach and (scopes := _scopes()) is not None:
        broad = any(scope.endswith("/cloud-platform") for scope in scopes)
        named_scopes = ", ".join(scope.rpartition("/")[2] for scope in scopes)
        values = {"source": "metadata", "scopes": scopes}
        if not broad:
            detail = f"this machine's service account, with the scopes {named_scopes}"
            return DoctorFinding(
                "credentials", "Google", "warn", detail, "give the machine the scope cloud-platform", values
            )
        return DoctorFinding(
            "credentials", "Google", "ok", f"this machine's service account ({named_scopes})", None, values
        )
    return credential("Google", "none here; gs:// addresses, `env` and Vertex AI need them", [], source=None)


def _kind(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            kind = json.load(file)["type"]
        return kind if isinstance(kind, str) and len(kind) < 40 else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _scopes() -> list[str] | None:
    """Scopes of this machine, from the metadata server of Google's machines; None elsewhere."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    request = urllib.request.Request(SCOPES.format(host=host), headers={"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with suppress(OSError, ValueError), opener.open(request, timeout=1.0) as answer:
        return str(answer.read(10_000).decode()).split()
    return None


def amazon() -> DoctorFinding:
    path = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.expanduser("~/.aws/credentials")
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return credential("S3", "a key in AWS_ACCESS_KEY_ID", [], source="AWS_ACCESS_KEY_ID")
    if os.path.exists(path):
        profile = os.environ.get("AWS_PROFILE") or "default"
        return credential("S3", f"a file, {path}; the profile is {profile}", [path], source=path)
    return credential("S3", "none here; s3:// addresses need them", [], source=None)


def kubernetes() -> DoctorFinding:
    path = (os.environ.get("KUBECONFIG") or os.path.expanduser("~/.kube/config")).split(os.pathsep)[0]
    if not os.path.exists(path):
        if os.environ.get("KUBECONFIG"):
            fix = "name a file that is there, or unset it"
            return DoctorFinding("credentials", "Kubernetes", "warn", f"KUBECONFIG: {path} is not there", fix)
        return credential("Kubernetes", "none here; `submit kubernetes` needs them", [], source=None)
    try:
        with open(path, encoding="utf-8") as file:
            context = str((yaml.safe_load(file) or {}).get("current-context") or "none")
    except (OSError, yaml.YAMLError, AttributeError):
        fix = "kubectl config view shows what is wrong"
        return DoctorFinding("credentials", "Kubernetes", "warn", f"{path} cannot be read", fix)
    return credential("Kubernetes", f"{path}, with the context {context}", [path], source=path, context=context)
