"""What a state of a host's machine means: of an instance (Compute Engine) or of a node (TPU API).

docs.cloud.google.com/compute/docs/instances/instance-lifecycle
"""

from __future__ import annotations

from typing import Literal

from maskwright.launch.tpu_vm import TRANSITIONAL_STATES

Life = Literal["runs", "coming", "stopped", "gone"]
"""coming: it will run without anyone doing anything; gone: being deleted, or in a state that is not known here."""
COMING = {"PENDING", "PROVISIONING", "STAGING", "REPAIRING"} | TRANSITIONAL_STATES
"""REPAIRING is a machine that Google moves to other hardware or starts again there."""
STOPPED = {"PENDING_STOP", "PREEMPTED", "STOPPED", "STOPPING", "SUSPENDED", "SUSPENDING", "TERMINATED"}


def life_of(state: str) -> Life:
    if state in ("RUNNING", "READY"):
        return "runs"
    return "coming" if state in COMING else "stopped" if state in STOPPED else "gone"
