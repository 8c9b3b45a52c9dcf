"""`env status`: the cluster with its nodes and jobs, the disk, and what costs money."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from maskwright.cloud import cluster, record
from maskwright.cloud.environment import Environment, read_environment
from maskwright.cloud.google.rest import Google
from maskwright.cloud.provision import objects
from maskwright.cloud.record import EnvironmentRecord
from maskwright.core.console import human_bytes, human_count, several, typed
from maskwright.core.errors import CloudError
from maskwright.launch.schedulers.kubernetes.gke import CLASS_LABEL
from maskwright.launch.schedulers.kubernetes.jobs import OURS, Jobs, condition


@dataclass(frozen=True)
class EnvironmentStatus:
    environment: str
    location: str
    """Path or address of the YAML."""
    cluster: str
    """Google's word for its state, such as RUNNING; "absent"; or the reason why it cannot be read."""
    nodes: dict[str, int]
    """Ready nodes by ComputeClass; "system" counts the nodes of the controllers."""
    jobs: dict[str, str]
    """State of each job: waiting, running, done, failed or stopped."""
    disk: str

    def report(self) -> str:
        lines = [f"{self.environment}: cluster {self.cluster}"]
        lines += [f"nodes: {', '.join(f'{count} {kind}' for kind, count in self.nodes.items())}"] if self.nodes else []
        if self.jobs:
            lines += [
                f"{several(len(self.jobs), 'job')}:",
                *(f"  {name}: {state}" for name, state in self.jobs.items()),
            ]
        lines += [self.disk] if self.disk else []
        plan, audit = typed(["env", "up", self.location, "--dry-run"]), typed(["env", "audit", self.location])
        return "\n".join([*lines, f"`{plan}` shows what would change, `{audit}` what costs money"])

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "location"}


def read(location: str) -> EnvironmentStatus:
    """Status of the environment whose YAML is at `location`. Needs neither Terraform nor its lock."""
    environment = read_environment(location)
    remembered = record.read(environment).for_disk(environment)
    return EnvironmentStatus(environment.name, location, *_cluster(environment), _disk(environment, remembered))


def _cluster(environment: Environment) -> tuple[str, dict[str, int], dict[str, str]]:
    found = Google(environment.project).find("container", environment.cluster_path)
    if found is None:
        return "absent", {}, {}
    where = f"{found.get('status', 'unknown')} in {environment.location}"
    try:
        nodes = json.loads(objects.run(environment, ["get", "nodes", "-o", "json"]))["items"]
        jobs = Jobs(cluster.access(environment)).select(OURS, lambda name: name)
    except CloudError as error:
        return f"{where}, cannot be read: {error}", {}, {}
    ready = Counter(
        (node["metadata"].get("labels") or {}).get(CLASS_LABEL, "system") for node in nodes if condition(node, "Ready")
    )
    return where, dict(sorted(ready.items())), {job.name: job.state for job in jobs}


def _disk(environment: Environment, remembered: EnvironmentRecord) -> str:
    if environment.disk is None:
        return ""
    name = environment.disk_name(remembered.generation)
    if remembered.seeded is None:
        return f"disk {name}: not seeded; jobs have it once `env seed` has filled it"
    files, size = remembered.seeded.get("files", 0), remembered.seeded.get("bytes", 0)
    when = f" on {str(remembered.seeded['time'])[:10]}" if remembered.seeded.get("time") else ""
    return f"disk {name}: seeded{when} with {human_count(files)} files, {human_bytes(size)}"
