"""A TPU slice as pods on GKE: how many, the chips of each, the labels of its nodes, and the object that restarts them.

GKE gives the pods of a slice each other's names: its webhook sets `TPU_WORKER_ID` and `TPU_WORKER_HOSTNAMES` for
several hosts, the nodes' device plugin for one. JAX reads them.
docs.cloud.google.com/kubernetes-engine/docs/how-to/tpus and …/concepts/plan-tpus, read in 2026; none of it was tried.
"""

from __future__ import annotations

from typing import NamedTuple

from maskwright.core.console import several
from maskwright.core.errors import InputError
from maskwright.launch.checks import tpu_slice
from maskwright.launch.schedulers.kubernetes.pod import Kind
from maskwright.machine import tpus

KIND_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
"""GKE refuses a pod that asks for TPU chips and does not select both, or a ComputeClass."""
CLASS_LABEL = "cloud.google.com/compute-class"
"""A ComputeClass contains the topology:
docs.cloud.google.com/kubernetes-engine/docs/concepts/about-custom-compute-classes"""


class SlicePods(NamedTuple):
    kind: str
    topology: str
    hosts: int
    """Number of pods, one on each host."""
    chips: int
    """Chips of a host. A pod takes all of them: GKE grants no part of a host."""

    @property
    def labels(self) -> dict[str, str]:
        return {KIND_LABEL: tpus.TPUS[self.kind].gke_label, TOPOLOGY_LABEL: self.topology}

    @property
    def devices(self) -> int:
        """Number of devices of the slice, as JAX counts them."""
        return tpus.devices(self.kind, self.topology)

    def object_kind(self, wanted: Kind | None) -> Kind:
        """The kind of object. Raises `InputError` for a kind that would restart only a part of the slice: a slice loses
        all of its hosts at once, and only a JobSet restarts all of its pods at once."""
        fitting: tuple[Kind, ...] = ("jobset",) if self.hosts > 1 else ("indexed-job", "jobset")
        if wanted not in (None, *fitting):
            what = f"{wanted} cannot train on a slice of {several(self.hosts, 'host')}"
            raise InputError(what, where="--kind", fix=f"give --kind {' or '.join(fitting)}, or leave it out")
        return wanted or fitting[0]


def slice_pods(name: str, hosts: int | None) -> SlicePods:
    """The pods of a slice such as `v6e:4x4`. `hosts`: how many, where Google builds that slice in several ways; None
    for the usual way. Raises `InputError` for a slice that GKE does not have, or not with as many hosts."""
    kinds = [kind for kind, tpu in tpus.TPUS.items() if tpu.gke_label]
    kind, topology = tpu_slice(name, kinds, " of GKE")
    sizes = {tpus.chips(topology) // size: size for size in tpus.host_sizes(kind, topology)}
    hosts = hosts or next(iter(sizes))
    if hosts not in sizes:
        what = f"{kind}:{topology} has {' or '.join(several(count, 'host') for count in sizes)}"
        fix = "leave it out, or choose another topology: a run trains on one slice"
        raise InputError(what, where=f"--num-nodes {hosts}", fix=fix)
    return SlicePods(kind, topology, hosts, sizes[hosts])
