"""The tree of sums, and sums over processes that compute at the same time, beside the slow way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import warm
from command_line import free_port

from maskwright.config.pretraining import ModelSection
from maskwright.engines.processes import Alone
from maskwright.engines.torch.gradients import Gradients
from maskwright.engines.torch.shares import FlatLayout
from maskwright.engines.tree import Node, complete_nodes, peak_partial_sums, program, rounds
from maskwright.model.config import model_config
from maskwright.model.torch.encoder import EncoderNetwork

SCRIPT = Path(__file__).parents[1] / "reference" / "gradient_sums.py"


def written(first: int, leaves: list[str]) -> str:
    """The slow way: how the sum of all leaves is put into brackets."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return f"({written(first, leaves[:half])}+{written(first + half, leaves[half:])})"


@pytest.mark.parametrize("V", [*range(1, 25), 64, 100, 192])
def test_any_number_of_processes_sums_in_one_order(V: int) -> None:
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
        made = rounds(nodes, (0, V))
        for pairs in made:
            assert len({place for pair in pairs for place in pair}) == 2 * len(pairs)
            for left, right in pairs:
                sums[left] = f"({sums[left]}+{sums[right]})"
        assert sums[0] == written(0, [str(leaf) for leaf in range(V)])
        each = V // count
        assert len(made) <= (count - 1).bit_length() + (each & (each - 1) > 0) * each.bit_length()


@pytest.mark.parametrize("V", [2**n for n in range(8)])
def test_powers_of_two_send_one_sum_each(V: int) -> None:
    for count in (count for count in range(1, V + 1) if V % count == 0):
        assert len(complete_nodes(0, V // count, (0, V))) == 1


@pytest.mark.parametrize(("leaves", "V", "most"), [(1, 1, 1), (2, 2, 1), (4, 4, 2), (8, 8, 3), (64, 64, 6), (3, 12, 2)])
def test_how_many_gradients_are_kept_is_known_beforehand(leaves: int, V: int, most: int) -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    layout = FlatLayout.of({"w": weight.shape}, ["w"], 1, muon=False)
    summing = Gradients({"w": weight}, layout, exact=True, processes=Alone())
    summing.processes = Alone(0, V // leaves)  # which sends nothing, as no group was made
    summing.begin(V)
    for leaf in range(leaves):
        summing.before_backward(first=True, last=True, final=leaf == leaves - 1)
        (weight * 2.0).sum().backward()
        summing.after_backward()
    assert len(summing._buffers) == most == peak_partial_sums(leaves, V)


@pytest.mark.parametrize("muon", [False, True])
def test_every_number_of_base_has_one_rank_and_ranks_have_as_many(muon: bool) -> None:
    with torch.device("meta"):
        network = EncoderNetwork(model_config(ModelSection(size="base"), 50265, 512))
    shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
    numbers = sum(shape.numel() for shape in shapes.values())
    alone = FlatLayout.of(shapes, list(shapes), 1, muon=muon)
    for world_size in (1, 2, 3, 8):
        layout = FlatLayout.of(shapes, list(shapes), world_size, muon=muon)
        assert sorted(block for share in layout.of_ranks for block in share.blocks) == sorted(alone.whole.blocks)
        assert sum(block.end - block.begin for block in alone.whole.blocks) == numbers
        assert layout.longest < 1.1 * numbers / world_size
        stacks = [stack for share in layout.of_ranks for stack in share.stacks]
        assert sorted(stacks, key=str) == sorted(alone.whole.stacks, key=str) and bool(stacks) is muon
        assert [stack.numbers for stack in stacks] == [sum(b - a for _, a, b in stack.ranges) for stack in stacks]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_gradients_of_processes_are_the_slow_sum_bit_by_bit(count: int) -> None:
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(count)}

    processes = [
        warm.Popen(
            [sys.executable, "-c", f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"],
            env={**os.environ, **variables, "RANK": str(rank)},
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
