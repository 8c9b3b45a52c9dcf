"""Torch against JAX, option by option, in fp32 on the CPU: the largest relative difference of each kind.

    python benchmarks/parity.py

The same comparison is a test (`tests/parity/test_jax.py`), on the same made-up text.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from common import write_result
from conftest import documents, small_config
from reference import parity
from reference.parity_rows import ROWS

from maskwright.data.prepare.driver import prepare
from maskwright.data.prepare.request import PrepareOptions, Request
from maskwright.text.sources import Sources
from maskwright.text.tokenizer import train_tokenizer


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        text, tokenizer = Path(folder, "stories.txt"), str(Path(folder, "tokenizer"))
        text.write_text("\n\n".join("\n".join(lines) for lines in documents(300)) + "\n", encoding="utf-8")
        sources = Sources([str(text)], layout="sentences")
        train_tokenizer(sources, tokenizer, vocab_size=400)
        store = prepare(Request(sources, tokenizer, str(Path(folder, "store")), PrepareOptions(valid_fraction=0.1)))

        def config(**keys: Any) -> Any:
            return small_config(store.location, **keys)

        parity.use_virtual_devices()
        print("| option | first loss | gradients | weights, 3 updates | 50 losses | held-out loss |")
        print("|---|---|---|---|---|---|")
        rows = {}
        for row, values in ROWS.items():
            found = parity.compare(store, config, values)
            rows[row] = asdict(found)
            print(f"| {row} | " + " | ".join(f"{value:.1e}" for value in astuple(found)) + " |", flush=True)
        worst = max(value for row in rows.values() for value in row.values())
        write_result("parity", {"largest": worst}, rows=rows)
        print(f"\nlargest {worst:.1e}, allowed {parity.TOLERANCE:.0e}")
    return 0 if worst < parity.TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
