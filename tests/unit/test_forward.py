"""A run's numbers in other services: each read back from the service's own offline files, by its own reader where it
has one."""

import json
import struct
import time
from dataclasses import dataclass, field

import pytest
from made_record import made_record

from maskwright.cli import main
from maskwright.core import extras, storage
from maskwright.core.errors import ConfigError, Locked, MaskwrightError
from maskwright.monitor.sync.service import About, MetricsLine, Outcome
from maskwright.monitor.sync.sync import FOLDER, Forwarder, sync
from maskwright.run.directory import RunDirectory, Status
from maskwright.run.metric_names import trainer_names
from maskwright.tasks.pretrain import run as task
from maskwright.training import checkpoint, forwarders

CANARY = "c4n4ry-In-The-Mine"
pytestmark = pytest.mark.filterwarnings("ignore")
"""Of the services' packages, under which no test of ours can put order."""


def trained(step, loss=1.0, **more):
    return {"step": step, "loss": loss, "learning_rate": 0.5, "grad_norm": None, **more, "time": 1e9 + step}


def judged(step, loss):
    return {"step": step, "valid_loss": loss, "valid_accuracy": 0.25, "time": 1e9 + step}


def write(run, lines, **status):
    """The lines take the place of all that were there, as in a run that goes on from a checkpoint."""
    with storage.atomic_writer(str(run / "metrics.jsonl")) as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
    RunDirectory(str(run)).write_status(Status(**{"phase": "done", "exit": 0, **status}))


@pytest.fixture
def run(tmp_path):
    """A run that ended, whose configuration has a secret in a URL."""
    folder = tmp_path / "letters"
    folder.mkdir()
    keys = {"seed": 3, "data.store": f"s3://me:{CANARY}@host/store", "logging.report_to": ["wandb"]}
    RunDirectory(str(folder)).write_record(made_record(keys=keys))
    write(folder, [judged(0, 6.0), trained(10, 5.0, tokens=640), trained(20, 4.0, tokens=1280), judged(20, 4.5)])
    return folder


def sent_to(run, to):
    sent, taken = sync(str(run), to)
    assert taken
    return sent


def bytes_below(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


# ---- names ---------------------------------------------------------------------------------------------------------


def test_names_are_those_of_the_trainers_callbacks():
    from transformers.integrations.integration_utils import rewrite_logs

    theirs = {"loss": 1.5, "grad_norm": 2.0, "learning_rate": 0.1, "epoch": 0.5, "num_input_tokens_seen": 9}
    ours = {"loss": 1.5, "grad_norm": 2.0, "learning_rate": 0.1, "epoch": 0.5, "tokens": 9}
    assert trainer_names({"step": 4, "time": 1.0, **ours}) == rewrite_logs(theirs)
    held_out = {"valid_loss": 1.0, "valid_accuracy": 0.5, "valid_books_loss": 2.0}
    assert trainer_names(held_out) == rewrite_logs({"eval_loss": 1.0, "eval_accuracy": 0.5, "eval_books_loss": 2.0})
    assert trainer_names({"loss": float("nan"), "grad_norm": None, "kind": "a word", "yes": True}) == {}


# ---- services, offline ---------------------------------------------------------------------------------------------


def wandb_records(folder):
    """The records of an offline run in W&B's own message. The package has no reader in Python: the file is a header of
    7 bytes, and LevelDB's log (github.com/google/leveldb/blob/main/doc/log_format.md)."""
    from wandb.proto import wandb_internal_pb2

    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        content, at, parts = path.read_bytes(), 7, b""
        while at < len(content):
            left = 32_768 - at % 32_768
            if left < 7:
                at += left
                continue
            _, length, kind = struct.unpack_from("<IHB", content, at)
            parts += content[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):  # whole, or the last of several
                yield wandb_internal_pb2.Record.FromString(parts)
                parts = b""


def wandb_history(folder):
    rows = [record.history for record in wandb_records(folder) if record.WhichOneof("record_type") == "history"]
    return [{(item.key or item.nested_key[0]): json.loads(item.value_json) for item in row.item} for row in rows]


def wandb_losses(folder):
    return [(row["train/global_step"], row["train/loss"]) for row in wandb_history(folder) if "train/loss" in row]


def test_wandb(run, monkeypatch):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    monkeypatch.setenv("SOME_API_KEY", CANARY + "-2")
    sent = sent_to(run, "wandb")
    folder = run / FOLDER
    assert (sent.lines, sent.trained, sent.evaluated, sent.outcome) == (4, 20, 20, "done")
    assert wandb_losses(folder) == [(10, 5.0), (20, 4.0)]
    names = ("train/global_step", "eval/loss", "eval/accuracy")
    evaluated = [tuple(row[name] for name in names) for row in wandb_history(folder) if "eval/loss" in row]
    assert evaluated == [(0, 6.0, 0.25), (20, 4.5, 0.25)]
    records = list(wandb_records(folder))
    began = next(record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (began.project, began.display_name, began.run_id) == ("maskwright", "letters", sent.run_id)
    assert began.host == ""
    configs = {item.key: item.value_json for record in records for item in record.config.update}
    configs |= {item.key: item.value_json for item in began.config.update}
    assert json.loads(configs["data.store"]) == "s3://me:***@host/store" and json.loads(configs["seed"]) == 3
    assert CANARY.encode() not in bytes_below(folder)
    (kept,) = folder.glob("wandb/offline-run-*/*.wandb")
    assert b"pytest" not in kept.read_bytes()  # neither the script nor the command line, the folder or the packages

    assert sent_to(run, "wandb") == sent  # there is nothing new
    assert len(list(folder.glob("wandb/offline-run-*"))) == 1
    write(run, [trained(10, 5.0), trained(20, 4.0), trained(30, 3.0)])
    assert sent_to(run, "wandb").run_id == sent.run_id
    assert wandb_losses(folder) == [(10, 5.0), (20, 4.0), (30, 3.0)]


def test_mlflow(run, tmp_path, monkeypatch):
    """In a folder: its database takes 12 seconds to be made on a machine whose disk is slow."""
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    from mlflow import MlflowClient

    where = f"file://{tmp_path / 'tracked'}"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", lambda *_, **__: 1 / 0)
        with pytest.raises(MaskwrightError, match="division by zero"):
            sync(str(run), "mlflow")
    sent = sent_to(run, "mlflow")
    client = MlflowClient(where)
    (only,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert only.info.run_id == sent.run_id, "which began before the failure"

    def history(name):
        return [(one.step, one.value) for one in client.get_metric_history(sent.run_id, name)]

    found = client.get_run(sent.run_id)
    assert (found.info.run_name, found.info.status) == ("letters", "FINISHED")
    assert client.get_experiment(found.info.experiment_id).name == "maskwright"
    assert found.data.params["data.store"] == "s3://me:***@host/store" and found.data.params["seed"] == "3"
    assert history("loss") == [(10, 5.0), (20, 4.0)] and history("eval_loss") == [(0, 6.0), (20, 4.5)]
    assert history("num_input_tokens_seen") == [(10, 640.0), (20, 1280.0)]
    (stamp, _) = (one.timestamp for one in client.get_metric_history(sent.run_id, "loss"))
    assert stamp == int((1e9 + 10) * 1000)
    assert CANARY.encode() not in bytes_below(tmp_path / "tracked")
    assert set(found.data.tags) == {"mlflow.runName"}  # no user, no script, no commit

    write(run, [trained(10, 5.0), trained(20, 4.0), trained(30, 3.0)], phase="stopped", exit=75)
    assert sent_to(run, "mlflow").run_id == sent.run_id
    assert history("loss") == [(10, 5.0), (20, 4.0), (30, 3.0)]
    assert client.get_run(sent.run_id).info.status == "KILLED"

    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", client.create_experiment("ours"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "another")
    (run / FOLDER / "mlflow.json").unlink()
    found = client.get_run(sent_to(run, "mlflow").run_id)
    assert client.get_experiment(found.info.experiment_id).name == "ours"
    assert client.get_experiment_by_name("another") is None


# ---- what is sent, and again -----------------------------------------------------------------------------------------


@dataclass
class Made:
    """A service that keeps what it gets. `failing`: how many calls raise."""

    failing: int = 0
    got: list[MetricsLine] = field(default_factory=list)
    begun: list[str | None] = field(default_factory=list)
    ended: list[Outcome] = field(default_factory=list)
    about: About | None = None
    run_id: str = "one"

    def begin(self, about, run_id):
        self.about = about
        self.begun.append(run_id)
        self._fail()
        return self

    def send(self, lines):
        self._fail()
        self.got += lines

    def finish(self, outcome):
        self.ended.append(outcome)

    def _fail(self):
        if self.failing:
            self.failing -= 1
            raise ConnectionError(f"https://me:{CANARY}@host: refused\nand much more")

    @property
    def steps(self):
        return [line.step for line in self.got]


def sent_all(run, service, to="wandb"):
    forwarder = Forwarder(str(run), to, begin=service.begin)
    forwarder.send_all()
    return forwarder.sent


def test_steps_that_a_restart_computes_again_are_not_sent_again(run):
    service = Made()
    sent_all(run, service)
    assert service.steps == [0, 10, 20, 20]
    write(run, [judged(0, 6.0), trained(10, 5.0), trained(20, 4.4), judged(20, 4.6), trained(30, 4.0)])
    sent_all(run, service)
    assert service.steps[4:] == [30]
    (run / FOLDER).rename(run / "forward")  # as it was called before
    sent_all(run, service)
    assert service.steps[5:] == []
    assert {*service.begun[1:]} == {"one"} and {*service.ended} == {"done"}


def test_what_a_service_refuses_waits_until_it_takes_it(run):
    """A service that is down for its first three calls, while the run goes on: one warning, and every line once."""
    service, told, now = Made(failing=3), list[str](), [0.0]
    lines = [trained(step) for step in range(1, 40)]
    write(run, lines[:5], phase="training", exit=None)

    def sleep(seconds):
        """Meanwhile the run goes on, and ends after 80 seconds."""
        now[0] += seconds
        done = min(len(lines), 5 + int(now[0]))
        over = now[0] > 80.0
        with (run / "metrics.jsonl").open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines[written[0] : done]))
        written[0] = max(written[0], done)
        RunDirectory(str(run)).write_status(Status(phase="done" if over else "training", exit=0 if over else None))

    written = [5]
    given = {"tell": told.append, "clock": lambda: now[0], "sleep": sleep}
    forwarder = Forwarder(str(run), "wandb", begin=service.begin, **given)
    assert forwarder.follow()
    assert service.steps == list(range(1, 40)) and forwarder.sent.lines == 39 and service.ended == ["done"]
    (warning,) = told
    assert warning.startswith("warning: wandb: https://***@host: refused; this does not affect the run")
    assert warning.endswith(f"`maskwright sync {run} --to wandb` sends the rest")
    assert CANARY not in str(service.about)


def test_one_process_sends_to_a_service_at_a_time(run):
    (run / FOLDER).mkdir()
    lock = str(run / FOLDER / "wandb.lock")
    with storage.locked(lock, remove=False), pytest.raises(Locked, match="is in use by process"):
        sent_all(run, Made())
    sent_all(run, Made(), "mlflow")


def test_a_service_that_fails_at_the_end_is_told_again_later(run):
    service = Made(failing=1)
    with pytest.raises(MaskwrightError, match="sends the rest"):
        sent_all(run, service)
    assert sent_all(run, service).lines == 4 and service.steps == [0, 10, 20, 20]


# ---- beside a run ----------------------------------------------------------------------------------------------------


def test_a_missing_package_ends_a_run_before_it_begins(config, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(extras, "installed", lambda package: package not in ("wandb", "mlflow"))
    with pytest.raises(ConfigError, match=r"logging.report_to: the package wandb is not installed.*\[wandb\]") as found:
        task.pretrain(config(**{"logging.report_to": ["tensorboard", "wandb"]}), str(tmp_path / "run"))
    assert found.value.exit_code == 2 and not (tmp_path / "run").exists()
    assert main.run(["sync", str(tmp_path / "run"), "--to", "mlflow"]) == 2
    assert "scripts/install --mlflow" in capfd.readouterr().err


def test_a_run_reports_while_it_trains_and_is_the_same_run(config, tmp_path, monkeypatch, capsys):
    """W&B takes the lines, offline; MLflow's server does not answer. The weights are those of a run without either."""
    for package in ("wandb", "mlflow"):
        pytest.importorskip(package, reason=f"the extra {package} is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(forwarders, "WAIT_SECONDS", 300.0)  # a loaded machine imports a service's package slowly
    task.pretrain(config(), str(tmp_path / "plain"))
    run = tmp_path / "reported"
    capsys.readouterr()
    began = time.monotonic()
    task.pretrain(config(**{"logging.report_to": ["wandb", "mlflow", "tensorboard"]}), str(run))
    assert time.monotonic() - began < 240.0  # it does not wait for a server that does not answer
    said = capsys.readouterr().err
    assert said.count("warning: mlflow: ") == 1 and "this does not affect the run" in said
    assert "warning: mlflow: " in (run / "log.txt").read_text()
    sent = json.loads((run / FOLDER / "wandb.json").read_text())
    lines = RunDirectory(str(run)).read_metrics()
    assert (sent["lines"], sent["trained"], sent["outcome"]) == (len(lines), 12, "done")
    weights = [checkpoint.load(str(place / "checkpoints/step-00000012"))[0] for place in (tmp_path / "plain", run)]
    for name, value in weights[0].parameters.items():
        assert (value == weights[1].parameters[name]).all()
    assert list((run / "events").iterdir())
