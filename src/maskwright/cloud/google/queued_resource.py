"""TPU slices of v2, v3, v4 and v5e: queued resources of the TPU API (v2), one node in each, by REST.

Later kinds are instance groups, which Terraform makes. Terraform's own queued resource takes neither Spot nor a service
account, disks or metadata, so this client makes them. Google keeps the API, and develops it no more:
https://docs.cloud.google.com/tpu/docs/queued-resources
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
"""Lost means that its machines were taken or never came. It does not come back: it is deleted and asked for again."""
OPERATION_SECONDS = 900.0
"""Longest wait for an operation. Waiting for machines is none."""


@dataclass(frozen=True)
class Wanted:
    """A queued resource with one node of the same name, without addresses outside."""

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
    """A queued resource as it is now."""

    state: str
    phase: Phase
    trouble: str
    """Why it is lost, in Google's words."""
    hosts: tuple[TpuHost, ...]
    body: dict[str, Any]
    """The whole answer of Google."""


def describe(google: Google, zone: str, name: str) -> QueuedResource | None:
    """None when there is none."""
    place = _place(google, zone)
    body = google.find("tpu", f"{place}/queuedResources/{name}")
    if body is None:
        return None
    told = body.get("state") or {}
    state = str(told.get("state", "STATE_UNSPECIFIED"))
    phase = STATES.get(state, "waiting")
    trouble = str(((told.get("failedData") or {}).get("error") or {}).get("message", ""))
    node = google.find("tpu", f"{place}/nodes/{name}") or {}
    if phase == "ready" and node.get("state") in STOPPED:
        phase, trouble = "lost", f"its node is {node['state']}"
    if phase == "lost" and not trouble:
        who = "by its user" if told.get("stateInitiator") == "USER" else "by Google, as Spot machines may be"
        trouble = f"its machines were taken {who}"
    of_all = str(node.get("state", "")), str(node.get("health", ""))
    hosts = tuple(TpuHost(number, *of_all) for number, _ in enumerate(node.get("networkEndpoints") or []))
    return QueuedResource(state, phase, trouble, hosts, body)


def create_if_missing(google: Google, wanted: Wanted) -> QueuedResource:
    """Asks for it where it is not there yet, and again where it was lost. Does not wait for its machines. Raises
    `CloudError`; its reason is "exists" when one of that name is not as wanted, and its words say what differs."""
    found = describe(google, wanted.zone, wanted.name)
    if found is not None and found.phase in ("lost", "going"):
        note(f"{wanted.name} is {found.state} ({found.trouble or 'being deleted'}); asking for it again")
        delete(google, wanted.zone, wanted.name)
        found = None
    if found is None:
        found = _create(google, wanted)
    if differing := differences(found.body, wanted):
        fix = "`maskwright env down --only slice` first, or restore the configuration that it was made with"
        where = f"queued resource {wanted.name} in {wanted.zone}"
        raise CloudError(f"exists, but is not as wanted: {'; '.join(differing)}", reason="exists", where=where, fix=fix)
    return found


def delete(google: Google, zone: str, name: str) -> bool:
    """Takes it away with its machines. False when there was nothing. An interrupted call can be repeated."""
    place, limit = _place(google, zone), OPERATION_SECONDS
    path, once = f"{place}/queuedResources/{name}", new_request_id()
    there = google.delete("tpu", path, seconds=limit, force=True, requestId=once)
    # A node that outlived its queued resource costs money just the same.
    return google.delete("tpu", f"{place}/nodes/{name}", seconds=limit) or there


def differences(body: Mapping[str, Any], wanted: Wanted) -> list[str]:
    """Differences between the one that exists and the wanted one, in words. Google adds metadata and labels of its
    own, so only ours are compared."""
    specs = (body.get("tpu") or {}).get("nodeSpec") or [{}]
    node, wished = specs[0].get("node") or {}, wanted.node()
    model = "SPOT" if "spot" in body else "RESERVATION_BOUND" if body.get("reservationName") else "STANDARD"
    there, ours = ([_last(one.get("sourceDisk")) for one in each.get("dataDisks") or []] for each in (node, wished))
    rows: list[tuple[str, Any, Any]] = [
        ("accelerator type", node.get("acceleratorType"), wanted.accelerator_type),
        ("runtime version", node.get("runtimeVersion"), wanted.runtime_version),
        ("provisioning model", model, wanted.model),
        ("service account", (node.get("serviceAccount") or {}).get("email"), wanted.service_account),
        ("subnetwork", _last((node.get("networkConfig") or {}).get("subnetwork")), _last(wanted.subnetwork)),
        ("data disk", there, ours),
    ]
    for kind in ("metadata", "labels"):
        known = node.get(kind) or {}
        rows += [(f"{kind} {key}", known.get(key), value) for key, value in wished[kind].items()]
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
        if error.reason != "exists":  # someone was quicker, or our first answer was lost
            raise
    found = describe(google, wanted.zone, wanted.name)
    if found is None:
        where = f"queued resource {wanted.name} in {wanted.zone}"
        what = "is not there although it was just made: someone else deletes it, or a node of that name exists alone"
        raise CloudError(what, reason="other", where=where, fix="maskwright env down --only slice, then up again")
    return found


def _place(google: Google, zone: str) -> str:
    return f"projects/{google.project}/locations/{zone}"


def _last(link: Any) -> str:
    """The name alone: Google's answers name projects by number, requests by name."""
    return str(link or "").rsplit("/", 1)[-1]


def _short(value: Any) -> str:
    text = "none" if value in (None, "", []) else ", ".join(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:30]}… ({len(text)} characters)"
