"""Checks of credentials for the services of `logging.report_to`, in the places where their own packages look."""

from __future__ import annotations

import netrc
import os
import urllib.parse
from collections.abc import Iterator
from contextlib import suppress

from maskwright.core.secrets import redact
from maskwright.doctor.finding import DoctorFinding, credential

WANDB = "https://api.wandb.ai"


def services() -> Iterator[DoctorFinding]:
    yield wandb()
    yield mlflow()
    yield trackio()


def wandb() -> DoctorFinding:
    if (mode := os.environ.get("WANDB_MODE", "")) in ("offline", "disabled", "dryrun"):
        return credential("W&B", f"none is needed: WANDB_MODE is {mode}", [], source=None)
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        if os.environ.get(name):
            return credential("W&B", f"a key in {name}", [], source=name)
    path = os.environ.get("NETRC") or os.path.expanduser("~/.netrc")
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL") or WANDB).netloc
    with suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc(os.path.expanduser(path)).authenticators(host):
            return credential("W&B", f"a key for {host} in {path}", [path], source=path)
    detail = "none here; `logging.report_to: [wandb]` needs one, by `wandb login`, or WANDB_MODE=offline"
    return credential("W&B", detail, [], source=None)


def mlflow() -> DoctorFinding:
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri.startswith(("http://", "https://", "databricks")):
        where = f"runs go to {redact(uri)}" if uri else "MLFLOW_TRACKING_URI is not set, so runs stay on this machine"
        return credential("MLflow", f"none is needed: {where}", [], source=None)
    names, file = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"), "~/.mlflow/credentials"
    if uri.startswith("databricks"):
        names, file = ("DATABRICKS_TOKEN", "DATABRICKS_CLIENT_SECRET"), "~/.databrickscfg"
    for name in names:
        if os.environ.get(name):
            return credential("MLflow", f"for {redact(uri)}, in {name}", [], source=name)
    path = os.path.expanduser(file)
    if os.path.exists(path):
        return credential("MLflow", f"for {redact(uri)}, in {path}", [path], source=path)
    detail = f"none here for {redact(uri)}; {names[0]} holds one, if the server asks for it"
    return credential("MLflow", detail, [], source=None)


def trackio() -> DoctorFinding:
    if server := os.environ.get("TRACKIO_SERVER_URL"):
        name = "TRACKIO_WRITE_TOKEN" if os.environ.get("TRACKIO_WRITE_TOKEN") else None
        if "write_token" in urllib.parse.parse_qs(urllib.parse.urlsplit(server).query):
            name = "TRACKIO_SERVER_URL"
        if name is None:
            detail, fix = f"none here for {redact(server)}, which trackio refuses", "export TRACKIO_WRITE_TOKEN=…"
            return DoctorFinding("credentials", "trackio", "warn", detail, fix, {"source": None})
        return credential("trackio", f"for {redact(server)}, in {name}", [], source=name)
    if space := os.environ.get("TRACKIO_SPACE_ID"):
        return credential("trackio", f"the Space {redact(space)} takes the Hub's token", [], source="Hub")
    return credential("trackio", "none is needed: runs stay on this machine", [], source=None)
