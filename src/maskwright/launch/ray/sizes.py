"""A gang's part of a Ray cluster: CPUs, GPUs, or all hosts of a TPU slice. Nothing here talks to Ray.

Ray names the hosts of a slice by labels of their nodes, and host 0 also by a resource of its own, `TPU-v6e-16-head`,
which KubeRay's autoscaler adds slices by (2.60: `ray/_private/accelerators/tpu.py`,
`ray/autoscaler/_private/kuberay/autoscaling_config.py`). Ray reads them from the metadata of a TPU VM, or from
TPU_NAME, TPU_WORKER_ID, TPU_ACCELERATOR_TYPE and TPU_TOPOLOGY.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.core.console import several
from maskwright.core.errors import InputError
from maskwright.launch import checks
from maskwright.launch.target import Training
from maskwright.machine import tpus

SLICE_NAME, WORKER_ID = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"
TOPOLOGY, POD_TYPE = "ray.io/tpu-topology", "ray.io/tpu-pod-type"
Node = Mapping[str, Any]
"""A machine as `ray.nodes()` describes it."""


@dataclass(frozen=True)
class RaySlice:
    """A TPU slice such as `v6e:4x4`."""

    kind: str
    topology: str

    @property
    def chips(self) -> int:
        return tpus.chips(self.topology)

    @property
    def pod_type(self) -> str:
        """Its accelerator type, as Ray names it: the TPU API's name, or Ray's own for a kind without such a name."""
        known = tpus.TPUS[self.kind].type_prefix
        return tpus.accelerator_type(self.kind, self.topology) if known else f"v7x-{2 * self.chips}"

    @property
    def head(self) -> str:
        """The resource that only host 0 of such a slice has."""
        return f"TPU-{self.pod_type}-head"

    def __str__(self) -> str:
        return f"{self.kind}:{self.topology}"


@dataclass(frozen=True)
class Gang:
    """`num_nodes` processes (or supervisors of processes) with `gpus` GPUs each, or on the CPU if that is 0; or one
    process on each host of `slice`. Its hosts are counted once Ray has given a slice, since slices of one topology may
    be built of hosts of 4 or of 8 chips."""

    num_nodes: int
    gpus: int = 0
    slice: RaySlice | None = None
    slice_name: str = ""
    """The slice that Ray has given."""

    @property
    def bundle(self) -> dict[str, float]:
        chips = self.slice.chips // self.num_nodes if self.slice else 0
        devices = {"GPU": float(self.gpus), "TPU": float(chips)}
        return {"CPU": float(max(1, self.gpus)), **{name: count for name, count in devices.items() if count}}

    @property
    def strategy(self) -> str:
        """GPUs are placed close together, where they are fast, CPU nodes on different machines if possible, and never
        two members on one TPU host."""
        return "STRICT_SPREAD" if self.slice else "PACK" if self.gpus else "SPREAD"

    @property
    def labels(self) -> list[dict[str, str]]:
        """Labels of the machine of each bundle: member i on worker i, as libtpu orders the chips of a slice."""
        if not self.slice:
            return [{}] * self.num_nodes
        return [{SLICE_NAME: self.slice_name, WORKER_ID: str(index)} for index in range(self.num_nodes)]

    def fits(self, machines: Sequence[Mapping[str, float]]) -> bool:
        """Whether the gang would fit on these machines if they were empty."""
        room = [min(int(machine.get(name, 0.0) // n) for name, n in self.bundle.items()) for machine in machines]
        return sum(room) >= self.num_nodes

    def on_slice_of(self, head: Node) -> Gang:
        """The gang on all hosts of the slice whose host 0 is `head`. Raises `InputError` for a host that no such slice
        is built of."""
        assert self.slice
        chips, name = int(head["Resources"].get("TPU", 0)), head["Labels"].get(SLICE_NAME, "")
        sizes = tpus.host_sizes(self.slice.kind, self.slice.topology)
        if not name or chips not in sizes:
            what = f"host 0 of a slice {self.slice} has {chips} TPUs and the label {SLICE_NAME}={name}"
            fix = f"start Ray on its hosts with TPU_NAME set and {' or '.join(map(str, sizes))} TPUs, one for each chip"
            raise InputError(what, where=head["NodeManagerAddress"], fix=fix)
        return replace(self, num_nodes=self.slice.chips // chips, slice_name=name)

    def missing(self, nodes: Sequence[Node]) -> str:
        """What the cluster would lack for the gang if all its machines were empty; "" if it has room."""
        if not self.slice:
            return "" if self.fits([node["Resources"] for node in nodes]) else f"the machines have {_resources(nodes)}"
        if not self.slice_name:
            no_host = not any(self.slice.head in node["Resources"] for node in nodes)
            return f"no machine is host 0 of such a slice ({self.slice.head})" if no_host else ""
        joined = {node["Labels"].get(WORKER_ID) for node in nodes if node["Labels"].get(SLICE_NAME) == self.slice_name}
        absent = [str(index) for index in range(self.num_nodes) if str(index) not in joined]
        return f"host {', '.join(absent)} of {self.slice_name} has not joined" if absent else ""

    def fit(self, command: Training, config: RunConfig | FinetuneConfig) -> Training:
        """The command of a node, which fails where a device is missing. Raises `InputError` if the configuration asks
        for another device, or if the batch cannot be divided among the devices."""
        if self.slice:
            return checks.for_tpu(command, config, tpus.devices(self.slice.kind, self.slice.topology))
        return checks.sized(command, config, self.num_nodes, self.gpus)

    def __str__(self) -> str:
        if self.slice:
            return f"TPU slice {self.slice}"
        device = several(self.gpus, "GPU") if self.gpus else "the CPU"
        return f"{several(self.num_nodes, 'node')} with {device}{' each' * (self.num_nodes > 1)}"


def asked(
    config: RunConfig | FinetuneConfig, num_nodes: int | None, gpus: int | None, accelerator: str | None
) -> Gang | None:
    """The gang that options and configuration determine; None if the cluster is to decide. Such a gang may not fit on
    the cluster yet: its placement group is what an autoscaler reads."""
    if accelerator is not None:
        if num_nodes is not None or gpus is not None:
            what = "a slice has its own number of hosts and chips"
            raise InputError(what, where="--num-nodes, --gpus-per-node", fix="leave out these or --accelerator")
        return Gang(1, slice=RaySlice(*checks.tpu_slice(accelerator, list(tpus.TPUS))))
    if gpus is None and config.engine.device == "cpu":
        gpus = 0
    if gpus == 0 or (gpus is not None and num_nodes is not None):
        return Gang(num_nodes or 1, gpus)
    return None


def choose(
    nodes: Sequence[Node], config: RunConfig | FinetuneConfig, num_nodes: int | None = None, gpus: int | None = None
) -> Gang:
    """A gang that the cluster has room for, with the numbers that are not None: as many GPUs as the batch can be
    divided among, or `engine.devices`, on as few machines as possible; else the largest TPU slice. Raises `InputError`
    if there is neither; a gang trains on CPUs only if asked to."""
    machines, engine, workers = [node["Resources"] for node in nodes], config.engine, config.batch.virtual_workers
    counts = [int(machine.get("GPU", 0)) for machine in machines]
    devices = engine.devices if engine.kind == "torch" else None
    possible = [
        gang
        for count in ([num_nodes] if num_nodes else range(1, sum(counts) + 1))
        for size in ([gpus] if gpus else range(1, max(counts, default=0) + 1))
        if workers % (count * size) == 0 and devices in (None, count * size)
        if (gang := Gang(count, size)).fits(machines)
    ]
    if possible and engine.device != "tpu":
        return max(possible, key=lambda gang: (gang.num_nodes * gang.gpus, gang.gpus))
    if gpus:
        return Gang(num_nodes or 1, gpus)
    slices = [found for node in nodes if num_nodes is None and (found := _slice_of(node["Labels"]))]
    if slices:
        return Gang(1, slice=max(slices, key=lambda found: found.chips))
    what = f"no GPU and no labelled TPU slice to divide {workers} virtual workers among: machines have "
    fix = "give --num-nodes and --gpus-per-node, or --accelerator, for an autoscaler; --gpus-per-node 0 for CPUs"
    raise InputError(what + _resources(nodes), where="the Ray cluster", fix=fix)


def _slice_of(labels: Mapping[str, str]) -> RaySlice | None:
    topology = labels.get(TOPOLOGY, "")
    known = (RaySlice(kind, topology) for kind in tpus.TPUS if topology in tpus.topologies(kind))
    return next((found for found in known if found.pod_type == labels.get(POD_TYPE)), None)


def _resources(nodes: Sequence[Node]) -> str:
    names = ("CPU", "GPU", "TPU")
    of_each = [", ".join(f"{node['Resources'].get(name, 0):g} {name}s" for name in names) for node in nodes]
    return "; ".join(of_each) or "nothing"
