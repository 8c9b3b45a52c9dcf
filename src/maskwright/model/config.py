"""The shape of an encoder, its named sizes and its FLOPs. Neither torch nor jax is needed."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, replace
from typing import Any, Literal

from maskwright.config import pretraining as run
from maskwright.core.errors import ConfigError, InputError
from maskwright.model.facts import FACTS, Architecture, FamilyFacts

TRAINED_MASK_SHARE = 0.15 * 0.8
"""Share of masks in the texts that ESM-2 was pretrained on. With token dropout (Lin et al. 2023, and `EsmEmbeddings` of
`transformers`), embeddings of masks are zero, as if dropped, and all others are multiplied by (1 - this share) /
(1 - the text's own share), so that a text's sum is the same with any number of masks. A text is a segment of a packed
row, frame included; padding belongs to none. Segments are found by position ids, which begin at 0 in each."""
VOCABULARY_MULTIPLE = 64
"""The inner embedding matrix is padded to a multiple of this, so that its products have even shapes. Export cuts it."""
NEVER_PREDICTED = -1e9
"""Bias of the padded ids: exp(-1e9) is exactly 0, so they have neither probability nor gradient."""

TaskKind = Literal[
    "masked_lm",
    "single_label_classification",
    "multi_label_classification",
    "regression",
    "token_classification",
    "question_answering",
]
"""The kind of a model's output. The first is pretraining's; the others are Hugging Face's problem types and tasks."""
OUTPUTS = {"regression": 1, "question_answering": 2}
"""Outputs of the tasks that have no labels."""
SEQUENCE_TASKS = ("single_label_classification", "multi_label_classification", "regression")
"""These read a text's first token, or the mean of all of its tokens (`ModelConfig.pools`)."""
POOLINGS = ("bos", "mean", "late")
"""Values of `ModelConfig.classifier_pooling`."""

#        layers, width, heads
SIZES = {
    "nano": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (6, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}


@dataclass(frozen=True)
class ModelConfig:
    """The shape of an encoder. Names are Hugging Face's (`RobertaConfig`), for every architecture."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    initializer_range: float = 0.02
    pad_token_id: int = 1
    bos_token_id: int = 0
    eos_token_id: int = 2
    architecture: Architecture = "roberta"
    """`model_type` of `config.json`. Families without rotary positions, except deberta-v2, are computed in the same
    way, and differ in names and tables."""
    rope_theta: float = 10_000.0
    """Only for families with rotary positions: their base."""
    global_attn_every_n_layers: int = 1
    """Only for modernbert and ultrabert: one of each n layers attends to the whole sequence, the others to tokens
    nearby. It is the first of the n in a modernbert, and the last in an ultrabert."""
    local_attention: int = 0
    """Only for modernbert and ultrabert: a local layer's tokens see `local_attention // 2` tokens to either side."""
    local_rope_theta: float = 10_000.0
    """Only for modernbert and ultrabert: the base of the rotary positions in local layers."""
    num_key_value_heads: int = 0
    """Only for the EuroBERTs: heads of keys and values, each of which serves as many neighbouring heads of queries
    (Ainslie et al. 2023, grouped-query attention); 0 for one each."""
    tie_word_embeddings: bool = True
    """Whether the masked-LM head's output matrix is the embeddings; may be false only for the EuroBERTs."""
    head_hidden_size: int = 0
    """Only for ultrabert: the width between both matrices of its masked-LM head."""
    rope_rounding: str = ""
    """Only for esm: the precision to which the speeds of rotary positions are rounded; see `rotary.ROUNDINGS`."""
    token_dropout: bool = False
    """Only for esm: whether embeddings of masks are zero, and the others scaled for it; see `TRAINED_MASK_SHARE`."""
    mask_token_id: int = 0
    """The mask, for `token_dropout` and for eurobert's config.json."""
    position_biased_input: bool = True
    """Whether embeddings have a table of positions as well as the relative ones; may be false only for deberta-v2."""
    pos_att_type: str = ""
    """Only for deberta-v2: the terms of relative positions in each score, c2p, p2c or both (c2p|p2c). See
    `relative.py`."""
    position_buckets: int = 0
    """For deberta-v2, embeddings of distances to either side, which far ones share; 0 if each distance has its own. For
    mpnet, numbers of distances to both sides."""
    max_relative_positions: int = 0
    """Only for deberta-v2: the distance from which on all distances have the same embedding."""
    conv_kernel_size: int = 0
    """Only for deberta-v2: width of the convolution next to the first layer in tokens, an odd number; 0 without one."""
    task: TaskKind = "masked_lm"
    """It decides the head and the loss."""
    num_labels: int = 0
    """Outputs of the head; 0 for masked_lm, whose head has the vocabulary."""
    classifier_dropout_prob: float = 0.0
    """Dropout before a classifier's matrices."""
    classifier_pooling: str = "late"
    """Input of a whole text's classifier, if it is one of the family's `pools`; else it is the first token. mean: the
    mean of the hidden states of the text's tokens. late: each token; the mean of their logits is the text's."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ConfigError(
                f"{self.num_attention_heads} attention heads do not divide a width of {self.hidden_size}",
                where="model.num_attention_heads",
                fix="choose a number of heads that divides it",
            )
        if self.facts.rotary and self.head_width % 2:
            raise ConfigError(
                f"heads are {self.head_width} wide; rotary positions need an even width",
                where="model.num_attention_heads",
                fix="choose another number of heads",
            )
        if self.num_attention_heads % self.key_value_heads:
            raise ConfigError(
                f"{self.key_value_heads} heads of keys and values do not divide {self.num_attention_heads} of queries",
                where="model.num_attention_heads",
                fix="choose a number of heads that they divide",
            )

    @property
    def head_width(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def key_value_width(self) -> int:
        """Width of a token's keys, and of its values."""
        return self.key_value_heads * self.head_width

    @property
    def facts(self) -> FamilyFacts:
        """The facts of the family."""
        return FACTS[self.architecture]

    @property
    def layer_dropouts(self) -> tuple[float, float, float]:
        """Dropout after attention's last matrix, before the inner part's last matrix, and after it."""
        facts, hidden = self.facts, self.hidden_dropout_prob
        out = self.attention_probs_dropout_prob if facts.out_drops == "attention" else hidden
        return out, hidden if facts.inner_drops else 0.0, hidden if facts.down_drops else 0.0

    @property
    def classifier_has_dense(self) -> bool:
        """Whether a head without a norm has a matrix before its classifier."""
        return self.task in SEQUENCE_TASKS and self.facts.classifier_has_dense

    @property
    def pools(self) -> bool:
        """Whether the head takes a mean over a text's tokens."""
        return self.task in SEQUENCE_TASKS and self.classifier_pooling in self.facts.pools

    @property
    def position_terms(self) -> int:
        """Terms of relative positions in each score."""
        return len(self.pos_att_type.split("|")) if self.pos_att_type else 0

    @property
    def score_scale(self) -> float:
        """Factor of the scores: 1 over the root of a head's width times the number of terms, the content's included."""
        return float((self.head_width * (1 + self.position_terms)) ** -0.5)

    @property
    def relative_span(self) -> int:
        """Rows of the table of relative positions to either side of distance 0."""
        return self.position_buckets or self.max_relative_positions

    @property
    def learned_positions(self) -> bool:
        """Whether embeddings have a table of positions."""
        return not self.facts.rotary and self.position_biased_input

    @property
    def position_offset(self) -> int:
        """Row of a sequence's first token in the table of positions."""
        return self.pad_token_id + 1 if self.facts.first_position_after_padding else 0

    @property
    def has_token_types(self) -> bool:
        """Whether embeddings have a table of token types. Models with a norm before each sub-layer have none."""
        return self.type_vocab_size > 0 and not self.facts.norm_first

    @property
    def token_type_stride(self) -> int:
        """Distance of token types in position ids (`Batch.position_ids`); 0 if pairs have no token types."""
        return self.max_position_embeddings if self.facts.token_types and self.type_vocab_size > 1 else 0

    @property
    def max_seq_len(self) -> int:
        return self.max_position_embeddings - self.position_offset

    @property
    def local_layers(self) -> int:
        """Number of layers whose tokens see only those nearby."""
        layers, first = self.num_hidden_layers, self.first_global_layer
        return layers - len(range(first, layers, self.global_attn_every_n_layers))

    def is_local(self, layer: int) -> bool:
        return (layer - self.first_global_layer) % self.global_attn_every_n_layers != 0

    @property
    def first_global_layer(self) -> int:
        return self.global_attn_every_n_layers - 1 if self.facts.global_layer == "last" else 0

    @property
    def window(self) -> int:
        """Number of tokens to either side that a local layer's token sees."""
        return self.local_attention // 2

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def drops(self) -> bool:
        """Whether training has any dropout, the head's included."""
        return max(self.hidden_dropout_prob, self.attention_probs_dropout_prob, self.classifier_dropout_prob) > 0.0

    @property
    def outputs(self) -> int:
        """Logits at each place."""
        return self.vocab_size if self.task == "masked_lm" else self.num_labels

    @property
    def body_parameters(self) -> int:
        """Numbers in the layers' matrices, by which every token is multiplied."""
        before = self.hidden_size * (self.hidden_size + 2 * self.key_value_width)
        return self.num_hidden_layers * (before + self._after_attention)

    @property
    def _after_attention(self) -> int:
        """Numbers in the matrices of one layer that follow attention."""
        inner_matrices = 3 if self.facts.gated else 2
        return self.hidden_size**2 + inner_matrices * self.hidden_size * self.intermediate_size

    def product_flops(self, tokens: float, predicted: float) -> float:
        """FLOPs of forward and backward in products with weights: 6 per weight and token. For masked_lm, the head and
        the last layer's part after attention count at the `predicted` positions only."""
        weights = self.body_parameters * tokens
        if self.task == "masked_lm":
            weights -= self._after_attention * (tokens - predicted)
        transform = self.hidden_size if self.facts.masked_lm_transforms else 2 * self.head_hidden_size
        return 6.0 * (weights + (self.vocab_size + transform) * self.hidden_size * predicted)

    def attention_flops(self, tokens: float, attended_pairs: float) -> float:
        """FLOPs of forward and backward in the products of queries, keys and values: two products, and one more for
        each term of relative positions. A local layer's token attends to its window, or to its sequence if that is
        shorter."""
        local = self.local_layers
        nearby = min(attended_pairs, tokens * (2 * self.window + 1))
        pairs = (self.num_hidden_layers - local) * attended_pairs + local * nearby
        return (12.0 + 6.0 * self.position_terms) * self.hidden_size * pairs


REQUIRED = {name for name, field in ModelConfig.__dataclass_fields__.items() if field.default is MISSING}
TEXTS = ("architecture", "task", "rope_rounding", "pos_att_type", "classifier_pooling")
"""Fields that are texts; the others are numbers."""


def recorded_config(values: dict[str, Any], where: str) -> ModelConfig:
    """The shape in a run's own record. Raises `InputError` if it is not one."""
    fields = ModelConfig.__dataclass_fields__
    whole = REQUIRED <= set(values) <= set(fields) and all(
        isinstance(value, str if name in TEXTS else int | float) for name, value in values.items()
    )
    if not whole:
        raise InputError(
            "its `model` is not the shape of a model", where=where, fix="restore the file, or start a new run"
        )
    return ModelConfig(**values)


def config_at(model: ModelConfig, config: run.RunConfig, step: int) -> ModelConfig:
    """A run's shape after `step` updates: a phase may change the base of rotary positions."""
    if not any(phase.rope_theta for phase in config.phases):
        return model
    return replace(model, rope_theta=run.stage_at(config.stages, max(step - 1, 0)).rope_theta or model.rope_theta)


def model_config(
    section: run.ModelSection, vocab_size: int, seq_len: int, *, bos: int = 0, pad: int = 1, eos: int = 2, mask: int = 0
) -> ModelConfig:
    """The shape that a run's `model:` section describes, for training from scratch. `bos`, `pad`, `eos`, `mask`: the
    ids with which its tokenizer begins, fills up and ends a row, and hides a token."""
    layers, width, heads = SIZES[section.size]
    width = section.hidden_size or width
    kind, step = section.architecture, 64 if width >= 256 else 32
    # modernbert's three matrices then have as many numbers as two of 4 times the width.
    inner = round(8 * width / 3 / step) * step if kind == "modernbert" else 4 * width
    offset = pad + 1 if FACTS[kind].first_position_after_padding else 0
    every = section.global_attn_every_n_layers
    return ModelConfig(
        architecture=kind,
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=section.num_hidden_layers or layers,
        num_attention_heads=section.num_attention_heads or heads,
        intermediate_size=section.intermediate_size or inner,
        max_position_embeddings=(section.max_seq_len or seq_len) + offset,
        type_vocab_size={"bert": 2, "distilbert": 0, "esm": 0}.get(kind, 1),
        hidden_dropout_prob=section.hidden_dropout,
        attention_probs_dropout_prob=section.attention_dropout,
        pad_token_id=pad,
        bos_token_id=bos,
        eos_token_id=eos,
        global_attn_every_n_layers=every,
        local_attention=section.local_attention if every > 1 else 0,
        token_dropout=kind == "esm",
        mask_token_id=mask if kind == "esm" else 0,
    )


def training_flops(model: ModelConfig, tokens: float, attended_pairs: float, predicted: float) -> float:
    """Model FLOPs of forward and backward: `ModelConfig.product_flops`, and attention over `attended_pairs` of (query,
    key). Padding, recomputation, the optimizer (PaLM's MFU rule) and work without effect on the loss do not count."""
    return model.product_flops(tokens, predicted) + model.attention_flops(tokens, attended_pairs)
