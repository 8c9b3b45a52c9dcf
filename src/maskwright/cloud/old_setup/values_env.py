"""Turn the older Cloud Build set-up's values.env into an environment: each variable is mapped, defaulted or refused.

Its TPUs, v2 and v3, are old. Which newer kind replaces them is a decision about money and memory, so the user makes it.
Until then, the YAML has `slice: null`, and the offers as comments.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import yaml

from maskwright.cloud import machines
from maskwright.cloud.environment import Environment, build_environment, region_of
from maskwright.config.settings import parse_yaml
from maskwright.core.console import several
from maskwright.core.errors import ConfigError
from maskwright.core.shell import Variable
from maskwright.machine import tpus

Fate = Literal["mapped", "defaulted", "refused", "unknown"]


@dataclass(frozen=True)
class _Script:
    """A variable that names a script."""

    key: str
    """Key of the YAML for a user's own script."""
    defaults: tuple[str, ...]
    """Paths of the set-up's own scripts, without a leading ../"""
    untouched: str
    """The first 12 digits of their git object IDs, in all their versions."""
    folder: str
    """Folder to which the paths are relative."""
    done: str
    """Why the set-up's own script is no longer needed."""
    contract: str
    """What a user's own script can rely on."""


SCRIPTS = {
    "MIG_SETUP_SCRIPT": _Script(
        "host.setup",
        ("env_setup/scripts/setup_mig.sh", "env_setup/scripts/setup_master.sh", "models/common/setup_master.sh"),
        "7472243045f2 0166580cc3a8 14885375d100 2bea5527e063 3b95598d6b9f 47edca34b329 80fc01c57c7e 8be8644de19b "
        "bae7380e0beb c88bbce3a57f d1e0ba90d37c 5324b6712412 4e866a14ea90",
        "",
        "every host, the image and `submit` do what it did (mounts, code, start)",
        "a path beside the YAML; it runs as root on each host after mounting, and there is no /tmp/values.env",
    ),
    "MIG_SEED_DATA_PREP_SCRIPT": _Script(
        "disk.prepare",
        tuple(f"roberta/env_setup/{name}_shared_disk_pd.sh" for name in ("data_prep_seed", "seed_data_prep")),
        "73dda83efa68 147abd0b1589",
        "models/",
        "`env seed` formats, mounts and copies",
        "it runs as `bash SCRIPT SOURCE DISK`, after formatting, mounting and copying; there is no /tmp/values.env",
    ),
}
TIERS = {"STANDARD": "BASIC_HDD", "PREMIUM": "BASIC_SSD", "BASIC_HDD": "BASIC_HDD", "BASIC_SSD": "BASIC_SSD"}
HBM_GIB = {"v2": 16, "v3": 32, "v5e": 16, "v6e": 32, "v5p": 95, "tpu7x": 192, "v4": 32}
"""Memory of a chip: docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm"""
OFFERED = ("v6e", "v5e", "v5p", "tpu7x")

IMAGES_GONE = "images of torch-xla are gone; slice.image and group.image name another"
BY_IAP = "hosts are reached only through IAP"
REFUSED = {
    "GCS_RAW_DATASET": "was used nowhere",
    "TPU_PYTORCH_VERSION": "the software is the container's, pinned by its version; PyTorch/XLA has ended. "
    "slice.runtime_version is for v2, v3, v4 and v5e, and has a default",
    "DOCKER_CONTAINER": "was used nowhere; hosts always run host.container, which `env image` builds",
    "GCE_IMAGE_VERSION": "nightly images of torch-xla are gone; slice.image and group.image name another",
    **dict.fromkeys(("SOURCE_IMAGE_FAMILY", "SOURCE_IMAGE_PROJECT", "SOURCE_IMAGE_BASE"), IMAGES_GONE),
    **dict.fromkeys(("BOOT_DISK_SIZE_GB", "DISK_SIZE_GB"), "boot disks have the size that the container needs"),
    "NETWORK": "every environment creates a network, without public addresses; network.name names another",
    **dict.fromkeys(("RED", "GREEN", "NC"), "a colour of messages"),
    "TPU_CIDR_BLOCK": "was never set; Google chooses addresses",
    "MIG_MASTER": "there is no master; hosts agree on host 0 through the bucket",
    "SHARED_NFS_IP": "comes from Terraform, and reaches hosts by metadata",
    "SHARED_PD_DISK_NAME": "the disk is NAME-data-GENERATION; a new size is a new generation",
    **dict.fromkeys(("PROTOCOL", "PORTS"), BY_IAP),
    "SOURCE_RANGES": f"{BY_IAP}; 0.0.0.0/0 is never opened",
    "TAGS": "firewall rules use the environment's service account and network",
}
"""Variables without a successor, and the reason. The last eight are from values.env.auto."""


NETWORK_PATH = re.compile(r"(?:https://[^/]+/compute/v1/)?projects/(?P<project>[^/]+)/global/networks/(?P<name>[^/]+)")
"""Path of a network, which may be in another project."""


@dataclass(frozen=True)
class _Row:
    """What becomes of a variable."""

    variable: str
    value: str
    fate: Fate
    key: str = ""
    """Key of the YAML that replaces it."""
    becomes: Any = None
    """Value of that key."""
    reason: str = ""


@dataclass(frozen=True)
class Imported:
    rows: list[_Row]
    text: str
    environment: Environment
    offers: list[str] = field(default_factory=list)
    """Slices to choose from, as YAML; empty if none has to be chosen."""

    def as_json(self) -> dict[str, Any]:
        return {"rows": [asdict(row) for row in self.rows], "yaml": self.text, "offers": self.offers}


class _Import:
    """Fills `values` (dotted keys) and `rows`, variable by variable."""

    def __init__(
        self,
        variables: Mapping[str, Variable],
        accelerator: str | None,
        with_group: bool,
        where: str,
        read: Callable[[str], bytes | None],
    ) -> None:
        self.read = read
        self.variables, self.accelerator, self.with_group, self.where = variables, accelerator, with_group, where
        self.rows: list[_Row] = []
        self.values: dict[str, Any] = {}
        self.offers: list[str] = []
        self.group: str | None = None

    def text(self, name: str) -> str:
        """Its value without surrounding spaces, which the older values.env had; empty if it is not set."""
        return self.variables[name].value.strip() if name in self.variables else ""

    def fails(self, name: str, what: str, fix: str) -> ConfigError:
        line = f":{self.variables[name].line}" if name in self.variables else ""
        return ConfigError(f"{name} {what}", where=self.where + line, fix=fix)

    def needed(self, name: str) -> str:
        if not self.text(name):
            raise self.fails(name, "is not set", f"add {name}=… to the file")
        return self.text(name)

    def mapped(self, name: str, key: str, value: Any, reason: str = "") -> None:
        self.values[key] = value
        self.rows.append(_Row(name, self.text(name), "mapped", key, value, reason))

    def defaulted(self, name: str, reason: str, key: str = "", value: Any = None) -> None:
        if key:
            self.values[key] = value
        self.rows.append(_Row(name, self.text(name), "defaulted", key, value, reason))

    def refused(self, name: str, reason: str) -> None:
        self.rows.append(_Row(name, self.text(name), "refused", reason=reason))

    def number(self, name: str, default: int) -> int:
        text = self.text(name) or str(default)
        if not re.fullmatch(r"\d{1,6}", text):
            raise self.fails(name, f"is not a number: {text[:20]!r}", "give whole GB")
        return int(text)

    def script(self, name: str) -> None:
        """Drop the set-up's own script, and refuse an edited one: it must not be lost, and cannot run as it is."""
        script, path = SCRIPTS[name], re.sub(r"^(\.{1,2}/)+", "", self.text(name))
        place = path if path.startswith(script.folder) else f"{script.folder}{path}"
        if not path:
            return self.defaulted(name, "is empty: no script") if name in self.variables else None
        if not place.removeprefix(script.folder).endswith(script.defaults):
            return self.mapped(name, script.key, place, script.contract)
        content = self.read(place)
        if content is None:
            unknown = f"{place} is not beside {self.where.rpartition('/')[2]}, so whether it was edited is unknown"
            return self.defaulted(name, f"{script.done}; {unknown}")
        if not _untouched(content, script):
            fix = "move your additions into a separate script and name that (docs/from-values-env.md, its own scripts)"
            raise self.fails(name, f"names {place}, which was edited since the set-up wrote it", fix)
        return self.defaulted(name, f"{script.done}; {place} is unchanged")

    # ---- a method for each group of variables ------------------------------------------------------------------

    def place(self) -> None:
        build = self.needed("ENV_BUILD_NAME")
        name = re.sub(r"[^a-z0-9-]+", "-", build.lower()).strip("-")
        name = name if name[:1].isalpha() else f"env-{name}"
        reason = "" if name == build else "names begin with a letter and have lower-case letters, digits and hyphens"
        self.mapped("ENV_BUILD_NAME", "name", name, reason)
        self.mapped("PROJECT_ID", "project", self.needed("PROJECT_ID"))
        self.mapped("ZONE", "zone", self.needed("ZONE"))
        if "REGION" in self.variables:
            region = region_of(self.values["zone"])
            if self.text("REGION") in ("", region):
                self.defaulted("REGION", f"is the zone's: {region}")
            else:
                self.refused("REGION", f"the zone is in {region}; one zone has one region")
        if mount := self.text("MOUNT_POINT"):
            spaces = "without the spaces at its end" if mount != self.variables["MOUNT_POINT"].value else ""
            self.mapped("MOUNT_POINT", "mount_point", mount.rstrip("/") or "/", spaces)

    def network(self) -> None:
        """`default` chooses no network."""
        if (text := self.text("NETWORK")) not in ("", "default"):
            path = NETWORK_PATH.fullmatch(text)
            network, host = (path["name"], {"project": path["project"]}) if path else (text, {})
            values = {"name": network, **host, "subnetworks": {region_of(self.values["zone"]): network}}
            why = "nothing is created in it; correct network.subnetworks if its subnetwork has another name"
            self.mapped("NETWORK", "network", values, why)

    def nfs(self) -> None:
        if not any(name in self.variables for name in ("SHARED_FS", "SHARED_FS_CAPACITY", "SHARED_FS_TIER")):
            return
        self.values["nfs"] = {}
        if share := self.text("SHARED_FS"):
            self.mapped("SHARED_FS", "nfs.share", share)
        tier = self.text("SHARED_FS_TIER") or "STANDARD"
        if tier not in TIERS:
            raise self.fails("SHARED_FS_TIER", f"is {tier[:20]!r}", f"one of {', '.join(TIERS)}")
        if "SHARED_FS_TIER" in self.variables:
            self.mapped("SHARED_FS_TIER", "nfs.tier", TIERS[tier], "Google's name for it now")
        if "SHARED_FS_CAPACITY" in self.variables:
            self.mapped("SHARED_FS_CAPACITY", "nfs.capacity_gb", self.number("SHARED_FS_CAPACITY", 1024))

    def slice(self) -> None:
        name, accelerator = "TPU_ACCELERATOR_TYPE", self.accelerator
        if not (kind_text := self.text(name)):
            if name in self.variables:
                self.defaulted(name, "is empty: no slice")
            return
        if (known := tpus.kind_and_chips(kind_text)) is None:
            fix = "as v3-32, v4-32, v5litepod-16, v5p-32 or v6e-16"
            raise self.fails(name, f"is not a kind of TPU and a size: {kind_text[:20]!r}", fix)
        kind, chips = known
        chosen = accelerator or (None if kind in ("v2", "v3") else kind)
        if chosen is None:
            self.offers = [
                _slice_yaml(name, chips) for name in (*OFFERED, kind) if chips in tpus.topologies_by_chips(name)
            ]
            if not self.offers:
                raise self.fails(name, f"has {chips} chips, which no kind has", "use a power of two, up to 1024 chips")
            offer = f"{kind} is old, and newer kinds have other names: choose a slice below, or give --accelerator"
            return self.defaulted(name, offer, "slice", None)
        if chips not in tpus.topologies_by_chips(chosen):
            sizes = ", ".join(str(size) for size in tpus.topologies_by_chips(chosen))
            raise self.fails(name, f"has {chips} chips; {chosen} comes with {sizes}", "give another --accelerator")
        reason = f"{chips} chips of {kind}, replaced by --accelerator {chosen}" if accelerator else ""
        self.mapped(name, "slice", {"accelerator": chosen, "topology": tpus.topologies_by_chips(chosen)[chips]}, reason)

    def hosts(self) -> None:
        machine = self.text("MACHINE_TYPE")
        match = re.search(r"-(\d+)$", self.text("TPU_ACCELERATOR_TYPE"))
        size = max(1, int(match.group(1)) // 8) if match else 1
        group = {"machine_type": machine, "size": size}
        cores = "cores / 8, as the instance group had"
        if machine and (self.with_group or not match):
            self.mapped("MACHINE_TYPE", "group", group, f"{several(size, 'host')}: {cores}")
        elif machine:
            self.group = _scalar(group)
            reason = f"the slice's own hosts run the code; --with-group keeps {several(size, 'machine')} too ({cores})"
            self.refused("MACHINE_TYPE", reason)
        self.script("MIG_SETUP_SCRIPT")

    def disk(self) -> None:
        source = re.sub(r"/\*+$", "", self.text("GCS_DATASET")).rstrip("/")
        if re.search(r"[*?\[]", source):
            fix = "move the files into a separate folder, and name that: gs://bucket/folder/*"
            raise self.fails("GCS_DATASET", f"names only a part of a folder: {source[:80]!r}", fix)
        if not source:
            for name in ("GCS_DATASET", "SHARED_PD_DISK_SIZE", "SHARED_PD_SIZE", "SHARED_PD_DISK_TYPE"):
                if name in self.variables:
                    self.defaulted(name, "without a data set there is no shared disk", "disk", None)
        else:
            self.mapped(
                "GCS_DATASET",
                "disk.source",
                source,
                "the whole folder; `env seed` checks first whether a run can read it",
            )
            sizes = [name for name in ("SHARED_PD_DISK_SIZE", "SHARED_PD_SIZE") if name in self.variables]
            for name in sizes[:1]:
                self.mapped(name, "disk.size_gb", self.number(name, 2055))
            for name in sizes[1:]:
                self.refused(name, f"{sizes[0]} gives the size")
            if not sizes:
                raise self.fails("SHARED_PD_DISK_SIZE", "is not set", "give the GB that the data set needs")
            self._disk_type()
        if "SHARED_PD_DISK_ATTACH" in self.variables:
            reason = "a disk is attached, read-only, once it is seeded"
            self.defaulted("SHARED_PD_DISK_ATTACH", reason)
        if source:
            self.script("MIG_SEED_DATA_PREP_SCRIPT")
        elif "MIG_SEED_DATA_PREP_SCRIPT" in self.variables:
            self.defaulted("MIG_SEED_DATA_PREP_SCRIPT", "without a data set there is no disk to prepare")

    def _disk_type(self) -> None:
        name, preferred = "SHARED_PD_DISK_TYPE", self.text("SHARED_PD_DISK_TYPE") or "hyperdisk-ml"
        kinds = [self.values["slice"]["accelerator"]] if self.values.get("slice") else []
        groups = [self.values["group"]["machine_type"]] if "group" in self.values else []
        if not kinds + groups and self.offers:
            kinds = ["v6e", "v5e"]  # those that may be chosen
        fitting = [set(machines.family_of(name).data_disks) for name in [*map(machines.machine_of, kinds), *groups]]
        possible = set(machines.SHARED_DISKS).intersection(*fitting)
        chosen = next((kind for kind in (preferred, *machines.SHARED_DISKS) if kind in possible), None)
        if chosen is None:
            fix = "leave --with-group out, or use v5e or v5p"
            raise self.fails(name, f"fits no host of {' and '.join(kinds + groups)}", fix)
        if name not in self.variables:
            self.values["disk.type"] = chosen
        elif chosen == preferred:
            self.mapped(name, "disk.type", chosen)
        else:
            self.defaulted(name, f"{' and '.join(kinds + groups)} cannot attach {preferred}", "disk.type", chosen)

    def rest(self) -> None:
        done = {row.variable for row in self.rows}
        for name in self.variables:
            if name in REFUSED and name not in done:
                self.refused(name, REFUSED[name])
            elif name not in done:
                self.rows.append(
                    _Row(name, self.text(name), "unknown", reason="is not a variable of values.env; left out")
                )


def _untouched(content: bytes, script: _Script) -> bool:
    """Whether it is a version of the set-up's script, by git's object ID. Ignores line endings, and the two values that
    its builds wrote."""
    for text in (content, re.sub(rb"(?m)^(PROJECT_ID|ENV_BUILD_NAME)=.*$", rb"\1=", content)):
        text = text.replace(b"\r\n", b"\n")
        name = hashlib.sha1(b"blob %d\0%b" % (len(text), text), usedforsecurity=False).hexdigest()
        if name[:12] in script.untouched.split():
            return True
    return False


def _slice_yaml(kind: str, chips: int) -> str:
    topology = tpus.topologies_by_chips(kind)[chips]
    hosts = chips // machines.chips_per_host(kind, topology)
    note = f"{chips} chips of {HBM_GIB[kind]} GiB in {several(hosts, 'host')}"
    note += "; its disks are pd-balanced" if kind in ("v2", "v3") else ""
    return f"slice: {{accelerator: {kind}, topology: {topology}}}  # {note}"


def import_values(
    variables: Mapping[str, Variable],
    where: str,
    *,
    accelerator: str | None = None,
    with_group: bool = False,
    read: Callable[[str], bytes | None] = lambda path: None,
) -> Imported:
    """`read`: the content of a file beside values.env, None if it does not exist. Raises `ConfigError` if the variables
    cannot become an environment. Reads nothing else and writes nothing."""
    work = _Import(variables, accelerator, with_group, where, read)
    for step in (work.place, work.network, work.nfs, work.slice, work.hosts, work.disk, work.rest):
        step()
    order = {name: number for number, name in enumerate(variables)}
    rows = sorted(work.rows, key=lambda row: order.get(row.variable, len(order)))
    text = _yaml(work, where)
    return Imported(rows, text, build_environment(parse_yaml(text, where), where), work.offers)


def _yaml(work: _Import, where: str) -> str:
    """Sections in the order of the environment's page, each key with the variable that it comes from."""
    sources = {row.key: row.variable for row in work.rows if row.key}
    lines = [f"# from {where.rpartition('/')[2]} by `maskwright env import`; docs/from-values-env.md explains it"]
    for section in ("name", "project", "zone", "mount_point", "network", "nfs", "disk", "slice", "group", "host"):
        keys = {key.partition(".")[2]: value for key, value in work.values.items() if key.startswith(f"{section}.")}
        if keys:
            lines.append(f"{section}:")
            lines += [_line(f"  {key}", value, sources.get(f"{section}.{key}")) for key, value in keys.items()]
        elif section in work.values:
            lines.append(_line(section, work.values[section], sources.get(section)))
        if section == "slice" and work.offers:
            kind = work.text("TPU_ACCELERATOR_TYPE")
            lines.append(f"# Newer kinds than {kind} have other names. Use one instead of null:")
            lines += [f"# {offer}" for offer in work.offers]
        if section == "group" and work.group:
            lines.append(f"# group: {work.group}  # MACHINE_TYPE; only for hosts besides the slice's")
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, variable: str | None) -> str:
    return f"{key}: {_scalar(value)}" + (f"  # {variable}" if variable else "")


def _scalar(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1_000)
    return text.strip().removesuffix("...").strip()


def table(rows: list[_Row]) -> str:
    lines = []
    for row in rows:
        result = f"{row.key}: {_scalar(row.becomes)}" if row.key else ""
        result += f"{'  (' if result else ''}{row.reason}{')' if result else ''}" if row.reason else ""
        lines.append(f"{row.fate:<9}  {f'{row.variable}={row.value}':<48}  {result}")
    return "\n".join(lines)
