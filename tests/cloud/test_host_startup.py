"""The start-up script of a host, run for real in a folder: its tools are stubs that do simple things, its metadata
server and its bucket are on loopback, its "container" is the agent as a process."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from maskwright import __version__

if missing := [name for name in ("bash", "curl", "flock", "sed") if shutil.which(name) is None]:
    pytest.skip(f"needs {', '.join(missing)}", allow_module_level=True)
pytest.importorskip("googleapiclient", reason="the fake cloud is judged by Google's discovery documents")
if importlib.util.find_spec("gcsfs") is None:  # importing it here would be too early: it reads the environment then
    pytest.skip("the agent reads its bucket through gcsfs", allow_module_level=True)

from fake_metadata import TOKEN, fake_metadata
from fake_tpu import Hosts
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.iam import acting_as, grant_hosts
from google_cloud.sandbox import Host, wait_until

JOBS = "gs://lab-jobs/slice"
ACCOUNT = "lab1-train@lab-proj.iam.gserviceaccount.com"
IMAGE = "us-east5-docker.pkg.dev/lab-proj/lab1/maskwright:0.3.0"
ATTRIBUTES = {
    "maskwright-environment": "lab1",
    "maskwright-kind": "slice",
    "maskwright-hosts": "1",
    "maskwright-spec": f"{JOBS}/job.json",
    "maskwright-mount-point": "/mnt/common",
    "maskwright-nfs": "10.1.2.3:/share",
    "maskwright-disk": "shared-pd",
    "maskwright-container": IMAGE,
    "maskwright-version": __version__,
    "maskwright-setup": "gs://lab-jobs/setup/1.sh",
}


class World:
    """A fake cloud and hosts in it. What `maskwright` does in a host's container is the shell text of its plan."""

    def __init__(self, folder: Path, cloud: Cloud, stack: ExitStack) -> None:
        self.folder, self.cloud, self._stack = folder, cloud, stack
        grant_hosts(cloud, ACCOUNT, dataset="lab-dataset", runs="lab-runs", jobs="lab-jobs")
        self.storage = stack.enter_context(acting_as(cloud, ACCOUNT))
        """The cloud as hosts see it, who only read what they are told to do."""
        self.plans = Hosts(folder / "plans", 1)
        self.all: list[Host] = []
        self.started: list[subprocess.Popen[str]] = []

    @property
    def variables(self) -> dict[str, str]:
        return self.cloud.environment() | {"FSSPEC_GS_TOKEN": "anon", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}

    def host(self, name: str, **attributes: str | None) -> Host:
        """`attributes` with _ for -; None takes one away."""
        changes = {f"maskwright-{key.replace('_', '-')}": value for key, value in attributes.items()}
        values = {key: value for key, value in (ATTRIBUTES | changes).items() if value is not None}
        metadata = self._stack.enter_context(fake_metadata(name, values))
        secrets = {key for key, value in self.variables.items() if value == TOKEN}
        inside = {key: value for key, value in self.variables.items() if key not in secrets}
        inside |= {"STORAGE_EMULATOR_HOST": self.storage, "GCE_METADATA_HOST": metadata.host, "PATH": self.plans.path}
        host = Host(self.folder / name, metadata, self.storage, inside)
        host.write("version", __version__)
        host.disk("shared-pd").joinpath("corpus.txt").write_text("text")
        (host.root / "var/lib/maskwright/home").mkdir(parents=True)
        self.all.append(host)
        return host

    def json(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.cloud.text(f"{JOBS}/{name}"))
        return value

    def health(self, name: str) -> dict[str, Any]:
        return self.json(f"reports/health/{name}.json")

    def has(self, name: str) -> bool:
        try:
            self.cloud.text(f"{JOBS}/{name}")
        except Exception:
            return False
        return True

    def submit(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "maskwright", "submit", "bucket", f"{JOBS}/job.json", "a.yaml", "--run", "r"]
        pipe = subprocess.PIPE
        environment = self.variables | {"PATH": "/usr/bin:/bin", "HOME": str(self.folder)}
        process = subprocess.Popen(
            [*command, "--workdir=.", "--grace-seconds=5", *words], env=environment, stdout=pipe, stderr=pipe, text=True
        )
        self.started.append(process)
        return process

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for host in self.all:
            host.reboot()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        cloud = stack.enter_context(fake_cloud())
        cloud.put("gs://lab-jobs/setup/1.sh", 'echo "set up in $MASKWRIGHT_MOUNT_POINT"; : >"$SANDBOX/was-set-up"\n')
        world = World(tmp_path, cloud, stack)
        yield world
        world.close()


def agent_runs(host: Host) -> Callable[[], bool]:
    return lambda: (host.folder / "docker/maskwright-agent/pid").exists()


def plan(host: Host, text: str) -> None:
    """What the job does in the home folder of the container."""
    home = host.root / "var/lib/maskwright/home"
    (home / "plan").write_text(text + "\n")


def test_from_boot_to_job_and_again_after_a_reboot(world: World) -> None:
    host = world.host("lab1-slice-a")
    plan(host, 'echo "in $MASKWRIGHT_ENVIRONMENT"; cat "$MASKWRIGHT_MOUNT_POINT/shared_pd/corpus.txt"')
    script = host.start("startup.sh")
    out, err = world.submit().communicate(timeout=240)
    assert "host 0 | in lab1" in out and "host 0 | text" in out, out + err + host.output
    mounts = host.root / "mnt/common"
    device = str(host.root / "dev/disk/by-id/google-shared-pd")
    options = "hard,timeo=600,retrans=3,vers=3,nolock"
    nfs = ["mount", "-t", "nfs", "-o", options, "10.1.2.3:/share", str(mounts / "nfs_share")]
    assert host.journal("mount") == [nfs, ["mount", "-o", "ro,noload", device, str(mounts / "shared_pd")]]
    (run,) = [call for call in host.journal("docker") if "--detach" in call]
    assert {"--privileged", "--init"} < set(run) and run[run.index("--net") + 1] == "host"
    assert run[run.index("--log-driver") + 1] == "gcplogs"
    words = ["agent", f"{JOBS}/job.json", "--num-hosts", "1", "--instance", "lab1-slice-a"]
    assert run[run.index(IMAGE) + 1 :] == words
    health = world.health("lab1-slice-a")
    assert (health["step"], health["ok"], health["image"]) == ("agent", True, "sha256:" + "1" * 64)
    assert health["versions"]["maskwright"] == __version__
    assert host.run("startup.sh") == 0 and "is already running" in host.output  # started by hand while it runs

    host.reboot()
    (host.folder / "was-set-up").unlink()
    host.start("startup.sh")
    wait_until(lambda: host.output.count("maskwright: agent: ") == 2)
    assert not (host.folder / "was-set-up").exists() and len(host.journal("mount")) == 4
    world.cloud.put("gs://lab-jobs/setup/1.sh", ': >"$SANDBOX/was-set-up-anew"\n')  # other content, another once
    host.reboot()
    host.start("startup.sh")
    wait_until(lambda: host.output.count("maskwright: agent: ") == 3)
    assert (host.folder / "was-set-up-anew").exists()
    assert script.poll() is not None


def test_no_token_stays_anywhere(world: World) -> None:
    secrets = (
        "echo HF_TOKEN=hf_abcdefgh12345678; echo https://me:hunter22@host/x; echo 'Authorization: Bearer abcdefghij'; "
    )
    world.cloud.put("gs://lab-jobs/setup/1.sh", secrets + "echo ya29.A0-token_of.somebody; exit 3\n")
    host = world.host("lab1-slice-a")
    assert host.run("startup.sh") == 1
    for text in (host.output, json.dumps(world.health("lab1-slice-a"))):
        for secret in ("hf_abcdefgh12345678", "hunter22", "abcdefghij", "ya29."):
            assert secret not in text
    world.cloud.put("gs://lab-jobs/setup/1.sh", "true\n")
    host.start("startup.sh")
    wait_until(agent_runs(host))
    login = next(call for call in host.journal("docker") if "login" in call)
    assert "--password-stdin" in login
    assert all(TOKEN not in word for call in host.journal() for word in call)
    assert host.files_with_token() == [] and TOKEN not in host.output
    assert any(one.get("method") == "storage.objects.insert" for one in world.cloud.journal)


def test_set_up_script_that_somebody_else_wrote_is_not_run(world: World) -> None:
    """Its name is its sha256, and root runs it."""
    text = ': >"$SANDBOX/was-set-up"\n\n'
    name = f"setup/{hashlib.sha256(text.encode()).hexdigest()}.sh"
    world.cloud.put(f"gs://lab-jobs/{name}", text)
    host = world.host("lab1-slice-a", setup=f"gs://lab-jobs/{name}", nfs=None, disk=None)
    host.start("startup.sh")
    wait_until(agent_runs(host))
    assert (host.folder / "was-set-up").exists()
    world.cloud.put(f"gs://lab-jobs/{name}", ': >"$SANDBOX/taken-over"\n')
    other = world.host("lab1-slice-b", setup=f"gs://lab-jobs/{name}", nfs=None, disk=None)
    assert other.run("startup.sh") == 1
    assert "is not what was uploaded (its sha256 differs)" in world.health("lab1-slice-b")["what"]
    assert not (other.folder / "taken-over").exists()


def test_container_with_another_version_is_refused(world: World) -> None:
    host = world.host("lab1-slice-a", idle_minutes="0")
    host.write("version", "0.0.9")
    assert host.run("startup.sh") == 1
    health = world.health("lab1-slice-a")
    assert health["step"] == "version" and not health["ok"]
    assert f"has maskwright 0.0.9, but the environment wants {__version__}. Fix: maskwright env image" in health["what"]
    assert host.journal("shutdown") == [["shutdown", "-h", "now"]]  # nobody pays for a host that cannot work
    assert "start-up failed at version" in world.json("reports/idle/lab1-slice-a.json")["what"]


def test_image_is_what_the_metadata_say_and_nothing_that_a_host_wrote(world: World) -> None:
    """By digest, as `env image` leaves it; and by a tag, under which somebody has pushed another image meanwhile."""
    built = "sha256:" + "3" * 64
    first, second = world.host("lab1-slice-a"), world.host("lab1-slice-b")
    third = world.host("lab1-slice-c", container=f"{IMAGE.rpartition(':')[0]}@{built}")
    second.write("digest", "sha256:" + "2" * 64)
    for host in (first, second, third):
        host.start("startup.sh")
        wait_until(agent_runs(host))
    wait_until(lambda: world.health("lab1-slice-c")["image"] == built)
    wait_until(lambda: world.health("lab1-slice-b")["image"] == "sha256:" + "2" * 64)
    assert not [name for _, name in world.cloud.objects if "/images/" in name]


def test_what_is_missing_is_said_with_a_fix(world: World) -> None:
    def refused(name: str, step: str, fix: str, prepare: Callable[[Host], None], **attributes: str | None) -> None:
        host = world.host(name, **attributes)
        prepare(host)
        assert host.run("startup.sh") == 1, host.output
        health = world.health(name)
        assert health["step"] == step and not health["ok"] and health["final"] and fix in health["what"], health
        assert not agent_runs(host)() and host.journal("shutdown") == []

    refused("a", "pull", "Fix: build it: maskwright env image", lambda host: host.write("no-image", "x"))
    refused("b", "mount-nfs", "check that the NFS exists", lambda host: host.write("nfs-is-down", "x"))
    empty = lambda host: (host.folder / "disks/shared-pd/formatted").unlink()  # noqa: E731
    refused("c", "mount-disk", "Fix: seed it first: maskwright env seed", empty)
    detached = lambda host: (host.root / "dev/disk/by-id/google-shared-pd").unlink()  # noqa: E731
    refused("d", "mount-disk", "Fix: maskwright env up", detached)

    def without_docker(host: Host) -> None:
        (host.bin / "docker").unlink()
        host.write("no-mirror", "x")

    refused("e", "docker", "network: {nat: true}, an image with docker, or a host.setup", without_docker)
    refused("f", "start", "maskwright-version is missing. Fix: maskwright env up", lambda host: None, version=None)


def test_docker_and_nfs_come_from_the_distribution_where_the_image_lacks_them(world: World) -> None:
    """As on Google's TPU images."""
    host = world.host("lab1-slice-a", setup=None, disk=None)
    (host.bin / "docker").unlink()
    (host.bin / "mount.nfs").unlink()
    host.start("startup.sh")
    wait_until(agent_runs(host))
    installed = [call[-1] for call in host.journal("apt-get") if "install" in call]
    assert installed == ["nfs-common", "docker.io"]


def test_container_optimized_os_with_a_gpu(world: World) -> None:
    """Its root is read-only, it has no mount.nfs, no apt and no NVIDIA toolkit."""
    host = world.host("lab1-group-a", kind="group", setup=None)
    for name in ("apt-get", "mount.nfs"):
        (host.bin / name).unlink()
    (host.root / "mnt").write_text("")  # nothing can be made below it
    for name, text in (("etc/os-release", "NAME=COS\nID=cos\n"), ("sys/bus/pci/devices/0/vendor", "0x10de\n")):
        (host.root / name).parent.mkdir(parents=True)
        (host.root / name).write_text(text)
    for name in ("nvidia0", "nvidiactl"):
        (host.root / "dev" / name).touch()
    host.start("startup.sh")
    wait_until(agent_runs(host))
    mounts = host.root / "var/lib/maskwright/mnt"
    nfs = next(call for call in host.journal("mount") if "nfs" in call)
    assert nfs[-1] == str(mounts / "nfs_share") and "-i" in nfs and nfs[5].endswith("vers=3,nolock,addr=10.1.2.3")
    assert host.journal("cos-extensions") == [["cos-extensions", "install", "gpu"]]
    (run,) = [call for call in host.journal("docker") if "--detach" in call]
    assert f"{mounts}:/mnt/common" in run and "--privileged" not in run and "--gpus" not in run
    devices = [word for before, word in zip(run, run[1:], strict=False) if before == "--device"]
    assert devices == ["/dev/nvidia0", "/dev/nvidiactl"]


def test_gpus_of_other_images_go_through_the_toolkit(world: World) -> None:
    host = world.host("lab1-group-a", kind="group", setup=None, nfs=None, disk=None)
    vendor = host.root / "sys/bus/pci/devices/0/vendor"
    vendor.parent.mkdir(parents=True)
    vendor.write_text("0x10de\n")
    assert host.run("startup.sh") == 1
    assert "there is a GPU and no driver" in world.health("lab1-group-a")["what"]
    (host.root / "dev/nvidia0").touch()
    assert host.run("startup.sh") == 1
    assert "docker cannot use the GPU" in world.health("lab1-group-a")["what"]
    host.add_tool("nvidia-ctk")
    host.write("no-gcplogs", "x")
    host.start("startup.sh")
    wait_until(agent_runs(host))
    first, second = [call for call in host.journal("docker") if "--detach" in call]
    assert second[second.index("--gpus") + 1] == "all"
    assert [call[call.index("--log-driver") + 1] for call in (first, second)] == ["gcplogs", "local"]
    assert "no Cloud Logging for the container" in host.output


def test_host_that_goes_down_saves_first(world: World) -> None:
    host = world.host("lab1-slice-a", setup=None, nfs=None, disk=None)
    plan(host, "trap 'echo saving; touch saves; sleep 2; touch saved; exit 75' TERM; touch up; sleep 600 & wait")
    script = host.start("startup.sh")
    submitted = world.submit()
    home = host.root / "var/lib/maskwright/home"
    wait_until((home / "up").exists)
    down = host.start("shutdown.sh")
    wait_until((home / "saves").exists)
    assert host.run("shutdown.sh") == 0  # docker's daemon tells the container again while the system goes down
    assert down.wait(120) == 0
    assert script.wait(120) == 0 and (home / "saved").exists()
    assert world.json("reports/hosts/host-0.json")["gone"]
    said = world.json("reports/0001/attempt-001/host-0/exit.json")
    assert said["code"] == 75 and said["told"]
    plan(host, "exit 0")
    host.reboot()
    host.start("startup.sh")
    assert submitted.wait(240) == 0
    (host.bin / "docker").unlink()
    assert host.run("shutdown.sh") == 0


def test_idle_host_powers_itself_off(world: World) -> None:
    host = world.host("lab1-slice-a", setup=None, nfs=None, disk=None, idle_minutes="0.01")
    assert host.run("startup.sh") == 0
    assert host.journal("shutdown") == [["shutdown", "-h", "now"]]
    assert world.json("reports/idle/lab1-slice-a.json")["what"] == "no job for 0.01 minutes"


def test_agent_that_ends_is_started_again(world: World) -> None:
    host = world.host("lab1-slice-a", setup=None, nfs=None, disk=None)
    host.start("startup.sh")
    wait_until(agent_runs(host))
    pid = (host.folder / "docker/maskwright-agent/pid").read_text()
    os.kill(int(pid), 9)
    wait_until(lambda: agent_runs(host)() and (host.folder / "docker/maskwright-agent/pid").read_text() != pid)
    assert "the agent ended with 137" in host.output
    assert "host-0.claim-000002.json" not in json.dumps(sorted(name for _, name in world.cloud.objects))


@pytest.mark.parametrize("at", [2, 6, *(pytest.param(at, marks=pytest.mark.long) for at in (11, 12))])
def test_start_up_killed_at_any_call_and_begun_again(world: World, at: int) -> None:
    """At that call of a tool, with all it has started but docker's containers; the machine is not rebooted."""
    host = world.host("lab1-slice-a")
    assert host.run("startup.sh", KILL_AT=str(at)) == -9
    assert len(host.journal()) == at, host.output
    host.start("startup.sh")
    wait_until(
        lambda: world.has("reports/health/lab1-slice-a.json") and world.health("lab1-slice-a")["step"] == "agent"
    )
    wait_until(agent_runs(host))
    assert len({call[-1] for call in host.journal("mount")}) == 2
    done = sorted(path.name for path in (host.root / "mnt/common").iterdir() if path.is_symlink())
    assert done == ["nfs_share", "shared_pd"]
    assert len(list((host.folder / "docker").iterdir())) == 1
    assert (host.root / "mnt/common/shared_pd/corpus.txt").read_text() == "text"
    assert host.files_with_token() == []


@pytest.mark.long
def test_start_up_killed_at_random_moments(world: World) -> None:
    host, generator = world.host("lab1-slice-a"), random.Random(7)
    plan(host, "exit 0")
    for _ in range(8):
        script = host.start("startup.sh")
        time.sleep(generator.uniform(0.05, 2.5))
        host.kill(script)
        if generator.random() < 0.5:
            host.reboot()
    host.start("startup.sh")
    wait_until(agent_runs(host))
    out, err = world.submit().communicate(timeout=240)
    assert world.json("results/0001.json")["code"] == 0, out + err + host.output
    assert len(list((host.folder / "docker").iterdir())) == 1 and host.files_with_token() == []
