"""The table of encoders of docs/recipes.md, made of what the tests run on: no entry is without a test."""

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


MODELS = {
    "roberta": "RoBERTa, DistilRoBERTa and relatives",
    "xlm-roberta": "XLM-R",
    "camembert": "CamemBERT",
    "bert": "BERT",
    "distilbert": "DistilBERT",
    "modernbert": "[ModernBERT](#local-attention), Ettin's encoders, mmBERT",
    "esm": "[ESM-2](#esm-2)",
    "mpnet": "[MPNet](#mpnet), all-mpnet-base",
    "deberta-v2": "[DeBERTa](#deberta) v2 and v3, mDeBERTa",
    "eurobert": "[EuroBERT](#eurobert)",
    "ultrabert": "UltraBERT",
    "nomic_bert": "[NomicBERT](#nomicbert-and-gte)",
    "gte": "[GTE](#nomicbert-and-gte) of `transformers` 5",
}


def table() -> str:
    rows = ["| `model_type` | models | engines | tokenizers | heads | ONNX |", "|---" * 6 + "|"]
    for kind in FAMILIES:
        tokenizers = dict.fromkeys(TOKENIZERS[words] for of, words, _ in CASES.values() if of == kind)
        shapes = [name for name in test_transformers.SHAPES if name.partition(",")[0] == kind]
        in_both = not any(test_transformers.SHAPES[name].facts.relative for name in shapes)
        cells = ["-" if not shapes else "torch, JAX" if in_both else "torch", "; ".join(tokenizers) or "-"]
        heads = {task for of, task in test_heads.HEADS if of == kind}
        missing = [task.replace("_", " ") for task in test_heads.TASKS if task not in heads]
        cells += ["all" if not missing else f"no {', '.join(missing)}" if heads else "-"]
        cells += ["all heads" if kind in finetuned.SHAPES else "pairs" if tokenizers else "-"]
        rows.append(f"| `{kind}` | {MODELS[kind]} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
