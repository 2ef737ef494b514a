"""Numbers of hosts, and who stands in whose place."""

from penstock.core.control.roster import SLOTS, Roster, is_retry


def ready(hosts: int, standby: int = 0) -> Roster:
    roster = Roster(hosts, standby)
    roster.assigned |= set(roster.hosts)
    roster.homes = {10 + host: host for host in roster.workers}
    return roster


def test_every_process_has_a_number_of_its_own() -> None:
    roster = ready(2)
    first = roster.new_number()
    roster.replace(1, first, now_ms=5)
    second = roster.new_number()
    roster.replace(first, second, now_ms=6)
    assert (first, second) == (3, 4)
    assert sorted(roster.hosts) == [2, 4]
    assert roster.hosts[4].heard_ms == 6


def test_a_later_attempt_keeps_its_slot() -> None:
    roster = ready(2)
    roster.replace(2, 2 + SLOTS, now_ms=0)
    member = roster.of_slot(2)
    assert member is not None
    assert member.number == 2 + SLOTS
    assert is_retry(member.number)
    assert not is_retry(2)
    assert roster.of_slot(3) is None


def test_a_fresh_host_inherits_place_and_homes_of_a_lost_worker() -> None:
    roster = ready(3)
    assert roster.replace(2, 4, now_ms=0) is None
    assert roster.workers == [1, 4, 3]
    assert roster.homes == {11: 1, 12: 4, 13: 3}
    assert 2 not in roster.assigned


def test_a_ready_spare_steps_in_and_the_fresh_host_becomes_the_spare() -> None:
    roster = ready(2, standby=1)
    assert roster.replace(1, 4, now_ms=0) == 3
    assert roster.workers == [3, 2]
    assert roster.spares == [4]
    assert roster.homes == {11: 3, 12: 2}


def test_a_spare_that_is_not_ready_takes_nothing() -> None:
    roster = ready(2, standby=1)
    roster.assigned.discard(3)
    assert roster.replace(1, 4, now_ms=0) is None
    assert roster.workers == [4, 2]
    assert roster.spares == [3]


def test_a_lost_spare_is_replaced_by_a_spare() -> None:
    roster = ready(2, standby=1)
    assert roster.replace(3, 4, now_ms=0) is None
    assert roster.workers == [1, 2]
    assert roster.spares == [4]


def test_survivors_come_in_the_order_of_the_ring_behind_the_lost_one() -> None:
    roster = ready(4)
    roster.replace(2, 5, now_ms=0)
    assert roster.survivors(5) == [3, 4, 1]
    roster.assigned.discard(4)
    assert roster.survivors(5) == [3, 1]


def test_the_ring_has_all_that_can_take_nodes_and_spares_last() -> None:
    roster = ready(3, standby=1)
    assert roster.ring() == [1, 2, 3, 4]
    roster.assigned.discard(2)
    assert roster.ring() == [1, 3, 4]
