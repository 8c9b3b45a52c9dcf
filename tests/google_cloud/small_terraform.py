"""In the place of `commands.up` and `down` where a test is about something else than Terraform: a slice or group comes
and goes in the fake cloud at once, and the record says where, as the real ones leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from google_cloud import compute, iam
from google_cloud.fake import Cloud

from maskwright.cloud import record
from maskwright.cloud.environment import Environment, read_environment
from maskwright.cloud.provision import variables


@dataclass
class SmallTerraform:
    cloud: Cloud
    fails: list[BaseException | None] = field(default_factory=list)
    acts: list[str] = field(default_factory=list)

    def up(
        self, location: str, *, parts: tuple[str, ...], placement: Mapping[str, int] | None = None, **_: Any
    ) -> None:
        self._fail()
        environment = read_environment(location)
        (kind,) = parts
        known = record.read(environment).moved(kind, (placement or {}).get(kind, 0))
        record.write(environment, known)
        self.acts.append(f"up {kind} {self.make(environment, known, kind)}")

    def make(self, environment: Environment, known: record.EnvironmentRecord, kind: str) -> str:
        """The slice or group, without its record. Its zone."""
        hosts = variables.variables(environment, known, None)[kind]
        project, zone, name = environment.project, hosts["zone"], f"{environment.name}-{kind}"
        with self.cloud.lock:
            account = f"{environment.name}-train@{project}.iam.gserviceaccount.com"
            buckets = {"runs": environment.runs_bucket, "jobs": environment.jobs_bucket}
            iam.grant_hosts(self.cloud, account, dataset=environment.dataset_bucket, **buckets)
            template = f"compute/projects/{project}/global/instanceTemplates/{name}"
            if template not in self.cloud.resources:
                properties = {"machineType": hosts["machine_type"], "disks": []}
                body = {"name": name, "properties": properties}
                compute.make(self.cloud, f"projects/{project}/global/instanceTemplates", body)
            group = {
                "name": name,
                "targetSize": hosts["hosts"],
                "versions": [{"instanceTemplate": f"global/instanceTemplates/{name}"}],
                "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
            }
            compute.make(self.cloud, f"projects/{project}/zones/{zone}/instanceGroupManagers", group)
        return str(zone)

    def down(self, location: str, *, parts: tuple[str, ...], **_: Any) -> SimpleNamespace:
        self._fail()
        name = f"{read_environment(location).name}-{parts[0]}"
        self.acts.append(f"down {parts[0]}")
        with self.cloud.lock:
            for key in [key for key in self.cloud.resources if key.endswith(f"/instanceGroupManagers/{name}")]:
                compute.remove(self.cloud, key.removeprefix("compute/"))
        return SimpleNamespace(google=None, environment=None, wanted=None, record=None)

    def _fail(self) -> None:
        if self.fails and (error := self.fails.pop(0)):
            raise error
