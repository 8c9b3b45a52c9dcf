"""Every way of attention in JAX against numpy in float64, one query at a time; the TPU's kernel is interpreted."""

from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")
jax.config.update("jax_platforms", "cpu")

import jax.numpy as jnp  # noqa: E402

from maskwright.model.jax import attention as attention_jax  # noqa: E402
from maskwright.model.jax.attention import attention, choose_way, dense  # noqa: E402


def oracle(q, k, v, segments, seen, window):
    """Result [M, T, H, h], and the gradients of q, k and v when the result's gradient is `seen`."""
    out, dq, dk, dv = (np.zeros(q.shape) for _ in range(4))
    scale = q.shape[3] ** -0.5
    for m, t, n in np.ndindex(q.shape[:3]):
        near = np.abs(np.arange(q.shape[1]) - t) <= (q.shape[1] if window is None else window)
        earlier = np.arange(q.shape[1]) <= t if segments[m, t] < 0 else near
        keys = np.flatnonzero((segments[m] == segments[m, t]) & near & earlier)
        scores = k[m, keys, n] @ q[m, t, n] * scale
        p = np.exp(scores - scores.max())
        p /= p.sum()
        out[m, t, n] = p @ v[m, keys, n]
        dp = v[m, keys, n] @ seen[m, t, n]
        ds = p * (dp - p @ dp) * scale
        dq[m, t, n] = ds @ k[m, keys, n]
        dk[m, keys, n] += ds[:, None] * q[m, t, n]
        dv[m, keys, n] += p[:, None] * seen[m, t, n]
    return [out, dq, dk, dv]


def segments_of(T):
    """Several segments and a padded tail; one segment; padding alone."""
    several = np.repeat([1, 2, 3, 4, 0], [T // 8, T // 4 + 3, 1, T // 2, T - T // 8 - T // 4 - T // 2 - 4])
    return np.stack([several, np.ones(T), np.zeros(T)]).astype(np.int32)


@pytest.fixture
def interpreted(monkeypatch):
    make = attention_jax.kernels.make_splash_mha_single_device
    monkeypatch.setattr(attention_jax.kernels, "make_splash_mha_single_device", partial(make, interpret=True))


def with_gradients(inputs, segments, way, window):
    """What `oracle` gives, of q, k, v and the result's gradient, by one program."""

    def both(q, k, v, seen):
        out, gradient_of = jax.vjp(
            lambda q, k, v: attention(q, k, v, jnp.asarray(segments), way=way, window=window), q, k, v
        )
        return [out, *gradient_of(seen)]

    return jax.jit(both)(*inputs)


# 37 tokens: no multiple of anything. 384 tokens: three blocks where 128 is the largest. Width 16 is held tokens-last.
@pytest.mark.parametrize(
    ("way", "T", "h", "largest_block", "dtype", "tolerance", "window"),
    [
        ("dense", 37, 16, 512, "float32", 3e-6, None),
        ("dense", 37, 16, 512, "float32", 3e-6, 3),
        ("dense", 395, 16, 512, "bfloat16", 0.02, 64),
        ("splash", 384, 16, 128, "float32", 3e-6, 70),
        ("dense", 128, 64, 512, "bfloat16", 0.02, None),
        ("splash", 128, 16, 512, "float32", 3e-6, None),
        ("splash", 384, 16, 128, "float32", 3e-6, None),
        pytest.param("splash", 384, 16, 512, "float32", 3e-6, None, marks=pytest.mark.long),
        pytest.param("splash", 256, 128, 128, "float32", 3e-6, None, marks=pytest.mark.long),
        ("causal splash", 384, 16, 128, "float32", 3e-6, None),
        ("causal splash", 384, 16, 128, "float32", 3e-6, 70),
        ("splash", 256, 64, 512, "bfloat16", 0.02, None),
        ("splash in fp32", 128, 16, 512, "bfloat16", 0.02, None),
        pytest.param("splash", 256, 64, 128, "bfloat16", 0.02, None, marks=pytest.mark.long),
    ],
)
def test_every_way_and_its_gradients_equal_slow_twin(
    way, T, h, largest_block, dtype, tolerance, window, interpreted, monkeypatch
):
    """bf16 has 8 bits: its results are within 2 % of the largest."""
    monkeypatch.setattr(attention_jax, "LARGEST_BLOCK", largest_block)
    segments = segments_of(T)
    if way == "dense":
        segments[0] *= -1
    elif way == "causal splash":
        segments = -np.where(segments[:2], segments[:2], 5)
    random = np.random.default_rng(T + h)
    inputs = [jnp.asarray(random.normal(size=(len(segments), T, 2, h)), dtype) for _ in range(4)]
    results = with_gradients(inputs, segments, way, window)
    assert results[0].dtype == jnp.dtype(dtype)
    q, k, v, seen = (np.asarray(array, np.float64) for array in inputs)
    for found, expected in zip(results, oracle(q, k, v, segments, seen, window), strict=True):
        assert np.abs(np.asarray(found, np.float64) - expected).max() < tolerance * np.abs(expected).max()


@pytest.mark.long
@pytest.mark.parametrize(("way", "T", "window"), [("dense", 37, None), ("splash", 128, None)])
def test_fewer_heads_of_keys_serve_neighbouring_queries(way, T, window, interpreted):
    """Beside the slow twin, whose keys and values are repeated; their gradients are then added up."""
    segments, random = segments_of(T), np.random.default_rng(T)
    q, k, v, seen = (random.normal(size=(3, T, H, 16)).astype(np.float32) for H in (6, 2, 2, 6))
    results = with_gradients([jnp.asarray(array) for array in (q, k, v, seen)], segments, way, window)
    wide = [x.astype(np.float64) for x in (q, np.repeat(k, 3, 2), np.repeat(v, 3, 2), seen)]
    mixed, dq, *of_keys = oracle(*wide[:3], segments, wide[3], window)
    summed = [gradient.reshape(3, T, 2, 3, 16).sum(3) for gradient in of_keys]
    for found, expected in zip(results, [mixed, dq, *summed], strict=True):
        assert np.abs(np.asarray(found, np.float64) - expected).max() < 3e-6 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("facts", "way"),
    [
        (("TPU v4", 512, 64, 0.0, jnp.bfloat16), "splash"),
        (("TPU7x", 8192, 128, 0.0, "bfloat16"), "splash"),
        (("TPU v3", 512, 64, 0.0, jnp.bfloat16), "splash in fp32"),
        (("TPU v4", 512, 64, 0.0, jnp.float32), "dense"),
        (("TPU v4", 512, 64, 0.1, jnp.bfloat16), "dense"),
        (("TPU v4", 500, 64, 0.0, jnp.bfloat16), "dense"),
        (("TPU v4", 512, 512, 0.0, jnp.bfloat16), "dense"),
        (("cpu", 512, 64, 0.0, jnp.bfloat16), "dense"),
    ],
)
def test_way_is_chosen_from_static_facts(facts, way):
    assert choose_way(*facts) == way
    assert choose_way(*facts, causal=True) == "causal " * (way != "dense") + way
    assert choose_way(*facts, causal=None) == "dense"


@pytest.mark.parametrize(
    ("way", "T", "h", "kernels", "window"),
    [
        ("splash", 128, 64, 2, None),
        ("causal splash", 512, 64, 2, None),
        ("splash", 640, 16, 3, None),
        ("splash", 2048, 128, 3, None),
        ("splash", 2048, 64, 3, 64),
        ("causal splash", 2048, 64, 3, 64),
    ],
)
def test_splash_lowers_for_a_tpu_on_a_host_without_one(way, T, h, kernels, window):
    """Down to the kernels that the TPU's compiler is given: one forward, one or two backward; narrow heads second to
    last."""
    array, ids = jax.ShapeDtypeStruct((2, T, 2, h), jnp.bfloat16), jax.ShapeDtypeStruct((2, T), jnp.int32)

    def loss(q, k, v, segments):
        return attention(q, k, v, segments, way=way, window=window).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(array, array, array, ids)
    lowered = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert lowered.count("@tpu_custom_call") == kernels
    assert (f"2x2x{h}x{T}xbf16" in lowered) == (h < 128)


@pytest.mark.parametrize(("names", "forward_kernels"), [((), 2), ((attention_jax.RESIDUALS,), 1)])
def test_kept_residuals_save_the_second_forward_kernel(names, forward_kernels):
    array, ids = jax.ShapeDtypeStruct((1, 128, 2, 64), jnp.bfloat16), jnp.ones((1, 128), jnp.int32)
    policy = jax.checkpoint_policies.save_only_these_names(*names)

    def loss(q):
        layer = jax.checkpoint(lambda q: jnp.sin(attention(q, q, q, ids, way="splash")), policy=policy)
        return layer(q).astype(jnp.float32).sum()

    lowered = jax.jit(jax.value_and_grad(loss)).trace(array).lower(lowering_platforms=("tpu",)).as_text()
    assert lowered.count('kernel_name = "splash_mha_fwd') == forward_kernels


def test_dense_asks_for_whole_products_in_fp32():
    """A CPU gives them anyway; a TPU or a GPU would round to fewer bits."""
    ids = jnp.ones((1, 128), jnp.int32)
    for dtype, count in ((jnp.float32, 2), (jnp.bfloat16, 0)):
        q = jax.ShapeDtypeStruct((1, 128, 2, 64), dtype)
        lowered = jax.jit(lambda q: dense(q, q, q, ids)).trace(q).lower(lowering_platforms=("tpu",)).as_text()
        assert lowered.count("precision = [HIGHEST, HIGHEST]") == count


def test_dropout_keeps_the_mean_and_depends_on_the_key():
    random = np.random.default_rng(0)
    q, k, v = (jnp.asarray(random.uniform(size=(64, 37, 2, 16)), jnp.float32) for _ in range(3))
    ids = jnp.ones((64, 37), jnp.int32)
    same, again, other = (np.asarray(dense(q, k, v, ids, 0.2, jax.random.key(seed))) for seed in (0, 0, 1))
    whole = np.asarray(dense(q, k, v, ids))
    assert np.array_equal(same, again)
    assert np.abs(same - other).max() > 0.1 and np.abs(same - whole).max() > 0.1
    assert abs((same - whole).mean()) < 0.01 * whole.mean()
    # The first 16 columns of the probabilities themselves.
    seen = dense(q, k, jnp.broadcast_to(jnp.eye(37, 16)[:, None], v.shape), ids, 0.2, jax.random.key(0))
    assert abs(float((seen == 0).mean()) - 0.2) < 0.01
