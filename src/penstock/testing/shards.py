"""Consecutive seeds in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

__all__ = ["in_shards"]

SHARD = 100
"""Seeds that one process runs in one go."""

T = TypeVar("T")


def in_shards(function: Callable[[range], T], seed: int, runs: int, processes: int) -> Iterator[T]:
    """What a function of the module makes of each shard of the seeds, in order.

    >>> list(in_shards(len, seed=1, runs=250, processes=1))
    [100, 100, 50]
    """
    last = seed + runs
    shards = [range(first, min(first + SHARD, last)) for first in range(seed, last, SHARD)]
    if processes == 1:
        yield from map(function, shards)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from pool.map(function, shards)
