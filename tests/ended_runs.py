"""What runs have at their end, and that it is the same, bit for bit."""

from pathlib import Path
from typing import Any

from maskwright.engines.base import TrainState
from maskwright.prove.verify_resume import TIMES
from maskwright.run.directory import RunDirectory
from maskwright.training import checkpoint


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of its log, without their times."""
    return [{k: v for k, v in record.items() if k not in TIMES} for record in RunDirectory(str(run)).read_metrics()]


def state(run: Path, step: int | None = None) -> TrainState:
    """Of its newest checkpoint, or of that step's."""
    folder = run / "checkpoints"
    found = checkpoint.whole_steps(str(folder))[-1] if step is None else step
    return checkpoint.load(str(folder / f"step-{found:08d}"))[0]


def arrays(state: TrainState) -> dict[str, bytes]:
    named = {"": state.parameters, **state.moments}
    return {f"{kind} {name}": array.tobytes() for kind, found in named.items() for name, array in found.items()}


def require_same(one: TrainState, other: TrainState) -> None:
    ours, theirs = arrays(one), arrays(other)
    assert (one.step, ours.keys()) == (other.step, theirs.keys())
    assert [name for name in ours if ours[name] != theirs[name]] == []


def require_same_ends(*runs: Path) -> None:
    """The newest checkpoints of all, and their logs."""
    for run in runs[1:]:
        require_same(state(runs[0]), state(run))
        assert metrics(runs[0]) == metrics(run)
