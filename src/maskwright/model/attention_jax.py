"""Attention in JAX behind one signature: q, k, v [M, T, H, h] and segment ids [M, T] -> [M, T, H, h].

A token sees the tokens of its own segment id. Padding (segment 0) sees padding, so no row of the softmax is empty.

way          taken when                                                     computed by
splash       TPU in bf16, rows of a multiple of 128 tokens, no dropout      JAX's Pallas kernel; scores never leave the chip
dense        CPU, rows of up to 1024 tokens                                 products of all pairs, kept for the gradients
recomputed   otherwise                                                      the same, made again for the gradients

Under `jax.shard_map` splash wants `check_vma=False`: its kernels do not say over which axes their results vary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.typing import DTypeLike

KEPT_NAME = "attention"
"""What a `jax.checkpoint` policy calls the results (and for splash each query's log-sum). Kept, the forward kernel runs
once; not kept, twice."""

KEPT_UP_TO_TOKENS = 1024
"""On a CPU, longer rows make their scores (T x T for each head) again: kept for every layer they fill the memory."""

LANES = 128
"""Width of a TPU's registers: blocks are multiples of it, and arrays with a narrower last axis are padded to it."""

LARGEST_BLOCK = 512
"""A block of 2048 x 2048 scores does not fit any TPU's vector memory, 1024 not v4's and v5p's with wide heads."""


def choose_way(platform: str, tokens: int, head_width: int, dropout: float, dtype: DTypeLike) -> str:
    """By static facts alone, so that a CPU host compiling for a TPU chooses as that TPU would."""
    if platform == "tpu" and dtype == jnp.bfloat16 and tokens % LANES == 0 and head_width <= 256 and not dropout:
        return "splash"
    return "dense" if platform == "cpu" and tokens <= KEPT_UP_TO_TOKENS else "recomputed"


def attention(
    q: Array, k: Array, v: Array, segment_ids: Array, *, way: str, dropout: float = 0.0, key: Array | None = None
) -> Array:
    """softmax(q k^T / sqrt(h)) v within segments (Vaswani et al. 2017); `key` draws what dropout leaves out."""
    if way == "splash":
        assert not dropout, "the splash kernel knows no dropout"
        return splash(q, k, v, segment_ids)
    product = dense if way == "dense" else jax.checkpoint(dense, static_argnums=4)
    return checkpoint_name(product(q, k, v, segment_ids, dropout, key), KEPT_NAME)


def dense(q: Array, k: Array, v: Array, segment_ids: Array, dropout: float = 0.0, key: Array | None = None) -> Array:
    """All pairs, softmax in fp32: the slow twin of the kernel, and the fast way for short rows on a CPU."""
    precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
    scores = jnp.einsum("mthd,mshd->mhts", q, k, precision=precision, preferred_element_type=jnp.float32)
    together = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    p = jax.nn.softmax(jnp.where(together, scores * q.shape[-1] ** -0.5, -jnp.inf), axis=-1)
    if dropout:
        assert key is not None, "dropout wants a key"
        p = jnp.where(jax.random.bernoulli(key, 1.0 - dropout, p.shape), p / (1.0 - dropout), 0.0)
    p = p.astype(q.dtype)
    out = jnp.einsum("mhts,mshd->mthd", p, v, precision=precision, preferred_element_type=jnp.float32)
    return out.astype(q.dtype)


def splash(q: Array, k: Array, v: Array, segment_ids: Array) -> Array:
    """Online softmax over blocks of keys in one TPU kernel, and its gradients in one or two.

    One backward kernel makes all three gradients, but for rows of several blocks it leaves q's as one bf16 part for
    each, to be added up: there a second kernel, which adds in fp32, is more exact and takes less memory. Heads
    narrower than a register are held tokens-last, else half of the memory and traffic of q, k and v is padding.
    """
    _, T, H, h = q.shape
    block = max(size for size in range(LANES, min(T, LARGEST_BLOCK) + 1, LANES) if T % size == 0)
    of_q = None if block == T else block
    layout = kernels.QKVLayout.SEQ_MINOR if h < LANES else kernels.QKVLayout.HEAD_DIM_MINOR
    kernel = kernels.make_splash_mha_single_device(
        masks.MultiHeadMask([masks.FullMask((T, T))] * H),
        block_sizes=kernels.BlockSizes(
            *(block,) * 6, of_q, of_q, use_fused_bwd_kernel=of_q is None, q_layout=layout, k_layout=layout, v_layout=layout
        ),
        residual_checkpoint_name=KEPT_NAME,
    )
    scaled = (q.astype(jnp.float32) * h**-0.5).astype(q.dtype)
    rows_by_head = (x.transpose(0, 2, 1, 3) for x in (scaled, k, v))
    return jax.vmap(kernel)(*rows_by_head, kernels.SegmentIds(segment_ids, segment_ids)).transpose(0, 2, 1, 3)
