import pytest
import torch

from maskwright.config.pretraining import ModelSection
from maskwright.model.config import NEVER_PREDICTED, model_config
from maskwright.model.initial import initial_parameters
from maskwright.model.torch.attention import (
    PLAIN_UP_TO_TOKENS,
    Banded,
    BySegment,
    CuSeqlens,
    Masked,
    cu_seqlens_of,
    full_attention,
    local_attention,
    packed,
    plain_attention,
)
from maskwright.model.torch.networks import assign, make_network

M, H, T, h = 3, 2, 37, 16


def slow_attention(q, k, v, segments):
    """One query at a time, in float64, over the keys of its own segment, and no later ones where that is negative."""
    rows = []
    for m in range(q.shape[0]):
        for n in range(q.shape[1]):
            for t in range(q.shape[2]):
                keys = (segments[m] == segments[m, t]).nonzero()[:, 0]
                keys = keys[keys <= t] if segments[m, t] < 0 else keys
                scores = (k[m, n, keys].double() @ q[m, n, t].double()) / q.shape[3] ** 0.5
                rows.append(torch.softmax(scores, 0) @ v[m, n, keys].double())
    return torch.stack(rows).view(q.shape)


def segments_of(kind, seed):
    if kind == "whole":
        return torch.ones(M, T, dtype=torch.int32)
    generator = torch.Generator().manual_seed(seed)
    segments = torch.sort(torch.randint(1, 5, (M, T), generator=generator), dim=1).values.int()
    segments[0, 30:] = 0
    if kind == "causal":
        segments[:2] *= -1
    return segments


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["whole", "segments", "causal"])
@pytest.mark.parametrize(
    ("way", "dtype", "tolerance"),
    [
        ("fused", torch.float32, 1e-5),
        ("plain", torch.float32, 1e-5),
        ("chosen", torch.bfloat16, 0.03),
        ("by segment", torch.float32, 1e-5),
        ("by segment", torch.bfloat16, 0.03),
    ],
)
def test_attention_and_its_gradients_equal_slow_twin(seed, kind, way, dtype, tolerance, monkeypatch):
    """bf16 has 8 bits: its results are within 0.03 of the exact ones for inputs of unit size."""
    segments = segments_of(kind, seed)
    if way == "by segment":
        monkeypatch.setattr("maskwright.model.torch.attention.BY_SEGMENT_ABOVE_TOKENS", T - 1)
        monkeypatch.setattr("maskwright.model.torch.attention.SMALLEST_MEAN_SEGMENT", 4)
    kind_of_attention = full_attention(segments, dtype)
    assert isinstance(kind_of_attention, BySegment) == (kind == "segments" and way == "by segment")
    assert (kind_of_attention == Masked(None)) == (kind == "whole")
    inputs = [torch.randn(M, H, T, h, generator=torch.Generator().manual_seed(seed + i)).to(dtype) for i in range(3)]
    weights = torch.linspace(0, 20, M * H * T * h).view(M, H, T, h).cos()
    results = []
    for fast in (True, False):
        q, k, v = (tensor.clone().requires_grad_() for tensor in inputs)
        if not fast:
            out = slow_attention(q, k, v, segments)
        elif way == "plain":
            out = plain_attention(q, k, v, kind_of_attention.mask)
        else:
            out = kind_of_attention.mix(q, k, v)
        (out.float() * weights).sum().backward()
        results.append([tensor.detach().float() for tensor in (out, q.grad, k.grad, v.grad)])
    for found, expected in zip(*results, strict=True):
        assert torch.isfinite(found).all()
        assert (found - expected).abs().max() < tolerance * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("tokens", "window"), [(37, 3), (395, 20), (421, 64), (637, 100)])
def test_local_layers_are_the_whole_square_with_a_band(tokens, window, dtype):
    """Long rows are computed block by block, which no block divides; beside one mask over all pairs."""
    place = torch.arange(tokens)
    several = torch.repeat_interleave(torch.tensor([1, 2, 3]), torch.tensor([tokens // 3, 1, tokens - tokens // 3 - 1]))
    padded = torch.where(place < tokens - 9, several, 0)
    segments = torch.stack([-several, several, -torch.ones_like(several), padded]).int()
    generator = torch.Generator().manual_seed(0)
    *inputs, upstream = (torch.randn(4, H, tokens, 8, generator=generator).to(dtype) for _ in range(4))
    seen = segments[:, None, :, None] == segments[:, None, None, :]
    seen &= (place[:, None] - place).abs() <= window
    seen[[0, 2]] &= place[:, None] >= place
    local = local_attention(segments, dtype, window)
    assert isinstance(local, Banded) is (tokens > 37)
    found = []
    for mix in (local.mix, lambda q, k, v: plain_attention(q, k, v, seen)):
        given = [tensor.clone().requires_grad_() for tensor in inputs]
        mixed = mix(*given)
        mixed.backward(upstream)
        found.append([mixed.detach(), *(tensor.grad for tensor in given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **({} if dtype is torch.float32 else {"atol": 0.03, "rtol": 0.03}))


def test_rows_of_very_short_segments_keep_their_mask():
    segments = torch.arange(700, dtype=torch.int32)[None] // 2
    assert isinstance(full_attention(segments, torch.float32), Masked)
    assert full_attention(segments // 50, torch.float32) == BySegment(((100,) * 7,))


def test_dropout_of_attention_keeps_the_mean_and_depends_on_the_seed():
    q, k, v = (torch.randn(64, H, T, h, generator=torch.Generator().manual_seed(i)) for i in range(3))
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        results.append(plain_attention(q, k, v, None, rate=0.2))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert (results[0] - plain_attention(q, k, v, None)).mean().abs() < 0.01


def test_long_rows_take_the_fused_kernel_and_agree():
    length = PLAIN_UP_TO_TOKENS + 1
    q, k, v = (torch.randn(1, 1, length, h, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(3))
    difference = Masked(None).mix(q, k, v).float() - plain_attention(q.float(), k.float(), v.float(), None)
    assert difference.abs().max() < 0.02


def loop_over_segments(q, k, v, begins, also, longest, _, *, window_size, enable_gqa):
    """What varlen_attn does on a CUDA device, in its own layout [tokens, heads, width], a segment at a time."""
    before, after = (longest if side < 0 else side for side in window_size)
    distances = torch.arange(longest)[:, None] - torch.arange(longest)
    near = (distances <= before) & (-distances <= after)
    assert torch.equal(begins, also) and begins.dtype is torch.int32
    assert enable_gqa is (k.shape[1] < q.shape[1])
    parts = []
    for begin, end in zip(begins.tolist(), begins[1:].tolist(), strict=False):
        assert 0 <= end - begin <= longest
        rows = [tensor[None, begin:end].transpose(1, 2) for tensor in (q, k, v)]
        if end > begin:
            parts.append(plain_attention(*rows, near[: end - begin, : end - begin])[0].transpose(0, 1))
    return torch.cat(parts)


def below(q, k, v, *given, **named):
    """The operator below varlen_attn, without its dropout."""
    window = (named["window_size_left"], named["window_size_right"])
    assert given[4] == 0.25 and named["is_causal"] is (window == (-1, 0))
    return (loop_over_segments(q, k, v, *given[:4], window_size=window, enable_gqa=k.shape[1] < q.shape[1]),)


@pytest.mark.parametrize("rate", [0.0, 0.25])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", ["whole", "segments"])
def test_borders_give_the_attention_of_the_mask(kind, causal, rate, monkeypatch):
    """Everything around the CUDA kernel, with a loop in its place; the kernel itself is compared on a GPU."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", loop_over_segments)
    if rate:
        monkeypatch.setattr("torch.ops.aten._flash_attention_forward", below)
    segments = segments_of(kind, 3).abs() * (-1 if causal else 1)
    borders = cu_seqlens_of(segments.numpy())
    assert len(borders) % 64 == 0 and borders[-1] == M * T
    q, k, v = (torch.randn(M, T, 3 * H * h, generator=torch.Generator().manual_seed(5)).view(M, T, 3, H, h)).permute(
        2, 0, 3, 1, 4
    )
    borders = CuSeqlens(torch.from_numpy(borders), T, causal=causal)
    text = (segments != 0)[:, None, :, None]  # in causal rows, padding sees all padding by the mask alone
    assert ((borders.mix(q, k, v, rate) - slow_attention(q, k, v, segments).float()) * text).abs().max() < 1e-5
    nearby = [
        local_attention(borders, q.dtype, 5).mix(q, k, v, rate),
        local_attention(segments, q.dtype, 5).mix(q, k, v),
    ]
    assert ((nearby[0] - nearby[1]) * text).abs().max() < 1e-5


def test_attention_with_dropout_has_gradients():
    """By the shapes alone, as torch has them for each device."""
    offsets = CuSeqlens(torch.zeros(5, device="meta", dtype=torch.int32), T)
    q, k, v = (torch.empty(M, heads, T, h, device="meta", requires_grad=True) for heads in (4, 2, 2))
    out = offsets.mix(q.bfloat16(), k.bfloat16(), v.bfloat16(), 0.1)
    out.sum().backward()
    assert out.shape == q.shape and all(tensor.grad is not None for tensor in (q, k, v))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 5])
def test_varlen_on_cuda_and_its_gradients_equal_the_mask(window, causal):
    segments = segments_of("segments", 4) * (-1 if causal else 1)
    text = (segments != 0)[:, None, :, None]
    results = []
    offsets = CuSeqlens(torch.from_numpy(cu_seqlens_of(segments.numpy())).cuda(), T, causal=causal)
    ways = offsets, full_attention(segments, torch.float32)
    if window is not None:
        ways = (local_attention(offsets, torch.bfloat16, window), local_attention(segments, torch.float32, window))
    for way in ways:
        device, dtype = ("cuda", torch.bfloat16) if isinstance(way, CuSeqlens) else ("cpu", torch.float32)
        tensors = [torch.randn(M, H, T, h, generator=torch.Generator().manual_seed(i)) for i in range(3)]
        q, k, v = (tensor.bfloat16().to(device, dtype).requires_grad_() for tensor in tensors)
        out = way.mix(q, k, v)
        (out.float().cos() * text.to(device)).sum().backward()
        out = out * text.to(device)
        results.append([tensor.detach().float().cpu() for tensor in (out, q.grad, k.grad, v.grad)])
    for found, expected in zip(*results, strict=True):
        assert (found - expected).abs().max() < 0.03


@torch.library.custom_op("maskwright_tests::varlen", mutates_args=())
def stand_in(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, longest: int) -> torch.Tensor:
    """Something of the shape of varlen_attn, which is as opaque to the compiler."""
    return q + k + v


stand_in.register_fake(lambda q, k, v, offsets, longest: torch.empty_like(q))
stand_in.register_autograd(
    lambda context, gradient: (gradient.clone(), gradient.clone(), gradient.clone(), None, None),
    setup_context=lambda ctx, inputs, output: None,
)


@pytest.mark.filterwarnings("ignore")  # of the compiler itself
@pytest.mark.parametrize("device", ["a GPU", "a CPU"])
@pytest.mark.parametrize("architecture", ["roberta", "modernbert"])
def test_one_program_serves_any_number_of_segments(architecture, device, monkeypatch):
    """Compiled layers, with a compiler that only counts. Each text has its own number."""
    monkeypatch.setattr("maskwright.model.torch.attention.BY_SEGMENT_ABOVE_TOKENS", 32)
    monkeypatch.setattr("maskwright.model.torch.attention.SMALLEST_MEAN_SEGMENT", 4)

    def varlen(q, k, v, at, *rest, **_):
        return stand_in(q, k, v, at, rest[1])

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
    programs = 0

    def count(graph, inputs):
        nonlocal programs
        programs += 1
        return graph.forward

    more = {"num_hidden_layers": 3, "global_attn_every_n_layers": 2, "local_attention": 16}
    run = ModelSection(size="nano", architecture=architecture, **(more if architecture == "modernbert" else {}))
    config = model_config(run, 512, 64)
    network = make_network(config)
    assign(dict(network.named_parameters()), initial_parameters(config, 0), config, NEVER_PREDICTED)
    for part in (*network.layers, network.head):
        part.compile(backend=count, dynamic=False)
    network.compiled = True

    def train(segments):
        ids = torch.full((2, 64), 7)
        offsets = torch.full((segments,), 2 * 64, dtype=torch.int32)
        offsets[0] = 0
        positions = torch.arange(64).expand(2, 64)
        rows = torch.arange(64).expand(2, 64) // (segments // 16) if device == "a CPU" else packed(offsets, 64)
        network(ids, positions, rows, torch.arange(10)).sum().backward()

    train(64)
    needed = programs
    for segments in (128, 192, 320):
        train(segments)
    assert programs == needed > 0
