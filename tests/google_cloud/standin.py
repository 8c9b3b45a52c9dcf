"""A stand-in for the provider hashicorp/google: `python -m google_cloud.standin`, started by Terraform.

It takes what the provider takes (`provider_schema.json`), plans what is computed as unknown,
replaces where the provider does, and keeps what it made in the fake cloud (STANDIN_CLOUD), by requests of its own. So
nothing here says that Google would accept a value: zone, quota, machine, image.

REPLACES and REFUSED are read from the provider's public documentation by hand, for the arguments that deploy/terraform
uses, because the bindings do not hold them.
"""

import hashlib
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import msgpack
from google_cloud import plugin_protocol as protocol
from google_cloud.plugin_protocol import Message, error, message

SCHEMA = json.loads(Path(__file__).with_name("provider_schema.json").read_text())
FLAGS = {"r": "required", "o": "optional", "c": "computed"}
UNKNOWN = msgpack.ExtType(0, b"\0")
PLACES = ("project", "region", "zone")
COMPUTE = "https://www.googleapis.com/compute/v1/"
# registry.terraform.io/providers/hashicorp/google/latest/docs/resources/…: "Changing this forces a new resource", and
# of compute resources all that Google's API has no update for.
REPLACES = {
    "google_artifact_registry_repository": ["format", "location", "repository_id", "mode", "project"],
    "google_artifact_registry_repository_iam_member": ["*"],
    "google_compute_disk": ["name", "type", "zone", "project", "image", "snapshot", "description"],
    "google_compute_network": ["name", "auto_create_subnetworks", "project", "description"],
    "google_compute_router": ["name", "network", "region", "project"],
    "google_compute_router_nat": ["name", "router", "region", "project"],
    "google_compute_subnetwork": ["name", "network", "region", "project", "description"],
    "google_container_cluster": [
        *("name", "location", "project", "network", "subnetwork", "networking_mode", "datapath_provider"),
        *("default_max_pods_per_node", "ip_allocation_policy", "private_cluster_config", "enable_shielded_nodes"),
        *("description", "node_config", "initial_node_count"),
    ],
    "google_container_node_pool": [
        *("name", "location", "project", "cluster", "initial_node_count", "max_pods_per_node"),
        *("node_config.oauth_scopes", "node_config.service_account", "node_config.shielded_instance_config"),
    ],
    "google_filestore_instance": ["name", "tier", "location", "zone", "project", "networks", "file_shares.name"],
    "google_project_iam_member": ["*"],
    "google_service_account": ["account_id", "project"],
    "google_service_account_iam_member": ["*"],
    "google_storage_bucket": ["name", "location", "project"],
    "google_storage_bucket_iam_member": ["*"],
}
# Of arguments whose words the bindings tell in a sentence only.
WORDS = {
    "deletion_policy": ["DELETE", "ABANDON", "PREVENT"],
    "channel": ["UNSPECIFIED", "RAPID", "REGULAR", "STABLE", "EXTENDED"],
    "datapath_provider": ["DATAPATH_PROVIDER_UNSPECIFIED", "LEGACY_DATAPATH", "ADVANCED_DATAPATH"],
    "insecure_kubelet_readonly_port_enabled": ["TRUE", "FALSE"],
    "location_policy": ["BALANCED", "ANY"],
    "mode": ["STANDARD_REPOSITORY", "VIRTUAL_REPOSITORY", "REMOTE_REPOSITORY", "GKE_METADATA", "GCE_METADATA"],
    "networking_mode": ["VPC_NATIVE", "ROUTES"],
    "public_access_prevention": ["inherited", "enforced"],
    "tier": ["STANDARD", "PREMIUM", "BASIC_HDD", "BASIC_SSD", "HIGH_SCALE_SSD", "ZONAL", "REGIONAL", "ENTERPRISE"],
}
IDS = {
    "google_artifact_registry_repository": "projects/{project}/locations/{location}/repositories/{repository_id}",
    "google_artifact_registry_repository_iam_member": "{repository}/{role}/{member}",
    "google_compute_disk": "projects/{project}/zones/{zone}/disks/{name}",
    "google_compute_network": "projects/{project}/global/networks/{name}",
    "google_compute_router": "projects/{project}/regions/{region}/routers/{name}",
    "google_compute_router_nat": "{project}/{region}/{router}/{name}",
    "google_compute_subnetwork": "projects/{project}/regions/{region}/subnetworks/{name}",
    "google_container_cluster": "projects/{project}/locations/{location}/clusters/{name}",
    "google_container_node_pool": "projects/{project}/locations/{location}/clusters/{cluster}/nodePools/{name}",
    "google_filestore_instance": "projects/{project}/locations/{location}/instances/{name}",
    "google_project_iam_member": "{project}/{role}/{member}",
    "google_service_account": "projects/{project}/serviceAccounts/{email}",
    "google_service_account_iam_member": "{service_account_id}/{role}/{member}",
    "google_storage_bucket": "{name}",
    "google_storage_bucket_iam_member": "b/{bucket}/{role}/{member}",
}
Value = Any
Block = dict[str, Any]


def refused_words(block: Block, value: dict[str, Value]) -> list[str]:
    """Words that the provider does not know, in its own words."""
    found = []
    for name, (_, _, *known) in block["attributes"].items():
        given = value.get(name)
        for word in given if isinstance(given, list) else [given]:
            allowed = known[0] if known else WORDS.get(name, [])
            if allowed and isinstance(word, str) and word not in allowed:
                found.append(f"expected {name} to be one of {json.dumps(allowed)}, got {word}")
    for _, inner, one in items(block, value):
        found += refused_words(inner, one)
    return found


def is_unknown(value: Value) -> bool:
    """Terraform may send what it knows of an unknown value with it, such as the beginning of a name."""
    return isinstance(value, msgpack.ExtType)


def read(value: Message) -> Value:
    if value.json:
        return json.loads(value.json)
    return msgpack.unpackb(value.msgpack, strict_map_key=False) if value.msgpack else None


def write(value: Value) -> Message:
    return message("DynamicValue", msgpack=msgpack.packb(value))


def schema_of(block: Block) -> Message:
    return message(
        "Block",
        attributes=[
            message("Attribute", name=name, type=json.dumps(kind).encode(), **{FLAGS[flag]: True for flag in flags})
            for name, (flags, kind, *_) in block["attributes"].items()
        ],
        block_types=[
            message(
                "NestedBlock",
                type_name=name,
                block=schema_of(inner),
                nesting=protocol.NESTING[nesting],
                min_items=least,
                max_items=most,
            )
            for name, (nesting, least, most, inner) in block["blocks"].items()
        ],
    )


def items(block: Block, value: dict[str, Value]) -> list[tuple[str, Block, dict[str, Value]]]:
    """Every nested block that is written in `value`."""
    found = []
    for name, (nesting, _, _, inner) in block["blocks"].items():
        written = value.get(name)
        for one in [written] if nesting == "single" else written if isinstance(written, list) else []:
            if isinstance(one, dict):
                found.append((name, inner, one))
    return found


def unknown_where_computed(block: Block, value: dict[str, Value]) -> None:
    for name, (flags, *_) in block["attributes"].items():
        if value.get(name) is None and "c" in flags:
            value[name] = UNKNOWN
    for _, inner, one in items(block, value):
        unknown_where_computed(inner, one)


def changes(block: Block, old: dict[str, Value], new: dict[str, Value]) -> list[list[str | int]]:
    """Paths of arguments that differ; a set of blocks is one argument."""
    found: list[list[str | int]] = [[name] for name in block["attributes"] if old.get(name) != new.get(name)]
    for name, (nesting, _, _, inner) in block["blocks"].items():
        before, after = old.get(name), new.get(name)
        lists = isinstance(before, list) and isinstance(after, list) and len(before) == len(after)
        if nesting == "list" and lists:
            for at, (one, other) in enumerate(zip(before, after, strict=True)):
                found += [[name, at, *path] for path in changes(inner, one, other)]
        elif before != after and nesting != "single":
            found.append([name])
    return found


def replaces(kind: str, path: list[str | int], old: dict[str, Value], new: dict[str, Value]) -> bool:
    if kind == "google_compute_disk" and path == ["size"] and isinstance(new["size"], int | float):
        return bool(new["size"] < (old["size"] or 0))  # a disk grows as it is, and shrinks by being another
    names = [part for part in path if isinstance(part, str)]
    prefixes = {".".join(names[: n + 1]) for n in range(len(names))}
    listed = set(REPLACES[kind])
    return bool(prefixes & listed) or ("*" in listed and names[0] not in ("deletion_policy", "timeouts"))


class Refused(Exception):
    """In the words of Google's client: `googleapi: Error 403: what, reason`."""

    def __init__(self, code: int, what: str, reason: str = "") -> None:
        super().__init__(f"googleapi: Error {code}: {what}" + (f", {reason}" if reason else ""))
        self.code = code


def ask(query: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fake cloud's answer to a change, or to a question about a resource."""
    address = os.environ["STANDIN_CLOUD"].rstrip("/") + "/__terraform" + query
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as refused:
        said = json.loads(refused.read())["error"]
        raise Refused(refused.code, said["message"], said["errors"][0]["reason"]) from None


def find(kind: str, name: str) -> dict[str, Value] | None:
    try:
        return ask("?" + urllib.parse.urlencode({"type": kind, "id": name}))["state"]
    except Refused as refused:
        if refused.code == 404:
            return None
        raise


class Provider:
    def __init__(self) -> None:
        self.config: dict[str, Value] = {}

    def labels(self, kind: str, state: dict[str, Value]) -> None:
        """`effective_labels` and `terraform_labels`: the resource's own over the provider's."""
        own = state.get("labels")
        if "terraform_labels" in SCHEMA[kind]["attributes"] and not is_unknown(own):
            whole = {**(self.config.get("default_labels") or {}), **(own or {})}
            state["terraform_labels"] = state["effective_labels"] = whole

    def get_provider_schema(self, _: Message) -> Message:
        made = {
            name: message("Schema", block=schema_of(block)) for name, block in SCHEMA.items() if name != "made from"
        }
        provider = made.pop("provider")
        named = [message("NamedSchema", key=name, value=schema) for name, schema in made.items()]
        return message("SchemaAnswer", provider=provider, resource_schemas=named)

    def validate_resource_config(self, asked: Message) -> Message:
        found = refused_words(SCHEMA[asked.type_name], read(asked.config))
        return message("Answer", diagnostics=[error(text) for text in found])

    def configure_provider(self, asked: Message) -> Message:
        self.config = {name: value for name, value in read(asked.config).items() if not is_unknown(value)}
        return message("Answer")

    def upgrade_resource_state(self, asked: Message) -> Message:
        return message("NewState", state=write(json.loads(asked.raw_state.json)))

    def read_resource(self, asked: Message) -> Message:
        current = read(asked.current_state)
        try:
            found = find(asked.type_name, current["id"])
        except (Refused, OSError) as failure:
            return message(
                "NewState",
                state=asked.current_state,
                diagnostics=[error(f"Error reading {asked.type_name}: {failure}")],
            )
        return message("NewState", state=write(found))

    def plan_resource_change(self, asked: Message) -> Message:
        kind, old, new = asked.type_name, read(asked.prior_state), read(asked.state)
        if new is None:
            return message("Planned", planned_state=asked.state, legacy_type_system=True)
        replaced = []
        if old is None:
            unknown_where_computed(SCHEMA[kind], new)
            for place in PLACES:
                if is_unknown(new.get(place)) and self.config.get(place):
                    new[place] = self.config[place]
        else:
            replaced = [path for path in changes(SCHEMA[kind], old, new) if replaces(kind, path, old, new)]
        self.labels(kind, new)
        paths = [
            message(
                "AttributePath",
                steps=[
                    message(
                        "Step", **({"attribute_name": part} if isinstance(part, str) else {"element_key_int": part})
                    )
                    for part in path
                ],
            )
            for path in replaced
        ]
        return message("Planned", planned_state=write(new), requires_replace=paths, legacy_type_system=True)

    def apply_resource_change(self, asked: Message) -> Message:
        kind, old, new = asked.type_name, read(asked.prior_state), read(asked.state)
        op = "create" if old is None else "delete" if new is None else "update"
        state = self.made(kind, new) if new is not None else None
        name = (state or old)["id"]
        try:
            if op == "delete":
                self.refuse_to_delete(kind, old)
            ask("", {"op": op, "type": kind, "id": name, "state": state})
        except (Refused, OSError) as failure:
            verb = {"create": "creating", "update": "updating", "delete": "deleting"}[op]
            return message("Applied", new_state=write(old), diagnostics=[error(f"Error {verb} {kind}: {failure}")])
        return message("Applied", new_state=write(state), legacy_type_system=True)

    def refuse_to_delete(self, kind: str, old: dict[str, Value]) -> None:
        """`deletion_policy` is the provider's own rule, in all its resources; a Filestore's is Google's."""
        if old.get("deletion_policy") == "PREVENT":
            raise Refused(400, f"cannot destroy {kind} {old['id']}: deletion_policy is PREVENT")
        if old.get("deletion_protection_enabled"):
            raise Refused(400, f"{old['id']} has deletion protection enabled", "failedPrecondition")

    def made(self, kind: str, planned: dict[str, Value]) -> dict[str, Value]:
        """The state of a resource that is there: nothing unknown any more."""
        state = {name: None if is_unknown(value) else value for name, value in planned.items()}
        attributes = SCHEMA[kind]["attributes"]
        for place in PLACES:
            if place in attributes and not state.get(place):
                state[place] = self.config.get(place)
        text = json.dumps([kind, planned], sort_keys=True, default=str)
        mark = hashlib.sha256(text.encode()).hexdigest()[:12]
        if state.get("name_prefix") and not state.get("name"):
            state["name"] = state["name_prefix"] + mark
        if kind == "google_service_account":
            state["email"] = f"{state['account_id']}@{state['project']}.iam.gserviceaccount.com"
            state["member"] = f"serviceAccount:{state['email']}"
            state["name"] = f"projects/{state['project']}/serviceAccounts/{state['email']}"
        if kind == "google_artifact_registry_repository":
            state["name"] = state["repository_id"]
            state["registry_uri"] = f"{state['location']}-docker.pkg.dev/{state['project']}/{state['repository_id']}"
        if not state.get("id"):
            state["id"] = re.sub(r"\{(\w+)\}", lambda found: str(state[found[1]]), IDS[kind])
        for link in {"self_link", "self_link_unique"} & set(attributes):
            state[link] = COMPUTE + state["id"] + ("?uniqueId=" + mark if link.endswith("unique") else "")
        if kind == "google_storage_bucket":
            state["url"] = f"gs://{state['name']}"
        if kind == "google_container_cluster":
            state["node_config"] = []  # of the default pool, which is removed
        if kind == "google_filestore_instance":
            state["networks"] = [{**network, "ip_addresses": ["10.20.30.2"]} for network in state["networks"]]
        self.labels(kind, state)
        known(SCHEMA[kind], state, mark)
        return state


def known(block: Block, value: dict[str, Value], mark: str) -> None:
    """What only Google knows gets some value of its type; what it may fill in stays null."""
    for name, (flags, kind, *_) in block["attributes"].items():
        if value.get(name) is None or is_unknown(value[name]):
            some = {"string": f"{name}-{mark}", "number": int(mark[:4], 16), "bool": False}
            empty: Value = {} if kind[0] == "map" else []
            value[name] = (some[kind] if isinstance(kind, str) else empty) if flags == "c" else None
    for _, inner, one in items(block, value):
        known(inner, one, mark)


def main() -> None:
    provider = Provider()
    protocol.serve(
        {
            "GetProviderSchema": provider.get_provider_schema,
            "ValidateProviderConfig": lambda _: message("ProviderAnswer"),
            "ValidateResourceConfig": provider.validate_resource_config,
            "ConfigureProvider": provider.configure_provider,
            "UpgradeResourceState": provider.upgrade_resource_state,
            "ReadResource": provider.read_resource,
            "PlanResourceChange": provider.plan_resource_change,
            "ApplyResourceChange": provider.apply_resource_change,
            "StopProvider": lambda _: message("Stopped"),
        }
    )


if __name__ == "__main__":
    main()
