"""What is remembered of an environment beside Terraform's state, in the same bucket: `env/NAME/record.json`.

Terraform's state says what exists. The record says what the configuration cannot: which disk is the current one,
whether it was seeded, and which of the places for hosts is in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from maskwright.cloud.environment import Environment
from maskwright.core.errors import MaskwrightError
from maskwright.core.folder import Folder

FORMAT = 1
NAME = "record.json"
WANTED = "wanted.json"
"""What was asked for last, as Terraform's variables."""


@dataclass(frozen=True)
class Record:
    """`generation` counts disks, from 1. `seeded`: what `env seed` found on the disk, or None. `disk_gb`, `disk_type`:
    of the disk of this generation, once there is one; another wish is another disk. `placement`: by slice and group, a
    number in `Hosts.placements`. `queued_zone`: where a queued resource was asked for: Terraform does not know it."""

    generation: int = 1
    seeded: dict[str, Any] | None = None
    disk_gb: int | None = None
    disk_type: str | None = None
    placement: dict[str, int] = field(default_factory=lambda: {"slice": 0, "group": 0})
    queued_zone: str | None = None

    def for_disk(self, environment: Environment) -> Record:
        """The same while the disk is; a disk of another size or type is a new one, not seeded yet."""
        disk = environment.disk
        if disk is None or (self.disk_gb, self.disk_type) == (disk.size_gb, disk.type):
            return self
        known = self.disk_gb is not None
        generation = self.generation + 1 if known else self.generation
        return replace(self, generation=generation, seeded=None, disk_gb=disk.size_gb, disk_type=disk.type)

    def moved(self, kind: str, number: int) -> Record:
        return replace(self, placement={**self.placement, kind: number})


def folder(environment: Environment) -> Folder:
    return Folder(f"gs://{environment.state}/{environment.prefix}")


def read(environment: Environment) -> Record:
    """A new one where there is none. Raises `MaskwrightError` for one of another format."""
    place = folder(environment)
    values = place.get_json(NAME)
    if values is None and place.get(NAME) is None:
        return Record()
    if values is None or values.get("format") != FORMAT:
        fix = "use the version that wrote it, or restore the object's last version"
        raise MaskwrightError(f"is no record of format {FORMAT}", where=f"{place.location}/{NAME}", fix=fix)
    disk = values["disk"]
    known = {key: disk.get(key) for key in ("generation", "seeded", "disk_gb", "disk_type")}
    placement = {**Record().placement, **values["placement"]}
    return Record(placement=placement, queued_zone=values.get("queued_zone"), **known)


def wanted(environment: Environment) -> dict[str, Any] | None:
    """None when nothing was asked for yet, or it cannot be read."""
    return folder(environment).get_json(WANTED)


def write(environment: Environment, record: Record) -> None:
    disk = {key: getattr(record, key) for key in ("generation", "seeded", "disk_gb", "disk_type")}
    rest = {"placement": record.placement, "queued_zone": record.queued_zone}
    folder(environment).put_json(NAME, {"format": FORMAT, "disk": disk, **rest})
