"""Check that hosts will find a job's data, before they cost money."""

from __future__ import annotations

from collections.abc import Mapping

from maskwright.cloud import record
from maskwright.cloud.environment import Environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision import disk_source
from maskwright.config.data import EPOCHS_ELSEWHERE
from maskwright.core import storage
from maskwright.core.console import warn
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.hub import is_hub
from maskwright.launch import checks

MOST_SHOWN = 8


def require_there(environment: Environment, locations: Mapping[str, str | None], data: str) -> None:
    """`locations`: see `checks.locations`. `data`: the value of `data.format`, or labelled. Raises `InputError` with
    the existing paths."""
    wanted = {key: path for key, path in locations.items() if path and not is_hub(path) and key != "--from"}
    remote = {key: path for key, path in wanted.items() if storage.is_url(path)}
    for key, path in remote.items():
        if key.startswith("model.") or key == "data.arrow.tokenizer" or data in ("arrow", "pregenerated"):
            fix = f"a folder below {_shared(environment)}, which `env seed` fills; of models also hf://OWNER/NAME"
            fix = EPOCHS_ELSEWHERE if (key, data) == ("data.store", "pregenerated") else fix
            raise InputError(f"{path} is read as a folder on the hosts", where=key, fix=fix)
    local = {key: path for key, path in wanted.items() if key not in remote}
    if local:
        disk = _Disk(environment, data)
        for key, path in local.items():
            disk.require(key, path, data == "store" and key.startswith("data."))


def _shared(environment: Environment) -> str:
    return f"{environment.mount_point}/shared_pd"


class _Disk:
    """The disk and the NFS share, as hosts will see them."""

    def __init__(self, environment: Environment, data: str) -> None:
        self.environment, self.shared, self.data = environment, _shared(environment), data
        self.stores: list[str] | None = None
        """Folders with a token store; None if unknown."""
        self.seeded = True
        if environment.disk is None:
            return
        try:
            self.seeded = record.read(environment).seeded is not None
            if environment.disk.prepare is None:
                folders = disk_source.read(Google(environment.project), environment.disk).stores
                self.stores = ["/".join(filter(None, (self.shared, folder))) for folder in folders]
        except StoppedEarly:
            raise
        except MaskwrightError as error:
            warn(f"{error}; cannot tell whether the data is on the disk")

    def require(self, key: str, path: str, is_store: bool) -> None:
        environment, nfs = self.environment, f"{self.environment.mount_point}/nfs_share/"
        if environment.nfs is not None and path.startswith(nfs):
            return  # only its hosts can read it
        if environment.disk is not None and f"{path}/".startswith(f"{self.shared}/"):
            return self._on_disk(key, path.rstrip("/"), is_store)
        # A set-up script may put data below the mount point, and a user's image may contain data.
        if environment.host.setup and path.startswith(f"{environment.mount_point}/"):
            return
        if environment.host.container and path.startswith("/"):
            return
        raise InputError(f"{path} is not on the hosts", where=key, fix=self._instead(key, path))

    def _on_disk(self, key: str, path: str, is_store: bool) -> None:
        if self.stores is not None and is_store and path not in self.stores:
            raise InputError(f"{path} will not be on the disk", where=key, fix=self._instead(key, path))
        if not self.seeded:
            what = f"the disk, which is to hold {path}, is not seeded yet"
            raise InputError(what, where=key, fix="maskwright env seed ENV, before hosts are created")

    def _instead(self, key: str, path: str) -> str:
        """The setting to add if the name leaves one choice, else the existing stores."""
        stores, name = self.stores or [], path.rstrip("/").rpartition("/")[2]
        same = [store for store in stores if store.rpartition("/")[2] == name] or stores
        if len(same) == 1:
            return f"add {checks.setting(key, same[0])}"
        if same:
            more = ", …" if len(same) > MOST_SHOWN else ""
            return f"add {checks.setting(key, same[0])}, or another of {', '.join(same[:MOST_SHOWN])}{more}"
        places = [f"{self.shared}/…, which `env seed` fills"] if self.environment.disk else []
        places += [f"{self.environment.mount_point}/nfs_share/…"] if self.environment.nfs else []
        if (key, self.data) == ("data.store", "pregenerated"):
            return "; or ".join([*places, EPOCHS_ELSEWHERE])
        return f"{' or '.join([*places, 'gs://BUCKET/STORE, which each host fetches'])}: --set {key}=…"
