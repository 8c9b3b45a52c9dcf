"""Devices and frameworks that are asked for and not there: one line, with what to do, and nothing left behind."""

import importlib.util

import pytest

HAS_JAX = importlib.util.find_spec("jax") is not None
if HAS_JAX:
    from reference import parity

    parity.use_virtual_devices()


TWO = {"kind": "jax", "device": "cpu", "devices": 2}
MET = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
EMPTY = {}


@pytest.mark.parametrize(
    ("engine", "workers", "variables", "said"),
    [
        ({"kind": "jax", "device": "tpu"}, 1, EMPTY, "this machine has no TPU chip"),
        ({"kind": "jax", "device": "cuda"}, 1, EMPTY, "Fix: set engine.kind: torch"),
        ({"kind": "jax", "device": "auto"}, 1, EMPTY, "this machine has an NVIDIA GPU"),
        ({"kind": "jax", "devices": 1000}, 1000, EMPTY, "1000 devices were requested"),
        ({"kind": "jax", "devices": 4}, 6, EMPTY, "6 virtual workers cannot be shared out evenly over 4 devices"),
        ({"kind": "torch", "devices": 3}, 2, EMPTY, "2 virtual workers cannot be shared out evenly over 3 processes"),
        ({"kind": "torch", "device": "cuda", "devices": 2}, 2, EMPTY, "2 GPUs were requested, and this machine has 0"),
        ({"kind": "jax", "reproducibility": "exact"}, 1, EMPTY, "jax sums gradients in the order of its devices"),
        ({"kind": "torch", "sharding": "fsdp"}, 2, EMPTY, "sharding fsdp is for jax"),
        ({"kind": "torch", "device": "tpu"}, 1, EMPTY, "torch does not compute on TPUs. Fix: set engine.kind: jax"),
        (TWO, 1, {"WORLD_SIZE": "two"}, "invalid literal for int"),
        (TWO, 1, {"WORLD_SIZE": "3", "RANK": "0", **MET}, "shared out evenly over 3"),
        (TWO, 1, {"WORLD_SIZE": "2"}, "MASTER_ADDR: WORLD_SIZE is 2, but MASTER_ADDR is not set"),
        (TWO, 1, {"WORLD_SIZE": "2", "RANK": "2", **MET}, "RANK 2 is not one of 2"),
    ],
)
def test_a_device_or_a_partner_that_is_not_there(
    cli, config_file, tmp_path, monkeypatch, engine, workers, variables, said
):
    if engine["kind"] == "jax":
        if not HAS_JAX:
            pytest.skip("needs the extra jax")
        monkeypatch.setattr("maskwright.engines.jax.processes.tpu_chips", lambda: 0)
        monkeypatch.setattr("maskwright.engines.jax.processes.cuda_devices", lambda: 1)
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    path = config_file(engine={"device": "cpu", **engine}, batch={"micro_batch_rows": 1, "virtual_workers": workers})
    result = cli("pretrain", path, "--run", tmp_path / "run")
    assert result.code == 2 and said in result.error
    assert not (tmp_path / "run").exists()


def test_jax_that_is_not_installed(cli, config_file, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "jax" else find(name, *rest))
    result = cli("pretrain", config_file(engine={"kind": "jax"}), "--run", tmp_path / "run")
    assert (
        result.code == 2
        and "engine.kind: the package jax is not installed. Fix: in a clone run scripts/install --jax;" in result.error
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not HAS_JAX, reason="needs the extra jax")
def test_programs_are_kept_where_jax_has_no_folder_of_its_own(tmp_path, monkeypatch, capsys):
    import jax

    from maskwright.engines.jax.processes import CACHE_FOLDER, _keep_programs

    def kept():
        _keep_programs()
        folder = getattr(jax.config, CACHE_FOLDER)
        return folder

    before = getattr(jax.config, CACHE_FOLDER), jax.config.jax_compilation_cache_max_size
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path))
    try:
        jax.config.update(CACHE_FOLDER, None)
        (tmp_path / "jax").write_text("a file")
        assert kept() is None
        assert "is a file, but a folder is needed" in capsys.readouterr().err
        (tmp_path / "jax").unlink()
        assert kept() == str(tmp_path / "jax")
        jax.config.update(CACHE_FOLDER, "/elsewhere")
        assert kept() == "/elsewhere"
    finally:
        jax.config.update(CACHE_FOLDER, before[0])
        jax.config.update("jax_compilation_cache_max_size", before[1])
