"""One of several processes that sum random gradients, and compare each result with the slow way: all leaves in numpy,
added two by two as the tree says. Started by `tests/invariance/test_sums.py` with `env://` variables."""

import random

import numpy as np
import torch

from maskwright.config.pretraining import EngineSection
from maskwright.engines.torch import shares as module
from maskwright.engines.torch.gradients import Gradients
from maskwright.engines.torch.levels import Levels
from maskwright.engines.torch.processes import Peers, connect
from maskwright.engines.torch.shares import FlatOrder


def slow_tree(leaves: list[np.ndarray]) -> np.ndarray:
    """The left half is the largest power of two below the number of leaves."""
    if len(leaves) == 1:
        return leaves[0]
    half = 1
    while half * 2 < len(leaves):
        half *= 2
    return slow_tree(leaves[:half]) + slow_tree(leaves[half:])


def one_case(seed: int, levels: Levels) -> None:
    number, count = levels.rank, levels.world_size
    generator = random.Random(seed)
    dtype = generator.choice([torch.float32, torch.bfloat16])
    D, F = generator.randint(1, 5), generator.randint(1, 7)
    hidden = {"qkv": (3 * D, D), "out": (D, D), "up": (F, D), "down": (D, F)}
    shapes = {f"layers.{layer}.{role}.weight": torch.Size(of) for layer in range(2) for role, of in hidden.items()}
    shapes |= {f"p{i}": torch.Size([generator.randint(1, 7), generator.randint(1, 5)]) for i in range(6)}
    shapes |= {f"v{i}": torch.Size([generator.randint(1, 7)]) for i in range(3)}
    network = {name: torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for name, shape in shapes.items()}
    used = generator.sample(list(shapes), len(shapes))
    V, parts = count * generator.randint(1, 6), generator.randint(1, 3)
    drawn = np.random.default_rng(seed)
    scales = 10.0 ** drawn.uniform(-4, 4, (V, parts, 1))
    numbers = sum(shape.numel() for shape in shapes.values())
    given = torch.tensor(drawn.normal(size=(V, parts, numbers)) * scales, dtype=torch.float32).to(dtype)
    order = FlatOrder.of(shapes, used, count, muon=generator.random() < 0.5)
    summing = Gradients(network, order, levels)
    each = V // count
    for again in (True, False):  # the first is given up, as after running out of memory
        summing.begin(V)
        for leaf in range(number * each, number * each + each):
            for part in range(parts):
                last = part == parts - 1
                final = last and leaf == number * each + each - 1
                if again and final:
                    break
                constants = named(given[leaf, part], shapes)
                summing.before_backward(first=part == 0, last=last, final=final)
                sum((network[name] * constants[name]).sum() for name in used).backward()  # type: ignore[union-attr]
                summing.take()
                summing.after_backward()
    summing.finish()
    each_leaf = []
    for leaf in given.float().numpy():
        total = leaf[0]
        for part in leaf[1:]:
            total = total + part
        each_leaf.append(total)
    whole = torch.zeros(order.length)
    for name, view in order.parameters(whole).items():
        view.copy_(named(torch.from_numpy(slow_tree(each_leaf)), shapes)[name])
    share = order.shares[levels.place(number)]
    for bucket in order.buckets:
        ours, expected = summing.flat[share.piece(bucket)], whole[bucket.piece(share.rank)]
        assert ours.numpy().tobytes() == expected.numpy().tobytes(), (seed, V, parts, dtype)


def named(flat: torch.Tensor, shapes: dict[str, torch.Size]) -> dict[str, torch.Tensor]:
    parts = flat.split([shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def main() -> None:
    # Several buckets, blocks and stacks in so small a network.
    module.BUCKET_BYTES, module.BLOCK_NUMBERS, module.STACK_NUMBERS, module.LEAST_BLOCKS = 100, 4, 60, 1
    module.ALIGNED_NUMBERS = 2
    torch.set_num_threads(1)
    processes = connect(EngineSection(device="cpu"), "cpu")
    for seed in range(60):
        one_case(seed, processes.levels if isinstance(processes, Peers) else Levels())
    processes.close()
    print("equal")


if __name__ == "__main__":
    main()
