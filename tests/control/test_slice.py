"""`submit slice NAME` as a user runs it: the real gcloud, a made-up Google Cloud on loopback, a stub for ssh."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from fake_tpu import PROJECT, ZONE, FakeCloud, Hosts, fake_cloud, gcloud_environment
from private_network import wait_until

from maskwright.core.errors import InputError, MaskwrightError
from maskwright.launch.target import Training
from maskwright.launch.tpu_vm import TpuSlice

needs_gcloud = pytest.mark.skipif(not shutil.which("gcloud"), reason="needs gcloud on the path")


@dataclass
class Pod:
    cloud: FakeCloud
    hosts: Hosts
    environment: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *arguments, **more):
        words = ["submit", "slice", "pod", "a.yaml", "--run", "runs/a", f"--zone={ZONE}", "--grace-seconds=5"]
        environment = self.environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")} | more
        process = subprocess.Popen(
            [sys.executable, "-m", "maskwright", *words, *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.started.append(process)
        return process

    def submit(self, *arguments, **more):
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=240)
        return process.returncode, out, err

    def ssh_log(self, worker):
        path = self.hosts.home(worker) / "ssh.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def pod(tmp_path):
    hosts = Hosts(tmp_path / "hosts", 2)
    with fake_cloud(2) as cloud:
        made = Pod(cloud, hosts, gcloud_environment(cloud, tmp_path, hosts.path))
        yield made
    for process in made.started:
        process.kill()
    hosts.end()


@needs_gcloud
def test_first_error_comes_first_and_its_code_is_the_jobs(pod):
    """Also: what may be seen of a variable's value, in the command lines of ssh and in what is printed."""
    pod.hosts.plan(0, 'echo "token $HF_TOKEN here"; while [ ! -e ../../host-1/late ]; do sleep 0.1; done; exit 75')
    pod.hosts.plan(1, 'printf "<%s>" "$@" "$HF_TOKEN" > seen; echo "error: loss is nan" >&2; touch ../late; exit 3')
    secret = "hf_made_up_secret"
    code, out, err = pod.submit("--set", "a.b='c d'", "--env", "HF_TOKEN", "--json", HF_TOKEN=secret)
    assert code == 3, err
    lines = err.splitlines()
    first = lines.index("first: host 1: exit 3")
    assert lines[first + 1 : first + 3] == ["host 1 | error: loss is nan", "host 0: exit 75, interrupted"]
    assert json.loads(lines[-1])["error"]["message"] == "slice pod: the job failed: host 1: exit 3"
    assert "host 0 | token *** here" in lines and secret not in out + err
    told = json.loads(out)
    assert (told["submitted"], told["where"], told["run"], told["job"]) == (True, "slice pod", "runs/a", None)
    words = ["pretrain", "a.yaml", "--run", "runs/a", "--set", "a.b='c d'", "--set", "engine.device=tpu", secret]
    assert pod.hosts.file(1, "seen").read_text() == "".join(f"<{word}>" for word in words)
    for worker in (0, 1):
        log = pod.ssh_log(worker)
        assert log.count("\n") == 1 and f"@192.0.2.{worker}" in log and "'exec', 'sh', '-s'" in log
        assert secret not in log and "ServerAliveInterval=15" in log
    # gcloud made the user's key and gave it to the hosts once: the first host was asked before the others.
    assert sum(call.startswith("PATCH") for call in pod.cloud.calls) == 1
    assert pod.hosts.left_over() == []


@needs_gcloud
def test_ctrl_c_is_passed_on_and_nothing_stays_behind(pod):
    """A terminal sends it to the whole process group, and gcloud and ssh would end before the job has saved."""
    plan = "trap 'echo saving; exit 75' TERM; touch up; sleep 600 & wait"
    for worker in (0, 1):
        pod.hosts.plan(worker, plan)
    process = pod.start()
    for worker in (0, 1):
        wait_until(pod.hosts.file(worker, "up").exists)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 75, err
    assert "asking the hosts to save and stop" in err and "restart" not in err
    assert {"host 0 | saving", "host 1 | saving"} <= set(out.splitlines())
    assert err.splitlines()[-1] == "stopped: slice pod: interrupted; the same command continues the run"
    assert pod.hosts.left_over() == []


@needs_gcloud
def test_what_is_wrong_with_the_slice_is_one_line(pod, monkeypatch):
    for name in os.environ:
        if name.startswith("CLOUDSDK_"):
            monkeypatch.delenv(name)
    for name, value in pod.environment.items():
        monkeypatch.setenv(name, value)
    assert TpuSlice("pod", ZONE).describe() == ("READY", "v4-32", 2)

    def complaint(place):
        with pytest.raises(InputError) as caught:
            place.describe()
        assert "\n" not in str(caught.value) and ". Fix: " in str(caught.value)
        return str(caught.value)

    assert ". Fix: check `gcloud compute tpus tpu-vm list`" in complaint(TpuSlice("other", ZONE))
    assert ". Fix: give --zone, or run `gcloud config set compute/zone ZONE`" in complaint(TpuSlice("pod"))
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", ZONE)
    assert TpuSlice("pod").describe()[0] == "READY"
    monkeypatch.delenv("CLOUDSDK_CORE_PROJECT")
    assert TpuSlice("pod", ZONE, PROJECT).describe()[0] == "READY"
    assert ". Fix: give --project, or " in complaint(TpuSlice("pod", ZONE))
    monkeypatch.delenv("CLOUDSDK_AUTH_ACCESS_TOKEN")
    assert ". Fix: run `gcloud auth login`" in complaint(TpuSlice("pod", ZONE, PROJECT))
    pod.cloud.node["networkEndpoints"] = None
    monkeypatch.setenv("CLOUDSDK_AUTH_ACCESS_TOKEN", "made-up-token")
    with pytest.raises(MaskwrightError, match="in an unknown format"):
        TpuSlice("pod", ZONE, PROJECT).describe()


def test_gcloud_that_is_missing_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"gcloud: is not installed.* Fix: install the Google Cloud CLI"):
        TpuSlice("pod", ZONE).describe()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["a.yaml"], "'a.yaml' is no place to run. Fix: maskwright submit PLACE CONFIG --run RUN; PLACE is ray, "),
        (["slrum", "a.yaml"], "'slrum' is no place to run. Fix: did you mean slurm?"),
        (["slice", "my pod", "a.yaml"], "is not the name of a slice"),
        (["slice", "a", "a.yaml", "--env", "NOT_SET_HERE"], "--env NOT_SET_HERE: is not set here"),
        (["slice", "a", "a.yaml", "--env", "A=b"], "is not the name of a variable"),
        (["slice", "a", "https://me:hunter2@host/a.yaml"], "command holds a secret"),
    ],
)
def test_bad_usage_is_one_line(cli, arguments, complaint):
    result = cli("submit", *arguments, "--run", "runs/a")
    assert result.code == 2 and complaint in result.error and result.err.count("\n") == 1


def test_limits_and_the_grace_period_of_a_run_reach_the_hosts(cli, tmp_path, monkeypatch):
    """A configuration that lies here may ask for a longer grace period than the option."""
    monkeypatch.setattr(TpuSlice, "describe", lambda place: ("READY", "v3-8", 1))
    monkeypatch.setenv("HF_TOKEN", "hf_made_up_secret")
    config = tmp_path / "a.yaml"
    config.write_text(
        "data: {store: gs://b/s}\nschedule: {steps: 1}\nengine: {kind: jax}\nbatch: {virtual_workers: 8}\n"
        "checkpoint: {grace_seconds: 100}\n"
    )
    words = ["submit", "slice", "pod", "a.yaml", "--run", "runs/a", "--dry-run", "--env", "HF_TOKEN"]
    limits = ["--stop-after-hours", "0.5", "--stop-after-steps", "100", "--profile-steps", "3"]
    for more, grace, last in (
        (["--set", "engine.device=cpu"], 30, "main maskwright pretrain a.yaml --run runs/a --set engine.device=cpu"),
        (["--grace-seconds", "7", *limits], 7, "=tpu --stop-after-hours 0.5 --stop-after-steps 100 --profile-steps 3"),
    ):
        result = cli(*words, *more)
        assert "export HF_TOKEN='***'" in result.out and "hf_made" not in result.out + result.err
        assert result.code == 0 and f"\nmw_grace={grace}\n" in result.out and result.out.rstrip().endswith(last)
    assert "\nmw_grace=105\n" in cli(*(word.replace("a.yaml", str(config)) for word in words)).out


@pytest.mark.parametrize(("kind", "devices"), [("v5litepod-16", 16), ("v4-16", 8), ("v3-8", 8)])
def test_a_configuration_that_lies_here_is_looked_at_first(tmp_path, monkeypatch, capsys, kind, devices):
    config = tmp_path / "a.yaml"
    config.write_text("data: {store: stores/one}\nschedule: {steps: 1}\nbatch: {micro_batch_rows: 32}\n")
    monkeypatch.setattr(TpuSlice, "describe", lambda place: ("READY", kind, 2))
    with pytest.raises(InputError) as caught:
        TpuSlice("pod", ZONE).submit(Training(str(config), "runs/a"), dry_run=True)
    rows = 32 // devices
    told = f"--set batch.virtual_workers={devices} --set batch.micro_batch_rows={rows}"
    assert str(caught.value).endswith(f"Fix: add --set engine.kind=jax {told}")
    right = ("engine.kind=jax", f"batch.virtual_workers={devices}")
    TpuSlice("pod", ZONE).submit(Training(str(config), "runs/a", right), dry_run=True)
    assert "data.store: each host reads stores/one in its folder maskwright" in capsys.readouterr().err
    TpuSlice("pod", ZONE).submit(Training("not-here.yaml", "runs/a"), dry_run=True)
