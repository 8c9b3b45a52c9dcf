"""Budgets end to end: our command line as a user starts it, the real terraform, agents in processes of their own, and a
watcher that is killed in between."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google_cloud.boots import booting
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.terraform_world import TerraformWorld, why_not

LAB = """
name: lab1
project: lab-proj
zone: us-east5-b
group: {machine_type: n2-standard-4, size: 2, provisioning_model: SPOT}
"""
RUN = "data: {store: gs://corpus/store}\nschedule: {steps: 10}\nbatch: {virtual_workers: 2}\n"
USD_PER_HOUR = 1000.0
"""Of one machine: 0.56 USD a second for two."""
COMMAND = (
    "import sys; from maskwright.cli.main import main; from maskwright.cloud.jobs import follow, lease; "
    "lease.SILENT_SECONDS, lease.BEAT_SECONDS, follow.POLL_SECONDS = 2.0, 0.5, 0.5; "
    "sys.argv[0] = 'maskwright'; main()"
)
JOB = "#!/bin/sh\ntrap 'echo saving; exit 75' TERM\necho computing\nsleep 600 &\nwait\n"
JOBS = "gs://lab-proj-lab1-jobs/group"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cloud]:
    with fake_cloud() as cloud:
        world = TerraformWorld(tmp_path / "terraform", cloud=cloud.url)
        for name, value in {**cloud.environment(), **world.environment(), "XDG_CACHE_HOME": str(tmp_path)}.items():
            monkeypatch.setenv(name, value)
        cloud.put("gs://lab-proj-maskwright-state/made", "")
        (tmp_path / "lab.yaml").write_text(LAB)
        (tmp_path / "run.yaml").write_text(RUN)
        price = {
            "what": "n2-standard-4",
            "region": "us-east5",
            "unit": "machine-hour",
            "spot": USD_PER_HOUR,
            "source": "a",
        }
        sources = {"a": {"address": "https://example.com", "date": "2026-01-02"}}
        table: dict[str, Any] = {"currency": "USD", "sources": sources, "prices": [price]}
        (tmp_path / "prices.yaml").write_text(yaml.safe_dump(table))
        yield cloud


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", COMMAND, *words]
    return subprocess.Popen(
        command, cwd=folder, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def wait_for(cloud: Cloud, name: str, process: subprocess.Popen[str], seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while ("lab-proj-lab1-jobs", f"group/{name}") not in cloud.objects:
        if time.monotonic() > until or process.poll() is not None:
            process.kill()
            raise AssertionError(f"no {name}: {process.communicate()[0]}")
        time.sleep(0.05)


def machines(cloud: Cloud) -> list[str]:
    return [key for key in cloud.resources if "/instances/" in key or "/instanceGroupManagers/" in key]


@pytest.mark.long
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_budget_outlives_its_watcher_saves_and_takes_down(cloud: Cloud, tmp_path: Path) -> None:
    words = ["--up", "--max-cost", "20", "--prices", "prices.yaml"]
    with booting(cloud, tmp_path / "hosts", "lab1-group", f"{JOBS}/job.json", 2, JOB) as boots:
        first = start(tmp_path, "submit", "env", "lab.yaml", "run.yaml", "--run", "one", *words)
        wait_for(cloud, "reports/0001/attempt-001/host-1/begun.json", first)
        os.killpg(first.pid, signal.SIGKILL)
        said, _ = first.communicate()
        assert len(machines(cloud)) == 3, said
        second = start(tmp_path, "env", "watch", "lab.yaml", "--poll-seconds", "0.5")  # the table is the first one's
        said, _ = second.communicate(timeout=240)
        assert len(boots.booted) == 2
    assert second.returncode == 75, said
    limit = re.search(r"--max-cost 20 is reached: ([0-9.]+) USD", said)
    assert limit and 20.0 <= float(limit[1]) <= 20.0 + 2 * USD_PER_HOUR * 120 / 3600, said  # nobody looked meanwhile
    assert "the same command continues the run from its last checkpoint" in said
    assert machines(cloud) == []
    result = json.loads(cloud.text(f"{JOBS}/results/0001.json"))
    assert result["code"] == 75 and "stopped early" in " ".join(result["report"])
    assert "saving" in cloud.text(f"{JOBS}/reports/0001/attempt-001/host-0/log-000002.txt")
    assert "lab-proj-lab1-jobs" in {bucket for bucket, _ in cloud.objects}  # data stays


def test_budget_that_nothing_counts_is_refused_before_anything_exists(cloud: Cloud, tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text(LAB.replace("n2-standard-4", "n2-standard-8"))
    words = ["--up", "--max-cost", "20", "--prices", "prices.yaml"]
    process = start(tmp_path, "submit", "env", "lab.yaml", "run.yaml", "--run", "one", *words)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 2, said
    assert "--max-cost: no price for n2-standard-8 SPOT in us-east5 (group), not counted. Fix: " in said
    assert not machines(cloud) and not [name for _, name in cloud.objects if name.startswith("jobs/")]
