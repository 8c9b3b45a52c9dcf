"""A command line of another trainer, as it was typed or as it stands in a shell script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from maskwright.core import storage
from maskwright.core.console import FALSE, TRUE, is_option
from maskwright.core.errors import InputError
from maskwright.core.secrets import HIDDEN, redact
from maskwright.machine import tpus
from maskwright.tasks.importing.shell import (
    NAME,
    all_unknown_in,
    as_written,
    read_variables,
    simple_commands,
    unknown_in,
)
from maskwright.tasks.importing.slurm import SlurmJob, is_setup, slurm_job

SECRET = re.compile(r"(^|_)(token|key|secret|password|credentials?)$", re.IGNORECASE)  # not --max-tokens
_PROCESSES = ("nproc_per_node", "num_processes", "num_gpus", "num_cores")
_MACHINES = ("nnodes", "num_nodes", "num_machines")
_LAUNCHERS = (
    "torchrun",
    "accelerate",
    "deepspeed",
    "xla_spawn.py",
    "torch.distributed.launch",
    "torch.distributed.run",
)
_SPREADERS = ("srun", "mpirun", "mpiexec", "horovodrun", "jsrun")
"""Commands that start another several times. The number is in their flags or in the job around them."""
XLA_DIST = "xla_dist"
TOTAL = "num_processes"
"""accelerate's count is that of all machines; that of the others is of one machine."""


NO_STARTERS = {"echo", "printf", "cat", "less", "head", "tail", "ls", "cp", "mv", "rm", "ln", "scp", "rsync", "touch"}
NO_STARTERS |= {"chmod", "wget", "curl", "git", "vim", "nano", "sed", "grep", "find", "[", "[[", "test"}
"""Commands that may name a script without starting it."""
ELSEWHERE = {
    "run_mlm.py": "`maskwright import run_mlm` reads this one",
    "run_language_modeling.py": "`maskwright import run_mlm` reads this one",
    "run_glue.py": "`maskwright import run_glue` reads this one",
    "run_classification.py": "`maskwright import run_glue` reads this one",
    "fairseq-train": "`maskwright import fairseq` reads this one",
    "fairseq-hydra-train": "`maskwright import fairseq` reads this one",
    "finetune_on_pregenerated.py": "`maskwright import tpu_pretrain` reads this one",
    "run_ner.py": "`maskwright finetune` labels words; begin with the recipe conll2003 or wikiann",
    "run_qa.py": "`maskwright finetune` answers questions; begin with the recipe squad",
    "run_squad.py": "`maskwright finetune` answers questions; begin with the recipe squad",
    "pregenerate_training_data.py": "type `maskwright data pregenerate` with the same options",
    "run_clm.py": "maskwright has no causal models; it reads run_mlm.py",
}
"""The fix where the command starts another script."""


@dataclass(frozen=True)
class ScriptSignature:
    names: tuple[str, ...]
    """File names of the script."""
    modules: tuple[str, ...] = ()
    """Names behind `python -m`."""
    switches: frozenset[str] = frozenset()
    """Flags whose value, if they have one, is true or false."""
    several_values: frozenset[str] | None = None
    """Flags with more than one word; None: any flag may have several."""


@dataclass
class Typed:
    script: str
    """The word that names the script, such as run_mlm.py."""
    flags: dict[str, list[str]] = field(default_factory=dict)
    """Values by the flag's name, without dashes at its beginning and with `_` for those inside; [] for a bare flag."""
    words: list[str] = field(default_factory=list)
    """Words that belong to no flag."""
    spelling: dict[str, str] = field(default_factory=dict)
    """Each flag as it was typed."""
    original: str = ""
    """The command as it was typed, for the YAML's head."""
    world_size: int = 1
    """Processes that torchrun, accelerate or deepspeed is to start, on all machines together."""
    launcher: str = ""
    """A launcher whose number of processes is not in the command."""
    unknown_count: str | None = None
    """A number of processes that only a shell could know."""
    started_by: str = ""
    """The launcher in front of the script, such as torchrun, with or without a number."""
    gpus: int | None = None
    """The number of GPUs that CUDA_VISIBLE_DEVICES lists."""
    slice: str = ""
    """The TPU slice that torch_xla's xla_dist starts the script on, where the command names it."""
    pod: tuple[str, int] | None = None
    """Kind and chips of that slice, where a variable says so."""
    job: SlurmJob | None = None
    """What the script's #SBATCH lines ask for."""
    counted_by: str = "--devices"
    """What says how many devices there are."""
    others: int = 0
    """Later commands of the text that start the script again."""

    def known(self, word: str) -> str:
        """The word. Raises `InputError` if it holds a value that only a shell could know."""
        return require_known(word, "the command", [*self.words, *chain(*self.flags.values())])


def require_known(word: str, where: str, beside: Sequence[str] = ()) -> str:
    """The word. Raises `InputError` if it holds a variable that only a shell could know; the message also names those
    of `beside`, the other words."""
    if not (unknown := unknown_in(word)):
        return word
    lacking = chain(*map(all_unknown_in, [word, *beside]))
    names = dict.fromkeys(variable[1:] for variable in lacking if _can_be_given(variable[1:]))
    if not _can_be_given(unknown[1:]):
        what, fix = f"uses {unknown}, whose value only a shell knows", "write its value into the command in its place"
    else:
        shown = " and ".join(f"${name}" for name in names)
        what = f"uses {shown}, whose {'values' if len(names) > 1 else 'value'} only a shell knows"
        fix = f"give {' '.join(f'--var {name}=VALUE' for name in names)}, or --var-file FILE where a file sets it"
    raise InputError(what, where=where, fix=fix)


def _can_be_given(name: str) -> bool:
    return bool(NAME.fullmatch(name)) or name in "0123456789@*"


def given_variables(assignments: Sequence[str], files: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """(variables of `files`, those of `assignments` NAME=VALUE). Raises `InputError` for a word or a file that is
    neither."""
    assigned = {}
    for word in assignments:
        name, equals, value = word.partition("=")
        if not equals or not _can_be_given(name):
            raise InputError(f"{word[:40]!r} is not NAME=VALUE", where="--var", fix="write it as --var DATA=data-bin")
        assigned[name] = value
    variables: dict[str, Any] = {}
    for file in files:
        variables = read_variables(file, variables)
    return {name: value for name, (value, _) in variables.items()}, assigned


def read_command(
    source: str, script: ScriptSignature, sourced: Mapping[str, str] = {}, fixed: Mapping[str, str] = {}
) -> Typed:
    """Reads `source`: a command, or the file of a shell script that has one. `sourced`: variables that are set before
    it; those of `fixed` keep their value though the script sets them.

    Raises `InputError` where the source does not start the script."""
    text, where = source, "the command"
    if os.path.isfile(source):
        with storage.open_binary(source) as file:
            text, where = file.read().decode("utf-8-sig", errors="replace"), source
    if cut := re.search(r"\\[ \t]+\r?\n", text):
        line = text.count("\n", 0, cut.start()) + 1
        fix = "take the space out, so that the command goes on in the next line"
        raise InputError(f"line {line} ends in a backslash and a space", where=where, fix=fix)
    if where != source:
        text = text.replace("\\\n", " ").replace("\n", " ")
    job = slurm_job(text)
    typed, variables = None, {**(job.variables if job else {}), **sourced, **fixed}
    setup = []
    for command in simple_commands(text, where, variables, fixed):
        index = _place(command.words, script)
        if typed is None and is_setup(command.words):
            setup.append(shlex.join(command.words))
        if index is None or command.assigns:
            continue
        if typed is not None:
            typed.others += 1
            continue
        shown = _without_secrets(command.words)
        typed = _sorted(shown[:index], shown[index:], script)
        typed.original = shlex.join(map(as_written, shown))
        typed.gpus = _gpus(shown[:index], variables)
        if typed.launcher == XLA_DIST:
            typed.pod = tpus.kind_and_chips(
                variables.get("TPU_ACCELERATOR_TYPE") or variables.get("ACCELERATOR_TYPE", "")
            )
    if typed is not None:
        typed.job = job and replace(job, setup=tuple(setup))
        return typed
    fix = "give the whole command in single quotes, or the file of a shell script that has it"
    other = next((name for name in ELSEWHERE if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)), None)
    fix = ELSEWHERE[other] if other else fix
    raise InputError(f"has no {' or '.join((*script.names, *script.modules))}", where=where, fix=fix)


def _gpus(before: list[str], variables: Mapping[str, str]) -> int | None:
    """The number of GPUs that CUDA_VISIBLE_DEVICES lists, in front of the command or above it."""
    name = "CUDA_VISIBLE_DEVICES"
    values = [word.partition("=")[2] for word in before if word.startswith(f"{name}=")]
    listed = (values or [variables.get(name, "")])[-1]
    return len(listed.split(",")) if re.fullmatch(r"\w[\w-]*(,\w[\w-]*)*", listed) else None


def _place(words: list[str], script: ScriptSignature) -> int | None:
    """The index of the script among the words of a command; None where it is not started."""
    if next((word for word in words if "=" not in word), "") in NO_STARTERS:
        return None
    for number, word in enumerate(words):
        if (os.path.basename(word) in script.names and not re.search(r"\s|://", word)) or (
            word in script.modules and words[number - 1 : number] == ["-m"]
        ):
            return number
    return None


def _without_secrets(words: list[str]) -> list[str]:
    """The words, with `***` for each value of a flag or a variable such as --hub_token: the YAML's head shows them."""
    shown, secret = [], False
    for word in words:
        name, equals, value = word.partition("=")
        named = bool(SECRET.search(_name(word)))
        if equals and value and named:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(HIDDEN if secret and not is_option(word) else redact(word))
        secret = named and not equals and is_option(word)
    return shown


def _sorted(before: list[str], words: list[str], script: ScriptSignature) -> Typed:
    typed = Typed(words[0])
    launcher, others = _flags(before, ScriptSignature(()))
    typed.flags, typed.words = _flags(words[1:], script)
    typed.spelling = {_name(word): word.partition("=")[0] for word in words[1:] if is_option(word)}
    processes = _count(launcher, _PROCESSES)
    if include := launcher.get("include"):  # deepspeed: host:0,1,2,3@other:0,1
        processes = sum(len(host.partition(":")[2].split(",")) for host in include[0].split("@"))
    machines = _count(launcher, _MACHINES)
    started = next((name for name in before if os.path.basename(name) in _LAUNCHERS), "")
    typed.started_by = os.path.basename(started)
    counts = [word for name in (*_PROCESSES, *_MACHINES, "include") for word in launcher.get(name, [])]
    typed.unknown_count = next((word for word in counts if started and unknown_in(word)), None)
    if started and (processes is None or (machines is None and launcher.keys() & {*_MACHINES})):
        typed.launcher = os.path.basename(started)
    if not started and (spreader := next((name for name in before if os.path.basename(name) in _SPREADERS), "")):
        typed.launcher = typed.started_by = os.path.basename(spreader)
    if any(os.path.basename(name).removesuffix(".py").endswith(XLA_DIST) for name in before):
        name = next(iter(launcher.get("tpu", [])), "")
        typed.launcher, typed.slice = XLA_DIST, "" if unknown_in(name) else name
    if not typed.launcher and (hidden := next(filter(unknown_in, others[1:]), "")):
        typed.launcher = as_written(hidden)
    whole = TOTAL in launcher or "include" in launcher
    typed.world_size = (processes or 1) * (1 if whole else machines or 1)
    return typed


def _count(flags: dict[str, list[str]], names: tuple[str, ...]) -> int | None:
    """The number of processes or machines. None where no flag has it, or where it is a word such as `gpu`, whose number
    only the machine knows."""
    values = next((flags[name] for name in names if name in flags), None)
    return int(values[0]) if values and values[0].isdigit() else None


def _name(word: str) -> str:
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def _is_value(name: str, values: list[str], word: str, script: ScriptSignature) -> bool:
    """Whether a word is another value of the flag before it."""
    if values and unknown_in(word):  # it may be flags, or nothing
        return False
    if name in script.switches:
        return not values and word.lower() in (*TRUE, *FALSE)
    return not values or script.several_values is None or name in script.several_values


def _flags(words: list[str], script: ScriptSignature) -> tuple[dict[str, list[str]], list[str]]:
    flags: dict[str, list[str]] = {}
    others: list[str] = []
    name = ""
    for word in words:
        if is_option(word):
            _, equals, value = word.partition("=")
            name = _name(word)
            flags[name] = [value] if equals else []
            name = "" if equals and script.several_values is not None else name
        elif name and _is_value(name, flags[name], word, script):
            flags[name].append(word)
        else:
            others.append(word)
    return flags, others
