"""Following a job: which errors end it, and which are waited out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from maskwright.core.errors import CloudError, InputError, MaskwrightError, StoppedEarly
from maskwright.launch import follow


def cloud(reason: str) -> CloudError:
    return CloudError("no", reason=reason)


@pytest.mark.parametrize("reason", ["unreached", "failed", "quota"])
def test_an_error_that_may_pass_is_shown_once(reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers: Iterator[MaskwrightError | str | None] = iter([cloud(reason), cloud(reason), None, cloud(reason), "end"])

    def poll() -> str | None:
        answer = next(answers)
        if isinstance(answer, MaskwrightError):
            raise answer
        return answer

    rounds: list[int] = []
    assert follow.until_over(poll, "ray:1", 0.0, meanwhile=lambda: rounds.append(1)) == "end"
    assert capsys.readouterr().err.count("the job continues; trying again") == 2  # it had passed in between
    assert len(rounds) == 4


@pytest.mark.parametrize(
    "error",
    [
        *map(cloud, ("permission", "credentials", "missing", "disabled", "other")),
        MaskwrightError("no"),
        InputError("no"),
        StoppedEarly("no longer followed"),
    ],
    ids=str,
)
def test_any_other_error_ends_the_following_at_once(error: MaskwrightError, capsys: pytest.CaptureFixture[str]) -> None:
    def poll() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        follow.until_over(poll, "ray:1", 60.0)
    is_failure = not isinstance(error, StoppedEarly)
    assert raised.value is error and ("`maskwright stop ray:1` ends it" in capsys.readouterr().err) == is_failure
