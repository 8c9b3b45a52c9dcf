"""The record of an environment beside Terraform's state, in the same bucket: `env/NAME/record.json`.

Terraform's state says what exists. The record says what the configuration cannot: which disk is the current one,
whether it was seeded, which of the places for hosts is in use, and which image was built last.
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
OF_DISK = ("generation", "seeded", "disk_gb", "disk_type")
"""Fields below `disk` in the file."""
WANTED = "wanted.json"
"""File with what was asked for last, as Terraform's variables."""


@dataclass(frozen=True)
class EnvironmentRecord:
    generation: int = 1
    """Number of the disk, counted from 1."""
    seeded: dict[str, Any] | None = None
    """Files and bytes that `env seed` found on the disk; None before that."""
    disk_gb: int | None = None
    """Size of the disk of this generation, once there is one. Another size is another disk."""
    disk_type: str | None = None
    """Type of that disk. Another type is another disk too."""
    placement: dict[str, int] = field(default_factory=lambda: {"slice": 0, "group": 0})
    """Places in use: by slice and group, a number in `placements` of its section."""
    queued_zone: str | None = None
    """Zone in which a queued resource was asked for, which Terraform does not know."""
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
        """The image by its digest, if it is of this version and for this environment. A host that is made again then
        runs what the others run, whatever was built since."""
        name, _, digest = (self.image or "").partition("@")
        given, of_version = environment.host.container, f"{environment.built_image}:{__version__}-"
        if not digest or not (name == given if given else name.startswith(of_version)):
            return None
        folder, _, last = name.rpartition("/")
        return f"{folder}/{last.partition(':')[0]}@{digest}"

    def container(self, environment: Environment) -> str:
        """What hosts run. Before `env image` there may be nothing under the name that this gives."""
        named = environment.host.container or f"{environment.built_image}:{__version__}"
        return self.built(environment) or named

    def moved(self, kind: str, number: int) -> EnvironmentRecord:
        return replace(self, placement={**self.placement, kind: number})


def folder(environment: Environment) -> Folder:
    return Folder(f"gs://{environment.state}/{environment.prefix}")


def read(environment: Environment) -> EnvironmentRecord:
    """A new record where there is none. Raises `MaskwrightError` for one of another format."""
    place = folder(environment)
    values = place.get_json(NAME)
    if values is None and place.get(NAME) is None:
        return EnvironmentRecord()
    if values is None or values.get("format") != FORMAT:
        fix = "use the version that wrote it, or restore the object's last version"
        raise MaskwrightError(f"is not a record of format {FORMAT}", where=f"{place.location}/{NAME}", fix=fix)
    disk = {key: values["disk"].get(key) for key in OF_DISK}
    placement = {**EnvironmentRecord().placement, **values["placement"]}
    return EnvironmentRecord(
        **disk, placement=placement, queued_zone=values.get("queued_zone"), image=values.get("image")
    )


def wanted(environment: Environment) -> dict[str, Any] | None:
    """None when nothing was asked for yet, or it cannot be read."""
    return folder(environment).get_json(WANTED)


def write(environment: Environment, record: EnvironmentRecord) -> None:
    values = vars(record)
    disk = {key: values[key] for key in OF_DISK}
    rest = {key: value for key, value in values.items() if key not in OF_DISK}
    folder(environment).put_json(NAME, {"format": FORMAT, "disk": disk, **rest})
