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
from maskwright.core import storage
from maskwright.core.errors import ConfigError, InputError
from maskwright.data.store import TokenStore
from maskwright.engines.jax.aot import CompileRequest, CompileResult
from maskwright.model.config import model_config
from maskwright.model.hf.config import to_hf_config
from maskwright.tasks.planning import slices as task

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
        return self.result(request.rows, request.micro_batches)

    def result(self, rows: int, micro_batches: int = 1) -> CompileResult:
        needed = self.fixed + self.row * rows + (1.2 if micro_batches > 1 else 0.0)  # a second gradient
        fits = needed <= self.limit
        sizes = {"limit_bytes": round(self.limit * GIB), "needed_bytes": round(needed * GIB), "arguments_bytes": GIB}
        temporaries = round((needed - 1) * GIB) if fits else None
        collectives = {"all-reduce": 6} if fits else {}
        return CompileResult(
            "TPU v5 lite", 8, fits, temporaries_bytes=temporaries, collectives=collectives, compile_seconds=1.0,
            versions={"jax": "0"}, **sizes
        )  # fmt: skip


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler(limit_gib=15.75, fixed_gib=1.5, row_gib=0.131)
    monkeypatch.setattr(task, "_compile", made)
    monkeypatch.setattr(task, "_code", lambda: "the same")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("first", [1, 3, 32, 64, 104, 128, 500, 4096])
@pytest.mark.parametrize(("fixed", "row"), [(1.5, 0.131), (0.2, 0.9), (14.0, 1.7), (15.0, 3.0)])
def test_the_search_ends_at_the_largest_micro_batch_that_fits(first: int, fixed: float, row: float) -> None:
    stand_in = Compiler(15.75, fixed, row)
    found = task.largest_that_fits(first, stand_in.result(first), stand_in.result)
    truth = int((15.75 - fixed) / row)
    if truth == 0:
        assert found is None
    else:
        assert found is not None and found <= truth
        assert found == truth or (truth >= 16 and truth - found < 8)


def test_a_plan_that_does_not_fit_says_by_how_much_and_what_does(
    config: Callable[..., RunConfig], compiler: Compiler
) -> None:
    run = config(**{"batch.micro_batch_rows": 128, "batch.virtual_workers": 8, "data.seq_len": 512})
    found = task.plan(run, "v5e:2x4")
    assert (found.asked.fits, found.largest_rows, found.micro_batches) == (False, 104, 1)
    report = found.report()
    assert "micro-batch of 128 rows: does not fit: 18.27 of 15.75 GiB a device" in report
    assert "micro-batch of 104 rows: fits: 15.12 of 15.75 GiB" in report
    # 1,024 rows a step: 64 x 16 is the nearest that keeps them, on 8 devices
    assert "Set batch.micro_batch_rows: 64 and batch.virtual_workers: 16 (the same rows a step)" in report
    again = task.plan(
        config(**{"batch.micro_batch_rows": 64, "batch.virtual_workers": 16, "data.seq_len": 512}), "v5e:2x4"
    )
    assert (again.asked.fits, again.advice, again.micro_batches) == (True, [], 2)


def test_the_command_ends_with_1_where_the_compiler_says_no(
    config: Callable[..., RunConfig], compiler: Compiler, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    keys = {"batch.micro_batch_rows": 128, "batch.virtual_workers": 8, "data.seq_len": 512, "engine.kind": "jax"}
    monkeypatch.setattr("maskwright.config.pretraining.read_config", lambda name, overrides: config(**keys))
    assert run(["plan", "any", "--on", "v5e:2x4", "--vocab-size", "400", "--json"]) == 1
    (place,) = json.loads(capsys.readouterr().out)["places"]
    assert (place["kind"], place["compiled"]["largest_rows"], place["notes"]) == ("projected", 104, [])
    assert not place["compiled"]["asked"]["fits"]
    assert run(["plan", "any", "--on", "v5e:2x4", "--vocab-size", "400", "--no-search"]) == 1
    assert "  compiled    as configured it does not fit." in capsys.readouterr().out


def test_virtual_workers_that_the_slice_does_not_divide_are_named(
    config: Callable[..., RunConfig], compiler: Compiler
) -> None:
    found = task.plan(config(**{"batch.micro_batch_rows": 16, "batch.virtual_workers": 1}), "v6e:4x4")
    assert found.advice[0] == (
        "1 virtual workers cannot be shared out evenly over 8 devices. Set batch.micro_batch_rows: 2 and "
        "batch.virtual_workers: 8 (the same rows a step)"
    )


def test_each_phase_is_compiled_and_the_largest_is_judged(config: Callable[..., RunConfig], compiler: Compiler) -> None:
    phases = [{"until_step": 4, "seq_len": 16, "rows_per_step": 1024}, {"until_step": 8, "masking_rate": 0.16}]
    keys = {"batch.micro_batch_rows": 4, "batch.virtual_workers": 8, "phases": phases}
    found = task.plan(config(**keys), "v5e:2x4", search=False)
    assert [(one.rows, one.tokens) for one in compiler.requests] == [(128, 16), (4, 32)]
    assert found.asked_rows == 128 and found.asked.needed_bytes > 15.75 * GIB and found.rows_per_step == 1024
    report = found.report()
    assert "phase with rows of 16 tokens: micro-batch of 128 rows: does not fit: 18.27 of 15.75" in report
    assert "phase with rows of 32 tokens: micro-batch of 4 rows: fits" in report
    assert "of the phase with rows of 16 tokens, whose rows_per_step is their product:\nas configured it" in report


def test_phases_stay_in_order_and_rows_of_both_kinds_stand_for_their_shape(
    config: Callable[..., RunConfig], compiler: Compiler
) -> None:
    """Attention over rows of both kinds needs the most memory."""
    mixed, causal = {"until_step": 4, "seq_len": 16, "causal_share": 0.5}, {"until_step": 6, "causal_share": 1.0}
    task.plan(config(phases=[mixed, causal, {"until_step": 8, "causal_share": 0.5}]), "v5e:2x4", search=False)
    assert [(request.tokens, request.causal) for request in compiler.requests[:2]] == [(16, None), (32, None)]


def test_what_is_advised_was_compiled_and_fits(config: Callable[..., RunConfig], compiler: Compiler) -> None:
    """104 rows fit alone, but not as one of two micro-batches: the next that keep the batch are half of them."""
    run = config(**{"batch.micro_batch_rows": 208, "batch.virtual_workers": 8})
    found = task.plan(run, "v5e:2x4")
    assert found.largest_rows == 104 and not compiler.result(104, 2).fits
    assert "Set batch.micro_batch_rows: 52 and batch.virtual_workers: 32 (the same rows a step)" in found.report()
    assert "4 micro-batches of 52 rows: fits: 9.51 of 15.75 GiB" in found.report()


def test_without_a_search_nothing_is_advised(config: Callable[..., RunConfig], compiler: Compiler) -> None:
    run = config(**{"batch.micro_batch_rows": 128, "batch.virtual_workers": 8})
    found = task.plan(run, "v5e:2x4", search=False)
    assert found.advice == ["as configured it does not fit. Leave --no-search out to search for what fits"]
    assert compiler.asked == [128]


def test_a_damaged_cache_is_made_again(config: Callable[..., RunConfig], compiler: Compiler, tmp_path: Path) -> None:
    run = config(**{"batch.micro_batch_rows": 32, "batch.virtual_workers": 8})
    one = task.plan(run, "v5e:2x4", search=False)
    for damage in ("", "{}"):
        for path in (tmp_path / "maskwright" / "plan").iterdir():
            path.write_text(damage)
        assert task.plan(run, "v5e:2x4", search=False) == one
    assert len(compiler.asked) == 3


def test_where_not_one_row_fits_it_says_what_else(config: Callable[..., RunConfig], compiler: Compiler) -> None:
    compiler.fixed = 16.0
    run = config(**{"batch.micro_batch_rows": 8, "batch.virtual_workers": 8})
    assert "Not one row fits: try engine.sharding: fsdp" in task.plan(run, "v5e:2x4").report()
    run = config(
        **{"batch.micro_batch_rows": 8, "batch.virtual_workers": 8, "engine.kind": "jax", "engine.sharding": "fsdp"}
    )
    assert "Not one row fits: take a larger slice" in task.plan(run, "v5e:2x4").report()


def test_what_was_compiled_is_not_compiled_again(config: Callable[..., RunConfig], compiler: Compiler) -> None:
    run = config(**{"batch.micro_batch_rows": 32, "batch.virtual_workers": 8})
    one = task.plan(run, "v5e:2x4")
    asked = list(compiler.asked)
    assert task.plan(run, "v5e:2x4") == one
    assert compiler.asked == asked
    task.plan(config(**{"batch.micro_batch_rows": 32, "batch.virtual_workers": 8, "optimizer.beta1": 0.8}), "v5e:2x4")
    assert len(compiler.asked) == 2 * len(asked)


def test_without_the_compiler_it_says_what_to_install(
    config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"--on: the package libtpu is not installed. Fix: .*scripts/install --tpu;.*\[tpu\]"
    ):
        task.plan(config(), "v6e:4x4")


def test_a_store_that_is_not_here_needs_the_vocabulary(
    config: Callable[..., RunConfig], compiler: Compiler, store: TokenStore
) -> None:
    run: Any = config(**{"batch.virtual_workers": 8})
    away = run.model_copy(update={"data": run.data.model_copy(update={"store": "nowhere"})})
    with pytest.raises(InputError, match="nowhere: .*give --vocab-size"):
        task.plan(away, "v5e:2x4")
    size = store.vocabulary.size
    here, there = task.plan(run, "v5e:2x4"), task.plan(away, "v5e:2x4", vocab_size=size)
    assert replace(there, asked=here.asked) == here


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
        task.plan(run, "v5e:2x4", search=False)
        model = compiler.requests[-1].model
        assert (model["hidden_dropout_prob"], model["attention_probs_dropout_prob"]) == (rate, rate)
        assert model["vocab_size"] == 300


@pytest.mark.parametrize("damaged", [b"", b"{", b"\xff", b"[1]", b"{}", b'{"fits": true}'])
def test_a_damaged_file_of_the_cache_is_made_again(
    config: Callable[..., RunConfig], compiler: Compiler, damaged: bytes
) -> None:
    run = config(**{"batch.virtual_workers": 8})
    one = task.plan(run, "v5e:2x4", search=False)
    (place,) = Path(storage.cache_folder("plan")).iterdir()
    whole = place.read_bytes()
    place.write_bytes(damaged)
    assert task.plan(run, "v5e:2x4", search=False) == one
    assert (len(compiler.asked), place.read_bytes()) == (2, whole)


@pytest.mark.parametrize("name", ["LIBTPU_INIT_ARGS", "XLA_FLAGS"])
def test_other_options_of_the_compiler_are_compiled_anew(
    config: Callable[..., RunConfig], compiler: Compiler, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = config(**{"batch.virtual_workers": 8})
    monkeypatch.setenv(name, "--one")
    task.plan(run, "v5e:2x4", search=False)
    monkeypatch.setenv(name, "--another")
    task.plan(run, "v5e:2x4", search=False)
    assert len(compiler.asked) == 2


def test_what_the_compilers_process_refuses_is_a_mistake_in_the_configuration(
    config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole process, in which only the slice is made up: four devices on each of four hosts."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(task, "_code", lambda: "the same")
    real = subprocess.run

    def instead(command: list[str], **more: Any) -> Any:
        return real([command[0], "-c", MADE_UP_SLICE, *command[4:]], **more)

    monkeypatch.setattr(subprocess, "run", instead)
    with pytest.raises(ConfigError, match=r"engine.devices: 6 devices were asked for, 16 on 4 hosts are there. Fix:"):
        task.plan(config(**{"engine.kind": "jax", "engine.devices": 6}), "v6e:4x4")
