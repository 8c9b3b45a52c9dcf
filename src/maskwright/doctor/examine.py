"""The order in which `doctor` looks: what is measured, is measured while nothing else of ours computes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from maskwright.doctor import frameworks, surroundings
from maskwright.doctor.finding import DoctorFinding, DoctorReport
from maskwright.doctor.frameworks import FrameworkProbe, present
from maskwright.doctor.machine import machine
from maskwright.doctor.tools import tools

SECONDS = 9.0
"""Until it ends with what it has. What is left of the ten goes to starting Python and printing."""
IMPORTED_SECONDS = 7.0
"""By then the frameworks are imported, or they are not waited for."""


def examine(*, network: bool = False) -> DoctorReport:
    """`network`: also ask servers whether they can be reached; nothing leaves this machine without it."""
    begin = time.monotonic()
    hardware = list(machine())  # first, since nothing of ours computes yet
    # A GPU's memory is torch's to measure with: JAX would take three quarters of it.
    jax = FrameworkProbe(frameworks.JAX, XLA_PYTHON_CLIENT_PREALLOCATE="false") if present("jax") else None
    torch = FrameworkProbe(frameworks.TORCH) if present("torch") else None
    with ThreadPoolExecutor(3) as pool:
        programs = pool.submit(lambda: list(tools()))
        servers = pool.submit(lambda: list(surroundings.network(reach=network)))
        secrets = pool.submit(lambda: list(surroundings.credentials(reach=network)))
    for probe in (jax, torch):
        if probe:
            probe.wait(begin + IMPORTED_SECONDS, lines=1)
    about_jax = frameworks.jax(jax)
    if torch:
        torch.go_on()
        torch.wait(begin + SECONDS, lines=2)
    about_torch = list(
        frameworks.torch(torch, busy=any(one.name == "cores" and one.state == "warn" for one in hardware))
    )
    software = [frameworks.python(), frameworks.extras(), *(one for one in about_torch if one.area == "software")]
    kernels = [one for one in about_torch if one.area == "hardware"]
    findings: list[DoctorFinding] = [*software, about_jax, *kernels, *hardware]
    return DoctorReport([*findings, *servers.result(), *secrets.result(), *programs.result()], time.monotonic() - begin)
