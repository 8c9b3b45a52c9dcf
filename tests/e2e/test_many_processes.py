"""Runs of several processes on one machine, as a user starts them: the same numbers, and nothing lost."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import warm
from command_line import COMMAND, free_port, slow_after
from conftest import small_config
from private_network import wait_until

from maskwright.core import storage
from maskwright.core.errors import ConfigError
from maskwright.launch import local
from maskwright.launch.topology import LaunchOptions, WorkerGroup, choose
from maskwright.machine import hardware
from maskwright.prove.verify_resume import compare
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint

LONG_ENOUGH_SECONDS = 300.0


class Machine:
    """Runs in a folder, each by the command that a user types."""

    def __init__(self, folder, config):
        self.folder, self._config = folder, config

    def start(self, run, processes, *words, command=COMMAND, **keys):
        name = self.folder / f"{run}.json"
        # JSON is YAML. At once, since another machine of the run may be reading it.
        storage.write_json(str(name), self._config(**keys).model_dump())
        several = [] if processes is None else ["--processes", str(processes)]
        typed = [*command, "pretrain", str(name), "--run", str(self.folder / run), *several, *words]
        return warm.Popen(typed, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def ended(self, process):
        try:
            _, said = process.communicate(timeout=LONG_ENOUGH_SECONDS)
        finally:
            process.kill()
        return process.returncode, said

    def run(self, name, processes, *words, **keys):
        return self.ended(self.start(name, processes, *words, **keys))

    def directory(self, name):
        return RunDirectory(str(self.folder / name))


@pytest.fixture
def machine(tmp_path, config):
    return Machine(tmp_path, config)


def children(pid):
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]
    return []


def newest(directory):
    return max((line["step"] for line in directory.read_metrics()), default=0)


EIGHT = {
    "batch.virtual_workers": 8,
    "model.hidden_dropout": 0.1,
    "model.attention_dropout": 0.1,
    "engine.dtype": "auto",
    "evaluation.every_steps": 5,
}


def test_weights_are_the_same_bit_by_bit_at_any_number_of_processes(machine):
    """Also when the number changes at a restart, and where machines of several processes sum up first."""
    command = several_blocks(machine.folder)
    assert machine.run("alone", None, command=command, **EIGHT)[0] == 0
    code, said = machine.run("four", 4, command=command, **EIGHT)
    assert code == 0, said
    assert "4 processes" in said
    assert compare(machine.directory("alone"), machine.directory("four"))[2] == []
    for machines, count, until_step in ((2, 4, 3), (1, 1, 2), (4, 2, 3), (2, 2, 99)):
        where = ("--num-nodes", str(machines), "--rendezvous", f"127.0.0.1:{free_port()}", "--node-rank")
        started = [
            machine.start(
                "changing", count, "--stop-after-steps", str(until_step), *where, str(rank), command=command, **EIGHT
            )
            for rank in range(machines)
        ]
        for process in started:
            code, said = machine.ended(process)
            assert code == (76 if until_step < 99 else 0), said
    assert compare(machine.directory("alone"), machine.directory("changing"))[2] == []


LONG = {
    "schedule.steps": 80,
    "batch.virtual_workers": 2,
    "checkpoint.save_every_steps": 5,
    "evaluation.max_rows": 8,
}


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory):
    """The run of `LONG` by one process, which nothing stopped."""
    machine = Machine(tmp_path_factory.mktemp("whole"), partial(small_config, store.location))
    assert machine.run("run", None, **LONG)[0] == 0
    return machine.directory("run")


def test_a_run_grows_and_branches_at_any_number_of_processes(machine):
    keys = {"schedule.kind": "wsd", "schedule.decay_steps": 2}
    parent = str(machine.folder / "parent")
    assert machine.run("parent", 1, "--stop-after-steps", "5", **keys, **{"schedule.steps": 8})[0] == 76
    branch = {**keys, "schedule.steps": 4, "schedule.warmup_steps": 0, "seed": 1}
    for name, processes in (("branch", 1), ("shared", 2)):
        code, said = machine.run(name, processes, "--from", parent, **branch)
        assert code == 0, said
    assert compare(machine.directory("branch"), machine.directory("shared"))[2] == []
    assert machine.run("parent", 2, **keys)[0] == machine.run("straight", 1, **keys)[0] == 0
    assert compare(machine.directory("parent"), machine.directory("straight"))[2] == []


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_killed_process_is_started_again_and_changes_nothing(machine, whole, victim):
    process = machine.start("killed", 2, command=words(machine.folder, slow_at_first(machine.folder)), **LONG)
    directory = machine.directory("killed")
    wait_until(lambda: newest(directory) >= 12)
    os.kill(children(process.pid)[victim], signal.SIGKILL)
    (machine.folder / "dead").touch()
    code, said = machine.ended(process)
    assert code == 0, said
    assert f"process {victim}: killed by SIGKILL (usually memory ran out): restarting from step" in said
    assert compare(whole, directory)[2] == []


def test_nothing_outlives_a_killed_supervisor_and_another_number_goes_on(machine, whole):
    process = machine.start("killed", 2, command=words(machine.folder, slow_at_first(machine.folder)), **LONG)
    directory = machine.directory("killed")
    wait_until(lambda: newest(directory) >= 12)
    members = children(process.pid)
    assert len(members) == 2
    process.kill()
    process.communicate()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in members))
    assert machine.run("killed", 1, **LONG)[0] == 0
    assert compare(whole, directory)[2] == []


@pytest.mark.parametrize(("group", "code"), [(WorkerGroup(2), 1), (WorkerGroup(1, 2, 0, "127.0.0.1:1"), 137)])
def test_what_is_lost_every_time_is_given_up(machine, monkeypatch, group, code):
    """A kill before the run counts its start. Of several machines, the launcher counts it, and so sees no 75."""
    from maskwright.launch import attempts
    from maskwright.launch.target import Training

    monkeypatch.setattr(attempts, "MOST_LOST", 1)
    words = ["-c", "import os; os.kill(os.getpid(), 9)"]
    monkeypatch.setattr(local, "COMMAND", [sys.executable, *words])
    with pytest.raises(Exception, match="killed by SIGKILL") as raised:
        local.supervise(Training("x.yaml", str(machine.folder / "none")), group, 5.0)
    assert raised.value.exit_code == code


AUTO = {"engine.device": "auto"}


@pytest.mark.parametrize("processes", [2, None], ids=["of two", "alone on a GPU"])
def test_a_process_that_hangs_is_ended_and_the_run_goes_on(machine, processes):
    """As `supervise` does, but with less patience. What computes on one GPU has a supervisor too."""
    patience = "from maskwright.launch import local\nlocal.HUNG_SECONDS, local.HANG_POLL_SECONDS = 2.0, 0.5\n"
    patience += "from maskwright.machine import hardware\nhardware.cuda_devices = lambda: 1\n" * (processes is None)
    python, option, supervisor = words(machine.folder, slow_at_first(machine.folder))
    process = machine.start("hung", processes, command=[python, option, patience + supervisor], **LONG, **AUTO)
    directory = machine.directory("hung")
    wait_until(lambda: newest(directory) >= 12)
    last = (processes or 1) - 1
    beat = Path(directory.path("processes", f"rank-{last:05d}.json"))
    wait_until(beat.exists)  # a rank that hangs before its first heartbeat is noticed three minutes later
    os.kill(json.loads(beat.read_text())["pid"], signal.SIGSTOP)
    (machine.folder / "dead").touch()
    code, said = machine.ended(process)
    assert code == 0, said
    assert f"process {last} hangs" in said and f"process {last}: killed by SIGKILL: restarting" in said


@pytest.mark.parametrize(
    ("keys", "gpus", "chips", "made"),
    [
        (AUTO, 0, 0, None),
        ({"engine.device": "cpu"}, 1, 1, None),
        (AUTO, 1, 0, WorkerGroup(1)),
        ({**AUTO, "engine.kind": "jax"}, 0, 8, WorkerGroup(1, takes_listener=False, on_tpu=True)),
        (AUTO, 0, 8, None),
    ],
)
def test_one_process_is_supervised_where_a_device_may_hang(keys, gpus, chips, made, monkeypatch, config):
    """That of a TPU host gets no WORLD_SIZE: it would train without the other hosts of its slice."""
    monkeypatch.setattr(hardware, "tpu_chips", lambda: chips)
    assert choose(config(**keys), LaunchOptions(), gpus=gpus) == made
    for name, value in made.variables(0, 1).items() if made else ():
        monkeypatch.setenv(name, value)
    assert not (made and made.on_tpu and "WORLD_SIZE" in os.environ)
    assert made is None or choose(config(**keys), LaunchOptions(), gpus=gpus) is None
    if made:  # such variables may be left over from another launcher
        with pytest.raises(ConfigError, match="conflicts with the launcher"):
            choose(config(**keys), LaunchOptions(processes=2), gpus=gpus)


def test_a_line_of_several_processes_is_shown_once_and_each_time_that_one_repeats_it():
    lines, text = local._Lines(), "warning: slow disk"
    shown = [number for number in enumerate((1, 2, 3, 2, 1, 3, 3)) if lines.is_new(number[1], text)]
    assert shown == [(0, 1), (3, 2), (6, 3)]
    assert all(lines.is_new(1, str(number)) for number in range(1000)) and len(lines._counts) == local.LINES


# ---- lost where the others are not yet, or no longer, in a step ----

SUPERVISOR = """
import sys; from maskwright.launch import local
local.COMMAND = [sys.executable, "-c", {member!r}]
from maskwright.cli.main import main; main()
"""
MEMBER = """
import os, signal, time
def die_once():
    if not os.path.exists({mark!r}):
        open({mark!r}, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
{patch}
from maskwright.cli.main import main; main()
"""
DIES_BEFORE_THE_GROUP = """
import maskwright.engines.torch.rendezvous as module
store = module._store
def found(launch, called):
    if launch.rank:
        open({mark!r} + ".there", "w").close()
    made = store(launch, called)
    if launch.rank == 0 and not os.path.exists({mark!r}):
        while not os.path.exists({mark!r} + ".there"):
            time.sleep(0.01)
        die_once()
    return made
module._store = found
"""
DIES_AT_THE_FIRST_MEETING = """
import maskwright.engines.torch.processes as module
gather = module.Peers.gather
def meet(self, data):
    if self.rank == 1:
        die_once()
    return gather(self, data)
module.Peers.gather = meet
"""


def words(folder, patch):
    member = MEMBER.replace("{patch}", patch).format(mark=str(folder / "dead"))
    return [sys.executable, "-c", SUPERVISOR.format(member=member)]


def slow_at_first(folder):
    """The steps of a process that is to die: slow from the sixteenth on until it is noted as dead."""
    return slow_after(15, folder / "dead")


def several_blocks(folder):
    """The command that shares out a small network as it does a large one, in the supervisor too: it trains alone."""
    patch = "from maskwright.engines.torch import shares\nshares.BLOCK_NUMBERS, shares.STACK_NUMBERS = 64, 3000\n"
    patch += "shares.BUCKET_BYTES = 40000\n"
    python, option, supervisor = words(folder, patch)
    return [python, option, patch + supervisor]


OVERFLOWS = """
from maskwright.engines.torch import loss_scale
loss_scale.FIRST_SCALE, loss_scale.DOUBLED_AFTER_UPDATES = 2.0**21, 2
"""


@pytest.mark.long
def test_fp16_skips_the_same_updates_at_any_number_of_processes(machine):
    """Its gradients overflow at first, and again whenever the scale has grown."""
    keys = {**EIGHT, "engine.dtype": "fp16", "evaluation.every_steps": None}
    one = [sys.executable, "-c", OVERFLOWS + "from maskwright.cli.main import main; main()"]
    code, said = machine.ended(machine.start("alone", None, command=one, **keys))
    assert code == 0, said
    code, said = machine.ended(machine.start("two", 2, command=words(machine.folder, OVERFLOWS), **keys))
    assert code == 0, said
    assert said.count("step 0: the gradient overflowed fp16") == 1
    assert compare(machine.directory("alone"), machine.directory("two"))[2] == []
    lines = [line for line in machine.directory("two").read_metrics() if "loss" in line]
    skipped = [line["skipped_updates"] for line in lines]
    assert 0 < skipped[0] < skipped[-1] < 12


@pytest.mark.parametrize("patch", [DIES_BEFORE_THE_GROUP, DIES_AT_THE_FIRST_MEETING])
def test_a_process_killed_while_they_find_each_other_is_started_again(machine, patch):
    command = words(machine.folder, patch)
    code, said = machine.ended(machine.start("run", 2, command=command, **{**LONG, "schedule.steps": 6}))
    assert code == 0, said
    assert "restarting" in said


def test_a_step_longer_than_the_grace_period_is_given_up_by_all(machine):
    """Each micro-batch takes a second, so a step four; SIGTERM comes early in one."""
    begun = machine.folder / "begun"
    slow = (
        "import time; from maskwright.engines.torch.engine import TorchEngine as E; whole = E._accumulate\n"
        "def accumulate(*a, **k):\n    if a[0]._step >= 3:\n"
        f"        open({str(begun)!r}, 'w').close()\n        time.sleep(1.0)\n    return whole(*a, **k)\n"
        "E._accumulate = accumulate\n"
    )
    keys = {**LONG, "batch.virtual_workers": 8, "checkpoint.grace_seconds": 3.0}
    process = machine.start("long", 2, command=words(machine.folder, slow), **keys)
    directory = machine.directory("long")
    wait_until(begun.exists)
    process.send_signal(signal.SIGTERM)
    code, said = machine.ended(process)
    assert code == 75, said
    assert max(checkpoint.whole_steps(directory.checkpoints)) == 3, said


def test_of_several_machines_a_loss_ends_all_with_75(machine):
    keys = {**LONG, "schedule.steps": 5000, "batch.virtual_workers": 4}
    where = ("--num-nodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}")
    nodes = [machine.start("far", 2, *where, "--node-rank", str(rank), **keys) for rank in range(2)]
    wait_until(lambda: newest(machine.directory("far")) >= 3)
    os.kill(children(nodes[1].pid)[0], signal.SIGKILL)
    assert [machine.ended(node)[0] for node in nodes] == [75, 75]
