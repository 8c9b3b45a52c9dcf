"""`submit vertex` as a user calls it, on the fake cloud, which Google's discovery document judges."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import yaml
from google_cloud import judge

from maskwright.cloud import machines
from maskwright.cloud.google import rest
from maskwright.cloud.vertex import jobs, node, request
from maskwright.core.errors import InputError

IMAGE = "us-central1-docker.pkg.dev/lab-proj/lab1/maskwright:0.3.0"
PLACE = ("--project", "lab-proj", "--region", "us-central1", "--image", IMAGE, "--staging", "gs://lab-staging/vertex")
RUN = ("--run", "/tmp/base-1", "--set", "checkpoint.copy_to=gs://lab-runs/base-1")
JAX = ("--set", "engine.kind=jax")
GPU = ("--machine-type", "g2-standard-12")
JOBS = "aiplatform/projects/lab-proj/locations/us-central1/customJobs"


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.02)


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    values = {"data": {"store": "/gcs/lab-data/store"}, "schedule": {"steps": 10}}
    path.write_text(yaml.safe_dump(values | {"batch": {"virtual_workers": 8}}))
    return path


@pytest.fixture
def submit(cli, cloud, config):
    cloud.put("gs://lab-staging/there", "")

    def call(*words, config_=None, run=RUN):
        return cli("submit", "vertex", config_ or config, *run, *PLACE, *words)

    return call


def drawn(submit, *words, **others):
    result = submit(*words, "--dry-run", **others)
    assert result.code == 0, result.err
    body = json.loads(result.out)
    document = judge.api("aiplatform", "v1")
    document.check_schema("GoogleCloudAiplatformV1CustomJob", body)
    return body


def pools(body):
    return list(body["jobSpec"]["workerPoolSpecs"])


# ---- the request ---------------------------------------------------------------------------------------------------


def test_on_gpus_of_several_machines(submit, cloud):
    words = ("--num-nodes", 4, "--machine-type", "g2-standard-24", "--strategy", "SPOT", "--stop-after-hours", 3)
    words += ("--name", "first-try", "--label", "team=nlp")
    body = drawn(submit, *words, "--service-account", "t@lab-proj.iam.gserviceaccount.com")
    first, others = pools(body)
    machine = {"machineType": "g2-standard-24", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 2}
    assert first["machineSpec"] == others["machineSpec"] == machine
    assert (first["replicaCount"], others["replicaCount"]) == ("1", "3")
    container = first["containerSpec"]
    assert container["imageUri"] == IMAGE and container["command"] == ["python"]
    assert container["args"][:5] == ["-P", "-m", "maskwright.cloud.vertex.node", "maskwright", "pretrain"]
    assert container["args"][5].startswith("gs://lab-staging/vertex/run-")
    last = "--set engine.device=cuda --stop-after-hours 3.0 --processes 2"
    assert " ".join(container["args"]).endswith(last)
    scheduling = body["jobSpec"]["scheduling"]
    assert scheduling == {"strategy": "SPOT", "restartJobOnWorkerRestart": True, "timeout": "12600s"}
    assert (body["displayName"], body["labels"]["team"]) == ("first-try", "nlp")
    assert body["jobSpec"]["serviceAccount"].startswith("t@")
    assert not cloud.calls(r"aiplatform\..*") and not cloud.calls("storage.objects.insert"), "a dry run changes nothing"


T4, N1 = "NVIDIA_TESLA_T4", ("--machine-type", "n1-standard-8")
ONE_T4 = {"machineType": "n1-standard-8", "acceleratorType": T4, "acceleratorCount": 1}
TPU = (*JAX, "--set", "batch.virtual_workers=16", "--accelerator")


@pytest.mark.parametrize(
    ("words", "machine", "last"),
    [
        ((), {"machineType": request.CPU_MACHINE}, "engine.device=cpu --processes 1"),
        ((*N1, "--accelerator", T4), ONE_T4, "engine.device=cuda --processes 1"),
        ((*N1, "--accelerator", "nvidia-tesla-t4:2"), ONE_T4 | {"acceleratorCount": 2}, "--processes 2"),
        ((*TPU, "v5e:1x1"), {"machineType": "ct5lp-hightpu-1t", "tpuTopology": "1x1"}, "engine.device=tpu"),
        ((*TPU, "v5e:4x4"), {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "4x4"}, "engine.device=tpu"),
        ((*TPU, "v6e:2x4"), {"machineType": "ct6e-standard-8t", "tpuTopology": "2x4"}, "engine.device=tpu"),
    ],
)
def test_on_cpus_a_gpu_of_n1_and_a_slice(submit, tmp_path, words, machine, last):
    """A slice is one replica, however many machines it has. A fine-tuning is a job too."""
    path = tmp_path / "finetune.yaml"
    batch = {"examples": 32, "virtual_workers": 16}
    path.write_text(yaml.safe_dump({"data": {"train": "/gcs/lab/train.csv"}, "schedule": {"epochs": 3}, "batch": batch,
                                    "model": {"init_from": "hf://FacebookAI/roberta-large"}}))  # fmt: skip
    for command, more in (("pretrain", {}), ("finetune", {"config_": str(path)})):
        (pool,) = pools(drawn(submit, *words, **more))
        args = " ".join(pool["containerSpec"]["args"])
        assert pool["machineSpec"] == machine and pool["replicaCount"] == "1"
        assert f" maskwright {command} " in args and (args.endswith(last) or command == "finetune")


def test_flex_start(submit, monkeypatch):
    monkeypatch.setenv("TEAM", "a $(b)")
    flex = ("--strategy", "FLEX_START", "--wait-hours", 12, "--stop-after-hours", 24, *GPU)
    body = drawn(submit, *flex, "--env", "TEAM")
    (pool,) = pools(body)
    again = {"restartJobOnWorkerRestart": True}
    limits = {"timeout": "88200s", "maxWaitDuration": "43200s"}
    assert body["jobSpec"]["scheduling"] == {"strategy": "FLEX_START", **again, **limits}
    container = pool["containerSpec"]
    assert container["env"] == [{"name": "TEAM", "value": "a $$(b)"}]


@pytest.mark.parametrize(
    ("words", "run", "where"),
    [
        (["--env", "HF_TOKEN"], RUN, "--env HF_TOKEN"),
        (["--env", "PAGE"], RUN, "--env PAGE"),
        (["--env", "NOT_SET"], RUN, "--env NOT_SET"),
        ([], ("--run", "runs/base-1"), "--run"),
        ([], ("--run", "/tmp/base-1"), "--run"),
        (["--set", "model.init_from=gs://lab-data/model"], RUN, "model.init_from"),
        (["--set", "data.store=stores/one"], RUN, "data.store"),
        (["--from", "gs://lab-data/runs/one@40"], RUN, "--from"),
        (["--from", "runs/one"], RUN, "--from"),
        (["--accelerator", "v5p:2x2x1"], RUN, "--accelerator"),
        (["--accelerator", "V3:2x2"], RUN, "--accelerator: Vertex AI documents JAX only for v5e and v6e"),
        (["--accelerator", "v6e"], RUN, "--accelerator"),
        (["--accelerator", "v6e:2x2"], RUN, "engine.kind"),
        (["--accelerator", "v6e:2x2", "--num-nodes", "2"], RUN, "--num-nodes"),
        (["--accelerator", "v5e:1x2"], RUN, "--accelerator"),
        ([*JAX, "--accelerator", "v6e:4x4", "--machine-type", "ct6e-standard-8t"], RUN, "--machine-type"),
        ([*JAX, "--accelerator", "v5e:2x2", "--machine-type", "ct5lp-hightpu-1t"], RUN, "--machine-type"),
        ([*GPU, "--accelerator", "NVIDIA_TESLA_T4"], RUN, "--accelerator"),
        (["--accelerator", "NVIDIA_TESLA_T4"], RUN, "--accelerator"),
        (["--accelerator", "NVIDIA_TESLA_K80:2", "--machine-type", "n1-standard-8"], RUN, "--accelerator"),
        (["--accelerator", "NVIDIA_TESLA_T4:3", "--machine-type", "n1-standard-8"], RUN, "--accelerator"),
        (["--accelerator", "NVIDIA_TESLA_T4:x", "--machine-type", "n1-standard-8"], RUN, "--accelerator"),
        (["--label", "team=hf_0123456789abcdef"], RUN, "--label"),
        (["--strategy", "FLEX_START", "--wait-hours", "1", "--stop-after-hours", "2"], RUN, "--strategy FLEX_START"),
        ([*GPU, "--strategy", "FLEX_START", "--wait-hours", "1"], RUN, "--stop-after-hours"),
        (["--strategy", "FLEX_START"], RUN, "--wait-hours"),
        (["--stop-after-hours", "169"], RUN, "--stop-after-hours"),
        (["--region", "Mars"], RUN, "--region"),
        (["--num-nodes", "3"], RUN, "batch.virtual_workers"),
        (["--set", "data.store=/gcs/$(x)/y"], RUN, "the command"),
    ],
)
def test_what_could_not_work_is_refused_before_it_is_asked_for(submit, monkeypatch, cloud, words, run, where):
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdef")
    monkeypatch.setenv("PAGE", "https://me:hunter2hunter2@example.org/")
    result = submit(*words, run=run)
    assert (result.code, result.out) == (2, "")
    assert result.error.startswith(where if ": " in where else f"{where}: ") and "hf_0123456789abcdef" not in result.err
    assert "hunter2" not in result.err and not cloud.calls(r"aiplatform\..*")


def test_every_gpu_that_is_known_here_has_vertex_ais_name():
    document = judge.api("aiplatform", "v1")
    names = document.schemas["GoogleCloudAiplatformV1MachineSpec"]["properties"]["acceleratorType"]["enum"]
    assert {name.upper().replace("-", "_") for name, _ in machines.GPUS.values()} <= set(names)


# ---- its life ------------------------------------------------------------------------------------------------------


def line(job, task, text, number):
    labels = {"job_id": job, "task_name": task, "project_id": "lab-proj"}
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() + 1))
    resource = {"type": "ml_job", "labels": labels}
    return {"resource": resource, "textPayload": text, "timestamp": f"{now}.{number:06d}Z", "insertId": f"i{number}"}


def job_of(cloud):
    ((key, body),) = [(key, body) for key, body in list(cloud.resources.items()) if key.startswith(JOBS)]
    return key.rpartition("/")[2], body


def said_meanwhile(cloud, call, say):
    """The result of `call`, with `say(job)` called as soon as there is a job; never where the submission fails."""
    over = threading.Event()

    def speak():
        while not [key for key in list(cloud.resources) if key.startswith(JOBS)]:
            if over.wait(0.005):
                return
        say(job_of(cloud)[0])

    speaker = threading.Thread(target=speak)
    speaker.start()
    try:
        return call()
    finally:
        over.set()
        speaker.join()


def test_a_job_is_followed_to_its_end_with_its_logs(submit, cli, cloud, config):
    states = ["QUEUED", "PENDING", "RUNNING", "RUNNING", "RUNNING", "SUCCEEDED"]
    cloud.script("customJobs", [{"state": f"JOB_STATE_{state}"} for state in states])

    def say(job):
        entries = [line(job, "workerpool0-0", "step 1  https://u:pa55word@x/y", 1), line(job, "service", "ready", 2)]
        cloud.logs += [*entries, line(job, "workerpool1-0", "step 2", 3), line("777", "workerpool0-0", "other's", 4)]

    result = said_meanwhile(cloud, lambda: submit("--num-nodes", 2), say)
    assert result.code == 0, result.err
    assert result.out.splitlines() == ["host 0 | step 1  https://***@x/y", "host 1 | step 2"]
    assert "Vertex AI: ready" in result.err
    job, body = job_of(cloud)
    target = f"vertex:lab-proj/us-central1/{job}"
    seen = [text.removeprefix(f"{target}: ") for text in result.err.splitlines() if text.startswith(target)]
    assert seen[1:] == ["queued", "pending", "running", "succeeded"] or seen[1:] == ["queued", "running", "succeeded"]
    staged = body["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["args"][5]
    assert cloud.text(staged) == config.read_text()
    status = cli("status", target, "--json")
    assert json.loads(status.out)["state"] == "SUCCEEDED"
    assert cli("logs", target).out == result.out
    assert cli("logs", target, "--lines", "1").out == result.out.splitlines(keepends=True)[-1]
    again = cli("logs", target, "--follow")
    assert (again.code, again.out) == (0, result.out)
    documents = [json.loads(text) for text in cli("logs", target, "--json").out.splitlines()]
    assert [(one["host"], one["line"]) for one in documents] == [(0, "step 1  https://***@x/y"), (1, "step 2")]


EXIT = "The replica workerpool{pool} exited with a non-zero status of {code}. To find out more, see the logs."


@pytest.mark.parametrize(
    ("state", "why", "code", "said"),
    [
        ("FAILED", EXIT.format(pool="0-0", code=75), 75, "the same command continues the run"),
        ("FAILED", EXIT.format(pool="0-0", code=3), 3, "the job failed"),
        ("FAILED", EXIT.format(pool="0-0", code=75) + " " + EXIT.format(pool="1-0", code=2), 2, "the job failed"),
        ("FAILED", EXIT.format(pool="0-0", code=137), 1, "was killed"),
        ("FAILED", EXIT.format(pool="0-0", code=127), 1, "no such command"),
        ("FAILED", "Internal error occurred.", 1, "Internal error"),
        ("FAILED", EXIT.format(pool="0-0", code=76), 76, "the same command continues the run"),
        ("CANCELLED", "", 76, "cancelled"),
        ("EXPIRED", "", 76, "expired"),
    ],
)
def test_the_exit_code_is_the_jobs(submit, cloud, state, why, code, said):
    end = {"state": f"JOB_STATE_{state}"}
    cloud.script("customJobs", [{"state": "JOB_STATE_RUNNING"}, end | ({"error": {"message": why}} if why else {})])
    result = submit("--json")
    told, target = json.loads(result.out), f"vertex:lab-proj/us-central1/{job_of(cloud)[0]}"
    assert (told["job"], told["where"], told["end"]) == (target, "lab-proj/us-central1", f"maskwright stop {target}")
    assert json.loads(result.err.splitlines()[-1])["error"]["exit_code"] == code
    assert result.code == code and said in result.err.splitlines()[-1], result.err


@pytest.mark.parametrize("parsed", [True, False])
def test_a_run_that_ended_as_asked_is_76_though_its_container_ended_with_0(submit, cloud, parsed):
    cloud.script("customJobs", [{"state": "JOB_STATE_RUNNING"}] * 3 + [{"state": "JOB_STATE_SUCCEEDED"}])

    def say(job):
        fields = {"message": "ended as asked", node.ENDED_WITH: 76}
        said = line(job, "workerpool0-0", json.dumps(fields), 1)
        cloud.logs.append(said | {"textPayload": "", "jsonPayload": fields} if parsed else said)

    result = said_meanwhile(cloud, submit, say)
    assert (result.code, result.out) == (76, ""), result.err
    assert "stopped as asked" in result.err.splitlines()[-1]


def test_a_lost_answer_makes_one_job(submit, cloud):
    cloud.fault("aiplatform.projects.locations.customJobs.create", 0, lost=True)
    result = submit()
    assert result.code == 0, result.err
    job_of(cloud)  # which there is one of


def test_without_an_answer_it_is_said_how_to_look_before_another_is_paid_for(submit, cloud):
    cloud.fault("aiplatform.projects.locations.customJobs.create", 503, "UNAVAILABLE", "Try later.")
    result = submit()
    assert result.code == 1 and "before you submit again: gcloud ai custom-jobs list" in result.error
    assert len(cloud.calls("aiplatform.projects.locations.customJobs.create")) == 1
    cloud.fault("aiplatform.projects.locations.customJobs.create", 400, "INVALID_ARGUMENT", "No such machine.")
    assert "submit again" not in submit().error


def test_ctrl_c_while_it_is_submitted_names_the_job(submit, cloud, monkeypatch):
    send = rest.Google._send

    def interrupted(self, verb, address, *rest_):
        answer = send(self, verb, address, *rest_)
        if verb == "POST" and address.endswith("/customJobs"):
            os.kill(os.getpid(), signal.SIGINT)
        return answer

    monkeypatch.setattr(rest.Google, "_send", interrupted)
    result = submit()
    job, _ = job_of(cloud)
    assert result.code == 130 and f"vertex:lab-proj/us-central1/{job}: submitted, not followed" in result.err


def test_ctrl_c_ends_the_following_and_stop_the_job(submit, cli, cloud):
    cloud.script("customJobs", [{"state": "JOB_STATE_RUNNING"}])

    def interrupt():
        while not cloud.calls("logging.entries.list"):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    result = submit()
    thread.join()
    assert result.code == 130 and "the job continues" in result.err.splitlines()[-1]
    job, body = job_of(cloud)
    assert body["state"] == "JOB_STATE_RUNNING"
    stopped = cli("stop", f"vertex:lab-proj/us-central1/{job}")
    assert (stopped.code, stopped.out.strip()) == (0, f"vertex:lab-proj/us-central1/{job}: cancelled")
    assert cli("stop", f"vertex:lab-proj/us-central1/{job}").code == 0, "one that is over is left alone"
    assert cli("stop", "vertex:12").code == 2
    assert cli("stop", f"vertex:lab-proj/us-central1/{job}", "--checkpoint").code == 2
    assert cli("logs", "vertex:lab-proj/us-central1/9", "--follow", "--lines", "3").code == 2
    assert cli("status", "vertex:lab-proj/us-central1/9").code == 1


# ---- in the container ----------------------------------------------------------------------------------------------

CLUSTER = {"workerpool0": ["a-0:2222"], "workerpool1": ["b-0:2222", "b-1:2222"]}


def told(pool, index, cluster):
    task = {"type": pool, "index": index, "trial": ""}
    return json.dumps({"cluster": cluster, "environment": "cloud", "task": task})


def test_every_replica_knows_its_number_and_where_they_meet():
    places = [("workerpool0", 0), ("workerpool1", 0), ("workerpool1", 1)]
    ranks = [node.node_options(told(pool, index, CLUSTER)) for pool, index in places]
    assert [words[3] for words in ranks] == ["0", "1", "2"]
    assert all(words[:2] == ["--num-nodes", "3"] and words[-1] == "a-0:2222" for words in ranks)
    assert node.node_options(told("workerpool0", 0, {"workerpool0": ["a-0:2222"]})) == node.node_options(None) == []
    for text in ("{}", "not JSON", told("workerpool3", 0, CLUSTER), told("workerpool1", 2, CLUSTER)):
        with pytest.raises(InputError, match="CLUSTER_SPEC"):
            node.node_options(text)


@pytest.mark.parametrize(
    ("ends", "code", "said"), [("7", 7, ""), ("75", 75, ""), ("76", 0, f'"{node.ENDED_WITH}": 76')]
)
def test_the_command_gets_the_words_and_its_code_is_the_containers(ends, code, said):
    """But 76: Vertex AI would start the container again."""
    show = [sys.executable, "-c", f"import sys; print(sys.argv[1:]); sys.exit({ends})", "pretrain"]
    done = subprocess.run(
        [sys.executable, "-m", "maskwright.cloud.vertex.node", *show],
        env={**os.environ, "CLUSTER_SPEC": told("workerpool1", 1, CLUSTER)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    words, *more = done.stdout.splitlines()
    assert words == "['pretrain', '--num-nodes', '3', '--node-rank', '2', '--rendezvous', 'a-0:2222']"
    assert said in "".join(more) and len(more) == bool(said)


def test_a_signal_to_the_container_reaches_the_command():
    saves = "import signal, sys, time; signal.signal(15, lambda *a: sys.exit(75))"
    saves += "; print('ready', flush=True); time.sleep(60)"
    words = [sys.executable, "-m", "maskwright.cloud.vertex.node", sys.executable, "-c", saves]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            process.terminate()
            assert process.wait(240) == 75
        finally:
            process.kill()
