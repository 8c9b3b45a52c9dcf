"""Names of weights in files where `transformers` has others in its classes: those of UltraBERT,
NomicBERT and GTE.

Its `save_pretrained` writes the names of the code that these families were published with, unless it is called with
`save_original_format=False` (`conversion_mapping.py` there). NomicBERT and GTE have some matrices in one there. Both
ways are read.
"""

from __future__ import annotations

from collections.abc import Iterator

from maskwright.model.config import Architecture
from maskwright.model.hf.safetensors_file import Tensor

QUERIES_KEYS_VALUES = (".self_attn.q_proj.", ".self_attn.k_proj.", ".self_attn.v_proj.")
RENAMED: dict[Architecture, dict[str, str]] = {
    "nomic_bert": {
        "encoder.layers.": "layers.",
        "emb_ln.": "embeddings.LayerNorm.",
        ".attn.out_proj.": ".self_attn.o_proj.",
        ".fc11.": ".up_proj.",
        ".fc12.": ".gate_proj.",
        ".fc2.": ".down_proj.",
        ".norm1.": ".post_attention_layernorm.",
        ".norm2.": ".post_mlp_layernorm.",
    },
    "gte": {
        "encoder.layer.": "layers.",
        ".attention.o_proj.": ".self_attn.o_proj.",
        ".attn_ln.": ".post_attention_layernorm.",
        ".mlp_ln.": ".post_mlp_layernorm.",
        "lm_head.norm.": "lm_head.layer_norm.",
    },
}
JOINED: dict[Architecture, dict[str, tuple[str, ...]]] = {
    "nomic_bert": {".attn.Wqkv.": QUERIES_KEYS_VALUES},
    "gte": {
        ".attention.qkv_proj.": QUERIES_KEYS_VALUES,
        ".mlp.up_gate_proj.": (".mlp.up_proj.", ".mlp.gate_proj."),
    },
}
"""Parts of the names of tensors that hold several of a class's, one below the other."""
BEGINS: dict[Architecture, dict[str, str]] = {
    "ultrabert": {"ultrabert.": "model.", "cls.weight": "head.decoder.weight"},
    "gte": {"new.": "gte."},
}
"""How names begin in files, and in our table."""


def in_names_of_the_class(name: str, tensor: Tensor, kind: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Yields a file's tensor, or the parts of one that holds several, under the names of the family's class."""
    name = next(
        (new + name.removeprefix(old) for old, new in BEGINS.get(kind, {}).items() if name.startswith(old)), name
    )
    for old, new in RENAMED.get(kind, {}).items():
        name = name.replace(old, new)
    for old, parts in JOINED.get(kind, {}).items():
        if old in name and tensor.shape and tensor.shape[0] % len(parts) == 0:
            yield from ((name.replace(old, part), tensor.part(n, len(parts))) for n, part in enumerate(parts))
            return
    yield name, tensor
