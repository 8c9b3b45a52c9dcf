"""`submit kubernetes`: every object against the published schemas, and against the rules that those cannot say."""

import copy
import re

import pytest
import yaml
from fake_kubernetes import KIND_LABEL, RESOURCES, TOPOLOGY_LABEL, admission, fake_cluster
from reference.kubernetes.check import faults, published

from maskwright.core.errors import CloudError, InputError
from maskwright.launch.schedulers.kubernetes import template
from maskwright.launch.schedulers.kubernetes.gke import slice_pods
from maskwright.launch.schedulers.kubernetes.kinds import RESTARTS
from maskwright.launch.schedulers.kubernetes.kubectl import Access
from maskwright.launch.schedulers.kubernetes.kubectl import kubectl as run_kubectl

SCHEMAS = published()
KINDS = ["indexed-job", "jobset"]
WORDS = {
    "restartPolicy": {"Never"},
    "completionMode": {"Indexed"},
    "podReplacementPolicy": {"Failed"},
    "operator": {"In", "NotIn", "Exists", "Equal"},
    "fsGroupChangePolicy": {"OnRootMismatch", "Always"},
    "medium": {"", "Memory"},
    "restartStrategy": {"Recreate", "BlockingRecreate", "InPlaceRestart"},
}
"""What Kubernetes and JobSet accept, and their schemas leave open."""
SECRET = "hf_made_up_value_0123456789"
TEMPLATE = """
metadata: {labels: {team: nlp, kueue.x-k8s.io/priority-class: high}, annotations: {owner: nlp}}
spec:
  ttlSecondsAfterFinished: 86400
  template:
    metadata: {labels: {team: nlp}, annotations: {kueue.x-k8s.io/podset-required-topology: rack}}
    spec:
      priorityClassName: batch
      serviceAccountName: trainer
      imagePullSecrets: [{name: registry}]
      nodeSelector: {cloud.google.com/gke-spot: "true"}
      tolerations: [{key: pool, operator: Equal, value: gpus, effect: NoSchedule}]
      securityContext: {runAsUser: 2000, fsGroup: null}
      volumes:
        - {name: lustre, hostPath: {path: /lustre}}
        - {name: warm, emptyDir: {}}
        - {name: read, persistentVolumeClaim: {claimName: a, readOnly: true}}
      initContainers: [{name: proxy, image: "proxy:1"}]
      containers:
        - name: node
          env: [{name: NCCL_DEBUG, value: WARN}, {name: KEY, valueFrom: {secretKeyRef: {name: wandb, key: key}}}]
          envFrom: [{secretRef: {name: more}}]
          imagePullPolicy: Always
          resources: {limits: {cpu: 96}, requests: {ephemeral-storage: 10Gi}}
          securityContext: {capabilities: {drop: [NET_RAW], add: [IPC_LOCK]}}
          volumeMounts:
            - {name: lustre, mountPath: /lustre/}
            - {name: warm, mountPath: /warm}
            - {name: read, mountPath: /read}
            - {name: scratch, mountPath: /tmp2}
"""
BASE = ["--image=registry/maskwright:1", "--mount=data:/data", "--mount=runs:/runs"]


def submit(cli, folder, *options, run="/runs/base-1", text=""):
    (folder / "team.yaml").write_text(TEMPLATE)
    config = folder / "run.yaml"
    config.write_text(
        text or "data: {store: /data/store}\nbatch: {virtual_workers: 96}\nschedule: {steps: 10}  # as $HOME\n"
    )
    options = tuple(option.replace("{folder}", str(folder)) for option in options)
    return cli("submit", "kubernetes", str(config), "--run", run, *BASE, *options)


def objects(cli, folder, *options):
    result = submit(cli, folder, "--dry-run", *options)
    assert result.code == 0, result.err
    return list(yaml.safe_load_all(result.out))


def of_pods(spec):
    """A template with only this in the pods' spec."""
    return f"spec: {{template: {{spec: {{{spec}}}}}}}"


def of_node(container):
    return of_pods(f"containers: [{{name: node, {container}}}]")


def dictionaries(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return ([value] if isinstance(value, dict) else []) + [found for one in inner for found in dictionaries(one)]


def pods(made):
    return [found for found in dictionaries(made) if "containers" in found]


def wrong(made, schemas=SCHEMAS):
    return [fault for one in made for fault in faults(one, schemas[one["kind"]], schemas, one["kind"])]


SLICE = ["--accelerator=v6e:4x4", "--set=engine.kind=jax", "--set=batch.virtual_workers=512", "--queue=team-a"]
FULL = [
    "--num-nodes=4", "--gpus-per-node=8", "--cpus=96", "--memory=900Gi", "--queue=team-a", "--namespace=ml",
    "--secret=hugging-face:key=HF_TOKEN", "--mount=gs://my-bucket:/more",
    "--stop-after-hours=12", "--set=data.store=/more/store",
    "--job-template={folder}/team.yaml",
]  # fmt: skip


@pytest.mark.parametrize("options", [[], FULL], ids=["plain", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_objects_fit_the_published_schemas(cli, tmp_path, kind, options):
    made = objects(cli, tmp_path, f"--kind={kind}", *options)
    assert wrong(made) == []
    for found in dictionaries(made):
        for key, allowed in WORDS.items():
            assert found.get(key, next(iter(allowed))) in allowed
    for one in made:
        assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", one["metadata"]["name"])
        assert one["metadata"].get("namespace") == ("ml" if options else None)


def test_the_check_finds_mistakes(cli, tmp_path):
    job = objects(cli, tmp_path)[-1]
    job["spec"].update(backofLimit=1, completions="2")
    assert wrong([job]) == ["Job.spec.completions: '2' is no integer", "Job.spec.backofLimit: unknown field"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_template_is_merged_into_the_job(cli, tmp_path, kind):
    plain, made = (objects(cli, tmp_path, f"--kind={kind}", *more)[-1] for more in ([], FULL))
    team = {"team": "nlp", "kueue.x-k8s.io/priority-class": "high"}
    assert team.items() <= made["metadata"]["labels"].items() and made["metadata"]["annotations"]["owner"] == "nlp"
    kept = [
        one["ttlSecondsAfterFinished"]
        for job in (plain, made)
        for one in dictionaries(job)
        if "ttlSeconds" in str(one.keys())
    ]
    assert kept == [604800, 86400] and "ttlSecondsAfterFinished" in made["spec"]
    (template,) = [one for one in dictionaries(made) if "containers" in one.get("spec", {})]
    assert template["metadata"]["labels"]["team"] == "nlp" and "owner" not in template["metadata"]["annotations"]
    pod, (before,) = template["spec"], pods([plain])
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == ("batch", "trainer")
    assert pod["imagePullSecrets"] == [{"name": "registry"}] and pod["initContainers"][0]["name"] == "proxy"
    keys = [one["key"] for one in pod["tolerations"]]
    assert keys == ["nvidia.com/gpu", "pool"]  # ours first
    assert pod["securityContext"]["runAsUser"] == 2000 and pod["securityContext"]["runAsNonRoot"] is True
    assert "fsGroup" in before["securityContext"] and "fsGroup" not in pod["securityContext"]
    assert [one["name"] for one in pod["volumes"]][-3:] == ["lustre", "warm", "read"]
    (node,) = pod["containers"]
    assert node["resources"] == {
        "requests": {"cpu": "96", "memory": "900Gi", "nvidia.com/gpu": "8", "ephemeral-storage": "10Gi"},
        "limits": {"cpu": 96, "memory": "900Gi", "nvidia.com/gpu": "8"},
    }
    assert node["securityContext"]["capabilities"] == {"drop": ["NET_RAW"], "add": ["IPC_LOCK"]}
    names = [one["name"] for one in node["env"]]
    assert names == ["HOME", "USER", "HF_TOKEN", "NCCL_DEBUG", "KEY"]
    here = "--job-template={folder}/team.yaml"
    assert submit(cli, tmp_path, "--dry-run", here, run="/lustre/one").code == 0
    for folder in ("warm", "read", "tmp2"):
        lost = submit(cli, tmp_path, "--dry-run", here, run=f"/{folder}/one")
        assert lost.error.startswith(f"--run: /{folder}/one would be lost with its pod")
    (tmp_path / "null.yaml").write_text(of_pods("securityContext: null"))
    (bare,) = pods(objects(cli, tmp_path, f"--kind={kind}", "--job-template={folder}/null.yaml"))
    assert "securityContext" not in bare and bare["containers"][0]["securityContext"]


TEMPLATES = [
    # what a template may not set: its place, and what to do
    ("spec: {parallelism: 2}", "spec.parallelism is set by submit. Fix: leave it out; --num-nodes sets it"),
    ("spec: {backoffLimit: 2}", "spec.backoffLimit is set by submit. Fix: leave it out"),
    ("metadata: {name: x}", "metadata.name is set by submit. Fix: leave it out; --name sets it"),
    ("metadata: {labels: {kueue.x-k8s.io/queue-name: x}}",
     "metadata.labels.kueue.x-k8s.io/queue-name is set by submit"),
    ("metadata: {annotations: {maskwright/run: x}}", "metadata.annotations.maskwright/run is set by submit"),
    ("kind: Pod", "kind cannot be set here. Fix: the keys here are metadata, spec"),
    ("spec: {template: {metadata: {lable: {}}}}",
     "spec.template.metadata.lable cannot be set here. Fix: did you mean labels?"),
    (of_pods("toleration: []"), "POD.toleration cannot be set here. Fix: did you mean tolerations?"),
    (of_pods("restartPolicy: Always"), "POD.restartPolicy is set by submit"),
    (of_pods("hostname: x"), "POD.hostname cannot be set here"),
    (of_pods("nodeSelector: [x]"), "POD.nodeSelector is not a mapping. Fix: write it as in a Job"),
    (of_pods("tolerations: {key: x}"), "POD.tolerations is not a list. Fix: write it as in a Job"),
    (of_pods("volumes: [{nfs: {}}]"), "POD.volumes[0] has no name. Fix: give its name"),
    (of_pods("volumes: [{name: data-0, nfs: {}}]"), "POD.volumes[data-0] is set by submit"),
    (of_pods("terminationGracePeriodSeconds: 9"), "POD.terminationGracePeriodSeconds is set by submit. "
     "Fix: leave it out; --set checkpoint.grace_seconds=N sets it"),
    (of_pods(f"nodeSelector: {{{TOPOLOGY_LABEL}: 2x2}}"), f"POD.nodeSelector.{TOPOLOGY_LABEL} is set by"),
    (of_pods("containers: [{env: []}]"), "POD.containers[0] has no name. Fix: name: node is the container"),
    (of_node("image: x"), "NODE.image is set by submit. Fix: leave it out; --image sets it"),
    (of_node("command: [sh]"), "NODE.command is set by submit. Fix: leave it out"),
    (of_node("resource: {}"), "NODE.resource cannot be set here. Fix: did you mean resources?"),
    (of_node("resources: {requests: {cpu: 9}}"), "NODE.resources.requests.cpu is set by submit. "
     "Fix: leave it out; --cpus sets it"),
    (of_node("resources: {limits: {nvidia.com/gpu: 2}}"), "NODE.resources.limits.nvidia.com/gpu is set by submit. "
     "Fix: leave it out; --gpus-per-node sets it"),
    (of_node("env: [{name: HOME, value: /x}]"), "NODE.env[HOME] is set by submit"),
    (of_node("env: [{name: RANK, value: '1'}]"), "NODE.env[RANK] is set by submit"),
    (of_node("env: [{name: WANDB_API_KEY, value: x}]"), "NODE.env[WANDB_API_KEY].value is the value of a secret. "
     "Fix: name a Secret of the cluster: valueFrom: {secretKeyRef: {name: …, key: …}}, or --secret NAME:KEY"),
    (of_node("env: [{name: A_PASSWORD, value: $x}]"), "NODE.env[A_PASSWORD].value is the value of a secret. "),
    (of_pods("initContainers: [{name: a, args: ['export A_TOKEN=abcdefgh1']}]"),
     "POD.initContainers[a].args[0] sets a secret variable. Fix: name a Secret"),
    (of_node("volumeMounts: [{name: x, mountPath: /runs/base-1}]"),
     "NODE.volumeMounts[/runs/base-1] is set by submit"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), TEMPLATES, ids=range(len(TEMPLATES)))
def test_what_a_template_may_not_set(cli, tmp_path, text, message):
    file = tmp_path / "other.yaml"
    file.write_text(text)
    message = message.replace("NODE", "POD.containers[node]").replace("POD", "spec.template.spec")
    result = submit(cli, tmp_path, "--dry-run", *SLICE, "--job-template={folder}/other.yaml")
    assert (result.code, result.out) == (2, "") and result.error.startswith(f"{file}: {message}"), result.err


def test_each_key_of_a_pod_can_be_set_or_is_submits_own():
    """Also a key of a later Kubernetes, once its schemas are here."""
    own = (
        "activeDeadlineSeconds restartPolicy terminationGracePeriodSeconds "  # the command's
        "hostname hostnameOverride setHostnameAsFQDN subdomain "  # by which pods find each other
        "ephemeralContainers evictionResponders priority schedulingGroup serviceAccount"  # the server's, or old
    )
    assert set(SCHEMAS["PodSpec"]["properties"]) == {*template.POD, *own.split()}
    own = "args command image restartPolicy restartPolicyRules stdin stdinOnce tty"
    assert set(SCHEMAS["Container"]["properties"]) == {*template.OF_CONTAINER, *own.split()}


SLICES = [
    ("v4:2x2x4", "JobSet", 4, 4),
    ("v5e:1x1", "Job", 1, 1),
    ("v5e:2x4", "Job", 1, 8),
    ("v5e:16x16", "JobSet", 64, 4),
    ("v6e:2x4 --num-nodes=2", "JobSet", 2, 4),
    ("v5p:4x4x4", "JobSet", 16, 4),
    ("v6e:4x4", "JobSet", 4, 4),
    ("TPU7x:2x2x2", "JobSet", 2, 4),
]


@pytest.mark.parametrize(("name", "kind", "hosts", "chips"), SLICES)
def test_gke_takes_a_slice(cli, tmp_path, name, kind, hosts, chips):
    made = objects(cli, tmp_path, *SLICE, *f"--accelerator={name}".split())
    assert wrong(made) == [] and [fault for one in made for fault in admission(one, {"team-a"})] == []
    (pod,), (job,) = pods(made), [found for found in dictionaries(made[-1]) if "parallelism" in found]
    resources = pod["containers"][0]["resources"]
    assert (made[-1]["kind"], job["parallelism"], resources["limits"]["google.com/tpu"]) == (kind, hosts, str(chips))
    assert {"key": "google.com/tpu", "operator": "Exists"} in pod["tolerations"]
    # GKE tells the hosts of each other, and one process has all chips of a host.
    assert pod["containers"][0]["args"][-1] == "engine.device=tpu" and "--node-rank" not in yaml.safe_dump(made)
    on_one_pool = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    noted = {"maskwright/run": "/runs/base-1"} | (on_one_pool if hosts > 1 else {})
    assert made[-1]["metadata"]["annotations"] == noted
    (tmp_path / "class.yaml").write_text(of_pods("nodeSelector: {cloud.google.com/compute-class: slice}"))
    in_class = "--job-template={folder}/class.yaml"
    of_class = objects(cli, tmp_path, *SLICE, *f"--accelerator={name}".split(), in_class)
    assert pods(of_class)[0]["nodeSelector"] == {"cloud.google.com/compute-class": "slice"}
    assert wrong(of_class) == [] and [fault for one in of_class for fault in admission(one, {"team-a"})] == []
    assert [one["kind"] for one in made[:-2]] == (["NetworkPolicy"] if hosts > 1 else [])


def of(made):
    return dict(pods([made])[0]["containers"][0]["resources"])


def test_what_is_no_slice_of_gke():
    for name, refusal in (
        ("v3:4x4", "--accelerator: 'v3:4x4' is not a TPU slice of GKE"),
        ("v6e:4x4x4", "--accelerator: 'v6e:4x4x4' is not a slice that Google rents. Fix: v6e:8x8 is"),
        ("v5p:4x6x8", "--accelerator: 'v5p:4x6x8' is not a slice that Google rents. Fix: v5p:4x4x12 is"),
    ):
        with pytest.raises(InputError, match=re.escape(refusal)):
            slice_pods(name, None)
    with pytest.raises(
        InputError, match="--kind: indexed-job cannot train on a slice of 4 hosts. Fix: give --kind jobs"
    ):
        slice_pods("v6e:4x4", None).object_kind("indexed-job")


SPOILT = [
    (lambda job: pods([job])[0]["nodeSelector"].pop(TOPOLOGY_LABEL), f"google.com/tpu without {TOPOLOGY_LABEL}"),
    (lambda job: pods([job])[0]["nodeSelector"].update({KIND_LABEL: "tpu-v4-podslice"}), "has the topology 4x4"),
    (lambda job: of(job)["limits"].update({"google.com/tpu": "8"}), "4 requested, limit 8"),
    (lambda job: [of(job)[key].update({"google.com/tpu": "8"}) for key in of(job)], "8 chips are not those"),
    (lambda job: job["spec"]["replicatedJobs"][0]["template"]["spec"].update(parallelism=5), "5 pods on 4 nodes"),
    (lambda job: job["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "b"}), "queue b does not exist"),
]


def test_the_made_up_gke_refuses(cli, tmp_path):
    jobset = objects(cli, tmp_path, *SLICE)[-1]
    assert admission(jobset, {"team-a"}) == []
    for spoil, refusal in SPOILT:
        spoilt = copy.deepcopy(jobset)
        spoil(spoilt)
        (complaint,) = admission(spoilt, {"team-a"})
        assert refusal in complaint


@pytest.mark.parametrize("kind", KINDS)
def test_pods_may_do_little_and_have_time_to_save(cli, tmp_path, kind, monkeypatch):
    """The `restricted` Pod Security Standard, no more rights or writable folders than needed, values of variables that
    are the cluster's, and a queue that sees the job alone."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    made = objects(cli, tmp_path, f"--kind={kind}", *FULL[:-1], "--set=checkpoint.grace_seconds=35.5")
    assert SECRET not in yaml.safe_dump(made)
    queues = [one["metadata"]["labels"].get("kueue.x-k8s.io/queue-name") for one in made]
    assert queues == [None] * (len(made) - 1) + ["team-a"]
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "key"}}}
    (pod,) = pods(made)
    assert pod["terminationGracePeriodSeconds"] == 41  # 5 more
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    kinds = {next(key for key in volume if key != "name") for volume in pod["volumes"]}
    assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "csi"}
    for container in pod["containers"]:
        may = container["securityContext"]
        assert may["allowPrivilegeEscalation"] is False and may["capabilities"] == {"drop": ["ALL"]}
        assert may["readOnlyRootFilesystem"] is True and "privileged" not in may
        assert {"name": "HOME", "value": "/tmp"} in container["env"] and token in container["env"]
        assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]


RENDEZVOUS = {
    "indexed-job": ("$(JOB_COMPLETION_INDEX)", "base-1-0.base-1:29400"),
    "jobset": ("$(JOB_COMPLETION_INDEX)", "base-1-node-0-0.base-1:29400"),
}


@pytest.mark.parametrize("kind", RENDEZVOUS)
def test_the_command_is_the_one_a_person_would_type(cli, tmp_path, kind):
    options = [f"--kind={kind}", "--gpus-per-node=2", "--set=model.init_from=/data/it's $(odd)"]
    for workers in (1, 4):
        made = objects(cli, tmp_path, *options, f"--num-nodes={workers}")
        runs = [found for found in dictionaries(made) if "args" in found]
        assert len(runs) == 1 and runs[0]["command"] == ["maskwright"]  # no shell: SIGTERM reaches it
        rank, rendezvous = RENDEZVOUS[kind]
        many = ["--num-nodes", "4", "--node-rank", rank, "--rendezvous", rendezvous] if workers == 4 else []
        assert runs[0]["args"] == [
            "pretrain", "/etc/maskwright/run.yaml", "--run", "/runs/base-1",
            "--set", "model.init_from=/data/it's $$(odd)", "--set", "engine.device=cuda", "--processes", "2", *many,
        ]  # fmt: skip


def test_pod_0_has_a_name_that_others_reach_and_nobody_else(cli, tmp_path):
    service, wall, configmap, job = objects(cli, tmp_path, "--num-nodes=2")
    assert configmap["data"]["run.yaml"] == (tmp_path / "run.yaml").read_text()
    template = job["spec"]["template"]
    assert template["spec"]["subdomain"] == service["metadata"]["name"] == job["metadata"]["name"] == "base-1"
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": "base-1"}  # a label the controller sets
    own = wall["spec"]["podSelector"]["matchLabels"]
    assert own.items() <= template["metadata"]["labels"].items()
    assert wall["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": own}}]}]
    assert [one["kind"] for one in objects(cli, tmp_path)] == ["ConfigMap", "Job"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("queue", "deadlines", "most"), [([], [37800], None), (["--queue=a"], [], "37800")])
def test_a_limit_is_the_runs_and_half_an_hour_later_the_servers(cli, tmp_path, kind, queue, deadlines, most):
    """Kueue adds up the time of all admissions; without a queue, the object has a deadline."""
    made = objects(cli, tmp_path, f"--kind={kind}", *queue, "--stop-after-hours=10")
    found = [one["activeDeadlineSeconds"] for one in dictionaries(made) if "activeDeadlineSeconds" in one]
    assert found == deadlines
    assert made[-1]["metadata"]["labels"].get("kueue.x-k8s.io/max-exec-time-seconds") == most
    assert "--stop-after-hours 10.0 " in " ".join(pods(made)[0]["containers"][0]["args"])


def policy_of(job, code, disrupted=False):
    """What the Job controller does with a pod that ended so: the first rule that matches."""
    for number, rule in enumerate(job["podFailurePolicy"]["rules"]):
        codes = rule.get("onExitCodes")
        assert (codes is None) != ("onPodConditions" not in rule) or codes is None
        if codes is not None and code in codes["values"]:
            return rule["action"], number
        if codes is None and disrupted and {"type": "DisruptionTarget"} in rule["onPodConditions"]:
            return rule["action"], number
    return "Count", -1


def test_how_each_kind_takes_each_end(cli, tmp_path):
    job = objects(cli, tmp_path, "--num-nodes=2")[-1]["spec"]
    assert job["backoffLimit"] == RESTARTS and job["completions"] == job["parallelism"] == 2
    final = dict.fromkeys((1, 2, 3, 76, 126, 127), "FailJob")
    assert {code: policy_of(job, code)[0] for code in (*final, 75, 134, 137)} == final | {
        75: "Ignore", 134: "Count", 137: "Count",
    }  # fmt: skip
    assert policy_of(job, 137, disrupted=True)[0] == "Ignore"
    # The API server refuses a failure policy with anything else (batch/v1 validation).
    assert job["podReplacementPolicy"] == "Failed" and job["template"]["spec"]["restartPolicy"] == "Never"
    jobset = objects(cli, tmp_path, *SLICE)[-1]["spec"]
    inner = jobset["replicatedJobs"][0]["template"]["spec"]
    assert inner["backoffLimit"] == 0 and jobset["failurePolicy"]["maxRestarts"] == RESTARTS
    assert {code: policy_of(inner, code) for code in (3, 76, 75)} == {
        3: ("FailJob", 0), 76: ("FailJob", 0), 75: ("FailJob", 2),
    }  # fmt: skip
    names = [rule["name"] for rule in jobset["failurePolicy"]["rules"]]
    valid = r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?"
    assert len(set(names)) == len(names) and all(re.fullmatch(valid, name) for name in names)


REFUSED = [
    ([], {"run": "/elsewhere/one"}, "--run: /elsewhere/one would be lost with its pod"),
    ([], {"run": "runs/one"}, "--run: runs/one would be lost with its pod"),
    ([], {"run": "/runs/../etc/one"}, "--run: /runs/../etc/one leaves its folder"),
    (["--set=data.store=data/store"], {}, "data.store: data/store is not in a pod"),
    (["--set=model.init_from=/models/base"], {}, "model.init_from: /models/base is not in a pod"),
    (["--set=model.init_from=gs://bucket/one"], {}, "model.init_from: gs://bucket/one is not in a pod"),
    (["--from=/models/one@40"], {}, "--from: /models/one is not in a pod"),
    (["--from=gs://bucket/one"], {}, "--from: gs://bucket/one is not in a pod"),
    (["--mount=x:data"], {}, "--mount: 'x:data' is not NAME:/folder"),
    (["--mount=x:/data"], {}, "--mount: /data is mounted already"),
    (["--mount=x:/models:ro"], {"run": "/models/one"}, "--run: /models/one would be lost with its pod"),
    (["--mount=x:/models:rw"], {}, "--mount: 'x:/models:rw' is not NAME:/folder"),
    ([*SLICE, "--num-nodes=8"], {}, "--num-nodes 8: v6e:4x4 has 4 hosts. Fix: leave it out, or choose another"),
    ([*SLICE, "--gpus-per-node=4"], {}, "--gpus-per-node: cannot be given with a TPU slice"),
    (
        ["--accelerator=v6e:8x8"],
        {},
        "engine.kind: torch does not run on TPUs; jax does; 64 devices do not divide 96 virtual workers "
        "evenly. Fix: add --set engine.kind=jax",
    ),
    (["--mount=gs://x:/tmp/a"], {}, "--mount: /tmp/a is mounted already"),
    (["--secret=hugging-face"], {}, "--secret: 'hugging-face' is not NAME:KEY or NAME:KEY=VARIABLE"),
    (["--secret=hugging-face:the.key"], {}, "--secret: 'hugging-face:the.key' is not"),
    (["--max-cost=5"], {}, "--max-cost: is about an environment. Fix: add --env-file"),
    (["--stop-after-hours=0"], {}, "--stop-after-hours: 0 is no limit"),
    (["--env=NOT_SET_ANYWHERE"], {}, "--env NOT_SET_ANYWHERE: is not set here"),
    (["--env=A_KEY=hidden12"], {}, "--env: 'A_KEY=…' is not the name of a variable. Fix: export NAME=…, and give"),
    (["--image="], {}, "--image: '' is not an image"),
    (["--memory=16 GB"], {}, "--memory: '16 GB' is not a quantity"),
    (["--memory=16"], {}, "--memory: '16' is not a quantity. Fix: write 16Gi"),  # 16 bytes: no pod would start
    (["--cpus=16Gi"], {}, "--cpus: '16Gi' is not a quantity"),
    (["--queue=Team A"], {}, "--queue: 'Team A' is not a valid name"),
    ([], {"text": "data: {store: /data/s}\nschedule: {step: 1}\n"}, "{folder}/run.yaml: "),
]


@pytest.mark.parametrize(("options", "more", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(cli, tmp_path, options, more, message):
    result = submit(cli, tmp_path, "--dry-run", *options, **more)
    assert (result.code, result.out) == (2, "") and result.error.startswith(message.format(folder=tmp_path)), result.err


def test_a_run_that_is_copied_to_a_bucket_needs_no_claim(cli, tmp_path):
    options = ["--dry-run", "--set=checkpoint.copy_to=gs://bucket/one"]
    assert submit(cli, tmp_path, *options, run="/tmp/one").code == 0


# ---- kubectl -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_real_kubectl_applies_every_kind(cli, tmp_path, kubectl, monkeypatch, kind):
    monkeypatch.setenv("MY_TOKEN", SECRET)
    with fake_cluster(list(RESOURCES)) as cluster:
        kubectl(cluster)
        options = [f"--kind={kind}", *FULL, "--env=MY_TOKEN"]
        result = submit(cli, tmp_path, *options)
        assert result.code == 0, result.err
        address = "kubernetes:ml/base-1"
        assert f"{address}: submitted; `maskwright logs {address} --follow` follows it" in result.err
        posts = [call for call in cluster.calls if call.startswith("POST")]
        assert all("/namespaces/ml/" in call and "fieldValidation=Strict" in call for call in posts)
        kept = list(cluster.objects.values())
        assert kept[0]["kind"] in ("Job", "JobSet") and kept[-1]["kind"] == "ConfigMap"  # pods wait for the last
        owner = {"uid": kept[0]["metadata"]["uid"]}.items()
        assert all(owner <= one["metadata"]["ownerReferences"][0].items() for one in kept[1:])
        assert kept[1]["stringData"] == {"MY_TOKEN": SECRET}
        for one in kept:
            for key in ("annotations", "uid", "creationTimestamp", "finalizers", "ownerReferences"):
                one["metadata"].pop(key, None)
        made = objects(cli, tmp_path, *options)  # with kubectl's annotation gone, what --dry-run prints
        made[-1]["metadata"].pop("annotations")
        assert [*kept[2:], kept[0]] == made
        shown = submit(cli, tmp_path, "--dry-run", *options, "--set=logging.report_to=[tensorboard, wandb]")
        assert (
            "warning: the Secret base-1-env, with the values of --env, is needed by the job, but not shown" in shown.err
        )
        assert "warning: logging.report_to: the job needs wandb in its image, but `maskwright image` le" in shown.err


def test_what_kubectl_says_is_one_line_with_the_kind_of_refusal(cli, tmp_path, kubectl, monkeypatch):
    with fake_cluster(["ConfigMap", "Job", "Pod"]) as cluster:
        kubectl(cluster)
        unlimited = submit(cli, tmp_path, "--queue=team-a", "--stop-after-hours=10")
        assert unlimited.code == 2 and unlimited.error.startswith("--queue: the cluster has no kueue.x-k8s.io. Fix: ")
        missing = submit(cli, tmp_path, "--kind=jobset")
        assert missing.error.startswith("--kind jobset: the cluster has no jobset.x-k8s.io. Fix: install JobSet")
    kinds = ["ConfigMap", "NetworkPolicy", "JobSet", "Job", "Pod", "Workload"]
    with fake_cluster(kinds, queues={"team-b"}) as cluster:
        kubectl(cluster)
        denied = submit(cli, tmp_path, *SLICE)
        assert denied.code == 1 and "denied the request: queue team-a does not exist. Fix: " in denied.err
        assert not cluster.objects
        partly = submit(cli, tmp_path, "--queue=team-b", "--num-nodes=2")  # there is no kind Service
        assert partly.code == 1 and partly.error.startswith("kubectl apply: ")
        (job,) = cluster.of_kind("Job")
        assert "deletionTimestamp" in job["metadata"], "it would wait for its configuration for ever"
        reasons = []
        for status in (401, 403, 404, 500, 503, 504):
            cluster.refusals = [status]
            with pytest.raises(CloudError) as refused:
                run_kubectl(["get", "jobs", "--selector=a=b"], access=Access())
            reasons.append(refused.value.reason)
        assert reasons == ["credentials", "permission", "missing", "failed", "failed", "failed"]
    with pytest.raises(CloudError) as refused:  # the server is gone
        run_kubectl(["get", "--raw=/apis"], access=Access())
    assert refused.value.reason == "unreached"
    with pytest.raises(CloudError) as refused:
        run_kubectl(["get", "--raw=/apis"], access=Access(context="another"))
    assert refused.value.reason == "other"
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(InputError, match="kubectl: is not installed, or not on the path"):
        run_kubectl(["version"], access=Access())
