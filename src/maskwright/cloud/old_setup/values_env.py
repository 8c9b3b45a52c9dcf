"""Turn the older Cloud Build set-up's values.env into an environment: each variable is mapped, defaulted or refused.

`CONVERSIONS` is the whole of it: a function for each variable. Its TPUs, v2 and v3, are not on GKE: the nearest kind
replaces them, and the row names it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import yaml

from maskwright.cloud import machines
from maskwright.cloud.environment import Environment, build_environment, region_of
from maskwright.config.settings import Refused, parse_yaml
from maskwright.core.errors import ConfigError
from maskwright.machine import tpus

NEAREST = {"v2": "v5e", "v3": "v6e"}
"""The kind of GKE with as much memory for a chip: docs.cloud.google.com/tpu/docs/system-architecture-tpu-vm"""
LARGE = ("v5p", "tpu7x")
"""Kinds with slices of more than 256 chips."""
TIERS = {"STANDARD": "BASIC_HDD", "PREMIUM": "BASIC_SSD", "BASIC_HDD": "BASIC_HDD", "BASIC_SSD": "BASIC_SSD"}
NETWORK_PATH = re.compile(r"(?:https://[^/]+/compute/v1/)?projects/(?P<project>[^/]+)/global/networks/(?P<name>[^/]+)")
OWN_SCRIPTS = (
    "setup_mig.sh",
    "setup_master.sh",
    "data_prep_seed_shared_disk_pd.sh",
    "seed_data_prep_shared_disk_pd.sh",
)
"""Names of the set-up's own scripts, in all its versions."""


class Result(NamedTuple):
    """The result for a variable."""

    fate: Literal["mapped", "defaulted", "refused", "unknown"]
    key: str = ""
    """Key of the YAML that replaces it."""
    becomes: Any = None
    reason: str = ""


Made = dict[str, Any]
"""Keys of the YAML so far, with dots."""
Convert = Callable[[Made, str], Result]
"""From the keys so far and the variable's value, without spaces around it. Raises `Refused` for a wrong value."""


# ---- one for each variable -----------------------------------------------------------------------------------------


def _to(key: str) -> Convert:
    return lambda made, text: Result("mapped", key, text) if text else Result("defaulted", reason="is empty")


def _refuse(reason: str) -> Convert:
    return lambda made, text: Result("refused", reason=reason)


def _name(made: Made, text: str) -> Result:
    name = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    name = name if name[:1].isalpha() else f"env-{name}"
    reason = "" if name == text else "a name begins with a letter; lower-case letters, digits and hyphens follow"
    return Result("mapped", "name", name, reason)


def _region(made: Made, text: str) -> Result:
    region = region_of(made["zone"])
    if text in ("", region):
        return Result("defaulted", reason=f"follows from the zone: {region}")
    return Result("refused", reason=f"the zone is in {region}; one zone has one region")


def _mount_point(made: Made, text: str) -> Result:
    return Result("mapped", "mount_point", text.rstrip("/") or "/")


def _network(made: Made, text: str) -> Result:
    """`default` chooses no network."""
    if text in ("", "default"):
        own = "every environment creates a network, without public addresses; network.name names another"
        return Result("refused", reason=own)
    path = NETWORK_PATH.fullmatch(text)
    if path is not None and path["project"] != made["project"]:
        fix = "import with NETWORK=default, then add network: with the ranges of the subnetwork (docs/google-cloud.md)"
        raise Refused("is a network of another project", fix=fix)
    name = path["name"] if path else text
    why = "existing; correct network.subnetworks if its subnetwork has another name"
    return Result("mapped", "network", {"name": name, "subnetworks": {region_of(made["zone"]): name}}, why)


def _tier(made: Made, text: str) -> Result:
    if (tier := text or "STANDARD") not in TIERS:
        raise Refused(f"is {tier[:20]!r}", fix=f"set one of {', '.join(TIERS)}")
    return Result("mapped", "nfs.tier", TIERS[tier], "Google's name for it now")


def _number(text: str, default: int) -> int:
    if not re.fullmatch(r"\d{1,6}", text or str(default)):
        raise Refused(f"is not a number: {text[:20]!r}", fix="give whole GB")
    return int(text or default)


def _capacity(made: Made, text: str) -> Result:
    return Result("mapped", "nfs.capacity_gb", _number(text, 1024))


def _slice(made: Made, text: str) -> Result:
    if not text:
        return Result("defaulted", reason="is empty: no slice")
    if (known := tpus.kind_and_chips(text)) is None:
        fix = "write it as v3-32, v4-32, v5litepod-16, v5p-32 or v6e-16"
        raise Refused(f"is not a kind of TPU and a size: {text[:20]!r}", fix=fix)
    kind, chips = known
    asked = made["--accelerator"] or NEAREST.get(kind, kind)
    kinds = [asked] if made["--accelerator"] or kind == asked else [asked, *LARGE]
    chosen = next((name for name in kinds if chips in tpus.topologies_by_chips(name)), None)
    if chosen is None:
        sizes = ", ".join(str(size) for size in tpus.topologies_by_chips(asked))
        raise Refused(f"has {chips} chips; {asked} comes with {sizes}", fix="give another --accelerator, or change it")
    reason = "" if chosen == kind else f"{chips} chips of {kind}, replaced by --accelerator {chosen}"
    if chosen != kind and not made["--accelerator"]:
        reason = f"GKE has no {kind}: {chips} chips of {chosen}, the nearest kind, replace it; or give --accelerator"
    return Result(
        "mapped", "slice", {"accelerator": chosen, "topology": tpus.topologies_by_chips(chosen)[chips]}, reason
    )


def _group(made: Made, text: str) -> Result:
    if "slice" in made:
        return Result("refused", reason="pods on the slice's own hosts run the code; `group:` in the YAML has others")
    return Result("mapped", "group", {"machine_type": text, "size": 1}) if text else Result("defaulted")


def _source(made: Made, text: str) -> Result:
    source = re.sub(r"/\*+$", "", text).rstrip("/")
    if re.search(r"[*?\[]", source):
        fix = "move the files into a separate folder, and name that: gs://bucket/folder/*"
        raise Refused(f"names only a part of a folder: {source[:80]!r}", fix=fix)
    if not source:
        return Result("defaulted", "disk", None, "without a data set there is no shared disk")
    return Result(
        "mapped", "disk.source", source, "the whole folder; `env seed` checks first whether a run can read it"
    )


def _of_disk(convert: Convert) -> Convert:
    """Without a data set there is no disk."""
    without = Result("defaulted", reason="without a data set there is no shared disk")
    return lambda made, text: convert(made, text) if "disk.source" in made else without


def _size(made: Made, text: str) -> Result:
    if "disk.size_gb" in made:
        return Result("refused", reason="SHARED_PD_DISK_SIZE gives the size")
    return Result("mapped", "disk.size_gb", _number(text, 2055))


def _disk_type(made: Made, text: str) -> Result:
    """The type, or one that the machines attach."""
    preferred = text or "hyperdisk-ml"
    kind = made["slice"]["accelerator"] if "slice" in made else made.get("group", {}).get("machine_type", "")
    machine = next(iter(tpus.TPUS[kind].machines.values()), "") if kind in tpus.TPUS else kind
    fitting = machines.family_of(machine).data_disks if machine else machines.SHARED_DISKS
    if preferred in fitting:
        return Result("mapped", "disk.type", preferred)
    chosen = next(name for name in machines.SHARED_DISKS if name in fitting)
    return Result("defaulted", "disk.type", chosen, f"{kind} cannot attach {preferred}")


def _own(text: str) -> bool:
    return not text or text.rpartition("/")[2] in OWN_SCRIPTS


def _setup(made: Made, text: str) -> Result:
    if _own(text):
        return Result("defaulted", reason="pods run the image, with the mounts; what you added to it: `submit --setup`")
    return Result("refused", reason="nodes run no script: packages go into an image, or `submit --setup` installs them")


def _prepare(made: Made, text: str) -> Result:
    if _own(text):
        return Result("defaulted", reason="`env seed` copies; what you added to it goes into a script: disk.prepare")
    path = re.sub(r"^(\.{1,2}/)+", "", text)
    path = path if path.startswith("models/") else f"models/{path}"
    return Result("mapped", "disk.prepare", path, "runs in the environment's image: bash SCRIPT SOURCE DISK")


IMAGES_GONE = "Google removed the images of torch-xla; jobs run the environment's image, or the one that `image:` names"
PRIVATE = "nodes accept no connections and have no public address; kubectl goes through Google's API"
CONVERSIONS: dict[str, Convert] = {
    "ENV_BUILD_NAME": _name,
    "PROJECT_ID": _to("project"),
    "ZONE": _to("zone"),
    "REGION": _region,
    "MOUNT_POINT": _mount_point,
    "NETWORK": _network,
    "SHARED_FS": _to("nfs.share"),
    "SHARED_FS_TIER": _tier,
    "SHARED_FS_CAPACITY": _capacity,
    "TPU_ACCELERATOR_TYPE": _slice,
    "MACHINE_TYPE": _group,
    "GCS_DATASET": _source,
    "SHARED_PD_DISK_SIZE": _of_disk(_size),
    "SHARED_PD_SIZE": _of_disk(_size),
    "SHARED_PD_DISK_TYPE": _of_disk(_disk_type),
    "MIG_SEED_DATA_PREP_SCRIPT": _of_disk(_prepare),
    "MIG_SETUP_SCRIPT": _setup,
    "SHARED_PD_DISK_ATTACH": lambda made, text: Result("defaulted", reason="jobs have the disk once it is seeded"),
    "GCS_RAW_DATASET": _refuse("was used nowhere"),
    "TPU_PYTORCH_VERSION": _refuse("the software is the image's, pinned by its version; PyTorch/XLA has ended"),
    "DOCKER_CONTAINER": _refuse("was used nowhere; jobs always run the image, which `maskwright image` builds"),
    **dict.fromkeys(("GCE_IMAGE_VERSION", "SOURCE_IMAGE_FAMILY"), _refuse(IMAGES_GONE)),
    **dict.fromkeys(("SOURCE_IMAGE_PROJECT", "SOURCE_IMAGE_BASE"), _refuse(IMAGES_GONE)),
    **dict.fromkeys(("BOOT_DISK_SIZE_GB", "DISK_SIZE_GB"), _refuse("GKE chooses the size of boot disks")),
    **dict.fromkeys(("RED", "GREEN", "NC"), _refuse("a colour of messages")),
    "TPU_CIDR_BLOCK": _refuse("unused: Google chooses addresses"),
    # values.env.auto, which was generated
    "MIG_MASTER": _refuse("not needed: JobSet names the first pod of a job"),
    "SHARED_NFS_IP": _refuse("not needed: jobs mount the share as a volume"),
    "SHARED_PD_DISK_NAME": _refuse("the disk's name is NAME-data-GENERATION; a new size is a new generation"),
    **dict.fromkeys(("PROTOCOL", "PORTS", "TAGS"), _refuse(PRIVATE)),
    "SOURCE_RANGES": _refuse(f"{PRIVATE}; 0.0.0.0/0 is never opened"),
}
"""In the order of conversion: later ones read the keys of earlier ones."""
NEEDED = ("ENV_BUILD_NAME", "PROJECT_ID", "ZONE")


# ---- the whole file ------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    variable: str
    value: str
    fate: str
    key: str
    becomes: Any
    reason: str


@dataclass(frozen=True)
class Imported:
    rows: list[Row]
    text: str
    environment: Environment

    def as_json(self) -> dict[str, Any]:
        return {"rows": [row._asdict() for row in self.rows], "yaml": self.text}


def import_values(variables: Mapping[str, tuple[str, int]], where: str, *, accelerator: str | None = None) -> Imported:
    """`variables`: values by name, each with the number of its line. Raises `ConfigError` if they cannot become an
    environment. Reads and writes nothing."""
    made: Made = {"--accelerator": accelerator}
    rows: dict[str, Row] = {}
    for name in (*CONVERSIONS, *variables):
        if name in rows or name not in (*variables, *NEEDED):
            continue
        value = variables[name][0].strip() if name in variables else ""
        try:
            if not value and name in NEEDED:
                raise Refused("is not set", fix=f"add {name}=… to the file")
            strange = Result("unknown", reason="is not a variable of values.env; left out")
            result = CONVERSIONS[name](made, value) if name in CONVERSIONS else strange
        except Refused as error:
            line = f":{variables[name][1]}" if name in variables else ""
            raise ConfigError(f"{name} {error}", where=where + line, fix=error.fix) from None
        rows[name] = Row(name, value, *result)
        if result.key:
            made[result.key] = result.becomes
    if "disk.source" in made:
        if "disk.size_gb" not in made:
            fix = "add it, with the size of the data set in GB"
            raise ConfigError("SHARED_PD_DISK_SIZE is not set", where=where, fix=fix)
        made.setdefault("disk.type", _disk_type(made, "").becomes)
    text = _yaml(made, {row.key: name for name, row in rows.items() if row.key}, where)
    environment = build_environment(parse_yaml(text, where), where)
    return Imported([rows[name] for name in variables], text, environment)


def _yaml(made: Made, sources: Mapping[str, str], where: str) -> str:
    """Sections in the order of the environment's page, each key with the variable that it comes from."""
    lines = [f"# from {where.rpartition('/')[2]} by `maskwright env import`; deploy/older-setup.md explains it"]
    for section in ("name", "project", "zone", "mount_point", "network", "nfs", "disk", "slice", "group"):
        keys = {key.partition(".")[2]: value for key, value in made.items() if key.startswith(f"{section}.")}
        if keys:
            lines.append(f"{section}:")
            lines += [_line(f"  {key}", value, sources.get(f"{section}.{key}")) for key, value in keys.items()]
        elif section in made:
            lines.append(_line(section, made[section], sources.get(section)))
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, variable: str | None) -> str:
    return f"{key}: {_scalar(value)}" + (f"  # {variable}" if variable else "")


def _scalar(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1_000)
    return text.strip().removesuffix("...").strip()


def table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        result = f"{row.key}: {_scalar(row.becomes)}" if row.key else ""
        result += f"{'  (' if result else ''}{row.reason}{')' if result else ''}" if row.reason else ""
        lines.append(f"{row.fate:<9}  {f'{row.variable}={row.value}':<48}  {result}")
    return "\n".join(lines)
