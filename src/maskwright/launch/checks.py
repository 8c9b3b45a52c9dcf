"""Checks of launchers: whether the command can work where it is sent."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from subprocess import CompletedProcess

from maskwright.config.finetuning import FinetuneConfig, read_finetune_config
from maskwright.config.pretraining import (
    RunConfig,
    in_words,
    read_config,
    require_devices,
    require_supported,
    shareable,
    shared_out,
)
from maskwright.config.recipes import find_config
from maskwright.core import storage
from maskwright.core.console import warn
from maskwright.core.errors import CloudError, InputError
from maskwright.core.hub import is_hub
from maskwright.core.secrets import redact
from maskwright.launch.target import Training
from maskwright.machine import tpus
from maskwright.run.directory import RunDirectory, whole_steps
from maskwright.run.record import parse_origin

PORT = 29400
"""Port of node 0 at which the processes meet: torchrun's default for c10d."""
LONGEST_NAME = 40
"""Characters of a job's name: pods of a JobSet add up to 23, and a host name may have 63."""
SAVING_SECONDS = 1_800
"""Time between a run's own limit (`--stop-after-hours`) and the server's: to pull the image, start and save."""
LONGER_THAN_SAVING_SECONDS = 5.0
"""Time between the end of the run's grace period (`checkpoint.grace_seconds`) and SIGKILL."""


def ask(
    words: list[str], text: str, seconds: float, *, absent: str, silent: str, variables: Mapping[str, str] | None = None
) -> CompletedProcess[str]:
    """Runs another program's command with `text` on its standard input, and with `variables` for this environment.
    Raises `InputError` if it cannot be started, with the fix `absent`, and `CloudError` if there is no answer within
    `seconds`, with the fix `silent`."""
    try:
        return subprocess.run(
            words, input=text, env=variables, capture_output=True, text=True, errors="replace", timeout=seconds,
            check=False, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        what = "is not installed, or not on the path" if missing else f"cannot be started: {error.strerror}"
        raise InputError(what, where=words[0], fix=absent) from None
    except subprocess.TimeoutExpired:
        raise CloudError(f"no answer in {seconds:.0f} s", reason="unreached", where=words[0], fix=silent) from None


def read(command: Training) -> tuple[RunConfig | FinetuneConfig, str]:
    """The configuration as the job will read it, and the text of its file."""
    with storage.open_binary(find_config(command.config, command.verb)) as file:
        text = file.read().decode("utf-8", errors="replace")
    reader = read_config if command.verb == "pretrain" else read_finetune_config
    config = reader(command.config, list(command.overrides))
    if redact(text) != text:
        raise InputError("holds a secret", where=command.config, fix="delete it there: others can read it in the job")
    return config, text


def warn_of_trackers(command: Training, there: Sequence[str] = ()) -> None:
    """Warns of packages that `logging.report_to` needs in the job's image. `there`: packages that the job installs."""
    for name in read(command)[0].logging.report_to:
        if name != "tensorboard" and not any(each.startswith(name) for each in there):
            what = f"logging.report_to: the job needs {name} in its image, but `maskwright image` leaves it out"
            warn(f"{what}. Fix: add it as docs/containers.md#another-package-in-it shows")


def locations(command: Training, config: RunConfig | FinetuneConfig) -> dict[str, str]:
    """The folders and files that the command reads, by configuration key or the option `--from`, without those that it
    fetches by itself: data and, to fine-tune it, a run's copies from any URL, and models from the Hub."""
    begin = {"--from": parse_origin(command.begin_from)[0]} if command.begin_from else {}
    found = {}
    for key, location in {**config.locations, **begin}.items():
        fetches_urls = key.startswith("data.") and not key.endswith(".tokenizer")
        fetches_urls |= key == "model.init_from" and command.verb == "finetune"
        fetches = storage.is_url(location or "") if fetches_urls else key.startswith("model.") and is_hub(location)
        if location and not fetches:
            found[key] = location
    return found


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def require_kept(run: str, folders: Iterable[str], there: str, fix: str) -> None:
    """Raises `InputError` if the run is in none of the folders that outlive its machines. `there`: a machine's name."""
    if ".." in run.split("/"):
        raise InputError(f"{run} leaves its folder", where="--run", fix="write it without ..")
    if not any(run.startswith(folder + "/") for folder in folders):
        raise InputError(f"{run} would be lost with its {there}", where="--run", fix=fix)


def require_seen(read: Mapping[str, str], folders: Collection[str], there: str, fix: Callable[[str, str], str]) -> None:
    """Raises `InputError` if one of `locations` is in none of the folders that the machines see. `fix`: of a key and
    its location."""
    for key, path in read.items():
        if not any(inside(path, folder) for folder in folders):
            raise InputError(f"{path} is not in a {there}", where=key, fix=fix(key, path))


def setting(key: str, value: str) -> str:
    """The words that change one of `locations`."""
    return f"{key} {value}" if key.startswith("--") else f"--set {key}={value}"


def require_parent(command: Training) -> None:
    """Raises `InputError` if `--from` does not name a run with checkpoints. For places whose machines see the same
    folders as this one. A run that has begun does not need its parent any more."""
    if command.begin_from is None or RunDirectory(command.run).exists():
        return
    location, step = parse_origin(command.begin_from)
    steps = whole_steps(RunDirectory(location).checkpoints)
    if not steps or step not in (None, *steps):
        what = "has no checkpoint" if step is None or not steps else f"has no checkpoint of step {step:,}"
        fix = f"choose one of its steps: {', '.join(map(str, steps[-8:]))}" if steps else "name a run directory"
        raise InputError(what, where=f"--from {location}", fix=fix)


def sized(command: Training, config: RunConfig | FinetuneConfig, num_nodes: int, gpus: int) -> Training:
    """The command with the device and the number of processes of each machine, so that it fails where a device is
    missing. Raises `InputError` if the batch cannot be divided among them, if `engine.devices` is another number, and
    for JAX on GPUs."""
    device, total = "cuda" if gpus else "cpu", num_nodes * max(1, gpus)
    require_supported(config.engine, device)
    if config.engine.device not in ("auto", device):
        what = f"is {config.engine.device}, but {gpus} GPUs on each node need {device}"
        raise InputError(what, where="engine.device", fix=f"leave it out, or set it to {device}")
    shared_out(config.batch.virtual_workers, total, "processes", _rows(config))
    require_devices(config.engine, total)
    return replace(command.setting(f"engine.device={device}"), processes=max(1, gpus))


def for_tpu(command: Training, config: RunConfig | FinetuneConfig, devices: int) -> Training:
    """The command for a TPU with this many devices, as JAX counts them. Raises `InputError` with all settings that it
    lacks."""
    engine, batch, wrong = config.engine, config.batch, list[str]()
    lacking: dict[str, object] = {}
    if engine.kind != "jax":
        wrong.append(f"{engine.kind} does not run on TPUs; jax does")
        lacking["engine.kind"] = "jax"
    if engine.device not in ("auto", "tpu"):
        wrong.append(f"{engine.device} is not a TPU")
        lacking["engine.device"] = "tpu"
    devices = engine.devices or devices
    if batch.virtual_workers % devices:
        wrong.append(f"{devices} devices do not divide {batch.virtual_workers} virtual workers evenly")
        lacking |= shareable(batch.virtual_workers, devices, _rows(config))
    if wrong:
        raise InputError("; ".join(wrong), where=next(iter(lacking)), fix=f"add {in_words(lacking)}")
    return command.setting("engine.device=tpu")


def tpu_slice(name: str, kinds: Sequence[str], of: str = "") -> tuple[str, str]:
    """Kind and topology of a slice such as `v6e:4x4`. Raises `InputError` for a kind outside `kinds`, and for a slice
    that Google does not rent."""
    kind, _, topology = name.lower().partition(":")
    if kind not in kinds:
        fix = f"write it as --accelerator v6e:4x4; the kinds are {', '.join(kinds)}"
        raise InputError(f"{name[:40]!r} is not a TPU slice{of}", where="--accelerator", fix=fix)
    if wrong := tpus.refusal(f"{kind}:{topology}"):
        raise InputError(wrong[0], where="--accelerator", fix=wrong[1])
    return kind, topology


def _rows(config: RunConfig | FinetuneConfig) -> int | None:
    """Rows of each virtual worker, if the configuration has them."""
    return config.batch.micro_batch_rows if isinstance(config, RunConfig) else None


def grace_seconds(config: RunConfig | FinetuneConfig) -> int:
    """Time between SIGTERM and SIGKILL, for the scheduler."""
    return math.ceil(config.checkpoint.grace_seconds + LONGER_THAN_SAVING_SECONDS)


def name_for(run: str, name: str | None = None) -> str:
    """A job's name that every scheduler accepts (a DNS label, RFC 1035): `name`, or one made of the run's folder."""
    if not name:
        name = re.sub(r"[^a-z0-9]+", "-", run.rstrip("/").rpartition("/")[2].lower()).strip("-")
        name = (name if name[:1].isalpha() else f"run-{name}")[:LONGEST_NAME].strip("-")
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) or len(name) > LONGEST_NAME:
        fix = f"use at most {LONGEST_NAME} small letters, digits and -, with a letter first"
        raise InputError(f"{name[:80]!r} is not a valid name for a job", where="--name", fix=fix)
    return name
