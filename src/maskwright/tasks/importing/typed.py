"""A command line of another trainer, as typed or from a shell script."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

SECRET = re.compile(r"(^|_)(token|key|secret|password|credentials?)$", re.IGNORECASE)  # not --max-tokens
_PROCESSES = ("nproc_per_node", "num_processes", "num_cores")
_MACHINES = ("nnodes", "num_nodes")
TOTAL = "num_processes"
"""accelerate counts the processes of all machines, the others those on one machine."""
_PLAIN_STARTERS = ("python", "python3", "env", "nohup", "time", "sudo", "exec", "xla_spawn.py")
"""Words that start a script once, or whose options give the number."""
XLA_DIST, GPUS, GPU = "xla_dist", "CUDA_VISIBLE_DEVICES", re.compile(r"\d+|(GPU|MIG)-[\w/-]+", re.ASCII)
ALONE = "this command alone (it takes all GPUs: give --devices)"


NO_STARTERS = {"echo", "printf", "cat", "less", "head", "tail", "ls", "cp", "mv", "rm", "ln", "scp", "rsync", "touch"}
NO_STARTERS |= {"chmod", "wget", "curl", "git", "vim", "nano", "sed", "grep", "find", "[", "[[", "test"}
"""Commands that may name a script without starting it."""
ELSEWHERE = {
    "run_mlm.py": "`maskwright import run_mlm` reads this one",
    "run_language_modeling.py": "`maskwright import run_mlm` reads this one",
    "run_glue.py": "`maskwright import run_glue` reads this one",
    "run_classification.py": "`maskwright import run_glue` reads this one",
    "fairseq-train": "`maskwright import fairseq` reads this one",
    "fairseq-hydra-train": "its YAML is not read: give the same values as flags of fairseq-train",
    "finetune_on_pregenerated.py": "`maskwright import tpu_pretrain` reads this one",
    "run_ner.py": "`maskwright finetune` labels words; begin with the recipe conll2003 or wikiann",
    "run_qa.py": "`maskwright finetune` answers questions; begin with the recipe squad",
    "run_squad.py": "`maskwright finetune` answers questions; begin with the recipe squad",
    "pregenerate_training_data.py": "`maskwright import tpu_pretrain` reads this one",
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
    writer: str = ""
    """The one of `names` that writes the data of the others."""


@dataclass
class Typed:
    script: str
    """The word that names the script, such as run_mlm.py."""
    flags: dict[str, list[str]] = field(default_factory=dict)
    """Values by the flag's name, without dashes at its beginning and with `_` for those inside; [] for a bare flag."""
    words: list[str] = field(default_factory=list)
    """Words that belong to no flag."""
    switches: frozenset[str] = frozenset()
    spelling: dict[str, str] = field(default_factory=dict)
    """Each flag as it was typed."""
    original: str = ""
    """The command as it was typed, for the YAML's head."""
    devices: int = 1
    """Devices of all machines together, one for each process."""
    counted_by: str = ""
    """The source of the number of devices; empty if it is unknown."""
    launcher: str = ""
    """The launcher, if it may start the script several times and the command does not give the number."""
    slice: str = ""
    """The TPU slice on which torch_xla's xla_dist starts the script, if the command names it."""
    pod: tuple[str, int] | None = None
    """Kind and chips of that slice, if a variable gives them."""
    others: int = 0
    """Later commands of the text that start the script again."""
    written_by: Typed | None = None
    """The command before it that writes its data."""

    def known(self, word: str) -> str:
        """The word. Raises `InputError` if it needs a shell."""
        return require_known(word, "the command", [*self.words, *chain(*self.flags.values())])


def require_known(word: str, where: str, beside: Sequence[str] = ()) -> str:
    """The word. Raises `InputError` if the value of a variable in it needs a shell; the message also names such
    variables in `beside`, the other words."""
    if not (unknown := unknown_in(word)):
        return word
    lacking = chain(*map(all_unknown_in, [word, *beside]))
    names = dict.fromkeys(variable[1:] for variable in lacking if _can_be_given(variable[1:]))
    if not _can_be_given(unknown[1:]):
        what, fix = f"uses {unknown}, whose value needs a shell", "replace it by its value in the command"
    else:
        shown = " and ".join(f"${name}" for name in names)
        what = f"uses {shown}, whose {'values need' if len(names) > 1 else 'value needs'} a shell"
        fix = f"give {' '.join(f'--var {name}=VALUE' for name in names)}, or --var-file FILE if a file sets it"
    raise InputError(what, where=where, fix=fix)


def _can_be_given(name: str) -> bool:
    return bool(NAME.fullmatch(name)) or name in "0123456789@*"


def given_variables(assignments: Sequence[str], files: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """(variables of `files`, variables of `assignments` NAME=VALUE). Raises `InputError` for a word or a file that is
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
    """Reads `source`: a command, or the file of a shell script that contains one. `sourced`: variables that are set
    before it. Variables in `fixed` keep their value even if the script sets them.

    Raises `InputError` where the source does not start the script."""
    text, where = source, "the command"
    if os.path.isfile(source):
        with storage.open_binary(source) as file:
            text, where = file.read().decode("utf-8-sig", errors="replace"), source
    if cut := re.search(r"\\[ \t]+\r?\n", text):
        line = text.count("\n", 0, cut.start()) + 1
        fix = "remove the space, so that the command continues on the next line"
        raise InputError(f"line {line} ends in a backslash and a space", where=where, fix=fix)
    if where != source:
        text = text.replace("\\\n", " ").replace("\n", " ")
    typed, variables = None, {**sourced, **fixed}
    for command in simple_commands(text, where, variables, fixed):
        index = _place(command.words, script)
        if index is None or command.assigns:
            continue
        earlier, starts_writer = typed, os.path.basename(command.words[index]) == script.writer
        if earlier is not None and (starts_writer or os.path.basename(earlier.script) != script.writer):
            earlier.others += 1
            continue
        shown = _without_secrets(command.words)
        typed = _sorted(shown[:index], shown[index:], script)
        typed.original, typed.written_by = shlex.join(map(as_written, shown)), earlier
        if earlier is not None:
            typed.original = f"{earlier.original}\n{typed.original}"
        given = next((word for word in shown[:index] if word.startswith(f"{GPUS}=")), variables.get(GPUS, ""))
        gpus = given.removeprefix(f"{GPUS}=").split(",")
        if all(map(GPU.fullmatch, gpus)) and not (typed.launcher or typed.counted_by):
            typed.devices, typed.counted_by = len(gpus), GPUS
        if typed.launcher == XLA_DIST:
            named = variables.get("TPU_ACCELERATOR_TYPE") or variables.get("ACCELERATOR_TYPE", "")
            typed.pod = tpus.kind_and_chips(named)
    if typed is not None:
        return typed
    fix = "give the whole command in single quotes, or the file of a shell script that contains it"
    other = next((name for name in ELSEWHERE if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)), None)
    fix = ELSEWHERE[other] if other else fix
    raise InputError(f"has no {' or '.join((*script.names, *script.modules))}", where=where, fix=fix)


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
    typed = Typed(words[0], switches=script.switches)
    launcher, starters = _flags(before, ScriptSignature(()))
    typed.flags, typed.words = _flags(words[1:], script)
    typed.spelling = {_name(word): word.partition("=")[0] for word in words[1:] if is_option(word)}
    given = {name: values[0] for name, values in launcher.items() if values and values[0].isdigit()}
    processes = next((int(given[name]) for name in _PROCESSES if name in given), None)
    machines = next((int(given[name]) for name in _MACHINES if name in given), 1)
    if any(os.path.basename(name).removesuffix(".py").endswith(XLA_DIST) for name in before):
        name = next(iter(launcher.get("tpu", [])), "")
        typed.launcher, typed.slice = XLA_DIST, "" if unknown_in(name) else name
    elif processes is not None and all(name in given for name in _MACHINES if name in launcher):
        typed.devices, typed.counted_by = processes * (1 if TOTAL in given else machines), "the command"
    else:
        several = [word for word in before if _name(word) in (*_PROCESSES, *_MACHINES)]
        several += [word for word in starters if "=" not in word and os.path.basename(word) not in _PLAIN_STARTERS]
        typed.launcher = as_written(os.path.basename(several[0]).partition("=")[0]) if several else ""
    return typed


def _name(word: str) -> str:
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def _is_value(name: str, values: list[str], word: str, script: ScriptSignature) -> bool:
    """Whether a word is another value of the flag before it."""
    if values and unknown_in(word):  # it may be flags, or empty
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
