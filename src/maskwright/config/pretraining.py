"""Every key of a run's configuration, on one page.

One YAML file describes one run. Keys are strict: the error for an unknown key names its nearest neighbour, and the
error for a wrong type names the dotted path. Units are in the names. Numbers that follow from others are functions,
never keys. A key marked `resumable` may change between two starts of the same run; any other change is refused on
resume, except that a run may get more steps (see `changes.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from maskwright.config.data import Data, Source
from maskwright.config.foreign_names import FOREIGN, VALUES
from maskwright.config.masking import Masking, Share
from maskwright.config.phases import Phase
from maskwright.config.recipes import Kind, find_config, require_kind
from maskwright.config.schedule import EXCLUSIVE, Schedule, rate_at, require_peak, warmup_of
from maskwright.config.settings import (
    Count,
    Guide,
    Refused,
    Resumable,
    Section,
    digest,
    keys_of,
    parse_yaml,
    put,
    read_yaml,
    require_no_secret,
    resumable_keys,
)
from maskwright.core.console import several
from maskwright.core.errors import ConfigError
from maskwright.core.extras import require

Width = Annotated[int, Field(ge=1, le=65_536)]


Architecture = Literal["roberta", "xlm-roberta", "camembert", "bert", "distilbert", "modernbert", "esm"]
"""`model_type` of Hugging Face's `config.json`."""


class Shape(Section):
    architecture: Architecture = "roberta"
    """modernbert: rotary positions, LayerNorm before each sub-layer, a gated inner layer and no biases. esm: ESM-2 for
    proteins, with rotary positions, LayerNorm before each sub-layer and zero embeddings for masks. The others: learned
    positions and LayerNorm after each sub-layer; only their names and counts in transformers differ. Each exports to
    its class in transformers."""
    size: Literal["nano", "mini", "small", "base", "large"] = "base"
    """nano 2x128 · mini 4x256 · small 6x512 · base 12x768 · large 24x1024 (layers x width)."""
    hidden_size: Width | None = None
    """Width. It and the next three keys override `size`."""
    num_hidden_layers: Annotated[int, Field(ge=1, le=1_000)] | None = None
    """Number of layers."""
    num_attention_heads: Width | None = None
    """Number of attention heads; must divide the width."""
    intermediate_size: Annotated[int, Field(ge=1, le=262_144)] | None = None
    """Inner width of a layer. Default: 4 times the width; 8/3 of it in modernbert, whose inner layer has two halves."""
    max_seq_len: Annotated[int, Field(ge=8, le=65_536)] | None = None
    """Longest sequence that the model will ever be able to read. Default: data.seq_len."""
    global_attn_every_n_layers: Count = 1
    """Only for modernbert: every n-th layer attends to the whole sequence, the others to nearby tokens. 3 in the
    published ModernBERTs."""
    local_attention: Annotated[int, Field(ge=2, le=65_536)] = 128
    """Only for modernbert: attention window of the other layers, in tokens."""

    @model_validator(mode="after")
    def _only_modernbert_has_local_layers(self) -> Self:
        if self.global_attn_every_n_layers > 1 and self.architecture != "modernbert":
            fix = "set architecture: modernbert, or leave global_attn_every_n_layers out"
            raise Refused(f"{self.architecture} has no local attention", fix=fix)
        return self


class ModelSection(Shape):
    init_from: str | None = None
    """Model to continue from: a Hugging Face folder, hf://OWNER/NAME@REVISION, or a run directory (its newest
    checkpoint). Its shape replaces the keys above."""
    new_head: bool = False
    """Only with init_from: start the masked-LM head from random weights, for a folder with another head or none."""
    hidden_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout after the embeddings and each sub-layer; in modernbert, after the embeddings and inside the inner layer.
    0.1 in RoBERTa."""
    attention_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout of the attention probabilities; in modernbert, also of the attention output. 0.1 in RoBERTa."""


class Optimizer(Section):
    kind: Literal["adamw", "muon"] = "adamw"
    """adamw: AdamW for all weights. muon: Muon for the hidden matrices and AdamW for the rest."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-4
    """Learning rate at the schedule's peak."""
    beta1: Share = 0.9
    """Decay of the first moment."""
    beta2: Share = 0.98
    """Decay of the second moment."""
    momentum: Share = 0.95
    """Only for muon: decay of the momentum."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-6
    """Added to the square root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Weight decay of matrices, but not of biases and LayerNorms. Muon needs more than AdamW, such as 0.3; otherwise
    the weights grow large and the model fine-tunes badly."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] | None = 1.0
    """Scale gradients with a larger norm down to this norm. null turns clipping off, as in RoBERTa."""
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Only for adamw: factor of the learning rate from each layer to the one below, and to the embeddings. 0.65 to 0.9
    are usual for large encoders; 1 gives all layers the same rate."""

    def require_layers(self) -> None:
        """Raises `Refused` if layers cannot have rates of their own."""
        if self.layer_decay < 1.0 and self.kind == "muon":
            fix = "leave it out, or change the other key"
            raise Refused("optimizer.layer_decay needs optimizer.kind: adamw", fix=fix)


class BatchSection(Section):
    micro_batch_rows: Count = 8
    """Rows in one micro-batch, that is, in one forward and backward pass."""
    virtual_workers: Count = 1
    """Micro-batches in one update, on any number of devices: data-parallel degree x gradient accumulation steps. The
    global batch has virtual_workers x micro_batch_rows rows."""


class EngineSection(Section):
    kind: Annotated[Literal["torch", "jax"], Resumable] = "torch"
    """Framework: torch for CPUs and CUDA, jax for TPUs (and CPUs, for tests). You may change it when you continue a
    run; the numbers then continue within rounding."""
    device: Annotated[Literal["auto", "cpu", "cuda", "tpu"], Resumable] = "auto"
    """Device to compute on. auto uses a TPU (jax) or a CUDA device (torch) if there is one, and prints its choice. A
    device that is absent is an error."""
    devices: Annotated[Annotated[int, Field(ge=1)] | None, Resumable] = None
    """Total number of devices across hosts; must divide batch.virtual_workers. torch: one process per device
    (`--processes`). jax: by default all devices, or one on a CPU (more are simulated, for tests)."""
    sharding: Annotated[Literal["data", "fsdp"], Resumable] = "data"
    """When devices shard gradients; fp32 weights and moments are always sharded. data: once per update. fsdp (only for
    jax): after each micro-batch, which needs less memory."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Precision of the multiplications; weights and optimizer state stay in fp32. auto: bf16 where the hardware is
    faster with it; with torch, fp16 on a GPU without bf16 (T4, V100); else fp32. fp16 scales the loss and is only for
    torch."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Only for torch: whether to compile the layers with torch.compile. auto compiles on a CUDA device, if the run is
    long enough to win back the compile time."""
    activation_checkpointing: Annotated[Literal["auto", "on", "off"], Resumable] = "auto"
    """Only for torch: recompute a layer's activations in the backward pass instead of keeping them. This takes about a
    third longer and gives the same numbers. auto does so when not even one row fits into memory. jax always recomputes
    some of them and accepts only auto."""
    reproducibility: Annotated[Literal["exact", "fast"], Resumable] = "exact"
    """Only for torch. exact: a GPU uses kernels that add in a fixed order, and a CPU keeps its number of threads, so
    that weights are the same bit by bit at any world size that divides batch.virtual_workers. fast: requires neither.
    In both cases, ranks sum their gradients in one order."""
    threads: Annotated[Annotated[int, Field(ge=0, le=1024)], Resumable] = 0
    """CPU threads; 0 means one for each physical core that this process may use. Another number changes the lowest bits
    of the results."""

    @model_validator(mode="before")
    @classmethod
    def _jax_is_fast(cls, values: Any) -> Any:
        is_jax = isinstance(values, dict) and values.get("kind") == "jax"
        return {"reproducibility": "fast", **values} if is_jax else values

    @model_validator(mode="after")
    def _engine_has_it(self) -> Self:
        if self.kind == "jax" and self.dtype == "fp16":
            raise Refused("jax has no loss scaling, which fp16 needs", fix="set bf16 or fp32, or engine.kind: torch")
        if self.kind == "torch" and self.sharding == "fsdp":
            what = (
                "torch's processes share out the fp32 weights and the moments by themselves; sharding fsdp is for jax"
            )
            raise Refused(what, fix="leave engine.sharding out, or set engine.kind: jax")
        if self.kind == "jax" and self.activation_checkpointing != "auto":
            what = "jax always recomputes part of a layer's activations; activation_checkpointing is only for torch"
            raise Refused(what, fix="leave engine.activation_checkpointing out, or set engine.kind: torch")
        return self


class CheckpointSection(Section):
    save_every_steps: Annotated[Count | None, Resumable] = None
    """Steps between saves. The run also saves at its end and when you stop it."""
    save_every_seconds: Annotated[Annotated[float, Field(gt=0.0)] | None, Resumable] = 600.0
    """Seconds between saves, the most work that a kill can lose."""
    keep: Annotated[Count, Resumable] = 2
    """Number of newest checkpoints to keep."""
    keep_every_steps: Annotated[Count | None, Resumable] = None
    """Keep checkpoints at multiples of this step forever. Must be a multiple of save_every_steps."""
    copy_to: Annotated[str | None, Resumable] = None
    """URL of a folder in a bucket (gs://, s3://), for this run only. Each checkpoint is copied there, and a new machine
    with an empty run directory continues from the copy."""
    grace_seconds: Annotated[Annotated[float, Field(gt=0.0, le=86_400.0)], Resumable] = 25.0
    """Time from SIGTERM, SIGINT or SIGHUP to the end of the process. A step that takes longer is abandoned."""


class EvaluationSection(Section):
    every_steps: Annotated[Count | None, Resumable] = None
    """Steps between evaluations on held-out rows with fixed 15 % masks. The run also evaluates at its start and end."""
    max_rows: Annotated[Count, Resumable] = 512
    """Number of held-out rows to use from each held-out set, a fixed sample."""
    patience: Annotated[Count | None, Resumable] = None
    """Stop after this many evaluations without a lower held-out loss (early stopping). Off by default. If it is set,
    the checkpoint with the lowest loss is kept, evaluated and exported."""


Reported = Literal["tensorboard", "wandb", "mlflow"]


class Logging(Section):
    every_steps: Annotated[Count, Resumable] = 10
    """Steps between lines in metrics.jsonl."""
    report_to: Annotated[list[Reported], Resumable] = ["tensorboard"]  # noqa: RUF012 - pydantic copies it
    """Where else to send the lines of metrics.jsonl, as in [tensorboard, wandb]; [] for nowhere. tensorboard writes
    events/ in the run directory. Each of the other services runs in a separate process and needs the extra of its
    name."""

    def require_packages(self) -> None:
        """Raises `ConfigError`, which names the extra, unless each service's package is installed."""
        for name in (service for service in self.report_to if service != "tensorboard"):  # whose files need no package
            require(name, "logging.report_to")


class RunConfig(Section):
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Random seed for initial weights, data order, masking and dropout."""
    data: Data
    masking: Masking = Masking()
    model: ModelSection = ModelSection()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule
    phases: Annotated[list[Phase], Field(default_factory=list)]
    """Parts of the run that differ from the rest of the file, in order, as in [{until_share: 0.8, seq_len: 128}]. After
    the last phase, the rest of the file applies. The table below lists the keys of a phase."""
    batch: BatchSection = BatchSection()
    engine: EngineSection = EngineSection()
    checkpoint: CheckpointSection = CheckpointSection()
    evaluation: EvaluationSection = EvaluationSection()
    logging: Logging = Logging()

    @property
    def locations(self) -> dict[str, str | None]:
        """Locations that a run reads, by key."""
        held_out = {f"data.validation.{name}".rstrip("."): store for name, store in self.data.held_out.items()}
        mixed: dict[str, str | None] = {}
        for name, source in (self.data.mixture or {}).items():
            mixed[f"data.mixture.{name}.store"] = source.store
            mixed[f"data.mixture.{name}.arrow.tokenizer"] = source.arrow.tokenizer
        single = {"data.store": self.data.store, "data.arrow.tokenizer": self.data.arrow.tokenizer}
        return {**single, **mixed, **held_out, "model.init_from": self.model.init_from}

    @model_validator(mode="after")
    def _sections_fit(self) -> RunConfig:
        longest = self.model.max_seq_len
        if self.model.init_from is None and longest is not None and longest < self.data.seq_len:
            raise Refused(
                f"model.max_seq_len {longest} is below data.seq_len {self.data.seq_len}",
                fix="lower data.seq_len, or raise model.max_seq_len",
            )
        rows_change = any(phase.seq_len or phase.rows_per_step or phase.mixture_weights for phase in self.phases)
        if self.schedule.epochs and rows_change:
            what = "schedule.epochs needs rows of one length and one mixture, and as many of them in each step"
            raise Refused(what, fix="give schedule.steps instead, in a new run")
        configs(self)
        self.optimizer.require_layers()
        if self.evaluation.patience is not None and self.evaluation.every_steps is None:
            raise Refused("evaluation.patience needs evaluation.every_steps", fix="set both, or leave patience out")
        return self

    @property
    def steps(self) -> int:
        """Updates in the whole run, of a resolved configuration."""
        assert self.schedule.steps is not None, "epochs are resolved once the store is known"
        return self.schedule.steps

    def resolved(self, rows: float) -> RunConfig:
        """The configuration with the steps of schedule.epochs, each of `rows` training rows, and of the warm-up. Raises
        `ConfigError` if warm-up and decay are longer."""
        schedule = self.schedule
        if schedule.epochs is None:
            return self.with_steps(self.steps)
        steps = max(1, math.ceil(schedule.epochs * rows / self.rows_per_step))
        longer = self.with_steps(steps)
        try:
            require_peak(schedule, steps)
            stages(longer)
        except Refused as error:
            raise ConfigError(str(error), where="schedule.epochs", fix=error.fix) from None
        return longer

    def with_steps(self, steps: int) -> RunConfig:
        """The configuration of a run of `steps`, with its warm-up as a number of them. The decay stays a share, since
        more steps move it (see `config.changes`)."""
        warmup_steps = warmup_of(self.schedule, self.schedule.warmup_steps, steps)
        known = {"steps": steps, "epochs": None, "warmup_steps": warmup_steps, "warmup_share": None}
        return self.model_copy(update={"schedule": self.schedule.model_copy(update=known)})

    @property
    def rows_per_step(self) -> int:
        return self.batch.micro_batch_rows * self.batch.virtual_workers

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of update `step`, from 0. It is 0 only if asked for: warm-up starts at the peak / warmup_steps.

        linear   straight down from the peak to `final_lr_share`, reached just after the last step (RoBERTa)
        cosine   half a cosine between the same ends (Loshchilov and Hutter 2017)
        wsd      the peak until the decay (`decay_steps`, `decay_share` or a fifth of the run), then down as 1 - sqrt
                 (warmup-stable-decay; the shape is Hägele et al. 2024)
        constant, polynomial, inverse_sqrt: as in transformers (`constant_with_warmup` for the first)
        """
        return rate_at(self.schedule, self.steps, self.schedule.warmup_steps, self.optimizer.learning_rate, step)

    @property
    def longest_row(self) -> int:
        """Tokens in the longest rows of any phase."""
        return max([self.data.seq_len, *(phase.seq_len or 0 for phase in self.phases)])

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The phases of a resolved configuration, and what follows them; a run without phases is one stage."""
        return stages(self)

    def digest(self) -> str:
        """sha256 of every key that decides the numbers; resumable keys do not count."""
        return digest(self)


# ---- the parts of a run with phases --------------------------------------------------------------------------------


class Stage(NamedTuple):
    """A phase of a run whose number of steps is known; or the rest after the last phase, with the run as written."""

    begin: int
    """Its first update."""
    end: int
    """The update after its last."""
    config: RunConfig
    """The run as it is in this stage, without phases."""
    first_row: int = 0
    """Rows of all updates before it."""
    first_token: int = 0
    """Tokens of all updates before it: rows times their length."""
    rope_theta: float | None = None
    """The phase's base of rotary positions; None for the model's own."""

    def rows_before(self, step: int) -> int:
        """Rows of all updates before `step`, an update of this stage."""
        return self.first_row + (step - self.begin) * self.config.rows_per_step

    @property
    def rows(self) -> int:
        return (self.end - self.begin) * self.config.rows_per_step

    @property
    def tokens(self) -> int:
        """Positions, nearly none of which are padding."""
        return self.rows * self.config.data.seq_len


def stages(config: RunConfig) -> tuple[Stage, ...]:
    """All stages with at least one update, in their order. Raises `Refused` if a phase ends where it cannot."""
    result: list[Stage] = []
    begin = rows = tokens = 0
    for number, stage_config in enumerate(configs_in(config)):
        phase = config.phases[number] if number < len(config.phases) else None
        end = phase.end(config.steps) if phase else config.steps
        if phase and end <= begin:
            before = f", before the previous phase (step {begin:,})" if number else ""
            raise Refused(f"phases.{number} ends at step {end:,}{before}", fix="give phases increasing ends")
        if end > config.steps:
            what = f"phases.{number} ends at step {end:,}, but the run has {config.steps:,}"
            raise Refused(what, fix="end it earlier, or raise schedule.steps")
        if end > begin:
            result.append(Stage(begin, end, stage_config, rows, tokens, phase.rope_theta if phase else None))
            begin, rows, tokens = end, rows + result[-1].rows, tokens + result[-1].tokens
    return tuple(result)


def configs_in(config: RunConfig) -> list[RunConfig]:
    """The run's configuration in each phase, and after the last of them."""
    if not config.phases:
        return [config]
    plain = config.model_copy(update={"phases": []})
    return [*(applied(phase, plain, f"phases.{number}") for number, phase in enumerate(config.phases)), plain]


def configs(config: RunConfig) -> list[RunConfig]:
    """The run's configuration in each stage, whether its steps are known or not."""
    return configs_in(config) if config.schedule.steps is None else [stage.config for stage in stages(config)]


def masked_rates(config: RunConfig) -> list[float]:
    """`masking.rate` of each phase that masks any row."""
    return [stage.masking.rate for stage in configs(config) if stage.masking.causal_share < 1.0]


def reads_causally(config: RunConfig) -> bool:
    """Whether any row of any phase may be read causally."""
    return any([config.masking.causal_share, *(phase.causal_share for phase in config.phases)])


def applied(phase: Phase, config: RunConfig, name: str) -> RunConfig:
    """`config` with the phase's values. Raises `Refused` for impossible ones: see `Phase`."""
    model, workers = config.model, config.batch.virtual_workers
    longest, rows, rest = model.max_seq_len or config.data.seq_len, phase.rows_per_step, 0
    if model.init_from is None and (phase.seq_len or 0) > longest:
        what = f"{name}.seq_len {phase.seq_len} is above the {longest} tokens that the model reads"
        raise Refused(what, fix=f"lower it, or set model.max_seq_len: {phase.seq_len}")
    if phase.rope_theta and model.init_from is None and model.architecture not in ("modernbert", "esm"):
        what = f"{name}.rope_theta: {model.architecture} has no rotary positions"
        raise Refused(what, fix="leave it out, or set model.architecture: modernbert")
    if rows is not None:
        rows, rest = divmod(rows, workers)
    if rest:
        what = f"{name}.rows_per_step {phase.rows_per_step}: {workers} virtual workers do not divide it"
        near = max(1, round((phase.rows_per_step or 0) / workers)) * workers
        raise Refused(what, fix=f"set {near}, or another batch.virtual_workers")
    mixture = None
    if phase.mixture_weights is not None:
        mixture = _weighted(config.data.mixture or {}, phase.mixture_weights, f"{name}.mixture_weights")
    masking = {"rate": phase.masking_rate, "kind": phase.masking_kind, "causal_share": phase.causal_share}
    changed = {}
    for section, values in (
        ("data", {"seq_len": phase.seq_len, "mixture": mixture}),
        ("batch", {"micro_batch_rows": rows}),
        ("masking", masking),
    ):
        update = {key: value for key, value in values.items() if value is not None}
        changed[section] = getattr(config, section).model_copy(update=update)
    return config.model_copy(update=changed)


def _weighted(sources: Mapping[str, Source], weights: Mapping[str, float], name: str) -> dict[str, Source]:
    if unknown := [source for source in weights if source not in sources]:
        known = ", ".join(sources) or "no sources, because data.mixture is not set"
        raise Refused(f"{name} names {unknown[0]}, but there are {known}", fix="correct the name, or leave it out")
    weighted = {key: old.model_copy(update={"weight": weights.get(key, old.weight)}) for key, old in sources.items()}
    if without := [key for key, source in weighted.items() if source.weight is None]:
        raise Refused(f"{name} gives {without[0]} no weight, nor does data.mixture", fix="give each source one")
    if not any(source.weight for source in weighted.values()):
        raise Refused(f"{name} leaves all sources out", fix="give one of them a weight above 0")
    return weighted


def stage_at(all_stages: Sequence[Stage], step: int) -> Stage:
    """The stage of update `step`; the last one for steps beyond the run's end."""
    return next((stage for stage in all_stages if step < stage.end), all_stages[-1])


def tokens_before(config: RunConfig, step: int) -> int:
    """Positions in all rows of the updates before `step`."""
    stage = stage_at(stages(config), step)
    return stage.first_token + (stage.rows_before(step) - stage.first_row) * stage.config.data.seq_len


def shared_out(virtual_workers: int, parts: int, what: str, rows: int | None = None) -> int:
    """Number of virtual workers that each of `parts` processes, devices or chips (`what`) computes.

    Raises `ConfigError` if they cannot be shared out evenly; with the `rows` of each, it proposes both numbers."""
    each, rest = divmod(virtual_workers, parts)
    if rest:
        what = f"{several(virtual_workers, 'virtual worker')} cannot be shared out evenly over {parts} {what}"
        fix = f"{in_words(shareable(virtual_workers, parts, rows))}, or use fewer {what.rpartition(' ')[2]}"
        raise ConfigError(what, where="batch.virtual_workers", fix=fix)
    return each


def require_devices(engine: EngineSection, total: int) -> None:
    """Raises `ConfigError` if torch is asked for another number of devices than the `total` processes that compute."""
    if engine.kind == "torch" and engine.devices not in (None, total):
        what = f"asks for {engine.devices} devices, but {total} compute"
        raise ConfigError(what, where="engine.devices", fix="leave it out")


def require_supported(engine: EngineSection, device: str) -> None:
    """Raises `ConfigError` for an engine that does not compute on `device`: auto, cpu, cuda or tpu."""
    right = "jax" if device == "tpu" else "torch"
    if device not in ("auto", "cpu") and engine.kind != right:
        what = "jax is for TPUs, and for tests on a CPU" if engine.kind == "jax" else "torch does not compute on TPUs"
        raise ConfigError(what, where="engine.kind", fix=f"set engine.kind: {right}")


def shareable(virtual_workers: int, parts: int, rows: int | None) -> dict[str, int]:
    """The keys by which `parts` devices share the same batch: more virtual workers of fewer rows, or the next batch
    that they can share."""
    next_one = -(-virtual_workers // parts) * parts
    if rows is None:
        return {"batch.virtual_workers": next_one}
    batch = virtual_workers * rows
    same = next((more for more in range(next_one, batch + 1, parts) if batch % more == 0), next_one)
    return {"batch.virtual_workers": same, "batch.micro_batch_rows": max(1, round(batch / same))}


def in_words(keys: Mapping[str, object]) -> str:
    """The keys as options that a user adds to a command."""
    return " ".join(f"--set {key}={value}" for key, value in keys.items())


def read_config(location: str, overrides: list[str] | None = None) -> RunConfig:
    """Reads a run's YAML, or the recipe of that name, and applies `--set a.b=value`. Raises `ConfigError` (exit 2)."""
    return build_config(*read_values(location, overrides, "start with `data:` and `schedule:`"))


def read_values(
    location: str, overrides: list[str] | None, begin: str, kind: Kind = "pretrain"
) -> tuple[dict[str, Any], str, dict[str, str]]:
    """(values of a YAML file or recipe, its location, keys that `overrides` set), each key with its source
    for errors. `begin`: the advice for an empty file."""
    location = find_config(location, kind)
    values = read_yaml(location, begin)
    require_kind(values, location, kind)
    keys = dict(_apply(values, override) for override in overrides or [])
    replace_exclusive(values, keys)
    require_no_secret(values, location, keys)
    return values, location, keys


def _apply(values: dict[str, Any], override: str) -> tuple[str, str]:
    dotted, separator, text = override.partition("=")
    if not separator or not dotted:
        raise ConfigError(f"'{override}' is not KEY=VALUE", where="--set", fix="write --set schedule.steps=100")
    dotted = dotted.strip()
    where = f"--set {dotted}"
    value = parse_yaml(text, where)
    if (cut := COMMENT.search(text)) and _is_comment(text, cut.start(), value):
        fix = f"put the value in quotes of its own: --set '{dotted}=\"{text}\"'"
        raise ConfigError(f"in YAML, {text[cut.start() :].strip()!r:.40} is a comment", where=where, fix=fix)
    put(values, dotted, value, where)
    return dotted, where


COMMENT = re.compile(r"\s#.*")


def _is_comment(text: str, start: int, value: Any) -> bool:
    try:
        return bool(parse_yaml(text[:start], "") == value)
    except ConfigError:  # it was cut within quotes
        return False


def replace_exclusive(values: dict[str, Any], overridden: Collection[str]) -> None:
    """Removes keys from `values` that one of the dotted keys `overridden` replaces: `--set schedule.epochs=2` replaces
    the steps of a file, and model.init_from a tokenizer and a size for random weights."""
    model = values.get("model")
    if isinstance(model, dict) and "tokenizer" in model and "model.init_from" in overridden:
        for key in {"tokenizer", *Shape.model_fields} - {key.removeprefix("model.") for key in overridden}:
            model.pop(key, None)
    schedule = values.get("schedule")
    if not isinstance(schedule, dict):
        return
    set_here = {key for key, value in schedule.items() if f"schedule.{key}" in overridden and value is not None}
    for key, other in (*EXCLUSIVE, *(pair[::-1] for pair in EXCLUSIVE)):
        if key in set_here and f"schedule.{other}" not in overridden:
            schedule.pop(other, None)


GUIDE = Guide(RunConfig, "the run", "see the keys in `maskwright schema`", FOREIGN, VALUES)


def build_config(values: dict[str, Any], where: str, overrides: Mapping[str, str] = {}) -> RunConfig:
    """Validates `values`. `overrides`: dotted keys that are not from the file, each with its source for errors."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise GUIDE.explain(error, where, overrides) from None


KEYS = keys_of(RunConfig)
OF_ONE_RUN: dict[str, Any] = {"checkpoint.copy_to": None, "logging.report_to": []}
"""Keys that name a place for one run alone, and their values in a run that repeats another, or is one of many."""
ALL_KEYS: list[str] = list(KEYS)

RESUMABLE_KEYS: frozenset[str] = resumable_keys(RunConfig)
