"""What is written in place has the numbers and gradients of the same thing spelt out for autograd, bit for bit."""

import pytest
import torch
import torch.nn.functional as F

from maskwright.model.torch import cross_entropy
from maskwright.model.torch.embedding import EmbeddingTable
from maskwright.model.torch.linear import Linear, mkl_product


def drawn(*shape, dtype):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("positions", "towards"), [(0, 1.0), (5, 1.0), (19, 1.0), (19, 0.5)])
def test_the_loss_of_predictions(positions, towards, dtype, monkeypatch):
    monkeypatch.setattr(cross_entropy, "OF_SEVERAL_THREADS", 8)
    labels, weights = torch.arange(positions) % 7, torch.arange(positions) / positions

    def both(*, by_hand):
        x = drawn(positions, 33, dtype=dtype).requires_grad_()
        if by_hand:
            loss = cross_entropy.cross_entropy_sum(x * 3, labels, weights)
        else:
            loss = (F.cross_entropy((x * 3).float(), labels, reduction="none") * weights).sum()
        (loss * towards).backward()
        return [loss, x.grad]

    for one, other in zip(both(by_hand=True), both(by_hand=False), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_table_that_is_looked_up_and_multiplied_by(*, autocast):
    V, D = 11, 4
    ids = torch.tensor([[3, 3, 0], [9, 3, 7]])

    def both(*, by_hand):
        weight, bias = (drawn(*shape, dtype=torch.float32).requires_grad_() for shape in ((V, D), (V,)))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if by_hand:
                table = EmbeddingTable(weight)
                logits = table.product(torch.tanh(table.look_up(ids)).flatten(0, 1)[1:], bias)
                assert table.gradient is None
            else:
                logits = F.linear(torch.tanh(F.embedding(ids, weight)).flatten(0, 1)[1:], weight, bias)
        F.cross_entropy(logits, torch.tensor([3, 0, 9, 3, 7]), reduction="sum").backward()
        return [logits, weight.grad, bias.grad]

    for one, other in zip(both(by_hand=True), both(by_hand=False), strict=True):
        assert torch.equal(one, other)


def test_a_look_up_alone_sums_in_fp32():
    """1 + 1/256 is 1 in bf16: what is added to a large sum there is lost."""
    weight = torch.zeros(3, 1, dtype=torch.bfloat16, requires_grad=True)
    EmbeddingTable(weight).look_up(torch.ones(512, dtype=torch.long)).sum().backward()
    assert weight.grad.flatten().tolist() == [0.0, 512.0, 0.0]
    with torch.no_grad():
        assert EmbeddingTable(weight).look_up(torch.tensor([1])).requires_grad is False


@pytest.mark.skipif(mkl_product() is None, reason="this libtorch does not export MKL's product of bf16 matrices")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("shape", "bias"), [((2, 70, 48), True), ((67, 48), False), ((0, 48), True)])
def test_a_gradient_by_mkl(shape, threads, *, bias):
    """It is the product in fp32, which torch's own rounds to bf16. All else has the same bits."""
    before, towards = torch.get_num_threads(), drawn(*shape[:-1], 80, dtype=torch.bfloat16)

    def gradients(*, by_mkl):
        linear = Linear(48, 80, bias=bias, dtype=torch.bfloat16)
        torch.nn.init.constant_(linear.bias, 0.5) if bias else None
        linear.weight.data = drawn(80, 48, dtype=torch.bfloat16)
        linear.use_mkl() if by_mkl else None
        x = drawn(*shape, dtype=torch.bfloat16).requires_grad_()
        found = linear(x)
        found.backward(towards.mT.contiguous().mT)  # as attention leaves it
        assert linear(x).detach().equal(found)
        return [linear.weight.grad, found, x.grad, *([linear.bias.grad] if bias else [])]

    torch.set_num_threads(threads)
    try:
        (by_mkl, *others), again, (_, *plain) = (gradients(by_mkl=mkl) for mkl in (True, True, False))
    finally:
        torch.set_num_threads(before)
    exact = towards.flatten(0, -2).double().mT @ drawn(*shape, dtype=torch.bfloat16).flatten(0, -2).double()
    assert by_mkl.dtype is torch.float32
    assert torch.linalg.norm(by_mkl - exact) <= 1e-6 * torch.linalg.norm(exact)
    for one, other in zip([by_mkl, *others, *others], [again[0], *again[1:], *plain], strict=True):
        assert torch.equal(one, other)
