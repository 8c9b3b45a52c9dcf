"""A job that hosts fetch: the spec lies in a bucket, an agent on each host runs it and leaves what became of it there.

    job.json                              the spec; `submission` counts what was submitted here
    stop.json                             {"submission": 2}: that one is to end
    hosts/host-3.json                     a host's heartbeat: {"beat": 17, "submission": 2, "idle": true, "address": …}
    hosts/host-3.claim-000001.json        where no machine says which index a host has (`slots.py`)
    idle/INSTANCE.json                    a host that ended for want of a job
    0002/attempt-001/start.json           {"hosts": 4, "addresses": […]}, once all of them are idle
    0002/attempt-001/end.json             one host has ended badly, the others are to end
    0002/attempt-001/host-3/              begun.json, log-000001.txt …, exit.json
    0002/result.json                      {"code": 0, "report": […]}: the submission is over

Only the agent of host 0 writes start, end and result (`leader.py`). Nobody else needs to be awake: a laptop that
submitted may go, a host that died and came back is taken in again with the next attempt. Here is the submitter's side;
that of a host is in `agent.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from maskwright.core import storage
from maskwright.core.console import Show, say, several, show_line
from maskwright.core.errors import InputError
from maskwright.core.folder import Folder
from maskwright.core.parent import as_reason
from maskwright.launch.follow import followed, until_over
from maskwright.launch.outcome import conclude
from maskwright.launch.target import JobSpec, parse_spec


def spec_folder(spec: str) -> Folder:
    folder, _, name = spec.rpartition("/")
    if name != "job.json" or not storage.is_url(spec):
        raise InputError("is not job.json in a folder", where=spec, fix="write it as gs://bucket/jobs/NAME/job.json")
    return Folder(folder)


def read_spec(folder: Folder) -> JobSpec | None:
    content = folder.get("job.json")
    return None if content is None else parse_spec(content, f"{folder.location}/job.json")


def attempt_folder(submission: int, attempt: int) -> str:
    return f"{submission:04d}/attempt-{attempt:03d}"


def last_attempt(folder: Folder, submission: int) -> int:
    """0 before the first. Its start is the first thing in an attempt's folder."""
    names = folder.names(f"{submission:04d}")
    return max((int(name[8:]) for name in names if name.startswith("attempt-")), default=0)


def read_result(folder: Folder, submission: int) -> dict[str, Any] | None:
    """None while the submission goes on."""
    return folder.get_json(f"{submission:04d}/result.json")


def put_result(folder: Folder, submission: int, code: int, cause: str, **more: object) -> None:
    """The report is the cause alone unless `more` has one."""
    result = {"code": code, "cause": cause, "report": [cause], "time": time.time(), **more}
    folder.put_json(f"{submission:04d}/result.json", result)


def is_asked(folder: Folder, submission: int) -> bool:
    """Whether the submission is to end."""
    return (folder.get_json("stop.json") or {}).get("submission") == submission


def put_spec(folder: Folder, spec: JobSpec, first: Callable[[int], None] = lambda submission: None) -> int:
    """Writes the spec and returns the number of the submission, for which `first` is called before hosts see it. The
    same spec again, while it runs, is not another submission."""
    location, before = f"{folder.location}/job.json", read_spec(folder)
    if before is not None and read_result(folder, before.submission) is None:
        if replace(before, submission=spec.submission) != spec:
            fix = f"wait for it, end it with `maskwright stop {location}`, or use another folder"
            raise InputError("another job is not over yet", where=location, fix=fix)
        first(before.submission)
        say(f"{location}: submitted before, following it")
        return before.submission
    spec = replace(spec, submission=before.submission + 1 if before else 1)
    first(spec.submission)
    folder.put("job.json", spec.to_json().encode())
    say(f"{location}: submission {spec.submission}, waiting for the hosts")
    return spec.submission


def follow(
    folder: Folder,
    submission: int,
    poll_seconds: float,
    meanwhile: Callable[[], object] = lambda: None,
    *,
    show: Show = show_line,
) -> None:
    """Shows what hosts log, and concludes. Ctrl-C ends the following; the job goes on. `meanwhile` is called in each
    round."""
    begun: dict[int, list[int]] = {}
    """Of each attempt, how many pieces of each host's log were shown."""
    where = f"{folder.location}/job.json"

    def look() -> dict[str, Any] | None:
        return _news(folder, submission, begun, show)

    with followed(where):
        result = look()  # what is wrong from the start does not pass
        if result is None:
            meanwhile()
            result = until_over(look, where, poll_seconds, meanwhile=meanwhile)
    for line in result["report"]:
        say(str(line))
    reason = as_reason(str(result.get("reason")))
    conclude(int(result["code"]), str(result["cause"]), folder.location, reason)


def _news(folder: Folder, submission: int, begun: dict[int, list[int]], show: Show) -> dict[str, Any] | None:
    """Shows what is new; returns the result when the job is over."""
    result = read_result(folder, submission)  # before the logs, so that none is missed
    for number in range(len(begun) + 1, last_attempt(folder, submission) + 1):
        start = folder.get_json(f"{attempt_folder(submission, number)}/start.json") or {"hosts": 0}
        begun[number] = [0] * int(start["hosts"])
        say(f"attempt {number} begins on {several(start['hosts'], 'host')}")
    for number in sorted(begun)[-2:]:
        _show_logs(folder, attempt_folder(submission, number), begun[number], show)
    return result


def _show_logs(folder: Folder, place: str, shown: list[int], show: Show) -> None:
    for host in range(len(shown)):
        while (content := folder.get(f"{place}/host-{host}/log-{shown[host] + 1:06d}.txt")) is not None:
            shown[host] += 1
            for line in content.decode(errors="replace").splitlines():
                show(host, line)
