"""Replicas in the simulator: seeds, every cell of the table of promises, bounded tables."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from penstock.core.delivery.guarantees import PROMISES, FailureClass, Guarantee
from penstock.core.delivery.ids import Role
from penstock.core.delivery.replicated import ReplicaSettings
from penstock.testing.simulator.cases import REPLICAS, Case
from penstock.testing.simulator.flows import only_replicas
from penstock.testing.simulator.roles.agent import Agent
from penstock.testing.simulator.roles.faults import FAULTS, SIBLING
from penstock.testing.simulator.roles.part import ReplicatedPart
from penstock.testing.simulator.roles.shape import shape_of
from penstock.testing.simulator.roles.source_log import SourceLog
from penstock.testing.simulator.run import run_many, run_seed
from penstock.testing.simulator.world import World

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


def test_no_invariant_breaks_in_dozens_of_runs() -> None:
    result = run_many(seed=1, runs=60, draw=Case.of_replicas)
    assert result["violations"] == 0, result["failed"]
    seen = (*FAULTS, SIBLING, "zombie", "missed", "several_hosts", "machine", "store_slow")
    assert all(result["faults"][what] > 0 for what in seen)
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
        pytest.param("replicas:49", id="an origin that moved is told again what is settled"),
        pytest.param("replicas:77", id="all hosts hear of a loss before a role is taken"),
        pytest.param("replicas:78", id="a role that was handed over has recovered, too"),
        pytest.param("replicas:14", id="the log of a source is fenced"),
        pytest.param("replicas:rough:301", id="rings begin anew when a sink misses something"),
        pytest.param("replicas:10", id="an heir that is lost has an heir, too"),
        pytest.param("replicas:700643", id="who plays all roles alone notes nothing unread"),
        pytest.param("replicas:mixed:rough:710018", id="the driver dies while it begins"),
        pytest.param(
            "replicas:mixed:rough:33927409", id="the next player knows whom the last one knew"
        ),
        pytest.param("replicas:mixed:962878604", id="many rows that are read one by one take long"),
        pytest.param("replicas:rough:777986377", id="a new sibling does not speak for all"),
        pytest.param("replicas:rough:911043471", id="what siblings told is passed on"),
        pytest.param("replicas:mixed:rough:775449035", id="a floor rises a stage a round"),
        pytest.param("replicas:rough:long:33931868", id="and tells them what is settled"),
    ],
)
def test_what_once_broke(name: str) -> None:
    assert run_seed(name).violation is None


def test_replicas_and_nodes_on_the_same_hosts() -> None:
    result = run_many(seed=1, runs=25, draw=Case.parse("replicas:mixed:rough:0").at)
    assert result["violations"] == 0, result["failed"]
    assert result["regimes"]["replicated"] == 25
    assert all(result["regimes"][one] > 0 for one in ("causal", "lazy", "persist"))
    assert result["faults"]["moved"] + result["faults"]["stale"] > 0, "nodes recover as well"
    shapes = [World(Case(seed, REPLICAS, mixed=True)).shape.replicated for seed in range(20)]
    assert {part is not None and part.reads is None for part in shapes} == {True, False}


def test_who_wakes_up_and_plays_all_roles_alone_may_note_no_new_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run_seed("replicas:700643").violation is None
    monkeypatch.setattr(SourceLog, "holds", lambda *_: True)
    assert run_seed("replicas:700643").rule == "doubled"


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
    for seed in range(10):
        # A group is the hosts of one stage: these have no other.
        part = shape_of(Random(seed), ReplicaSettings(guarantee, depth=depth), shared=0.0)
        world = World(Case(seed, REPLICAS), shape=only_replicas(part), faults=CLASSES[failure])
        assert world.replicas is not None
        if failure not in (FailureClass.BEYOND, FailureClass.NONE):
            world.pending = world.pending[:1]  # one failure at a time is what these are about
        world.run()
        monitor = world.replicas.monitor
        seen = monitor.seen
        lost += len(monitor.expected - set(seen))
        doubled += sum(Counter(seen).values()) - len(seen)
    assert may.lose or not lost
    assert may.double or not doubled


class PacedPart(ReplicatedPart):
    """Sources wait while much of what they sent is unsettled, as credit makes them."""

    def readable(self, agent: Agent) -> list[Role]:
        players = dict(agent.players())
        return [role for role in super().readable(agent) if len(players[role].tables.entries) < 6]


def test_tables_stay_small_however_long_a_flow_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.testing.simulator.world.ReplicatedPart", PacedPart)
    sizes = []
    for rows in (20, 80):
        part = replace(shape_of(Random(5), ReplicaSettings()), rows=rows, rows_max=1)
        world = World(Case(5, REPLICAS), shape=only_replicas(part), faults=())
        assert world.replicas is not None
        most = 0
        while world.step():
            most = max(
                [most]
                + [
                    len(player.tables.table.records) + len(player.tables.entries)
                    for agent in world.replicas.agents.values()
                    for _, player in agent.players()
                ]
            )
        monitor = world.replicas.monitor
        assert set(monitor.seen) == monitor.expected
        sizes.append(most)
    assert sizes[1] < 2 * sizes[0] + 10
