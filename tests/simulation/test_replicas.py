"""Replicas in the simulator: seeds, every cell of the table of promises, bounded tables."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from penstock.core.delivery.guarantees import PROMISES, FailureClass, Guarantee
from penstock.core.delivery.ids import Role
from penstock.core.delivery.replicated import ReplicaSettings
from penstock.testing.simulator.cases import REPLICAS, Case
from penstock.testing.simulator.roles.faults import FAULTS
from penstock.testing.simulator.roles.shape import shape_of
from penstock.testing.simulator.roles.world import Host, World
from penstock.testing.simulator.run import run_many, run_seed

CLASSES: dict[FailureClass, tuple[str, ...]] = {
    FailureClass.NONE: (),
    FailureClass.CONNECTION: ("connection",),
    FailureClass.FREEZE: ("freeze", "suspicion"),
    FailureClass.CRASH: ("crash", "halfway"),
    FailureClass.PATH: ("path",),
    FailureClass.GROUP: ("group",),
    FailureClass.BEYOND: ("path", "beyond", "crash", "again"),
}
DEEP = 9
"""More stages than any simulated flow has: nothing is beyond it."""


def test_no_invariant_breaks_in_a_few_hundred_runs() -> None:
    result = run_many(seed=1, runs=250, draw=Case.of_replicas)
    assert result["violations"] == 0, result["failed"]
    assert all(result["faults"][what] > 0 for what in (*FAULTS, "zombie", "missed"))
    assert set(result["guarantees"]) == {guarantee.value for guarantee in Guarantee}


@pytest.mark.parametrize("seed", [3, 77])
def test_a_run_follows_from_its_seed(seed: int) -> None:
    case = Case(seed, REPLICAS)
    first, again = run_seed(case, trace=True), run_seed(case, trace=True)
    assert first.trace == again.trace
    assert first.trace[-1].endswith("ok")
    assert run_seed(case).steps == first.steps


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("replicas:16", id="an origin that moved is told again what is settled"),
        pytest.param("replicas:77", id="all hosts hear of a loss before a role is taken"),
        pytest.param("replicas:112", id="a role that was handed over has recovered, too"),
        pytest.param("replicas:356", id="the log of a source is fenced"),
        pytest.param("replicas:576", id="rings begin anew when a sink misses something"),
        pytest.param("replicas:29", id="an heir that is lost has an heir, too"),
    ],
)
def test_what_once_broke(name: str) -> None:
    assert run_seed(name).violation is None


@pytest.mark.parametrize("failure", FailureClass, ids=lambda failure: failure.name.lower())
@pytest.mark.parametrize("guarantee", Guarantee, ids=lambda guarantee: guarantee.value)
def test_every_cell_of_the_table_of_promises(guarantee: Guarantee, failure: FailureClass) -> None:
    may = PROMISES[guarantee][failure]
    depth = 1 if failure is FailureClass.BEYOND else 2 if failure is FailureClass.PATH else DEEP
    if failure in (
        FailureClass.CRASH,
        FailureClass.FREEZE,
        FailureClass.CONNECTION,
        FailureClass.GROUP,
    ):
        depth = 1
    lost = doubled = 0
    for seed in range(25):
        shape = shape_of(Random(seed), ReplicaSettings(guarantee, depth=depth))
        world = World(Case(seed, REPLICAS), shape=shape, faults=CLASSES[failure])
        if failure not in (FailureClass.BEYOND, FailureClass.NONE):
            world.pending = world.pending[:1]  # one failure at a time is what these are about
        world.run()
        seen = world.monitor.seen
        lost += len(world.monitor.expected - set(seen))
        doubled += sum(Counter(seen).values()) - len(seen)
    assert may.lose or not lost
    assert may.double or not doubled


class PacedWorld(World):
    """Sources wait while much of what they sent is unsettled, as credit makes them."""

    def readable(self, host: Host) -> list[Role]:
        players = {} if host.machine is None else host.machine.players
        return [role for role in super().readable(host) if len(players[role].tables.entries) < 6]


def test_tables_stay_small_however_long_a_flow_runs() -> None:
    sizes = []
    for rows in (20, 120):
        shape = replace(shape_of(Random(5), ReplicaSettings()), rows=rows, rows_max=1)
        world = PacedWorld(Case(5, REPLICAS), shape=shape, faults=())
        most = 0
        while world._step() or not world._rest():
            most = max(
                [most]
                + [
                    len(player.tables.table.records) + len(player.tables.entries)
                    for host in world.hosts.values()
                    if host.machine is not None
                    for player in host.machine.players.values()
                ]
            )
        assert set(world.monitor.seen) == world.monitor.expected
        sizes.append(most)
    assert sizes[1] < 2 * sizes[0] + 10
