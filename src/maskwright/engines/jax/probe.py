"""JAX's view of this machine, for `maskwright doctor`, which starts `python -m maskwright.engines.jax.probe`."""

from __future__ import annotations

import json

import jax
import jaxlib


def build() -> dict[str, object]:
    devices = jax.devices()
    return {
        "version": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "platform": devices[0].platform,
        "devices": [device.device_kind for device in devices],
        "hosts": jax.process_count(),
    }


if __name__ == "__main__":
    print(json.dumps(build()), flush=True)
