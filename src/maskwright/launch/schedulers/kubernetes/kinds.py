"""The objects for each kind of job, with their rules for a pod's end (`docs/kubernetes.md`).

The end of one pod ends all: the others lose their partner and end with 75. So all pods are restarted, without counting
it, after a 75 and a disruption (preemption, drain, eviction); an error (1, 2, 3) ends the job; any other end, such as
a kill for memory, counts as one of `--restarts`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

import yaml

from maskwright.core.errors import InputError
from maskwright.launch.checks import PORT
from maskwright.launch.outcome import EARLY
from maskwright.launch.ray.gang import STOP_WAIT
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
"""Exit codes that a restart would give again: failed, bad input, health, and no such command in the image."""
ONE_SLICE = {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}}
"""All pods on one node pool, which is a slice, and no other job's there:
docs.cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice"""
INSTANCE = "app.kubernetes.io/instance"
RAY_VERSION = "2.60.0"
"""KubeRay requires a version, and at least 2.52 for tokens. The image has the Ray that runs."""
STOP_SECONDS = 30
"""Time that a Ray job's driver has beyond the grace period of its gang before it is killed."""


def manifests(job: KubernetesJob, command: Training, config: str) -> list[Manifest]:
    """The objects in the order in which they are applied; the job is the last."""
    name = metadata(job) | {"name": job.config_map}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"run.yaml": config}}
    kinds = {"indexed-job": _indexed_job, "jobset": _jobset, "trainjob": _trainjob, "rayjob": _rayjob}
    return [config_map, *kinds[job.kind](job, command)]


def _words(command: Training) -> list[str]:
    """Words of the command without its limit of hours, which is the scheduler's (`_deadline`)."""
    return ["maskwright", *replace(command, config=CONFIG, stop_after_hours=None).words()]


def _words_on(job: KubernetesJob, command: Training, node_rank: str, rendezvous: str) -> list[str]:
    """Words of the command on each pod. Kubernetes replaces `$(NAME)` by the variable's value."""
    words = [literal(word) for word in _words(command)]
    meet = job.num_pods > 1 and not job.chips  # GKE tells the hosts of a slice of each other, and JAX reads it
    return words + (node_words(job.num_pods, node_rank, rendezvous) if meet else [])


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
            # A pod is not replaced while it still saves.
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
    return [service, _network_policy(job), indexed_job]


def _policy(restart: str) -> Manifest:
    """`restart`: the action for an end after which a restart may help."""
    container = {"containerName": CONTAINER, "operator": "In"}
    rules: list[Manifest] = [
        {"action": "FailJob", "onExitCodes": {**container, "values": FINAL}},
        {"action": restart, "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": restart, "onExitCodes": {**container, "values": [EARLY]}},
    ]
    return {"rules": rules}


def _gang(job: KubernetesJob) -> Manifest:
    count = job.num_pods
    return {"completionMode": "Indexed", "completions": count, "parallelism": count}


def _network_policy(job: KubernetesJob) -> Manifest:
    """Lets only the job's pods reach the rendezvous: any process that reaches it can take part in the run."""
    pods = {"matchLabels": {INSTANCE: job.name}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job),
        "spec": {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": pods}]}]},
    }


# ---- JobSet, and Kubeflow's TrainJob, which creates one --------------------------------------------------------------


def _jobset_spec(job: KubernetesJob, words: Sequence[str] | None) -> Manifest:
    """The first pod that fails makes the only Job fail, and then all pods are recreated. The message of a Job that
    failed by its policy ends in the number of the rule: so the JobSet distinguishes an early stop from an error."""
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
            # No new pod starts before all old ones are gone: the run directory has one writer.
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
        "metadata": metadata(job, queued=True) | (ONE_SLICE if job.chips and job.num_pods > 1 else {}),
        "spec": inner,
    }
    return [_network_policy(job), jobset] if job.num_pods > 1 else [jobset]


def _trainjob(job: KubernetesJob, command: Training) -> list[Manifest]:
    """A TrainJob with its own runtime: it cannot change the rules for restarts in a shared one."""
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
    policies = [_network_policy(job)] if job.num_pods > 1 else []
    return [*policies, runtime, trainjob]


# ---- RayJob (KubeRay) ------------------------------------------------------------------------------------------------


def _rayjob(job: KubernetesJob, command: Training) -> list[Manifest]:
    """A head that computes nothing, and `num_pods` pods. The same command is the job's driver: it runs its gang on the
    pods and restarts it by itself, as the job's metadata says."""
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
                "runtimeEnvYAML": yaml.safe_dump(wait),
                "submissionMode": "K8sJobMode",
                "shutdownAfterJobFinishes": True,  # Kueue requires it, and an idle cluster costs money
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
        "authOptions": {"mode": "token"},  # without a token, Ray's ports run anyone's code
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
    """A pod like those that train, but without GPUs."""
    small = replace(job, gpus=0, node_selector=(), cpus=cpus, memory=memory)
    pod = template(small, None)
    pod["spec"]["containers"][0]["name"] = "ray"
    return pod
