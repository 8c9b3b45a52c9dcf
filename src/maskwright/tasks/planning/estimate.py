"""Times, memory, energy and money of a run in a place, measured or projected, and how they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from maskwright.config.pretraining import shared_out
from maskwright.core.console import human_bytes, human_count, plain_number, several
from maskwright.core.errors import ConfigError
from maskwright.model.config import ModelConfig
from maskwright.tasks.planning import projection
from maskwright.tasks.planning.devices import DeviceCount
from maskwright.tasks.planning.interval import Interval, Kind
from maskwright.tasks.planning.probe import Probe
from maskwright.tasks.planning.slices import SliceFit
from maskwright.tasks.planning.work import Work, memory

MEMORY_BAND = (0.75, 1.25)
"""Factors of projected memory: the peaks in docs/experiments-archive.md lie inside."""
USABLE = 0.92
"""The usable share of a device's memory: the rest is the driver's and the allocator's."""
COPY_BYTES_PER_SECOND = 10e9
"""Speed from a device to its host, for which training waits at a save: half of what PCIe 4 carries. A guess, not
measured."""
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
    kind: Kind
    """The kind of speed and hours. Memory by part is always projected, and each other number says what it is."""
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
    """The most memory that the probe held, measured."""
    cpu_seconds: float | None = None
    """CPU time of a step, all threads together, measured."""
    alone: Interval | None = None
    """Tokens a second if no other process computed here, projected from CPU time."""
    quotes: Sequence[Quote] = ()
    unpriced: str | None = None
    compiled: SliceFit | None = None
    refusals: Sequence[str] = ()
    """Why the place would refuse the run as it is configured, and what to set."""
    notes: list[str] = field(default_factory=list)

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
        """Whether the run does not fit, or has to be set otherwise. A compiler knows better than the band whether it
        fits."""
        if self.compiled:
            return bool(self.refusals) or not self.compiled.asked.fits or bool(self.compiled.advice)
        return bool(self.refusals) or self.fits is False

    @property
    def kwh(self) -> Interval | None:
        return self.seconds.times(self.watts / JOULES_A_KWH) if self.watts else None

    def to_json(self) -> dict[str, Any]:
        hours = self.seconds.times(1 / 3600)
        energy = {"kind": self.kind, **asdict(self.kwh)} if self.kwh else None
        costs = [asdict(quote) | {"usd": asdict(hours.times(quote.usd_per_hour))} for quote in self.quotes]
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
            "cpu_seconds_per_step": self.cpu_seconds,
            "alone_tokens_per_second": asdict(self.alone) if self.alone else None,
            "checkpoint": {"bytes": self.save_bytes, "stall_seconds": self.stall_seconds, "saves": self.saves},
            "energy_kwh": energy,
            "costs": costs,
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
        if self.alone:
            speed_alone = self.alone.text(human_count, "tokens/s")
            lines.append(f"              alone on this machine, projected from CPU time: {speed_alone}")
        parts = ", ".join(f"{name} {human_bytes(size)}" for name, size in self.memory.items())
        of_memory = f" of {human_bytes(self.memory_there)} a device" if self.memory_there else ""
        word = {True: ": fits", False: ": does not fit", None: ": close" if self.memory_there else ""}[self.fits]
        lines.append(f"  memory      {human_bytes(self.needed)}{of_memory}, projected within a quarter{word}; {parts}")
        if self.peak_bytes:
            lines.append(f"              the probe held {human_bytes(self.peak_bytes)} at its highest, measured")
        wait = f"training waits {self.stall_seconds:.2f} s at each save, {self.saves:,} in all"
        lines.append(f"  checkpoint  {human_bytes(self.save_bytes)}, {self.kind}; {wait}")
        if self.kwh:
            factor, unit = (1, "kWh") if self.kwh.mid >= 0.1 else (1000, "Wh")
            energy = self.kwh.times(factor).text(lambda amount: plain_number(amount, 3), unit)
            lines.append(f"  energy      {energy}, at the devices' limit, hosts not counted")
        for quote in self.quotes:
            usd = self.seconds.times(quote.usd_per_hour / 3600).text(lambda usd: f"{usd:,.2f}", "USD")
            lines.append(
                f"  cost        {usd}, {quote.model}: {quote.machine} in {quote.region} at "
                f"{quote.usd_per_hour:,.2f} USD/hour as of {quote.as_of}"
            )
        if self.unpriced:
            lines.append(f"  cost        {self.unpriced}")
        if self.compiled:
            lines += [f"  compiled    {line}" for line in self.compiled.report().splitlines()]
        return lines + [f"  note        {note}" for note in [*self.refusals, *self.notes]]


def here(work: Work, probe: Probe, available: int) -> Estimate:
    """The estimate for this machine, measured. `available`: bytes of its memory, or of its container's limit."""
    step, cpu = probe.step_seconds, probe.cpu_share is not None
    rate = Interval(work.tokens / step.high, work.tokens / step.mid, work.tokens / max(step.low, 1e-9))
    training = step.times(work.steps)
    saves = work.saves(training.mid)
    rest = probe.starting_seconds + work.evaluations * probe.evaluation_seconds
    rest += saves * probe.save_seconds + probe.write_seconds  # the last one is waited for
    counted = f"{probe.steps} steps of this configuration"
    if probe.micro_batches < work.config.batch.virtual_workers:
        counted += f", of {probe.micro_batches} micro-batches at most, and {work.config.batch.virtual_workers} counted"
    low = probe.dtype != "float32"
    parts = memory(work, 1, low_precision=low, plain_attention=low and cpu, processes=cpu)
    notes, alone = [], None
    if probe.busy and probe.cpu_share:
        alone = rate.times(min(1.0 / probe.cpu_share, 10.0))
        notes.append(f"others computed here too: the probe had {probe.cpu_share:.0%} of its cores")
    return Estimate(
        "here",
        "measured",
        f"{counted}; {probe.engine}",
        rate,
        training.plus(Interval(rest, rest, rest)),
        parts,
        available if cpu else probe.there_bytes,
        saves,
        probe.checkpoint_bytes,
        probe.save_seconds,
        peak_bytes=probe.peak_bytes,
        cpu_seconds=probe.cpu_seconds,
        alone=alone,
        notes=notes,
    )


def elsewhere(
    work: Work,
    place: DeviceCount,
    quotes: Sequence[Quote],
    unpriced: str | None,
    compiled: SliceFit | None,
) -> Estimate:
    """The estimate for another place, projected."""
    rate, basis = projection.rate(work, place)
    training = rate.over(work.tokens * work.steps)
    seconds = training.plus(projection.evaluation_seconds(work, rate))
    device, cpu = place.device, place.device.family == "cpu"
    parts = memory(
        work,
        1 if cpu else place.devices,
        low_precision=device.low_precision,
        plain_attention=cpu and device.low_precision,
        processes=cpu,
    )
    refusals, notes = [], []
    batch, engine = work.config.batch, work.config.engine
    devices = (engine.kind == "jax" and engine.devices) or place.devices
    if not cpu and devices > 1:
        try:
            shared_out(batch.virtual_workers, devices, "devices", batch.micro_batch_rows)
        except ConfigError as error:
            refusals.append(f"as configured it would be refused: {error.what}. {error.fix}")
    if device.family == "tpu" and work.config.engine.kind != "jax":
        refusals.append("TPUs need --set engine.kind=jax")
    if not cpu and device.name in ("t4", "v100"):
        notes.append("it has no bf16: fp16 with loss scaling, and no FlashAttention over packed segments")
    return Estimate(
        place.on,
        "projected",
        basis,
        rate,
        seconds,
        parts,
        place.memory_bytes,
        work.saves(seconds.mid),
        work.checkpoint_bytes,
        work.checkpoint_bytes / COPY_BYTES_PER_SECOND,
        device.watts * place.count if device.watts else None,
        quotes=quotes,
        unpriced=unpriced,
        compiled=compiled,
        refusals=refusals,
        notes=notes,
    )


def head(work: Work) -> list[str]:
    """The lines above all estimates: the model and the run."""
    model: ModelConfig = work.model
    config, phases = work.config, work.config.phases
    full = sum(stage.tokens for stage in config.stages)
    filled = f", {work.tokens * work.steps / full:.1%} full" if work.text_tokens is not None else ", taken as full"
    rows = f"of {config.rows_per_step:,} rows of {config.data.seq_len} tokens"
    rows = f"in {several(len(phases), 'phase')}" if phases else rows
    tokens, petaflop = human_count(work.tokens * work.steps), plain_number(work.flops * work.steps / 1e15, 4)
    return [
        f"model: {model.num_hidden_layers} layers x {model.hidden_size}, {human_count(work.parameters)} parameters",
        f"run: {work.steps:,} steps {rows}{filled}: {tokens} tokens, {petaflop} PFLOP",
    ]
