"""Attention in JAX behind one signature: q, k, v [M, T, H, h] and segment ids [M, T] -> [M, T, H, h]. k and v may have
fewer heads, each of which serves as many neighbouring heads of q (Ainslie et al. 2023).

A token sees the tokens of its own segment id, but no later ones if that is negative. Padding (segment 0) sees padding,
so no row of the softmax is empty.

way             taken when                                                 computed by
splash          TPU in bf16, rows of a multiple of 128 tokens, no          JAX's Pallas kernel: T x T is never in memory
                dropout, no row that is read causally                      (on v2 and v3 "splash in fp32")
causal splash   the same, but every row is read causally                   the same with a causal mask
dense           otherwise                                                  scores of all pairs, then products

The `jax.checkpoint` around the layer decides what is kept for the gradients: the result of dense, from which the scores
are computed again, and the inputs of splash's own backward kernel.
Under `jax.shard_map` splash needs `check_vma=False`: its kernels do not declare over which axes their results vary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.typing import DTypeLike

from maskwright.model.jax.parts import RESIDUALS, kept

LANES = 128
"""Width of a TPU's registers: blocks are multiples of it, and arrays with a narrower last axis are padded to it."""

LARGEST_BLOCK = 512
"""2048 x 2048 scores do not fit the vector memory of v5e and 7x; 1024 x 1024 not v4's and v5p's with heads of 256."""

WIDEST_HEAD = 256

KERNELS_IN_FP32 = ("TPU v2", "TPU v3")
"""Their kernels have products of fp32 alone (libtpu 0.0.42.1: "Unsupported matmul RHS type on target")."""


def choose_way(
    chip: str, tokens: int, head_width: int, dropout: float, dtype: DTypeLike, *, causal: bool | None = False
) -> str:
    """Chooses from static facts alone, so that a CPU host that compiles for a TPU chooses as the TPU's own would.
    `chip`: the device's kind in JAX's words. `causal`: `Batch.causal`; splash has one mask for all rows.

    fp32 never uses splash, whose products name no precision, so that a TPU may round their factors to bf16.
    """
    fits = jnp.dtype(dtype) == jnp.bfloat16 and tokens % LANES == 0 and head_width <= WIDEST_HEAD
    if not chip.startswith("TPU") or not fits or dropout or causal is None:
        return "dense"
    return "causal " * causal + "splash" + " in fp32" * (chip in KERNELS_IN_FP32)


def attention(
    q: Array,
    k: Array,
    v: Array,
    segment_ids: Array,
    *,
    way: str,
    window: int | None = None,
    dropout: float = 0.0,
    key: Array | None = None,
) -> Array:
    """softmax(q k^T / sqrt(h)) v within segments (Vaswani et al. 2017). `key` decides what dropout zeroes. `window`:
    number of tokens to either side that a token sees; None for all."""
    dtype = q.dtype
    if way == "dense":
        return dense(q, k, v, segment_ids, dropout, key, window)
    if dropout:
        raise ValueError("splash attention has no dropout; see `choose_way`")
    if way.endswith("fp32"):
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    return splash(q, k, v, segment_ids, window, causal=way.startswith("causal")).astype(dtype)


def dense(
    q: Array,
    k: Array,
    v: Array,
    segment_ids: Array,
    dropout: float = 0.0,
    key: Array | None = None,
    window: int | None = None,
) -> Array:
    """Attention in plain operations, with softmax in fp32: used except on a TPU, and the kernel's slow twin."""
    place, precision = jnp.arange(q.shape[1]), jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    same = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    together = same & ((segment_ids >= 0)[:, None, :, None] | (place[:, None] >= place))
    if window is not None:
        together &= jnp.abs(place[:, None] - place) <= window
    if (each := q.shape[2] // k.shape[2]) > 1:
        k, v = (jnp.repeat(x, each, axis=2) for x in (k, v))
    scores = jnp.einsum("mthd,mshd->mhts", q, k, precision=precision, preferred_element_type=jnp.float32)
    p = jax.nn.softmax(jnp.where(together, scores * q.shape[-1] ** -0.5, -jnp.inf), axis=-1)
    if dropout:
        if key is None:
            raise ValueError("dropout needs a key")
        p = jnp.where(jax.random.bernoulli(key, 1.0 - dropout, p.shape), p / (1.0 - dropout), 0.0)
    mixed = jnp.einsum("mhts,mshd->mthd", p.astype(q.dtype), v, precision=precision, preferred_element_type=jnp.float32)
    return kept(mixed.astype(q.dtype))


def splash(
    q: Array, k: Array, v: Array, segment_ids: Array, window: int | None = None, *, causal: bool = False
) -> Array:
    """Online softmax over blocks of keys in one TPU kernel, and the gradients in one or two more. With `causal`,
    padding sees no later padding either, unlike in `dense`; nothing is predicted of it.

    If one block is the whole row, one backward kernel makes all three gradients. Otherwise, that kernel would write q's
    gradient in bf16 parts, one for each block of keys, to be added up later: a second kernel, which adds in fp32, needs
    less memory and is more exact. Heads narrower than a register are passed tokens-last; otherwise half of the kernels'
    input is padding.
    """
    _, T, H, h = q.shape
    block = max(size for size in range(LANES, LARGEST_BLOCK + 1, LANES) if T % size == 0)
    whole = block == T
    layout = kernels.QKVLayout.SEQ_MINOR if h < LANES else kernels.QKVLayout.HEAD_DIM_MINOR
    seen: masks.Mask = masks.FullMask((T, T))
    if window is not None:
        seen = masks.LocalMask((T, T), (window, 0 if causal else window), 0)
    elif causal:
        seen = masks.CausalMask((T, T))
    kernel = kernels.make_splash_mha_single_device(
        masks.MultiHeadMask([seen] * H),
        block_sizes=kernels.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=None if whole else block,
            block_kv_dq=None if whole else block,
            use_fused_bwd_kernel=whole,
            q_layout=layout,
            k_layout=layout,
            v_layout=layout,
        ),
        residual_checkpoint_name=RESIDUALS,
    )
    scaled = (q.astype(jnp.float32) * h**-0.5).astype(q.dtype)
    by_head = (x.transpose(0, 2, 1, 3) for x in (scaled, k, v))
    return jax.vmap(kernel)(*by_head, kernels.SegmentIds(segment_ids, segment_ids)).transpose(0, 2, 1, 3)
