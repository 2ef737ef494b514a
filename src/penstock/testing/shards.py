"""Seeds in several processes: a range of them, or fresh ones for as long as there is time."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TypeVar

__all__ = ["CORES", "SHARD", "for_seconds", "in_processes", "in_shards"]

CORES = os.cpu_count() or 1
SHARD = 100
"""Seeds that one process runs in one go."""
TIMED_SHARD = 20
"""The same, where the time to stop may come at any moment."""

S = TypeVar("S")
T = TypeVar("T")


def in_shards(function: Callable[[range], T], seed: int, runs: int, processes: int) -> Iterator[T]:
    """What a function of the module makes of each shard of the seeds, in order.

    >>> list(in_shards(len, seed=1, runs=250, processes=1))
    [100, 100, 50]
    """
    last = seed + runs
    shards = [range(first, min(first + SHARD, last)) for first in range(seed, last, SHARD)]
    yield from in_processes(function, shards, processes)


def in_processes(function: Callable[[S], T], items: Sequence[S], processes: int) -> Iterator[T]:
    """What a function of the module makes of each item, in order."""
    if min(processes, len(items)) <= 1:
        yield from map(function, items)
        return
    with _pool(processes) as pool:
        yield from pool.map(function, items)


def for_seconds(
    function: Callable[[range], T], first_seeds: Sequence[int], seconds: float
) -> Iterator[T]:
    """What a function of the module makes of seeds from each of the first ones on.

    There is one process for each of them.  No new shard begins after ``seconds``.
    """
    end_s = time.monotonic() + seconds
    with _pool(len(first_seeds)) as pool:
        running: dict[Future[T], int] = {}

        def go_on(seed: int) -> None:
            shard = range(seed, seed + TIMED_SHARD)
            running[pool.submit(function, shard)] = shard.stop

        for seed in first_seeds:
            go_on(seed)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                following = running.pop(future)
                if time.monotonic() < end_s:
                    go_on(following)
                yield future.result()


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
