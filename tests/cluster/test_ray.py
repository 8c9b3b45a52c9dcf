"""A real Ray cluster (one head, two CPUs, token authentication) that trains what a plain command trains, bit for bit,
whatever happens to its parts."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from command_line import COMMAND
from private_network import PrivateNetwork, processes, wait_until, why_not
from ray_cluster import ray_cluster

from maskwright.prove.verify_resume import compare
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="needs the extra ray"),
    pytest.mark.skipif(bool(why_not()), reason=why_not() or ""),
]

STEPS = 300
CONFIG = {
    "data": {"seq_len": 32},
    "model": {"size": "nano", "hidden_size": 32, "num_attention_heads": 2},
    "optimizer": {"learning_rate": 1e-3},
    "schedule": {"steps": STEPS, "warmup_steps": 3},
    "batch": {"micro_batch_rows": 4, "virtual_workers": 2},
    "engine": {"device": "cpu", "dtype": "fp32", "threads": 1},
    "checkpoint": {"save_every_steps": 50, "save_every_seconds": None, "keep": 99},
    "evaluation": {"max_rows": 8, "every_steps": 150},
    "logging": {"every_steps": 1, "report_to": []},
}
LONG_ENOUGH_SECONDS = 240.0


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def last(self):
        return self.err.strip().splitlines()[-1]


@dataclass
class Cluster:
    network: PrivateNetwork
    folder: Path
    store: str
    environment: dict[str, str]

    def start(self, *words, folder="laptop", **environment):
        kept = {name: value for name, value in {**self.environment, **environment}.items() if value}
        pipe = subprocess.PIPE
        command = self.network.words(*words, folder=self.folder / folder)
        return subprocess.Popen(command, env=kept, stdout=pipe, stderr=pipe, text=True)

    def ended(self, process):
        try:
            out, err = process.communicate(timeout=LONG_ENOUGH_SECONDS)
        finally:
            process.kill()
        return Ended(process.returncode, out, err)

    def maskwright(self, *words, **environment):
        return self.ended(self.start(*COMMAND, *words, **environment))

    def submit(self, run, *words):
        return self.start(*COMMAND, "submit", "ray", "run.yaml", "--run", self.run(run).location, *words)

    def run(self, name):
        return RunDirectory(str(self.folder / "shared" / name))

    def driver(self, run):
        return processes("-m", "pretrain", self.run(run).location, "run.yaml")

    def worker(self, run):
        """The process that trains."""
        return [pid for pid in processes("-m", "pretrain", self.run(run).location) if pid not in self.driver(run)]

    def until_saved(self, run, submitted=None):
        """A checkpoint more than there are now. The processes that train."""
        folder = self.run(run).checkpoints
        before = len(checkpoint.whole_steps(folder))
        while not (len(checkpoint.whole_steps(folder)) > before and self.worker(run)):
            assert submitted is None or submitted.poll() is None, submitted.communicate()
            time.sleep(0.02)
        return self.worker(run)

    def same(self, run):
        tensors, lines, differences = compare(self.run("straight"), self.run(run))
        assert tensors > 50 and lines >= STEPS and differences == []
        weights = f"step-{STEPS:08d}/model.safetensors"
        one, other = (Path(self.run(name).checkpoints, weights) for name in ("straight", run))
        assert one.read_bytes() == other.read_bytes()


@pytest.fixture(scope="module")
def cluster(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    for name in ("laptop", "without git", "shared", "home"):
        (folder / name).mkdir()
    for name in ("laptop", "without git"):
        config = {**CONFIG, "data": {**CONFIG["data"], "store": store.location}}
        (folder / name / "run.yaml").write_text(yaml.safe_dump(config))
    # What git leaves out of that folder must not matter to `submit`.
    (folder / "laptop" / ".gitignore").write_text("*\n")
    with ray_cluster(folder, folder / "home") as (network, environment):
        yield Cluster(network, folder, store.location, environment)


@pytest.fixture(scope="module", autouse=True)
def straight(cluster):
    """The same configuration by the plain command."""
    run = cluster.run("straight").location
    assert cluster.maskwright("pretrain", "run.yaml", "--run", run).code == 0


def test_who_has_no_token_gets_nowhere(cluster):
    """Who has the right one need not name the mode."""
    for token, mode in (("", "disabled"), ("f" * 32, "token"), ("", "")):
        ended = cluster.maskwright("status", "ray:", RAY_AUTH_TOKEN=token, RAY_AUTH_MODE=mode)
        assert ended.code == 2 and len(ended.err.splitlines()) == 1, ended
        assert "refuses the token, or there is none" in ended.last and "RAY_AUTH_TOKEN" in ended.last
    assert cluster.maskwright("status", "ray:", RAY_AUTH_MODE="").code == 0


TUNNEL = """
import socket, sys, threading
def copy(source, to):
    while data := source.recv(65536):
        to.sendall(data)
    to.shutdown(socket.SHUT_WR)
listening = socket.create_server(("127.0.0.1", 8266))
print("open", flush=True)
while True:
    here, there = listening.accept()[0], socket.create_connection(("127.0.0.1", 8265))
    for pair in ((here, there), (there, here)):
        threading.Thread(target=copy, args=pair, daemon=True).start()
"""
THERE = ("--address", "http://127.0.0.1:8266")
OURS = ("host ", "Ray job ", "first: host ", "warning: ", "waiting for ", "Running entrypoint for job ")


@contextmanager
def tunnel(cluster):
    """Another way to the head, as `kubectl port-forward` opens one; at its end all connections are cut."""
    before = processes("-c", TUNNEL)
    process = cluster.start(sys.executable, "-c", TUNNEL)
    assert process.stdout and process.stdout.readline() == "open\n"
    yield
    for pid in set(processes("-c", TUNNEL)) - set(before):
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def test_what_is_killed_begins_again_by_itself_and_a_cut_tunnel_costs_no_line(cluster):
    with tunnel(cluster):
        seed = ("--simulated_gpus", "2", "--b_size=4", "--datapath", cluster.store)
        following = cluster.submit("killed", *seed, "--job-id", "killed", "--follow", *THERE)
        (worker,) = cluster.until_saved("killed", following)
        os.kill(worker, signal.SIGSTOP)  # a fast machine would finish the run first
        another = cluster.start(*COMMAND, "logs", "ray:killed", "--follow", *THERE)
        assert another.stdout and another.stdout.readline()
    for process in (following.stderr, another.stderr):
        assert any("the job continues; trying again" in line for line in process)
    with tunnel(cluster):
        killed_and_begun_again(cluster, following, worker)
        again = cluster.ended(another)
    log = cluster.maskwright("logs", "ray:killed").out
    assert again.code == 0 and log.endswith(again.out) and "\nRay job killed: 1 node with the CPU" in log

    ended = cluster.ended(cluster.submit("other", "--job-id", "killed"))
    assert ended.code == 2 and "--job-id killed: such a job exists already: SUCCEEDED" in ended.last
    (job,) = [
        job for job in json.loads(cluster.maskwright("status", "ray:", "--json").out)["jobs"] if job["id"] == "killed"
    ]
    assert (job["state"], job["code"], job["run"]) == ("SUCCEEDED", 0, cluster.run("killed").location)


def killed_and_begun_again(cluster, following, worker):
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: worker not in cluster.worker("killed"))

    # Ray's own process: the training saves before another one begins.
    cluster.until_saved("killed", following)
    wait_until(lambda: len(members()) == 1)  # that of the attempt before may not be gone yet
    os.kill(members()[0], signal.SIGKILL)

    ended = cluster.ended(following)
    assert ended.code == 0, ended
    assert "host 0: killed by SIGKILL" in ended.out and "Ray lost it" in ended.out
    assert ended.out.count("attempt 1 of 5 in vain") == 2  # it had saved since
    assert ended.out == cluster.maskwright("logs", "ray:killed").out
    assert [line for line in ended.out.splitlines() if not line.startswith(OURS)] == []
    cluster.same("killed")


@contextmanager
def halted(pid):
    """Until it is told to end, however long that takes, so that a fast machine does not finish the run first."""
    os.kill(pid, signal.SIGSTOP)
    yield
    wait_until(lambda: told_to_end(pid))
    os.kill(pid, signal.SIGCONT)


def told_to_end(pid):
    pending = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("ShdPnd"))
    return bool(int(pending.split()[1], 16) >> signal.SIGTERM - 1 & 1)


def members():
    """Processes of our actors: Ray names one by what it does."""
    return begins(b"ray::Member")


def test_stopped_it_has_saved_and_is_continued_by_rays_own_command(cluster):
    ended = cluster.ended(cluster.submit("stopped"))
    assert ended.code == 0, ended
    name = ended.out.strip()
    assert name.startswith("stopped-") and f"maskwright stop ray:{name}" in ended.last
    (worker,) = cluster.until_saved("stopped")
    follow = "from maskwright.core.console import show_line; from maskwright.launch.ray.jobs import RayJobTarget; "
    follow += f"RayJobTarget({name!r}).logs(follow=True, lines=None, show=show_line)"
    with halted(worker):
        ended = cluster.ended(cluster.submit("stopped"))
        assert ended.code == 2 and f"is being trained by ray:{name}, RUNNING" in ended.last
        following = cluster.start(*COMMAND[:1], "-c", follow)
        stopping = cluster.start(*COMMAND, "stop", f"ray:{name}")
    stopped = cluster.ended(stopping)
    assert (stopped.code, stopped.out) == (0, f"ray:{name}: STOPPED\n"), stopped
    followed = cluster.ended(following)
    assert "EndedAsAsked" in followed.err and "host 0 | stopped: " in followed.out
    status = cluster.run("stopped").read_status()
    assert status and (status.phase, status.exit) == ("stopped", 75)
    assert checkpoint.whole_steps(cluster.run("stopped").checkpoints)[-1] == status.step < STEPS
    assert cluster.worker("stopped") == []

    # By Ray's own command, which waits 3 seconds at most when it stops; here its driver is killed at once.
    run = cluster.run("stopped").location
    words = ("ray", "job", "submit", "--working-dir", ".", "--", "maskwright", "pretrain", "run.yaml", "--run", run)
    process = cluster.start(*words, folder="without git")
    (worker,) = cluster.until_saved("stopped", process)
    with halted(worker):
        (driver,) = cluster.driver("stopped")
        os.kill(driver, signal.SIGKILL)
    assert cluster.ended(process).code == 1
    wait_until(lambda: not cluster.worker("stopped"))
    status = cluster.run("stopped").read_status()
    assert status and (status.phase, status.exit) == ("stopped", 75)

    ended = cluster.ended(cluster.submit("stopped", "--follow"))
    assert ended.code == 0, ended
    cluster.same("stopped")


def test_exit_codes_come_through(cluster):
    ended = cluster.ended(cluster.submit("failed", "--follow", "--set", "data.store=/nowhere/store"))
    assert ended.code == 2 and "the job failed: exit 2" in ended.last, ended
    assert "host 0 | error: /nowhere/store: is not a token store" in ended.out

    to_come = ("--set", "engine.device=auto", "--num-nodes", "2", "--gpus-per-node", "1", "--job-id", "to-come")
    following = cluster.submit("to-come", "--follow", *to_come)
    assert any("waiting for 2 nodes with 1 GPU each: the machines have 2 CPUs, 0" in line for line in following.stdout)
    assert cluster.maskwright("stop", "ray:to-come").out == "ray:to-come: STOPPED\n"
    assert cluster.ended(following).code == 76


def test_a_gang_of_two_is_the_plain_command_too_and_begins_again_together(cluster):
    following = cluster.submit("gang", "--follow", "--num-nodes", "2")
    workers = cluster.until_saved("gang", following)
    assert len(workers) == 4  # two that compute, and above each what watches over its machine
    os.kill(max(workers), signal.SIGKILL)
    ended = cluster.ended(following)
    assert ended.code == 0, ended
    assert "2 nodes with the CPU each" in ended.out and "restarting from step" in ended.out
    status = cluster.run("gang").read_status()
    assert status and (status.phase, status.step, status.attempt) == ("done", STEPS, 2)
    cluster.same("gang")


# ---- TPU slices ------------------------------------------------------------------------------------------------------

STAND_IN = """
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "maskwright.engines.jax.processes":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            module.choose_device = lambda engine: {"tpu": "cpu"}[engine.device]
        spec.loader.exec_module = exec_module
        return spec
sys.meta_path.insert(0, Finder())
"""
"""A `sitecustomize` for machines without TPUs: what is to compute on a TPU computes on the CPU."""


def tpu_host(cluster, worker):
    """A host of a slice v6e:2x4 as Ray sees it on Google Cloud, with leftovers of a job on several slices."""
    (folder := cluster.folder / "stand-in").mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(STAND_IN)
    of_slice = {"TPU_NAME": "a", "TPU_ACCELERATOR_TYPE": "v6e-8", "TPU_TOPOLOGY": "2x4", "MEGASCALE_NUM_SLICES": "2"}
    of_slice |= {"PYTHONPATH": str(folder), "TPU_WORKER_ID": str(worker)}
    return another_machine(cluster, resources='{"TPU": 4}', **of_slice)


def variables_of(pid):
    lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if "=" in line)


def test_a_slice_is_trained_on_whole_and_in_its_order_and_waits_for_a_lost_host(cluster):
    engine = {"kind": "jax", "dtype": "fp32", "threads": 1}
    config = {**CONFIG, "engine": engine, "batch": {"micro_batch_rows": 1, "virtual_workers": 8}}
    config["schedule"] = {"steps": 40, "warmup_steps": 3}
    config["checkpoint"] = {**CONFIG["checkpoint"], "save_every_steps": 5}
    config["data"] = {**CONFIG["data"], "store": cluster.store}
    (cluster.folder / "laptop" / "tpu.yaml").write_text(yaml.safe_dump(config))
    run = cluster.run("slice").location
    words = ("submit", "ray", "tpu.yaml", "--run", run, "--accelerator", "v6e:2x4", "--follow")
    following = cluster.start(*COMMAND, *words)
    lines = following.stdout
    assert lines and any("waiting for TPU slice v6e:2x4: no machine is host 0" in line for line in lines)
    with tpu_host(cluster, 1) as raylet, tpu_host(cluster, 0):
        ranks = {variables_of(pid)["TPU_WORKER_ID"]: pid for pid in until_both(cluster, following)}
        for worker, pid in ranks.items():
            variables = variables_of(pid)
            assert variables["RANK"] == worker and variables["WORLD_SIZE"] == "2"
            assert not {"TPU_VISIBLE_CHIPS", "MEGASCALE_NUM_SLICES"} & set(variables)
        os.kill(raylet, signal.SIGKILL)
        os.kill(ranks["1"], signal.SIGKILL)
        assert any("waiting for TPU slice v6e:2x4: host 1 of a has not joined" in line for line in lines)
        with tpu_host(cluster, 1):
            ended = cluster.ended(following)
    assert ended.code == 0 and "attempt 2 on 127.0.0.1, 127.0.0.1" in ended.out, ended
    assert f"host 0 | done: {run}" in ended.out
    assert [line for line in ended.out.splitlines() if not line.startswith(OURS)] == []  # Ray adds 60
    status = cluster.run("slice").read_status()
    assert status and (status.phase, status.step, status.attempt) == ("done", 40, 2)


def until_both(cluster, following):
    """The two processes that train, once there is a checkpoint."""
    cluster.until_saved("slice", following)
    return [pid for pid in cluster.worker("slice") if "RANK" in variables_of(pid)]


HEAD = "127.0.0.1:6379"


def begins(line):
    """Numbers of the processes whose command line begins so."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            found += [pid] * Path(f"/proc/{pid}/cmdline").read_bytes().startswith(line)
    return found


def raylets_below(ancestor):
    """Without what a raylet has just forked, which has its name until it becomes a worker. Other clusters may begin on
    this machine at the same time."""
    parents, raylets = dict[int, int](), set[int]()
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with suppress(OSError):
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].endswith(b"/raylet"):
                raylets.add(pid)

    def is_below(pid):
        return pid == ancestor or (pid in parents and is_below(parents[pid]))

    return {pid for pid in raylets if parents[pid] not in raylets and is_below(pid)}


@contextmanager
def another_machine(cluster, *, resources="{}", **environment):
    """The raylet of a second node of the cluster."""
    small = ("--num-cpus=1", "--num-gpus=0", "--object-store-memory=100000000", "--disable-usage-stats")
    words = ("ray", "start", f"--address={HEAD}", "--node-ip-address=127.0.0.1", "--block", *small)
    with tempfile.NamedTemporaryFile(dir=cluster.folder) as log:
        command = cluster.network.words(*words, f"--resources={resources}")
        node = subprocess.Popen(command, env=cluster.environment | environment, stdout=log, stderr=log)
        try:
            wait_until(lambda: "Ray runtime started" in Path(log.name).read_text())
            (raylet,) = raylets_below(node.pid)
            yield raylet
            with suppress(ProcessLookupError):
                os.kill(raylet, signal.SIGKILL)
        finally:
            node.kill()
            node.wait()
