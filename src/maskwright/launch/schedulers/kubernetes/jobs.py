"""Jobs in a Kubernetes cluster: status, logs, stop, list. The address of a job leads to its cluster:

    kubernetes:NAME                        in kubectl's current context and namespace
    kubernetes:NAMESPACE/NAME              in another namespace
    kubernetes:CONTEXT/NAMESPACE/NAME      in another context; without NAMESPACE in its own
    kubernetes:FOLDER/lab.yaml/NAME        in the cluster of an environment

Its state follows from its object (Job or JobSet), its pods, all with the label `INSTANCE`, and Kueue's Workload. Its
exit code follows from its pods: an error before 76, 76 before 75.
"""

from __future__ import annotations

import json
import os
import re
import select
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from subprocess import CompletedProcess, Popen
from typing import Any, ClassVar

from maskwright.core.console import Show, one_line, say, show_line, typed, warn
from maskwright.core.errors import CloudError, EndedAsAsked, InputError, MaskwrightError
from maskwright.core.secrets import redact
from maskwright.launch.follow import followed, is_transient, until_over, wait_until_over
from maskwright.launch.outcome import ASKED, EARLY, End, cause_of, conclude_elsewhere
from maskwright.launch.schedulers.kubernetes.kubectl import SECONDS, Access, kubectl, stream
from maskwright.launch.schedulers.kubernetes.pod import CONTAINER, INSTANCE, PRODUCT, QUEUE, RUN, Manifest
from maskwright.launch.target import JobList

POLL_SECONDS = 5.0
REST_SECONDS = 30.0
"""How long the rest of the log is read after the job's end."""
MOST_FAILURES = 3
"""Streams of a pod that has ended and whose lines cannot be read, as on a lost node."""
LAST_LINES = 20
"""Lines of a pod that failed, unless it is the pod that is followed."""
OURS = f"{PRODUCT}=maskwright"
"""Selects every object of every job."""
NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
JOBSETS, WORKLOADS = "jobsets.jobset.x-k8s.io", "workloads.kueue.x-k8s.io"
"""Resources of operators; a cluster without the operator does not have their API group."""


@dataclass(frozen=True)
class JobPod:
    name: str
    container: str
    index: int | None
    """Its index among the pods that train."""
    created: str
    node: str
    phase: str
    began: bool
    """Whether its container has run."""
    code: int | None
    """Exit code of its container, once it has ended."""
    ended: str
    why: str

    @property
    def failed(self) -> bool:
        return End(self.index or 0, self.code).failed


@dataclass(frozen=True)
class ClusterJob:
    address: str
    """As `status`, `logs` and `stop` take it."""
    name: str
    kind: str
    """Job or JobSet."""
    state: str
    """waiting, running, done, failed or stopped"""
    code: int | None
    """Exit code of a job that is over."""
    run: str
    """Run directory there."""
    created: str
    restarts: int
    why: str
    """Why it waits, or how it ended."""
    pods: list[JobPod] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.code is not None

    @property
    def leaders(self) -> list[JobPod]:
        """The pods whose lines are the job's, in order: pod 0 of each attempt."""
        return [pod for pod in self.pods if pod.index == 0]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def cells(self) -> tuple[str, ...]:
        return self.address, self.kind, self.state, "-" if self.code is None else str(self.code), self.created, self.run

    def now(self) -> str:
        return f"{self.state}{f': {redact(one_line(self.why))}' if self.why else ''}"

    def report(self) -> str:
        lines = [f"{self.address}  {self.kind}", f"  state    {self.state}"]
        lines += [f"  exit     {self.code}"] if self.over else []
        lines += [f"  restarts {self.restarts}"] if self.restarts else []
        lines += [f"  run      {self.run}", f"  created  {self.created}"]
        lines += [f"  why      {redact(one_line(self.why))}"] if self.why else []
        for pod in self.pods:
            how = f"exit {pod.code}" if pod.code is not None else pod.phase.lower()
            more = "  ".join(filter(None, (pod.node, redact(one_line(pod.why)))))
            lines.append(f"  pod      {pod.name}  {how}  {more}".rstrip())
        return "\n".join(lines)


def parse_address(address: str) -> tuple[str, str]:
    """(place, name) of a job. Place: an environment's YAML, `CONTEXT/NAMESPACE`, `NAMESPACE`, or ""."""
    where, _, name = address.removeprefix("kubernetes:").rpartition("/")
    if not NAME.fullmatch(name):
        fix = "write it as kubernetes:NAME, as submit prints it; `maskwright status kubernetes:` lists all"
        raise InputError(f"{address[:120]!r} is not a job in Kubernetes", where="kubernetes:…", fix=fix)
    return where, name


# ---- the cluster -----------------------------------------------------------------------------------------------------


@dataclass
class Jobs:
    """The jobs of one namespace. Raises `CloudError`s of `kubectl`."""

    access: Access

    def kubectl(self, words: list[str], *, text: str = "", seconds: float = SECONDS) -> CompletedProcess[str]:
        return kubectl(words, text=text, access=self.access, seconds=seconds)

    def get(self, name: str, address: str) -> ClusterJob:
        """Raises `InputError` if there is no such job."""
        found = self.find(name, address)
        if found is None:
            fix = "list jobs with `maskwright status kubernetes:`; submit again to continue a deleted job's run"
            raise InputError("no such job", where=address, fix=fix)
        return found

    def find(self, name: str, address: str) -> ClusterJob | None:
        return next(iter(self.select(f"{INSTANCE}={name}", lambda _: address)), None)

    def delete(self, job: ClusterJob, seconds: float) -> None:
        """In the foreground: the object goes with the last pod, and pods save first. Raises `MaskwrightError` if it
        still exists after `seconds`."""
        words = ["--cascade=foreground", "--wait=false", "--ignore-not-found"]
        self.kubectl(["delete", job.kind.lower(), job.name, *words])
        deadline = time.monotonic() + seconds
        while self.find(job.name, job.address) is not None:
            if time.monotonic() > deadline:
                fix = f"see `{typed(['status', job.address])}`"
                raise MaskwrightError(f"still there {seconds:g} s after its deletion", where=job.address, fix=fix)
            time.sleep(min(1.0, seconds))

    def select(self, selector: str, address_of: Callable[[str], str]) -> list[ClusterJob]:
        jobsets = [JOBSETS] if "jobset.x-k8s.io" in self.operators else []
        made = self._items(",".join(["jobs.batch", *jobsets, "pods"]), selector)
        found = []
        for item in made:
            # A JobSet's inner Job has the label too, and belongs to the JobSet.
            if item["kind"] == "Pod" or item["metadata"].get("ownerReferences"):
                continue
            name = item["metadata"]["labels"][INSTANCE]
            own = [one for one in made if one["metadata"]["labels"].get(INSTANCE) == name]
            found.append(_job_of(item, own, self._workload(item), address_of(name)))
        return found

    def _workload(self, item: Manifest) -> Manifest | None:
        """Kueue's object for a job in a queue; None if it may not be read."""
        if QUEUE not in item["metadata"].get("labels", {}) or "kueue.x-k8s.io" not in self.operators:
            return None
        try:
            selector = f"kueue.x-k8s.io/job-uid={item['metadata']['uid']}"
            return next(iter(self._items(WORKLOADS, selector)), None)
        except CloudError as error:
            if error.reason != "permission":
                raise
            return None

    def _items(self, kinds: str, selector: str) -> list[Manifest]:
        done = self.kubectl(["get", kinds, f"--selector={selector}", "--output=json"])
        return list(json.loads(done.stdout)["items"])

    @cached_property
    def operators(self) -> set[str]:
        """API groups of the cluster, including the groups of installed operators."""
        return {group["name"] for group in json.loads(self.kubectl(["get", "--raw=/apis"]).stdout)["groups"]}


# ---- from objects to a state -----------------------------------------------------------------------------------------


def condition(item: Manifest | None, kind: str, status: str = "True") -> Manifest | None:
    """The condition of this type, if it has this status."""
    conditions = ((item or {}).get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if (one["type"], one["status"]) == (kind, status)), None)


def _words_of(condition: Manifest | None) -> str:
    return ": ".join(filter(None, (condition.get("reason"), condition.get("message")))) if condition else ""


def _job_of(item: Manifest, own: Sequence[Manifest], workload: Manifest | None, address: str) -> ClusterJob:
    """`own`: all objects of the job."""
    made, status = item["metadata"], item.get("status") or {}
    pods = sorted((_pod_of(one) for one in own if one["kind"] == "Pod"), key=lambda pod: (pod.created, pod.index or 0))
    state, code, why = _state_of(item, [one for one in own if one["kind"] == "Job"], pods, workload)
    run, created = (made.get("annotations") or {}).get(RUN, ""), made.get("creationTimestamp", "")
    # A Job keeps the pods of all attempts; a JobSet counts the attempts.
    restarts = status.get("restarts") or max(0, len([pod for pod in pods if pod.index == 0]) - 1)
    return ClusterJob(address, made["name"], item["kind"], state, code, run, created, restarts, why, pods)


def _pod_of(pod: Manifest) -> JobPod:
    made, status = pod["metadata"], pod.get("status") or {}
    given = made.get("labels") or {}
    index = given.get("batch.kubernetes.io/job-completion-index")
    states = {one["name"]: one.get("state") or {} for one in status.get("containerStatuses") or ()}
    names = [one["name"] for one in pod["spec"]["containers"]]  # GKE may have added others
    container = next(name for name in (CONTAINER, *names) if name in names)
    state = states.get(container, {})
    ended, waits = state.get("terminated") or {}, state.get("waiting") or {}
    words = [
        "disrupted" if condition(pod, "DisruptionTarget") else "",
        _words_of(condition(pod, "PodScheduled", "False")),
        _words_of(waits or ended or status) if waits.get("reason") != "ContainerCreating" else "",
    ]
    return JobPod(
        made["name"],
        container,
        int(index) if index is not None else None,
        made.get("creationTimestamp", ""),
        pod["spec"].get("nodeName", ""),
        str(status.get("phase", "Pending")),
        bool(ended or "running" in state),
        ended.get("exitCode"),
        ended.get("finishedAt", ""),
        "; ".join(filter(None, words)),
    )


def _state_of(
    item: Manifest, inner: Sequence[Manifest], pods: Sequence[JobPod], workload: Manifest | None
) -> tuple[str, int | None, str]:
    """State, exit code once it is over, and why."""
    if condition(item, "Complete") or condition(item, "Completed"):
        return "done", 0, ""
    failed = [one for one in (condition(made, "Failed") for made in (item, *inner)) if one]
    if condition(item, "Failed"):
        # The inner Job of a JobSet holds the reason.
        why = "; ".join(dict.fromkeys(map(_words_of, failed)))
        if "DeadlineExceeded" in [one.get("reason") for one in failed]:
            return "stopped", ASKED, f"its time limit is over: {why}"
        ends = sorted((pod for pod in pods if pod.code is not None), key=lambda pod: pod.ended)
        code = cause_of(pod.code for pod in ends if pod.code is not None) or 1
        return ("stopped" if code in (ASKED, EARLY) else "failed"), code, why
    if workload is not None and workload["spec"].get("active") is False:
        return "stopped", ASKED, _words_of(condition(workload, "Evicted")) or "deactivated in Kueue"
    if item["spec"].get("suspend"):
        why = _words_of(condition(workload, "QuotaReserved", "False") or condition(workload, "Admitted", "False"))
        return "waiting", None, why or "suspended"
    if any(pod.began and pod.code is None for pod in pods):
        return "running", None, ""
    return "waiting", None, next((pod.why for pod in reversed(pods) if pod.why), "")


# ---- logs ------------------------------------------------------------------------------------------------------------


class LeadersLog:
    """The lines of a job's leaders as they come, each once, even if the stream is cut. `lines`: how many of the
    existing lines are shown."""

    def __init__(self, access: Access, show: Show, lines: int | None) -> None:
        self._access, self._show, self._lines = access, show, lines
        self._read = set[str]()
        """Pods whose lines were all shown."""
        self._pod = ""
        self._last = ""
        """Time of the last line of this pod. The kubelet writes nine digits of a second, so that texts compare."""
        self._partial = b""
        self._ended = False
        """Whether the pod had ended when its stream began, which then ends with the log."""
        self._failures = 0
        self._stack = ExitStack()
        self._process: Popen[str] | None = None

    def pump(self, job: ClusterJob | None, seconds: float) -> None:
        """Shows lines that come within `seconds`, or all remaining lines of a job that is over."""
        deadline, over = time.monotonic() + seconds, job is not None and job.over
        if over:
            self._end()  # an earlier stream may hang
        if self._process is None and job is not None:
            with suppress(CloudError):  # the next poll of the job fails in the same way
                self._begin(job)
        while (left := deadline - time.monotonic()) > 0:
            if self._process is None and over:
                return
            if self._process is None:
                return time.sleep(left)
            if not self._take(left):
                self._end()
                if over and job is not None:
                    self._begin(job)

    def close(self) -> None:
        self._stack.close()
        self._process = None

    def _begin(self, job: ClusterJob) -> None:
        began, tail = [pod for pod in job.leaders if pod.began], list[str]()
        if self._lines is not None and not self._pod:
            self._read |= {pod.name for pod in began[:-1]}
            tail = [f"--tail={self._lines}"]
        pod = next((pod for pod in began if pod.name not in self._read), None)
        if pod is None:
            return
        if pod.name != self._pod:
            self._last, self._failures = "", 0
        since = [f"--since-time={self._last}"] if self._last else []
        words = ["logs", pod.name, f"--container={pod.container}", "--follow", "--timestamps", *since, *tail]
        self._pod, self._ended = pod.name, pod.code is not None or job.over
        self._process = self._stack.enter_context(stream(words, self._access))

    def _take(self, seconds: float) -> bool:
        """Shows what comes within `seconds`; False at the stream's end."""
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        if not select.select([descriptor], [], [], seconds)[0]:
            return True
        piece = os.read(descriptor, 1 << 16)
        *whole, self._partial = (self._partial + piece).split(b"\n")
        for line in whole:
            moment, _, text = line.decode(errors="replace").partition(" ")
            if moment > self._last:
                self._last = moment
                self._show(None, text)
        return bool(piece)

    def _end(self) -> None:
        """The stream's end is the end of the log only if the pod had ended before."""
        if self._process is None:
            return
        if self._ended:
            self._failures += self._process.wait() != 0
            if self._process.returncode == 0 or self._failures >= MOST_FAILURES:
                self._read.add(self._pod)
        self._partial = b""
        self.close()


def follow_to_its_end(jobs: Jobs, name: str, address: str, show: Show = show_line, lines: int | None = None) -> None:
    """Shows states and lines until the job is over, then raises the error with its exit code. Ctrl-C ends only the
    following."""
    job: ClusterJob | None = jobs.get(name, address)
    log, shown = LeadersLog(jobs.access, show, lines), ""

    def poll() -> ClusterJob | None:
        nonlocal job, shown
        job = jobs.find(name, address)
        if job is None:
            raise EndedAsAsked("the job was deleted; the same submit continues the run", where=address)
        words = job.now()
        if job.restarts:
            words = words.replace(job.state, f"{job.state}, restarted {job.restarts} times", 1)
        if words != shown:
            say(f"{address}: {words}")
        shown = words
        return job if job.over else None

    with followed(address):
        try:
            ended = until_over(poll, address, 0.0, meanwhile=lambda: log.pump(job, POLL_SECONDS))
            with suppress(MaskwrightError):
                log.pump(ended, REST_SECONDS)
                _show_first_failure(jobs, ended, show)
        finally:
            log.close()
    conclude_elsewhere(ended.code or 0, redact(one_line(ended.why)), address)


def _show_first_failure(jobs: Jobs, job: ClusterJob, show: Show) -> None:
    failed = sorted((pod for pod in job.pods if pod.failed), key=lambda pod: pod.ended)
    if not failed or failed[0] in job.leaders:
        return
    pod = failed[0]
    words = ["logs", pod.name, f"--container={pod.container}", f"--tail={LAST_LINES}"]
    for line in jobs.kubectl(words).stdout.splitlines():
        show(pod.index, line)


# ---- the run target --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KubernetesTarget:
    address: str
    name: str
    access: Access

    takes: ClassVar[frozenset[str]] = frozenset({"--lines", "--checkpoint"})

    def status(self) -> ClusterJob:
        return Jobs(self.access).get(self.name, self.address)

    def logs(self, *, follow: bool, lines: int | None, show: Show) -> int:
        jobs = Jobs(self.access)
        if follow:
            follow_to_its_end(jobs, self.name, self.address, show, lines)
            return 0
        job = jobs.get(self.name, self.address)
        if (pod := next((pod for pod in reversed(job.leaders) if pod.began), None)) is None:
            say(f"{self.address}: no line yet; {job.now()}")
            return 0
        tail = [] if lines is None else [f"--tail={lines}"]
        with stream(["logs", pod.name, f"--container={pod.container}", *tail], self.access) as process:
            assert process.stdout is not None
            for line in process.stdout:
                show(None, line.rstrip("\n"))
        return 0

    def stop(self, *, checkpoint: bool, wait_seconds: float) -> str:
        """Asks the run, in its first pod, to save and end with 76; if no pod can be asked, deletes the job, whose pods
        save on SIGTERM. Raises `MaskwrightError` if it is not over after `wait_seconds`."""
        jobs = Jobs(self.access)
        job = jobs.get(self.name, self.address)
        if job.over:
            return f"{self.address}: {job.state} already, with exit code {job.code}"
        answer = self._ask(jobs, job, checkpoint, wait_seconds)
        if answer is None and checkpoint:
            fix = f"see `{typed(['status', self.address])}`"
            raise MaskwrightError("cannot save, because no pod runs", where=self.address, fix=fix)
        if answer is None:
            jobs.delete(job, wait_seconds)
            return f"{self.address}: deleted; the same submit continues the run"
        if checkpoint:
            return answer
        ended = wait_until_over(lambda: jobs.get(self.name, self.address), self.address, POLL_SECONDS, wait_seconds)
        return f"{self.address}: {ended.state}, exit code {ended.code}; the same submit continues the run"

    def _ask(self, jobs: Jobs, job: ClusterJob, checkpoint: bool, wait_seconds: float) -> str | None:
        """The answer of `maskwright stop RUN` in a pod that sees the run; None if none runs or it refuses."""
        pod = next((pod for pod in reversed(job.leaders) if pod.began and pod.code is None), None)
        if pod is None or not job.run:
            return None
        words = ["maskwright", "stop", job.run, f"--wait-seconds={wait_seconds:g}"]
        words += ["--checkpoint"] if checkpoint else []
        try:
            # kubectl's own limit; the command in the pod has another.
            exec_there = ["exec", pod.name, f"--container={pod.container}", "--"]
            return jobs.kubectl([*exec_there, *words], seconds=wait_seconds + SECONDS).stdout.strip()
        except CloudError as error:
            if is_transient(error):
                raise
            warn(error.what)
            return None


def list_jobs(access: Access, address_of: Callable[[str], str]) -> JobList:
    jobs = Jobs(access).select(OURS, address_of)
    return JobList(("JOB", "KIND", "STATE", "EXIT", "CREATED", "RUN"), jobs)
