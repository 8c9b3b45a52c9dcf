import pytest
import torch

from maskwright.model.attention import attention, reference_attention, segment_mask


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("segmented", [True, False])
def test_attention_and_its_gradients_equal_slow_twin(seed: int, segmented: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    M, H, T, h = 3, 2, 37, 16
    segments = torch.ones(M, T, dtype=torch.int32)
    if segmented:
        segments = torch.sort(torch.randint(1, 5, (M, T), generator=generator), dim=1).values.int()
        segments[0, 30:] = 0
    mask = segment_mask(segments)
    assert (mask is None) == (not segmented)
    results = []
    for function in (
        lambda q, k, v: attention(q, k, v, mask, 0.0),
        lambda q, k, v: reference_attention(q, k, v, mask),
    ):
        q, k, v = (
            torch.randn(M, H, T, h, generator=torch.Generator().manual_seed(seed + i)).requires_grad_()
            for i in range(3)
        )
        out = function(q, k, v)
        (out * torch.arange(out.numel()).view_as(out).cos()).sum().backward()
        results.append((out.detach(), q.grad, k.grad, v.grad))
    for fast, slow in zip(*results, strict=True):
        assert torch.isfinite(fast).all()
        assert (fast - slow).abs().max() < 1e-5
