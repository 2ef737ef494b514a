"""The ring: silence is reported, roles move and come back, frozen replicas are refused."""

from penstock.core.control.host_orders import (
    ChangeMembers,
    HandOverRole,
    JoinRing,
    RewireRole,
    TakeRole,
)
from penstock.core.control.ring_controller import RingController
from penstock.core.control.ring_record import PersistRing, RingControllerEffect, RingRecord, Tell
from penstock.core.delivery.ids import Role
from penstock.core.delivery.ring import RingMember, SendPing, SendPong, TellSilence
from penstock.core.delivery.routing import NO_HOST, Seat


def controller_of(hosts: int, roles: int) -> RingController:
    ring = {slot: slot + 1 for slot in range(hosts)}
    homes = {Role(0, place): place % hosts for place in range(roles)}
    seats = {role: Seat(ring[slot], 1) for role, slot in homes.items()}
    return RingController(RingRecord(seats, homes, {0: ring}, ready=frozenset(ring.values())))


def takes(effects: list[RingControllerEffect]) -> dict[Role, tuple[int, int, bool]]:
    return {
        effect.order.role: (effect.to, effect.order.incarnation, effect.order.fresh)
        for effect in effects
        if isinstance(effect, Tell) and isinstance(effect.order, TakeRole)
    }


def test_loads_go_round_with_pings() -> None:
    one, two = RingMember(1, 50, 150), RingMember(2, 50, 150)
    one.rewired(2, 0)
    two.rewired(1, 0)
    [ping] = one.time_passed(0, load=7)
    assert isinstance(ping, SendPing)
    [pong] = two.pinged(1, ping.beat, ping.loads, load=3)
    assert isinstance(pong, SendPong)
    one.ponged(2, pong.loads, now_ms=1)
    assert one.loads[2].amount == 3
    assert two.loads[1].amount == 7


def test_whoever_slept_suspects_itself_first() -> None:
    one = RingMember(1, 50, 150)
    one.rewired(2, 0)
    one.time_passed(0, 0)
    assert not any(isinstance(effect, TellSilence) for effect in one.time_passed(10_000, 0))
    later = [effect for now in (10_050, 10_100, 10_150) for effect in one.time_passed(now, 0)]
    assert [effect.host for effect in later if isinstance(effect, TellSilence)] == [2]


def test_where_answers_come_late_now_and_then_the_deadline_is_longer() -> None:
    one = RingMember(1, 50, 150)
    one.rewired(2, 0)

    def answered(*times: int) -> None:
        for now in times:
            one.time_passed(now, 0)
            one.ponged(2, {}, now)

    def silent_from(begin: int) -> int:
        """When silence is reported."""
        for now in range(begin, begin + 10_000, 10):
            if any(isinstance(effect, TellSilence) for effect in one.time_passed(now, 0)):
                return now
        raise AssertionError("never reported")

    answered(*range(50, 1_001, 50))
    assert one.deadline_ms == 150
    answered(1_120)
    assert one.deadline_ms == 240
    assert silent_from(1_120) == 1_120 + 240
    answered(*range(2_000, 2_000 + 50 * 101, 50))
    assert one.deadline_ms == 150  # late answers are forgotten after a while
    one.ponged(2, {}, 99_000)
    assert one.deadline_ms == 600  # a limit
    one.rewired(3, 100_000)
    assert one.deadline_ms == 150


def test_a_ring_of_one_pings_nobody() -> None:
    lone = RingMember(2, 50, 150)
    lone.rewired(None, 0)
    assert lone.time_passed(500, 0) == []


def test_a_death_is_durable_before_a_role_is_taken() -> None:
    controller = controller_of(3, 3)
    effects = controller.host_lost(1)
    assert isinstance(effects[0], PersistRing)
    assert takes(effects) == {Role(0, 0): (2, 2, False)}
    assert controller.record.fences == {Role(0, 0): 2}
    assert controller.host_lost(1) == []
    told = controller.taken(2, Role(0, 0), 2)
    assert Tell(3, RewireRole(Role(0, 0), Seat(2, 2), 2)) in told
    assert controller.taken(1, Role(0, 0), 1) == []


def test_several_deaths_in_a_row_end_with_a_fresh_take() -> None:
    controller = controller_of(3, 3)
    controller.host_lost(1)
    assert takes(controller.host_lost(2))[Role(0, 0)] == (3, 3, False)
    effects = controller.host_lost(3)
    assert takes(effects) == {}
    assert all(seat.host == NO_HOST for seat in controller.record.seats.values())
    joined = controller.joined(7, 0, 1)
    assert isinstance(joined[1], Tell)
    assert isinstance(joined[1].order, JoinRing)
    assert {taken[2] for taken in takes(joined).values()} == {True}
    assert all(seat.host == NO_HOST for seat in controller.record.settled_seats().values())


def test_a_restarted_host_gets_its_roles_back_when_it_is_ready() -> None:
    controller = controller_of(2, 2)
    controller.host_lost(1)
    controller.taken(2, Role(0, 0), 2)
    joined = controller.joined(5, 0, 0)
    assert Tell(2, ChangeMembers(0, (5, 2))) in joined
    assert Tell(2, HandOverRole(Role(0, 0), Seat(5, 3))) not in joined
    assert Tell(2, HandOverRole(Role(0, 0), Seat(5, 3))) in controller.ready(5)
    told = controller.taken(5, Role(0, 0), 3)
    assert Tell(2, RewireRole(Role(0, 0), Seat(5, 3), 2)) in told
    assert controller.quiet


def test_a_death_during_a_move_is_a_take_over() -> None:
    controller = controller_of(2, 2)
    controller.host_lost(1)
    controller.taken(2, Role(0, 0), 2)
    controller.joined(5, 0, 0)
    controller.ready(5)
    effects = controller.host_lost(2)
    assert takes(effects) == {Role(0, 0): (5, 4, False), Role(0, 1): (5, 2, False)}


def test_a_host_that_was_lost_does_not_join_again() -> None:
    controller = controller_of(2, 2)
    controller.host_lost(1)
    assert controller.joined(1, 0, 0) == []
    assert controller.joined(3, 0, 1) == []  # the slot is taken
