"""Hundreds of random interleavings: no view passes the truth, and every view reaches the end."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from penstock.core.progress.deltas import Deltas
from penstock.core.progress.exchange import Accumulator, Flush, ProgressBuffer
from penstock.core.progress.tracker import Tracker
from penstock.core.time import Time
from penstock.testing.progress_links import (
    ControllerLinks,
    PeerLinks,
    ProgressLinks,
    SharedHostLinks,
)
from penstock.testing.progress_world import ProgressViolationError, ProgressWorld
from penstock.testing.reference_progress import random_graph

TOPOLOGIES: dict[str, Callable[[int], ProgressLinks]] = {
    "controller-mirrors": lambda workers: ControllerLinks(workers, duplicates=True),
    "controller-trackers": lambda workers: ControllerLinks(workers, mirror=False),
    "hosts": SharedHostLinks,
    "peers": PeerLinks,
    "peers-delta-by-delta": lambda workers: PeerLinks(workers, pieces=True),
}


def run(seed: int, links: Callable[[int], ProgressLinks]) -> ProgressWorld:
    rng = Random(seed)
    graph = random_graph(rng, stages=rng.randint(1, 6))
    world = ProgressWorld(rng, graph, links(rng.randint(2, 5)))
    try:
        world.run()
    except ProgressViolationError as violation:
        violation.add_note(f"seed {seed}")
        raise
    return world


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_no_view_passes_the_truth_and_every_view_reaches_the_end(name: str) -> None:
    notified = checks = 0
    for seed in range(120):
        world = run(seed, TOPOLOGIES[name])
        notified += world.notified
        checks += world.checks
    assert notified > 250
    assert checks > 80_000


def test_the_same_seed_gives_the_same_run() -> None:
    for seed in range(5):
        first, second = (run(seed, TOPOLOGIES["controller-mirrors"]) for _ in range(2))
        assert (first.notified, first.checks) == (second.notified, second.checks)


# -- canaries: wrong versions of the protocol that must be caught ----------------------------


class NegativeFirst(ProgressBuffer):
    """Sends what is gone before what it caused."""

    def flush(self) -> Deltas:
        return tuple(sorted(super().flush(), key=lambda delta: delta[2]))


class HalfSteps(ProgressBuffer):
    """Records what a step took away at once, and what it caused with the next step."""

    late: Deltas = ()

    def add(self, deltas: Deltas) -> bool:  # type: ignore[override]
        now = tuple(d for d in deltas if d[2] < 0 or d[0] < self._stages)
        due = super().add(self.late + now)
        self.late = tuple(d for d in deltas if d not in now)
        return due


class Sleepy(ProgressBuffer):
    """Does not look again when the view changes."""

    def recheck(self) -> bool:
        return False


class Hoarder(ProgressBuffer):
    """Waits for the count that it sees at the stage, to which others contribute as well."""

    def _may_hold(self, pointstamp: tuple[int, Time]) -> bool:
        place, time = pointstamp
        if place < self._stages and isinstance(self._view, Tracker):
            net = self._view.count(place, time) + self._net.get(pointstamp, 0)
            if net > 0:
                return True
        return super()._may_hold(pointstamp)


class Forgetful(Accumulator):
    """Counts a flush as often as it arrives."""

    def receive(self, origin: str, flush: Flush) -> tuple[int, ...]:
        return self.add(flush.deltas)


CANARIES: dict[str, Callable[[int], ProgressLinks]] = {
    "negative-before-positive": lambda n: PeerLinks(n, pieces=True, buffer=NegativeFirst),
    "half-steps": lambda n: PeerLinks(n, buffer=HalfSteps),
    "half-steps-controller": lambda n: ControllerLinks(n, buffer=HalfSteps),
    "no-recheck": lambda n: PeerLinks(n, buffer=Sleepy),
    "waits-for-others": lambda n: PeerLinks(n, buffer=Hoarder),
    "no-dedup": lambda n: ControllerLinks(n, duplicates=True, accumulator=Forgetful),
}


@pytest.mark.parametrize("name", CANARIES)
def test_canary_is_caught(name: str) -> None:
    for seed in range(200):
        try:
            run(seed, CANARIES[name])
        except ProgressViolationError:
            return
    pytest.fail(f"{name} went unnoticed in 200 runs")
