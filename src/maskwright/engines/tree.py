"""The one order in which the gradients of an update's micro-batches are summed, whoever computes them.

Floating-point sums depend on their order. Here it is a binary tree over the V virtual workers: the left half of `n`
leaves is the largest power of two below n, the right half the rest. Each of W processes computes V/W neighbouring
leaves, sums what is a whole node of the tree, and the rest is summed, in the tree's order, from those nodes. So any W
that divides V gives the same bits. Where V and V/W are powers of two, a process has one node to give away.
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


def whole_nodes(begin: int, end: int, root: Node) -> list[Node]:
    """The largest nodes that lie in leaves `begin` to `end`, from left to right."""
    first, leaves = root
    if begin <= first and first + leaves <= end:
        return [root]
    if first + leaves <= begin or end <= first:
        return []
    left, right = children(root)
    return whole_nodes(begin, end, left) + whole_nodes(begin, end, right)


def sums_after(leaf: int, node: Node) -> int:
    """How many sums `leaf` completes within `node`, when leaves come from left to right."""
    first, leaves = node
    if leaves == 1 or not first <= leaf < first + leaves:
        return 0
    last = leaf == first + leaves - 1
    return int(last) + sum(sums_after(leaf, child) for child in children(node))


def most_kept(leaves: int, virtual_workers: int) -> int:
    """How many sums the first process keeps at a time, which computes so many leaves one after the other. A leaf that
    completes a sum is added where that is."""
    nodes = whole_nodes(0, leaves, (0, virtual_workers))
    kept = most = 0
    for leaf in range(leaves):
        sums = sum(sums_after(leaf, node) for node in nodes)
        most = max(most, kept + (sums == 0))
        kept += 1 - sums
    return max(most, kept)


def summed(node: Node, given: dict[Node, T], add: Callable[[T, T], T]) -> T:
    """The sum of `node` from those of the nodes that are given."""
    if node in given:
        return given[node]
    left, right = children(node)
    return add(summed(left, given, add), summed(right, given, add))
