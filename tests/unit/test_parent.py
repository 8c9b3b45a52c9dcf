"""What a launcher tells of the errors of its processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from maskwright.core.errors import EndedAsAsked, HealthError, InputError, JobError, MaskwrightError, as_record
from maskwright.processes.parent import ERROR_FILE, pass_error_on, read_error, write_error

HEARD = JobError("rank 0: the loss is not finite", 3)


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        ([HEARD, HealthError("the loss is not finite")], HealthError),  # who heard of it was the first to end
        ([HealthError("the loss is not finite"), HEARD], HealthError),
        ([HealthError("the loss is not finite"), InputError("is too late")], HealthError),
        ([HEARD], JobError),
    ],
)
def test_who_failed_comes_before_who_heard_of_it(
    ended: list[MaskwrightError], told: type[MaskwrightError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.json"
    monkeypatch.setenv(ERROR_FILE, str(own))
    pass_error_on(str(tmp_path / "killed.json"))
    assert read_error(str(own)) is None
    for number, error in enumerate(ended):
        (tmp_path / f"{number}.json").write_text(json.dumps(as_record(error)))
        pass_error_on(str(tmp_path / f"{number}.json"))
    assert type(read_error(str(own))) is told


def test_why_a_process_was_stopped_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, of_process = tmp_path / "own.json", tmp_path / "0.json"
    monkeypatch.setenv(ERROR_FILE, str(own))
    of_process.write_text(json.dumps(as_record(EndedAsAsked("--stop-after-steps 3: stopped", reason="limit"))))
    pass_error_on(str(of_process))
    write_error(EndedAsAsked("2 processes: stopped as asked"))
    told = read_error(str(own))
    assert isinstance(told, EndedAsAsked) and told.reason == "limit"
