"""The phases of a run: the keys of `phases:`, their ends, and the run's configuration in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from maskwright.config.data import Data, Source
from maskwright.config.masking import Masking, MaskingKind, Share
from maskwright.config.schedule import Schedule
from maskwright.config.settings import Count, Fraction, Refused, Section

RowLength = Annotated[int, Field(ge=8, le=8192)]
"""Below 8 tokens, a row would not hold one word of average length and its frame."""
ENDS = ("until_share", "until_step", "until_tokens")


class Phase(Section):
    """A part of the run. What it does not set is as in the rest of the file."""

    until_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Where the phase ends, as a share of the run's steps. Each phase has one of the three `until_` keys."""
    until_step: Count | None = None
    """Where it ends, as the number of updates by then."""
    until_tokens: Count | None = None
    """Where it ends, as the number of tokens by then: rows times their length. The step that reaches it is its last."""
    seq_len: RowLength | None = None
    """`data.seq_len` in this phase."""
    rows_per_step: Count | None = None
    """Rows in one update, instead of batch.micro_batch_rows x batch.virtual_workers. The virtual workers stay as they
    are, and must divide it."""
    masking_rate: Share | None = None
    """`masking.rate` in this phase."""
    masking_kind: MaskingKind | None = None
    """`masking.kind` in this phase."""
    causal_share: Fraction | None = None
    """`masking.causal_share` in this phase."""

    mixture_weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] | None = None
    """Weights of sources of `data.mixture` in this phase, as {en: 1, sw: 3}; the others keep theirs. 0 leaves a source
    out."""
    final_lr_share: Fraction | None = None
    """Learning rate just after the phase's last step, as a share of the peak. The phase begins at the rate at which the
    one before it ends, or at the peak. Phases without it follow `schedule`; so does the warm-up."""
    lr_shape: Literal["linear", "cosine", "sqrt"] | None = None
    """Only with final_lr_share: the way there, a straight line when not set. cosine: half a cosine. sqrt: as wsd's
    decay, or its reverse."""

    rope_theta: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] | None = None
    """Only for modernbert, esm, eurobert, ultrabert, nomic_bert and gte: base of the rotary positions of layers that
    attend to the whole sequence, as 160000 for rows longer than before. Checkpoints and exports have the base that they
    were trained with."""

    @model_serializer(mode="wrap")
    def _as_older_runs_have_it(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Serializes without a newer key if it is not set: records and digests of older runs stay what they were."""
        values: dict[str, Any] = handler(self)
        return {key: value for key, value in values.items() if key != "causal_share" or value is not None}

    @model_validator(mode="after")
    def _shape_has_an_end(self) -> Phase:
        if self.lr_shape is not None and self.final_lr_share is None:
            raise Refused(f"lr_shape {self.lr_shape} has no final_lr_share", fix="give both, or neither")
        return self

    @model_validator(mode="after")
    def _ends_once(self) -> Phase:
        given = [key for key in ENDS if getattr(self, key) is not None]
        if len(given) != 1:
            what = f"has {' and '.join(given)}" if given else "does not say where it ends"
            raise Refused(what, fix=f"give it one of {', '.join(ENDS)}")
        return self


class Phased(Protocol):
    """The parts of a `RunConfig` that phases need, without importing it: it imports phases."""

    @property
    def data(self) -> Data: ...
    @property
    def masking(self) -> Masking: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def phases(self) -> list[Phase]: ...
    @property
    def model(self) -> Any: ...
    @property
    def batch(self) -> Any: ...
    @property
    def optimizer(self) -> Any: ...
    @property
    def steps(self) -> int: ...
    @property
    def rows_per_step(self) -> int: ...
    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self: ...


R = TypeVar("R", bound=Phased)


class Stage(NamedTuple, Generic[R]):
    """A phase of a run whose number of steps is known; or the rest after the last phase, with the run as written."""

    begin: int
    """Its first update."""
    end: int
    """The update after its last."""
    config: R
    """The run as it is in this stage, without phases."""
    first_row: int = 0
    """Rows of all updates before it."""
    first_token: int = 0
    """Tokens of all updates before it: rows times their length."""
    rope_theta: float | None = None
    """The phase's base of rotary positions; None for the model's own."""

    def rows_before(self, step: int) -> int:
        """Rows of all updates before `step`, which is one of this stage's."""
        return self.first_row + (step - self.begin) * self.config.rows_per_step

    @property
    def rows(self) -> int:
        return (self.end - self.begin) * self.config.rows_per_step

    @property
    def tokens(self) -> int:
        """Positions, of which next to none are padding."""
        return self.rows * self.config.data.seq_len


def require_phases(config: Phased) -> None:
    """Raises `Refused` for phases that are not possible."""
    for number, phase in enumerate(config.phases):
        applied(phase, config, f"phases.{number}")
        if config.schedule.epochs and (phase.seq_len or phase.rows_per_step or phase.mixture_weights):
            what = "schedule.epochs needs rows of one length and one mixture, and as many of them in each step"
            raise Refused(what, fix="give schedule.steps instead, in a new run")
    if config.schedule.steps is not None:
        stages(config)


def stages(config: R) -> tuple[Stage[R], ...]:
    """All stages with at least one update, in their order. Raises `Refused` if a phase ends where it cannot."""
    result: list[Stage[R]] = []
    plain = config.model_copy(update={"phases": []}) if config.phases else config
    begin = rows = tokens = 0

    def add(end: int, stage_config: R, theta: float | None = None) -> None:
        nonlocal begin, rows, tokens
        result.append(Stage(begin, end, stage_config, rows, tokens, theta))
        begin, rows, tokens = end, rows + result[-1].rows, tokens + result[-1].tokens

    for number, phase in enumerate(config.phases):
        stage_config = applied(phase, plain, f"phases.{number}")
        end = _end(phase, config.steps, begin, tokens, stage_config)
        if end <= begin:
            what = f"phases.{number} ends at step {end:,}, and what comes before it at step {begin:,}: they overlap"
            raise Refused(what, fix="let each phase end after the one before it, by a step at least")
        if end > config.steps:
            what = f"phases.{number} ends at step {end:,}, and the run has {config.steps:,}"
            raise Refused(what, fix="let it end earlier, or raise schedule.steps")
        add(end, stage_config, phase.rope_theta)
    if begin < config.steps:
        add(config.steps, plain)
    return tuple(result)


def configs(config: R) -> list[R]:
    """The run's configuration in each stage, whether its steps are known or not."""
    if config.schedule.steps is not None:
        return [stage.config for stage in stages(config)]
    plain = config.model_copy(update={"phases": []})
    return [*(applied(phase, plain, f"phases.{number}") for number, phase in enumerate(config.phases)), plain]


def masked_rates(config: R) -> list[float]:
    """`masking.rate` of each phase that masks any row."""
    return [stage.masking.rate for stage in configs(config) if stage.masking.causal_share < 1.0]


def reads_causally(config: Phased) -> bool:
    """Whether any row of any phase may be read causally."""
    return any([config.masking.causal_share, *(phase.causal_share for phase in config.phases)])


def _end(phase: Phase, steps: int, begin: int, tokens: int, config: Phased) -> int:
    if phase.until_share is not None:
        return round(phase.until_share * steps)
    if phase.until_step is not None:
        return phase.until_step
    assert phase.until_tokens is not None, "a phase has one end"
    return begin + math.ceil((phase.until_tokens - tokens) / (config.rows_per_step * config.data.seq_len))


def applied(phase: Phase, config: R, name: str) -> R:
    """`config` with the phase's values. Raises `Refused` for impossible ones: see `Phase`."""
    changed: dict[str, Any] = {}
    data: dict[str, Any] = {}
    longest = config.model.max_seq_len or config.data.seq_len
    if phase.seq_len is not None:
        if config.model.init_from is None and phase.seq_len > longest:
            what = f"{name}.seq_len {phase.seq_len} is above the {longest} tokens that the model takes"
            raise Refused(what, fix=f"lower it, or set model.max_seq_len: {phase.seq_len}")
        data["seq_len"] = phase.seq_len
    if (
        phase.rope_theta is not None
        and config.model.init_from is None
        and config.model.architecture not in ("modernbert", "esm")
    ):
        what = f"{name}.rope_theta: {config.model.architecture} has no rotary positions"
        raise Refused(what, fix="leave it out, or take model.architecture: modernbert")
    if phase.mixture_weights is not None:
        data["mixture"] = _weighted(config.data.mixture or {}, phase.mixture_weights, f"{name}.mixture_weights")
    if phase.rows_per_step is not None:
        workers = config.batch.virtual_workers
        rows, rest = divmod(phase.rows_per_step, workers)
        if rest:
            what = f"{name}.rows_per_step {phase.rows_per_step}: {workers} virtual workers do not divide it"
            near = max(1, round(phase.rows_per_step / workers)) * workers
            raise Refused(what, fix=f"take {near}, or another batch.virtual_workers")
        changed["batch"] = config.batch.model_copy(update={"micro_batch_rows": rows})
    if data:
        changed["data"] = config.data.model_copy(update=data)
    masking = {"rate": phase.masking_rate, "kind": phase.masking_kind, "causal_share": phase.causal_share}
    if masking_changes := {key: value for key, value in masking.items() if value is not None}:
        changed["masking"] = config.masking.model_copy(update=masking_changes)
    return config.model_copy(update=changed)


def _weighted(sources: Mapping[str, Source], weights: Mapping[str, float], name: str) -> dict[str, Source]:
    if unknown := [source for source in weights if source not in sources]:
        known = ", ".join(sources) or "no sources, because data.mixture is not set"
        raise Refused(f"{name} names {unknown[0]}, and there are {known}", fix="correct the name, or leave it out")
    weighted = {key: old.model_copy(update={"weight": weights.get(key, old.weight)}) for key, old in sources.items()}
    if without := [key for key, source in weighted.items() if source.weight is None]:
        what = f"{name} gives {without[0]} no weight, and data.mixture does not either"
        raise Refused(what, fix="give each source one")
    if not any(source.weight for source in weighted.values()):
        raise Refused(f"{name} leaves all sources out", fix="give one of them a weight above 0")
    return weighted


def rate_in(config: Phased, step: int, followed: Callable[[int], float]) -> float:
    """Learning rate of update `step`, by the phases, or else by `schedule`, which is `followed(step)`."""
    if all(phase.final_lr_share is None for phase in config.phases):
        return followed(step)
    warmup, end_share = config.schedule.warmup_steps, None
    peak: float = config.optimizer.learning_rate
    for number, stage in enumerate(stages(config)):
        phase = config.phases[number] if number < len(config.phases) else None
        if phase is None or phase.final_lr_share is None:
            if step < stage.end:
                break
            end_share = None
            continue
        begin = max(stage.begin, warmup)
        if step < stage.end and step >= begin:
            start = end_share
            if start is None:
                start = 1.0 if begin > stage.begin or not number else followed(begin) / peak
            left = _left(phase.lr_shape, (step - begin) / (stage.end - begin))
            return peak * (phase.final_lr_share + (start - phase.final_lr_share) * left)
        end_share = phase.final_lr_share if stage.end > warmup else None
    return followed(step)


def _left(shape: str | None, progress: float) -> float:
    """The share of the way that is left: from 1 at progress 0 to 0 at progress 1."""
    if shape == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0 - (math.sqrt(progress) if shape == "sqrt" else progress)


def stage_at(all_stages: Sequence[Stage[R]], step: int) -> Stage[R]:
    """The stage of update `step`; the last one for steps beyond the run's end, which a rollback may read."""
    return next((stage for stage in all_stages if step < stage.end), all_stages[-1])


def tokens_before(config: Phased, step: int) -> int:
    """Positions in all rows of the updates before `step`."""
    stage = stage_at(stages(config), step)
    return stage.first_token + (stage.rows_before(step) - stage.first_row) * stage.config.data.seq_len


def end_by_step(phases: Sequence[Mapping[str, Any]], steps: int) -> bool:
    """Whether all these recorded phases end at steps that do not depend on the length of the run, before its `steps`:
    more steps then leave them as they are."""
    return all(phase["until_step"] is not None and phase["until_step"] < steps for phase in phases)
