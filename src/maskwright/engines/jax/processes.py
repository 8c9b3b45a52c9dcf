"""Discovery of the devices and of the other hosts of a slice, before anything else is computed.

On a Cloud TPU the hosts find each other by the machine's metadata (Compute Engine) or variables (GKE). Elsewhere they
use MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK, torch's `env://`. One process on each host owns all of its chips.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from maskwright.config.pretraining import EngineSection, require_supported
from maskwright.core import storage
from maskwright.core.console import warn
from maskwright.core.errors import ConfigError, InputError, MaskwrightError
from maskwright.core.extras import require
from maskwright.engines.processes import (
    CONNECT_SECONDS,
    LONGEST_MESSAGE,
    Alone,
    Launch,
    Processes,
    find,
    is_loopback,
    launch_variables,
    partner_gone,
)
from maskwright.machine import hardware
from maskwright.machine.hardware import cuda_devices, tpu_chips

CPU_DEVICES, CACHE_FOLDER = "jax_num_cpu_devices", "jax_compilation_cache_dir"
MOST_VIRTUAL_DEVICES = 64
"""Each virtual device has a thread that waits for all others, and a thousand of them kill the process."""
LATER_SECONDS = 60.0
"""Seconds between our own deadline for connecting the hosts and JAX's, at which XLA ends the process."""
DEAD_AFTER_SECONDS = 30
"""A host without a sign of life for this long counts as dead."""
PROGRAMS_BYTES = 4 * 1024**3
"""Above this size, the cache deletes the programs that were used longest ago."""
LOST = ("gloo", "connection", "unavailable", "heartbeat", "socket", "deadline_exceeded", "coordination")
"""Words in the errors of collectives and of the coordination service when another process has died."""


class _JaxProcesses:
    """`Processes` of a run with more than one process."""

    def __init__(self) -> None:
        self.rank, self.world_size = jax.process_index(), jax.process_count()

    def broadcast(self, data: bytes) -> bytes:
        length = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
        array = np.frombuffer(data, np.uint8) if self.rank == 0 else np.zeros(length, np.uint8)
        return np.asarray(multihost_utils.broadcast_one_to_all(array)).astype(np.uint8).tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        sizes = multihost_utils.process_allgather(np.int32(len(data)))
        message = np.zeros(LONGEST_MESSAGE, np.uint8)
        message[: len(data)] = np.frombuffer(data, np.uint8)
        messages = np.asarray(multihost_utils.process_allgather(message)).astype(np.uint8)
        return [row[:size].tobytes() for row, size in zip(messages, np.asarray(sizes), strict=True)]

    def lost(self, error: Exception) -> bool:
        # Where a collective fails at once, JAX raises its error as a ValueError.
        text = str(error).lower()
        return isinstance(error, RuntimeError | ValueError) and any(sign in text for sign in LOST)

    def close(self) -> None:
        with suppress(RuntimeError, ValueError):
            self.broadcast(b"")  # waits while rank 0 copies its last checkpoint; shutdown waits 30 seconds
            jax.distributed.shutdown()


def choose_device(engine: EngineSection) -> str:
    """Resolves `auto`: TPU chips if there are any, else the CPU. Raises `ConfigError` rather than leave a chip or a GPU
    of this machine idle."""
    chips, wanted = tpu_chips(), engine.device
    require_supported(engine, wanted)
    if wanted == "auto" and not chips and cuda_devices():
        what = "jax is for TPUs and for tests on a CPU, but this machine has an NVIDIA GPU"
        raise ConfigError(what, where="engine.kind", fix="set engine.kind: torch, or engine.device: cpu")
    if wanted == "tpu" and not chips:
        fix = "run it on a TPU VM, or compile for one with `maskwright plan`"
        raise ConfigError("tpu was requested, but this machine has no TPU chip", where="engine.device", fix=fix)
    if wanted == "tpu" or (wanted == "auto" and chips):
        require("libtpu", "engine.device")
        return "tpu"
    return "cpu"


def connect(engine: EngineSection) -> tuple[str, list[Any], Processes]:
    """(device, the devices of all hosts in an order that all agree on, processes). This is the first use of JAX.

    Raises `ConfigError` if a device is absent, `StoppedEarly` if the other hosts cannot be found.
    """
    device, launch = choose_device(engine), launch_variables()
    if launch and (engine.devices or launch.world_size) % launch.world_size:  # before jaxlib, which crashes
        raise ConfigError(
            f"{engine.devices} devices cannot be shared out evenly over {launch.world_size} processes",
            where="engine.devices",
            fix=f"set a multiple of {launch.world_size}, or leave it out",
        )
    if device == "cpu":
        _set_up_cpu(engine, launch.world_size if launch else 1)
    _keep_programs()
    if (launch and launch.world_size > 1) or (device == "tpu" and launch is None):
        _find_hosts(launch)
    try:
        jax.config.update("jax_platforms", device)
        devices = jax.devices()
    except RuntimeError as error:
        # The backends of several hosts exchange their devices. libtpu also reports its own chips as "Unavailable".
        signs = [sign for sign in LOST if sign != "unavailable"]
        if jax.distributed.is_initialized() and any(sign in str(error).lower() for sign in signs):
            raise partner_gone(error) from None
        raise MaskwrightError(
            f"JAX cannot use this device: {error}", where=f"engine.device {device}", fix="follow the driver's message"
        ) from None
    processes: Processes = _JaxProcesses() if jax.process_count() > 1 else Alone()
    wanted = engine.devices or (processes.world_size if device == "cpu" else None)
    return device, first_devices(devices, wanted), processes


def _keep_programs() -> None:
    """Keeps compiled programs for later starts, in JAX's own cache, whose keys contain versions, options and the kind
    of device. JAX's variables come first."""
    if getattr(jax.config, CACHE_FOLDER) is not None:
        return
    try:
        folder = storage.make_cache_folder("jax")
    except InputError as error:
        warn(f"{error}; until this is fixed, each start compiles its programs again")
        return
    jax.config.update(CACHE_FOLDER, folder)
    jax.config.update("jax_compilation_cache_max_size", PROGRAMS_BYTES)


def _set_up_cpu(engine: EngineSection, hosts: int) -> None:
    """Makes `engine.devices` virtual devices in one process on a CPU: sharding over chips, without any chips."""
    threads = engine.threads or hardware.spread_over_cores()
    local_devices = (engine.devices or hosts) // hosts
    if local_devices > MOST_VIRTUAL_DEVICES:
        raise ConfigError(
            f"{local_devices} devices were requested; a CPU has at most {MOST_VIRTUAL_DEVICES} virtual ones",
            where="engine.devices",
            fix="use fewer, or compile for large slices with `maskwright plan`",
        )
    if hosts > 1:
        # A device that waits for another process holds a thread, and all wait at once.
        threads = max(threads, local_devices)
    os.environ.setdefault("PJRT_NPROC", str(threads))
    if local_devices > getattr(jax.config, CPU_DEVICES):
        with suppress(RuntimeError):  # the devices exist already; `first_devices` reports too few
            jax.config.update(CPU_DEVICES, local_devices)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")


def _find_hosts(launch: Launch | None) -> None:
    if jax.distributed.is_initialized():
        return
    options: dict[str, Any] = {}
    if launch:
        host = f"[{launch.address}]" if ":" in launch.address else launch.address
        options = {
            "coordinator_address": f"{host}:{launch.port}",
            "num_processes": launch.world_size,
            "process_id": launch.rank,
            "cluster_detection_method": "deactivate",
        }
        if is_loopback(launch.address):  # JAX would listen on every address
            options["coordinator_bind_address"] = options["coordinator_address"]
    # The run itself handles SIGTERM: the hosts agree on a step to stop at (the vote of `Program.update`).
    jax.config.update("jax_enable_preemption_service", False)

    def initialize() -> None:
        jax.distributed.initialize(
            **options,
            initialization_timeout=int(CONNECT_SECONDS + LATER_SECONDS),
            heartbeat_timeout_seconds=DEAD_AFTER_SECONDS,
            shutdown_timeout_seconds=DEAD_AFTER_SECONDS,
        )

    find(initialize, CONNECT_SECONDS)


def first_devices(devices: list[Any], count: int | None) -> list[Any]:
    """All devices, or the same number of each host's and `count` in all, in an order that all hosts agree on."""
    of_hosts: dict[int, list[Any]] = {}
    for device in sorted(devices, key=lambda device: (device.process_index, device.id)):
        of_hosts.setdefault(device.process_index, []).append(device)
    each = None if count is None else count // len(of_hosts)
    chosen = [device for of_host in of_hosts.values() for device in of_host[:each]]
    if count not in (None, len(chosen)):
        raise ConfigError(
            f"{count} devices were requested, but there are {len(devices)} on {len(of_hosts)} hosts",
            where="engine.devices",
            fix="give a multiple of the number of hosts, or leave it out for all; docs/tpu.md shows how to use one "
            "host or chip of a slice",
        )
    return chosen
