"""The YAML in which a user describes one environment on Google Cloud.

Unknown keys are refused. A part that is `null` does not exist, so a user deletes a part by editing the file. All names
begin with the environment's own, so several environments can stand side by side in a project.
"""

from __future__ import annotations

import hashlib
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
ZONE = r"^[a-z]+-[a-z]+[0-9]+-[a-z]$"
BUCKET = r"^gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^*?#\s]*)?$"
MOST_FLEX_START_HOURS = 168
"""Seven days: docs.cloud.google.com/compute/docs/instances/about-flex-start-vms"""

Zone = Annotated[str, Field(pattern=ZONE, examples=["us-east5-b"])]
Project = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$", examples=["my-project"])]
Region = Annotated[str, Field(pattern=r"^[a-z]+-[a-z]+[0-9]+$", examples=["us-east5"])]
NetworkName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", examples=["shared-vpc"])]
Model = Literal["STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"]
Hours = Annotated[float, Field(gt=0.0, le=8_760.0)]


class Network(Section):
    """Network of the hosts and the NFS share. The environment creates one, unless `name` names one of yours."""

    nat: bool | None = None
    """Gateway through which hosts install packages from the internet, since they have no public addresses. Google's own
    services are reached without it. When not set, it is created only for hosts that need it: TPUs on Google's image,
    which lacks docker. It cannot be set for a network of yours, in which nothing is created."""
    name: NetworkName | None = None
    """An existing network for the hosts and the NFS share. Nothing is created in it, and it is never deleted."""
    project: Project | None = None
    """Host project of that network (Shared VPC). When not set, the environment's own project."""
    subnetworks: dict[Region, NetworkName] = Field(default_factory=dict)
    """Subnetwork of that network in each region that hosts may be in, as in {us-east5: training}."""

    @model_validator(mode="after")
    def _is_new_or_existing(self) -> Network:
        if self.name is None and (self.project is not None or self.subnetworks):
            fix = "add network.name, or remove project and subnetworks"
            raise Refused("network.project and network.subnetworks need an existing network", fix=fix)
        if self.name is not None and self.nat is not None:
            fix = "remove network.nat; if hosts need the internet, the owner of the network creates a gateway"
            raise Refused(
                f"network.nat cannot be set: nothing is created in {self.name}, which exists already", fix=fix
            )
        return self


class Nfs(Section):
    """A Filestore share. Every host mounts it as MOUNT_POINT/nfs_share."""

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
    """A disk that is seeded once from a bucket, then attached read-only to every host as MOUNT_POINT/shared_pd."""

    type: Literal["hyperdisk-ml", "pd-balanced", "pd-ssd", "pd-standard"] = "hyperdisk-ml"
    """Type of the disk. A host's machine type decides which types it can attach; other pairs are refused."""
    size_gb: Annotated[int, Field(ge=10, le=65_536)]
    """Size in GiB. Changing it creates another disk, which has to be seeded again."""
    source: Annotated[str, Field(pattern=BUCKET, examples=["gs://bucket/folder"])]
    """gs:// folder that `env seed` copies to the disk."""
    prepare: str | None = None
    """Script (path relative to this YAML) that `env seed` runs after copying, to prepare the data on the disk."""
    seeder_machine_type: str | None = None
    """Machine type of the temporary machine that copies. When not set, n2-standard-8, or c3-standard-8 for
    hyperdisk-ml."""

    @property
    def seeder_machine(self) -> str:
        """N1, N2 and N2D attach no Hyperdisk: docs.cloud.google.com/compute/docs/disks/hyperdisks"""
        return self.seeder_machine_type or ("c3-standard-8" if self.type == "hyperdisk-ml" else "n2-standard-8")


class Fallback(Section):
    zone: Zone | None = None
    """Zone of the hosts. When not set, the zone of the slice or group."""
    provisioning_model: Model = "SPOT"
    """STANDARD (on demand), SPOT, FLEX_START or RESERVATION_BOUND."""


class Placement(NamedTuple):
    """A zone and provisioning model for hosts: a `Fallback` whose zone is resolved."""

    zone: str
    model: Model


class _Hosts(Section):
    provisioning_model: Model = "STANDARD"
    """STANDARD (on demand), SPOT, FLEX_START or RESERVATION_BOUND."""
    reservation: str | None = None
    """Name of the reservation, for RESERVATION_BOUND."""
    max_run_hours: Hours | None = None
    """Hours after which Google deletes the hosts. FLEX_START requires it (168 at most)."""
    image: str | None = None
    """Boot image or family, as projects/P/global/images/family/F. When not set, maskwright's choice for the machine."""
    zone: Zone | None = None
    """Zone of the hosts. When not set, the environment's own."""
    fallbacks: list[Fallback] = Field(default_factory=list)
    """Zones and models that the watcher tries next when no machines are available."""

    @property
    def queued(self) -> bool:
        """Whether the hosts are a queued resource of the TPU API, which Terraform does not create."""
        return False

    def placements(self, zone: str) -> list[Placement]:
        """The hosts' own place, then the fallbacks. `zone` is the environment's."""
        home = self.zone or zone
        others = [Placement(fallback.zone or home, fallback.provisioning_model) for fallback in self.fallbacks]
        return [Placement(home, self.provisioning_model), *others]

    def place(self, zone: str, number: int) -> Placement:
        """The placement with this number. Numbers wrap around."""
        placements = self.placements(zone)
        return placements[number % len(placements)]

    def models(self) -> set[str]:
        return {self.provisioning_model, *(fallback.provisioning_model for fallback in self.fallbacks)}

    @model_validator(mode="after")
    def _models_have_their_options(self) -> _Hosts:
        models = self.models()
        if "FLEX_START" in models and not 0 < (self.max_run_hours or 0) <= MOST_FLEX_START_HOURS:
            fix = f"add max_run_hours: {MOST_FLEX_START_HOURS}, or less"
            raise Refused(f"FLEX_START requires max_run_hours, up to {MOST_FLEX_START_HOURS}", fix=fix)
        if ("RESERVATION_BOUND" in models) != (self.reservation is not None):
            fix = "set both, as in provisioning_model: RESERVATION_BOUND and reservation: NAME, or neither"
            raise Refused("RESERVATION_BOUND and reservation go together", fix=fix)
        return self


class Slice(_Hosts):
    """The hosts of one TPU slice."""

    kind: ClassVar = "slice"

    accelerator: tpus.TpuKind
    """Kind of TPU. v2 to v4 and v5e are created as queued resources of the TPU API, later kinds as instance groups."""
    topology: str
    """Chips along each side, such as 4x4 or 2x2x4."""
    machine_type: str | None = None
    """Machine type of a host. When not set, it follows from the topology. For v6e and 2x4 it chooses between one host
    of 8 chips and two of 4."""
    runtime_version: str | None = None
    """Software version of the TPU API, for v2, v3, v4 and v5e only. When not set, maskwright's choice for the kind."""

    @property
    def queued(self) -> bool:
        return bool(tpus.TPUS[self.accelerator].runtime_version)

    @property
    def chips(self) -> int:
        return tpus.chips(self.topology)

    @property
    def devices(self) -> int:
        """Number of devices, as JAX counts them."""
        return tpus.devices(self.accelerator, self.topology)

    @property
    def hosts(self) -> int:
        return self.chips // machines.chips_per_host(self.accelerator, self.topology, self.machine_type)

    def machine(self) -> str:
        """Machine type of a host, or the accelerator type of a queued resource."""
        if self.queued:
            return tpus.accelerator_type(self.accelerator, self.topology)
        size = machines.chips_per_host(self.accelerator, self.topology, self.machine_type)
        return tpus.TPUS[self.accelerator].machines[size]

    @model_validator(mode="after")
    def _is_a_slice(self) -> Slice:
        if wrong := tpus.refusal(f"{self.accelerator}:{self.topology}"):
            raise Refused(wrong[0], fix=wrong[1])
        machines.chips_per_host(self.accelerator, self.topology, self.machine_type)
        if self.runtime_version is not None and not self.queued:
            raise Refused("runtime_version is for v2, v3, v4 and v5e", fix=f"remove it; {self.accelerator} takes image")
        if self.queued and (self.image is not None or self.max_run_hours is not None):
            fix = f"remove them; {self.accelerator} takes runtime_version"
            raise Refused(f"image and max_run_hours cannot be set for {self.accelerator}", fix=fix)
        if self.queued and "FLEX_START" in self.models():
            raise Refused(f"{self.accelerator} has no FLEX_START", fix="use STANDARD, SPOT or RESERVATION_BOUND")
        return self


class Group(_Hosts):
    """A group of machines with GPUs, or without."""

    kind: ClassVar = "group"

    machine_type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*(-[a-z0-9]+){1,3}$", examples=["g2-standard-48"])]
    """Machine type of the hosts, with GPUs (g2, a2, a3, a4) or without."""
    size: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Number of hosts."""

    @property
    def hosts(self) -> int:
        return self.size

    def machine(self) -> str:
        return self.machine_type

    @property
    def gpus(self) -> int:
        """Number of GPUs in each host."""
        return machines.GPUS.get(self.machine_type, ("", 0))[1]

    @model_validator(mode="after")
    def _is_known(self) -> Group:
        family = machines.family_of(self.machine_type)
        if family.accelerator == "gpu" and not self.gpus:
            near = [name for name in machines.GPUS if machines.family_of(name) is family]
            fix = f"use one of {', '.join(near or machines.GPUS)}"
            raise Refused(f"{self.machine_type} is not a known machine type", fix=fix)
        return self


class Host(Section):
    """What every host runs."""

    container: str | None = None
    """Container image that every host runs. When not set, the one that `env image` builds."""
    setup: str | None = None
    """Script (path relative to this YAML) that every host runs before its first job."""
    idle_minutes: Annotated[int, Field(ge=1)] | None = 60
    """Minutes after which a host without a job powers off; null means never."""


class Environment(Section):
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,18}[a-z0-9]$", examples=["lab-1"])]
    """Name of the environment, and the prefix of the names of all its parts; lower case, at most 20 characters."""
    project: Project
    """ID of the Google Cloud project."""
    zone: Zone
    """Zone of the disk, of NFS, and of hosts that name no other zone."""
    labels: dict[str, Annotated[str, Field(pattern=r"^[a-z0-9_-]{0,63}$")]] = Field(default_factory=dict)
    """Labels of every resource that can carry them, besides maskwright-environment."""
    state_bucket: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]$", examples=["my-state"])] | None = (
        None
    )
    """Bucket of Terraform's state. When not set, PROJECT-maskwright-state, which a project's environments share."""
    bucket_location: str | None = None
    """Location of the buckets. When not set, the zone's region."""
    mount_point: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", examples=["/mnt/data"])] = "/mnt/common"
    """Folder on hosts in which nfs_share and shared_pd are mounted."""
    network: Network = Network()
    nfs: Nfs | None = None
    disk: Disk | None = None
    slice: Slice | None = None
    group: Group | None = None
    host: Host = Host()

    @field_validator("labels")
    @classmethod
    def _labels_are_labels(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or key == ENVIRONMENT_LABEL:
                fix = (
                    f"begin it with a lower-case letter; up to 63 of a-z, 0-9, _ and -, other than {ENVIRONMENT_LABEL}"
                )
                raise Refused(f"{key[:70]!r} is not a valid label name", fix=fix)
        return value

    @model_validator(mode="after")
    def _parts_fit(self) -> Environment:
        if self.needs_docker and self.network.nat is False:
            raise Refused(
                "network.nat is false, but the slice's hosts install docker",
                fix="set slice.image to one that has it, or remove network.nat",
            )
        missing = [region for region in self.regions if self.network.name and region not in self.network.subnetworks]
        if missing:
            fix = f"add it, as in network.subnetworks: {{{missing[0]}: NAME}}"
            raise Refused(f"network.subnetworks has none for {missing[0]}, where hosts may be", fix=fix)
        for hosts in self.hosts.values():
            fitting = machines.family_of(hosts.machine()).data_disks
            if self.disk is not None and self.disk.type not in fitting:
                kind = hosts.accelerator if isinstance(hosts, Slice) else hosts.machine_type
                fix = f"set disk.type: {' or '.join(fitting)}"
                raise Refused(f"hosts of {kind} cannot attach {self.disk.type}", fix=fix)
            for zone, _ in hosts.placements(self.zone):
                if self.disk is not None and zone != self.zone:
                    fix = f"set their zone to {self.zone}, or remove disk"
                    raise Refused(f"hosts in {zone} cannot attach the disk, which is in {self.zone}", fix=fix)
                if self.nfs is not None and region_of(zone) != self.region:
                    fix = f"set their zone to one in {self.region}, or remove nfs"
                    raise Refused(f"hosts in {zone} are in another region than NFS, which is in {self.zone}", fix=fix)
        return self

    @property
    def hosts(self) -> dict[str, Slice | Group]:
        """The slice and the group, by their kind."""
        return {hosts.kind: hosts for hosts in (self.slice, self.group) if hosts is not None}

    @property
    def queued(self) -> bool:
        """Whether the slice is a queued resource of the TPU API."""
        return self.slice is not None and self.slice.queued

    @property
    def region(self) -> str:
        return region_of(self.zone)

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
    def jobs_bucket(self) -> str:
        """Name of the bucket with the orders of hosts, which they cannot write, and their reports."""
        return f"{self.project}-{self.name}-jobs"

    @property
    def built_image(self) -> str:
        """Name of the image that `env image` builds, without its tag."""
        return f"{self.region}-docker.pkg.dev/{self.project}/{self.name}/maskwright"

    @property
    def regions(self) -> list[str]:
        """Regions that hosts may be in, the environment's own first."""
        placements = [place for hosts in self.hosts.values() for place in hosts.placements(self.zone)]
        return list(dict.fromkeys([self.region, *(region_of(place.zone) for place in placements)]))

    @property
    def nat(self) -> bool:
        wanted = self.needs_docker if self.network.nat is None else self.network.nat
        return wanted and self.network.name is None

    @property
    def needs_docker(self) -> bool:
        """Whether hosts install docker. Google's image for TPUs of Compute Engine lacks it: docs/google-cloud-hosts.md
        has the source."""
        return self.slice is not None and not self.queued and self.slice.image is None

    @property
    def network_path(self) -> str:
        name = self.network.name or f"{self.name}-net"
        return f"projects/{self.network.project or self.project}/global/networks/{name}"

    def subnetwork_path(self, region: str) -> str:
        name = self.network.subnetworks.get(region, f"{self.name}-{region}")
        return f"projects/{self.network.project or self.project}/regions/{region}/subnetworks/{name}"

    def all_labels(self) -> dict[str, str]:
        return {ENVIRONMENT_LABEL: self.name, **self.labels}

    def disk_name(self, generation: int) -> str:
        return f"{self.name}-data-{generation}"


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def read_environment(location: str) -> Environment:
    """Raises `ConfigError` (exit 2), also for a YAML that holds a secret: all of it ends up in Terraform's state."""
    values = read_yaml(location, "start with `name:`, `project:` and `zone:`")
    if "data" in values and "schedule" in values and "project" not in values:
        raise ConfigError("is the YAML of a run, not of an environment", where=location, fix="see docs/google-cloud.md")
    return build_environment(values, location)


def build_environment(values: dict[str, Any], where: str) -> Environment:
    if redact(text := str(values)) != text:
        fix = "remove it: hosts have a service account, and `submit --env NAME` passes a variable by its name"
        raise ConfigError("holds a secret", where=where, fix=fix)
    try:
        return Environment.model_validate(values)
    except ValidationError as error:
        known = "`maskwright env schema --markdown` lists the keys and what each takes"
        raise Guide(Environment, "the environment", known).explain(error, where) from None


def read_script(location: str, script: str | None) -> tuple[str, bytes] | None:
    """sha256 and content of a script that the YAML at `location` names; None without one. Raises `InputError` if it
    cannot be read."""
    if script is None:
        return None
    folder = os.path.dirname(location)
    path = script if storage.is_url(script) or os.path.isabs(script) else os.path.join(folder, script)
    with storage.open_binary(path) as file:
        content = file.read()
    if redact(text := content.decode("utf-8", "replace")) != text:
        raise ConfigError("holds a secret", where=path, fix="read it on the host, from Secret Manager")
    return hashlib.sha256(content).hexdigest(), content
