"""`maskwright pretrain` as a Ray job: one command on each node of a gang; they start together and end together.

Ray only launches: a placement group reserves the machines, and an actor in each bundle starts the command. The run
directory has the checkpoints, the step and the data order, so whatever Ray loses, the same submission continues
exactly. Ray Train's TorchTrainer would do no more here, but it loads torch in the driver (444 MB, 3 seconds) and polls
its workers every 2 seconds.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig, require_devices
from maskwright.config.recipes import find_config
from maskwright.core import storage
from maskwright.core.console import say, several, show_line, warn
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.secrets import redact
from maskwright.launch import checks
from maskwright.launch.attempts import Stop, run
from maskwright.launch.checks import LONGER_THAN_SAVING_SECONDS
from maskwright.launch.hosts.supervisor import ANSWER_SECONDS, OTHERS_SECONDS, TAIL_LINES
from maskwright.launch.outcome import End
from maskwright.launch.ray.member import Member
from maskwright.launch.target import Training, node_words
from maskwright.run.directory import RunDirectory

DRIVER = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable that Ray's job server sets for the entrypoint and its children, not for actors (2.60, `JobSupervisor`)."""
RESTART_WAIT_SECONDS = 2.0
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Variable of the job with the time between SIGTERM and SIGKILL. Ray's default of 3 seconds is too short to save."""
REPORT_SECONDS, ROOM_SECONDS = 30.0, 1800.0
"""Time between two messages while the gang waits, and time in which a lost machine may be replaced."""
POLL_SECONDS = 1.0


def job_id() -> str | None:
    """The submission whose driver this process is. None elsewhere, as in a member of a gang (`WORLD_SIZE`)."""
    if "WORLD_SIZE" in os.environ:
        return None
    submission = _metadata().get("job_submission_id")
    return str(submission) if submission else None


def _metadata() -> dict[str, Any]:
    try:
        values = json.loads(os.environ.get(DRIVER, "{}")).get("metadata")
    except (ValueError, AttributeError):
        return {}
    return values if isinstance(values, dict) else {}


@dataclass(frozen=True)
class Gang:
    """`num_nodes` processes (or supervisors of processes) with `gpus` GPUs each; 0 means the CPU."""

    num_nodes: int
    gpus: int

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": float(max(1, self.gpus)), **({"GPU": float(self.gpus)} if self.gpus else {})}

    @property
    def strategy(self) -> str:
        """GPUs are placed close together, where they are fast, and CPU nodes on different machines if possible."""
        return "PACK" if self.gpus else "SPREAD"

    def fits(self, machines: Sequence[Mapping[str, float]]) -> bool:
        """Whether the gang would fit on these machines if they were empty."""
        room = [min(int(machine.get(name, 0.0) // n) for name, n in self.bundle.items()) for machine in machines]
        return sum(room) >= self.num_nodes

    def __str__(self) -> str:
        device = several(self.gpus, "GPU") if self.gpus else "the CPU"
        return f"{several(self.num_nodes, 'node')} with {device}{' each' * (self.num_nodes > 1)}"


def choose(
    machines: Sequence[Mapping[str, float]],
    num_nodes: int | None,
    gpus: int | None,
    virtual_workers: int,
    devices: int | None = None,
) -> Gang:
    """The gang that was asked for. If a number is None, as many GPUs as the cluster has and the batch can be divided
    among, or as many as `devices`, on as few machines as possible. Raises `InputError` if the cluster is too small."""
    gpu_counts = [int(machine.get("GPU", 0.0)) for machine in machines]
    if gpus is None or (num_nodes is None and gpus):
        possible = [
            Gang(count, size)
            for count in ([num_nodes] if num_nodes else range(1, sum(gpu_counts) + 1))
            for size in ([gpus] if gpus else range(1, max(gpu_counts, default=0) + 1))
            if virtual_workers % (count * size) == 0 and devices in (None, count * size)
            if Gang(count, size).fits(machines)
        ]
        smallest = Gang(num_nodes or 1, gpus or 0)
        gang = max(possible, key=lambda gang: (gang.num_nodes * gang.gpus, gang.gpus), default=smallest)
    else:
        gang = Gang(num_nodes or 1, gpus)
    if not gang.fits(machines):
        resources = "; ".join(
            ", ".join(f"{machine.get(name, 0.0):g} {name}s" for name in ("CPU", "GPU")) for machine in machines
        )
        what = f"no room for {gang}: the cluster's machines have {resources or 'nothing'}"
        fix = "ask for less, or add machines first (those that an autoscaler may add do not count yet)"
        raise InputError(what, where="--num-nodes, --gpus-per-node", fix=fix)
    return gang


def require_lasting(run: str, locations: Mapping[str, str | None], folder: str | None) -> None:
    """Raises `InputError` for paths that do not work in a job's folder, which is deleted with the job: a job may read
    files there, but not write its run. `locations`: the paths that it reads, by key."""
    if not os.path.isabs(run) and "://" not in run:
        what = "is relative, and a Ray job's folder is deleted at its end: the checkpoints would be lost"
        fix = "give an absolute path on storage that all machines of the cluster see"
        raise InputError(what, where=f"--run {run}", fix=fix)
    for key, location in locations.items():
        if location is None or "://" in location or os.path.isabs(location):
            continue
        if folder is None or not glob.glob(os.path.join(glob.escape(folder), location)):
            fix = "give its absolute path on the cluster's machines, or upload it with --working-dir (below 100 MiB)"
            raise InputError("is relative, and not in the job's working directory", where=f"{key}: {location}", fix=fix)


@dataclass
class _NodeCommand:
    """The command of each node. In the words of `pretrain`, `{files}` stands for a folder with `files`."""

    pretrain: Training
    files: dict[str, bytes] = field(default_factory=dict)
    grace_seconds: float = 30.0
    one_process: bool = False
    """True for JAX, where one process drives all devices of a node."""

    @property
    def run(self) -> str:
        return self.pretrain.run

    def __str__(self) -> str:
        return str(self.pretrain).replace("{files}/", "")

    def on(self, index: int, gang: Gang, rendezvous: str) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment of one node."""
        # Without GPUs, Ray does not set this variable, and the node would see all GPUs of its machine.
        environment = {} if gang.gpus else {"CUDA_VISIBLE_DEVICES": ""}
        # A node whose GPUs do not work must fail, and not train on its CPU.
        device = ["engine.device=cuda"] if gang.gpus else []
        processes = 1 if self.one_process else max(1, gang.gpus)
        words = replace(self.pretrain.setting(*device), processes=processes).words()
        return words + (node_words(gang.num_nodes, index, rendezvous) if gang.num_nodes > 1 else []), environment


def train_as_a_job(
    command: Training, config: RunConfig | FinetuneConfig, num_nodes: int | None, gpus: int | None
) -> None:
    """Trains as the driver of a Ray job, which sends the configuration with the command. Raises as `train` does."""
    require_lasting(command.run, checks.locations(command, config), os.getcwd())
    if config.engine.device == "cpu":
        if gpus:
            raise InputError(f"is cpu, and --gpus-per-node is {gpus}", where="engine.device", fix="leave one out")
        gpus = 0
    location = find_config(command.config, command.verb)
    name = os.path.basename(location)
    with storage.open_binary(location) as file:
        files = {name: file.read()}
    on_nodes = replace(command, config=f"{{files}}/{name}")
    grace = checks.grace_seconds(config)
    node_command = _NodeCommand(on_nodes, files, grace, one_process=config.engine.kind == "jax")
    train(node_command, config, num_nodes, gpus)


def train(command: _NodeCommand, config: RunConfig | FinetuneConfig, num_nodes: int | None, gpus: int | None) -> None:
    """Runs the gang to its end. Raises `StoppedEarly` (75) if the run can be continued, `JobError` with the exit code
    of the node that failed first."""
    import ray

    name = f"Ray job {job_id()}"
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        with Stop().on_signals() as stop:  # after `init`, which sets its own handler
            devices = config.engine.devices if config.engine.kind == "torch" else None
            gang = choose(_machines(), num_nodes, gpus, config.batch.virtual_workers, devices)
            require_devices(config.engine, gang.num_nodes * max(1, gang.gpus))
            origin = "as asked" if None not in (num_nodes, gpus) else "chosen by what the cluster has"
            say(f"{name}: {gang} ({origin})")
            if not gang.gpus and any(machine.get("GPU") for machine in _machines()):
                warn("the cluster has GPUs, and none is used; --gpus-per-node sets their number")

            def begin(number: int) -> _RayAttempt:
                attempt = _RayAttempt(command, gang)
                attempt.begin(stop, patient=number > 1)
                say(f"{name}: attempt {number} on {', '.join(attempt.hosts)}: {command}")
                return attempt

            saved = RunDirectory(command.run).newest_step
            run(begin, stop, name, wait_seconds=RESTART_WAIT_SECONDS, saved=saved)
    finally:
        ray.shutdown()


def _machines() -> list[dict[str, float]]:
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


class _RayAttempt:
    """One attempt. Call `begin`, then `poll` until `over`; `ends` are in the order of time."""

    def __init__(self, command: _NodeCommand, gang: Gang) -> None:
        self.command, self.gang = command, gang
        self.size, self.hosts = gang.num_nodes, list[str]()
        self.ends: list[End] = []
        self._group: Any = None
        self._actors: list[Any] = []
        self._pending: dict[Any, int] = {}
        self._tails = [deque[str](maxlen=TAIL_LINES) for _ in range(gang.num_nodes)]
        self._stop_requested_at: float | None = None
        self._failed_at: float | None = None

    @property
    def over(self) -> bool:
        return len(self.ends) == self.size

    # ---- start -------------------------------------------------------------------------------------------------

    def begin(self, stop: Stop, *, patient: bool) -> None:
        """Waits for machines. Raises `StoppedEarly` if there are none in time, or at a signal."""
        import ray
        from ray.util.placement_group import placement_group, placement_group_table
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._group = placement_group([self.gang.bundle] * self.gang.num_nodes, strategy=self.gang.strategy)
        self._wait_for_room(stop, patient)
        nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        placed = placement_group_table(self._group)["bundles_to_node_id"]
        self.hosts = [nodes[placed[index]] for index in range(self.gang.num_nodes)]
        for index in range(self.gang.num_nodes):
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            actor = ray.remote(Member).options(
                num_cpus=self.gang.bundle["CPU"],
                num_gpus=float(self.gang.gpus),
                scheduling_strategy=strategy,
                max_concurrency=4,
            )
            self._actors.append(actor.remote())
        ready = self._prepare(stop)
        if ready is not None:
            self._start_all(ready)

    def _wait_for_room(self, stop: Stop, patient: bool) -> None:
        began = reported_at = time.monotonic()
        while not self._group.wait(timeout_seconds=0.5):
            now = time.monotonic()
            if stop.asked:
                raise StoppedEarly("told to end while waiting for machines; nothing was started")
            enough = self.gang.fits(_machines())
            if not enough and now - began > (ROOM_SECONDS if patient else REPORT_SECONDS):
                raise StoppedEarly(f"the cluster has no room for {self.gang} any more; submit again when it has")
            if now - reported_at > REPORT_SECONDS:
                reported_at = now
                say(f"waiting for {self.gang}: {'others use the cluster' if enough else 'a machine is missing'}")

    def _prepare(self, stop: Stop) -> list[tuple[int, bool]] | None:
        """The result of `Member.prepare` on each node; None if one was lost, which ends the attempt."""
        import ray
        from ray.exceptions import RayError

        patience = self.command.grace_seconds + LONGER_THAN_SAVING_SECONDS
        deadline = time.monotonic() + patience + ROOM_SECONDS  # an actor's process may be a download away
        pairs = zip(self._actors, self.hosts, strict=True)
        references = [actor.prepare.remote(self.command.run, host, patience) for actor, host in pairs]
        while len(ray.wait(references, num_returns=len(references), timeout=0.2)[0]) < len(references):
            if stop.asked:
                raise StoppedEarly("told to end before it started")
            if time.monotonic() > deadline:
                raise MaskwrightError("a Ray worker does not start", fix="see `ray status` and the workers' logs")
        ready = []
        for index, reference in enumerate(references):
            try:
                ready.append(ray.get(reference))
            except RayError as error:
                self._ended(index, None, _reason(error))
        if len(ready) == len(references):
            return ready
        self._stop_requested_at = time.monotonic()
        lost = {end.host for end in self.ends}
        for index in set(range(self.gang.num_nodes)) - lost:
            self._ended(index, StoppedEarly.exit_code, "")
        return None

    def _start_all(self, ready: list[tuple[int, bool]]) -> None:
        for index, (_, free) in enumerate(ready):
            if not free:
                warn(f"host {index}: another process on {self.hosts[index]} still trains {self.command.run}")
        rendezvous = f"{self.hosts[0]}:{ready[0][0]}"
        for index, actor in enumerate(self._actors):
            words, environment = self.command.on(index, self.gang, rendezvous)
            actor.start.remote(words, self.command.run, self.command.files, environment, self.command.grace_seconds)
            self._pending[actor.poll.remote(POLL_SECONDS)] = index

    # ---- run ---------------------------------------------------------------------------------------------------

    def poll(self, seconds: float = 0.2) -> None:
        """Handles the answers that have come; waits up to `seconds` for the first."""
        import ray
        from ray.exceptions import RayError

        for reference in ray.wait(list(self._pending), timeout=seconds)[0] if self._pending else ():
            index = self._pending.pop(reference)
            try:
                lines, over, code = ray.get(reference)
            except RayError as error:
                self._ended(index, None, _reason(error))
                continue
            for line in lines:
                self._tails[index].append(redact(line))
                show_line(index, line)
            if over:
                self._ended(index, code, "" if code is not None else "its process was lost")
            else:
                self._pending[self._actors[index].poll.remote(POLL_SECONDS)] = index
        self._check_deadlines()

    def _ended(self, index: int, code: int | None, why: str) -> None:
        end = End(index, code, self._stop_requested_at is not None, redact(why), tuple(self._tails[index]))
        self.ends.append(end)
        if code != 0:
            self._failed_at = self._failed_at or time.monotonic()

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        if self._failed_at is not None and now - self._failed_at > OTHERS_SECONDS:
            self.request_stop()
        patience = self.command.grace_seconds + ANSWER_SECONDS
        if self._stop_requested_at is not None and now - self._stop_requested_at > patience:
            for index in list(self._pending.values()):
                self._ended(index, None, "did not answer")
            self._pending.clear()

    def request_stop(self) -> None:
        if self._stop_requested_at is None:
            self._stop_requested_at = time.monotonic()
            for actor in self._actors:
                actor.request_stop.remote()

    def close(self) -> None:
        """Releases the machines. The end of its actor asks a command that still runs to save and end."""
        from ray.util.placement_group import remove_placement_group

        if self._group is not None:
            remove_placement_group(self._group)


def _reason(error: Exception) -> str:
    return f"Ray lost it: {' '.join(str(error).split())[:200]}"
