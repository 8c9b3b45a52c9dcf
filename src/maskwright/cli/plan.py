"""The command that estimates a run, here and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from maskwright.cli.manual import command
from maskwright.cli.options import AsJson, Set, app, print_result

if TYPE_CHECKING:
    from maskwright.machine.devices import DeviceCount
    from maskwright.tasks.finetune.prepare import FinetuneRun
    from maskwright.tasks.planning.cost import Work
    from maskwright.tasks.planning.show import Estimate
    from maskwright.tasks.pretrain.prepare import PretrainRun


PROBE_SECONDS = 15.0
"""Duration of the steps that are measured here."""


@command(app, "plan")
def plan(
    config: str,
    on: list[str] | None = None,
    tokens: int | None = None,
    vocab_size: int | None = None,
    examples: int | None = None,
    region: str = "us-central1",
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Estimate a run's memory, speed, hours, energy and cost, measured here or projected for other machines.

    CONFIG: YAML of `pretrain` or `finetune`, or the name of a recipe.
    --on PLACE: Where to run: here (the default; measures a few real steps), cpu:8 (cores), laptop, t4, a100:8, h100,
        h200:8, v6e:4x4 or v6e-16 (compiled if libtpu is installed), or an environment's YAML. Repeatable.
    --tokens 1≤N: Number of tokens in your text, if you have no token store yet: about 1 million for 4.3 MB of English.
        Needs schedule.epochs, such as --set schedule.epochs=4, and projects instead of measuring.
    --vocab-size 1≤N: Size of the vocabulary, if you have no token store yet. Default with --tokens: 50,265.
    --examples 1≤N: Number of labelled examples, if you do not have them yet. Each counts as a full row.
    --region REGION: Google Cloud region for prices.
    """
    from maskwright.cloud.prices import require_region
    from maskwright.config.finetuning import FinetuneConfig
    from maskwright.config.pretraining import RunConfig
    from maskwright.config.retrieval import read_any_config
    from maskwright.core.errors import ConfigError
    from maskwright.tasks.finetune import prepare as finetune
    from maskwright.tasks.planning.measure import measure, this_machine
    from maskwright.tasks.planning.show import PlanReport, measured
    from maskwright.tasks.pretrain import prepare as pretrain

    resolved = read_any_config(config, set_)
    require_region(region)
    requested = [(name, _places(name, region)) for name in on or ["here"]]
    _require_effects(isinstance(resolved, RunConfig), tokens, vocab_size, examples)
    work: Work
    ready: PretrainRun | FinetuneRun | None
    if isinstance(resolved, RunConfig):
        work, ready = pretrain.planned(resolved, tokens, vocab_size)
    elif isinstance(resolved, FinetuneConfig):
        work, ready = finetune.planned(resolved, examples)
    else:
        what = "is a retrieval task, which sentence-transformers trains for an unknown time"
        raise ConfigError(what, where=config, fix="plan a task with labels, or pretraining")
    estimates: list[Estimate] = []
    for name, places in requested:
        if name == "here" and ready:
            estimates.append(measured(work, measure(ready, ready.judged_by, PROBE_SECONDS)))
        elif name == "here":
            if (machine := this_machine(work.config, None)) is None:
                fix = "name another device with --on"
                raise ConfigError("no run was measured on this machine's device", where="--on here", fix=fix)
            places = [(machine, None, 1, region)]
        estimates += [_elsewhere(work, *priced_place) for priced_place in places]
    result = PlanReport(work, estimates)
    print_result(result.report(), result.to_json(), as_json)
    if result.refused:
        raise typer.Exit(1)


def _require_effects(pretrains: bool, tokens: int | None, vocab_size: int | None, examples: int | None) -> None:
    """Raises `InputError` for an option that this plan does not use."""
    from maskwright.core.errors import InputError

    given = {"--examples": examples} if pretrains else {"--tokens": tokens, "--vocab-size": vocab_size}
    if option := next((option for option, value in given.items() if value is not None), None):
        kind = "pretraining" if pretrains else "a fine-tuning"
        raise InputError(f"has no effect for {kind}", where=option, fix="leave it out")


def _places(name: str, region: str) -> list[tuple[DeviceCount, str | None, int, str]]:
    """(place, priced machine, number of them, region) of each part of an environment, or of a device."""
    from maskwright.cloud.machines import ATTACHED
    from maskwright.cloud.prices import gpu_machine
    from maskwright.machine.devices import place

    if name == "here":
        return []
    if name.endswith((".yaml", ".yml")):
        return list(_of_environment(name))
    device_count = place(name)
    if device_count.is_slice:
        return [(device_count, device_count.device.name, device_count.count, region)]
    google = next(iter(_names(device_count.device.name)), None)
    if google in ATTACHED:
        return [(device_count, google if device_count.count in ATTACHED[google] else None, device_count.count, region)]
    return [(device_count, gpu_machine(google, device_count.count) if google else None, 1, region)]


def _of_environment(location: str) -> Iterator[tuple[DeviceCount, str | None, int, str]]:
    """Like `_places`, of the slice and the group of an environment's YAML. A group without GPUs has no plan."""
    from maskwright.cloud.environment import read_environment, region_of
    from maskwright.cloud.machines import GPUS
    from maskwright.machine import tpus
    from maskwright.machine.devices import ACCELERATORS, DEVICES, DeviceCount

    environment = read_environment(location)
    if (slice_ := environment.slice) is not None:
        count, region = tpus.chips(slice_.topology), region_of(slice_.zone or environment.zone)
        device = DeviceCount(f"{location} slice", DEVICES[slice_.accelerator], count, slice_.topology)
        yield device, slice_.accelerator, count, region
    if (group := environment.group) is not None and group.machine_type in GPUS:
        gpu, gpus = GPUS[group.machine_type]
        device = DeviceCount(f"{location} group", DEVICES[ACCELERATORS[gpu]], gpus * group.size, None)
        yield device, group.machine_type, group.size, region_of(group.zone or environment.zone)


def _names(device: str) -> list[str]:
    """Google's names for a GPU."""
    from maskwright.machine.devices import ACCELERATORS

    return [kind for kind, ours in ACCELERATORS.items() if ours == device]


def _elsewhere(work: Work, place: DeviceCount, machine: str | None, count: int, region: str) -> Estimate:
    from maskwright.cloud.prices import counts_sold, hourly_offers
    from maskwright.config.pretraining import RunConfig
    from maskwright.core.extras import installed, missing
    from maskwright.machine.hardware import other_load
    from maskwright.tasks.planning import slices
    from maskwright.tasks.planning.show import Quote, projected

    quotes = [Quote(*price) for price in hourly_offers(machine, region, count)] if machine else []
    unpriced = None
    if not quotes and place.device.family != "cpu":
        what = machine or f"a machine with {place.count} x {place.device.name}"
        unpriced = f"no price for {what} in {region}, not counted"
        if machine is None and (counts := sorted({n for kind in _names(place.device.name) for n in counts_sold(kind)})):
            unpriced += f"; Google has machines with {' or '.join(map(str, counts))}"
    compiled, config = None, work.config
    notes = [other_load() if place.on == "here" else ""]
    if place.is_slice and not isinstance(config, RunConfig):
        notes.append("a fine-tuning is not compiled, so whether it fits is projected")
    elif place.is_slice and not installed("libtpu"):
        notes.append(f"not compiled, so whether it fits is projected: {missing('libtpu')}")
    elif isinstance(config, RunConfig) and place.is_slice:
        compiled = slices.plan(config, work.model, f"{place.device.name}:{place.topology}")
    return projected(work, place, quotes, unpriced, compiled, notes)
