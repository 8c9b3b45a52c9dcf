"""Times, memory, energy and money of a run in a place, measured or projected, and how `maskwright plan` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

from maskwright.config.finetuning import FinetuneConfig
from maskwright.config.pretraining import RunConfig, require_supported, shared_out
from maskwright.core.console import human_bytes, human_count, plain_number, several
from maskwright.core.errors import ConfigError
from maskwright.machine.devices import DeviceCount, here
from maskwright.machine.hardware import usable_memory_bytes
from maskwright.tasks.planning.cost import Interval, Work, basis, memory, precision_note, seconds_of, step_seconds
from maskwright.tasks.planning.measure import Measured
from maskwright.tasks.planning.slices import SliceFit
from maskwright.tasks.start.capacity import checkpoint_bytes

MEMORY_BAND = (0.75, 1.25)
"""Factors of projected memory: the peaks in records/experiments.md lie inside."""
USABLE = 0.92
"""The usable share of a device's memory. The driver and the allocator use the rest."""
COPY_BYTES_PER_SECOND = 10e9
"""Speed from a device to its host, for which training waits at a save: half of what PCIe 4 carries. A guess, not
measured."""
BUSY_BELOW = 0.85
"""Other processes computed too if measured steps had less than this share of their cores."""
JOULES_A_KWH = 3.6e6


@dataclass(frozen=True)
class Quote:
    """The price of a place for an hour, under one provisioning model."""

    model: str
    region: str
    machine: str
    usd_per_hour: float
    as_of: str


@dataclass(frozen=True)
class Estimate:
    on: str
    kind: Literal["measured", "projected"]
    """measured: of real steps of this configuration, here and now. projected: by the model. The basis of speed and
    hours. Memory by part is always projected, and each other number names its own basis."""
    basis: str
    tokens_per_second: Interval
    seconds: Interval
    """Duration of the whole run."""
    memory: dict[str, float]
    """Bytes of a device, by part."""
    memory_there: float | None
    saves: int
    save_bytes: int
    stall_seconds: float
    """How long training waits at a save."""
    watts: float | None = None
    """Power of all devices at their limit."""
    peak_bytes: int | None = None
    """The most memory that the measured steps held."""
    quotes: Sequence[Quote] = ()
    unpriced: str | None = None
    compiled: SliceFit | None = None
    refusals: Sequence[str] = ()
    """Why the place would refuse the run as it is configured, and what to set."""
    notes: Sequence[str] = ()

    @property
    def needed(self) -> float:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool | None:
        """Whether the run fits at both ends of the band; None where the ends disagree, or the memory is unknown. A
        compiler's answer is in `compiled`."""
        if self.memory_there is None:
            return None
        low, high = (self.needed * factor for factor in MEMORY_BAND)
        room = USABLE * self.memory_there
        return True if high <= room else False if low > room else None

    @property
    def refused(self) -> bool:
        """Whether the run does not fit, or needs other settings. A compiler's answer counts before the band."""
        return bool(self.refusals) or (not self.compiled.fits if self.compiled else self.fits is False)

    @property
    def kwh(self) -> Interval | None:
        return self.seconds.times(self.watts / JOULES_A_KWH) if self.watts else None

    def to_json(self) -> dict[str, Any]:
        hours = self.seconds.times(1 / 3600)
        return {
            "on": self.on,
            "kind": self.kind,
            "basis": self.basis,
            "tokens_per_second": asdict(self.tokens_per_second),
            "hours": asdict(hours),
            "memory": {
                "kind": "projected",
                "bytes": {name: round(size) for name, size in self.memory.items()},
                "needed_bytes": round(self.needed),
                "there_bytes": self.memory_there,
                "fits": self.fits,
            },
            "peak_bytes": self.peak_bytes,
            "checkpoint": {"bytes": self.save_bytes, "stall_seconds": self.stall_seconds, "saves": self.saves},
            "energy_kwh": {"kind": self.kind, **asdict(self.kwh)} if self.kwh else None,
            "costs": [asdict(quote) | {"usd": asdict(hours.times(quote.usd_per_hour))} for quote in self.quotes],
            "unpriced": self.unpriced,
            "compiled": asdict(self.compiled) if self.compiled else None,
            "notes": [*self.refusals, *self.notes],
        }

    def lines(self) -> list[str]:
        speed = self.tokens_per_second.text(human_count, "tokens/s")
        lines = [
            f"{self.on}: {self.kind}, {self.basis}",
            f"  speed       {speed}",
            f"  time        {self.seconds.time()}",
        ]
        parts = ", ".join(f"{name} {human_bytes(size)}" for name, size in self.memory.items())
        of_memory = f" of {human_bytes(self.memory_there)} a device" if self.memory_there else ""
        word = {True: ": fits", False: ": does not fit", None: ": close" if self.memory_there else ""}[self.fits]
        lines.append(f"  memory      {human_bytes(self.needed)}{of_memory}, projected within a quarter{word}; {parts}")
        if self.peak_bytes:
            lines.append(f"              the measured steps held {human_bytes(self.peak_bytes)} at their highest")
        wait = f"training waits {self.stall_seconds:.2f} s at each save, {self.saves:,} in all"
        lines.append(f"  checkpoint  {human_bytes(self.save_bytes)}, {self.kind}; {wait}")
        if self.kwh:
            factor, unit = (1, "kWh") if self.kwh.mid >= 0.1 else (1000, "Wh")
            energy = self.kwh.times(factor).text(lambda amount: plain_number(amount, 3), unit)
            lines.append(f"  energy      {energy}, at the devices' limit, hosts not counted")
        for quote in self.quotes:
            usd = self.seconds.times(quote.usd_per_hour / 3600).text(
                lambda usd: f"{usd:,.2f}" if usd >= 0.005 else "<0.01", "USD"
            )
            lines.append(
                f"  cost        {usd}, {quote.model}: {quote.machine} in {quote.region} at "
                f"{quote.usd_per_hour:,.2f} USD/hour as of {quote.as_of}"
            )
        if self.unpriced:
            lines.append(f"  cost        {self.unpriced}")
        if self.compiled:
            lines += [f"  compiled    {line}" for line in self.compiled.lines()]
        return lines + [f"  note        {note}" for note in [*self.refusals, *self.notes]]


def measured(work: Work, found: Measured) -> Estimate:
    """The estimate for this machine."""
    config, step = work.config, found.step_seconds
    training = step.times(work.steps)
    saves = work.saves(training.mid)
    rest = found.starting_seconds + work.evaluated * found.evaluated_seconds
    rest += saves * found.save_seconds + found.write_seconds  # the run waits for the last one
    counted = f"{found.steps} steps of this configuration"
    if found.micro_batches < config.batch.virtual_workers:
        counted += f", of {found.micro_batches} micro-batches at most, and {config.batch.virtual_workers} counted"
    busy = found.cpu_share is not None and found.cpu_share < BUSY_BELOW
    shared = f"other programs computed too: the steps had {found.cpu_share or 1:.0%} of the cores"
    machine = here("cpu" if found.on_cpu else "cuda", 1.0, low_precision=found.low_precision)
    assert machine
    return Estimate(
        "here",
        "measured",
        f"{counted}; {found.engine}",
        step.over(work.tokens),
        training.plus(rest),
        memory(work, machine),
        usable_memory_bytes() if found.on_cpu else found.there_bytes,
        saves,
        found.checkpoint_bytes,
        found.save_seconds,
        peak_bytes=found.peak_bytes,
        notes=[*filter(None, (precision_note(config.engine, machine.device), shared * busy))],
    )


def projected(
    work: Work,
    place: DeviceCount,
    quotes: Sequence[Quote] = (),
    unpriced: str | None = None,
    compiled: SliceFit | None = None,
    notes: Sequence[str] = (),
) -> Estimate:
    """The estimate for another place."""
    device, engine = place.device, work.config.engine
    step = step_seconds(work, place)
    seconds, (alone, _) = step.times(work.steps), seconds_of(work, place)
    saved = checkpoint_bytes(work.config, work.model)
    return Estimate(
        place.on,
        "projected",
        basis(work, place),
        step.times(alone / step.mid).over(work.tokens),
        seconds,
        memory(work, place),
        place.memory_bytes,
        work.saves(seconds.mid),
        saved,
        saved / COPY_BYTES_PER_SECOND,
        device.watts * place.count if device.watts else None,
        quotes=quotes,
        unpriced=unpriced,
        compiled=compiled,
        refusals=_refusals(work.config, place),
        notes=[*filter(None, (*notes, precision_note(engine, device)))],
    )


def _refusals(config: RunConfig | FinetuneConfig, place: DeviceCount) -> list[str]:
    found, engine, family = list[str](), config.engine, place.device.family
    devices = (engine.kind == "jax" and engine.devices) or place.devices
    rows = config.batch.micro_batch_rows if isinstance(config, RunConfig) else None
    for check in (
        partial(shared_out, config.batch.virtual_workers, devices, "devices", rows),
        partial(require_supported, engine, "cuda" if family == "gpu" else family),
    ):
        try:
            check()
        except ConfigError as error:
            found.append(f"as configured it would be refused: {error.what}. Fix: {error.fix}")
    return found


@dataclass(frozen=True)
class PlanReport:
    work: Work
    estimates: list[Estimate]

    @property
    def refused(self) -> bool:
        """Whether the run does not fit one of the places, or needs other settings there."""
        return any(estimate.refused for estimate in self.estimates)

    def report(self) -> str:
        lines = [self._model(), self._run()]
        for estimate in self.estimates:
            lines += ["", *estimate.lines()]
        return "\n".join(lines)

    def _model(self) -> str:
        model = self.work.model
        return (
            f"model: {model.num_hidden_layers} layers x {model.hidden_size}, "
            f"{human_count(self.work.parameters)} parameters, vocabulary {model.vocab_size:,}"
        )

    def _run(self) -> str:
        work, config = self.work, self.work.config
        tokens = human_count(work.tokens * work.steps)
        petaflop = plain_number((work.flops + work.muon_flops) * work.steps / 1e15, 4)
        if isinstance(config, FinetuneConfig):
            rows, filled = f"of {config.batch.examples:,} examples", ", padding included"
        else:
            rows = f"of {config.rows_per_step:,} rows of {config.data.seq_len} tokens"
            rows = f"in {several(len(config.phases), 'phase')}" if config.phases else rows
            filled = f", {work.tokens * work.steps / sum(stage.tokens for stage in config.stages):.1%} full"
        filled = filled if work.counted else ", assumed to be full"
        return f"run: {several(work.steps, 'step')} {rows}{filled}: {tokens} tokens, {petaflop} PFLOP"

    def to_json(self) -> dict[str, Any]:
        work = self.work
        return {
            "work": {
                "steps": work.steps,
                "tokens_per_step": work.tokens,
                "flops_per_step": work.flops + work.muon_flops,
                "parameters": work.parameters,
                "counted": work.counted,
                "model": asdict(work.model),
            },
            "places": [estimate.to_json() for estimate in self.estimates],
        }
