"""What a run says of itself for whoever wonders where its time and memory go."""

import json
from contextlib import suppress

import pytest

from maskwright.tasks.pretrain.run import pretrain
from maskwright.training.stop import StopRequest


def test_a_run_writes_where_its_time_goes_and_a_trace_on_request(config, tmp_path):
    run = tmp_path / "run"
    pretrain(config(), str(run), stop_request=StopRequest(profile_steps=2))
    report = json.loads((run / "engine.json").read_text())
    assert report["engine"].startswith("torch ")
    assert set(report["seconds"]) == {"dry_run", "data", "step", "wait", "evaluate", "save"}
    assert all(value >= 0.0 for value in report["seconds"].values()) and report["seconds"]["step"] > 0.0
    trace = json.loads((run / "profile" / "trace.json").read_text())
    multiplications = [event for event in trace["traceEvents"] if event.get("name") == "aten::addmm"]
    # two steps of two micro-batches, in each two layers of four matrices and the head's two
    assert len(multiplications) == 2 * 2 * (2 * 4 + 2)


def test_a_jax_run_writes_what_it_compiled(config, tmp_path):
    pytest.importorskip("jax", reason="needs the extra jax")
    from reference import parity

    with suppress(RuntimeError):  # where a test before it in this process has computed with JAX
        parity.use_virtual_devices()
    run = tmp_path / "run"
    pretrain(config(**{"engine.kind": "jax"}), str(run), stop_request=StopRequest(profile_steps=2))
    report = json.loads((run / "engine.json").read_text())
    assert report["engine"].startswith("JAX ")
    assert sorted(made["what"] for made in report["compiles"]) == ["score", "update"]
    update = next(made for made in report["compiles"] if made["what"] == "update")
    assert update["shapes"]["input_ids"] == [2, 1, 4, 32] and update["seconds"] > 0.0
    assert list((run / "profile").rglob("*.xplane.pb"))


def test_without_the_request_or_the_steps_there_is_no_trace(config, tmp_path, capsys):
    run = tmp_path / "run"
    pretrain(config(**{"schedule.steps": 8}), str(run))
    assert not (run / "profile").exists()
    pretrain(config(**{"schedule.steps": 7}), str(tmp_path / "short"), stop_request=StopRequest(profile_steps=2))
    assert "warning: --profile-steps 2: no whole profile, which needs a start of 8 steps" in capsys.readouterr().err
