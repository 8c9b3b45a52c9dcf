"""The order of `doctor`'s checks: speeds are measured while no other part of it computes."""

from __future__ import annotations

import time

from maskwright.core.extras import installed
from maskwright.doctor import frameworks
from maskwright.doctor.finding import DoctorReport
from maskwright.doctor.frameworks import FrameworkProbe
from maskwright.doctor.machine import machine
from maskwright.doctor.network import network

SECONDS = 9.0
"""Deadline, after which results so far count. The rest of the ten seconds is for starting Python and printing."""
IMPORTED_SECONDS = 7.0


def examine() -> DoctorReport:
    """Runs all checks. Nothing leaves this machine."""
    begin = time.monotonic()
    hardware = list(machine())  # first, while no other part computes
    # torch needs the GPU's memory for measuring, and JAX would take three quarters.
    jax = FrameworkProbe(frameworks.JAX, XLA_PYTHON_CLIENT_PREALLOCATE="false") if installed("jax") else None
    torch = FrameworkProbe(frameworks.TORCH) if installed("torch") else None
    for probe in (jax, torch):
        if probe:
            probe.wait(begin + IMPORTED_SECONDS, lines=1)
    about_jax = frameworks.jax(jax)
    if torch:
        torch.go_on()
        torch.wait(begin + SECONDS, lines=2)
    busy = any(finding.name == "cores" and finding.state == "warn" for finding in hardware)
    about_torch = list(frameworks.torch(torch, busy=busy))
    software = [finding for finding in about_torch if finding.area == "software"]
    kernels = [finding for finding in about_torch if finding.area == "hardware"]
    findings = [frameworks.python(), frameworks.extras(), *software, about_jax, *kernels, *hardware, network()]
    return DoctorReport(findings, time.monotonic() - begin)
