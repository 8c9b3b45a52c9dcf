"""The record of an environment next to Terraform's state, in the same bucket: `env/NAME/record-N.json`.

Terraform's state lists what exists. The record keeps the rest: which disk is the current one, whether it was seeded,
and which image was built last. Each change is another object with the next number, which only one command can create.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from maskwright import __version__
from maskwright.cloud.environment import Accelerator, Environment
from maskwright.cloud.google.rest import bucket_folder
from maskwright.core.errors import Locked, MaskwrightError
from maskwright.core.folder import Folder

FORMAT = 2
NAME = re.compile(r"record-(\d+)\.json")


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
    images: dict[str, str] = field(default_factory=dict)
    """Images that were built last, as REPOSITORY/maskwright:VERSION-SHA12@sha256:…, by their device."""
    number: int = field(default=0, compare=False)
    """Number of the object that it was read from; 0 before the first."""

    def for_disk(self, environment: Environment) -> EnvironmentRecord:
        """The same record for the same disk. A disk of another size or type is a new one, not seeded yet."""
        disk = environment.disk
        if disk is None or (self.disk_gb, self.disk_type) == (disk.size_gb, disk.type):
            return self
        generation = self.generation + (self.disk_gb is not None)
        return replace(self, generation=generation, seeded=None, disk_gb=disk.size_gb, disk_type=disk.type)

    def without_disk(self) -> EnvironmentRecord:
        """The next disk gets another name, since Google may remember the old one for a while."""
        return replace(self, generation=self.generation + 1, seeded=None, disk_gb=None, disk_type=None)

    def built(self, environment: Environment, accelerator: Accelerator) -> str | None:
        """The image by its digest, if it has this version and is for this environment. So all pods of a job run the
        same image, even after later builds."""
        name, _, digest = self.images.get(accelerator, "").partition("@")
        wanted, of_version = environment.image, f"{environment.built_image}:{__version__}-"
        if not digest or not (name == wanted if wanted else name.startswith(of_version)):
            return None
        folder, _, last = name.rpartition("/")
        return f"{folder}/{last.partition(':')[0]}@{digest}"

    def container(self, environment: Environment, accelerator: Accelerator) -> str:
        """The image that jobs run. Before `maskwright image`, it may not exist yet."""
        return self.built(environment, accelerator) or environment.image or f"{environment.built_image}:{__version__}"


def folder(environment: Environment) -> Folder:
    return bucket_folder(f"gs://{environment.state}/{environment.prefix}")


def read(environment: Environment) -> EnvironmentRecord:
    """The newest record, or a new one if there is none. Raises `MaskwrightError` for another format."""
    root = folder(environment)
    number = max((int(found[1]) for name in root.names() if (found := NAME.fullmatch(name))), default=0)
    if not number:
        return EnvironmentRecord()
    values = root.get_json(name := f"record-{number}.json")
    if values is None or values.pop("format", None) != FORMAT:
        fix = "use the version that wrote it, or delete the object, so that the previous one counts"
        raise MaskwrightError(f"is not a record of format {FORMAT}", where=f"{root.location}/{name}", fix=fix)
    return EnvironmentRecord(**values, number=number)


def write(environment: Environment, record: EnvironmentRecord) -> EnvironmentRecord:
    """Raises `Locked` if another command has written one since `record` was read."""
    number = record.number + 1
    values = {key: value for key, value in vars(record).items() if key != "number"}
    if not folder(environment).create_json(f"record-{number}.json", {"format": FORMAT, **values}):
        fix = "run the same command again, with that change"
        raise Locked("another command has changed the environment in the meantime", where=environment.name, fix=fix)
    return replace(record, number=number)
