"""Every key of the YAML of a retrieval task: an encoder that learns to find the passages that answer a question."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from maskwright.config.finetuning import FinetuneConfig, build_finetune_config, is_retrieval
from maskwright.config.masking import Share
from maskwright.config.pretraining import RunConfig, read_config, read_values
from maskwright.config.recipes import Kind, find_config, is_finetuning, names
from maskwright.config.schedule import Length
from maskwright.config.settings import Fraction, Guide, Section, keys_of, put, read_yaml
from maskwright.core.storage import is_url

RetrievalMetric = Literal["ndcg@10", "recall@100", "mrr@10"]


class RetrievalTaskSection(Section):
    kind: Literal["retrieval"]
    """Makes this YAML of `maskwright finetune` a retrieval task."""


class RetrievalData(Section):
    corpus: str
    """Passages: file or glob of JSON lines with `_id`, `text` and, optionally, `title`. All five files are in BEIR's
    layout, and may be compressed (.gz, .zst, .xz, .bz2)."""
    queries: str
    """Questions of all splits: file or glob of JSON lines with `_id` and `text`."""
    train: str
    """Judgements: TSV with the header line query-id, corpus-id, score. A score above 0 marks a relevant passage; higher
    is more relevant. A passage judged 0 is a hard negative in training."""
    validation: str | None = None
    """Judgements to choose the learning rate by. Default: a share of the questions of `train` is held out."""
    test: str | None = None
    """Judgements of the test split, which are read once, at the end."""
    validation_fraction: Share = 0.1
    """Share of the questions of `train` to hold out if there is no `validation`."""
    max_seq_len: Annotated[int, Field(ge=8)] = 256
    """Longest question or passage in tokens, including special tokens, or the model's maximum if it is smaller. Longer
    ones are cut."""


class RetrievalModel(Section):
    init_from: str
    """Encoder to start from: a run directory, a Hugging Face folder or hf://OWNER/NAME@REVISION. The vector of a text
    is the mean of its tokens' last hidden states, unless its modules.json takes the first token's."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """random: random weights in the shape of init_from, with its tokenizer."""


class RetrievalOptimizer(Section):
    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-5
    """Learning rate of AdamW at the end of the warm-up; it then falls linearly to 0."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Weight decay of AdamW."""


class RetrievalSchedule(Length):
    epochs: Annotated[float, Field(gt=0.0)] | None = None
    """Passes over the pairs of a question and a relevant passage. Default: 3, unless steps is set. The last update is a
    full one."""
    warmup_share: Fraction = 0.06
    """Share of the updates in which the learning rate rises linearly to its peak."""


class RetrievalBatch(Section):
    examples: Annotated[int, Field(ge=2)] = 32
    """Maximum number of pairs in an update. All other passages of an update count as irrelevant, so a larger number
    makes the task harder. Pairs with the same question, or whose passage is relevant to the other's question, are never
    in one update."""


class RetrievalEvaluation(Section):
    metric: RetrievalMetric = "ndcg@10"
    """Metric for the verdict and for choosing the learning rate. The other two are reported as well."""


class RetrievalConfig(Section):
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Random seed for data order, dropout, held-out questions and random weights."""
    task: RetrievalTaskSection
    data: RetrievalData
    model: RetrievalModel
    optimizer: RetrievalOptimizer = RetrievalOptimizer()
    schedule: RetrievalSchedule = RetrievalSchedule()
    batch: RetrievalBatch = RetrievalBatch()
    evaluation: RetrievalEvaluation = RetrievalEvaluation()


OF_OTHER_TASKS = dict.fromkeys(keys_of(FinetuneConfig), "remove it; a retrieval task has no such key")
GUIDE = Guide(
    RetrievalConfig,
    "the task",
    "see the keys at the end of `maskwright schema finetune`",
    {key.replace(".", "_"): advice for key, advice in OF_OTHER_TASKS.items()},
)
OF_FINETUNING = {*OF_OTHER_TASKS, *keys_of(RetrievalConfig)} - {*keys_of(RunConfig)}
"""Keys that pretraining lacks."""


def read_task_config(location: str, overrides: list[str] | None = None) -> FinetuneConfig | RetrievalConfig:
    """Reads the YAML of a task to fine-tune for, or the recipe of that name, and applies `--set a.b=value`. Raises
    `ConfigError` (exit 2)."""
    values, where, keys = read_values(location, overrides, "start with `data:` and `model:`", "finetune")
    return build_task_config(values, where, keys)


def read_any_config(location: str, overrides: list[str] | None = None) -> RunConfig | FinetuneConfig | RetrievalConfig:
    """Reads the YAML, or the recipe, of `pretrain` or of `finetune`. Raises `ConfigError` (exit 2)."""
    return (read_task_config if kind_of(location, overrides or ()) == "finetune" else read_config)(location, overrides)


def kind_of(location: str, overrides: Sequence[str] = ()) -> Kind:
    """The command that a YAML with these overrides, or a recipe, is for. If the file is elsewhere, the overrides
    decide. Raises `ConfigError` (exit 2) for a file that cannot be read."""
    is_file = os.path.isfile(location)
    if location in names("finetune") and not is_file:
        return "finetune"
    is_here = is_file or is_url(location) or location in names()
    values = read_yaml(find_config(location), "start with `data:`") if is_here else {}
    keys = [override.partition("=")[0].strip() for override in overrides]
    for key in [*keys, *(["data.train"] if OF_FINETUNING & {*keys} else [])]:
        put(values, key, None, f"--set {key}")
    return "finetune" if is_finetuning(values) else "pretrain"


def build_task_config(
    values: dict[str, Any], where: str, overrides: Mapping[str, str] = {}
) -> FinetuneConfig | RetrievalConfig:
    """Validates `values`. `overrides`: dotted keys that are not from the file, each with its source for errors. Raises
    `ConfigError`."""
    if not is_retrieval(values):
        return build_finetune_config(values, where, overrides)
    try:
        return RetrievalConfig.model_validate(values)
    except ValidationError as error:
        raise GUIDE.explain(error, where, overrides) from None
