"""README's table of encoders, made of what the tests run on: an entry without a test cannot be written there."""

from __future__ import annotations

import finetuned
from e2e.test_families import CASES
from parity import test_heads, test_transformers

from maskwright.model.hf.families import FAMILIES

TOKENIZERS = {
    "roberta": "byte-level BPE",
    "modernbert": "byte-level BPE",
    "bert": "WordPiece, cased",
    "bert-uncased": "WordPiece, uncased",
    "xlm-roberta": "Unigram",
    "camembert": "Unigram",
    "gemma": "BPE with ▁ (Gemma's)",
}


def table() -> str:
    rows = [
        "| encoder | continued with tokenizers of these kinds, exported, fine-tuned on pairs | masked LM in torch and "
        "JAX | in torch at the size of | every other head | ONNX |",
        "|---|---|---|---|---|---|",
    ]
    for kind, family in FAMILIES.items():
        tokenizers = dict.fromkeys(TOKENIZERS[words] for of, words, _ in CASES.values() if of == kind)
        shapes = [name for name in test_transformers.SHAPES if name.partition(",")[0] == kind]
        cells = ["; ".join(tokenizers) or "-", "yes" if shapes else "-"]
        full = test_transformers.PUBLISHED.items()
        cells += ["; ".join(name for name, (shape, _) in full if shape.architecture == kind) or "-"]
        cells += ["yes" if kind in test_heads.SHAPES else "-"]
        cells += ["every head" if kind in finetuned.SHAPES else "pairs" if tokenizers else "-"]
        rows.append(f"| {family.title} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
