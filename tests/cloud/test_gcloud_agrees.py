"""The real gcloud, and gcsfs, speak to the same fake: what they send is accepted, and what comes back satisfies them.

One story for each family of commands, as each call costs half a second and more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import fsspec
import pytest
from google_cloud.fake import Cloud

from maskwright.cloud.google.rest import Google

needs_gcloud = pytest.mark.skipif(shutil.which("gcloud") is None, reason="`gcloud` is not on the path")


def gcloud(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        ["gcloud", *words], capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == code, f"{words}: {done.stderr[-2000:]}"
    return (done.stdout if code == 0 else done.stderr).strip()


@pytest.fixture(autouse=True)
def no_fault_of_the_fake(cloud: Cloud) -> object:
    yield
    assert not [one for one in cloud.journal if "FAULT OF THE FAKE" in one.get("error", "")]


@needs_gcloud
def test_buckets_and_files(cloud: Cloud, tmp_path: Path) -> None:
    """In one piece, in chunks (more than 8 MiB), and back again unchanged."""
    there, back = tmp_path / "there", tmp_path / "back"
    (there / "sub").mkdir(parents=True)
    back.mkdir()
    (there / "a.txt").write_text("one line\n")
    (there / "sub" / "large.bin").write_bytes(os.urandom(9_000_000))
    gcloud(
        "storage", "buckets", "create", "gs://lab-one", "--location=us-east5", "--uniform-bucket-level-access", "--pap"
    )
    gcloud("storage", "cp", "-r", str(there), "gs://lab-one/")
    gcloud("storage", "rsync", "-r", "gs://lab-one/there", str(back))
    for name in ("a.txt", "sub/large.bin"):
        assert (back / name).read_bytes() == (there / name).read_bytes()
    made = cloud.resources["storage/b/lab-one"]["iamConfiguration"]
    assert made["publicAccessPrevention"] == "enforced" and made["uniformBucketLevelAccess"]["enabled"]
    assert Google("lab-proj").call("storage", "GET", "b/lab-one")["location"] == "US-EAST5"
    assert [one for one in cloud.journal if "uploadType=resumable" in one["query"]]


@pytest.mark.long
@needs_gcloud
def test_jobs_and_builds(cloud: Cloud, tmp_path: Path) -> None:
    pool = "machine-type=g2-standard-12,replica-count=1,container-image-uri=us-docker.pkg.dev/p/r/i:1,"
    pool += "accelerator-type=NVIDIA_L4,accelerator-count=1"
    job = ["ai", "custom-jobs", "create", "--region=us-central1", "--display-name=j", f"--worker-pool-spec={pool}"]
    gcloud(*job)
    name = next(key for key in cloud.resources if "/customJobs/" in key).removeprefix("aiplatform/")
    states = [Google("lab-proj").call("aiplatform", "GET", name)["state"] for _ in range(3)]
    assert states == ["JOB_STATE_RUNNING", "JOB_STATE_SUCCEEDED", "JOB_STATE_SUCCEEDED"]
    wrong = pool.replace("NVIDIA_L4", "NVIDIA_L5")
    refused = gcloud(*job[:-1], f"--worker-pool-spec={wrong}", code=1)
    assert "NVIDIA_L5" in refused
    steps = "steps: [{name: bash, args: [echo, $_A]}]\nsubstitutions: {_A: x}\noptions: {logging: CLOUD_LOGGING_ONLY}\n"
    (tmp_path / "cloudbuild.yaml").write_text(steps)
    config = f"--config={tmp_path / 'cloudbuild.yaml'}"
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("content")
    gcloud(
        "builds",
        "submit",
        config,
        str(source),
        "--async",
        "--substitutions=_A=y",
        "--gcs-source-staging-dir=gs://lab-b/s",
    )
    build = cloud.calls(r"cloudbuild\.projects\..*builds\.create")[0]["body"]
    assert build["substitutions"] == {"_A": "y"}
    assert (build["source"]["storageSource"]["bucket"], build["source"]["storageSource"]["object"]) in cloud.objects


def test_gcsfs(cloud: Cloud) -> None:
    Google("lab-proj")  # gives gcsfs the token
    cloud.put("gs://lab-one/a/b.txt", "hello")
    files, folder = fsspec.core.url_to_fs("gs://lab-one/a")
    assert files.cat_file(f"{folder}/b.txt") == b"hello"
    files.pipe_file(f"{folder}/c d.txt", b"x")
    assert cloud.text("gs://lab-one/a/c d.txt") == "x"
    assert sorted(files.ls(folder)) == ["lab-one/a/b.txt", "lab-one/a/c d.txt"]
    with pytest.raises(FileExistsError):
        files.pipe_file(f"{folder}/b.txt", b"y", mode="create")  # ifGenerationMatch=0
    files.mv(f"{folder}/b.txt", f"{folder}/e.txt")
    files.rm([f"{folder}/c d.txt", f"{folder}/e.txt"])  # by storage's batches
    assert not cloud.objects
