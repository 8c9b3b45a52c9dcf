"""A RoBERTa of fairseq as a folder of `transformers`: its names, and its config.json. Ids stay as they are: both count
`<s>`, `<pad>`, `</s>` and `<unk>` from 0, then the dictionary, with `<mask>` last."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maskwright.core.errors import ModelError
from maskwright.model.hf.names import Parameters

INSIDE = "sentence_encoder."
"""A part of the names of all RoBERTas of fairseq."""
SETTINGS = ("args", "cfg.model", "cfg")
"""Where its checkpoints hold the model's settings: later ones in `cfg`, with None as `args`."""
_OUTSIDE_LAYERS = {
    "embed_tokens": "embeddings.word_embeddings",
    "embed_positions": "embeddings.position_embeddings",
    "emb_layer_norm": "embeddings.LayerNorm",
    "layernorm_embedding": "embeddings.LayerNorm",
}
_OF_A_LAYER = {
    "self_attn.q_proj": "attention.self.query",
    "self_attn.k_proj": "attention.self.key",
    "self_attn.v_proj": "attention.self.value",
    "self_attn.out_proj": "attention.output.dense",
    "self_attn_layer_norm": "attention.output.LayerNorm",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "final_layer_norm": "output.LayerNorm",
}
_HEAD = {"": "lm_head.decoder", "dense.": "lm_head.dense", "layer_norm.": "lm_head.layer_norm"}
_BUFFERS = ("version", "embed_positions._float_tensor")
ACTIVATIONS = {"gelu_accurate": "gelu_new", "gelu_fast": "gelu_new"}
"""fairseq's names of activations that differ in `transformers`."""


def from_fairseq(
    state: Mapping[str, NDArray[np.float32]], settings: Mapping[str, Any], kind: str, where: str
) -> tuple[Parameters, dict[str, Any], list[str]]:
    """(weights under the names of `transformers`, config.json, names that are left out) of a fairseq checkpoint's
    weights and settings. `kind`: its `model_type`. Raises `ModelError` for a model that is no plain RoBERTa."""
    result: Parameters = {}
    left: list[str] = []
    for name, value in state.items():
        bare = re.sub(r"^(encoder|decoder)\.", "", name)
        if bare.startswith(INSIDE):
            result |= _encoder(bare.removeprefix(INSIDE), value, where)
        elif match := re.fullmatch(r"lm_head\.((?:dense|layer_norm)\.)?(weight|bias)", bare):
            part = match[1] or ""
            new = "lm_head.bias" if bare == "lm_head.bias" else f"{_HEAD[part]}.{match[2]}"
            result[new] = value
        else:
            left.append(name)
    return result, _config(result, settings, kind, where), left


def _encoder(name: str, value: NDArray[np.float32], where: str) -> Parameters:
    if name in _BUFFERS:
        return {}
    inside, _, end = name.rpartition(".")
    if inside in _OUTSIDE_LAYERS:
        return {f"roberta.{_OUTSIDE_LAYERS[inside]}.{end}": value}
    if match := re.fullmatch(r"layers\.(\d+)\.(.+)", inside):
        layer = f"roberta.encoder.layer.{match[1]}"
        if match[2] in _OF_A_LAYER:
            return {f"{layer}.{_OF_A_LAYER[match[2]]}.{end}": value}
        if match[2] == "self_attn" and end in ("in_proj_weight", "in_proj_bias") and len(value) % 3 == 0:
            roles, kind = ("query", "key", "value"), end.removeprefix("in_proj_")
            parts = zip(roles, np.split(value, 3), strict=True)
            return {f"{layer}.attention.self.{role}.{kind}": part for role, part in parts}
    what = f"has {INSIDE}{name}, which no RoBERTa has"
    fix = "use a RoBERTa whose layers normalise after the sum, with learned positions"
    raise ModelError(what, where=where, fix=fix)


def _config(weights: Parameters, settings: Mapping[str, Any], kind: str, where: str) -> dict[str, Any]:
    heads = settings.get("encoder_attention_heads")
    if type(heads) is not int:
        fix = "give the checkpoint as fairseq saved it, with `args` or `cfg`"
        raise ModelError("does not give its number of attention heads", where=where, fix=fix)
    embeddings = "roberta.embeddings"
    needed = {
        f"{embeddings}.word_embeddings.weight": 2,
        f"{embeddings}.position_embeddings.weight": 2,
        "roberta.encoder.layer.0.intermediate.dense.weight": 2,
    }
    for name, dimensions in needed.items():
        if name not in weights or weights[name].ndim != dimensions:
            fix = "use a RoBERTa with learned positions"
            raise ModelError(f"has no tensor for {name}", where=where, fix=fix)
    words, positions, up = (weights[name] for name in needed)
    # fairseq's RoBERTa has no token types, and the class of `transformers` adds one.
    weights[f"{embeddings}.token_type_embeddings.weight"] = np.zeros((1, words.shape[1]), np.float32)
    layers = {name.split(".")[3] for name in weights if name.startswith("roberta.encoder.layer.")}
    activation = settings.get("activation_fn", "gelu")
    begins = "XLMRoberta" if kind == "xlm-roberta" else "Roberta"
    return {
        "architectures": [f"{begins}ForMaskedLM" if "lm_head.dense.weight" in weights else f"{begins}Model"],
        "model_type": kind,
        "vocab_size": words.shape[0],
        "hidden_size": words.shape[1],
        "num_hidden_layers": len(layers),
        "num_attention_heads": heads,
        "intermediate_size": up.shape[0],
        "max_position_embeddings": positions.shape[0],
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        "hidden_act": ACTIVATIONS.get(activation, activation),
        "hidden_dropout_prob": _share(settings.get("dropout")),
        "attention_probs_dropout_prob": _share(settings.get("attention_dropout")),
        "initializer_range": 0.02,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def _share(value: Any) -> float:
    """A dropout of fairseq's settings, or its RoBERTa's own."""
    return float(value) if isinstance(value, int | float) else 0.1
