"""The one order in which the gradients of an update's micro-batches are summed, whoever computes them.

Floating-point sums depend on their order. Here the order is a binary tree over the V virtual workers: the left half of
`n` leaves is the largest power of two below n, the right half is the rest. Each of W ranks computes V/W neighbouring
leaves and sums those that form complete nodes of the tree. The rest is summed from these nodes, in the tree's order. So
any W that divides V gives the same bits. If V and V/W are powers of two, each rank sends one node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Node = tuple[int, int]
"""(first leaf, number of leaves)."""
T = TypeVar("T")


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


def sums_after(leaf: int, node: Node) -> int:
    """Number of sums within `node` that `leaf` completes. Leaves come from left to right."""
    first, leaves = node
    if leaves == 1 or not first <= leaf < first + leaves:
        return 0
    last = leaf == first + leaves - 1
    return int(last) + sum(sums_after(leaf, child) for child in children(node))


def peak_partial_sums(leaves: int, virtual_workers: int, first: int = 0) -> int:
    """The most sums that a rank holds at a time while it computes `leaves` leaves in turn, from `first` on.
    A leaf that completes a sum is added to it in place."""
    nodes = complete_nodes(first, first + leaves, (0, virtual_workers))
    held = peak = 0
    for leaf in range(first, first + leaves):
        sums = sum(sums_after(leaf, node) for node in nodes)
        peak = max(peak, held + (sums == 0))
        held += 1 - sums
    return max(peak, held)


def summed(node: Node, sums: dict[Node, T], add: Callable[[T, T], T]) -> T:
    """The sum of `node`, added up from the sums of other nodes, `sums`."""
    if node in sums:
        return sums[node]
    left, right = children(node)
    return add(summed(left, sums, add), summed(right, sums, add))
