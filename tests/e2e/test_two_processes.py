"""One run trained by two processes, as on two hosts of a slice: started, stopped, killed and refused together."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import warm
from command_line import COMMAND, free_port
from conftest import small_config
from injection import injected
from private_network import TwoHosts, wait_until, why_not

from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.prove.verify_resume import compare
from maskwright.run.directory import RunDirectory
from maskwright.text.sources import Sources
from maskwright.training import checkpoint

JAX = [
    pytest.mark.long,  # most of it is compiling
    pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="needs the extra jax"),
]
STEP = {
    "jax": "maskwright.engines.jax.engine:JaxEngine.step",
    "torch": "maskwright.engines.torch.engine:TorchEngine.step",
}
MEET = {"jax": "maskwright.engines.jax.processes:_find_hosts", "torch": "maskwright.engines.torch.rendezvous:_store"}
LONG_ENOUGH_SECONDS = 300.0
HURRIED = [
    *(sys.executable, "-c"),
    "from maskwright.engines import processes; processes.CONNECT_SECONDS, processes.QUIET_SECONDS = 2.0, 0.5\n"
    "from maskwright.cli.main import main; main()",
]
"""The command, when it waits two seconds for the other processes."""
KEYS = {"optimizer.learning_rate": 1e-3, "evaluation.every_steps": 5, "engine.devices": 2}
KEYS |= {"checkpoint.save_every_steps": 4, "checkpoint.keep": 9}
PHASES = [{"until_step": 5, "seq_len": 16, "rows_per_step": 16, "masking_rate": 0.3}]


@dataclass
class Ended:
    code: int
    said: str

    @property
    def last(self):
        return self.said.strip().splitlines()[-1]


@dataclass
class Hosts:
    """Two folders that the processes stand in, so that what each writes can be told apart."""

    folder: Path
    store: str
    environment: dict[str, str]
    kind: str

    def start(self, run, both=(), *, own=((), ()), fault=None):
        """`own`: arguments of each process alone; `fault`: what rank 1 meets (`injection.install`)."""
        port, processes = free_port(), []
        for rank, arguments in enumerate(own):
            command = injected(fault) if fault and rank == 1 else COMMAND
            (self.folder / f"host{rank}").mkdir(exist_ok=True)
            words = [*command, *self._pretrain(run), *both, *arguments]
            processes.append(self._start(words, f"host{rank}", one_of_two(rank, port)))
        return self._ended(processes)

    def each_without_the_other(self, run):
        """Process 0 and process 1, each with an address of its own, where the other never comes."""
        words = [*HURRIED, *self._pretrain(run)]
        return self._ended([self._start(words, ".", one_of_two(rank, free_port())) for rank in range(2)])

    def alone(self, run, *arguments):
        (self.folder / "alone").mkdir()
        return self._ended([self._start([*COMMAND, *self._pretrain(run), *arguments], "alone", {})])[0]

    def _pretrain(self, run):
        return ["pretrain", str(self.folder / "run.yaml"), "--run", run, "--set", f"data.store={self.store}"]

    def _start(self, command, folder, several):
        return warm.Popen(
            command,
            cwd=self.folder / folder,
            env={**os.environ, **self.environment, **several},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _ended(self, processes):
        """All of them; who does not end in time is killed, and has the code of that."""
        deadline, ended = time.monotonic() + LONG_ENOUGH_SECONDS, []
        for process in processes:
            with process:
                while process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.02)
                process.kill()
                ended.append(Ended(process.wait(), process.stderr.read() if process.stderr else ""))
        return ended

    def run(self, name):
        return RunDirectory(str(self.folder / name))


def one_of_two(rank, port):
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "RANK": str(rank)}


@pytest.fixture(scope="module", params=[pytest.param("jax", marks=JAX), "torch"])
def hosts(request, store, tmp_path_factory):
    folder, phases = tmp_path_factory.mktemp("hosts"), PHASES if request.param == "torch" else []  # JAX compiles each
    config = small_config(store.location, **KEYS, **{"engine.kind": request.param}, phases=phases)
    (folder / "run.yaml").write_text(config.model_dump_json())
    # JAX's own cache of compiled programs: each start of a run has the same.
    kept = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5"}
    yield Hosts(folder, store.location, kept, request.param)


def codes(ended):
    return [process.code for process in ended]


def same(one, other):
    tensors, lines, differences = compare(one, other)
    assert tensors > 50 and lines > 5 and differences == []


@pytest.mark.large
@pytest.mark.parametrize("hosts", [pytest.param("jax", marks=JAX)], indirect=True)  # of torch each has one device
def test_two_processes_of_four_devices_end_like_one_of_eight(hosts):
    keys = ("engine.devices=8", "engine.sharding=fsdp", "batch.virtual_workers=8", "batch.micro_batch_rows=1")
    arguments = [word for key in (*keys, "schedule.steps=6") for word in ("--set", key)]
    assert hosts.alone("run", *arguments).code == 0
    ended = hosts.start("cut", tuple(arguments))
    assert codes(ended) == [0, 0], ended
    assert "JAX" in ended[0].said and "on 8 x cpu on 2 hosts" in ended[0].said

    one, two = hosts.run("alone/run"), hosts.run("host0/cut")
    losses = [[line.get("loss", line.get("valid_loss")) for line in run.read_metrics()] for run in (one, two)]
    assert len(losses[0]) == 9 and losses[1] == pytest.approx(losses[0], rel=1e-5)
    ends = [checkpoint.load_newest(run.checkpoints, set_aside=False) for run in (one, two)]
    for name, weight in ends[0][0].parameters.items():
        assert np.abs(weight - ends[1][0].parameters[name]).max() < 1e-4 * max(np.abs(weight).max(), 0.02), name

    # Rank 1 wrote nothing and told only what went wrong.
    assert list((hosts.folder / "host1").iterdir()) == []
    assert "pretrain" not in ended[1].said and "held-out" not in ended[1].said


def test_stopped_killed_and_continued_together(hosts):
    assert codes(hosts.start("straight")) == [0, 0]
    straight, bothered = hosts.run("host0/straight"), hosts.run("host0/bothered")

    # SIGTERM to rank 1 alone: its vote reaches the other, and both stop after the same step.
    ended = hosts.start("bothered", fault={"call": STEP[hosts.kind], "number": 3, "do": "terminate"})
    assert codes(ended) == [75, 75], ended
    stopped = checkpoint.whole_steps(bothered.checkpoints)[-1]
    assert (2 if hosts.kind == "torch" else 3) <= stopped < 12  # torch gives up the step under way
    for process in ended:
        assert f"step {stopped} of 12 is saved" in process.last
    assert "another host was asked to" in ended[0].last and "SIGTERM" in ended[1].last

    # SIGKILL of rank 1: the other notices, and what was saved before goes on.
    ended = hosts.start("bothered", fault={"call": STEP[hosts.kind], "number": 5, "do": "kill"})
    assert codes(ended) == [75, -9], ended
    assert "lost another process of this run" in ended[0].last
    saved = checkpoint.whole_steps(bothered.checkpoints)[-1]
    assert saved in (stopped, *(step for step in (4, 8, 12) if stopped < step <= stopped + 4))
    status = bothered.read_status()
    assert status and (status.phase, status.exit) == ("stopped", 75)

    if hosts.kind == "torch":  # The limit is rank 0's, for all; of JAX each start takes half a minute of two cores.
        ended = hosts.start("bothered", own=(("--stop-after-steps", "1"), ()))
        assert codes(ended) == [76, 76], ended

    assert codes(hosts.start("bothered")) == [0, 0]
    same(straight, bothered)
    assert list((hosts.folder / "host1").iterdir()) == []
    if hosts.kind == "jax":
        return

    # The hosts have changed places, and the run is on the disk of the other one.
    shutil.move(hosts.folder / "host0" / "bothered", hosts.folder / "host1" / "moved")
    ended = hosts.start("moved")
    assert codes(ended) == [2, 2] and "has step 12 of the run here, and rank 0's host has none" in ended[0].last, ended
    shutil.move(hosts.folder / "host1" / "moved", hosts.folder / "host0" / "bothered")

    # Rank 0 refuses after all have started: the other ends with it.
    ended = hosts.start("bothered", ("--set", "optimizer.learning_rate=0.1"))
    assert codes(ended) == [2, 2], ended
    for process in ended:
        assert "was started with another configuration (optimizer.learning_rate: 0.001 -> 0.1)" in process.last
    assert ended[1].last.startswith("error: rank 0: ")


def test_what_fails_in_one_ends_both_before_anything_is_written(hosts, corpus, tokenizer, tmp_path):
    other = str(tmp_path / "other")
    prepare(Request(Sources([str(corpus)], layout="sentences"), tokenizer, other, PrepareOptions(valid_fraction=0.2)))
    cases = [
        (0, "data.store=nowhere", "nowhere: is not a token store"),
        (1, "data.store=nowhere", "nowhere: is not a token store"),
        (1, f"data.store={other}", f"{other}: is not the store that rank 0 reads"),
        (1, "seed=5", "seed: is not the configuration of rank 0 (seed: 5, there 0)"),
    ]
    for rank, key, said in cases if hosts.kind == "torch" else cases[-1:]:
        own = [("--set", key) if rank == number else () for number in range(2)]
        ended = hosts.start("refused", own=tuple(own))
        assert codes(ended) == [2, 2], ended
        assert said in ended[rank].last and f"rank {rank}: " in ended[1 - rank].last
        assert said in ended[1 - rank].last
    assert not list(hosts.folder.glob("host*/refused"))


def test_waiting_for_hosts_that_do_not_come_ends_on_sigterm(hosts, tmp_path):
    sign = tmp_path / "waits"
    fault = {"call": MEET[hosts.kind], "number": 1, "do": "nothing", "sign": str(sign)}
    process = warm.Popen(
        injected(fault, "pretrain", str(hosts.folder / "run.yaml"), "--run", "run"),
        cwd=tmp_path,
        env={**os.environ, **hosts.environment, **one_of_two(1, free_port())},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: sign.exists() or process.poll() is not None)
        assert process.poll() is None
        process.terminate()
        _, errors = process.communicate(timeout=120.0)
    finally:
        process.kill()
    assert process.returncode == 75, errors
    assert "stopped: by SIGTERM" in errors or "stopped: run the command again" in errors
    assert not (tmp_path / "run").exists()


def test_hosts_that_do_not_find_each_other_end_with_75_and_our_sentence(hosts):
    ended = hosts.each_without_the_other("lonely")
    assert codes(ended) == [75, 75], ended
    for process in ended:
        assert "the processes of this run did not find each other: " in process.last and ". Fix: " in process.last
        assert "waiting up to 2 s for the other processes: WORLD_SIZE 2, MASTER_ADDR " in process.said
        assert len(process.said.splitlines()) < 6, process.said  # no C++ stack
    # Rank 0 counts such starts, which an engine repeats without end.
    count = hosts.folder / "lonely" / "starts.json"
    record = json.loads(count.read_text())
    assert record["without_checkpoint"] == 1
    count.write_text(json.dumps(record | {"without_checkpoint": 6}))
    if hosts.kind == "torch":
        ended = hosts.each_without_the_other("lonely")
        assert codes(ended) == [1, 75] and "6 starts in a row" in ended[0].last, ended
        assert not count.exists()


@pytest.mark.skipif(bool(reason := why_not("ip")), reason=str(reason))
def test_hosts_with_names_of_loopback_find_each_other_and_notice_when_one_vanishes(store, tmp_path):
    """Two processes on each. Its packets are dropped, so that no message says that it is gone. 90 s are 6 here."""
    impatient = "from maskwright.engines.torch import connections\n"
    impatient += "connections.VANISHED_SECONDS, connections.PROBE_SECONDS = 6, 1\n"
    command = [sys.executable, "-c", impatient + "from maskwright.cli.main import main; main()"]
    keys = KEYS | {"schedule.steps": 1_000_000, "engine.devices": 4, "batch.virtual_workers": 4}
    (tmp_path / "run.yaml").write_text(small_config(store.location, **keys).model_dump_json())
    two, processes = TwoHosts(tmp_path), []
    try:
        for rank in range(4):
            several = {"MASTER_ADDR": "node0", "MASTER_PORT": "29400", "WORLD_SIZE": "4", "RANK": str(rank)}
            several |= {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank % 2)}
            words = two.words(
                rank // 2, *command, "pretrain", str(tmp_path / "run.yaml"), "--run", str(tmp_path / "run")
            )
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(words, env={**os.environ, **several}, stderr=pipe, text=True))
        directory = RunDirectory(str(tmp_path / "run"))
        wait_until(lambda: any(process.poll() is not None for process in processes) or directory.read_metrics())
        two.drop_packets()
        said = [process.communicate(timeout=LONG_ENOUGH_SECONDS)[1] for process in processes]  # the kernel takes 15 min
    finally:
        two.close()
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [75] * 4, said
    assert all("lost another process of this run" in text for text in said), said
