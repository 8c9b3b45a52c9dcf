"""Copies of checkpoints through gcsfs, against a store on loopback that speaks Google Cloud Storage's protocol."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

# Without it gcsfs asks each bucket's kind by gRPC, which needs TLS; it looks when it is imported.
os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
pytest.importorskip("gcsfs", reason="needs the gcs extra")
from google_cloud.fake import Cloud, fake_cloud
from google_cloud.storage import make_bucket
from made_record import made_record

from maskwright.core.errors import CheckpointError, InputError, MaskwrightError
from maskwright.engines.base import TrainState
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint
from maskwright.training.copies import Copies

URL = "gs://bucket/runs/one"
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # gcsfs's own way with chunks


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    with fake_cloud() as store:
        make_bucket(store, {"name": "bucket"})
        monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon", "endpoint_url": store.url})
        monkeypatch.delitem(fsspec.config.conf, "gcs", raising=False)  # a command of the cloud gives both a token
        fsspec.get_filesystem_class("gs").clear_instance_cache()
        yield store


def saved(folder: Path, *steps: int, numbers: int = 100) -> RunDirectory:
    directory = RunDirectory(str(folder))
    folder.mkdir()
    directory.write_record(made_record())
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    for step in steps:
        arrays = {"a": np.full((numbers,), step, np.float32)}
        checkpoint.save(directory.checkpoints, TrainState(step, arrays, {"exp_avg": arrays}), {"counters": {}}, keep=9)
    return directory


def requests(gcs: Cloud) -> list[str]:
    return [f"{one['verb']} {one['path']}?{one['query']}" for one in gcs.journal]


def put(copies: Copies, directory: RunDirectory, step: int, keep: int = 2) -> None:
    copies.put(directory, step, keep, None)


def test_copies_go_and_come_back(gcs: Cloud, tmp_path: Path) -> None:
    directory, copies = saved(tmp_path / "one", 10, 20, 30, numbers=2_000_000), Copies(URL)  # 8 MB: sent in chunks
    for step in (10, 20, 30):
        put(copies, directory, step)
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
    put(Copies(URL), saved(tmp_path / "one", 10), 10)
    uploads = [request for request in requests(gcs) if request.startswith("POST /upload")]
    assert "ifGenerationMatch=0" in uploads[-1]
    assert not [request for request in uploads[:-1] if "ifGenerationMatch" in request]
    assert list(gcs.files("bucket"))[-1].endswith("MANIFEST.json")
    assert not [request for request in requests(gcs) if "alt=media" in request], "the store's crc32c is enough"


def test_a_manifest_whose_answer_was_lost_is_ones_own(gcs: Cloud, tmp_path: Path) -> None:
    directory, copies = saved(tmp_path / "one", 10), Copies(URL)
    gcs.fault("storage.objects.insert .*MANIFEST.json", 503, lost=True)
    put(copies, directory, 10)
    assert copies.steps() == [10]


def test_a_refusal_is_said_at_once(gcs: Cloud, tmp_path: Path) -> None:
    directory, copies = saved(tmp_path / "one", 10), Copies(URL)
    gcs.fault(".*", 403, message="as was asked for", times=50)
    with pytest.raises(MaskwrightError, match="as was asked for"):
        put(copies, directory, 10)
    assert gcs.faults[0].times > 40


def test_what_the_network_spoils_is_noticed_by_crc32c(gcs: Cloud, tmp_path: Path) -> None:
    directory, copies = saved(tmp_path / "one", 10), Copies(URL)
    content = os.path.join(directory.checkpoints, "step-00000010", "model.safetensors")
    gcs.arrives = lambda name, data: data[:-1] + b"\xff" if name.endswith("model.safetensors") else data
    with pytest.raises(CheckpointError, match="did not arrive complete"):
        put(copies, directory, 10)
    assert os.path.getsize(content) == len(gcs.files("bucket")["runs/one/step-00000010/model.safetensors"])
    assert copies.steps() == []


def test_metrics_that_grow_while_they_are_copied_are_no_damage(gcs: Cloud, tmp_path: Path) -> None:
    directory = saved(tmp_path / "one", 10)

    def grow(name: str, content: bytes) -> bytes:
        with open(directory.metrics, "a") as file:
            file.write('{"step": 2}\n')
        return content

    gcs.arrives = grow
    put(Copies(URL), directory, 10)
    assert Copies(URL).steps() == [10]
    manifest = json.loads(gcs.files("bucket")["runs/one/step-00000010/MANIFEST.json"])
    there = gcs.files("bucket")["runs/one/step-00000010/metrics.jsonl"]
    assert manifest["files"]["metrics.jsonl"]["bytes"] == len(there) < os.path.getsize(directory.metrics)


def test_a_bucket_that_is_not_there_is_said_at_the_start(gcs: Cloud) -> None:
    assert Copies(URL).steps() == []
    with pytest.raises(InputError, match=r"gs://typo/runs/one: there is no bucket typo\. Fix: .*create gs://typo$"):
        Copies("gs://typo/runs/one").steps()
