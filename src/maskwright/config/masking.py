"""The keys of `masking:`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from maskwright.config.settings import Count, Fraction, Refused, Section

Share = Annotated[float, Field(gt=0.0, lt=1.0)]
MaskingKind = Literal["token", "whole_word", "span"]


class Masking(Section):
    kind: MaskingKind = "token"
    """What is masked together: one token, a whole word (Ġ rule), or a run of words."""
    rate: Share = 0.15
    """Share of a row's text tokens that are predicted: 0.15 in RoBERTa, 0.30 in ModernBERT."""
    mask_share: Fraction = 0.8
    """Share of predicted tokens that are shown as `<mask>`."""
    random_share: Fraction = 0.1
    """Share of predicted tokens that are shown as a random token; the rest is shown unchanged."""
    epochs: Count | None = None
    """Number of fixed maskings, BERT's dupe_factor: epoch e has the masks of epoch e mod `epochs`. When not set, each
    epoch has masks of its own, as in RoBERTa."""
    causal_share: Fraction = 0.0
    """Share of rows that are read causally, 0.0625 in GPT-BERT: nothing is hidden, a token sees itself and those before
    it, and each predicted token is predicted at the position before its own."""

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
