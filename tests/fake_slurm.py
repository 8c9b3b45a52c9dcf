"""SLURM as its manual pages have it, as far as a batch script of ours goes: `sbatch`, `srun`, `squeue`, `scontrol`
and `scancel` call `main` with their names. A job is a folder in FAKE_SLURM; each of its nodes is a process here.

Held to the real one: `tests/control/test_slurm.py` runs the same jobs on both.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path


def root() -> Path:
    return Path(os.environ["FAKE_SLURM"])


def read(job: str) -> dict[str, object]:
    return dict(json.loads((root() / job / "state.json").read_text()))


def write(job: str, **changes: object) -> None:
    path = root() / job / "state.json"
    values = (read(job) if path.exists() else {}) | changes
    path.with_suffix(".new").write_text(json.dumps(values))
    path.with_suffix(".new").replace(path)


def send(job: str, names: str, number: int) -> None:
    """To the process groups noted in files of such names."""
    for path in (root() / job).glob(names):
        with suppress(OSError, ValueError):  # it has ended, or its note is gone
            os.killpg(int(path.read_text()), number)


def sbatch(words: list[str]) -> int:
    """A variable outranks a line of the script, and a word outranks both."""
    assert words[0] == "--parsable", words
    text = sys.stdin.read()
    options = [shlex.split(line)[1] for line in text.splitlines() if line.startswith("#SBATCH ")]
    options += [f"--export={os.environ.get('SBATCH_EXPORT', 'ALL')}", *words[1:]]
    named = dict(option.removeprefix("--").partition("=")[::2] for option in options)
    if named.get("partition") == "none":
        print("sbatch: error: invalid partition specified: none", file=sys.stderr)
        print("sbatch: error: Batch job submission failed: Invalid partition name specified", file=sys.stderr)
        return 1
    job = str(len(list(root().iterdir())) + 1)
    (root() / job).mkdir()
    (root() / job / "script").write_text(text)
    log = os.path.abspath(re.sub("%[%j]", lambda found: "%" if found[0] == "%%" else job, named["output"]))
    name, nodes = named["job-name"], int(named["nodes"])
    write(job, state="PENDING", exit=0, restarts=0, name=name, nodes=nodes, log=log, requeue=False)
    none = subprocess.DEVNULL
    kept = dict(os.environ) if named["export"] == "ALL" else {"FAKE_SLURM": os.environ["FAKE_SLURM"]}
    words = [sys.executable, __file__, job]
    subprocess.Popen(words, env=kept, start_new_session=True, stdin=none, stdout=none, stderr=none)
    print(job)
    return 0


def run(job: str) -> None:
    """What slurmctld and the first node's slurmd do."""
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # ignored by who submits: a shell could not trap it
    for restart in range(10):
        write(job, state="RUNNING", restarts=restart, requeue=False)
        count = int(str(read(job)["nodes"]))
        environment = os.environ | {
            "SLURM_JOB_ID": job,
            "SLURM_JOB_NODELIST": "localhost",
            "SLURM_NNODES": str(count),
            **({"SLURM_RESTART_COUNT": str(restart)} if restart else {}),
        }
        with open(str(read(job)["log"]), "a") as log:
            words = ["bash", str(root() / job / "script")]
            batch = subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)
            (root() / job / "batch").write_text(str(batch.pid))
            code = batch.wait()
        (root() / job / "batch").unlink()
        send(job, "task-*", signal.SIGKILL)
        if read(job)["requeue"]:
            continue
        if read(job)["state"] != "CANCELLED":
            write(job, state="FAILED" if code else "COMPLETED")
        write(job, exit=code, over=True)
        return


def srun(words: list[str]) -> int:
    """One task a node. The highest exit code of all."""
    if {"SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE"} <= os.environ.keys():
        print("srun: fatal: SLURM_MEM_PER_CPU and SLURM_MEM_PER_NODE are mutually exclusive.", file=sys.stderr)
        return 1
    while words[0].startswith("-"):
        words.pop(0)
    job, count = os.environ["SLURM_JOB_ID"], int(os.environ["SLURM_NNODES"])
    codes: dict[int, int] = {}
    tasks = {}
    for node in range(count):
        environment = os.environ | {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_STEP_ID": "0"}
        tasks[node] = subprocess.Popen(words, env=environment, start_new_session=True)
        (root() / job / f"task-{node}").write_text(str(tasks[node].pid))
    while len(codes) < count:
        for node, task in tasks.items():
            if node not in codes and (code := task.poll()) is not None:
                codes[node] = code if code >= 0 else 128 - code
                (root() / job / f"task-{node}").unlink()
        time.sleep(0.02)
    return max(codes.values())


def squeue(words: list[str]) -> int:
    assert words == ["--me", "--noheader", "--format=%i %j"], words
    for job in sorted(path.name for path in root().iterdir()):
        if not (state := read(job)).get("over"):
            print(job, state["name"])
    return 0


def scontrol(words: list[str]) -> int:
    if words[:2] == ["show", "hostnames"]:
        print("localhost")
    elif words[:2] == ["show", "job"]:
        job = words[-1]
        if not (root() / job).exists():
            print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
            return 1
        state = read(job)
        told = f"JobId={job} JobName={state['name']} JobState={state['state']} Reason=None ExitCode={state['exit']}:0"
        print(f"{told} StdOut={state['log']}")
    elif words[0] == "requeue":
        write(words[1], requeue=True, state="PENDING")
        send(words[1], "batch", signal.SIGTERM)
    return 0


def scancel(words: list[str]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a job that cancels itself: the wish is with slurmctld
    job, wanted = (
        words[-1].partition(".")[0],
        [word.removeprefix("--signal=") for word in words if word.startswith("--signal=")],
    )
    if wanted:
        number = signal.Signals[f"SIG{wanted[0]}"]
        if "--batch" in words:  # the shell alone, not what it has started
            os.kill(int((root() / job / "batch").read_text()), number)
        else:
            send(job, "task-*", number)
    else:
        write(job, state="CANCELLED")
        send(job, "task-*", signal.SIGTERM)
        send(job, "batch", signal.SIGTERM)
    return 0


def main(program: str) -> None:
    commands = {"sbatch": sbatch, "srun": srun, "squeue": squeue, "scontrol": scontrol, "scancel": scancel}
    sys.exit(commands[program](sys.argv[1:]))


if __name__ == "__main__":
    run(sys.argv[1])
