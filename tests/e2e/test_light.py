"""A machine without the training packages submits and watches, and says what else needs them."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

from maskwright.config.pretraining import RunConfig
from maskwright.tasks.pretrain.run import pretrain

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


BLOCKED = """
import sys
from importlib.machinery import PathFinder
find, absent = PathFinder.find_spec, set(sys.argv[1].split(","))
def present(name, path=None, target=None):
    return None if name.partition(".")[0] in absent else find(name, path, target)
PathFinder.find_spec = present
import json, shlex
from maskwright.cli import main as cli
print(json.dumps([cli.run(shlex.split(line)) for line in sys.argv[2:]]))
"""


def needed(requirements: Iterator[str] | list[str]) -> set[str]:
    """Names of the distributions that these take, with all that those take."""
    found: set[str] = set()
    for line in requirements:
        requirement = Requirement(line)
        name = requirement.name.lower().replace("_", "-")
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found |= {name} | needed(importlib.metadata.requires(name) or [])
    return found


def test_a_machine_without_the_training_packages_submits_and_watches(
    config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """With nothing but the dependencies that pyproject.toml says everybody needs."""
    pretrain(config(**{"schedule.steps": 2, "schedule.warmup_steps": 1}), str(tmp_path / "run"))
    here = needed(PROJECT["dependencies"]) | {"maskwright"}
    absent = {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not {owner.lower().replace("_", "-") for owner in owners} & here
    }
    assert {"torch", "numpy", "pyarrow", "transformers", "jax", "ray", "gcsfs"} & absent
    place = "--run /runs/one --set data.store=/runs/store"
    light = [
        "--help", "status run --json", "logs run", "schema", "schema", "recipes small", "schema environment",
        "watch --once", "watch . --json",
        "doctor",
        f"submit slurm small {place} --dry-run",
        f"submit kubernetes small {place} --image a/b:c --mount data:/runs --dry-run",
    ]  # fmt: skip
    heavy = [
        f"pretrain small {place}",
        "evaluate run",
        "stop run",
        "quickstart",
        "status gs://b/runs/one",
        "watch --web",
    ]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, ",".join(absent), *light, *heavy],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[-1]) == [0] * len(light) + [2] * len(heavy), done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    extras = (
        "[train]",
        "[train]",
        "is not running (done at step 2)",
        "the package torch is not installed",
        "[gcp]",
        "[web]",
    )
    assert len(said) == len(extras) and all(extra in line for extra, line in zip(extras, said, strict=True)), said
    assert "Traceback" not in done.stderr
