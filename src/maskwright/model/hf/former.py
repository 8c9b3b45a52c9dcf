"""Names of weights in files that differ from the names in classes of `transformers`: of UltraBERT, NomicBERT and GTE,
and names with a wrapper's prefix.

Its `save_pretrained` writes the names of the code that these families were published with, unless it is called with
`save_original_format=False` (`conversion_mapping.py` there). NomicBERT and GTE have some matrices in one there. Both
forms are read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from maskwright.model.config import ModelConfig
from maskwright.model.facts import Architecture
from maskwright.model.hf.names import encoder_pieces
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
"""Prefixes of names in files, and in our table."""

OLD_ENDS = {".gamma": ".weight", ".beta": ".bias"}
"""The first BERTs' names for the numbers of a LayerNorm; transformers renames them too."""
INSIDE = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_forward_module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Prefixes by which torch.compile, DeepSpeed, FSDP and checkpointing mark what they wrap. They mean nothing else."""
AROUND = ("module.", "model.", "auto_model.")
"""Prefixes that DistributedDataParallel, a user's class (Lightning's) and sentence-transformers add to all names."""


def without_wrappers(names: Collection[str], config: ModelConfig) -> tuple[dict[str, str], list[str]]:
    """(each of a model's `names` in its files -> the name without a wrapper's prefix; the prefixes).

    The names stay the same unless they then include `config`'s encoder: a prefix of only some names may mean
    something."""
    anchor = next(encoder_pieces(config)).hf_name
    wanted = {anchor, anchor.partition(".")[2]}
    unchanged = {name: name for name in names}
    result = {name: INSIDE.sub("", name) for name in names}
    taken_off = sorted({part for name in names for part in INSIDE.findall(name)})
    while wanted.isdisjoint(_renamed(name, config.architecture) for name in result.values()):
        begin = next((one for one in AROUND if all(name.startswith(one) for name in result.values())), None)
        if begin is None or not result:
            return unchanged, []
        result = {name: inner.removeprefix(begin) for name, inner in result.items()}
        taken_off.append(begin)
    return (result, taken_off) if len(set(result.values())) == len(result) else (unchanged, [])


def _renamed(name: str, kind: Architecture) -> str:
    name = next((name.removesuffix(old) + new for old, new in OLD_ENDS.items() if name.endswith(old)), name)
    begins = BEGINS.get(kind, {}).items()
    name = next((new + name.removeprefix(old) for old, new in begins if name.startswith(old)), name)
    for old, new in RENAMED.get(kind, {}).items():
        name = name.replace(old, new)
    return name


def in_names_of_the_class(name: str, tensor: Tensor, kind: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Yields a file's tensor, or the parts of a joined tensor, under the names of the family's class."""
    name = _renamed(name, kind)
    for old, parts in JOINED.get(kind, {}).items():
        if old in name and tensor.shape and tensor.shape[0] % len(parts) == 0:
            yield from ((name.replace(old, part), tensor.part(n, len(parts))) for n, part in enumerate(parts))
            return
    yield name, tensor
