"""What goes between a driver and those that compute parts for it."""

from __future__ import annotations

from typing import Any

import pytest
from runners import sent

from maskwright.core import errors
from maskwright.core.errors import MaskwrightError


def kinds(base: type[MaskwrightError]) -> list[type[MaskwrightError]]:
    return [base, *(kind for below in base.__subclasses__() for kind in kinds(below))]


@pytest.mark.parametrize("kind", kinds(MaskwrightError))
def test_an_error_comes_from_a_worker_as_it_was(kind: type[MaskwrightError]) -> None:
    more: dict[str, dict[str, Any]] = {
        "ConfigError": {"lines": ("one", "two")},
        "CloudError": {"reason": "quota"},
        "JobError": {"exit_code": 7},
        "TerraformError": {"exit_code": 7},
        "HealthError": {"step": 3},
        "StoppedEarly": {"reason": "asked"},
    }
    error = kind("what", where="a.txt:7", fix="do", **more.get(kind.__name__, {}))
    again = sent(error)
    assert type(again) is kind and str(again) == str(error) and vars(again) == vars(error)
    assert again.exit_code == error.exit_code and again.args == error.args
    assert vars(errors)[kind.__name__] is kind
