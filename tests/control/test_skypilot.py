"""`submit skypilot`: the task, and the line in it run by a shell with SkyPilot's variables set."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process import Cli, Result

COPY = "--set=checkpoint.copy_to=gs://bucket/one"
RESOURCES = {"accelerators": "H100:8", "cpus": "64+", "use_spot": True}


def submit(cli: Cli, folder: Path, *options: str) -> Result:
    (folder / "run.yaml").write_text(
        "data: {store: /data/store}\nbatch: {virtual_workers: 96}\nschedule: {steps: 10}\n"
    )
    return cli("submit", "skypilot", str(folder / "run.yaml"), "--run", "runs/one", *options)


def task(cli: Cli, folder: Path, *options: str) -> dict[str, Any]:
    result = submit(cli, folder, COPY, *options)
    assert result.code == 0, result.err
    return dict(yaml.safe_load(result.out))


def test_task(cli: Cli, tmp_path: Path) -> None:
    """Each key is one that SkyPilot 0.14's schema of a task knows; its `Task.from_yaml` took this one, by hand."""
    made = task(
        cli, tmp_path, "--num-nodes=2", "--accelerator=H100:8", "--cpus=64", "--spot",
        "--mount=gs://my-bucket:/data", "--env=HF_TOKEN", "--setup=pip install ./maskwright.whl",
        "--stop-after-hours=8",
    )  # fmt: skip
    assert set(made) == {"name", "resources", "num_nodes", "file_mounts", "secrets", "setup", "run"}
    assert made["resources"] == {**RESOURCES, "job_recovery": {"recover_on_exit_codes": [75]}}
    assert made["run"].split(" --num-nodes ")[0].endswith(" --stop-after-hours 8.0 --processes 8")
    assert made["name"] == "one" and made["num_nodes"] == 2
    assert made["file_mounts"] == {
        "~/maskwright-run.yaml": str(tmp_path / "run.yaml"),
        "/data": {"source": "gs://my-bucket", "mode": "MOUNT"},
    }
    assert made["secrets"] == {"HF_TOKEN": None}  # `sky jobs launch --secret HF_TOKEN` takes the value from there


@pytest.mark.parametrize("workers", [1, 2])
def test_the_line_starts_the_command(cli: Cli, tmp_path: Path, workers: int) -> None:
    made = task(cli, tmp_path, f"--num-nodes={workers}", "--set=model.init_from=/data/it's $(odd)")
    (tmp_path / "maskwright").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "maskwright").chmod(0o755)
    variables = {
        "SKYPILOT_NUM_NODES": str(workers),
        "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5",
    }
    path = f"{tmp_path}:{os.environ['PATH']}"
    words = subprocess.run(
        ["bash", "-c", made["run"]],
        env={**variables, "HOME": "/home/sky", "PATH": path}, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    many = ["--num-nodes", "2", "--node-rank", "1", "--rendezvous", "10.0.0.4:29400"] if workers == 2 else []
    assert words == [
        "pretrain", "/home/sky/maskwright-run.yaml", "--run", "runs/one", "--set", "checkpoint.copy_to=gs://bucket/one",
        "--set", "model.init_from=/data/it's $(odd)", "--set", "engine.device=cpu", "--processes", "1", *many,
    ]  # fmt: skip


JAX = ["--set=engine.kind=jax"]


@pytest.mark.parametrize("accelerator", ["tpu-v6e-16", "tpu-v4-64", "tpu-v3-32:1"])
def test_on_a_tpu_slice(cli: Cli, tmp_path: Path, accelerator: str) -> None:
    """SkyPilot starts the same command on each host, whose metadata has the others."""
    made = task(cli, tmp_path, *JAX, f"--accelerator={accelerator}")
    assert (made["resources"]["accelerators"], made["num_nodes"]) == (accelerator, 1)
    assert made["run"].endswith(" --set engine.kind=jax --set engine.device=tpu\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "checkpoint.copy_to: is not set, and the checkpoints would be lost with their machine"),
        ([COPY, "--accelerator=H100:0"], "--accelerator: 'H100:0' is not KIND:N"),
        ([COPY, "--accelerator=tpu-v7-8"], "--accelerator: 'tpu-v7-8' is not a TPU slice of SkyPilot"),
        ([COPY, *JAX, "--accelerator=tpu-v6e-16", "--num-nodes=2"], "--num-nodes 2: a run trains on one TPU slice"),
        (
            [COPY, "--accelerator=tpu-v5p-128"],
            "engine.kind: torch does not compute on TPUs, and jax does; 64 devices do not divide 96 virtual workers",
        ),
        ([COPY, "--mount=my-bucket"], "--mount: 'my-bucket' is not URL:/folder"),
        ([COPY, "--name=Big_Run"], "--name: 'Big_Run' is not a valid name for a job"),
    ],
)
def test_refused(cli: Cli, tmp_path: Path, options: list[str], message: str) -> None:
    result = submit(cli, tmp_path, *options)
    assert result.code == 2 and result.out == "" and result.error.startswith(message), result.err
