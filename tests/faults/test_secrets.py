"""Canaries planted where secrets live: none may come out on a stream or lie in a folder that a command wrote."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import warm
from command_line import COMMAND, write_config

from maskwright.config.settings import put, require_no_secret
from maskwright.core.errors import ConfigError

PASSWORD, QUERY = "c4n4ry-password", "c4n4ry-query"
VARIABLES = {
    name: f"c4n4ry-{name.lower()}"
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GOOGLE_API_KEY", "WANDB_API_KEY", "DB_PASSWORD")
}
STUB = str(Path(__file__).resolve().parents[1] / "stub_host.py")
STUB_HOST = [sys.executable, "-c", f"import runpy; runpy.run_path({STUB!r}, run_name='__main__')"]
ADDRESS = f"https://me:{PASSWORD}@host.example"
SIGNED = f"?v=1&token={QUERY}&X-Amz-Signature={QUERY}"


@dataclass
class Mine:
    folder: Path

    def run(self, *arguments, code=0, plain=False):
        """Both streams, after a look for canaries in them and in every file below the folder."""
        process = warm.Popen(
            [*(COMMAND if plain else STUB_HOST), *map(str, arguments)],
            cwd=self.folder,
            env=os.environ | VARIABLES | {"HOST_FOLDER": str(self.folder / "host")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        output = "".join(process.communicate(timeout=300))
        assert process.returncode == code, output
        assert "c4n4ry" not in output
        written = [path for path in self.folder.rglob("*") if path.is_file() and path.name != "given.yaml"]
        assert [path for path in written if b"c4n4ry" in path.read_bytes() or "c4n4ry" in path.name] == []
        return output


@pytest.fixture
def mine(tmp_path, corpus):
    for name in ("host", "host/denied", "host/broken"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("text")
    (tmp_path / "host" / "stories.txt").write_bytes(corpus.read_bytes())
    (tmp_path / "host" / "latin.txt").write_bytes(b"fine\nbad \xe9 here\nfine <mask>\nfine\n")
    return Mine(tmp_path)


def test_a_store_and_a_run_of_text_behind_a_password(mine, tokenizer):
    source = f"{ADDRESS}/stories.txt{SIGNED}"
    told = mine.run("data", "prepare", source, "--tokenizer", tokenizer, "--to", "store", "--json")
    assert "https://***@host.example/stories.txt?v=1&token=***&X-Amz-Signature=***" in told
    assert "already prepared" in mine.run("data", "prepare", source, "--tokenizer", tokenizer, "--to", "store")
    mine.run("data", "inspect", "store", "--json")
    write_config(mine.folder / "given.yaml", "store", steps=12, warmup_steps=1)
    mine.run("pretrain", "given.yaml", "--run", "run", "--stop-after-steps", 5, code=76)
    mine.run("pretrain", "given.yaml", "--run", "run")
    names = {path.name for path in (mine.folder / "run").iterdir()}
    assert {"environment.json", "log.txt", "status.json", "metrics.jsonl", "config.yaml", "events"} <= names
    mine.run("export", "run", "--to", "model")


def test_reports_of_text_behind_a_password(mine):
    for name in ("latin.txt", "stories.txt"):
        told = mine.run("data", "audit", f"{ADDRESS}/{name}{SIGNED}", "--json")
        assert "host.example" in told or name == "stories.txt"
    told = mine.run("tokenizer", "train", f"{ADDRESS}/latin.txt{SIGNED}", "--to", "t", "--on-bad-input", "skip")
    assert "warning: https://***@host.example/latin.txt?v=1&token=***" in told


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("latin.txt", 2, "is not UTF-8"),
        ("missing.txt", 2, "matches no file"),
        ("denied/a.txt", 2, "403 Forbidden: GET https://***@host.example/denied/a.txt"),
        ("broken/a.txt", 2, "cannot be read: "),
    ],
)
def test_errors_that_quote_an_address(path, code, words, mine, tokenizer):
    source = f"{ADDRESS}/{path}{SIGNED}"
    told = mine.run("--debug", "data", "prepare", source, "--tokenizer", tokenizer, "--to", "store", code=code)
    assert words in told and "Traceback" in told
    assert len([line for line in told.splitlines() if line.startswith("error: ")]) == 1
    assert not (mine.folder / "store").exists()


def test_addresses_where_only_folders_belong(mine):
    secret = f"s3://me:{PASSWORD}@bucket/x?token={QUERY}"
    write_config(mine.folder / "given.yaml", secret)
    for command in (
        ("pretrain", "given.yaml", "--run", "run"),
        ("pretrain", "given.yaml", "--run", secret),
        ("pretrain", secret, "--run", "run"),
        ("data", "verify", secret),
        ("data", "prepare", "host/stories.txt", "--tokenizer", secret, "--to", "store"),
        ("fill", secret, "<mask>"),
        ("evaluate", secret),
    ):
        assert "s3://me:***@bucket/x?token=***" in mine.run(*command, code=2)
    assert sorted(os.listdir(mine.folder)) == ["given.yaml", "host"]


LABELS = {"data": {"train": "train.csv", "test": "test.csv", "label": "label"}, "model": {"init_from": "model"}}


def test_no_file_of_labels_holds_a_secret(mine):
    """What a YAML says goes into records, predictions and the model's card."""
    given = mine.folder / "given.yaml"
    given.write_text(json.dumps(LABELS | {"data": LABELS["data"] | {"train": f"{ADDRESS}/a.csv{SIGNED}"}}))
    said = "given.yaml: data.train holds a secret: https://***@host.example/a.csv?v=1&token=***&X-Amz-Signature=***"
    assert said in mine.run("finetune", "given.yaml", "--run", "run", code=2)
    given.write_text(json.dumps(LABELS))
    changed = ("--set", f"data.test={ADDRESS}/a.csv")
    told = mine.run("compare", "model", "--base", "random", "--task", "given.yaml", *changed, code=2)
    assert "error: --set data.test: data.test holds a secret" in told
    assert sorted(os.listdir(mine.folder)) == ["given.yaml", "host"]


@pytest.mark.parametrize("key", ["data.mixture.a.store", "data.validation.b", "checkpoint.copy_to", "model.tokenizer"])
def test_no_key_holds_a_secret(key):
    values = {}
    put(values, key, f"gs://me:{PASSWORD}@bucket/x", key)
    with pytest.raises(
        ConfigError, match=rf"^a.yaml: {re.escape(key)} holds a secret: gs://me:\*\*\*@bucket/x"
    ) as error:
        require_no_secret(values, "a.yaml")
    assert PASSWORD not in str(error.value)
    with pytest.raises(ConfigError, match=r"^a.yaml: phases.1.name holds"):
        require_no_secret({"phases": [{"name": "one"}, {"name": f"https://{PASSWORD}@host"}]}, "a.yaml")


def test_the_commands_that_quickstart_prints(mine):
    told = mine.run("quickstart", "--text", f"{ADDRESS}/a.txt{SIGNED}", "--to", "q", code=1, plain=True)
    assert "$ maskwright data audit 'https://***@host.example/a.txt?v=1&token=***" in told


def test_a_value_of_the_environment_in_an_error(mine):
    told = mine.run("data", "verify", f"/tmp/{VARIABLES['WANDB_API_KEY']}/store", code=2)
    assert "/tmp/***/store: is not a token store" in told


# ---- enabled with the change that each names -----------------------------------------------------------------------


def test_a_comment_of_the_configuration(mine, tokenizer):
    """The copy in the run directory is what was given, but for the secrets."""
    mine.run("data", "prepare", "host/stories.txt", "--tokenizer", tokenizer, "--to", "store")
    path = mine.folder / "given.yaml"
    write_config(path, "store", steps=3, warmup_steps=1)
    given = path.read_text() + "# Größe\n"
    path.write_text(f"{given}# from {ADDRESS}/stories.txt{SIGNED}, WANDB_API_KEY={VARIABLES['WANDB_API_KEY']}\n")
    mine.run("pretrain", "given.yaml", "--run", "run")
    copy = (mine.folder / "run" / "config.yaml").read_text()
    assert copy.startswith(given)
    assert copy.endswith(
        "# from https://***@host.example/stories.txt?v=1&token=***&X-Amz-Signature=***, WANDB_API_KEY=***\n"
    )


def test_an_error_in_the_middle_of_a_run(mine):
    from maskwright.run.directory import RunDirectory, Status

    directory = RunDirectory(str(mine.folder))
    text = f"failed: 403 for {ADDRESS}/a{SIGNED}"
    directory.log(text)
    directory.write_status(Status(message=text))
    for name in ("log.txt", "status.json"):
        content = (mine.folder / name).read_text()
        assert "c4n4ry" not in content and "https://***@host.example/a?v=1&token=***" in content
    status = directory.read_status()
    assert status is not None and json.loads((mine.folder / "status.json").read_text())["pid"] == os.getpid()
