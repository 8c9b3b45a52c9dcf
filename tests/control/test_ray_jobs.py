"""What a Ray job is before and after Ray has it, and what its node does; without Ray."""

import importlib.util
import json
import os
import signal
import time
from types import SimpleNamespace

import pytest
from command_line import write_config
from private_network import processes, wait_until

from maskwright.config.pretraining import read_config
from maskwright.core.errors import CloudError, InputError, JobError, StoppedEarly, stopped
from maskwright.launch import checks
from maskwright.launch.ray import gang as ray_gang
from maskwright.launch.ray import jobs, submit
from maskwright.launch.ray.gang import require_lasting
from maskwright.launch.ray.jobs import Lines, RayJob, conclude, find_address, parse_id
from maskwright.launch.ray.member import Member
from maskwright.launch.ray.sizes import POD_TYPE, SLICE_NAME, TOPOLOGY, WORKER_ID, Gang, RaySlice, asked, choose
from maskwright.launch.ray.submit import Ray
from maskwright.launch.target import Training, values_of


def config(*overrides):
    return read_config("nano", ["data.store=/store", "batch.virtual_workers=96", *overrides])


def node(labels=None, **resources):
    return {"NodeManagerAddress": "10.0.0.1", "Resources": resources, "Labels": labels or {}}


def tpu(pod_type, topology, worker, chips=4, name="a"):
    """The host of a slice, as Ray 2.60 describes one."""
    head = {f"TPU-{pod_type}-head": 1.0} if worker == 0 else {}
    labels = {SLICE_NAME: name, WORKER_ID: str(worker), TOPOLOGY: topology, POD_TYPE: pod_type}
    return node(labels, CPU=100.0, TPU=float(chips), **head)


CPU, HEAD = node(CPU=8.0), node(CPU=0.0)
BIG, SMALL = node(CPU=64.0, GPU=8.0), node(CPU=16.0, GPU=4.0)
V6E, V4 = tpu("v6e-8", "2x4", 0), tpu("v4-32", "2x2x4", 1)
JAX = "engine.kind=jax"


# ---- the gang ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "num_nodes", "gpus", "overrides", "gang"),
    [
        ([HEAD, BIG, BIG], None, None, (), Gang(2, 8)),
        ([HEAD, BIG, SMALL], None, None, (), Gang(3, 4)),
        ([BIG], 2, None, (), Gang(2, 4)),
        ([BIG, BIG], 2, None, (), Gang(2, 8)),
        ([BIG, SMALL], 3, None, (), Gang(3, 4)),
        ([BIG, SMALL], None, 4, (), Gang(3, 4)),
        ([HEAD], None, 8, (), Gang(1, 8)),  # machines that an autoscaler adds
        ([BIG, BIG], None, None, ("batch.virtual_workers=1",), Gang(1, 1)),
        ([BIG, BIG], None, None, ("batch.virtual_workers=6",), Gang(1, 6)),
        ([BIG, BIG], None, None, ("batch.virtual_workers=12",), Gang(2, 6)),
        ([BIG, BIG], None, None, ("batch.virtual_workers=7",), Gang(1, 7)),
        ([BIG, BIG], None, None, ("engine.devices=4",), Gang(1, 4)),
        ([BIG, BIG], 2, None, ("engine.devices=4",), Gang(2, 2)),
        ([HEAD, V6E], None, None, (), Gang(1, slice=RaySlice("v6e", "2x4"))),
        ([V6E, V4], None, None, (), Gang(1, slice=RaySlice("v4", "2x2x4"))),
        ([BIG, V6E], None, None, (), Gang(1, 8)),
        ([BIG, V6E], None, None, (JAX, "engine.device=tpu"), Gang(1, slice=RaySlice("v6e", "2x4"))),
    ],
)
def test_what_was_not_asked_for_is_what_there_is(nodes, num_nodes, gpus, overrides, gang):
    assert choose(nodes, config(*overrides), num_nodes, gpus) == gang


@pytest.mark.parametrize(
    ("nodes", "num_nodes", "overrides", "has"),
    [
        ([CPU], None, (), "machines have 8 CPUs, 0 GPUs, 0 TPUs"),
        ([CPU, node(CPU=1.0, TPU=4.0)], None, (), "8 CPUs, 0 GPUs, 0 TPUs; 1 CPUs, 0 GPUs, 4 TPUs"),  # no labels
        ([V6E], 2, (), "4 TPUs"),
        ([BIG], 2, ("batch.virtual_workers=7",), "8 GPUs"),
        ([BIG], None, (JAX, "engine.device=tpu"), "8 GPUs"),
        ([], None, (), "nothing"),
    ],
)
def test_nothing_trains_on_cpus_unasked(nodes, num_nodes, overrides, has):
    with pytest.raises(InputError, match=has) as caught:
        choose(nodes, config(*overrides), num_nodes)
    assert "--gpus-per-node 0" in str(caught.value)


def test_explicit_sizes_are_trusted_and_fit_the_configuration():
    assert asked(config(), 2, 8, None) == Gang(2, 8)
    assert asked(config(), 3, 0, None) == asked(config("engine.device=cpu"), 3, None, None) == Gang(3, 0)
    assert asked(config(), None, 8, None) is asked(config(), 2, None, None) is None
    assert asked(config(), None, None, "v6e:4x4") == Gang(1, slice=RaySlice("v6e", "4x4"))
    for odd in ("v6e", "v6e:3x3", "a100:8"):
        with pytest.raises(InputError, match="is not a"):
            asked(config(), None, None, odd)
    with pytest.raises(InputError, match="its own number of hosts"):
        asked(config(), 4, None, "v6e:4x4")

    command = Training("nano", "/runs/a")
    assert Gang(2, 4).fit(command, config()).words()[-4:] == ["--set", "engine.device=cuda", "--processes", "4"]
    on_slice = Gang(1, slice=RaySlice("v6e", "4x4")).fit(command, config(JAX))
    assert on_slice.overrides == ("engine.device=tpu",) and on_slice.processes is None
    for gang, overrides, wrong in [
        (Gang(1, 5), (), "96 virtual workers"),
        (Gang(1, 2), ("engine.device=cpu",), "engine.device"),
        (Gang(1, slice=RaySlice("v6e", "4x4")), (), "jax does"),
        (Gang(1, slice=RaySlice("v6e", "16x16")), (JAX,), "256 devices"),
    ]:
        with pytest.raises(InputError, match=wrong):
            gang.fit(command, config(*overrides))


@pytest.mark.parametrize(
    ("kind", "topology", "head"),
    [
        ("v4", "2x2x4", tpu("v4-32", "2x2x4", 0)),
        ("v5e", "4x4", tpu("v5litepod-16", "4x4", 0)),
        ("v5p", "2x2x4", tpu("v5p-32", "2x2x4", 0)),
        ("v6e", "4x4", tpu("v6e-16", "4x4", 0)),
        ("tpu7x", "2x2x4", tpu("v7x-32", "2x2x4", 0)),
    ],
)
def test_a_slice_is_its_hosts_in_their_order(kind, topology, head):
    wanted = Gang(1, slice=RaySlice(kind, topology))
    assert wanted.slice and wanted.slice.head in head["Resources"] and wanted.missing([HEAD, head]) == ""
    assert choose([head], config()) == wanted
    assert "no machine is host 0" in wanted.missing([HEAD])
    gang = wanted.on_slice_of(head)
    assert (gang.num_nodes, gang.bundle, gang.strategy) == (4, {"CPU": 1.0, "TPU": 4.0}, "STRICT_SPREAD")
    assert [labels[WORKER_ID] for labels in gang.labels] == ["0", "1", "2", "3"]
    third = {**head, "Labels": {SLICE_NAME: "a", WORKER_ID: "2"}}
    assert gang.missing([head, third]) == "host 1, 3 of a has not joined"


def test_hosts_of_which_no_slice_is_built_are_refused():
    wanted = Gang(1, slice=RaySlice("v6e", "2x4"))
    assert wanted.on_slice_of(tpu("v6e-8", "2x4", 0, chips=8)).num_nodes == 1
    for head in (tpu("v6e-8", "2x4", 0, chips=2), tpu("v6e-8", "2x4", 0, name="")):
        with pytest.raises(InputError, match="8 or 4 TPUs, one for each chip"):
            wanted.on_slice_of(head)


def test_who_is_the_driver(monkeypatch):
    assert ray_gang.job_id() is None
    monkeypatch.setenv(ray_gang.DRIVER, json.dumps({"runtime_env": {}, "metadata": {"job_submission_id": "a"}}))
    assert ray_gang.job_id() == "a"
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ray_gang.job_id() is None
    monkeypatch.delenv("WORLD_SIZE")
    for odd in ("", "no JSON", "[]", '{"metadata": 3}'):
        monkeypatch.setenv(ray_gang.DRIVER, odd)
        assert ray_gang.job_id() is None


def test_what_would_be_lost_with_the_job_is_refused(tmp_path):
    (tmp_path / "store").mkdir()
    require_lasting("/runs/a", {"data.store": "/data/store"}, None)
    require_lasting("/runs/a", {"data.store": "store", "model.init_from": "gs://b/model"}, str(tmp_path))
    for run, store, init_from, folder, where in [
        ("runs/a", "/data/store", "/m", None, "--run runs/a"),
        ("/runs/a", "store", "/m", None, "data.store: store"),
        ("/runs/a", "/store", "model", str(tmp_path), "model.init_from: model"),
    ]:
        with pytest.raises(InputError, match="relative") as caught:
            require_lasting(run, {"data.store": store, "model.init_from": init_from}, folder)
        assert caught.value.where == where
    (tmp_path / "run.yaml").write_text("data: {store: /s}\nschedule: {steps: 9}\n")
    job = Ray(address="http://127.0.0.1:1")
    with pytest.raises(InputError, match="relative, and not in the job's working directory") as caught:
        job.submit(Training(str(tmp_path / "run.yaml"), "/runs/a", begin_from="runs/b@40"), dry_run=True)
    assert caught.value.where == "--from: runs/b"


def test_recipe_of_a_job_that_ray_started(monkeypatch):
    given = []
    monkeypatch.setattr(ray_gang, "train", lambda command, *more: given.append(command))
    config, _ = checks.read(command := Training("nano", "/runs/a", overrides=("data.store=/store",)))
    ray_gang.train_as_a_job(command, config, None, None)
    assert list(given[0].files) == ["nano.yaml"] and given[0].pretrain.config == "{files}/nano.yaml"


# ---- the job -------------------------------------------------------------------------------------------------------


def test_names_and_addresses(monkeypatch):
    assert parse_id("ray:one-286e7d") == "one-286e7d"
    for odd in ("one", "ray:", "ray:../a", "slice:a"):
        with pytest.raises(InputError, match="is not a Ray job"):
            parse_id(odd)
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert find_address(None) == "http://127.0.0.1:8265"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert find_address(None) == "http://127.0.0.1:8265"
    monkeypatch.setenv("RAY_ADDRESS", "https://ray.example/")
    assert find_address(None) == "https://ray.example"
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://a:1")
    assert (find_address(None), find_address("http://b:2")) == ("http://a:1", "http://b:2")
    with pytest.raises(InputError, match="not an HTTP address"):
        find_address("auto")


@pytest.mark.parametrize(
    ("entrypoint", "run"),
    [
        ("exec maskwright pretrain a.yaml --run /runs/a/ --num-nodes 2", "/runs/a"),
        ("python -m maskwright pretrain a.yaml --run='/runs/a b'", "/runs/a b"),
        ("exec maskwright finetune a.yaml --run /runs/a", "/runs/a"),
        ("maskwright evaluate --run /runs/a", None),
        ("maskwright pretrain --run", None),
        ("echo 'pretrain", None),
    ],
)
def test_run_of_a_submitted_command(entrypoint, run):
    assert jobs._run_of(entrypoint) == run


@pytest.mark.parametrize(
    ("state", "code", "why", "exit_code", "said"),
    [
        ("FAILED", 2, "", 2, "exit 2"),
        ("FAILED", 3, "", 3, "exit 3"),
        ("FAILED", 75, "", 75, "continues the run"),
        ("FAILED", 76, "", 76, "stopped as asked; the same command continues the run"),
        ("STOPPED", None, "", 76, "continues the run"),
        ("FAILED", -9, "", 1, "killed by SIGKILL"),
        ("FAILED", 137, "", 1, "killed by SIGKILL"),
        ("FAILED", 127, "", 1, "no such command"),
        ("FAILED", 255, "", 255, "the job failed: exit 255"),
        ("FAILED", None, "RUNTIME_ENV_SETUP_FAILURE no such package", 1, "did not start"),
        ("FAILED", None, "JOB_SUPERVISOR_ACTOR_DIED node gone", 75, "node gone; the same submission continues"),
    ],
)
def test_exit_code_of_a_job_that_is_over(state, code, why, exit_code, said):
    kind = stopped(exit_code) or JobError
    with pytest.raises(kind, match=said) as caught:
        conclude(RayJob("a", state, code, None, None, None, why))
    assert caught.value.exit_code == exit_code
    conclude(RayJob("a", "SUCCEEDED", 0, None, None, None, ""))


OF_RAY = """\
2026-11-29 01:41:34,038\tINFO job_manager.py:581 -- Runtime env is setting up.
[2026-11-29 01:41:37,704 W 540 540] network_util.cc:330: Failed to determine local IP
(raylet) The node with node id: 62fa has been marked dead. This can happen when a
\t(2) raylet has lagging heartbeats due to slow network or busy workload.
\x1b[33m(raylet, ip=10.0.0.2)\x1b[0m Raylet is terminated. Last 2 lines of the Raylet logs:
    - num bytes created total: 304
    0 pending objects of total size 0MB
    [2026-11-29 02:15:33,309 I 305 305] (raylet) accessor.cc:475: Received address
    [state-dump] \tNodeManager.GcsCheckAlive - 1 total (1 active)
    [state-dump]

"""
CUT_TAIL = "(raylet) Raylet is terminated. Last 2 lines of the Raylet logs:\n    - its log has one line\n"
OURS = """\
Ray job a: 1 node with the CPU (as asked)
host 0 | (raylet) is a word of the run's. Last 2 lines of the Raylet logs:
    four spaces
host 0 |
host 0 | 2026-11-29 01:41:34,038\tINFO of another library
"""


def test_lines_come_once_however_the_pieces_come_and_rays_own_do_not():
    log = "".join(ours + OF_RAY for ours in OURS.splitlines(keepends=True)) + CUT_TAIL + "error: the end\n    of ours"
    for size in (1, 7, 1000):
        shown = list[str]()
        lines = Lines(lambda host, line, shown=shown: shown.append(line))
        for cut in (0, 90, 300, len(log)):  # a connection each, that begins anew
            for position in range(0, cut, size):
                lines.take(log[position : min(position + size, cut)], position)
        lines.end()
        assert shown == [*OURS.splitlines(), "error: the end", "    of ours"]


def test_a_follower_waits_for_a_head_that_does_not_answer_and_ends_with_one_that_forgot_the_job(monkeypatch, capsys):
    """Each connection ends after its piece. Other errors are in unit/test_logs.py."""
    cluster, log = object.__new__(jobs.RayCluster), "one\ntwo\nthree\n"
    facts = dict.fromkeys(("driver_exit_code", "start_time", "end_time", "error_type", "message"))
    running = SimpleNamespace(status="RUNNING", entrypoint="", submission_id="a", **facts)
    answers = [running, CloudError("no answer", reason="unreached"), running, None]
    shown = list[str]()

    async def tail(job):
        yield log[: 5 * (6 - len(answers))]
        raise RuntimeError("WebSocket connection closed unexpectedly with close code 1006")

    def details(job):
        if isinstance(answer := answers.pop(0), Exception):
            raise answer
        return answer

    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(cluster, "_client", SimpleNamespace(tail_job_logs=tail), raising=False)
    monkeypatch.setattr(cluster, "_details", details)
    monkeypatch.setattr(cluster, "logs", lambda job: log)
    with pytest.raises(StoppedEarly, match="forgotten the job"):
        jobs.follow_to_its_end(cluster, "a", lambda host, line: shown.append(line))
    assert shown == ["one", "two", "three"]
    assert capsys.readouterr().err.count("the job continues; trying again") == 1


def test_what_is_refused_before_anything_is_sent(monkeypatch, tmp_path):
    assert Ray().entrypoint(Training("a b.yaml", "/runs/a")) == "exec maskwright pretrain 'a b.yaml' --run /runs/a"
    assert Ray().name("/runs/a/").startswith("a-") and jobs.ID.fullmatch(Ray().name("/runs/ü/"))
    with pytest.raises(InputError, match="is not a valid ID"):
        Ray(job_id="a/b")
    monkeypatch.setenv("HF_TOKEN", "hf_123456789")
    monkeypatch.setenv("PAGE", "http://me:hunter2@proxy")
    for name in ("HF_TOKEN", "PAGE"):
        with pytest.raises(InputError, match="looks like a secret") as caught:
            values_of(Ray(), (name,))
        assert "hunter2" not in str(caught.value) and "hf_1" not in str(caught.value)

    for secret in ("git+https://me:hunter2@git.example/a", "--index-url https://me:hunter2@pypi.example/simple"):
        with pytest.raises(InputError, match="holds a secret") as caught:
            Ray(pip=("wandb", secret))
        assert "hunter2" not in str(caught.value)
    words = Ray(pip=("wandb",)).entrypoint(Training("a.yaml", "/runs/a"))
    assert words == "exec python -m maskwright pretrain a.yaml --run /runs/a"

    folder = tmp_path / "work"
    folder.mkdir()
    for name in (".gitignore", "words.bin"):
        (folder / name).write_text("*\n")
    (folder / ".git").mkdir()
    with submit._packed(str(folder), "a.yaml", "x") as packed:
        assert sorted(os.listdir(packed)) == [".gitignore", "a.yaml", "words.bin"]
    monkeypatch.setattr(submit, "LARGEST_FOLDER_BYTES", 3)
    with pytest.raises(InputError, match="more than 100 MiB"), submit._packed(str(folder), "a.yaml", "x"):
        pass


def test_submit_says_what_it_would_do(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "run.yaml", "/data/store")
    words = ("submit", "ray", "run.yaml", "--run", "/runs/a", "--dry-run")
    keys = "--set batch.virtual_workers=8 --set batch.micro_batch_rows=64 --set data.store=/data/other"
    seed = ("--simulated_gpus=8", "--b_size=64", "--datapath", "/data/other", "--num-nodes", 2, "--gpus-per-node", 4)
    assert cli(*words, *seed).out.splitlines()[1:] == [
        f"entrypoint   exec maskwright pretrain run.yaml --run /runs/a {keys} --num-nodes 2 --gpus-per-node 4",
        "uploaded     run.yaml", "environment  RAY_JOB_STOP_WAIT_TIME_S=60",
    ]  # fmt: skip
    assert cli(*words).out.splitlines()[1].endswith("pretrain run.yaml --run /runs/a")
    slice_ = ("--accelerator", "v6e:2x4", "--set", "engine.kind=jax", "--set", "batch.virtual_workers=8")
    shown = cli(*words, *slice_, "--pip", "wandb").out.splitlines()
    assert shown[-2:] == ["pip install  wandb", "accelerator  v6e:2x4"]
    for wrong in (
        (*words, *slice_[:2]),  # torch
        (*words, "--num-nodes", 3, "--gpus-per-node", 5),
        (*words[:3], "--run", "runs/a"),
        (*words, "--set", "data.store=store"),
        ("pretrain", "run.yaml", "--run", "runs/a", "--gpus-per-node", 2),
    ):
        assert cli(*wrong).code == 2, wrong
    # Nothing answers there: an error, and no wait.
    has_ray = importlib.util.find_spec("ray") is not None
    assert cli(*words[:-1], "--address", "http://127.0.0.1:9").code == (1 if has_ray else 2)


# ---- the node ------------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path):
    """A package of that name, which prints its arguments and does what the file that they name says."""
    package = tmp_path / "stand-in" / "maskwright"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("import sys\nprint(*sys.argv[2:])\nexec(open(sys.argv[1]).read())\n")
    return {"PYTHONPATH": str(package.parent)}


def begin(stand_in, does, run, grace_seconds=60.0):
    member = Member()
    member.start(["{files}/a.py", "one", run], run, {"a.py": does.encode()}, stand_in, grace_seconds)
    return member


def heard(member, seconds=120.0):
    lines, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        more, over, code = member.poll(0.2)
        lines += more
        if over:
            return lines, code
    raise AssertionError(lines)


def test_lines_and_exit_code_of_a_worker(stand_in, tmp_path):
    run = str(tmp_path / "run")
    says = "import sys, os\nprint('out')\nprint('err', file=sys.stderr)\nprint(len('x' * 10), end='')\n"
    assert heard(begin(stand_in, says + "sys.exit(76)", run)) == ([f"one {run}", "out", "err", "10"], 76)
    assert heard(begin(stand_in, "import os; os.kill(os.getpid(), 9)", run))[1] == 137
    lines, code = heard(begin({"PATH": ""}, "", run))
    assert code == 1 and "cannot be started" in lines[0]


def test_a_worker_that_is_told_to_end_has_its_grace_period(stand_in, tmp_path):
    run = str(tmp_path / "run")
    catch = (
        "import signal, sys, time\ndef stop(*_): {}\nsignal.signal(15, stop)\nprint('on', flush=True)\ntime.sleep(60)"
    )
    member = begin(stand_in, catch.format("print('saved'); sys.exit(75)"), run)
    wait_until(lambda: "on" in member.poll(1.0)[0])
    member.request_stop()
    assert heard(member) == (["saved"], 75)

    member = begin(stand_in, catch.format("None") + "\ntime.sleep(60)", run, grace_seconds=0.5)
    wait_until(lambda: "on" in member.poll(1.0)[0])
    member.request_stop()
    assert heard(member)[1] == 137

    member = Member()
    member.request_stop()
    member.start(["{files}/a.py"], run, {}, stand_in, 1.0)
    assert heard(member) == ([], 75)


def test_who_begins_again_waits_for_what_still_saves(stand_in, tmp_path):
    run = str(tmp_path / "run")
    first = begin(stand_in, "import time\nprint('on', flush=True)\ntime.sleep(60)", run)
    wait_until(lambda: "on" in first.poll(1.0)[0])
    assert Member().prepare(run, "127.0.0.1", 0.3)[1] is False
    assert Member().prepare(run + "2", "127.0.0.1", 0.3)[1] is True
    os.kill(processes("-m", "one", run)[0], signal.SIGKILL)
    port, free = Member().prepare(run, "127.0.0.1", 120.0)
    assert free and 1024 <= port < 65536
    assert heard(first)[1] == 137
