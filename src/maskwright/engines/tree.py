"""The one order in which the gradients of an update's micro-batches are summed, at any number of ranks.

Floating-point sums depend on their order. Here the order is a binary tree over the V virtual workers: the left half of
`n` leaves is the largest power of two below n, the right half is the rest. Each of W ranks computes V/W neighbouring
leaves and sums those that form complete nodes of the tree. The rest is summed from these nodes, in the tree's order. So
any W that divides V gives the same bits. If V and V/W are powers of two, each rank sends one node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

Node = tuple[int, int]
"""(first leaf, number of leaves)."""


class Add(NamedTuple):
    """The effect of a leaf on a row of sums."""

    into: int
    """The sum that begins with it, after the last one in use."""
    folds: int
    """Sums of the tree that it completes: so many times, the last sum in use is added to the one before."""


def children(node: Node) -> tuple[Node, Node]:
    first, leaves = node
    left = 1 << ((leaves - 1).bit_length() - 1)
    return (first, left), (first + left, leaves - left)


def complete_nodes(begin: int, end: int, root: Node) -> list[Node]:
    """The largest nodes within leaves `begin` to `end`, from left to right."""
    first, leaves = root
    if begin <= first and first + leaves <= end:
        return [root]
    if first + leaves <= begin or end <= first:
        return []
    left, right = children(root)
    return complete_nodes(begin, end, left) + complete_nodes(begin, end, right)


def program(first: int, leaves: int, virtual_workers: int) -> list[Add]:
    """How a rank sums its leaves, from `first` on, in turn. What it ends with are its complete nodes."""
    nodes = complete_nodes(first, first + leaves, (0, virtual_workers))
    completed = Counter(leaf for node in nodes for leaf in _last_leaves(node))
    adds, in_use = [], 0
    for leaf in range(first, first + leaves):
        adds.append(Add(in_use, completed[leaf]))
        in_use += 1 - completed[leaf]
    return adds


def _last_leaves(node: Node) -> Iterator[int]:
    """Of each sum within `node`."""
    if node[1] > 1:
        for child in children(node):
            yield from _last_leaves(child)
        yield node[0] + node[1] - 1


def peak_partial_sums(leaves: int, virtual_workers: int, first: int = 0) -> int:
    """The most sums that a rank holds at a time. A leaf that completes a sum is added to it in place."""
    return max(add.into + (add.folds == 0) for add in program(first, leaves, virtual_workers))


def rounds(nodes: list[Node], roots: list[Node]) -> tuple[list[list[tuple[int, int]]], list[int]]:
    """How the sums of `nodes`, which make up `roots`, are added in about log2 of their number rounds. A pair (i, j)
    adds the j-th sum to the i-th, and the pairs of a round are independent. Also which of them become the sums
    of `roots`."""
    places, made = {node: place for place, node in enumerate(nodes)}, list[list[tuple[int, int]]]()

    def visit(node: Node) -> tuple[int, int]:
        """The place of a node's sum, and the number of rounds before it is there."""
        if node in places:
            return places[node], 0
        (left, before), (right, before_right) = map(visit, children(node))
        before = max(before, before_right)
        if before == len(made):
            made.append([])
        made[before].append((left, right))
        return left, before + 1

    return made, [visit(root)[0] for root in roots]
