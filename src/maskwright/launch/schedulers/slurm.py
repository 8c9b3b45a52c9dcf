"""`submit slurm`: a batch script for `sbatch`. It starts the same command on each node of an allocation with `srun`,
starts it again if a node was lost, and requeues the job near its time limit.

The script decides by exit codes alone. srun returns the highest code of all tasks, except where it kills one of them.
So it kills none: a task that ends early sends SIGTERM to the others, which then save and end by themselves. Final codes
become the highest: 200 + code for an error, 200 for 76 (ended as asked). Kills (129 to 192), 75 (start again) and 0 are
lower.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from maskwright.core.console import say, typed, warn
from maskwright.core.errors import InputError, MaskwrightError
from maskwright.core.secrets import redact
from maskwright.launch import checks
from maskwright.launch.attempts import MOST_LOST
from maskwright.launch.target import JobName, OnSubmission, Option, Place, Submission, Training, show

BEFORE_SECONDS = 30
"""Time between the end of the grace period and the time limit."""
ANSWER_SECONDS = 120.0

OURS = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node", "array", "wrap"), "use --num-nodes and --gpus-per-node"),
    "signal": "leave it out: the script's own lets the run save before the time limit, and requeues the job",
    "open-mode": "leave it out: a job that is requeued appends to its log",
    "export": "leave it out: the script needs your environment; set variables before you submit, or in --setup",
}
"""Options of sbatch that the script decides, and what to do instead."""

TASK = r"""
ended=
trap 'ended=1' TERM
trap '[ "$?" -eq 0 ] || (trap "" TERM && scancel --signal=TERM "$SLURM_JOB_ID.$SLURM_STEP_ID" 2>/dev/null)' EXIT
# setup
if [ "$SLURM_NNODES" -gt 1 ]; then
  set -- "$@" --num-nodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" --rendezvous "$MASKWRIGHT_RENDEZVOUS"
fi
if ! command -v "$1" >/dev/null; then
  echo "error: $1 is not on the PATH of $(hostname). Fix: submit from a folder whose .venv all nodes see" >&2
  exit 201
fi
[ -z "$ended" ] || exit 75
"$@"
code=$?
case $code in
  0 | 75) exit "$code" ;;
  76) exit 200 ;;
  *) [ "$code" -le 128 ] || exit "$code"; exit $((200 + (code < 55 ? code : 55))) ;;
esac
"""

SCRIPT = r"""
asked=
# scancel signals only the steps; srun may be gone already.
stop() { asked=$1; scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null; }
trap 'stop limit' USR1
trap 'stop end' TERM
start() {
  srun --export=ALL --kill-on-bad-exit=0 --wait=0 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} "$@" &
  step=$!
  while :; do
    wait "$step"
    code=$?
    kill -0 "$step" 2>/dev/null || break  # it still runs if a signal ended the wait
  done
  wait "$step" 2>/dev/null
  after=$?
  [ "$after" -eq 127 ] || code=$after
}
finish() { echo "== $1" >&2; exit "$2"; }
leave_if_asked() {
  [ "$asked" != end ] || finish 'ended by a signal; the same command continues the run' 75
  [ "$asked" = limit ] || return 0
  echo '== the time limit is near: requeueing the job'
  scontrol requeue "$SLURM_JOB_ID" || finish 'cannot be requeued; the same command continues the run' 75
  exit 75
}

host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
attempt=0 lost=0 newest=
while :; do
  attempt=$((attempt + 1))
  echo "== start ${SLURM_RESTART_COUNT:-0}, attempt $attempt on $SLURM_JOB_NODELIST"
  # Another port for each attempt: a process that dies slowly may still hold the last one's.
  port=$((10000 + (SLURM_JOB_ID * 7 + attempt) % 20000))
  export MASKWRIGHT_RENDEZVOUS="$host:$port"
  start $labels bash -c "$task" task "${words[@]}"
  [ "$code" -ne 0 ] || finish 'done' 0
  [ "$code" -ne 200 ] || finish 'stopped as asked; the same command continues the run' 76
  [ "$code" -lt 200 ] || finish "failed: exit $((code - 200))" $((code - 200))
  leave_if_asked
  # The trainer counts starts without a newer checkpoint; this counts starts that may have ended before it could.
  before=$newest newest=$(ls -- "$checkpoints" 2>/dev/null)
  lost=$((lost + 1))
  if [ "$code" -eq 75 ] || [ "$newest" != "$before" ]; then lost=0; fi
  [ "$lost" -le "$most_lost" ] || finish "failed: exit $code, $lost times in a row without a newer checkpoint" 1
  echo "== exit $code: starting again"
  sleep "${MASKWRIGHT_RESTART_WAIT_SECONDS:-10}"
  leave_if_asked
done
"""


@dataclass(frozen=True)
class Slurm(Place):
    """A SLURM cluster. `sbatch` has options of that command; they come last and so take precedence."""

    num_nodes: Annotated[int, Option("Nodes that train together.", "N", min=1)] = 1
    gpus_per_node: Annotated[int, Option("GPUs to use on each node; 0 trains on the CPU.", "N", min=0)] = 0
    cpus: Annotated[int | None, Option("Cores of each node. Default: the cluster's, usually one.", "N", min=1)] = None
    name: JobName = None
    sbatch: Annotated[tuple[str, ...], Option("Option for sbatch, such as --sbatch=--partition=gpu.", "OPTION")] = ()
    workdir: Annotated[str, Option("Folder on the nodes. Default: the folder where you submit.", "PATH")] = "."
    setup: Annotated[
        str | None,
        Option("Bash lines to run before the command, in the same shell: 'module load cuda; export NAME=…'.", "LINES"),
    ] = None

    setup_is_in_the_jobs_shell: ClassVar[bool] = True
    passing_secrets: ClassVar[str] = "export NAME=… before you submit: sbatch passes your environment on"

    def __post_init__(self) -> None:
        for option in self.sbatch:
            if not re.fullmatch(r"--[a-z][a-z-]*(=[^\s'\"#]+)?", option):
                fix = "give one long option of sbatch, as in --sbatch=--partition=gpu"
                raise InputError(f"{redact(option)[:80]!r} is not an option", where="--sbatch", fix=fix)
            if not self.gpus_per_node and option.startswith(("--gres", "--gpus")):
                raise InputError(f"{option} without --gpus-per-node", where="--sbatch", fix="add --gpus-per-node 8")
            name, _, value = option.removeprefix("--").partition("=")
            if name in OURS and (name, value) != ("export", "ALL"):
                raise InputError(f"{option} is set by this command", where="--sbatch", fix=OURS[name])

    def submit(self, command: Training, *, dry_run: bool, on_submission: OnSubmission = show) -> None:
        """Submits the job and shows its number, or with `dry_run` shows the script."""
        if self.cpus is None and not any(
            option.startswith(("--cpus-per", "-c", "--exclusive")) for option in self.sbatch
        ):
            shared = f", for {self.gpus_per_node} processes" if self.gpus_per_node > 1 else ""
            warn(f"without --cpus, most clusters give one core of each node{shared}")
        name = checks.name_for(command.run, self.name)
        text = script(self, name, command, f"{name}-%j.log")
        if dry_run:
            on_submission(Submission(False, "sbatch", command.run, shown=text))
            return
        if self.workdir == ".":
            checks.require_parent(command)
        job = _sbatch(text)
        log = f"{name}-{job}.log"
        on_submission(Submission(True, "sbatch", command.run, job, f"tail -F {log}", f"scancel {job}", shown=job))
        say(f"job {job}: its log is {log}; scancel {job} saves and ends it, to be continued")


def script(place: Slurm, name: str, command: Training, log: str) -> str:
    """The batch script. It contains no values of variables, since sbatch passes them on. `log`: its name for sbatch."""
    config, _ = checks.read(command)
    command = checks.sized(command, config, place.num_nodes, place.gpus_per_node)
    header = {
        "job-name": name,
        "nodes": str(place.num_nodes),
        "ntasks-per-node": "1",
        "output": log,
        "open-mode": "append",
        "export": "ALL",
        "signal": f"B:USR1@{checks.grace_seconds(config) + BEFORE_SECONDS}",
        **({"gpus-per-node": str(place.gpus_per_node)} if place.gpus_per_node else {}),
        **({"cpus-per-task": str(place.cpus)} if place.cpus else {}),
    }
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={value}" for name, value in header.items()), "#SBATCH --requeue"]
    lines += [f"#SBATCH {option}" for option in place.sbatch]
    lines += [
        "",
        f"words=({typed(command.words())})",
        f"checkpoints={shlex.quote(command.run.rstrip('/') + '/checkpoints')} most_lost={MOST_LOST}",
        f"labels={'--label' if place.num_nodes > 1 else ''}",
        f"task={shlex.quote(TASK.strip().replace('# setup', _setup(place)))}",
        *_folder(place),
    ]
    return "\n".join(lines) + "\n" + SCRIPT


def _setup(place: Slurm) -> str:
    """Lines for the task's own shell, so that modules, environments and variables reach the command. A sourced file
    does not see the command's words, which it might mistake for its own, and leaves no `set -e` behind."""
    if not place.setup:
        return ""
    failed = 'echo "error: --setup ended with $? on $(hostname). Fix: correct it" >&2; exit 202'
    return f'words=("$@"); set --\n{{\n{place.setup}\n}} </dev/null || {{ {failed}; }}\nset +eu -- "${{words[@]}}"'


def _folder(place: Slurm) -> Sequence[str]:
    """Lines that enter the folder: a relative one is in the home folder, `.` is where sbatch was called."""
    lines = []
    if place.workdir != ".":
        folder = shlex.quote(place.workdir)
        lines.append(f'{{ cd "$HOME" && cd {folder}; }} || {{ printf "%s: no such folder\\n" {folder} >&2; exit 2; }}')
    return [*lines, '[ ! -d .venv/bin ] || export PATH="$PWD/.venv/bin:$PATH"']


def _sbatch(text: str) -> str:
    """Submits a script and returns the number of the job. The script's options are given as words too, since variables
    such as SBATCH_SIGNAL outrank a script. The variables of an interactive job, in which this may run, would be options
    of srun in the new job."""
    lines = re.findall(r"^#SBATCH (.+)", text, re.MULTILINE)
    options = [word for line in lines for word in shlex.split(line, comments=True)]
    inside = "SLURM_JOB_ID" in os.environ
    outer = {name for name in os.environ if inside and name.startswith("SLURM_") and name != "SLURM_CONF"}
    variables = {name: value for name, value in os.environ.items() if name not in outer}
    absent = "run it on a login node, or copy there what `submit slurm --dry-run` prints"
    silent = "check `sinfo`, and `squeue --me` before another try"
    words = ["sbatch", "--parsable", *options]
    done = checks.ask(words, text, ANSWER_SECONDS, absent=absent, silent=silent, variables=variables)
    if done.returncode:
        what = " ".join(done.stderr.replace("sbatch: error: ", "").split())[:600] or f"exit {done.returncode}"
        raise MaskwrightError(what, where="sbatch", fix="follow sbatch's message; --sbatch passes more options")
    return done.stdout.strip().partition(";")[0]
