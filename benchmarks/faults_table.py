"""The words of the faults' table, made from the results of `faults.py`."""

from __future__ import annotations

import re
from typing import Any

from maskwright.core.console import several

Record = dict[str, Any]
SIDES = {"hf_trainer": "HF Trainer", "maskwright": "maskwright"}


def table(record: Record) -> list[str]:
    """Lines of Markdown: a row for each fault, a column for each side."""
    setting, faults = record["setting"], record["faults"]
    titles = {
        "truncated": "weights of the newest checkpoint cut in half, then resumed",
        "disk_full": f"no room in the save at step {setting['stopped_after'] + setting['save_every_steps']} (file-size "
        "limit), then resumed without the limit",
        "nan_weight": "one NaN among the weights that the run begins from",
        "resume": f"stopped at step {setting['stopped_after']} of {setting['steps']} and resumed, or never stopped",
    }
    rows = [f"| fault | {' | '.join(SIDES.values())} |", "|---|---|---|"]
    for fault, title in titles.items():
        cells = [CELLS[fault](faults[fault][side], setting) for side in SIDES]
        rows.append(f"| {title} | {' | '.join(cells)} |")
    return rows


def truncated(seen: Record, setting: Record) -> str:
    named = "the file is named" if seen["resume"]["names_the_file"] else "no file is named"
    return f"{_resumed(seen['resume'], setting)}; {named}"


def disk_full(seen: Record, setting: Record) -> str:
    left, intact = seen["left_of_the_failed_save"], seen["checkpoint_before_intact"]
    parts = [
        f"the save ends the run, {_ended(seen['save'])}",
        "nothing of it is left" if left is None else f"a partial checkpoint of {len(left)} files is left",
        "the checkpoint before is intact" if intact else "the checkpoint before is damaged",
        _resumed(seen["resume"], setting),
    ]
    return "; ".join(parts)


def nan_weight(seen: Record, setting: Record) -> str:
    run = seen["run"]
    logged = ", ".join(f"loss {value} in {several(count, 'log line')}" for value, count in _few(seen))
    if seen["not_finite_grad_norms"]:
        logged += f", gradient norm not finite in {seen['not_finite_grad_norms']}"
    saved = "nothing saved"
    if seen["tensors"]:
        saved = f"NaN in {seen['tensors_with_nan']} of {seen['tensors']} tensors saved"
    elif seen["checkpoints"]:
        saved = f"{len(seen['checkpoints'])} checkpoints saved"
    end = f"trains {run['last_step']} steps, exit code 0" if run["exit"] == 0 else _ended(run)
    return f"{end}; {logged or 'no loss logged'}; {saved}"


def _few(seen: Record) -> list[tuple[str, int]]:
    return sorted(seen["logged_losses"].items(), key=lambda item: -item[1])[:3]


def resume(seen: Record, setting: Record) -> str:
    twice, again = seen["straight_twice"], seen["resume"]
    control = "" if _equal(twice) else " (though two runs that never stopped differ as well)"
    if again["exit"]:
        return _ended(again) + control
    found = again["against_straight"]
    if _equal(found):
        return f"all {found['steps_compared']} losses and {found['tensors']} weight tensors bit-identical" + control
    losses = "losses equal"
    if found["first_different_step"]:
        losses = (
            f"loss differs from step {found['first_different_step']} on, by up to "
            f"{found['largest_loss_difference']:.2g}, in {found['different_steps']} of {found['steps_compared']} steps"
        )
    return f"{losses}; {found['different_tensors']} of {found['tensors']} weight tensors differ{control}"


def _resumed(seen: Record, setting: Record) -> str:
    if seen["exit"] == 0:
        equal = "bit-identical to never stopping" if _equal(seen["against_straight"]) else "not as without a stop"
        return f"resumes from step {seen['began_at']} by itself and ends at {seen['last_step']}, {equal}"
    by_name = seen.get("by_name")
    hint = ""
    if by_name:
        hint = f"; from an older checkpoint named by hand it fails too, {_ended(by_name)}"
        if by_name["exit"] == 0:
            hint = f"; the whole checkpoint of step {by_name['began_at']} works when named by hand"
    return f"resume dies, {_ended(seen)}{hint}"


def _ended(seen: Record) -> str:
    """Exit code and message, without an exception's module and without our advice."""
    text = re.sub(r"^[\w.]+\.(?=\w+:)", "", (seen["error"] or "").split(". Fix: ")[0])
    text = text if len(text) <= 200 else f"{text[:197]}…"
    return f"exit code {seen['exit']}: `{text.replace('|', '/').replace('`', chr(39))}`"


def _equal(found: Record) -> bool:
    return found["different_steps"] == 0 and found.get("different_tensors") == 0


CELLS = {"truncated": truncated, "disk_full": disk_full, "nan_weight": nan_weight, "resume": resume}
