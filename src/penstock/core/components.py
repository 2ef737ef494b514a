"""Strongly connected components of small graphs of integers.

Decides which nodes lie on common cycles and lists the components upstream first; the graph check,
the tracker and the recovery planner use it. Deterministic: components and their members come in
an order that depends on the numbering only.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["strongly_connected"]


def strongly_connected(successors: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the strongly connected components, upstream first (Tarjan, without recursion).

    >>> strongly_connected([[1], [2], [1, 3], []])
    ((0,), (1, 2), (3,))
    """
    found: list[tuple[int, ...]] = []
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    for root in range(len(successors)):
        if root in order:
            continue
        calls = [(root, iter(successors[root]))]
        order[root] = low[root] = len(order)
        path.append(root)
        on_path.add(root)
        while calls:
            node, rest = calls[-1]
            for following in rest:
                if following not in order:
                    order[following] = low[following] = len(order)
                    path.append(following)
                    on_path.add(following)
                    calls.append((following, iter(successors[following])))
                    break
                if following in on_path:
                    low[node] = min(low[node], order[following])
            else:
                calls.pop()
                if calls:
                    parent = calls[-1][0]
                    low[parent] = min(low[parent], low[node])
                if low[node] == order[node]:
                    start = path.index(node)
                    found.append(tuple(sorted(path[start:])))
                    on_path.difference_update(path[start:])
                    del path[start:]
    return tuple(reversed(found))
