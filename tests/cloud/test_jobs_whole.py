"""A job on a made-up cloud from its submission to its end: real agents, a real run, machines that are taken away."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import small_config
from google_cloud import storage as buckets
from google_cloud.boots import booting
from google_cloud.fake import Cloud, Dropped
from google_cloud.small_terraform import SmallTerraform

from maskwright.cli import main
from maskwright.cloud.jobs import follow, lease
from maskwright.cloud.jobs.google_hosts import GoogleHosts
from maskwright.cloud.jobs.policy import Rules
from maskwright.cloud.provision import commands
from maskwright.core import storage
from maskwright.data.store import TokenStore

LAB = """
name: lab1
project: lab-proj
zone: us-east5-b
group: {machine_type: n2-standard-4, size: 2, provisioning_model: SPOT, fallbacks: [{zone: us-east5-a}]}
host: {container: mine}
"""
RUN = "gs://lab-proj-lab1-runs/runs/one"


@pytest.fixture
def cloud(empty_cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    empty_cloud.put("gs://lab-proj-maskwright-state/made", "")
    (tmp_path / "lab.yaml").write_text(LAB)
    small = SmallTerraform(empty_cloud)
    monkeypatch.setattr(commands, "up", small.up)
    monkeypatch.setattr(commands, "down", small.down)
    monkeypatch.setattr(lease, "SILENT_SECONDS", 3.0)
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.5)
    rules = Rules(patience_seconds=(600.0, 600.0), base_seconds=0.2, cap_seconds=1.0)
    monkeypatch.setattr(GoogleHosts, "rules", lambda self: rules)
    empty_cloud.small = small  # type: ignore[attr-defined]
    return empty_cloud


def write_config(store: TokenStore, path: Path, steps: int) -> str:
    keys = {"schedule.steps": steps, "schedule.warmup_steps": 1, "checkpoint.save_every_steps": 2}
    keys["checkpoint.keep"] = steps  # on a busy machine the first are deleted before they are copied
    path.write_text(yaml.safe_dump(small_config(store.location, **keys).model_dump()))
    return str(path)


def saved_steps(cloud: Cloud) -> list[int]:
    names = {name for bucket, name in list(cloud.objects) if bucket == "lab-proj-lab1-runs"}
    return sorted(
        int(n.split("/step-")[1][:8]) for n in names if n.startswith("runs/one/") and n.endswith("MANIFEST.json")
    )


@pytest.mark.long
def test_preempted_run_goes_on_elsewhere_to_the_same_weights(
    cloud: Cloud,
    store: TokenStore,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both hosts are taken in the middle, there are no machines in their zone any more, others come up in another."""
    config = write_config(store, tmp_path / "run.yaml", 240)
    spec, lab = "gs://lab-proj-lab1-jobs/group/job.json", f"{tmp_path}/lab.yaml"
    small: SmallTerraform = cloud.small  # type: ignore[attr-defined]

    def taken() -> None:
        while not saved_steps(cloud):
            time.sleep(0.05)
        cloud.stockout("us-east5-b")
        cloud.preempt("lab1-group")

    store_object = buckets.store

    def stored(cloud: Cloud, bucket: str, about: dict[str, Any], *rest: Any) -> dict[str, Any]:
        """The first hosts copy one checkpoint: a run this small would be over before they are taken. On a busy machine
        60 steps were over before the first copy."""
        if about["name"].startswith("runs/one/") and saved_steps(cloud) and len(boots.booted) < 4:
            raise Dropped
        return store_object(cloud, bucket, about, *rest)

    monkeypatch.setattr(buckets, "store", stored)
    thread = threading.Thread(target=taken, daemon=True)
    with booting(cloud, tmp_path / "hosts", "lab1-group", spec, 2) as boots:
        thread.start()
        words = ["submit", "env", lab, config, "--run", "one", "--up", "--down-when-done"]
        code = main.run([*words, "--set", "batch.virtual_workers=2", "--set", "engine.reproducibility=exact"])
    out, err = capfd.readouterr()
    assert code == 0, out + err
    assert (
        small.acts[0] == "up group us-east5-b"
        and "up group us-east5-a" in small.acts
        and small.acts[-1] == "down group"
    )
    assert len(boots.booted) >= 4 and len(set(boots.booted)) == len(boots.booted)
    assert "preempted or lost: 2 of 2 hosts" in err and "EXHAUSTED" in err
    fetched = [int(step) for step in re.findall(r"fetched step (\d+) from", out)]
    assert fetched and 0 < fetched[0] < 240, out
    assert not [key for key in cloud.resources if "/instances/" in key]
    alone = tmp_path / "alone"
    words = ["pretrain", config, "--run", str(alone), "--set", "batch.virtual_workers=2"]
    assert main.run([*words, "--set", "engine.device=cpu", "--processes", "1"]) == 0
    last = f"{RUN}/step-00000240/model.safetensors"
    with storage.open_binary(last) as file:
        far = file.read()
    assert far == (alone / "checkpoints" / "step-00000240" / "model.safetensors").read_bytes()
    history = json.loads(cloud.text("gs://lab-proj-lab1-jobs/group/watch/history.json"))
    assert history["hours"] > 0
