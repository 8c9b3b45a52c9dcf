"""`submit slurm`: a batch script of `sbatch`, which starts the same command on each node of an allocation with
`srun`, again when a node's process was lost, and the whole job again when its time limit came first.

The script decides by exit codes alone, like `outcome.py`. srun gives the highest of all tasks' codes, by which a 75
(stopped early) would hide a 3 (the error that was the cause). So each task adds 200 to an error, and turns the 75 of a
run that was asked to stop (`core.parent`) into 199. Then errors go before that, that before kills (129 to 192), kills
before 75, and 75 before 0.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from maskwright.core.console import say
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.parent import REASON_FILE, WISHES
from maskwright.core.secrets import redact
from maskwright.launch import cluster
from maskwright.launch.target import JobName, Option, Place, Restarts, Training

BEFORE_SECONDS = 30
"""Between the end of the grace period and the time limit."""
SBATCH_SECONDS = 120.0

TASK = rf"""
trap : TERM
{REASON_FILE}=$(mktemp)
export {REASON_FILE}
if [ "$SLURM_NNODES" -gt 1 ]; then
  set -- "$@" --num-nodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" --rendezvous "$MASKWRIGHT_RENDEZVOUS"
fi
"$@"
code=$?
reason=$(cat "${REASON_FILE}" 2>/dev/null)
rm -f "${REASON_FILE}"
if [ "$code" -eq 75 ]; then case $reason in {"|".join(WISHES)}) exit 199 ;; esac; fi
if [ "$code" -eq 0 ] || [ "$code" -eq 75 ] || [ "$code" -gt 128 ]; then exit "$code"; fi
[ "$code" -le 55 ] || code=55
exit $((200 + code))
"""

SCRIPT = r"""
asked=
# Only the steps get scancel's signal; srun may be gone already.
tell() { asked=$1; scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null; }
trap 'tell limit' USR1
trap 'tell end' TERM
start() {
  srun --kill-on-bad-exit=1 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} "$@" &
  step=$!
  while :; do
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null || break  # else a signal of ours ended the wait
  done
  wait "$step" 2>/dev/null
  after=$?
  [ "$after" -eq 127 ] || code=$after
}
finish() { echo "== $1" >&2; exit "$2"; }

host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
attempt=0
while :; do
  attempt=$((attempt + 1))
  echo "== start ${SLURM_RESTART_COUNT:-0}, attempt $attempt on $SLURM_JOB_NODELIST"
  # Another port for each attempt: the last one's may still be held by a process that dies slowly.
  port=$((10000 + (SLURM_JOB_ID * 7 + attempt) % 20000))
  export MASKWRIGHT_RENDEZVOUS="$host:$port"
  start $labels sh -c "$task" task "${words[@]}"
  [ "$code" -ne 0 ] || finish 'done' 0
  [ "$code" -le 200 ] || finish "failed: exit $((code - 200))" $((code - 200))
  if [ "$asked" = end ]; then finish 'told to end; the same command continues the run' 75; fi
  if [ "$code" -eq 199 ]; then finish 'stopped on request; the same command continues the run' 75; fi
  if [ "$asked" = limit ]; then
    echo '== the time limit is near: to be continued in another start'
    scontrol requeue "$SLURM_JOB_ID" && exit 75
    finish 'cannot be requeued; the same command continues the run' 75
  fi
  if [ "$attempt" -gt "$restarts" ]; then
    [ "$code" -eq 75 ] || finish "failed: exit $code in $attempt attempts" 1
    finish "stopped early in $attempt attempts; the same command continues the run" 75
  fi
  echo "== exit $code: restart $attempt of $restarts"
  sleep "${MASKWRIGHT_RESTART_WAIT_SECONDS:-10}"
  [ -z "$asked" ] || finish 'told to end; the same command continues the run' 75
done
"""


@dataclass(frozen=True)
class Slurm(Place):
    """Options in `sbatch` are its own. They come last, so that they win."""

    num_nodes: Annotated[int, Option("Number of nodes that train together.", "N", min=1)] = 1
    gpus_per_node: Annotated[int, Option("GPUs of each node that compute; 0 computes on the CPU.", "N", min=0)] = 0
    cpus: Annotated[int | None, Option("Cores of each node; the cluster decides when not given.", "N", min=1)] = None
    name: JobName = None
    sbatch: Annotated[tuple[str, ...], Option("Option of sbatch, as in --sbatch=--partition=gpu.", "OPTION")] = ()
    workdir: Annotated[str, Option("Folder on the nodes; the one where you submit when not given.", "PATH")] = "."
    setup: Annotated[str | None, Option("Shell command that each node runs at each start.", "COMMAND")] = None
    restarts: Restarts = 3

    def __post_init__(self) -> None:
        for option in self.sbatch:
            if not re.fullmatch(r"--[a-z][a-z-]*(=[^\s'\"#]+)?", option):
                fix = 'one option of sbatch, as in --sbatch "--partition=gpu"'
                raise InputError(f"{redact(option)[:80]!r} is no option", where="--sbatch", fix=fix)
            if not self.gpus_per_node and option.startswith(("--gres", "--gpus")):
                raise InputError(f"{option} without --gpus-per-node", where="--sbatch", fix="--gpus-per-node 8")
            if option.partition("=")[0] in ("--nodes", "--ntasks", "--ntasks-per-node", "--array", "--wrap"):
                fix = "--num-nodes and --gpus-per-node say how many"
                raise InputError(f"{option} is not yours to say", where="--sbatch", fix=fix)

    def submit(self, command: Training, *, dry_run: bool) -> None:
        """Prints the number of the job, or with `dry_run` the script."""
        config, _ = cluster.read(command)
        name = cluster.name_for(command.run, self.name)
        command = cluster.sized(command, config, self.num_nodes, self.gpus_per_node)
        text = script(self, name, command, cluster.grace_seconds(config))
        if dry_run:
            return print(text, end="")
        _sbatch(text, name)


def script(place: Slurm, name: str, command: Training, grace_seconds: int) -> str:
    """The whole of it. It holds no value of a variable: sbatch hands on the environment."""
    header = {
        "job-name": name,
        "nodes": str(place.num_nodes),
        "ntasks-per-node": "1",
        "output": f"{name}-%j.log",
        "open-mode": "append",
        "signal": f"B:USR1@{grace_seconds + BEFORE_SECONDS}",
        **({"gpus-per-node": str(place.gpus_per_node)} if place.gpus_per_node else {}),
        **({"cpus-per-task": str(place.cpus)} if place.cpus else {}),
    }
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in header.items()), "#SBATCH --requeue"]
    lines += [f"#SBATCH {option}" for option in place.sbatch]
    lines += [
        "",
        f"words=(maskwright {shlex.join(command.words())})",
        f"restarts={place.restarts}",
        f"labels={'--label' if place.num_nodes > 1 else ''}",
        f"task={shlex.quote(TASK.strip())}",
        *_folder(place),
    ]
    return "\n".join(lines) + "\n" + SCRIPT


def _folder(place: Slurm) -> Sequence[str]:
    """A relative folder lies in the home folder, `.` is where sbatch was called."""
    lines = []
    if place.setup:
        lines.append(f'srun --chdir="$HOME" --kill-on-bad-exit=1 sh -c {shlex.quote(place.setup)} || exit 2')
    if place.workdir != ".":
        folder = shlex.quote(place.workdir)
        lines.append(f'{{ cd "$HOME" && cd {folder}; }} || {{ printf "%s: no such folder\\n" {folder} >&2; exit 2; }}')
    return [*lines, '[ ! -d .venv/bin ] || export PATH="$PWD/.venv/bin:$PATH"']


def _sbatch(text: str, name: str) -> None:
    absent = "run it on a login node of the cluster, or --dry-run and copy the script there"
    silent = "see `sinfo`, and `squeue --me` before another try"
    done = cluster.ask(["sbatch", "--parsable"], text, SBATCH_SECONDS, absent=absent, silent=silent)
    if done.returncode:
        complaint = " ".join(done.stderr.replace("sbatch: error: ", "").split())[:600] or f"exit {done.returncode}"
        raise MaskwrightError(complaint, where="sbatch", fix="as sbatch says; --sbatch gives it more options")
    job = done.stdout.strip().partition(";")[0]
    print(job)
    say(f"job {job}: its log is {name}-{job}.log; scancel {job} saves and ends it, to be continued")
