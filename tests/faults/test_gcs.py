"""Copies of checkpoints through gcsfs, against a store on loopback that speaks Google Cloud Storage's protocol."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from google_cloud.fake import Cloud
from made_record import saved

from maskwright.core.errors import CheckpointError, InputError
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint
from maskwright.training.copies import Copies

URL = "gs://bucket/runs/one"
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs's own way with chunks


def requests(gcs: Cloud) -> list[str]:
    return [f"{one['verb']} {one['path']}?{one['query']}" for one in gcs.journal]


def test_copies_go_and_come_back(gcs: Cloud, tmp_path: Path) -> None:
    directory, copies = saved(tmp_path / "one", 10, 20, 30, numbers=2_000_000), Copies(URL)  # 8 MB: sent in chunks
    for step in (10, 20, 30):
        copies.put(directory, step, 2, None)
    assert copies.steps() == [20, 30]
    assert not [name for name in gcs.files("bucket") if "00000010" in name]
    writes = [request for request in requests(gcs) if request.startswith("POST /upload") and "step-00000030" in request]
    assert any("resumable" in request for request in writes)
    fresh = RunDirectory(str(tmp_path / "two"))
    copies.fetch(fresh, lambda record: None)
    loaded = checkpoint.load_newest(fresh.checkpoints, set_aside=False)
    assert loaded and loaded[0].step == 30 and float(loaded[0].parameters["a"][-1]) == 30.0
    assert fresh.read_metrics() == [{"step": 1}]


def test_the_manifest_comes_last_and_only_where_there_is_none(gcs: Cloud, tmp_path: Path) -> None:
    Copies(URL).put(saved(tmp_path / "one", 10), 10, 2, None)
    uploads = [request for request in requests(gcs) if request.startswith("POST /upload")]
    assert "ifGenerationMatch=0" in uploads[-1]
    assert not [request for request in uploads[:-1] if "ifGenerationMatch" in request]
    assert list(gcs.files("bucket"))[-1].endswith("MANIFEST.json")
    assert not [request for request in requests(gcs) if "alt=media" in request], "the store's crc32c is enough"


def test_a_manifest_whose_answer_was_lost_is_ones_own(gcs: Cloud, tmp_path: Path) -> None:
    directory, copies = saved(tmp_path / "one", 10), Copies(URL)
    gcs.fault("storage.objects.insert .*MANIFEST.json", 503, lost=True)
    copies.put(directory, 10, 2, None)
    assert copies.steps() == [10]


def test_what_the_network_spoils_is_noticed_by_crc32c(gcs: Cloud, tmp_path: Path) -> None:
    directory, copies = saved(tmp_path / "one", 10), Copies(URL)
    content = os.path.join(directory.checkpoints, "step-00000010", "model.safetensors")
    gcs.arrives = lambda name, data: data[:-1] + b"\xff" if name.endswith("model.safetensors") else data
    with pytest.raises(CheckpointError, match="did not arrive complete"):
        copies.put(directory, 10, 2, None)
    assert os.path.getsize(content) == len(gcs.files("bucket")["runs/one/step-00000010/model.safetensors"])
    assert copies.steps() == []


def test_metrics_that_grow_while_they_are_copied_are_no_damage(gcs: Cloud, tmp_path: Path) -> None:
    directory = saved(tmp_path / "one", 10)

    def grow(name: str, content: bytes) -> bytes:
        with open(directory.metrics, "a") as file:
            file.write('{"step": 2}\n')
        return content

    gcs.arrives = grow
    Copies(URL).put(directory, 10, 2, None)
    assert Copies(URL).steps() == [10]
    manifest = json.loads(gcs.files("bucket")["runs/one/step-00000010/MANIFEST.json"])
    there = gcs.files("bucket")["runs/one/step-00000010/metrics.jsonl"]
    assert manifest["files"]["metrics.jsonl"]["bytes"] == len(there) < os.path.getsize(directory.metrics)


def test_a_bucket_that_is_not_there_is_said_at_the_start(gcs: Cloud) -> None:
    assert Copies(URL).steps() == []
    with pytest.raises(InputError, match=r"gs://typo/runs/one: there is no bucket typo\. Fix: .*create gs://typo$"):
        Copies("gs://typo/runs/one").steps()
