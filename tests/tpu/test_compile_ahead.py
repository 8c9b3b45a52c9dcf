"""Google's own TPU compiler on the very step, without a TPU. Run by `scripts/test-tpu`, which installs libtpu."""

import importlib.util
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from maskwright.core import storage
from maskwright.core.errors import ConfigError
from maskwright.engines.jax.aot import SETTINGS
from maskwright.tasks.planning import slices as task
from maskwright.tasks.pretrain.model import model_without_store

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="needs libtpu (700 MB): scripts/test-tpu installs it and runs these",
)


def base(config, **keys):
    values = {"model.size": "base", "model.hidden_size": None, "model.num_attention_heads": None, "data.seq_len": 512}
    workers = {"batch.micro_batch_rows": 32, "batch.virtual_workers": 16, "engine.dtype": "bf16"}
    return config(**values | workers | keys)


def fitted(config, on):
    (program,) = task.plan(config, model_without_store(config, 50_265), on).programs
    return program.result


SIXTEEN = {
    ("all-to-all", True): (8, 2 * 12 * 256**2 * 2),  # the layers' gradients, in bf16
    ("all-reduce", False): (5, pytest.approx(52e6, rel=0.01)),  # above all the embeddings' gradient, in fp32
    ("all-gather", False): (8, 27_526_144),  # in bf16: the embeddings, and some of a layer's, forward or backward
    ("all-gather", True): (11, 4_718_592),
}
LIMITED = {("all-reduce", False): (5, pytest.approx(66.5e6, rel=0.01)), ("all-gather", False): (1, 25_755_648)}
"""Of a v5e slice of more than 16 chips, once an update: all gradients in fp32, and the layers' weights in bf16, which
the compiler gathers by an all-reduce; the embeddings."""


@pytest.mark.parametrize(
    ("slice_", "chips", "wanted"), [("v5e:4x4", 16, SIXTEEN), ("v6e:4x4", 16, SIXTEEN), ("v5e:16x16", 256, LIMITED)]
)
def test_the_layers_gradients_are_sent_while_a_chip_computes(config, slice_, chips, wanted):
    """The text has the loop's layer and the last one, with four matrices each. The bounds on memory are what keeps
    activations local: the logits of 16 chips alone are 540 MB."""
    keys = {"model.hidden_size": 256, "model.num_attention_heads": 4, "model.num_hidden_layers": 3, "data.seq_len": 128}
    workers = {"batch.virtual_workers": chips, "batch.micro_batch_rows": 8, "engine.dtype": "bf16"}
    result = fitted(config(**keys, **workers), slice_)
    share = 12 * 15.3e6 / chips  # of the weights and two moments
    assert share < result.arguments_bytes < 1.1 * share + 1e6
    assert 3e7 < result.needed_bytes - result.arguments_bytes < 2e8
    assert {(one.kind, one.beside): (one.count, one.bytes) for one in result.collectives} == wanted


@pytest.mark.parametrize(
    ("kind", "slice_"),
    [
        ("roberta", "v2:2x2"),
        ("modernbert", "v3:2x2"),
        ("roberta", "v4:2x2x2"),
        ("modernbert", "v5p:2x1x1"),
        ("modernbert", "tpu7x:2x2x1"),
    ],
)
def test_other_chips_take_other_models(config, slice_, kind):
    """Muon, several micro-batches, real dropout or none: small, since only whether it compiles is asked."""
    run = config(
        **{"model.architecture": kind, "optimizer.kind": "muon", "data.seq_len": 128, "engine.dtype": "bf16"}
        | {"batch.virtual_workers": 16, "model.hidden_dropout": 0.1 if kind == "roberta" else 0.0}
        | {"model.global_attn_every_n_layers": 2 if kind == "modernbert" else 1}
    )
    result = fitted(run, slice_)
    assert result.fits and result.compile_seconds > 0.0


def test_what_does_not_fit_comes_with_the_compilers_own_numbers(config):
    run = base(config, **{"batch.micro_batch_rows": 256})
    found = fitted(run, "v5e:2x4")
    assert not found.fits
    assert 15.0 * 2**30 < found.limit_bytes < 16.0 * 2**30 < found.needed_bytes


def test_a_topology_that_is_not_made_is_refused_in_the_compilers_words(config):
    from maskwright.core.errors import MaskwrightError

    with pytest.raises(MaskwrightError, match="v5e:3x3: the TPU compiler refuses it: .*not divisible"):
        fitted(base(config), "v5e:3x3")


def test_devices_that_the_hosts_of_a_slice_do_not_divide_are_refused(config):
    """Six of a v6e:4x4, four hosts; four of a v5e:2x4 are of one host."""
    keys = {"engine.kind": "jax", "data.seq_len": 128, "batch.virtual_workers": 12}
    with pytest.raises(ConfigError, match=r"engine.devices: 6 devices were requested, but there are 16 on 4 hosts"):
        fitted(config(**keys, **{"engine.devices": 6}), "v6e:4x4")
    assert fitted(config(**keys, **{"engine.devices": 4}), "v5e:2x4").devices == 4


SCORE = """
import sys
from maskwright.core import storage
from maskwright.engines.jax.aot import CompileRequest, program_for
request = CompileRequest(**storage.read_json(sys.argv[1]))
program, _ = program_for(request)
sizes = {"rows": request.rows, "tokens": request.tokens, "slots": request.slots}
state, batch, *_ = program.update_shapes(micro_batches=2, **sizes)
compiled = program.jitted("score").lower(state["parameters"], batch).compile()
print("peak", compiled.memory_analysis().peak_memory_in_bytes)
"""


def test_evaluation_compiles_too(config, tmp_path, monkeypatch):
    asked = []
    made = task.compiled

    def remember(request):
        asked.append(request)
        return made(request)

    monkeypatch.setattr(task, "compiled", remember)
    keys = {"engine.kind": "jax", "engine.dtype": "bf16", "data.seq_len": 128, "batch.virtual_workers": 16}
    update = fitted(config(**keys, **{"engine.sharding": "fsdp"}), "v5e:2x4")
    wanted = str(tmp_path / "request.json")
    storage.write_json(wanted, asdict(asked[0]))
    ended = subprocess.run(
        [sys.executable, "-c", SCORE, wanted], env={**os.environ, **SETTINGS}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert 0 < int(ended.stdout.split()[-1]) < update.needed_bytes
