"""`submit slurm` as a user runs it: the script itself, on a made-up SLURM and, where it is installed, on a real
one of two nodes. Only `maskwright pretrain` is a stub, which ends as a run does."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from command_line import maskwright, write_config
from slurm_cluster import fake_cluster, real_cluster, why_not_real

from maskwright.core.errors import InputError
from maskwright.launch.schedulers.slurm import TASK, Slurm
from maskwright.launch.target import Training
from maskwright.run.directory import MANIFEST, step_folder

WAIT = (
    'trap \'echo saved >> "$STUB/saved-$SLURM_NODEID"; exit 75\' TERM; touch "$STUB/runs-$SLURM_NODEID"\n'
    "sleep 600 & wait; sleep 5 & wait; exit 9\n"
)
"""A rank that says when it runs, trains until it is told to end, saves and ends with 75. Its `sleep` is told too, and
may end before the shell has heard of it."""
OTHER_RUNS = 'until [ -e "$STUB/runs-0" ]; do sleep 0.1; done'


@pytest.fixture(scope="module", params=["made-up", pytest.param("real", marks=pytest.mark.long)])
def slurm(request, tmp_path_factory):
    if request.param == "real" and (reason := why_not_real()):
        pytest.skip(reason)
    start = real_cluster if request.param == "real" else fake_cluster
    with start(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def cluster(slurm):
    for path in slurm.folder.glob("*-[01]"):
        path.unlink()
    shutil.rmtree(slurm.folder / "runs", ignore_errors=True)
    return slurm


def test_every_node_runs_the_command_with_its_rank(cluster):
    """And in the shell that `--setup` has prepared, where its words are as they were and an error does not end it."""
    (cluster.folder / "env").write_text('set -eu -- other words\nexport NCCL_SOCKET_IFNAME="ib 0"\n')
    setup = "module() { :; }; module load cuda && source ./env"
    job = cluster.submit(
        'echo "hello from $SLURM_NODEID over $NCCL_SOCKET_IFNAME"',
        *("--set", "data.store=c d'$e", "--gpus-per-node", "0", "--setup", setup),
    )
    state = cluster.wait(job)
    assert (state["JobState"], state["ExitCode"]) == ("COMPLETED", "0:0")
    words = [(cluster.folder / f"words-{node}").read_text().split() for node in (0, 1)]
    rendezvous = words[0][-1]
    assert rendezvous.rpartition(":")[2].isdecimal() and words[1][-1] == rendezvous
    for node in (0, 1):
        same = "pretrain run.yaml --run runs/one --set data.store=c d'$e"
        same += " --set engine.device=cpu --processes 1 --num-nodes 2 --node-rank"
        assert words[node] == [*same.split(), str(node), "--rendezvous", rendezvous]
    assert "hello from 0 over ib 0" in cluster.log(job) and "== done" in cluster.log(job)


def test_variables_of_sbatch_and_of_an_outer_job_change_nothing(cluster):
    """As in a site's profile, and in the shell of an interactive job."""
    site = {"SBATCH_EXPORT": "NONE", "SLURM_EXPORT_ENV": "NONE", "SBATCH_NO_REQUEUE": "1"}
    outer = {"SLURM_JOB_ID": "99", "SLURM_MEM_PER_CPU": "9", "SLURM_MEM_PER_NODE": "9", "SLURM_RESTART_COUNT": "7"}
    inside = replace(cluster, environment={**cluster.environment, **site, **outer})
    job = inside.submit('[ "$STUB" ] && [ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 3')
    state = cluster.wait(job)
    assert (state["JobState"], state["ExitCode"], cluster.starts(1)) == ("COMPLETED", "0:0", 1), cluster.log(job)
    assert not cluster.real or state["Requeue"] == "1"


@pytest.mark.parametrize(("setup", "code"), [("no-such-command && true", 127), ('[ "$SLURM_NODEID" = 0 ]', 1)])
def test_a_setup_that_fails_ends_the_job(cluster, setup, code):
    """Also where it fails on one node: the other is told, before or after its command has begun."""
    job = cluster.submit(WAIT, "--setup", setup)
    assert cluster.wait(job)["ExitCode"] == "2:0", cluster.log(job)
    assert f"error: --setup ended with {code} on" in cluster.log(job)
    assert not (cluster.folder / "starts-1").exists()


@pytest.mark.parametrize(
    ("code", "task"),
    [
        (0, 0),
        (75, 75),
        (76, 200),
        (1, 201),
        (3, 203),
        (54, 254),
        (55, 255),
        (56, 255),
        (128, 255),
        (129, 129),
        (137, 137),
    ],
)
def test_srun_gets_the_highest_code_from_the_task_that_decides(code, task):
    """An exit code has a byte: 200 + 56 would be 0, and the job done."""
    variables = {**os.environ, "SLURM_NNODES": "1", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0"}
    words = ["bash", "-c", TASK, "task", "sh", "-c", f"exit {code}"]
    assert subprocess.run(words, env=variables, check=False, capture_output=True).returncode == task


def test_an_error_is_the_jobs_end_though_others_end_with_75(cluster):
    """srun alone would say 75, the highest."""
    job = cluster.submit(f'[ "$SLURM_NODEID" = 0 ] || {{ {OTHER_RUNS}; exit 3; }}\n{WAIT}')
    state = cluster.wait(job)
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "3:0"), cluster.log(job)
    assert cluster.starts(0) == 1 and (cluster.folder / "saved-0").exists()


def test_a_killed_process_restarts_all_nodes(cluster):
    first = f'if [ "$start" = 1 ]; then [ "$SLURM_NODEID" = 0 ] || {{ {OTHER_RUNS}; kill -KILL $$; }}\n{WAIT}fi'
    job = cluster.submit(first)
    assert cluster.wait(job)["JobState"] == "COMPLETED", cluster.log(job)
    assert cluster.starts(0) == cluster.starts(1) == 2
    assert "exit 137: starting again" in cluster.log(job)


KILLED = "trap '' TERM; sleep 0.3; kill -KILL $$"


@pytest.mark.parametrize(
    ("plan", "starts", "code", "said"),
    [
        ('[ "$start" -lt 8 ] || exit 0; trap "exit 75" TERM; sleep 0.3; exit 75', 8, "0:0", "== done"),
        (f'mkdir -p "$STUB/runs/one/checkpoints/$start"; [ "$start" -lt 8 ] || exit 0; {KILLED}', 8, "0:0", "== done"),
        (KILLED, 6, "1:0", "failed: exit 137, 6 times in a row without a newer checkpoint"),
    ],
    ids=["75", "killed after a checkpoint", "killed"],
)
def test_only_kills_without_a_newer_checkpoint_are_counted(cluster, plan, starts, code, said):
    """The trainer counts the starts that it sees."""
    job = cluster.submit(plan, "--num-nodes", "1")
    assert (cluster.wait(job)["ExitCode"], cluster.starts(0)) == (code, starts), cluster.log(job)
    assert said in cluster.log(job)


SLOW = WAIT.replace("exit 75", "sleep 6; exit 75")


@pytest.mark.parametrize("other", [WAIT, SLOW], ids=["saves", "saves for longer than KillWait"])
def test_an_end_as_asked_is_final(cluster, other):
    """srun has another code where it kills one of the tasks."""
    until = OTHER_RUNS.replace("runs-0", "runs-1")
    job = cluster.submit(f'[ "$SLURM_NODEID" = 0 ] || {{ {other}}}\n{until}; exit 76')
    state = cluster.wait(job)
    assert (state["ExitCode"], cluster.starts(0)) == ("76:0", 1), cluster.log(job)
    assert "stopped as asked" in cluster.log(job)


def test_before_the_time_limit_the_run_saves_and_goes_on_in_another_start(cluster):
    """The signal that SLURM sends by `--signal=B:USR1@60`, sent by hand: a limit is whole minutes."""
    job = cluster.submit(f'if [ "$start" = 1 ]; then {WAIT}fi', "--sbatch=--time=10")
    cluster.wait_for("runs-0")
    cluster.wait_for("runs-1")
    cluster.call("scancel", "--batch", "--signal=USR1", job)
    state = cluster.wait(job)
    assert (state["JobState"], state["ExitCode"], state["Restarts"]) == ("COMPLETED", "0:0", "1"), cluster.log(job)
    assert cluster.starts(0) == cluster.starts(1) == 2
    assert (cluster.folder / "saved-0").exists() and (cluster.folder / "saved-1").exists()
    assert "the time limit is near" in cluster.log(job) and "== start 1, attempt 1" in cluster.log(job)


def test_scancel_saves_and_ends(cluster):
    job = cluster.submit(WAIT)
    cluster.wait_for("runs-0")
    cluster.wait_for("runs-1")
    cluster.call("scancel", job)
    assert cluster.wait(job)["JobState"] == "CANCELLED"
    cluster.wait_for("saved-0")
    cluster.wait_for("saved-1")
    assert cluster.starts(0) == 1


TRAIN = f"""
if [ "$start" = 1 ] && [ "$SLURM_NODEID" = 1 ]; then
  {sys.executable} -m maskwright "$@" &
  until grep -Eq '"step": ([4-9][0-9]|1[0-9][0-9])' "$STUB/runs/one/status.json" 2>/dev/null; do sleep 0.05; done
  kill -KILL $!
  wait $!
  exit 137
fi
exec {sys.executable} -m maskwright "$@"
"""


@pytest.mark.long
def test_two_nodes_train_one_run_through_a_kill_to_the_same_bits(cluster, store):
    """The real `pretrain` on both nodes; node 1 is killed. Beside it, one process that nobody disturbed."""
    write_config(cluster.folder / "train.yaml", store.location)
    config = cluster.folder / "train.yaml"
    smaller = "micro_batch_rows: 2\n  virtual_workers: 4"
    config.write_text(config.read_text().replace("micro_batch_rows: 8", smaller))
    job = cluster.submit(TRAIN, config="train.yaml")
    assert cluster.wait(job)["JobState"] == "COMPLETED", cluster.log(job)
    assert "exit 137: starting again" in cluster.log(job) and "continuing at step" in cluster.log(job)
    maskwright("pretrain", "train.yaml", "--run", "runs/whole", "--processes", "1", cwd=cluster.folder)
    for name in ("model.safetensors", "optimizer.safetensors"):
        last = f"checkpoints/step-00000150/{name}"
        one, whole = (cluster.folder / "runs" / run / last for run in ("one", "whole"))
        assert one.read_bytes() == whole.read_bytes()


def test_a_node_without_maskwright_says_so(cluster):
    path = f"{cluster.folder}/bin:/usr/bin:/bin:/usr/sbin:/sbin"  # where .venv/bin has one too
    program = cluster.folder / "bin" / "maskwright"
    program.rename(program.with_suffix(".away"))
    try:
        job = replace(cluster, environment={**cluster.environment, "PATH": path}).submit("")
        state = cluster.wait(job)
    finally:
        program.with_suffix(".away").rename(program)
    assert state["ExitCode"] == "1:0" and "error: maskwright is not on the PATH of" in cluster.log(job)


def test_what_sbatch_refuses_is_one_line(cluster):
    words = ["submit", "slurm", "run.yaml", "--run", "runs/one", "--cpus", "1", "--sbatch=--partition=none"]
    done = cluster.call(sys.executable, "-m", "maskwright", *words)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "invalid partition specified: none" in done.stderr and "Fix: " in done.stderr


def script(cli, folder, *options):
    (folder / "run.yaml").write_text("data: {store: store}\nbatch: {virtual_workers: 96}\nschedule: {steps: 10}\n")
    words = ["submit", "slurm", str(folder / "run.yaml"), "--run", "runs/one", "--dry-run", *options]
    result = cli(*words)
    assert result.code == 0, result.err
    return result.out


def test_dry_run_prints_a_script_that_bash_reads(cli, tmp_path):
    text = script(
        cli, tmp_path, "--num-nodes", "4", "--gpus-per-node", "8", "--cpus", "64", "--setup", "module load cuda",
        "--sbatch=--partition=gpu", "--sbatch=--time=04:00:00",
    )  # fmt: skip
    header = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    for option in ("nodes=4", "ntasks-per-node=1", "gpus-per-node=8", "cpus-per-task=64", "requeue", "partition=gpu"):
        assert f"#SBATCH --{option}" in header
    assert "#SBATCH --signal=B:USR1@60" in header  # 5 s more than checkpoint.grace_seconds, and 30 s for the rest
    result = cli("submit", "slurm", str(tmp_path / "run.yaml"), "--run", "a", "--dry-run", "--gpus-per-node", "8")
    assert "warning: without --cpus, most clusters give one core of each node, for 8 processes" in result.err
    assert text.startswith("#!/bin/bash\n#SBATCH") and "--set engine.device=cuda --processes 8" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "-"], input=text, text=True, check=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sbatch=--nodes=3"], "--sbatch: --nodes=3 is set by this command"),
        (["--sbatch=--time=1\n#SBATCH --x"], "--sbatch: "),
        (["--sbatch=partition"], "--sbatch: 'partition' is not an option"),
        (["--name=Big_Run"], "--name: 'Big_Run' is not a valid name for a job"),
        (
            ["--sbatch=-p gpu"],
            "--sbatch: '-p gpu' is not an option. Fix: give one long option of sbatch, as in --sbatch=--part",
        ),
        (["--sbatch=--signal=USR1@300"], "--sbatch: --signal=USR1@300 is set by this command. Fix: leave it out"),
        (["--sbatch=--export=NONE"], "--sbatch: --export=NONE is set by this command. Fix: leave it out"),
        (["--sbatch=--gres=gpu:8"], "--sbatch: --gres=gpu:8 without --gpus-per-node"),
    ],
)
def test_refused(cli, tmp_path, options, message):
    (tmp_path / "run.yaml").write_text("data: {store: store}\nbatch: {virtual_workers: 96}\nschedule: {steps: 10}\n")
    result = cli("submit", "slurm", str(tmp_path / "run.yaml"), "--run", "runs/one", "--dry-run", *options)
    assert result.code == 2 and result.error.startswith(message), result.err


def test_a_parent_that_is_not_there_is_refused_before_anything_is_queued(tmp_path, monkeypatch):
    """The fix is a step that the parent has. A run that has begun needs its parent no more: then sbatch, which is not
    there, is what is missed."""
    config, parent, run = tmp_path / "run.yaml", tmp_path / "parent", tmp_path / "run"
    config.write_text("data: {store: store}\nschedule: {steps: 10}\n")
    monkeypatch.setenv("PATH", str(tmp_path))

    def said(begin_from):
        with pytest.raises(InputError) as caught:
            Slurm().submit(Training(str(config), str(run), begin_from=begin_from), dry_run=False)
        return str(caught.value)

    assert said(f"{parent}@40") == f"--from {parent}: has no checkpoint. Fix: name a run directory"
    checkpoint = parent / "checkpoints" / step_folder(30)
    checkpoint.mkdir(parents=True)
    (checkpoint / MANIFEST).write_text("{}")
    assert said(f"{parent}@40") == f"--from {parent}: has no checkpoint of step 40. Fix: choose one of its steps: 30"
    run.mkdir()
    (run / "config.resolved.json").write_text("{}")
    assert said(f"{parent}@40").startswith("sbatch: ")
