"""The table of encoders of docs/recipes.md, made of what the tests run on: no entry is without a test."""

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
    "eurobert": "byte-level BPE (Llama 3's)",
    "esm": "letters (ESM's)",
    "deberta": "Unigram (of SentencePiece)",
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
        in_both = not any(test_transformers.SHAPES[name].facts.relative for name in shapes)
        cells = ["; ".join(tokenizers) or "-", "-" if not shapes else "yes" if in_both else "in torch"]
        full = test_transformers.PUBLISHED.items()
        cells += ["; ".join(name for name, (shape, _) in full if shape.architecture == kind) or "-"]
        heads = {task for of, task in test_heads.HEADS if of == kind}
        missing = [task.replace("_", " ") for task in test_heads.TASKS if task not in heads]
        cells += ["yes" if not missing else f"all but {', '.join(missing)}" if heads else "-"]
        cells += ["every head" if kind in finetuned.SHAPES else "pairs" if tokenizers else "-"]
        rows.append(f"| {family.title} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
