"""The differences between families of encoders, a row of facts for each. Everything else is a number in `ModelConfig`.

RoBERTa (Liu et al. 2019), with XLM-RoBERTa and CamemBERT, is BERT (Devlin et al. 2019) with another row for the first
position. DistilBERT is BERT without token types. ModernBERT (Warner et al. 2024), ESM-2 (Lin et al. 2023), EuroBERT
(Boizard et al. 2025) and UltraBERT have rotary positions (Su et al. 2021), and a norm before each sub-layer and after
the last. NomicBERT (Nussbaum et al. 2024) and GTE (Zhang et al. 2024) have rotary positions and BERT's norms. DeBERTa
v2 and v3 (He et al. 2021) have BERT's layers, with terms for relative positions in each score; MPNet (Song et al. 2020)
has RoBERTa's layers, and adds a number to each score by the distance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from maskwright.config import pretraining as run

Architecture = run.Architecture | Literal["deberta-v2", "mpnet", "eurobert", "ultrabert", "nomic_bert", "gte"]
"""`model_type` of supported folders. Training from random weights does not support the last six."""


@dataclass(frozen=True)
class FamilyFacts:
    """The defaults are BERT's."""

    norm_first: bool = False
    """Whether the norm comes before each sub-layer and after the last layer, not after each sub-layer."""
    norms_embeddings: bool = True
    """Whether a norm comes after the embeddings."""
    centred: bool = True
    """Whether norms subtract the mean (LayerNorm) instead of dividing by the root mean square alone (RMSNorm)."""
    norms_biased: bool = True
    """Whether norms have biases, and the head's matrix before a norm."""
    biased: bool = True
    """Whether the layers' matrices have biases, except a gated layer's first."""
    rotary: bool = False
    """Whether positions turn queries and keys, instead of having a table."""
    first_position_after_padding: bool = False
    """Whether the table of positions is used from the row after the padding's id on, so that one for 512 tokens has 514
    rows."""
    token_types: bool = False
    """Whether the texts of a pair may differ in token types."""
    relative: Literal["", "terms", "bias"] = ""
    """Relative positions in attention's scores (`relative.py`)."""
    global_layer: Literal["", "first", "last"] = ""
    """Which of each `global_attn_every_n_layers` attends to the whole sequence; empty if all do."""
    gated: bool = False
    """Whether half of a layer's inner numbers gate the other half (Shazeer 2020)."""
    activation: Literal["gelu", "silu"] = "gelu"
    """The function of a layer's inner numbers."""
    out_drops: Literal["hidden", "attention"] = "hidden"
    """Which dropout attention's result has, after its matrix."""
    inner_drops: bool = False
    """Whether a layer's inner numbers have dropout, before its last matrix."""
    down_drops: bool = True
    """Whether a layer's inner part has dropout after its last matrix."""
    masked_lm_transforms: bool = True
    """Whether the masked-LM head has a matrix and a norm before its output matrix, and a bias after it."""
    masked_lm_activation: Literal["gelu", "silu"] = "gelu"
    """The function between the masked-LM head's matrix and its norm."""
    classifier_has_norm: bool = False
    """Whether a head for fine-tuning has a matrix and a norm before its classifier, for any task."""
    classifier_has_dense: bool = True
    """Whether a whole text's head without a norm has a matrix before its classifier."""
    classifier_activation: Literal["tanh", "relu", "gelu"] = "tanh"
    """The function between both matrices of a whole text's head without a norm."""
    classifier_drops_twice: bool = False
    """Whether dropout comes before both matrices of a whole text's head, not before the last alone."""
    pools: tuple[str, ...] = ()
    """Values of `ModelConfig.classifier_pooling` with which a whole text's head takes a mean over the text's tokens."""
    answers_questions: bool = True
    """Whether `transformers` has a class of questions."""


_BERT = FamilyFacts()
_ROBERTA = FamilyFacts(first_position_after_padding=True, classifier_drops_twice=True)
_UNBIASED = FamilyFacts(norm_first=True, norms_biased=False, biased=False, rotary=True, gated=True, down_drops=False)
_EUROBERT = replace(
    _UNBIASED,
    norms_embeddings=False,
    centred=False,
    activation="silu",
    inner_drops=True,
    masked_lm_transforms=False,
    classifier_activation="gelu",
    pools=("mean", "late"),
    answers_questions=False,
)
_GTE = FamilyFacts(rotary=True, token_types=True, gated=True, inner_drops=True, answers_questions=False)
FACTS: dict[Architecture, FamilyFacts] = {
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "bert": replace(_BERT, token_types=True),
    "distilbert": replace(_BERT, classifier_activation="relu"),
    "modernbert": replace(
        _UNBIASED,
        global_layer="first",
        out_drops="attention",
        inner_drops=True,
        classifier_has_norm=True,
        pools=("mean",),
    ),
    "esm": FamilyFacts(
        norm_first=True, norms_embeddings=False, rotary=True, classifier_drops_twice=True, answers_questions=False
    ),
    "mpnet": replace(_ROBERTA, relative="bias"),
    "deberta-v2": replace(_BERT, token_types=True, relative="terms", classifier_activation="gelu"),
    "eurobert": _EUROBERT,
    "ultrabert": replace(
        _EUROBERT,
        global_layer="last",
        classifier_has_dense=False,
        classifier_activation="tanh",
        pools=("mean",),
        answers_questions=True,
    ),
    "nomic_bert": replace(_GTE, biased=False, activation="silu", inner_drops=False, masked_lm_activation="silu"),
    "gte": _GTE,
}
