"""Where the nodes of a lost host go."""

import pytest

from penstock.core.control.placement import Placed, Placement
from penstock.core.control.roster import Roster
from penstock.core.delivery.ring import Load
from penstock.core.delivery.takeover import Takeover

NODES = [7, 8, 9]


def ready(hosts: int, standby: int = 0) -> Roster:
    roster = Roster(hosts, standby)
    roster.assigned |= set(roster.hosts)
    return roster


def lost(roster: Roster, host: int, takeover: Takeover, loads: dict[int, Load]) -> Placed:
    placement = Placement(roster, takeover)
    placement.measured(loads)
    return placement.lost(host, roster.new_number(), NODES, now_ms=0)


@pytest.mark.parametrize(
    ("takeover", "takers"),
    [
        (Takeover.NEXT, {7: 2, 8: 2, 9: 2}),
        (Takeover.LEAST_LOADED, {7: 3, 8: 3, 9: 3}),
        (Takeover.SPLIT, {7: 3, 8: 2, 9: 3}),
    ],
)
def test_workers_that_live_take_nodes_as_the_policy_says(
    takeover: Takeover, takers: dict[int, int]
) -> None:
    placed = lost(ready(3), 1, takeover, {2: Load(1, 90), 3: Load(1, 10)})
    assert placed == Placed(takers, heir=4)


@pytest.mark.parametrize("takeover", list(Takeover))
def test_a_spare_takes_everything_and_the_place(takeover: Takeover) -> None:
    placed = lost(ready(2, standby=1), 1, takeover, {})
    assert placed == Placed(dict.fromkeys(NODES, 3), heir=3)


@pytest.mark.parametrize("takeover", list(Takeover))
def test_nodes_of_the_only_worker_wait_for_the_fresh_host(takeover: Takeover) -> None:
    assert lost(ready(1), 1, takeover, {}) == Placed(dict.fromkeys(NODES, 2), heir=2)


def test_workers_that_are_not_ready_take_nothing() -> None:
    roster = ready(3)
    roster.assigned.discard(2)
    assert lost(roster, 1, Takeover.NEXT, {}).takers == dict.fromkeys(NODES, 3)


def test_a_lost_spare_has_no_heir() -> None:
    roster = ready(2, standby=1)
    placement = Placement(roster, Takeover.NEXT)
    assert placement.lost(3, 4, [], now_ms=0) == Placed({}, heir=None)


def test_an_old_figure_does_not_replace_a_new_one() -> None:
    roster = ready(3)
    placement = Placement(roster, Takeover.LEAST_LOADED)
    placement.measured({2: Load(5, 0), 3: Load(5, 50)})
    placement.measured({2: Load(4, 900)})
    assert placement.lost(1, 4, NODES, now_ms=0).takers == dict.fromkeys(NODES, 2)


def test_what_a_lost_host_had_to_do_is_forgotten() -> None:
    roster = ready(2)
    placement = Placement(roster, Takeover.LEAST_LOADED)
    placement.measured({1: Load(9, 900), 99: Load(1, 1)})
    placement.lost(1, 3, NODES, now_ms=0)
    roster.assigned.add(3)
    # The fresh host begins with beat 1: a figure of its own counts.
    placement.measured({3: Load(1, 5)})
    assert placement.lost(2, 4, NODES, now_ms=0).takers == dict.fromkeys(NODES, 3)
