"""Two ways to have a SLURM of two nodes for a test: the made-up one, and Debian's own (slurmctld, slurmd, slurm-client)
in a network namespace of its own, where all there is to reach is this machine itself."""

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fake_slurm
from private_network import wait_until

REAL = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "unshare", "nsenter")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
STUB = """#!/bin/sh
echo "$@" > "$STUB/words-$SLURM_NODEID"
echo . >> "$STUB/starts-$SLURM_NODEID"
start=$(wc -l < "$STUB/starts-$SLURM_NODEID")
. "$STUB/plan"
"""
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
MpiDefault=none
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=3
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    """`enter`: words before those that reach the cluster."""

    folder: Path
    environment: dict[str, str]
    enter: list[str]
    real: bool

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.enter, *words],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip

    def submit(self, plan: str, *options: str, config: str = "run.yaml") -> str:
        """`plan`: shell lines for each node in the place of maskwright, which know $SLURM_NODEID and $start."""
        (self.folder / "plan").write_text(plan)
        words = ["submit", "slurm", config, "--run", "runs/one", "--num-nodes", "2", *options]
        done = self.call(sys.executable, "-m", "maskwright", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> dict[str, str]:
        if not self.real:
            os.environ["FAKE_SLURM"] = str(self.folder / "jobs")
            state = fake_slurm.read(job)
            shown = str(state["state"]) if state.get("over") else "RUNNING"
            return {"JobState": shown, "ExitCode": f"{state['exit']}:0", "Restarts": str(state["restarts"])}
        return dict(re.findall(r"(\w+)=(\S+)", self.call("scontrol", "show", "job", "-o", job).stdout))

    def wait(self, job: str) -> dict[str, str]:
        """Its last state."""
        return wait_until(lambda: state if (state := self.state(job))["JobState"] in OVER else None)

    def wait_for(self, name: str) -> None:
        wait_until((self.folder / name).exists)

    def log(self, job: str) -> str:
        path = self.folder / f"one-{job}.log"
        return path.read_text() if path.exists() else ""

    def starts(self, node: int) -> int:
        return (self.folder / f"starts-{node}").read_text().count(".")


def _environment(folder: Path) -> dict[str, str]:
    programs = folder / "bin"
    programs.mkdir(parents=True)
    (programs / "maskwright").write_text(STUB)
    (programs / "maskwright").chmod(0o755)
    (folder / "run.yaml").write_text("data: {store: store}\nbatch: {virtual_workers: 96}\nschedule: {steps: 10}\n")
    kept = {name: os.environ[name] for name in ("HOME", "PYTHONPATH", "LANG") if name in os.environ}
    path = f"{programs}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "STUB": str(folder), "MASKWRIGHT_RESTART_WAIT_SECONDS": "0"}


@contextmanager
def fake_cluster(folder: Path) -> Iterator[Cluster]:
    environment = _environment(folder)
    (folder / "jobs").mkdir()
    tests = os.path.dirname(fake_slurm.__file__)
    for name in ("sbatch", "srun", "squeue", "scontrol", "scancel"):
        program = folder / "bin" / name
        lines = f"import sys\nsys.path.insert(0, {tests!r})\nfrom fake_slurm import main\nmain({name!r})\n"
        program.write_text(f"#!{sys.executable}\n{lines}")
        program.chmod(0o755)
    try:
        yield Cluster(folder, environment | {"FAKE_SLURM": str(folder / "jobs")}, [], real=False)
    finally:
        os.environ["FAKE_SLURM"] = str(folder / "jobs")
        for job in fake_slurm.root().iterdir():
            fake_slurm.send(job.name, "[bt]a*", signal.SIGKILL)  # batch and task-N, of a test that failed


def why_not_real() -> str:
    """What is missing for the real one; nothing when it can run."""
    missing = [name for name in REAL if not shutil.which(name)]
    if missing:
        return f"needs {missing[0]} (Debian: slurmctld, slurmd, slurm-client)"
    alone = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode == 0
    return "" if alone and os.geteuid() == 0 else "needs to be root, with network namespaces"


@contextmanager
def real_cluster(folder: Path) -> Iterator[Cluster]:
    environment = _environment(folder) | {"SLURM_CONF": str(folder / "slurm.conf")}
    (folder / "slurm.conf").write_text(CONF.format(host=platform.node().partition(".")[0], folder=folder))
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    # SLURM asks for addresses of the kinds that the machine has, and loopback alone counts as none (AI_ADDRCONFIG).
    (folder / "hosts").write_text(Path("/etc/hosts").read_text() + "\n127.0.0.1 n1 n2\n")
    up = f"ip link set lo up && ip address add 192.0.2.1/32 dev lo && mount --bind {folder}/hosts /etc/hosts"
    holder = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", f"{up} && exec sleep 86400"])
    time.sleep(0.5)
    cluster = Cluster(
        folder, environment, ["nsenter", f"--target={holder.pid}", "--net", "--mount", f"--wd={folder}"], real=True
    )
    daemons = []
    try:
        with open(folder / "daemons.txt", "w") as output:
            for words in (["slurmctld", "-D"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]):
                daemons.append(
                    subprocess.Popen([*cluster.enter, *words], env=environment, stdout=output, stderr=output)
                )
        idle = ("sinfo", "--noheader", "--format=%D %t")
        wait_until(lambda: cluster.call(*idle).stdout.strip() == "2 idle")
        yield cluster
    finally:
        cluster.call("scancel", "--state=PENDING", "--full", "--user=root")
        for daemon in [*reversed(daemons), holder]:
            daemon.terminate()
        for daemon in [*daemons, holder]:
            daemon.wait(60)
