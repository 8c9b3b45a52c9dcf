"""The objects for each kind of job, with their rules for a pod's end (`docs/kubernetes.md`).

When one pod ends, the others lose their partner and end with 75. So all pods are restarted after a 75 and after a
disruption (preemption, drain, eviction). These restarts are not counted here, since the run itself counts its starts
without a newer checkpoint. An error (1, 2, 3) and a requested end (76) end the job. Any other end, such as a kill for
memory, is one of `RESTARTS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from maskwright.launch.checks import PORT
from maskwright.launch.outcome import ASKED, EARLY
from maskwright.launch.schedulers.kubernetes import pod
from maskwright.launch.schedulers.kubernetes.pod import CONTAINER, KubernetesJob, Manifest, manifest
from maskwright.launch.schedulers.kubernetes.template import merged
from maskwright.launch.target import Training, node_words

FINAL = [1, 2, 3, ASKED, 126, 127]
"""Exit codes that end a job: failed, bad input, health, as asked, and no such command in the image."""
RESTARTS = 20
"""Restarts after pods that were killed, in the whole life of a job: Kubernetes cannot count those in a row. Of a gang,
each pod that JAX kills after another was lost is one."""
KEPT_SECONDS = 7 * 24 * 3600
"""Time after its end in which a job's objects and the lines of its pods stay in the cluster. The run stays in RUN."""
ONE_SLICE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
"""All pods on one node pool, which is a slice, and no other job's pods there:
docs.cloud.google.com/kubernetes-engine/docs/how-to/tpu-multislice"""


def manifests(job: KubernetesJob, command: Training, config: str) -> list[Manifest]:
    """The objects in the order in which a person can apply them: the configuration and the job are the last."""
    config_map = manifest("v1", "ConfigMap", pod.metadata(job) | {"name": job.config_map}, data={"run.yaml": config})
    words = ["maskwright", *replace(command, config=pod.CONFIG).words()]
    *others, main = (_jobset if job.kind == "jobset" else _indexed_job)(job, words)
    return [*others, config_map, main]


def _on_each_pod(job: KubernetesJob, words: Sequence[str], first: str) -> list[str]:
    """Words of the command on each pod; `first`: the host name of pod 0. Kubernetes replaces `$(NAME)` by the
    variable's value."""
    meet = job.num_pods > 1 and not job.chips  # GKE gives the hosts of a slice each other's names, which JAX reads
    nodes = node_words(job.num_pods, "$(JOB_COMPLETION_INDEX)", f"{first}.{job.name}:{PORT}") if meet else []
    return [*map(pod.literal, words), *nodes]


def _deadline(job: KubernetesJob) -> Manifest:
    """The server's own limit for a job without a queue; the queue's label holds it otherwise. It counts from the start
    of the object: a Job's over all restarts, a JobSet's Job from each restart."""
    return {"activeDeadlineSeconds": job.limit_seconds} if job.limit_seconds and not job.queue else {}


# ---- Job (batch/v1) ------------------------------------------------------------------------------------------------


def _indexed_job(job: KubernetesJob, words: Sequence[str]) -> list[Manifest]:
    spec = _job_spec(job, _on_each_pod(job, words, f"{job.name}-0"), RESTARTS, "Ignore")
    made = _with_template(job, pod.metadata_of_job(job), spec)
    spec = made["spec"]
    indexed_job = manifest("batch/v1", "Job", made["metadata"], spec=spec)
    if job.num_pods == 1:
        return [indexed_job]
    spec["template"]["spec"]["subdomain"] = job.name
    of_service = {
        "clusterIP": "None",
        "selector": {"batch.kubernetes.io/job-name": job.name},
        "publishNotReadyAddresses": True,
        "ports": [{"name": "rendezvous", "port": PORT}],
    }
    return [manifest("v1", "Service", pod.metadata(job), spec=of_service), _network_policy(job), indexed_job]


def _with_template(job: KubernetesJob, metadata: Manifest, spec: Manifest) -> Manifest:
    """Metadata and `spec` of a Job, which is deleted some time after its end, with the parts of the job's template."""
    return merged({"metadata": metadata, "spec": {"ttlSecondsAfterFinished": KEPT_SECONDS, **spec}}, *job.template)


def _job_spec(job: KubernetesJob, words: Sequence[str], restarts: int, restart: str) -> Manifest:
    """`restart`: the action for an end after which a restart may help."""
    container = {"containerName": CONTAINER, "operator": "In"}
    rules: list[Manifest] = [
        {"action": "FailJob", "onExitCodes": {**container, "values": FINAL}},
        {"action": restart, "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": restart, "onExitCodes": {**container, "values": [EARLY]}},
    ]
    return {
        "completionMode": "Indexed",
        "completions": job.num_pods,
        "parallelism": job.num_pods,
        **_deadline(job),
        "backoffLimit": restarts,
        "podFailurePolicy": {"rules": rules},
        # A pod is not replaced while it still saves.
        "podReplacementPolicy": "Failed",
        "template": pod.template(job, words),
    }


def _network_policy(job: KubernetesJob) -> Manifest:
    """Lets only the job's pods reach the rendezvous, since any process that reaches it can take part in the run."""
    pods = {"matchLabels": {pod.INSTANCE: job.name}}
    spec = {"podSelector": pods, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": pods}]}]}
    return manifest("networking.k8s.io/v1", "NetworkPolicy", pod.metadata(job), spec=spec)


# ---- JobSet --------------------------------------------------------------------------------------------------------


def _jobset(job: KubernetesJob, words: Sequence[str]) -> list[Manifest]:
    """The first pod that fails makes the only Job fail, and then all pods are recreated. The message of a Job that
    failed by its policy ends in the number of the rule, by which the JobSet distinguishes an early stop from an
    error."""
    by_policy = {"onJobFailureReasons": ["PodFailurePolicy"]}
    rules = [
        {"name": "failed", "action": "FailJobSet", **by_policy, "onJobFailureMessagePatterns": ["rule at index 0"]},
        {"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
        {"name": "early", "action": "RestartJobSetAndIgnoreMaxRestarts", **by_policy},
    ]
    metadata = pod.metadata_of_job(job)
    metadata["annotations"] |= ONE_SLICE if job.chips and job.num_pods > 1 else {}
    inner = _job_spec(job, _on_each_pod(job, words, f"{job.name}-{CONTAINER}-0-0"), 0, "FailJob")
    made = _with_template(job, metadata, inner)
    inner = made["spec"]
    kept = {key: inner.pop(key) for key in ("ttlSecondsAfterFinished",) if key in inner}  # of the JobSet
    template = {"metadata": {"labels": pod.labels(job.name)}, "spec": inner}
    spec = {
        **kept,
        # No new pod starts before all old ones are gone: the run directory has one writer.
        "failurePolicy": {"maxRestarts": RESTARTS, "restartStrategy": "BlockingRecreate", "rules": rules},
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [{"name": CONTAINER, "replicas": 1, "template": template}],
    }
    jobset = manifest("jobset.x-k8s.io/v1alpha2", "JobSet", made["metadata"], spec=spec)
    return [_network_policy(job), jobset] if job.num_pods > 1 else [jobset]
