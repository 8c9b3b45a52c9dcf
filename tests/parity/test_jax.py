"""The JAX engine is the torch engine's twin: every option, within 1e-5 in fp32."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("jax", reason="needs the extra jax")

from reference import parity
from reference.parity_rows import ROWS

from maskwright.core.config import RunConfig
from maskwright.data.store import TokenStore

parity.use_virtual_devices()


QUICK = ("roberta with dropout, another seed", "muon, modernbert", "4 devices, fsdp")
"""Both architectures and optimizers, and what is cut over devices; all rows are compared with --long."""


@pytest.mark.parametrize("row", [row if row in QUICK else pytest.param(row, marks=pytest.mark.long) for row in ROWS])
def test_torch_and_jax_give_the_same_numbers(store: TokenStore, config: Callable[..., RunConfig], row: str) -> None:
    found = parity.compare(store, config, ROWS[row])
    assert found.largest < parity.TOLERANCE, found
