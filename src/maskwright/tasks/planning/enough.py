"""Whether the data suffices, and whether to begin from a public model: published rules, each with its source."""

from __future__ import annotations

from maskwright.core.console import human_count, plain_number
from maskwright.tasks.planning.work import Work
from maskwright.tasks.pretrain.warnings import MOST_EPOCHS

TOKENS_A_PARAMETER = 20.0
"""The ratio at which a model that predicts the next token uses its compute best: Hoffmann et al. 2022,
arXiv:2203.15556."""
EPOCHS_AS_GOOD = 4.0
"""Epochs up to which repeated text is nearly worth new text, also for next tokens: Muennighoff et al. 2023,
arXiv:2305.16264."""
WORDS_FROM_SCRATCH = 3.1e9
"""Words of PubMedBERT's text, on which beginning from nothing was ahead of continuing a general BERT: Gu et al. 2020,
arXiv:2007.15779."""
TOKENS_A_WORD = 1.3
"""English in a byte-level BPE of 50,265 tokens, roughly. Only the order of magnitude of the rule matters."""


def enough(work: Work) -> list[str]:
    """Sentences on the run's data; none where its store is absent."""
    if work.text_tokens is None or work.epochs is None:
        return []
    seen = work.tokens * work.steps
    have, ratio = work.text_tokens, work.text_tokens / work.parameters
    each = plain_number(seen / work.parameters, 3)
    lines = [
        f"the run reads {human_count(seen)} tokens, its {human_count(have)} of text {work.epochs:.1f} times: "
        f"{plain_number(ratio)} tokens of text and {each} read tokens for each parameter"
    ]
    four_epochs, most_epochs = (
        human_count(times * have / max(work.tokens, 1.0)) for times in (EPOCHS_AS_GOOD, MOST_EPOCHS)
    )
    largest = human_count(EPOCHS_AS_GOOD * have / TOKENS_A_PARAMETER)
    lines.append(
        f"the text lasts {four_epochs} steps until it was read {EPOCHS_AS_GOOD:g} times (repeats are then nearly worth "
        f"new text, arXiv:2305.16264), and {most_epochs} until {MOST_EPOCHS} times (BERT's, arXiv:1810.04805)"
    )
    lines.append(
        f"models that predict the next token use their compute best at {TOKENS_A_PARAMETER:g} tokens a parameter "
        f"(arXiv:2203.15556): with four readings, {largest} parameters for this text. This model has "
        f"{human_count(work.parameters)}. No such rule is published for masked models, which learn from a share of the "
        "tokens only, so take it as an order of magnitude"
    )
    return lines


def continuing(work: Work) -> str | None:
    """A sentence on whether the text is large enough to begin from nothing. None where its size is unknown, or the run
    continues a model already."""
    if work.text_tokens is None or work.config.model.init_from is not None:
        return None
    words = work.text_tokens / TOKENS_A_WORD
    rule = f"{_spelled(WORDS_FROM_SCRATCH)} words (PubMedBERT, arXiv:2007.15779)"
    if words >= WORDS_FROM_SCRATCH:
        return f"with this much text of one field, beginning from nothing has been ahead of continuing, at {rule}"
    return (
        f"beginning from nothing has been ahead of continuing a public model with {rule}; this text has about "
        f"{_spelled(words)}. Where a public encoder knows the language, continue it (recipes/continue.yaml), and "
        "compare both on your labels"
    )


def _spelled(number: float) -> str:
    """A number for a sentence: 3.1 billion, 15 million, 62,000."""
    rounded = float(f"{number:.2g}")
    for limit, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if rounded >= limit:
            return f"{plain_number(rounded / limit)} {word}"
    return f"{rounded:,.0f}"
