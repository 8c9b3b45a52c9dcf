"""The objects for each kind of job. What each does when a pod ends, in `docs/kubernetes.md`, is decided here.

One end is every pod's end: the others lose their partner and end with 75. So 75 and a disruption (preemption, drain,
eviction) begin all pods again without being counted; an error (1, 2, 3) ends the job; all else, such as a kill for
memory, counts as one of `--restarts`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

import yaml

from maskwright.core.errors import InputError
from maskwright.launch.checks import PORT
from maskwright.launch.outcome import EARLY
from maskwright.launch.ray.gang import RESTARTS_KEY, STOP_WAIT
from maskwright.launch.schedulers.kubernetes.pod import (
    CONFIG,
    CONTAINER,
    KubernetesJob,
    Manifest,
    literal,
    metadata,
    template,
)
from maskwright.launch.target import Training, node_words

FINAL = [1, 2, 3, 126, 127]
"""Exit codes after which trying again gives the same: failed, bad input, health, and no such command in the image."""
INSTANCE = "app.kubernetes.io/instance"
RAY_VERSION = "2.60.0"
"""KubeRay wants one, and 2.52 at least for tokens. The Ray that runs is the image's."""
STOP_SECONDS = 30
"""What a Ray job's driver has beyond the grace period of its gang before it is killed."""


def manifests(job: KubernetesJob, command: Training, config: str) -> list[Manifest]:
    """In the order in which they are applied; the job is the last."""
    named = metadata(job) | {"name": job.config_map}
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": {"run.yaml": config}}
    kinds = {"indexed-job": _indexed_job, "jobset": _jobset, "trainjob": _trainjob, "rayjob": _rayjob}
    return [settings, *kinds[job.kind](job, command)]


def _words(command: Training) -> list[str]:
    """The scheduler sees to the hours."""
    return ["maskwright", *replace(command, config=CONFIG, stop_after_hours=None).words()]


def _words_on(job: KubernetesJob, command: Training, node_rank: str, rendezvous: str) -> list[str]:
    """On each pod. Between `$(` and `)` stand names of variables that Kubernetes fills in."""
    words = [literal(word) for word in _words(command)]
    return words + (node_words(job.num_pods, node_rank, rendezvous) if job.num_pods > 1 else [])


def _deadline(command: Training) -> Manifest:
    hours = command.stop_after_hours
    return {} if hours is None else {"activeDeadlineSeconds": max(1, round(hours * 3600))}


# ---- Job (batch/v1) ------------------------------------------------------------------------------------------------


def _indexed_job(job: KubernetesJob, command: Training) -> list[Manifest]:
    words = _words_on(job, command, "$(JOB_COMPLETION_INDEX)", f"{job.name}-0.{job.name}:{PORT}")
    pod = template(job, words)
    indexed_job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(job, queued=True),
        "spec": {
            **_gang(job),
            **_deadline(command),
            "backoffLimit": job.restarts,
            "podFailurePolicy": _policy("Ignore"),
            # A pod is replaced once it has ended, not while it still saves.
            "podReplacementPolicy": "Failed",
            "template": pod,
        },
    }
    if job.num_pods == 1:
        return [indexed_job]
    pod["spec"]["subdomain"] = job.name
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job),
        "spec": {
            "clusterIP": "None",
            "selector": {"batch.kubernetes.io/job-name": job.name},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "rendezvous", "port": PORT}],
        },
    }
    return [service, _wall(job), indexed_job]


def _policy(lost: str) -> Manifest:
    """`lost`: the action for a pod that another try may help."""
    named = {"containerName": CONTAINER, "operator": "In"}
    rules: list[Manifest] = [
        {"action": "FailJob", "onExitCodes": {**named, "values": FINAL}},
        {"action": lost, "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": lost, "onExitCodes": {**named, "values": [EARLY]}},
    ]
    return {"rules": rules}


def _gang(job: KubernetesJob) -> Manifest:
    count = job.num_pods
    return {"completionMode": "Indexed", "completions": count, "parallelism": count}


def _wall(job: KubernetesJob) -> Manifest:
    """Whoever reaches the rendezvous takes part in the run: only the job's own pods may."""
    own = {"matchLabels": {INSTANCE: job.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job),
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]},
    }


# ---- JobSet, and Kubeflow's TrainJob, which makes one ----------------------------------------------------------------


def _jobset_spec(job: KubernetesJob, words: Sequence[str] | None) -> Manifest:
    """The first pod that ends badly fails the only Job, and with it all pods are made anew. The message of a Job that
    failed by its policy ends in the number of the rule, by which the JobSet tells a wish from an error."""
    by_policy = {"onJobFailureReasons": ["PodFailurePolicy"]}
    job_spec = {
        **_gang(job),
        "backoffLimit": 0,
        "podFailurePolicy": _policy("FailJob"),
        "podReplacementPolicy": "Failed",
        "template": template(job, words),
    }
    return {
        "failurePolicy": {
            "maxRestarts": job.restarts,
            # All old pods are gone before the first new one comes: the folder of the run has one writer.
            "restartStrategy": "BlockingRecreate",
            "rules": [
                {
                    "name": "failed",
                    "action": "FailJobSet",
                    **by_policy,
                    "onJobFailureMessagePatterns": ["rule at index 0"],
                },
                {"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
                {"name": "early", "action": "RestartJobSetAndIgnoreMaxRestarts", **by_policy},
            ],
        },
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [{"name": CONTAINER, "replicas": 1, "template": {"spec": job_spec}}],
    }


def _jobset(job: KubernetesJob, command: Training) -> list[Manifest]:
    words = _words_on(job, command, "$(JOB_COMPLETION_INDEX)", f"{job.name}-{CONTAINER}-0-0.{job.name}:{PORT}")
    inner = _jobset_spec(job, words)
    inner["replicatedJobs"][0]["template"]["spec"].update(_deadline(command))
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(job, queued=True),
        "spec": inner,
    }
    return [_wall(job), jobset] if job.num_pods > 1 else [jobset]


def _trainjob(job: KubernetesJob, command: Training) -> list[Manifest]:
    """A runtime of its own: what a TrainJob may change of a shared one does not include how pods end and restart."""
    inner = _jobset_spec(job, None)
    step = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
    inner["replicatedJobs"][0]["template"]["metadata"] = step
    api = "trainer.kubeflow.org"
    runtime = {
        "apiVersion": f"{api}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(job),
        "spec": {"mlPolicy": {"numNodes": job.num_pods, "torch": {}}, "template": {"spec": inner}},
    }
    words = _words_on(job, command, "$(PET_NODE_RANK)", "$(PET_MASTER_ADDR):$(PET_MASTER_PORT)")
    trainjob = {
        "apiVersion": f"{api}/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, queued=True),
        "spec": {
            **_deadline(command),
            "runtimeRef": {"apiGroup": api, "kind": "TrainingRuntime", "name": job.name},
            "trainer": {
                "image": job.image,
                "command": words[:1],
                "args": words[1:],
                "numNodes": job.num_pods,
                "numProcPerNode": job.gpus or 1,
            },
        },
    }
    wall = [_wall(job)] if job.num_pods > 1 else []
    return [*wall, runtime, trainjob]


# ---- RayJob (KubeRay) ------------------------------------------------------------------------------------------------


def _rayjob(job: KubernetesJob, command: Training) -> list[Manifest]:
    """A head that computes nothing, and `num_pods` pods. The command is the same: as a Ray job's driver it runs its
    gang on them, begins it again itself, and reads how from the job's metadata."""
    words = [*_words(command), "--num-nodes", str(job.num_pods), "--gpus-per-node", str(job.gpus)]
    for word in words:
        if shlex.quote(word) != word:
            fix = "write it into the configuration, or use another --kind"
            raise InputError(f"{word[:80]!r} does not survive the two shells of a RayJob", where="submit", fix=fix)
    if job.cpus.isdecimal() and int(job.cpus) < job.gpus:
        raise InputError(f"{job.cpus} is less than one for each GPU", where="--cpus", fix=f"--cpus {4 * job.gpus}")
    wait = {"env_vars": {STOP_WAIT: str(job.grace_seconds + STOP_SECONDS)}}
    return [
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": metadata(job, queued=True),
            "spec": {
                **_deadline(command),
                "entrypoint": f"exec {' '.join(words)}",
                "metadata": {RESTARTS_KEY: str(job.restarts)},
                "runtimeEnvYAML": yaml.safe_dump(wait),
                "submissionMode": "K8sJobMode",
                "shutdownAfterJobFinishes": True,  # Kueue wants it, and an idle cluster costs
                "backoffLimit": job.restarts,
                "rayClusterSpec": _ray_cluster(job),
                "submitterPodTemplate": _ray_pod(job, cpus="500m", memory="1Gi"),
            },
        }
    ]


def _ray_cluster(job: KubernetesJob) -> Manifest:
    workers = template(job, None)
    workers["spec"]["containers"][0]["name"] = "ray-worker"
    del workers["spec"]["restartPolicy"]  # KubeRay's own
    head = _ray_pod(job, cpus="2", memory="8Gi")
    del head["spec"]["restartPolicy"]
    count = job.num_pods
    return {
        "rayVersion": RAY_VERSION,
        "authOptions": {"mode": "token"},  # Ray's ports run whatever they are told, for anyone without it
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": head},
        "workerGroupSpecs": [
            {
                "groupName": "workers",
                "replicas": count,
                "minReplicas": count,
                "maxReplicas": count,
                "rayStartParams": {},
                "template": workers,
            }
        ],
    }


def _ray_pod(job: KubernetesJob, *, cpus: str, memory: str) -> Manifest:
    """As those that train, but without GPUs."""
    small = replace(job, gpus=0, node_selector=(), cpus=cpus, memory=memory)
    pod = template(small, None)
    pod["spec"]["containers"][0]["name"] = "ray"
    return pod
