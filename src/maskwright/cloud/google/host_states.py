"""States of a host's machine: an instance of Compute Engine, or a node of the TPU API.

docs.cloud.google.com/compute/docs/instances/instance-lifecycle
"""

from __future__ import annotations

from typing import Literal

from maskwright.launch.tpu_vm import TRANSITIONAL_STATES

Life = Literal["runs", "coming", "stopped", "gone"]
"""coming: will run by itself; gone: being deleted, or in an unknown state."""
COMING = {"PENDING", "PROVISIONING", "STAGING", "REPAIRING"} | TRANSITIONAL_STATES
"""REPAIRING: Google moves the machine to other hardware, or restarts it there."""
STOPPED = {"PENDING_STOP", "PREEMPTED", "STOPPED", "STOPPING", "SUSPENDED", "SUSPENDING", "TERMINATED"}


def life_of(state: str) -> Life:
    if state in ("RUNNING", "READY"):
        return "runs"
    return "coming" if state in COMING else "stopped" if state in STOPPED else "gone"
