"""The YAML in which a user describes one environment on Google Cloud.

Unknown keys are refused. A part that is `null` does not exist, so a user deletes a part by editing the file. All names
begin with the environment's own, so several environments can stand side by side in a project.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, ValidationError, field_validator, model_validator

from maskwright.cloud import machines
from maskwright.config.settings import Guide, Refused, Section, read_yaml
from maskwright.core import storage
from maskwright.core.errors import ConfigError
from maskwright.core.secrets import redact
from maskwright.machine import tpus

ENVIRONMENT_LABEL = "maskwright-environment"
ZONE, LOCATION = r"^[a-z]+-[a-z]+[0-9]+-[a-z]$", r"^[a-z]+-[a-z]+[0-9]+(-[a-z])?$"
BUCKET = r"^gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^*?#\s]*)?$"
MOST_FLEX_START_HOURS = 168
"""Seven days: docs.cloud.google.com/compute/docs/instances/about-flex-start-vms"""

Zone = Annotated[str, Field(pattern=ZONE, examples=["us-east5-b"])]
Project = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$", examples=["my-project"])]
Region = Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+$", examples=["us-east5"])]
NetworkName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", examples=["shared-vpc"])]
Accelerator = Literal["cpu", "gpu", "tpu"]
Model = Literal["STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"]
MachineType = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+){1,3}$", examples=["g2-standard-48"])]
Hours = Annotated[float, Field(gt=0.0, le=8_760.0)]


class Network(Section):
    """Network of the nodes and the NFS share. The environment creates one unless you set `name`."""

    nat: bool = False
    """Create a gateway through which jobs reach the internet (pip, Hugging Face, W&B), since nodes have no public
    addresses. Google's own services, and the images of Kueue and JobSet, need none. Not for a network of yours."""
    name: NetworkName | None = None
    """An existing network for the nodes and the NFS share. maskwright creates and deletes nothing in it."""
    project: Project | None = None
    """Host project of that network (Shared VPC). Default: the environment's own project."""
    subnetworks: dict[Region, NetworkName] = Field(default_factory=dict)
    """Subnetwork of that network in the environment's region, as in {us-east5: training}."""
    pods_range: NetworkName | None = None
    """Secondary range of that subnetwork for pods. Shared VPC requires both ranges; else GKE creates them."""
    services_range: NetworkName | None = None
    """Secondary range of that subnetwork for services."""

    @model_validator(mode="after")
    def _is_new_or_existing(self) -> Network:
        if self.name is None and (self.project or self.subnetworks or self.pods_range or self.services_range):
            fix = "add network.name, or remove project, subnetworks, pods_range and services_range"
            raise Refused("network.project and network.subnetworks need an existing network", fix=fix)
        if self.name is not None and self.nat:
            fix = "remove network.nat; if jobs need the internet, the owner of the network creates a gateway"
            raise Refused(
                f"network.nat cannot be set: nothing is created in {self.name}, which exists already", fix=fix
            )
        # cloud.google.com/kubernetes-engine/docs/how-to/cluster-shared-vpc: GKE creates no ranges in a host project
        if (self.pods_range is None) != (self.services_range is None) or (self.project and not self.pods_range):
            fix = "set both network.pods_range and network.services_range to secondary ranges of the subnetwork"
            raise Refused("the ranges of pods and services go together, and Shared VPC requires them", fix=fix)
        return self


class Nfs(Section):
    """A Filestore share, which jobs mount as MOUNT_POINT/nfs_share."""

    tier: Literal["BASIC_HDD", "BASIC_SSD", "ZONAL", "REGIONAL"] = "BASIC_HDD"
    """Service tier of Filestore."""
    capacity_gb: Annotated[int, Field(ge=1024, le=102_400)] = 1024
    """Size in GiB: at least 1024 for BASIC_HDD, ZONAL and REGIONAL, and 2560 for BASIC_SSD."""
    share: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,15}$", examples=["share_1"])] = "share"
    """Name of the share."""

    @model_validator(mode="after")
    def _large_enough(self) -> Nfs:
        if self.tier == "BASIC_SSD" and self.capacity_gb < 2560:
            raise Refused(f"capacity_gb {self.capacity_gb} is below BASIC_SSD's 2560", fix="raise it, or use BASIC_HDD")
        return self


class Disk(Section):
    """A disk that `env seed` fills once. Jobs mount it read-only as MOUNT_POINT/shared_pd."""

    type: Literal["hyperdisk-ml", "pd-balanced", "pd-ssd", "pd-standard"] = "hyperdisk-ml"
    """Type of the disk. It must be one that the nodes' machine type can attach."""
    size_gb: Annotated[int, Field(ge=10, le=65_536)]
    """Size in GiB. Changing it creates another disk; run `env seed` again."""
    source: Annotated[str, Field(pattern=BUCKET, examples=["gs://bucket/folder"])] | None = None
    """gs:// folder that `env seed` copies to the disk."""
    prepare: str | None = None
    """Script (path relative to this YAML) that `env seed` runs in the environment's image, after the copy, with the
    folder of the copy and the root of the disk as arguments. The NFS share is mounted too."""

    @model_validator(mode="after")
    def _has_content(self) -> Disk:
        if self.source is None and self.prepare is None:
            fix = "add disk.source, a gs:// folder, or disk.prepare, a script that writes to the disk"
            raise Refused("nothing would fill the disk", fix=fix)
        return self

    @property
    def seeding_machine(self) -> str:
        """Machine type of the node that fills it. N2 attaches no Hyperdisk:
        docs.cloud.google.com/compute/docs/disks/hyperdisks"""
        return "c3-standard-8" if self.type == "hyperdisk-ml" else "n2-standard-8"


class GkeCluster(Section):
    """The GKE cluster. GKE creates its nodes when jobs ask for them, and deletes them when idle."""

    location: Annotated[str, Field(pattern=LOCATION, examples=["us-east5"])] | None = None
    """Zone or region of the control plane. Default: the environment's zone."""
    release_channel: Literal["RAPID", "REGULAR", "STABLE"] = "REGULAR"
    """Release channel of Kubernetes that GKE upgrades it to."""
    machine_type: MachineType = "e2-standard-4"
    """Machine type of the node that always runs (three at most), for Kueue, JobSet and GKE's own pods."""


class Fallback(Section):
    zone: Zone | None = None
    """Zone of the nodes. Default: the zone of the slice or group."""
    provisioning_model: Model = "SPOT"
    """STANDARD (on demand), SPOT, FLEX_START or RESERVATION_BOUND."""


class Placement(NamedTuple):
    """A zone and provisioning model for nodes: a `Fallback` whose zone is resolved."""

    zone: str
    model: Model


class _Nodes(Section):
    provisioning_model: Model = "STANDARD"
    """STANDARD (on demand), SPOT, FLEX_START or RESERVATION_BOUND."""
    reservation: str | None = None
    """Name of the reservation, for RESERVATION_BOUND."""
    max_run_hours: Hours | None = None
    """Hours after which Google deletes the nodes. FLEX_START requires it (168 at most)."""
    zone: Zone | None = None
    """Zone of the nodes. Default: the environment's zone."""
    fallbacks: list[Fallback] = Field(default_factory=list)
    """Zones and models that GKE tries next when no machines are available."""

    def placements(self, zone: str) -> list[Placement]:
        """The nodes' own place, then the fallbacks. `zone` is the environment's."""
        home = self.zone or zone
        others = [Placement(fallback.zone or home, fallback.provisioning_model) for fallback in self.fallbacks]
        return [Placement(home, self.provisioning_model), *others]

    def models(self) -> set[str]:
        return {self.provisioning_model, *(fallback.provisioning_model for fallback in self.fallbacks)}

    @model_validator(mode="after")
    def _models_have_their_options(self) -> _Nodes:
        models = self.models()
        if "FLEX_START" in models and not 0 < (self.max_run_hours or 0) <= MOST_FLEX_START_HOURS:
            fix = f"add max_run_hours: {MOST_FLEX_START_HOURS}, or less"
            raise Refused(f"FLEX_START requires max_run_hours, up to {MOST_FLEX_START_HOURS}", fix=fix)
        if ("RESERVATION_BOUND" in models) != (self.reservation is not None):
            fix = "set both, as in provisioning_model: RESERVATION_BOUND and reservation: NAME, or neither"
            raise Refused("RESERVATION_BOUND and reservation go together", fix=fix)
        return self


class Slice(_Nodes):
    """Nodes that form one TPU slice. GKE creates them when a job asks for them, and deletes them when idle."""

    kind: ClassVar = "slice"
    computes_on: ClassVar[Accelerator] = "tpu"

    accelerator: tpus.TpuKind
    """Kind of TPU: v4, v5e, v5p, v6e or tpu7x."""
    topology: str
    """Chips along each side, such as 4x4 or 2x2x4."""
    machine_type: str | None = None
    """Machine type of a node. Default: it follows from the topology. For v6e and 2x4, choose between one node of 8
    chips and two of 4."""
    workload_policy: str | None = None
    """Name of the workload policy that places the hosts. Slices of tpu7x with several hosts require one."""

    @property
    def chips(self) -> int:
        return tpus.chips(self.topology)

    @property
    def chips_per_host(self) -> int:
        return machines.chips_per_host(self.accelerator, self.topology, self.machine_type)

    @property
    def hosts(self) -> int:
        return self.chips // self.chips_per_host

    def machine(self) -> str:
        return tpus.TPUS[self.accelerator].machines[self.chips_per_host]

    @model_validator(mode="after")
    def _is_a_slice_of_gke(self) -> Slice:
        if not tpus.TPUS[self.accelerator].gke_label:
            near = "accelerator: v5e, the nearest kind that GKE has"
            fix = f"{near}; for a {self.accelerator} that you have already, see docs/tpu.md"
            raise Refused(f"GKE has no {self.accelerator}", fix=fix)
        if wrong := tpus.refusal(f"{self.accelerator}:{self.topology}"):
            raise Refused(wrong[0], fix=wrong[1])
        machines.chips_per_host(self.accelerator, self.topology, self.machine_type)
        # docs.cloud.google.com/kubernetes-engine/docs/concepts/tpu-ironwood#workload-policy
        if self.accelerator == "tpu7x" and self.hosts > 1 and self.workload_policy is None:
            made = "gcloud compute resource-policies create workload-policy NAME --type=HIGH_THROUGHPUT"
            fix = f"`{made} --accelerator-topology={self.topology} --region=REGION`, then workload_policy: NAME"
            raise Refused("GKE places the hosts of a tpu7x slice by a workload policy", fix=fix)
        return self


class Group(_Nodes):
    """Nodes with or without GPUs. GKE creates them when a job asks for them, and deletes them when idle."""

    kind: ClassVar = "group"

    machine_type: MachineType
    """Machine type of the nodes, with GPUs (g2, a2, a3, a4) or without."""
    size: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Maximum number of nodes at once; further jobs wait in the queue."""

    @property
    def hosts(self) -> int:
        return self.size

    def machine(self) -> str:
        return self.machine_type

    @property
    def gpus(self) -> int:
        return machines.GPUS.get(self.machine_type, ("", 0))[1]

    @property
    def computes_on(self) -> Accelerator:
        return "gpu" if self.gpus else "cpu"

    @model_validator(mode="after")
    def _is_known(self) -> Group:
        family = machines.family_of(self.machine_type)
        if family.accelerator == "gpu" and not self.gpus:
            near = [name for name in machines.GPUS if machines.family_of(name) is family]
            fix = f"use one of {', '.join(near or machines.GPUS)}"
            raise Refused(f"{self.machine_type} is not a known machine type", fix=fix)
        return self


class Environment(Section):
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,18}[a-z0-9]$", examples=["lab-1"])]
    """Name of the environment, and the prefix of the names of all its parts; lower case, at most 20 characters."""
    project: Project
    """ID of the Google Cloud project."""
    zone: Zone
    """Zone of the disk, of NFS, and of nodes without another zone. Everything is in its region."""
    labels: dict[str, Annotated[str, Field(pattern=r"^[a-z0-9_-]{0,63}$")]] = Field(default_factory=dict)
    """Labels of every resource that supports them, in addition to maskwright-environment."""
    state_bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]$", examples=["my-state"])] | None = (
        None
    )
    """Bucket of Terraform's state. Default: PROJECT-maskwright-state, which a project's environments share."""
    bucket_location: str | None = None
    """Location of the buckets. Default: the zone's region."""
    mount_point: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", examples=["/mnt/data"])] = "/mnt/common"
    """Folder in jobs in which nfs_share and shared_pd are mounted."""
    image: str | None = None
    """Container image of jobs. Default: the image that `maskwright image` built last."""
    network: Network = Network()
    cluster: GkeCluster = GkeCluster()
    nfs: Nfs | None = None
    disk: Disk | None = None
    slice: Slice | None = None
    group: Group | None = None

    @field_validator("labels")
    @classmethod
    def _labels_are_labels(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or key == ENVIRONMENT_LABEL:
                fix = f"use up to 63 of a-z, 0-9, _ and -, with a letter first; {ENVIRONMENT_LABEL} is reserved"
                raise Refused(f"{key[:70]!r} is not a valid label name", fix=fix)
        return value

    @model_validator(mode="after")
    def _parts_fit(self) -> Environment:
        region = self.region
        if self.network.name and region not in self.network.subnetworks:
            fix = f"add it, as in network.subnetworks: {{{region}: NAME}}"
            raise Refused(f"network.subnetworks has none for {region}", fix=fix)
        if self.location != region and region_of(self.location) != region:
            fix = f"set cluster.location to {region}, or to one of its zones"
            raise Refused(f"the cluster in {self.location} is in another region than {self.zone}", fix=fix)
        for nodes in self.hosts.values():
            fitting = machines.family_of(nodes.machine()).data_disks
            if self.disk is not None and self.disk.type not in fitting:
                kind = nodes.accelerator if isinstance(nodes, Slice) else nodes.machine_type
                fix = f"set disk.type: {' or '.join(fitting)}"
                raise Refused(f"nodes of {kind} cannot attach {self.disk.type}", fix=fix)
            for zone, _ in nodes.placements(self.zone):
                if self.disk is not None and zone != self.zone:
                    fix = f"set their zone to {self.zone}, or remove disk"
                    raise Refused(f"nodes in {zone} cannot attach the disk, which is in {self.zone}", fix=fix)
                if region_of(zone) != region:
                    fix = f"set their zone to one in {region}; another environment can be in {region_of(zone)}"
                    raise Refused(f"nodes in {zone} are in another region than their cluster in {region}", fix=fix)
        return self

    @property
    def hosts(self) -> dict[str, Slice | Group]:
        """The slice and the group, by their kind."""
        return {hosts.kind: hosts for hosts in (self.slice, self.group) if hosts is not None}

    @property
    def accelerators(self) -> list[Accelerator]:
        """Kinds of device of its jobs, with an image for each."""
        return [nodes.computes_on for nodes in self.hosts.values()] or ["cpu"]

    @property
    def region(self) -> str:
        return region_of(self.zone)

    @property
    def location(self) -> str:
        """Zone or region of the cluster."""
        return self.cluster.location or self.zone

    @property
    def cluster_path(self) -> str:
        """The cluster, as GKE's API names it."""
        return f"projects/{self.project}/locations/{self.location}/clusters/{self.name}"

    @property
    def state(self) -> str:
        """Name of the bucket that holds Terraform's state."""
        return self.state_bucket or f"{self.project}-maskwright-state"

    @property
    def prefix(self) -> str:
        """Prefix of Terraform's state in its bucket."""
        return f"env/{self.name}"

    @property
    def dataset_bucket(self) -> str:
        return f"{self.project}-{self.name}-dataset"

    @property
    def runs_bucket(self) -> str:
        return f"{self.project}-{self.name}-runs"

    @property
    def built_image(self) -> str:
        """Name of the image that `maskwright image` builds, without its tag."""
        return f"{self.region}-docker.pkg.dev/{self.project}/{self.name}/maskwright"

    @property
    def image_mirror(self) -> str:
        """The repository through which nodes pull images of registry.k8s.io."""
        return f"{self.region}-docker.pkg.dev/{self.project}/{self.name}-k8s"

    def account(self, name: Literal["train", "nodes"]) -> str:
        """E-mail of the service account of jobs, or of nodes."""
        return f"{self.name}-{name}@{self.project}.iam.gserviceaccount.com"

    @property
    def network_path(self) -> str:
        name = self.network.name or f"{self.name}-net"
        return f"projects/{self.network.project or self.project}/global/networks/{name}"

    @property
    def subnetwork_path(self) -> str:
        name = self.network.subnetworks.get(self.region, f"{self.name}-{self.region}")
        return f"projects/{self.network.project or self.project}/regions/{self.region}/subnetworks/{name}"

    def disk_name(self, generation: int) -> str:
        return f"{self.name}-data-{generation}"


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def read_environment(location: str) -> Environment:
    """Raises `ConfigError` (exit 2), also for a YAML with a secret, since all of it is stored in Terraform's state."""
    values = read_yaml(location, "start with `name:`, `project:` and `zone:`")
    if "data" in values and "schedule" in values and "project" not in values:
        raise ConfigError("is the YAML of a run, not of an environment", where=location, fix="see docs/google-cloud.md")
    return build_environment(values, location)


def build_environment(values: dict[str, Any], where: str) -> Environment:
    if redact(text := str(values)) != text:
        fix = "remove it; jobs have a service account, and `submit --env NAME` passes a variable by its name"
        raise ConfigError("holds a secret", where=where, fix=fix)
    try:
        return Environment.model_validate(values)
    except ValidationError as error:
        known = "see the keys in `maskwright schema environment`"
        raise Guide(Environment, "the environment", known).explain(error, where) from None


def read_script(location: str, script: str) -> str:
    """The content of a script that the YAML at `location` names. Raises `InputError` if it cannot be read."""
    path = script if storage.is_url(script) else os.path.join(os.path.dirname(location), script)
    with storage.open_binary(path) as file:
        text = file.read().decode("utf-8", "replace")
    if redact(text) != text:
        raise ConfigError("holds a secret", where=path, fix="read it in the script, from Secret Manager")
    return text
