"""The record of an environment beside Terraform's state, in the same bucket: `env/NAME/record.json`.

Terraform's state says what exists. The record has the rest: which disk is the current one, whether it was seeded, which
placement of the hosts is in use, and which image was built last.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from maskwright import __version__
from maskwright.cloud.environment import Environment
from maskwright.core.errors import MaskwrightError
from maskwright.core.folder import Folder

FORMAT = 1
NAME = "record.json"
DISK_FIELDS = ("generation", "seeded", "disk_gb", "disk_type")
"""Fields under `disk` in the file."""
WANTED = "wanted.json"
"""File with the variables of Terraform that were wanted last."""


@dataclass(frozen=True)
class EnvironmentRecord:
    generation: int = 1
    """Number of the disk, counted from 1."""
    seeded: dict[str, Any] | None = None
    """Files and bytes that `env seed` counted on the disk; None before that."""
    disk_gb: int | None = None
    """Size of the disk of this generation, once it exists. Another size is another disk."""
    disk_type: str | None = None
    """Type of that disk. Another type is another disk too."""
    placement: dict[str, int] = field(default_factory=lambda: {"slice": 0, "group": 0})
    """Placements in use: by slice and group, the number in `placements` of its section."""
    queued_zone: str | None = None
    """Zone of the queued resource, which Terraform does not manage."""
    image: str | None = None
    """Image that `env image` built last, as REPOSITORY/maskwright:VERSION-SHA12@sha256:…"""

    def for_disk(self, environment: Environment) -> EnvironmentRecord:
        """The same record for the same disk. A disk of another size or type is a new one, not seeded yet."""
        disk = environment.disk
        if disk is None or (self.disk_gb, self.disk_type) == (disk.size_gb, disk.type):
            return self
        generation = self.generation + (self.disk_gb is not None)
        return replace(self, generation=generation, seeded=None, disk_gb=disk.size_gb, disk_type=disk.type)

    def built(self, environment: Environment) -> str | None:
        """The image by its digest, if it has this version and is for this environment. So a recreated host
        runs the same image as the others, whatever was built since."""
        name, _, digest = (self.image or "").partition("@")
        container, of_version = environment.host.container, f"{environment.built_image}:{__version__}-"
        if not digest or not (name == container if container else name.startswith(of_version)):
            return None
        folder, _, last = name.rpartition("/")
        return f"{folder}/{last.partition(':')[0]}@{digest}"

    def container(self, environment: Environment) -> str:
        """The image that hosts run. Before `env image`, it may not exist yet."""
        named = environment.host.container or f"{environment.built_image}:{__version__}"
        return self.built(environment) or named

    def moved(self, kind: str, number: int) -> EnvironmentRecord:
        return replace(self, placement={**self.placement, kind: number})


def folder(environment: Environment) -> Folder:
    return Folder(f"gs://{environment.state}/{environment.prefix}")


def read(environment: Environment) -> EnvironmentRecord:
    """The record, or a new one if there is none. Raises `MaskwrightError` for another format."""
    root = folder(environment)
    values = root.get_json(NAME)
    if values is None and root.get(NAME) is None:
        return EnvironmentRecord()
    if values is None or values.get("format") != FORMAT:
        fix = "use the version that wrote it, or restore the object's last version"
        raise MaskwrightError(f"is not a record of format {FORMAT}", where=f"{root.location}/{NAME}", fix=fix)
    disk = {key: values["disk"].get(key) for key in DISK_FIELDS}
    placement = {**EnvironmentRecord().placement, **values["placement"]}
    return EnvironmentRecord(
        **disk, placement=placement, queued_zone=values.get("queued_zone"), image=values.get("image")
    )


def wanted(environment: Environment) -> dict[str, Any] | None:
    """The wanted variables; None before the first `env up`, or if they cannot be read."""
    return folder(environment).get_json(WANTED)


def write(environment: Environment, record: EnvironmentRecord) -> None:
    values = vars(record)
    disk = {key: values[key] for key in DISK_FIELDS}
    rest = {key: value for key, value in values.items() if key not in DISK_FIELDS}
    folder(environment).put_json(NAME, {"format": FORMAT, "disk": disk, **rest})
