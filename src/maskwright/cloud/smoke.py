"""`env smoke`: the smallest environment, end to end, in the user's project, with the commands that a user types.

NOBODY HAS RUN THIS YET: it was written and tested without Google Cloud. It creates a separate environment with a small
disk and one machine, which Google deletes after half an hour; trains for some seconds; and deletes everything, also
after a failure or Ctrl-C. An audit at the end lists what is left.
"""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Literal

import yaml

from maskwright.cloud.environment import Environment, build_environment
from maskwright.core import storage
from maskwright.core.console import say
from maskwright.core.errors import JobError
from maskwright.core.folder import Folder
from maskwright.core.shell import typed
from maskwright.processes.child import CommandSequence, Step, require

Kind = Literal["vm", "tpu"]
RUN_HOURS = 0.5
"""Google deletes the machine after this time, even if this process dies."""
MOST_HOURS = 1.0
"""Hours of the estimate: the machine's half hour, seeding, and the disk throughout."""
VM = {"machine_type": "n2-standard-8", "provisioning_model": "SPOT", "max_run_hours": RUN_HOURS}
TPU = {"accelerator": "v6e", "topology": "1x1", "provisioning_model": "SPOT", "max_run_hours": RUN_HOURS}
DISK_GB = 10
STEPS, VOCABULARY = 20, 1000
MODULES = ("argparse", "collections", "csv", "decimal", "json", "logging", "random", "statistics", "threading")
"""Modules of Python's standard library, whose docstrings are text that every machine has."""
Run = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Smoke:
    """A planned trial."""

    environment: Environment
    """The small environment, not the user's."""
    kind: Kind
    files: str
    """Folder for its YAML and all other files."""

    @property
    def yaml(self) -> str:
        return self.path("smoke.yaml")

    def path(self, name: str) -> str:
        return os.path.join(self.files, name)

    @property
    def source(self) -> str:
        return f"gs://{self.environment.dataset_bucket}/smoke"

    def preparation(self) -> list[list[str]]:
        """Commands before the data is copied to the bucket."""
        text, tokenizer, store = self.path("text.txt"), self.path("tokenizer"), self.path("data/store")
        return [
            ["tokenizer", "train", text, "--to", tokenizer, "--vocab-size", str(VOCABULARY), "--layout", "lines"],
            ["data", "prepare", text, "--tokenizer", tokenizer, "--to", store, "--layout", "lines"],
            ["env", "init", self.yaml],
            ["env", "up", self.yaml, "--only", "disk", "--yes"],
        ]

    def trial(self, image: bool) -> list[list[str]]:
        """Commands after that, to the end of a job."""
        hours = ["--stop-after-hours", str(RUN_HOURS / 2)]
        return [
            *([["env", "image", self.yaml]] if image else []),
            ["env", "seed", self.yaml, "--yes"],
            ["env", "up", self.yaml, "--yes"],
            ["submit", "env", self.yaml, self.path("run.yaml"), "--run", "smoke", *hours],
            ["env", "status", self.yaml],
        ]

    def teardown(self) -> list[list[str]]:
        return [["env", "down", self.yaml, "--delete-data", "--yes"], ["env", "audit", self.yaml]]


def values_of(base: Environment, kind: Kind, container: str | None) -> dict[str, Any]:
    """Values of the small environment: project, zone, state bucket and labels of `base`, and another name."""
    name = f"{base.name[:13].rstrip('-')}-smoke"
    disk_type = "hyperdisk-ml" if kind == "tpu" else "pd-balanced"
    return {
        "name": name,
        "project": base.project,
        "zone": base.zone,
        "labels": base.labels,
        "state_bucket": base.state_bucket,
        "bucket_location": base.bucket_location,
        "disk": {"type": disk_type, "size_gb": DISK_GB, "source": f"gs://{base.project}-{name}-dataset/smoke"},
        **({"slice": TPU} if kind == "tpu" else {"group": VM}),
        "host": {"container": container, "idle_minutes": 10},
    }


def configuration(smoke: Smoke) -> dict[str, Any]:
    engine = {"kind": "jax"} if smoke.kind == "tpu" else {"kind": "torch", "device": "cpu"}
    return {
        "data": {"store": f"{smoke.environment.mount_point}/shared_pd/store", "seq_len": 64},
        "model": {"size": "nano", "hidden_size": 64},
        "schedule": {"steps": STEPS, "warmup_steps": 2},
        "batch": {"micro_batch_rows": 8},
        "engine": engine,
        "checkpoint": {"save_every_steps": STEPS},
    }


def describe(smoke: Smoke, image: bool) -> str:
    """The environment's YAML, and the commands that would run."""
    lines = [_yaml(smoke.environment.model_dump(exclude_defaults=True))]
    lines += [typed(words) for words in smoke.preparation()]
    lines += [f"# {smoke.path('data')} is copied to {smoke.source}"]
    lines += [typed(words) for words in (*smoke.trial(image), *smoke.teardown())]
    return "\n".join(lines)


def as_json(smoke: Smoke, image: bool, ran: Sequence[Step] | None) -> dict[str, Any]:
    """`ran`: the finished steps; None in a dry run, where `steps` has the planned commands."""
    commands = [*smoke.preparation(), *smoke.trial(image), *smoke.teardown()]
    ended = {step.command: step.exit_code for step in ran or ()}
    return {
        "environment": smoke.environment.model_dump(mode="json", exclude_defaults=True),
        "files": smoke.files,
        "image": smoke.environment.host.container or smoke.environment.built_image,
        "steps": [asdict(step) for step in ([Step(typed(words)) for words in commands] if ran is None else ran)],
        "taken_away": None if ran is None else all(ended.get(typed(words)) == 0 for words in smoke.teardown()),
    }


def _yaml(values: dict[str, Any]) -> str:
    return yaml.safe_dump(values, sort_keys=False)


def plan(base: Environment, kind: Kind, container: str | None, files: str | None = None) -> Smoke:
    folder = files or tempfile.mkdtemp(prefix="maskwright-smoke-")
    return Smoke(build_environment(values_of(base, kind, container), "env smoke"), kind, folder)


def write(smoke: Smoke) -> None:
    storage.make_folder(smoke.path("data"))
    files = {
        smoke.yaml: _yaml(smoke.environment.model_dump(exclude_defaults=True)),
        smoke.path("run.yaml"): _yaml(configuration(smoke)),
        smoke.path("text.txt"): text(),
    }
    for path, content in files.items():
        with storage.atomic_writer(path) as file:
            file.write(content.encode())


def text() -> str:
    """Docstrings of some of Python's modules, a paragraph on each line."""
    modules = [import_module(name) for name in MODULES]
    members = [item for module in modules for item in (module, *dict(inspect.getmembers(module, callable)).values())]
    paragraphs = [part for item in members for part in (inspect.getdoc(item) or "").split("\n\n")]
    lines = dict.fromkeys(" ".join(paragraph.split()) for paragraph in paragraphs)
    return "\n".join(line for line in lines if len(line) > 40) + "\n"


def copy(smoke: Smoke) -> None:
    """Copy the token store to the bucket that the disk is seeded from."""
    folder, root = Folder(smoke.source), smoke.path("data")
    for place, _, names in os.walk(root):
        for name in sorted(names):
            path = os.path.join(place, name)
            with storage.open_binary(path) as file:
                folder.put(os.path.relpath(path, root), file.read())


def smoke(planned: Smoke, *, image: bool, run: Run | None = None) -> None:
    """Run the trial, and delete everything whatever happens. Raises `JobError` with the code of the first failure."""
    run = run or CommandSequence().run
    write(planned)
    try:
        for words in planned.preparation():
            require(run, words)
        say(f"copying the token store to {planned.source}")
        copy(planned)
        try:
            for words in planned.trial(image):
                require(run, words)
        except JobError:
            run(["env", "status", planned.yaml])  # what hosts reported is deleted with them
            raise
    finally:
        failed = [words for words in planned.teardown() if run(words)]
        if failed:
            say(f"STILL THERE, AND IT MAY COST MONEY: run `{typed(failed[0])}` until it exits with 0")
    if failed:
        fix = f"run it again until it exits with 0: {typed(failed[0])}"
        raise JobError("the job is done, but not everything was deleted", 1, where=planned.environment.name, fix=fix)
