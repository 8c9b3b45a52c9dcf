"""TPU slices of v5e and v4: queued resources of the TPU API (v2), one node in each, by REST.

Later kinds are instance groups, which Terraform makes. Terraform's own queued resource takes neither Spot nor service
account, disks or metadata, so this client makes them. The API is kept, not developed any more:
https://docs.cloud.google.com/tpu/docs/queued-resources
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from maskwright.cloud.google.rest import SCOPE, Google, new_request_id
from maskwright.core.console import note
from maskwright.core.errors import CloudError

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
"""Lost: its machines were taken, or never came. A lost one does not come back: it is deleted and asked for again."""
LOST_NODES = ("PREEMPTED", "TERMINATED", "STOPPED", "STOPPING")
OPERATION_SECONDS = 900.0
"""For an operation to end. Waiting for machines is no operation."""


@dataclass(frozen=True)
class Wanted:
    """`accelerator_type` as v5litepod-16. `model`: STANDARD, SPOT or RESERVATION_BOUND with `reservation`. Network and
    subnetwork as "projects/…", without addresses outside. `data_disk` ("projects/p/zones/z/disks/d") is attached
    read-only. Not granted within `valid_hours`, the request fails; None: it waits for as long as it takes."""

    name: str
    zone: str
    accelerator_type: str
    runtime_version: str
    model: str
    network: str
    subnetwork: str
    service_account: str
    reservation: str | None = None
    data_disk: str | None = None
    valid_hours: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Host:
    """One machine of the slice. `state` is its node's."""

    number: int
    address: str
    state: str
    health: str


@dataclass(frozen=True)
class Slice:
    """What there is. `body` as Google gave it; `trouble`: why it is lost, in Google's words."""

    name: str
    zone: str
    state: str
    phase: Phase
    trouble: str
    hosts: tuple[Host, ...]
    body: dict[str, Any]


def describe(google: Google, zone: str, name: str) -> Slice | None:
    """None when there is none."""
    place = _place(google, zone)
    body = google.find("tpu", f"{place}/queuedResources/{name}")
    if body is None:
        return None
    told = body.get("state") or {}
    state = str(told.get("state", "STATE_UNSPECIFIED"))
    error = (told.get("failedData") or {}).get("error") or {}
    node = google.find("tpu", f"{place}/nodes/{name}")
    hosts = _hosts(node) if node else ()
    phase = STATES.get(state, "waiting")
    trouble = str(error.get("message", ""))
    if node and phase == "ready" and node.get("state") in LOST_NODES:
        phase, trouble = "lost", f"its node is {node['state']}"
    if phase == "lost" and not trouble:
        who = "by its user" if told.get("stateInitiator") == "USER" else "by Google, as Spot machines may be"
        trouble = f"its machines were taken {who}"
    return Slice(name, zone, state, phase, trouble, hosts, body)


def ensure(google: Google, wanted: Wanted) -> Slice:
    """Asks for it where it is not there yet, and again where it was lost; does not wait for its machines. Raises
    `CloudError`: reason "exists" and what differs when one of that name is not as wanted."""
    found = describe(google, wanted.zone, wanted.name)
    if found is not None and found.phase in ("lost", "going"):
        note(f"{wanted.name} is {found.state} ({found.trouble or 'being deleted'}); asking for it again")
        absent(google, wanted.zone, wanted.name)
        found = None
    if found is None:
        found = _create(google, wanted)
    differing = differences(google.project, found.body, wanted)
    if differing:
        fix = (
            "take it away first (maskwright env down --only slice), or restore the configuration that it was made with"
        )
        where = f"queued resource {wanted.name} in {wanted.zone}"
        raise CloudError(f"exists, but is not as wanted: {'; '.join(differing)}", reason="exists", where=where, fix=fix)
    return found


def absent(google: Google, zone: str, name: str) -> bool:
    """Takes it away with its machines; False when there was nothing. Interrupted, it can be called again."""
    place = _place(google, zone)
    path, node = f"{place}/queuedResources/{name}", f"{place}/nodes/{name}"
    there = _delete(google, path, force=True, requestId=new_request_id())
    # A node that outlived its queued resource costs money just the same.
    return _delete(google, node) or there


def differences(project: str, body: Mapping[str, Any], wanted: Wanted) -> list[str]:
    """Between what there is and what is wanted, in words. Of metadata and labels only ours: Google adds its own."""
    specs = (body.get("tpu") or {}).get("nodeSpec") or [{}]
    node, wished = specs[0].get("node") or {}, _node(wanted)
    rows: list[tuple[str, Any, Any]] = [
        ("accelerator type", node.get("acceleratorType"), wanted.accelerator_type),
        ("runtime version", node.get("runtimeVersion"), wanted.runtime_version),
        ("provisioning model", _model(body), wanted.model),
        ("service account", (node.get("serviceAccount") or {}).get("email"), wanted.service_account),
        ("subnetwork", _last((node.get("networkConfig") or {}).get("subnetwork")), _last(wanted.subnetwork)),
        ("data disk", [_last(one.get("sourceDisk")) for one in node.get("dataDisks") or []], _disks(wanted)),
    ]
    for kind in ("metadata", "labels"):
        there = node.get(kind) or {}
        rows += [(f"{kind} {key}", there.get(key), value) for key, value in wished[kind].items()]
    return [f"{what} is {_short(is_)}, wanted {_short(want)}" for what, is_, want in rows if is_ != want]


def _create(google: Google, wanted: Wanted) -> Slice:
    place = _place(google, wanted.zone)
    body: dict[str, Any] = {
        "tpu": {"nodeSpec": [{"parent": place, "nodeId": wanted.name, "node": _node(wanted)}]},
    }
    if wanted.model == "SPOT":
        body["spot"] = {}
    elif wanted.model == "RESERVATION_BOUND":
        reservation = wanted.reservation or "-"
        body["reservationName"] = reservation if "/" in reservation else f"{place}/reservations/{reservation}"
    if wanted.valid_hours is not None:
        body["queueingPolicy"] = {"validUntilDuration": f"{wanted.valid_hours * 3600:.0f}s"}
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


def _delete(google: Google, path: str, **query: Any) -> bool:
    try:
        operation = google.call("tpu", "DELETE", path, **query)
        google.wait("tpu", operation, seconds=OPERATION_SECONDS)
    except CloudError as error:
        if error.reason == "missing":
            return False
        raise
    return True


def _node(wanted: Wanted) -> dict[str, Any]:
    node: dict[str, Any] = {
        "acceleratorType": wanted.accelerator_type,
        "runtimeVersion": wanted.runtime_version,
        "networkConfig": {"network": wanted.network, "subnetwork": wanted.subnetwork, "enableExternalIps": False},
        "serviceAccount": {"email": wanted.service_account, "scope": [SCOPE]},
        "metadata": dict(wanted.metadata),
        "labels": dict(wanted.labels),
    }
    if wanted.data_disk is not None:
        node["dataDisks"] = [{"sourceDisk": wanted.data_disk, "mode": "READ_ONLY"}]
    return node


def _hosts(node: Mapping[str, Any]) -> tuple[Host, ...]:
    state, health = str(node.get("state", "")), str(node.get("health", ""))
    ends = node.get("networkEndpoints") or []
    return tuple(Host(number, str(end.get("ipAddress", "")), state, health) for number, end in enumerate(ends))


def _model(body: Mapping[str, Any]) -> str:
    return "SPOT" if "spot" in body else "RESERVATION_BOUND" if body.get("reservationName") else "STANDARD"


def _disks(wanted: Wanted) -> list[str]:
    return [_last(wanted.data_disk)] if wanted.data_disk else []


def _place(google: Google, zone: str) -> str:
    return f"projects/{google.project}/locations/{zone}"


def _last(link: Any) -> str:
    """Projects are named by number in what comes back, and by name in what is sent."""
    return str(link or "").rsplit("/", 1)[-1]


def _short(value: Any) -> str:
    text = "none" if value in (None, "", []) else ", ".join(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 60 else f"{text[:30]}… ({len(text)} characters)"
