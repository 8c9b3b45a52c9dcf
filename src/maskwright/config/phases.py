"""The keys of `phases:`, one part of a run each. `pretraining.stages` makes the run's parts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, model_validator

from maskwright.config.masking import MaskingKind, Share
from maskwright.config.settings import Count, Fraction, Refused, Section

RowLength = Annotated[int, Field(ge=8, le=8192)]
"""Below 8 tokens, a row would not hold one word of average length and its frame."""


class Phase(Section):
    """A part of the run. The rest of the file decides about keys that it leaves out."""

    until_share: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """End of the phase, as a share of the run's steps. Give each phase until_share or until_step."""
    until_step: Count | None = None
    """End of the phase, as a number of updates from the start of the run."""
    seq_len: RowLength | None = None
    """`data.seq_len` in this phase."""
    rows_per_step: Count | None = None
    """Rows in one update, instead of batch.micro_batch_rows x batch.virtual_workers. batch.virtual_workers stays the
    same and must divide it."""
    masking_rate: Share | None = None
    """`masking.rate` in this phase."""
    masking_kind: MaskingKind | None = None
    """`masking.kind` in this phase."""
    causal_share: Fraction | None = None
    """`masking.causal_share` in this phase."""

    mixture_weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] | None = None
    """Weights of sources of `data.mixture` in this phase, as in {en: 1, sw: 3}; other sources keep their weights. 0
    leaves a source out."""
    rope_theta: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] | None = None
    """Only for modernbert, esm, eurobert, ultrabert, nomic_bert and gte: base of the rotary positions in layers that
    attend to the whole sequence, such as 160000 for longer rows. Checkpoints and exports keep the base of their
    phase."""

    @model_validator(mode="after")
    def _ends_once(self) -> Phase:
        if (self.until_share is None) == (self.until_step is None):
            what = "does not give its end" if self.until_step is None else "has until_share and until_step"
            raise Refused(what, fix="give it either until_share or until_step")
        return self

    def end(self, steps: int) -> int:
        """The update after its last, in a run of `steps`."""
        return self.until_step or round((self.until_share or 0.0) * steps)


def end_by_step(phases: Sequence[Mapping[str, Any]], steps: int) -> bool:
    """Whether all these recorded phases end at steps that do not depend on the length of the run, before its `steps`,
    so that more steps do not change them."""
    return all(phase["until_step"] is not None and phase["until_step"] < steps for phase in phases)
