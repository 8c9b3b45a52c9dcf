import pytest
import torch

from maskwright.model.attention import PLAIN_UP_TO_TOKENS, attention, plain_attention, segment_mask

M, H, T, h = 3, 2, 37, 16


def slow_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """One query at a time, in float64, over the keys of its own segment."""
    rows = []
    for m in range(q.shape[0]):
        for n in range(q.shape[1]):
            for t in range(q.shape[2]):
                keys = (segments[m] == segments[m, t]).nonzero()[:, 0]
                scores = (k[m, n, keys].double() @ q[m, n, t].double()) / q.shape[3] ** 0.5
                rows.append(torch.softmax(scores, 0) @ v[m, n, keys].double())
    return torch.stack(rows).view(q.shape)


def segments_of(kind: str, seed: int) -> torch.Tensor:
    if kind == "whole":
        return torch.ones(M, T, dtype=torch.int32)
    generator = torch.Generator().manual_seed(seed)
    segments = torch.sort(torch.randint(1, 5, (M, T), generator=generator), dim=1).values.int()
    segments[0, 30:] = 0
    return segments


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["whole", "segments"])
@pytest.mark.parametrize(
    ("way", "dtype", "tolerance"),
    [("fused", torch.float32, 1e-5), ("plain", torch.float32, 1e-5), ("chosen", torch.bfloat16, 0.03)],
)
def test_attention_and_its_gradients_equal_slow_twin(
    seed: int, kind: str, way: str, dtype: torch.dtype, tolerance: float
) -> None:
    """bf16 has 8 bits: its results are within 0.03 of the exact ones for inputs of unit size."""
    segments = segments_of(kind, seed)
    mask = segment_mask(segments, dtype)
    assert (mask is None) == (kind == "whole")
    inputs = [torch.randn(M, H, T, h, generator=torch.Generator().manual_seed(seed + i)).to(dtype) for i in range(3)]
    weights = torch.linspace(0, 20, M * H * T * h).view(M, H, T, h).cos()
    results = []
    for fast in (True, False):
        q, k, v = (tensor.clone().requires_grad_() for tensor in inputs)
        if not fast:
            out = slow_attention(q, k, v, segments)
        elif way == "plain":
            out = plain_attention(q, k, v, mask)
        else:
            out = attention(q, k, v, mask, 0.0)
        (out.float() * weights).sum().backward()
        results.append([tensor.detach().float() for tensor in (out, q.grad, k.grad, v.grad)])
    for found, expected in zip(*results, strict=True):
        assert torch.isfinite(found).all()
        assert (found - expected).abs().max() < tolerance * max(1.0, float(expected.abs().max()))


def test_dropout_of_attention_keeps_the_mean_and_depends_on_the_seed() -> None:
    q, k, v = (torch.randn(64, H, T, h, generator=torch.Generator().manual_seed(i)) for i in range(3))
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(plain_attention(q, k, v, None, dropout=0.2))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert (results[0] - plain_attention(q, k, v, None)).mean().abs() < 0.01


def test_long_rows_take_the_fused_kernel_and_agree() -> None:
    length = PLAIN_UP_TO_TOKENS + 1
    q, k, v = (torch.randn(1, 1, length, h, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(3))
    difference = attention(q, k, v, None, 0.0).float() - plain_attention(q.float(), k.float(), v.float(), None)
    assert difference.abs().max() < 0.02
