"""What `maskwright plan` makes of what the compiler says; the compiler itself is in tests/tpu."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from maskwright.cli.main import run
from maskwright.config.pretraining import RunConfig
from maskwright.core.errors import ConfigError
from maskwright.engines.jax.aot import Collective, CompileRequest, CompileResult
from maskwright.model.config import model_config
from maskwright.model.hf.config import to_hf_config
from maskwright.tasks.planning import slices as task
from maskwright.tasks.pretrain.model import model_without_store

GIB = 2**30
MADE_UP_SLICE = """
from types import SimpleNamespace
from maskwright.engines.jax import aot as jax_aot
devices = [SimpleNamespace(process_index=i // 4, id=i) for i in range(16)]
jax_aot.topology = lambda name: SimpleNamespace(devices=devices)
jax_aot.main()
"""


class Compiler:
    """A stand-in whose memory grows in a straight line with the rows; remembers what it was asked."""

    def __init__(self, limit_gib: float, fixed_gib: float, row_gib: float) -> None:
        self.limit, self.fixed, self.row, self.asked = limit_gib, fixed_gib, row_gib, list[int]()
        self.requests = list[CompileRequest]()

    def __call__(self, request: CompileRequest) -> CompileResult:
        self.asked.append(request.rows)
        self.requests.append(request)
        return self.result(request.rows, request.virtual_workers // 8)

    def result(self, rows: int, micro_batches: int = 1) -> CompileResult:
        needed = self.fixed + self.row * rows + (1.2 if micro_batches > 1 else 0.0)  # a second gradient
        fits = needed <= self.limit
        sizes = {"limit_bytes": round(self.limit * GIB), "needed_bytes": round(needed * GIB), "arguments_bytes": GIB}
        collectives = [Collective("all-gather", True, 6, 2**21)] if fits else []
        return CompileResult(
            "TPU v5 lite", 8, max(1, micro_batches), fits, collectives=collectives, compile_seconds=1.0,
            versions={"jax": "0"}, **sizes
        )  # fmt: skip


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler(limit_gib=15.75, fixed_gib=1.5, row_gib=0.131)
    monkeypatch.setattr(task, "compiled", made)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return made


def fit(config: RunConfig, on: str = "v5e:2x4") -> task.SliceFit:
    return task.plan(config, model_without_store(config, 400), on)


def test_the_command_says_by_how_much_a_run_does_not_fit_and_ends_with_1(
    config: Callable[..., RunConfig], compiler: Compiler, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    keys = {"batch.micro_batch_rows": 128, "batch.virtual_workers": 8, "data.seq_len": 512, "engine.kind": "jax"}
    monkeypatch.setattr("maskwright.config.retrieval.read_any_config", lambda name, overrides: config(**keys))
    assert run(["plan", "any", "--on", "v5e:2x4", "--vocab-size", "400", "--json"]) == 1
    (place,) = json.loads(capsys.readouterr().out)["places"]
    (program,) = place["compiled"]["programs"]
    assert (place["kind"], program["result"]["micro_batches"], place["notes"]) == ("projected", 1, [])
    assert not program["result"]["fits"]
    assert run(["plan", "any", "--on", "v5e:2x4", "--vocab-size", "400"]) == 1
    assert (
        "1 micro-batch a device of 128 rows of 512 tokens: does not fit: 18.27 of 15.75 GiB a device, 1.16 times the "
        "limit (compiled in 1 s). Fix: halve batch.micro_batch_rows"
    ) in capsys.readouterr().out
    keys |= {"batch.micro_batch_rows": 64, "batch.virtual_workers": 16}
    assert run(["plan", "any", "--on", "v5e:2x4", "--vocab-size", "400"]) == 0
    assert "2 micro-batches a device of 64 rows of 512 tokens: fits: 11.08 of" in capsys.readouterr().out
    keys["batch.virtual_workers"] = 1
    assert run(["plan", "any", "--on", "v5e:2x4", "--vocab-size", "400"]) == 1
    assert "virtual worker" in capsys.readouterr().out


def test_each_phase_is_compiled_and_rows_of_both_kinds_stand_for_their_shape(
    config: Callable[..., RunConfig], compiler: Compiler
) -> None:
    """Attention over rows of both kinds needs the most memory."""
    phases = [{"until_step": 4, "seq_len": 16, "rows_per_step": 1024}, {"until_step": 8, "masking_rate": 0.16}]
    keys = {"batch.micro_batch_rows": 4, "batch.virtual_workers": 8}
    found = fit(config(**keys, phases=phases))
    assert [(one.rows, one.tokens) for one in compiler.requests] == [(128, 16), (4, 32)]
    assert [program.result.fits for program in found.programs] == [False, True] and not found.fits
    compiler.requests.clear()
    mixed, causal = {"until_step": 4, "seq_len": 16, "causal_share": 0.5}, {"until_step": 6, "causal_share": 1.0}
    fit(config(phases=[mixed, causal, {"until_step": 8, "causal_share": 0.5}]))
    assert [(request.tokens, request.causal) for request in compiler.requests] == [(16, None), (32, None)]


def test_without_the_compiler_it_says_what_to_install(
    config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"--on: the package libtpu is not installed. Fix: .*scripts/install --tpu;.*\[tpu\]"
    ):
        fit(config(), "v6e:4x4")


def test_a_model_that_is_continued_is_compiled_with_the_dropout_of_the_run(
    config: Callable[..., RunConfig], compiler: Compiler, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    shape = model_config(config().model, 300, 64)
    (folder / "config.json").write_text(json.dumps(to_hf_config(replace(shape, hidden_dropout_prob=0.1))))
    workers = {"batch.virtual_workers": 8, "model.init_from": str(folder)}
    for rate in (0.0, 0.2):
        run = config(**workers, **{"model.hidden_dropout": rate, "model.attention_dropout": rate})
        fit(run, "v5e:2x4")
        model = compiler.requests[-1].model
        assert (model["hidden_dropout_prob"], model["attention_probs_dropout_prob"]) == (rate, rate)
        assert model["vocab_size"] == 300


def test_what_the_compilers_process_refuses_is_a_mistake_in_the_configuration(
    config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole process, in which only the slice is made up: four devices on each of four hosts."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    real = subprocess.run

    def instead(command: list[str], **more: Any) -> Any:
        return real([command[0], "-c", MADE_UP_SLICE, *command[4:]], **more)

    monkeypatch.setattr(subprocess, "run", instead)
    with pytest.raises(ConfigError, match=r"engine.devices: 6 devices were requested, but there are 16 on 4 hosts"):
        fit(config(**{"engine.kind": "jax", "engine.devices": 6}), "v6e:4x4")
