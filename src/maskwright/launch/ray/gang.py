"""`maskwright pretrain` as a Ray job: one command on each node of a gang. The commands start together and end together.

Ray only launches: a placement group reserves the machines, which is also what its autoscaler reads, and an actor in
each bundle starts the command. The run directory has the checkpoints, the step and the data order, so the same
submission continues exactly after any loss. Ray Train's TorchTrainer would do no more here, and it loads torch in the
driver (444 MB, 3 seconds) and polls its workers every 2 seconds.
"""

from __future__ import annotations

import glob
import json
import logging
import os
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig
from maskwright.config.recipes import find_config
from maskwright.core import storage
from maskwright.core.console import say, show_line, warn
from maskwright.core.errors import InputError, MaskwrightError, StoppedEarly
from maskwright.core.secrets import redact
from maskwright.launch import checks
from maskwright.launch.attempts import Attempt, Stop, run
from maskwright.launch.outcome import End
from maskwright.launch.ray.member import Member
from maskwright.launch.ray.sizes import SLICE_NAME, Gang, Node, asked, choose
from maskwright.launch.target import Training, node_words
from maskwright.run.directory import RunDirectory

DRIVER = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable that Ray's job server sets for the entrypoint and its children, not for actors (2.60, `JobSupervisor`)."""
ACCELERATOR_KEY = "maskwright_accelerator"
"""Key in the job's metadata that carries `submit ray --accelerator`."""
RESTART_WAIT_SECONDS = 2.0
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
"""Variable of the job with the time between SIGTERM and SIGKILL. Ray's default of 3 seconds is too short to save."""
FIRST_REPORT_SECONDS, REPORT_SECONDS = 5.0, 60.0
"""Time to the first message while the gang waits for machines, and between messages."""
ROOM_SECONDS = 1800.0
"""Time in which machines that the cluster lacks may join it."""
POLL_SECONDS = 1.0
OTHERS_SECONDS = 10.0
"""Time for the other members to end by themselves after one has failed."""
ANSWER_SECONDS = 15.0
"""Time, beyond the grace period, after which a member that was asked to stop counts as lost."""
TAIL_LINES = 20


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


def require_lasting(run: str, locations: Mapping[str, str], folder: str | None) -> None:
    """Raises `InputError` for paths that do not work in a job's folder, which is deleted with the job: a job may read
    files there, but not write its run. `locations`: the paths that it reads, by key."""
    if not os.path.isabs(run) and "://" not in run:
        what = "is relative, so the checkpoints would be lost with the Ray job's folder"
        fix = "give an absolute path on storage that all machines of the cluster see"
        raise InputError(what, where=f"--run {run}", fix=fix)
    for key, location in locations.items():
        if "://" in location or os.path.isabs(location):
            continue
        if folder is None or not glob.glob(os.path.join(glob.escape(folder), location)):
            fix = "give its absolute path on the cluster's machines, or upload it with --workdir (below 100 MiB)"
            raise InputError("is relative, and not in the job's working directory", where=f"{key}: {location}", fix=fix)


@dataclass
class _NodeCommand:
    """The command of each node. In the words of `pretrain`, `{files}` stands for a folder with `files`."""

    pretrain: Training
    files: dict[str, bytes] = field(default_factory=dict)
    grace_seconds: float = 30.0

    @property
    def run(self) -> str:
        return self.pretrain.run

    def __str__(self) -> str:
        return str(self.pretrain).replace("{files}/", "")

    def on(self, index: int, gang: Gang, rendezvous: str) -> tuple[list[str], dict[str, str]]:
        """Arguments and environment of one node."""
        # Without GPUs, Ray does not set this variable, and the node would see all GPUs of its machine.
        environment = {} if gang.gpus else {"CUDA_VISIBLE_DEVICES": ""}
        words = self.pretrain.words()
        return words + (node_words(gang.num_nodes, index, rendezvous) if gang.num_nodes > 1 else []), environment


def train_as_a_job(
    command: Training, config: RunConfig | FinetuneConfig, num_nodes: int | None, gpus: int | None
) -> None:
    """Trains as the driver of a Ray job, which sends the configuration with the command. Raises as `train` does."""
    require_lasting(command.run, checks.locations(command, config), os.getcwd())
    location = find_config(command.config, command.verb)
    name = os.path.basename(location)
    with storage.open_binary(location) as file:
        files = {name: file.read()}
    on_nodes = _NodeCommand(replace(command, config=f"{{files}}/{name}"), files, checks.grace_seconds(config))
    train(on_nodes, config, num_nodes, gpus)


def train(command: _NodeCommand, config: RunConfig | FinetuneConfig, num_nodes: int | None, gpus: int | None) -> None:
    """Runs the gang to its end. Raises `StoppedEarly` (75) if the run can be continued, `JobError` with the exit code
    of the node that failed first."""
    import ray

    name = f"Ray job {job_id()}"
    wanted = asked(config, num_nodes, gpus, _metadata().get(ACCELERATOR_KEY))
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    try:
        with Stop().on_signals() as stop:  # after `init`, which sets its own handler
            gang = wanted or choose(_nodes(), config, num_nodes, gpus)
            on_nodes = replace(command, pretrain=gang.fit(command.pretrain, config))
            say(f"{name}: {gang} ({'as asked' if wanted else 'chosen by what the cluster has'})")

            def begin(number: int) -> _RayAttempt:
                attempt = _RayAttempt(on_nodes, gang)
                attempt.begin(stop)
                say(f"{name}: attempt {number} on {', '.join(attempt.hosts)}: {command}")
                return attempt

            saved = RunDirectory(command.run).newest_step
            run(begin, stop, name, wait_seconds=RESTART_WAIT_SECONDS, saved=saved)
    finally:
        ray.shutdown()


def _nodes() -> list[Node]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


class _RayAttempt(Attempt):
    """One attempt. Call `begin`, then `poll` until `over`; `ends` are in the order of time."""

    def __init__(self, command: _NodeCommand, gang: Gang) -> None:
        self.command, self.gang = command, gang
        self.size, self.hosts = gang.num_nodes, list[str]()
        self.ends: list[End] = []
        self._groups: list[Any] = []
        self._actors: list[Any] = []
        self._pending: dict[Any, int] = {}
        self._tails: dict[int, deque[str]] = defaultdict(lambda: deque(maxlen=TAIL_LINES))
        self._stop_requested_at: float | None = None
        self._failed_at: float | None = None

    @property
    def over(self) -> bool:
        return len(self.ends) == self.size

    # ---- start -------------------------------------------------------------------------------------------------

    def begin(self, stop: Stop) -> None:
        """Waits for machines. Raises `StoppedEarly` if there are none in time, or at a signal."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if self.gang.slice:
            (head,) = self._reserve([{self.gang.slice.head: 1.0}], [{}], stop)
            self.gang = self.gang.on_slice_of(head)
            self.size = self.gang.num_nodes
        nodes = self._reserve([self.gang.bundle] * self.size, self.gang.labels, stop)
        if not nodes:
            self._ended(0, None, f"{self.gang.slice_name} was lost before all of its hosts had joined")
            return self._not_started()
        self.hosts = [node["NodeManagerAddress"] for node in nodes]
        for index in range(self.size):
            strategy = PlacementGroupSchedulingStrategy(self._groups[-1], placement_group_bundle_index=index)
            bundle = self.gang.bundle
            actor = ray.remote(Member).options(
                num_cpus=bundle.pop("CPU"),
                num_gpus=bundle.pop("GPU", 0.0),
                resources=bundle,
                scheduling_strategy=strategy,
                max_concurrency=4,
            )
            self._actors.append(actor.remote())
        ready = self._prepare(stop)
        if ready is not None:
            self._start_all(ready)

    def _reserve(self, bundles: list[dict[str, float]], labels: list[dict[str, str]], stop: Stop) -> list[Node]:
        """The machine of each bundle, once Ray has reserved all; none if the slice is lost while its hosts join."""
        import ray
        from ray.util.placement_group import placement_group, placement_group_table

        strategy = self.gang.strategy
        group = placement_group(bundles, strategy=strategy, bundle_label_selector=labels if any(labels) else None)
        self._groups.append(group)
        lacking_since, report_at = None, time.monotonic() + FIRST_REPORT_SECONDS
        while not group.wait(timeout_seconds=0.5):
            if stop.asked:
                raise StoppedEarly("asked to end while waiting for machines; nothing was started")
            now, nodes = time.monotonic(), _nodes()
            if self.gang.slice_name and self.gang.slice_name not in {node["Labels"].get(SLICE_NAME) for node in nodes}:
                return []
            missing = self.gang.missing(nodes)
            lacking_since = (lacking_since or now) if missing else None
            if lacking_since and now - lacking_since > ROOM_SECONDS:
                what = f"no room for {self.gang} in {ROOM_SECONDS / 60:g} minutes: {missing}"
                raise StoppedEarly(f"{what}; the same submission tries again")
            if now > report_at:
                report_at = now + REPORT_SECONDS
                say(f"waiting for {self.gang}: {missing or 'its machines are not free yet'}")
        machines = {node["NodeID"]: node for node in ray.nodes()}
        placed = placement_group_table(group)["bundles_to_node_id"]
        return [machines[placed[index]] for index in range(len(bundles))]

    def _prepare(self, stop: Stop) -> list[tuple[int, bool]] | None:
        """The result of `Member.prepare` on each node; None if one was lost, which ends the attempt."""
        import ray
        from ray.exceptions import RayError

        patience = self.command.grace_seconds + checks.LONGER_THAN_SAVING_SECONDS
        deadline = time.monotonic() + patience + ROOM_SECONDS  # an actor's process may be a download away
        pairs = zip(self._actors, self.hosts, strict=True)
        references = [actor.prepare.remote(self.command.run, host, patience) for actor, host in pairs]
        while len(ray.wait(references, num_returns=len(references), timeout=0.2)[0]) < len(references):
            if stop.asked:
                raise StoppedEarly("asked to end before it started")
            if time.monotonic() > deadline:
                raise MaskwrightError("a Ray worker does not start", fix="check `ray status` and the workers' logs")
        ready = []
        for index, reference in enumerate(references):
            try:
                ready.append(ray.get(reference))
            except RayError as error:
                self._ended(index, None, _reason(error))
        if len(ready) == len(references):
            return ready
        self._not_started()
        return None

    def _not_started(self) -> None:
        """Ends the attempt before any command has started."""
        self._stop_requested_at = time.monotonic()
        for index in set(range(self.size)) - {end.host for end in self.ends}:
            self._ended(index, None, "not started")

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
        told, tail = self._stop_requested_at is not None, tuple(self._tails[index])
        self.ends.append(End(index, code, told, redact(why), tail))
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

        for group in self._groups:
            remove_placement_group(group)


def _reason(error: Exception) -> str:
    return f"Ray lost it: {' '.join(str(error).partition('class_name')[0].split())[:200]}"
