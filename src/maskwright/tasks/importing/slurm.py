"""The #SBATCH lines of an imported job script, as options of `submit slurm`."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

LETTERS = {
    "A": "account",
    "C": "constraint",
    "D": "chdir",
    "G": "gpus",
    "J": "job-name",
    "N": "nodes",
    "a": "array",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
"""Options of sbatch that have one letter too."""
KEPT = {"account", "clusters", "constraint", "dependency", "exclude", "exclusive", "licenses", "mail-type", "mail-user"}
KEPT |= {"mem", "mem-per-cpu", "mem-per-gpu", "nodelist", "partition", "qos", "reservation", "time", "tmp"}
"""Those that ask for the same whatever the job's command is."""
OURS = {"cpus-per-task", "error", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "job-name", "nodes"}
OURS |= {"ntasks", "ntasks-per-node", "open-mode", "output", "requeue", "signal"}
"""Those that `submit slurm` writes itself."""
MODULES = ("module", "ml")
NETWORK = re.compile(r"(NCCL|GLOO|UCX|FI|OMPI)_\w+=")
"""Variables by which processes on several nodes reach each other."""


@dataclass(frozen=True)
class SlurmJob:
    """What a batch script asks sbatch for."""

    nodes: int
    gpus_per_node: int
    tasks_per_node: int
    cpus_per_task: int
    kept: tuple[str, ...]
    """Other options, as --name=value."""
    left_out: tuple[str, ...]
    setup: tuple[str, ...] = ()
    """The script's lines that make modules and the network ready."""

    @property
    def devices(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def variables(self) -> dict[str, str]:
        """The variables that SLURM sets in the job."""
        values = {"NNODES": self.nodes, "JOB_NUM_NODES": self.nodes, "NTASKS": self.nodes * self.tasks_per_node}
        values |= {"NPROCS": values["NTASKS"], "NTASKS_PER_NODE": self.tasks_per_node}
        values |= {"GPUS_ON_NODE": self.gpus_per_node, "GPUS_PER_NODE": self.gpus_per_node}
        values |= {"CPUS_PER_TASK": self.cpus_per_task}
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.gpus_per_node)))}
        return visible | {f"SLURM_{name}": str(value) for name, value in values.items() if value}

    def options(self, processes: int) -> list[str]:
        """The words behind `submit slurm CONFIG --run RUN`. `processes`: those that the script's launcher starts on all
        nodes, each on a GPU; 0 where it does not say so."""
        gpus = processes // self.nodes or self.gpus_per_node
        words = ["--num-nodes", str(self.nodes), "--gpus-per-node", str(gpus)]
        if self.cpus_per_task:  # one task a node starts all of its processes
            words += ["--cpus", str(self.cpus_per_task * self.tasks_per_node)]
        words += [f"--sbatch={option}" for option in self.kept]
        return [*words, *(["--setup", "; ".join(self.setup)] if self.setup else [])]


def slurm_job(script: str) -> SlurmJob | None:
    """Reads the #SBATCH lines of a script; None where it has none. Values that are no numbers count as not given."""
    lines = re.findall(r"^#SBATCH[ \t]+(\S.*)$", script, re.MULTILINE)
    if not lines:
        return None
    given = dict(option for line in lines for option in _options(_words(line)))
    nodes = _number(given.get("nodes", "1")) or 1
    tasks = _number(given.get("ntasks-per-node", "")) or math.ceil((_number(given.get("ntasks", "")) or 1) / nodes)
    gpus = _number(given.get("gpus-per-node", "")) or _number(given.get("gpus-per-task", "")) * tasks
    generic = re.search(r"\bgpu(?::[^:,]*[^\d:,][^:,]*)?(?::(\d+))?(?=,|\(|$)", given.get("gres", ""))
    gpus = gpus or (int(generic[1] or 1) if generic else _number(given.get("gpus", "")) // nodes)
    words = {name: f"--{name}={value}" if value else f"--{name}" for name, value in given.items()}
    kept = [name for name in words if name in KEPT and not re.search(r"\s", given[name])]
    left_out = [words[name] for name in words if name not in (*kept, *OURS)]
    cpus = _number(given.get("cpus-per-task", ""))
    return SlurmJob(nodes, gpus, tasks, cpus, tuple(words[name] for name in kept), tuple(left_out))


def is_setup(words: Sequence[str]) -> bool:
    """Whether a command of the script belongs before another program's too: modules, and variables of the network."""
    if "\0" in " ".join(words):  # a value that only the job's shell could say
        return False
    if words[0] == "export":
        return len(words) > 1 and all(NETWORK.match(word) for word in words[1:])
    return words[0] in MODULES


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # quotes that do not end
        return line.split()


def _options(words: list[str]) -> list[tuple[str, str]]:
    """(long name, value) of each option of a line."""
    options: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            options.append((name, value))
        elif word.startswith("-") and len(word) > 1:
            options.append((LETTERS.get(word[1], word[1]), word[2:].removeprefix("=")))
        elif options and not options[-1][1]:
            options[-1] = (options[-1][0], word)
    return options


def _number(text: str) -> int:
    """The number of `2`, `a100:2` or `2-4`, of which SLURM gives at least the first; 0 for others."""
    match = re.fullmatch(r"(?:\w+:)?(\d+)(?:-\d+)?", text)
    return int(match[1]) if match else 0
