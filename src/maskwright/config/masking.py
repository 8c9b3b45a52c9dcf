"""The keys of `masking:`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from maskwright.config.settings import Count, Fraction, Refused, Section

Share = Annotated[float, Field(gt=0.0, lt=1.0)]
MaskingKind = Literal["token", "whole_word", "span"]


class Masking(Section):
    kind: MaskingKind = "token"
    """What is masked together: a token, a whole word (Ġ rule), or a span of words."""
    rate: Share = 0.15
    """Share of a row's text tokens to predict: 0.15 in RoBERTa, 0.30 in ModernBERT."""
    mask_share: Fraction = 0.8
    """Share of the predicted tokens to replace with `<mask>`."""
    random_share: Fraction = 0.1
    """Share of the predicted tokens to replace with a random token. The rest stays unchanged."""
    epochs: Count | None = None
    """Number of different maskings, BERT's dupe_factor: epoch e repeats the masks of epoch e mod `epochs`. Default: new
    masks in each epoch, as in RoBERTa."""
    causal_share: Fraction = 0.0
    """Share of rows to read causally, 0.0625 in GPT-BERT: nothing is masked, each token attends to itself and the
    tokens before it, and each token is predicted at the position before it."""

    @property
    def causal(self) -> bool | None:
        """Whether all rows are read causally; None if only some are."""
        return self.causal_share == 1.0 if self.causal_share in (0.0, 1.0) else None

    @model_validator(mode="after")
    def _shares_fit(self) -> Masking:
        if self.mask_share + self.random_share > 1.0:
            shares = f"mask_share {self.mask_share:g} and random_share {self.random_share:g}"
            raise Refused(f"{shares} add up to more than 1", fix="lower one of them; RoBERTa's are 0.8 and 0.1")
        return self
