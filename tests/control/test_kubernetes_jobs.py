"""Whole lives of jobs in a made-up cluster: the real kubectl, the published rules, and pods that are processes."""

import json
import math
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
import yaml
from command_line import maskwright, write_config
from fake_kubernetes import RESOURCES, answers, api_server, fake_cluster
from kubernetes_nodes import Nodes, running
from private_network import wait_until

from maskwright.cloud import record
from maskwright.cloud.prices import hourly_offers
from maskwright.cloud.record import EnvironmentRecord
from maskwright.launch import checks
from maskwright.launch.schedulers.kubernetes import jobs, kinds
from maskwright.prove.verify_resume import compare
from maskwright.run.directory import RunDirectory

BASE = ["--mount=data:/data:ro", "--mount=runs:/runs"]


@pytest.fixture
def nodes(store, tmp_path, monkeypatch, kubectl):
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.2)
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # as in the image
    folders = {"/data": Path(store.location).parent, "/runs": tmp_path / "runs"}
    folders["/runs"].mkdir()
    with fake_cluster(list(RESOURCES)) as cluster:
        kubectl(cluster)
        with running(Nodes(cluster, tmp_path / "pods", folders, {"real": None})) as made:
            yield made


def stub(nodes, tmp_path, lines):
    """An image whose maskwright is a script."""
    program = tmp_path / "image" / "maskwright"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{lines}\n")
    program.chmod(0o755)
    nodes.images["stub"] = program.parent
    return "--image=stub"


def submit(cli, folder, *options, run="one", **schedule):
    write_config(folder / "run.yaml", "/data/store", **schedule)
    return cli("submit", "kubernetes", str(folder / "run.yaml"), "--run", f"/runs/{run}", *BASE, *options)


ENDS = [
    # what pods do, the exit code of the follower, the number of attempts
    ("exit 0", "indexed-job", 0, 1),
    ("exit 1", "indexed-job", 1, 1),
    ("exit 2", "jobset", 2, 1),
    ("exit 3", "jobset", 3, 1),
    ("exit 76", "indexed-job", 76, 1),
    ("exit 76", "jobset", 76, 1),
    ("exit 127", "indexed-job", 1, 1),
    ("AGAIN 75", "indexed-job", 0, 2),
    ("AGAIN 75", "jobset", 0, 2),
    ("kill -9 $$", "indexed-job", 1, 3),
    ("kill -9 $$", "jobset", 1, 3),
]


@pytest.mark.parametrize(("lines", "kind", "code", "attempts"), ENDS, ids=[f"{row[0]}-{row[1]}" for row in ENDS])
def test_each_end_of_a_pod(cli, nodes, tmp_path, monkeypatch, lines, kind, code, attempts):
    """75 is no error and not counted, kills are (here two), and all else is final."""
    monkeypatch.setattr(kinds, "RESTARTS", 2)
    count = f"echo begun >> {tmp_path}/attempts; echo line of $JOB_COMPLETION_INDEX"
    again = f"[ $(wc -l < {tmp_path}/attempts) -gt 1 ] || exit"
    image = stub(nodes, tmp_path, f"{count}\n{lines.replace('AGAIN', again)}")
    result = submit(cli, tmp_path, image, f"--kind={kind}", "--follow")
    assert result.code == code, result.err
    assert len((tmp_path / "attempts").read_text().splitlines()) == attempts
    kept = attempts if kind == "indexed-job" else 1  # a JobSet deletes the pods of earlier attempts, and their lines
    assert kept <= result.out.count("line of 0") <= attempts
    listed = json.loads(cli("status", "kubernetes:", "--json").out)["jobs"]
    (job,) = listed
    of_pods = {"exit 127": 127, "kill -9 $$": 137}.get(lines, code)
    assert (job["code"], job["run"], job["address"]) == (of_pods, "/runs/one", "kubernetes:one")
    assert ("no such command" in result.err, "killed by SIGKILL" in result.err) == (of_pods == 127, of_pods == 137)


def trained(nodes, folder, run, step):
    metrics = folder / "runs" / run / "metrics.jsonl"
    return lambda: metrics.exists() and f'"step":{step}' in metrics.read_text().replace(" ", "")


@pytest.fixture(scope="module")
def uninterrupted(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    write_config(folder / "run.yaml", store.location, steps=STEPS)
    maskwright("pretrain", "run.yaml", "--run", "run", *WORKERS, cwd=folder)
    return folder / "run"


def differences(uninterrupted, folder):
    return compare(RunDirectory(str(uninterrupted)), RunDirectory(str(folder / "runs" / "one")))[2]


STEPS = 150
WORKERS = ["--set", "batch.virtual_workers=2", "--set", "logging.every_steps=1", "--set", "batch.micro_batch_rows=32"]


def test_a_gang_is_preempted_and_stopped_and_continues_to_the_same_bits(cli, nodes, tmp_path, uninterrupted):
    options = ["--image=real", "--kind=jobset", "--num-nodes=2", *WORKERS]
    assert submit(cli, tmp_path, *options, steps=STEPS).code == 0
    wait_until(trained(nodes, tmp_path, "one", 25))
    again = submit(cli, tmp_path, *options, steps=STEPS)
    assert again.code == 2 and "kubernetes:one: a job of this name is running" in again.err
    nodes.disrupt(nodes.names(1)[0])  # pod 1 ends with 75, and pod 0 has lost its partner
    wait_until(lambda: json.loads(cli("status", "kubernetes:one", "--json").out)["restarts"] == 1)
    began = time.time()
    wait_until(lambda: (tmp_path / "runs" / "one" / "metrics.jsonl").stat().st_mtime > began + 0.5)  # it trains again
    stopped = cli("stop", "kubernetes:one")
    assert stopped.out == "kubernetes:one: stopped, exit code 76; the same submit continues the run\n", stopped.err
    before = len(nodes.processes)
    assert before == 4 and not trained(nodes, tmp_path, "one", STEPS)()
    result = submit(cli, tmp_path, *options, "--follow", steps=STEPS)
    assert result.code == 0 and "deleting the earlier job of this name, which is stopped" in result.err, result.err
    assert differences(uninterrupted, tmp_path) == []


def test_a_killed_pod_and_cut_streams_change_nothing(cli, nodes, tmp_path, uninterrupted):
    nodes.cluster.most_log_lines = 20

    def kill_once_it_has_saved():
        wait_until(trained(nodes, tmp_path, "one", 45))
        nodes.kill(nodes.names()[0])
        nodes.cluster.refusals += [503, 503]

    killer = Thread(target=kill_once_it_has_saved)
    killer.start()
    result = submit(cli, tmp_path, "--image=real", *WORKERS, "--follow", steps=STEPS)
    killer.join()
    assert result.code == 0, result.err
    assert "trying again" in result.err and "kubernetes:one: running, restarted 1 times" in result.err
    assert differences(uninterrupted, tmp_path) == []
    written = [line.partition(" ")[2] for name in nodes.names() for line in nodes.lines[name]]
    shown = [line for line in (result.err + result.out).splitlines() if line in set(written)]
    assert shown == written  # each line once
    tail = cli("logs", "kubernetes:one", "--lines", "3")
    assert tail.out.splitlines() == written[-3:]


def test_limits_are_the_servers(cli, nodes, tmp_path, monkeypatch):
    """A run saves and ends before; one that does not is ended by the server. Neither is an error."""
    monkeypatch.setattr(checks, "SAVING_SECONDS", 1)
    image = stub(nodes, tmp_path, "echo $*; exec sleep 60")
    for options in (["--kind=indexed-job"], ["--kind=jobset"], ["--kind=jobset", "--queue=team-a"]):
        result = submit(cli, tmp_path, image, *options, "--stop-after-hours=0.0004", "--follow")
        assert result.code == 76 and "--stop-after-hours 0.0004 " in result.out, result.err
    assert "DeactivatedDueToMaximumExecutionTimeExceeded: exceeding the maximum time" in result.err
    assert cli("submit", "kubernetes", "x", "--run", "y", "--stop-after-hours=0").code == 2


def test_a_job_waits_in_its_queue_and_is_deleted_with_all_that_is_its_own(cli, nodes, tmp_path, monkeypatch):
    nodes.admits = False
    monkeypatch.setenv("HF_TOKEN", "hf_made_up_value_0123456789")
    nodes.cluster.add({"apiVersion": "v1", "kind": "Secret", "stringData": {"key": "of the cluster"}, "metadata": {
        "name": "theirs", "namespace": "ml"}})  # fmt: skip
    told = "echo token $HF_TOKEN, $OTHER, setup $PIP_TARGET, $*"
    image = stub(nodes, tmp_path, f"[ $1 = pretrain ] || exit 2; {told}; exec sleep 60")
    wanted = ["--queue=team-a", "--env=HF_TOKEN", "--secret=theirs:key=OTHER", "--kind=jobset", "--num-nodes=2"]
    wanted += [*WORKERS, f"--setup=echo its $HOME > {tmp_path}/$(date +setup)"]
    assert submit(cli, tmp_path, image, *wanted).code == 0
    report = wait_until(lambda: "insufficient" in (said := cli("status", "kubernetes:ml/one").out) and said)
    assert "state    waiting" in report and "Pending: insufficient unused quota for cpu in flavor spot" in report
    nodes.admits = True
    lines = wait_until(lambda: cli("logs", "kubernetes:ml/one").out)
    assert ", of the cluster, setup /tmp/setup, pretrain" in lines and (tmp_path / "setup").read_text() == "its /tmp\n"
    kept = {made["kind"]: json.dumps(made) for made in nodes.cluster.objects.values()}
    assert [kind for kind, text in kept.items() if "hf_made_up" in text] == ["Secret"]
    assert not [kind for kind, text in kept.items() if "last-applied" in text], "an annotation is no place for a secret"
    assert "hf_made_up" not in lines + json.dumps(nodes.cluster.calls)
    # No run is there that could be asked, so that the job is deleted.
    assert cli("stop", "kubernetes:one").out == "kubernetes:one: deleted; the same submit continues the run\n"
    assert [made["metadata"]["name"] for made in nodes.cluster.objects.values()] == ["theirs"]
    gone = cli("status", "kubernetes:one")
    assert gone.code == 2 and gone.error.startswith("kubernetes:one: no such job. Fix: list jobs with")


ENVIRONMENT = """
name: lab
project: my-project
zone: us-east5-b
image: stub
nfs: {}
disk: {size_gb: 100, source: gs://my-data/stores}
cluster: {location: us-east5}
slice: {accelerator: v6e, topology: 4x4, provisioning_model: SPOT, fallbacks: [{provisioning_model: STANDARD}]}
group: {machine_type: a3-highgpu-8g, size: 2}
"""


@pytest.fixture
def google(tmp_path, nodes, monkeypatch):
    """GKE's API, which names the made-up cluster's DNS endpoint; there, over TLS, a token is asked for. Gives the
    tokens that came."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*words, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, stderr=-3)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # of Go's
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "ya29.made-up-token-0123456789")
    monkeypatch.delenv("KUBECONFIG")
    tokens = []
    with api_server(nodes.cluster, certificate, key, tokens) as server:
        endpoint = {"controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"endpoint": server.removeprefix("https://")}}}
        place = "/v1/projects/my-project/locations/us-east5/clusters/lab"
        with answers({place: endpoint}) as address:
            monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER", address)
            yield tokens


def test_an_environment_gives_cluster_queue_volumes_image_account_and_nodes(cli, nodes, tmp_path, google, monkeypatch):
    made = EnvironmentRecord()
    monkeypatch.setattr(record, "read", lambda environment: made)
    lab = tmp_path / "lab.yaml"
    lab.write_text(ENVIRONMENT)
    write_config(tmp_path / "run.yaml", "/mnt/common/shared_pd/store")
    line = ["submit", "kubernetes", tmp_path / "run.yaml", "--run", "one", "--env-file", lab]
    both = cli(*line)
    assert both.code == 2 and both.error == f"{lab}: has a slice and a group. Fix: add --target slice or --target group"
    stub(nodes, tmp_path, "echo $*; exit 76")
    empty = cli(*line, "--target=group")
    assert empty.error == (
        "data.store: /mnt/common/shared_pd/store is on the data volume, which is not filled yet. "
        f"Fix: maskwright env seed {lab}"
    )
    made = replace(made, seeded={"files": 1})
    for target, option, are in (
        ("group", "--num-nodes=3", "2 x a3-highgpu-8g"),
        ("group", "--accelerator=v6e:4x4", "2 x a3-highgpu-8g"),
        ("slice", "--accelerator=v6e:8x8", "v6e:4x4"),
        ("slice", "--num-nodes=2", "v6e:4x4"),
    ):
        refused = cli(*line, f"--target={target}", option)
        assert refused.code == 2 and f"{option.split('=')[0]}: the environment's {target} is {are}" in refused.error
    followed = cli(*line, "--target=group", "--num-nodes=1", "--max-cost=200", "--follow",
                   "--set=batch.virtual_workers=8")  # fmt: skip
    assert followed.code == 76, followed.err
    assert "--run /mnt/common/nfs_share/runs/one" in followed.out
    assert "checkpoint.copy_to=gs://my-project-lab-runs/runs/one" in followed.out
    assert set(google) == {"Bearer ya29.made-up-token-0123456789"} and not list(Path("/tmp").glob("maskwright-*.yaml"))
    (job,) = nodes.cluster.of_kind("Job")
    hours = 200 / hourly_offers("a3-highgpu-8g", "us-east5")[0].usd
    own = float(re.search(r"--stop-after-hours ([\d.]+)", followed.out)[1])
    assert own == pytest.approx(hours - min(0.1 * hours, 0.5), rel=1e-5)
    assert job["metadata"]["namespace"] == "maskwright"
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "jobs"
    assert int(job["metadata"]["labels"]["kueue.x-k8s.io/max-exec-time-seconds"]) == math.ceil(hours * 3600)
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"cloud.google.com/compute-class": "group"} and pod["serviceAccountName"] == "train"
    claims = {one["persistentVolumeClaim"]["claimName"] for one in pod["volumes"] if "persistentVolumeClaim" in one}
    assert claims == {"nfs-share", "shared-pd"} and pod["containers"][0]["image"] == "stub"
    assert f"kubernetes:{lab}/one  Job" in cli("status", f"kubernetes:{lab}/one").out
    assert f"kubernetes:{lab}/one  Job   stopped  76" in cli("status", f"kubernetes:{lab}/").out
    pair = cli(*line, "--target=group", "--max-cost=200", "--dry-run", "--set=batch.virtual_workers=16")
    assert f"--max-cost 200: ends after {hours / 2:.2f} hours" in pair.err, "as many nodes as the job has"
    slice_ = cli(*line, "--target=slice", "--set=engine.kind=jax", "--set=batch.virtual_workers=16", "--dry-run",
                 "--max-cost=100", "--image=other")  # fmt: skip
    *_, jobset = yaml.safe_load_all(slice_.out)
    (pods,) = [one["template"]["spec"] for one in jobset["spec"]["replicatedJobs"]]
    assert pods["parallelism"] == 4 and pods["template"]["spec"]["containers"][0]["image"] == "other"
    on_demand = 100 / hourly_offers("v6e", "us-east5", 16)[0].usd  # the dearest of the placements
    assert f"--max-cost 100: ends after {on_demand:.2f} hours" in slice_.err
