"""TPU slices of v2, v3, v4 and v5e: queued resources of the TPU API (v2), one node in each, by REST.

Later kinds are instance groups, which Terraform creates. Terraform's own queued resource supports neither Spot nor a
service account, disks or metadata, so this client creates them. Google maintains the API without developing it further,
and recommends GKE or Compute Engine, so this is frozen: docs.cloud.google.com/tpu/docs/tpus-in-compute-engine
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from maskwright.cloud.google.host_states import STOPPED
from maskwright.cloud.google.rest import SCOPE, Google, new_request_id
from maskwright.core.console import note
from maskwright.core.errors import CloudError

Model = Literal["STANDARD", "SPOT", "RESERVATION_BOUND"]
Phase = Literal["waiting", "ready", "lost", "going"]
STATES: dict[str, Phase] = {
    "CREATING": "waiting",
    "ACCEPTED": "waiting",
    "WAITING_FOR_RESOURCES": "waiting",
    "PROVISIONING": "waiting",
    "ACTIVE": "ready",
    "SUSPENDING": "lost",
    "SUSPENDED": "lost",
    "FAILED": "lost",
    "DELETING": "going",
}
"""lost: its machines were taken or never came. It does not recover, so it is deleted and requested again."""
OPERATION_SECONDS = 900.0
"""Longest wait for an operation, which does not include the wait for machines."""


@dataclass(frozen=True)
class Wanted:
    """A queued resource with one node of the same name, without external addresses."""

    name: str
    zone: str
    accelerator_type: str
    """Type such as v5litepod-16."""
    runtime_version: str
    model: Model
    network: str
    """Path such as projects/p/global/networks/n."""
    subnetwork: str
    service_account: str
    reservation: str | None = None
    """Name of the reservation, for RESERVATION_BOUND."""
    data_disk: str | None = None
    """Path such as projects/p/zones/z/disks/d. The disk is attached read-only."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def node(self) -> dict[str, Any]:
        """Body of the node in a request."""
        disks = [{"sourceDisk": self.data_disk, "mode": "READ_ONLY"}] if self.data_disk is not None else []
        return {
            "acceleratorType": self.accelerator_type,
            "runtimeVersion": self.runtime_version,
            "networkConfig": {"network": self.network, "subnetwork": self.subnetwork, "enableExternalIps": False},
            "serviceAccount": {"email": self.service_account, "scope": [SCOPE]},
            "metadata": dict(self.metadata),
            "labels": dict(self.labels),
            **({"dataDisks": disks} if disks else {}),
        }


@dataclass(frozen=True)
class TpuHost:
    """One machine of the slice."""

    number: int
    state: str
    """State of the node, which is the same for all its machines."""
    health: str


@dataclass(frozen=True)
class QueuedResource:
    """The state of a queued resource."""

    state: str
    phase: Phase
    trouble: str
    """Google's message about why it is lost."""
    hosts: tuple[TpuHost, ...]
    body: dict[str, Any]
    """Google's whole answer."""


def describe(google: Google, zone: str, name: str) -> QueuedResource | None:
    """None if it does not exist."""
    place = _place(google, zone)
    body = google.find("tpu", f"{place}/queuedResources/{name}")
    if body is None:
        return None
    status = body.get("state") or {}
    state = str(status.get("state", "STATE_UNSPECIFIED"))
    phase = STATES.get(state, "waiting")
    trouble = str(((status.get("failedData") or {}).get("error") or {}).get("message", ""))
    node = google.find("tpu", f"{place}/nodes/{name}") or {}
    if phase == "ready" and node.get("state") in STOPPED:
        phase, trouble = "lost", f"its node is {node['state']}"
    if phase == "lost" and not trouble:
        who = "by its user" if status.get("stateInitiator") == "USER" else "by Google, as Spot machines may be"
        trouble = f"its machines were taken {who}"
    node_state = str(node.get("state", "")), str(node.get("health", ""))
    hosts = tuple(TpuHost(number, *node_state) for number, _ in enumerate(node.get("networkEndpoints") or []))
    return QueuedResource(state, phase, trouble, hosts, body)


def create_if_missing(google: Google, wanted: Wanted) -> QueuedResource:
    """Request it if it does not exist, and again if it was lost. Does not wait for its machines. Raises `CloudError`,
    with the reason "exists" if one of that name differs from `wanted`."""
    existing = describe(google, wanted.zone, wanted.name)
    if existing is not None and existing.phase in ("lost", "going"):
        note(f"{wanted.name} is {existing.state} ({existing.trouble or 'being deleted'}); requesting it again")
        delete(google, wanted.zone, wanted.name)
        existing = None
    if existing is None:
        existing = _create(google, wanted)
    if differing := differences(existing.body, wanted):
        fix = "`maskwright env down --only slice` first, or restore the configuration that it was created with"
        where = f"queued resource {wanted.name} in {wanted.zone}"
        raise CloudError(f"exists, but differs: {'; '.join(differing)}", reason="exists", where=where, fix=fix)
    return existing


def delete(google: Google, zone: str, name: str) -> bool:
    """Delete it with its machines. False if nothing existed. An interrupted call can be repeated."""
    place, limit = _place(google, zone), OPERATION_SECONDS
    path = f"{place}/queuedResources/{name}"
    existed = google.delete("tpu", path, seconds=limit, force=True, requestId=new_request_id())
    # A node that outlives its queued resource costs just as much.
    return google.delete("tpu", f"{place}/nodes/{name}", seconds=limit) or existed


def differences(body: Mapping[str, Any], wanted: Wanted) -> list[str]:
    """A sentence for each difference between the existing and the wanted one. Google adds metadata and labels, so only
    ours are compared."""
    specs = (body.get("tpu") or {}).get("nodeSpec") or [{}]
    node, ours = specs[0].get("node") or {}, wanted.node()
    model = "SPOT" if "spot" in body else "RESERVATION_BOUND" if body.get("reservationName") else "STANDARD"
    disks, our_disks = (
        [_last(disk.get("sourceDisk")) for disk in spec.get("dataDisks") or []] for spec in (node, ours)
    )
    rows: list[tuple[str, Any, Any]] = [
        ("accelerator type", node.get("acceleratorType"), wanted.accelerator_type),
        ("runtime version", node.get("runtimeVersion"), wanted.runtime_version),
        ("provisioning model", model, wanted.model),
        ("service account", (node.get("serviceAccount") or {}).get("email"), wanted.service_account),
        ("subnetwork", _last((node.get("networkConfig") or {}).get("subnetwork")), _last(wanted.subnetwork)),
        ("data disk", disks, our_disks),
    ]
    for kind in ("metadata", "labels"):
        existing = node.get(kind) or {}
        rows += [(f"{kind} {key}", existing.get(key), value) for key, value in ours[kind].items()]
    return [f"{what} is {_short(is_)}, wanted {_short(want)}" for what, is_, want in rows if is_ != want]


def _create(google: Google, wanted: Wanted) -> QueuedResource:
    place = _place(google, wanted.zone)
    body: dict[str, Any] = {"tpu": {"nodeSpec": [{"parent": place, "nodeId": wanted.name, "node": wanted.node()}]}}
    if wanted.model == "SPOT":
        body["spot"] = {}
    elif wanted.model == "RESERVATION_BOUND":
        reservation = wanted.reservation or "-"
        body["reservationName"] = reservation if "/" in reservation else f"{place}/reservations/{reservation}"
    names = {"queuedResourceId": wanted.name, "requestId": new_request_id()}
    try:
        operation = google.call("tpu", "POST", f"{place}/queuedResources", body, **names)
        google.wait("tpu", operation, seconds=OPERATION_SECONDS)
    except CloudError as error:
        if error.reason != "exists":  # another command was quicker, or the answer to our first request was lost
            raise
    created = describe(google, wanted.zone, wanted.name)
    if created is None:
        where = f"queued resource {wanted.name} in {wanted.zone}"
        what = "was created and is gone: another command deletes it, or a node of that name exists alone"
        raise CloudError(what, reason="other", where=where, fix="maskwright env down --only slice, then up again")
    return created


def _place(google: Google, zone: str) -> str:
    return f"projects/{google.project}/locations/{zone}"


def _last(link: Any) -> str:
    """The last part of a path: Google's answers have the project's number, requests its name."""
    return str(link or "").rsplit("/", 1)[-1]


def _short(value: Any) -> str:
    text = "none" if value in (None, "", []) else ", ".join(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:30]}… ({len(text)} characters)"
