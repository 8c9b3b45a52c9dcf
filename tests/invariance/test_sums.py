"""The tree of sums, and sums over processes that compute at the same time, beside the slow way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm
from command_line import free_port
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from maskwright.config.pretraining import ModelSection, Optimizer
from maskwright.engines.torch import levels, shares
from maskwright.engines.torch.gradients import Gradients
from maskwright.engines.torch.levels import Levels
from maskwright.engines.torch.processes import Peers
from maskwright.engines.torch.shares import BLOCK_NUMBERS, FlatOrder
from maskwright.engines.torch.weights import FlatWeights
from maskwright.engines.tree import Node, complete_nodes, peak_partial_sums, program, rounds
from maskwright.model.config import model_config
from maskwright.model.torch.encoder import EncoderNetwork
from maskwright.model.torch.networks import make_network

SCRIPT = Path(__file__).parents[1] / "reference" / "gradient_sums.py"


def written(first, leaves):
    """The slow way: how the sum of all leaves is put into brackets."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return f"({written(first, leaves[:half])}+{written(first + half, leaves[half:])})"


@pytest.mark.parametrize("V", [*range(1, 25), 64, 100, 192])
def test_any_number_of_processes_sums_in_one_order(V):
    """And adds up what they send in about log2 W rounds."""
    for count in (count for count in range(1, V + 1) if V % count == 0):
        sums, nodes = list[str](), list[Node]()
        for rank in range(count):
            first, stack = rank * V // count, list[str]()
            for leaf, (into, folds) in enumerate(program(first, V // count, V), first):
                assert into == len(stack)
                stack.append(str(leaf))
                for _ in range(folds):
                    right = stack.pop()
                    stack[-1] = f"({stack[-1]}+{right})"
            of_rank = complete_nodes(first, first + V // count, (0, V))
            assert len(stack) == len(of_rank)
            sums, nodes = sums + stack, nodes + of_rank
        made, places = rounds(nodes, [(0, V)])
        for pairs in made:
            assert len({place for pair in pairs for place in pair}) == 2 * len(pairs)
            for left, right in pairs:
                sums[left] = f"({sums[left]}+{sums[right]})"
        assert places == [0] and sums[0] == written(0, [str(leaf) for leaf in range(V)])
        each = V // count
        assert len(made) <= (count - 1).bit_length() + (each & (each - 1) > 0) * each.bit_length()


@pytest.mark.parametrize("V", [2**n for n in range(8)])
def test_powers_of_two_send_one_sum_each(V):
    for count in (count for count in range(1, V + 1) if V % count == 0):
        assert len(complete_nodes(0, V // count, (0, V))) == 1


@pytest.mark.parametrize(("leaves", "V", "most"), [(1, 1, 1), (2, 2, 1), (4, 4, 2), (8, 8, 3), (64, 64, 6), (3, 12, 2)])
def test_how_many_gradients_are_kept_is_known_beforehand(leaves, V, most):
    weight = torch.nn.Parameter(torch.zeros(3))
    order = FlatOrder.of({"w": weight.shape}, ["w"], 1, muon=False)
    summing = Gradients({"w": weight}, order, Levels())
    summing.levels = Levels(0, V // leaves)  # which sends nothing, as there are no messages
    summing.begin(V)
    for leaf in range(leaves):
        summing.before_backward(first=True, last=True, final=leaf == leaves - 1)
        (weight * 2.0).sum().backward()
        summing.take()
        summing.after_backward()
    assert len(summing._sums) == most == peak_partial_sums(leaves, V)


@pytest.mark.parametrize("muon", [False, True])
def test_every_number_of_base_has_one_rank_and_ranks_have_as_many(muon):
    """And blocks of the norm are the same, in one order, at any world size."""
    with torch.device("meta"):
        network = EncoderNetwork(model_config(ModelSection(size="base"), 50265, 512))
    shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
    numbers = sum(shape.numel() for shape in shapes.values())
    alone, blocks = FlatOrder.of(shapes, list(shapes), 1, muon=muon), list[list[float]]()
    for world_size in (1, 2, 3, 8, 64):
        order = FlatOrder.of(shapes, list(shapes), world_size, muon=muon)
        assert order.stacks == alone.stacks and bool(order.stacks) is muon
        assert order.length < (1.01 if world_size < 64 else 1.03) * numbers
        held = torch.zeros(order.length, dtype=torch.uint8)
        for share in order.shares:
            for bucket in order.buckets:
                held[bucket.piece(share.rank)] += 1
            runs = share.runs(lambda name: len(shapes[name]))
            taken = [place for places in runs.values() for place in places] + [place for _, place in share.stacks]
            assert sum(place.stop - place.start for place in taken) <= share.length
            assert all(place.start % 16 == 0 for place in taken)
            if world_size <= 8:
                assert share.length < 1.1 * numbers / world_size
        assert (held == 1).all()
        firsts = torch.zeros(world_size, max(share.length for share in order.shares) // BLOCK_NUMBERS)
        marked = torch.zeros(order.length)
        for number, view in enumerate(order.parameters(marked).values(), 1):
            view.fill_(number)
        for share in order.shares:
            for bucket in order.buckets:
                own = marked[bucket.piece(share.rank)].view(-1, BLOCK_NUMBERS).sum(1)
                begin = share.piece(bucket).start // BLOCK_NUMBERS
                firsts[share.rank, begin : begin + len(own)] = own
        blocks.append(firsts.view(-1)[order.order_of_blocks].tolist())
    assert all(of_size == blocks[0] for of_size in blocks)


@pytest.fixture
def as_rank_0_of(monkeypatch):
    """A group of that many ranks, so many to a machine, of which one is there."""
    for name, numbers in {"BUCKET_BYTES": 20_000, "BLOCK_NUMBERS": 16, "STACK_NUMBERS": 4_000}.items():
        monkeypatch.setattr(shares, name, numbers)

    def group(count, of_machine):
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
        monkeypatch.setattr(Peers, "levels", Levels(0, count, of_machine), raising=False)
        return Peers()

    yield group
    torch.distributed.destroy_process_group()


class Launches(TorchDispatchMode):
    """Counts operations, messages among them, and those that only make a view."""

    def __init__(self):
        super().__init__()
        self.views = self.others = self.messages = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.views += function.is_view
        self.others += not function.is_view
        self.messages += function.namespace == "c10d"
        return made


@pytest.fixture
def leaves_machine(monkeypatch):
    """Bytes that rank 0 sends to other machines of 8 ranks, one number for each message; a gathered tensor counts as
    sent to each member by itself."""
    sent = []

    def count(sizes, group, size):
        ranks = torch.distributed.get_process_group_ranks(group or torch.distributed.group.WORLD)
        sent.append(sum(size * numbers for rank, numbers in zip(ranks, sizes, strict=True) if rank >= 8))

    exchange, gather = torch.distributed.all_to_all_single, levels.gather_into

    def exchanged(received, sent, here, there, group=None, **given):
        count(there, group, sent.element_size())
        return exchange(received, sent, here, there, group=group, **given)

    def gathered(whole, own, group=None, **given):
        count([len(own)] * (len(whole) // len(own)), group, own.element_size())
        return gather(whole, own, group, **given)

    monkeypatch.setattr(torch.distributed, "all_to_all_single", exchanged)
    monkeypatch.setattr(levels, "gather_into", gathered)
    return sent


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_what_an_update_costs_the_host_and_the_network_of_many_ranks(as_rank_0_of, leaves_machine, kind):
    """Each time there are twice as many ranks, each bucket has one addition more. Machines of 8 ranks have twice the
    messages, and send an eighth of the gradient."""
    config, counted = model_config(ModelSection(size="nano", hidden_size=32, num_attention_heads=2), 203, 32), {}
    for count, of_machine in ((8, 8), (64, 1), (256, 1), (64, 8), (256, 8)):
        network = make_network(config)
        processes = as_rank_0_of(count, of_machine)
        weights = FlatWeights(network, config, Optimizer(kind=kind), torch.bfloat16, processes=processes)
        for _ in range(2):
            weights.begin(count)
            weights.gradients.before_backward(first=True, last=True, final=True)
            for parameter in network.parameters():
                parameter.grad = torch.zeros_like(parameter)
            leaves_machine.clear()
            with Launches() as launches:
                weights.gradients.take()
                weights.gradients.after_backward()
                weights.finish()
                weights.update(torch.ones(()), 1e-3, None)
                weights.spread()
        buckets = len(weights._order.buckets)
        others = launches.others - launches.messages - buckets * (count - 1).bit_length()
        counted[count, of_machine] = launches.views, others, launches.messages, sum(leaves_machine)
        received = [part[0] for message in weights.gradients._messages for hop in message.hops for part in hop._parts]
        memory = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in received}
        assert kind == "muon" or sum(memory.values()) == 4 * weights._order.length
    assert buckets > 3
    alone, *_ = counted.values()
    for count in (64, 256):
        at_once, by_machine = counted[count, 1], counted[count, 8]
        assert at_once[:3] == alone[:3]
        assert by_machine[:3] == (*alone[:2], 2 * alone[2])
        if kind == "adamw":  # so few stacks of Muon are no equal shares
            assert by_machine[3] == at_once[3] / 8 > 0 == alone[3]


@pytest.mark.parametrize(("count", "of_machine"), [(1, 1), (2, 2), (3, 1), (4, 2), (6, 3)])
def test_gradients_of_processes_are_the_slow_sum_bit_by_bit(count, of_machine):
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(count)}
    variables["LOCAL_WORLD_SIZE"] = str(of_machine)

    processes = [
        warm.Popen(
            [sys.executable, "-c", f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"],
            env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank % of_machine)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    for process in processes:
        try:
            out, complaint = process.communicate(timeout=120)
        finally:
            process.kill()
        assert (process.returncode, out) == (0, "equal\n"), complaint
