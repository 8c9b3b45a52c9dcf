"""The nodes and controllers of a made-up cluster. Pods are processes; Jobs, JobSets and Kueue's Workloads are looked
after by the published rules:

    Job     kubernetes.io/docs/concepts/workloads/controllers/job: pod failure policy, backoff limit, deadline, suspend
    JobSet  jobset.sigs.k8s.io/docs/concepts, and what pkg/controllers/failure_policy.go of 0.10 does: the first rule
            whose reason and pattern fit the failed Job, else a restart that counts; BlockingRecreate
    Kueue   kueue.sigs.k8s.io/docs/concepts/workload: suspended until admitted, deactivated at its longest time
"""

import math
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import warm
from command_line import COMMAND
from fake_kubernetes import QUEUE_LABEL, FakeCluster, now

Manifest = dict[str, Any]
INDEX = "batch.kubernetes.io/job-completion-index"
MOST_SECONDS = "kueue.x-k8s.io/max-exec-time-seconds"


def condition(made: Manifest, kind: str) -> Manifest | None:
    found = made.get("status", {}).get("conditions", ())
    return next((one for one in found if one["type"] == kind and one["status"] == "True"), None)


def conclude(made: Manifest, kind: str, reason: str = "", message: str = "", value: str = "True") -> None:
    status = made.setdefault("status", {})
    others = [one for one in status.get("conditions", ()) if one["type"] != kind]
    status["conditions"] = [*others, {"type": kind, "status": value, "reason": reason, "message": message}]


class Nodes:
    """`folders`: what lies at the mount paths of pods. `images`: folder of programs by image; None for
    the maskwright of these tests. `admits`: whether Kueue
    has room."""

    def __init__(
        self, cluster: FakeCluster, scratch: Path, folders: dict[str, Path], images: dict[str, Path | None]
    ) -> None:
        self.cluster, self.scratch, self.folders, self.images = cluster, scratch, folders, images
        self.admits = True
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.lines: dict[str, list[str]] = {}
        self.drained: set[str] = set()
        self.judged: set[str] = set()
        """Pods whose end the controller has seen."""
        self.terminating: dict[str, float] = {}
        """Pods that got SIGTERM, and the time of their SIGKILL."""
        cluster.log_of = lambda pod: (list(self.lines.get(pod, ())), pod in self.drained)
        cluster.run_in = self.run

    # ---- pods --------------------------------------------------------------------------------------------------------

    def real(self, pod: str, text: str) -> str:
        """The text with the paths of the node in place of those in the pod."""
        config = self.scratch / pod / "config"
        for folder, path in {**self.folders, "/etc/maskwright": config}.items():
            text = re.sub(rf"(?<![\w/.-]){re.escape(folder)}(?![\w.-])", str(path), text)
        return re.sub(r"[a-z0-9-]+-0\.[a-z0-9-]+:", "127.0.0.1:", text)  # the name of pod 0

    def surroundings(self, made: Manifest) -> dict[str, str]:
        container = made["spec"]["containers"][0]
        values = {"JOB_COMPLETION_INDEX": made["metadata"]["labels"][INDEX]}
        for entry in container["env"]:
            values[entry["name"]] = entry.get("value", "")
            if "valueFrom" in entry:
                reference = entry["valueFrom"]["secretKeyRef"]
                secrets = self.cluster.of_kind("Secret")
                secret = next(one for one in secrets if one["metadata"]["name"] == reference["name"])
                values[entry["name"]] = secret["stringData"][reference["key"]]
        path = f"{self.images[container['image']] or Path(sys.executable).parent}:/usr/bin:/bin"
        kept = {
            name: os.environ[name]
            for name in ("OMP_NUM_THREADS", "PYTHONUNBUFFERED", "COVERAGE_PROCESS_START")
            if name in os.environ
        }
        name = made["metadata"]["name"]
        return kept | {key: self.real(name, value) for key, value in values.items()} | {"PATH": path}

    def start(self, made: Manifest) -> None:
        """Once its configuration is there: the kubelet waits for what a pod mounts."""
        name, container = made["metadata"]["name"], made["spec"]["containers"][0]
        wanted = next(one["configMap"]["name"] for one in made["spec"]["volumes"] if "configMap" in one)
        found = next((one for one in self.cluster.of_kind("ConfigMap") if one["metadata"]["name"] == wanted), None)
        if found is None:
            return
        config = self.scratch / name / "config"
        config.mkdir(parents=True)
        for file, text in found["data"].items():
            (config / file).write_text(self.real(name, text))
        environment = self.surroundings(made)

        def expanded(word: str) -> str:
            return re.sub(
                r"\$\$|\$\((\w+)\)", lambda match: environment.get(match[1], match[0]) if match[1] else "$", word
            )

        words = [self.real(name, expanded(word)) for word in [*container["command"], *container.get("args", ())]]
        ours = words[0] == "maskwright" and self.images[container["image"]] is None
        process = warm.Popen(
            [*COMMAND, *words[1:]] if ours else words, env=environment,
            cwd=config.parent, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.processes[name], self.lines[name] = process, []
        made["spec"]["nodeName"] = "node-1"
        made["status"] = {
            "phase": "Running",
            "containerStatuses": [{"name": container["name"], "state": {"running": {}}}],
        }

        def read() -> None:
            assert process.stdout is not None
            with process.stdout:
                for line in process.stdout:
                    moment = time.time_ns()
                    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment // 10**9)) + f".{moment % 10**9:09d}Z"
                    self.lines[name].append(f"{stamp} {line.decode(errors='replace').rstrip()}")
            process.wait()
            self.drained.add(name)

        Thread(target=read, daemon=True).start()

    def run(self, pod: str, words: list[str]) -> tuple[int, str]:
        """`kubectl exec`"""
        (made,) = [one for one in self.cluster.of_kind("Pod") if one["metadata"]["name"] == pod]
        done = subprocess.run(
            [self.real(pod, word) for word in words], env=self.surroundings(made), capture_output=True, text=True,
            check=False, cwd=self.scratch / pod,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def pods_of(self, owner: Manifest) -> list[Manifest]:
        uid = owner["metadata"]["uid"]
        return [pod for pod in self.cluster.of_kind("Pod") if pod["metadata"]["ownerReferences"][0]["uid"] == uid]

    def names(self, index: int = 0) -> list[str]:
        """Of the pods with this index, in the order in which they were made."""
        return [
            pod["metadata"]["name"]
            for pod in self.cluster.of_kind("Pod")
            if pod["metadata"]["labels"][INDEX] == str(index)
        ]

    def terminate(self, pod: Manifest) -> None:
        name = pod["metadata"]["name"]
        if name not in self.processes:
            pod["status"]["phase"] = "Failed"
        if name not in self.terminating and name in self.processes and self.processes[name].poll() is None:
            self.terminating[name] = time.monotonic() + pod["spec"]["terminationGracePeriodSeconds"]
            with suppress(ProcessLookupError):
                os.kill(self.processes[name].pid, signal.SIGTERM)

    def disrupt(self, name: str) -> None:
        """What a preemption, a drain and an eviction do: the pod is marked, and told to end."""
        with self.cluster.lock:
            (pod,) = [one for one in self.cluster.of_kind("Pod") if one["metadata"]["name"] == name]
            conclude(pod, "DisruptionTarget", "TerminationByKubelet")
            self.terminate(pod)

    def kill(self, name: str) -> None:
        os.killpg(self.processes[name].pid, signal.SIGKILL)

    def look(self, pod: Manifest) -> None:
        """Writes a pod's end into its status, as the kubelet does."""
        name = pod["metadata"]["name"]
        if pod["status"]["phase"] == "Pending":
            self.start(pod)
        if self.terminating.get(name, math.inf) < time.monotonic():
            with suppress(ProcessLookupError):
                self.kill(name)
        if name not in self.drained or "terminated" in pod["status"]["containerStatuses"][0]["state"]:
            return
        code = self.processes[name].returncode
        code = 128 - code if code < 0 else code
        state = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}
        pod["status"]["containerStatuses"][0]["state"] = {"terminated": state}
        pod["status"]["phase"] = "Failed" if code else "Succeeded"

    # ---- controllers -------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        with self.cluster.lock:
            for pod in self.cluster.of_kind("Pod"):
                self.look(pod)
            for job in [*self.cluster.of_kind("Job"), *self.cluster.of_kind("JobSet")]:
                if QUEUE_LABEL in job["metadata"].get("labels", {}):
                    self.queue(job)
                if "deletionTimestamp" in job["metadata"]:
                    self.delete(job)
                elif not any(condition(job, kind) for kind in ("Complete", "Completed", "Failed")):
                    (self.job if job["kind"] == "Job" else self.jobset)(job)

    def delete(self, made: Manifest) -> None:
        """In the foreground."""
        inner = self.inner(made)
        pods = [pod for one in (made, *inner) for pod in self.pods_of(one)]
        for pod in pods:
            self.terminate(pod)
        if all(self.is_over(pod) for pod in pods):
            self.cluster.remove(self.cluster.path_of(made))

    def inner(self, jobset: Manifest) -> list[Manifest]:
        uid = jobset["metadata"]["uid"]
        owners = [(job, job["metadata"].get("ownerReferences", ())) for job in self.cluster.of_kind("Job")]
        return [job for job, refs in owners if any(one["uid"] == uid for one in refs)]

    @staticmethod
    def is_over(pod: Manifest) -> bool:
        return pod["status"]["phase"] in ("Succeeded", "Failed")

    def queue(self, job: Manifest) -> None:
        """Kueue: a Workload for each job, which is suspended while its Workload is not admitted."""
        uid, labels = job["metadata"]["uid"], {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
        workload = next((one for one in self.cluster.of_kind("Workload") if one["metadata"]["labels"] == labels), None)
        if workload is None:
            same = {key: job["metadata"][key] for key in ("name", "namespace")}
            owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": same["name"], "uid": uid}
            made = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {"active": True}}
            workload = self.cluster.add(made | {"metadata": same | {"labels": labels, "ownerReferences": [owner]}})
            job["spec"]["suspend"] = True
        most = job["metadata"]["labels"].get(MOST_SECONDS)
        began = workload.get("admitted")
        if began and most and time.monotonic() - began > int(most):
            workload["spec"]["active"] = False
            conclude(workload, "Evicted", "DeactivatedDueToMaximumExecutionTimeExceeded", "exceeding the maximum time")
        admitted = workload["spec"]["active"] and self.admits
        if admitted and not began:
            workload["admitted"] = time.monotonic()
        value, why = ("True", "") if admitted else ("False", "insufficient unused quota for cpu in flavor spot")
        conclude(workload, "QuotaReserved", "QuotaReserved" if admitted else "Pending", why, value)
        job["spec"]["suspend"] = not admitted

    def judge(self, job: Manifest, pod: Manifest) -> tuple[str, str]:
        """The action of the first rule that fits a pod that failed, and the message."""
        code = pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for number, rule in enumerate(job["spec"]["podFailurePolicy"]["rules"]):
            at = f"matching {rule['action']} rule at index {number}"
            if code in rule.get("onExitCodes", {}).get("values", ()):
                return rule["action"], f"Container node for pod {name} failed with exit code {code} {at}"
            if any(condition(pod, one["type"]) for one in rule.get("onPodConditions", ())):
                return rule["action"], f"Pod {name} has condition DisruptionTarget {at}"
        return "Count", ""

    def job(self, job: Manifest) -> None:
        spec, status, pods = job["spec"], job.setdefault("status", {}), self.pods_of(job)
        if spec.get("suspend"):
            status.pop("startTime", None)
            for pod in pods:
                self.terminate(pod)
            return
        began = status.setdefault("startTime", time.monotonic())
        for pod in pods:
            name = pod["metadata"]["name"]
            if pod["status"]["phase"] == "Failed" and name not in self.judged:
                self.judged.add(name)
                action, message = self.judge(job, pod) if name not in status.get("ended", ()) else ("Ignore", "")
                status["failed"] = status.get("failed", 0) + (action == "Count")
                if action == "FailJob":
                    status.setdefault("target", ["PodFailurePolicy", message])
        if status.get("failed", 0) > spec["backoffLimit"]:
            status.setdefault("target", ["BackoffLimitExceeded", "Job has reached the specified backoff limit"])
        if time.monotonic() - began > spec.get("activeDeadlineSeconds", 1e9):
            status.setdefault("target", ["DeadlineExceeded", "Job was active longer than specified deadline"])
        if "target" in status:
            for pod in pods:
                self.terminate(pod)
            if all(map(self.is_over, pods)):
                conclude(job, "Failed", *status.pop("target"))
            return
        for index in range(spec["completions"]):
            mine = [pod for pod in pods if pod["metadata"]["labels"][INDEX] == str(index)]
            if all(pod["status"]["phase"] == "Failed" for pod in mine):
                self.new_pod(job, index)
        done = {pod["metadata"]["labels"][INDEX] for pod in pods if pod["status"]["phase"] == "Succeeded"}
        if len(done) == spec["completions"]:
            conclude(job, "Complete")

    def new_pod(self, job: Manifest, index: int) -> None:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        made = {
            "name": f"{name}-{index}-{uuid.uuid4().hex[:5]}",
            "namespace": job["metadata"]["namespace"],
            "labels": {**template["metadata"]["labels"], INDEX: str(index)},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": made, "spec": dict(template["spec"])}
        self.cluster.add(pod | {"status": {"phase": "Pending"}})

    def jobset(self, jobset: Manifest) -> None:
        spec, status, inner = jobset["spec"], jobset.setdefault("status", {}), self.inner(jobset)
        suspended = spec.get("suspend", False)
        if status.get("recreating"):
            for job in inner:
                self.delete(job)  # BlockingRecreate: the next begins when no pod is left
            if self.inner(jobset):
                return
            status["recreating"], inner = False, []
        if not inner and not suspended:
            self.new_job(jobset)
        for job in inner:
            job["spec"]["suspend"] = suspended
            if condition(job, "Complete"):
                conclude(jobset, "Completed", "AllJobsCompleted")
            if failed := condition(job, "Failed"):
                self.fail(jobset, failed)

    def fail(self, jobset: Manifest, failed: Manifest) -> None:
        policy, status = jobset["spec"]["failurePolicy"], jobset["status"]
        action = "RestartJobSet"
        for rule in policy["rules"]:
            patterns = rule.get("onJobFailureMessagePatterns", [""])
            fits = any(re.search(pattern, failed["message"]) for pattern in patterns)
            if failed["reason"] in rule["onJobFailureReasons"] and fits:
                action = rule["action"]
                break
        counted = status.get("restartsCountTowardsMax", 0)
        if action == "FailJobSet" or (action == "RestartJobSet" and counted >= policy["maxRestarts"]):
            reason = "FailJobSetFailurePolicyAction" if action == "FailJobSet" else "ReachedMaxRestarts"
            return conclude(jobset, "Failed", reason, "jobset failed")
        status["restartsCountTowardsMax"] = counted + (action == "RestartJobSet")
        status["restarts"], status["recreating"] = status.get("restarts", 0) + 1, True
        return None

    def new_job(self, jobset: Manifest) -> None:
        (replicated,) = jobset["spec"]["replicatedJobs"]
        same = {key: jobset["metadata"][key] for key in ("name", "namespace")}
        owner = {key: jobset[key] for key in ("apiVersion", "kind")} | {"name": same["name"]}
        made = {
            "name": f"{same['name']}-{replicated['name']}-0",
            "namespace": same["namespace"],
            "labels": dict(replicated["template"]["metadata"]["labels"]),
            "ownerReferences": [owner | {"uid": jobset["metadata"]["uid"]}],
        }
        spec = dict(replicated["template"]["spec"])
        self.cluster.add({"apiVersion": "batch/v1", "kind": "Job", "metadata": made, "spec": spec})


@contextmanager
def running(nodes: Nodes) -> Iterator[Nodes]:
    stop = Event()

    def look_after() -> None:
        while not stop.wait(0.05):
            nodes.poll()

    thread = Thread(target=look_after, daemon=True)
    thread.start()
    try:
        yield nodes
    finally:
        stop.set()
        thread.join()
        for name, process in nodes.processes.items():
            if process.poll() is None:
                nodes.kill(name)
                process.wait()
