"""maskwright: raw text in, proven encoder out. docs/python.md has the interface.

Importing this package loads no heavy library; each command and each function imports what it needs when it runs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskwright.api.evaluation import evaluate
    from maskwright.api.models import Model, load
    from maskwright.api.runs import Run
    from maskwright.api.stores import Store, prepare, train_tokenizer
    from maskwright.api.training import finetune, pretrain
    from maskwright.api.verdicts import Comparison, compare
    from maskwright.core.errors import HealthError, InputError, MaskwrightError, StoppedEarly

__version__ = "0.3.0"
__all__ = [
    "Comparison",
    "HealthError",
    "InputError",
    "MaskwrightError",
    "Model",
    "Run",
    "StoppedEarly",
    "Store",
    "__version__",
    "compare",
    "evaluate",
    "finetune",
    "load",
    "prepare",
    "pretrain",
    "train_tokenizer",
]
_MODULES = {
    "api.evaluation": ("evaluate",),
    "api.models": ("Model", "load"),
    "api.runs": ("Run",),
    "api.stores": ("Store", "prepare", "train_tokenizer"),
    "api.training": ("finetune", "pretrain"),
    "api.verdicts": ("Comparison", "compare"),
    "core.errors": ("HealthError", "InputError", "MaskwrightError", "StoppedEarly"),
}


def __getattr__(name: str) -> Any:
    """A name of the interface, imported at its first use: https://peps.python.org/pep-0562/."""
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"maskwright.{module}"), name)
            return value
    raise AttributeError(f"module 'maskwright' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
