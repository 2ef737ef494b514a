"""When nodes go home."""

from penstock.core.control.homecoming import (
    LOOK_MS,
    SAVE_MS,
    SETTLE_MS,
    SETTLE_MS_MAX,
    Homecoming,
)
from penstock.core.control.membership_events import (
    FollowNodes,
    MembershipEffect,
    MoveNodes,
    SaveNodes,
    Situation,
    StopFollowing,
)
from penstock.core.control.roster import Roster

CALM = Situation(settled=True, ending=False, saved=False)
SAVED = Situation(settled=True, ending=False, saved=True)
BUSY = Situation(settled=False, ending=False, saved=False)
ENDING = Situation(settled=True, ending=True, saved=True)


class House:
    """Three workers, of which one was lost and is replaced: its node is away."""

    def __init__(self, movable: frozenset[int] = frozenset({1, 2, 3})) -> None:
        self.roster = Roster(3, standby=0)
        self.roster.homes = {1: 1, 2: 2, 3: 3}
        self.roster.assigned |= {1, 2, 3}
        self.placement = {1: 1, 2: 2, 3: 3}
        self.homecoming = Homecoming(self.roster, self.placement, movable)
        self.now_ms = 0
        self.lose(1, taker=2)

    def lose(self, host: int, taker: int) -> int:
        fresh = self.roster.new_number()
        self.roster.replace(host, fresh, self.now_ms)
        self.placement.update({n: taker for n, at in self.placement.items() if at == host})
        self.roster.assigned.add(fresh)
        return fresh

    def look(self, situation: Situation, after_ms: int = LOOK_MS) -> list[MembershipEffect]:
        self.now_ms += after_ms
        return self.homecoming.look(situation, self.now_ms, cause=7)

    def ms_until_saving(self) -> int:
        began_ms = self.now_ms
        while not self.look(CALM):
            assert self.now_ms < began_ms + 10 * SETTLE_MS_MAX
        return self.now_ms - began_ms


def test_nodes_save_their_states_and_then_move() -> None:
    house = House()
    assert house.look(CALM) == []
    assert house.look(CALM, SETTLE_MS - 1) == []
    assert house.look(CALM, 1) == [SaveNodes(7, (1,)), FollowNodes(7, 4, (1,))]
    assert house.homecoming.saving == {1: 4}
    assert house.look(CALM) == []
    reason = "host 4 is up: its nodes go home"
    assert house.look(SAVED) == [StopFollowing(7, (4,)), MoveNodes(7, {1: 4}, reason)]
    house.placement[1] = 4
    assert house.look(SAVED, SETTLE_MS_MAX) == []


def test_nodes_move_without_a_checkpoint_that_takes_too_long() -> None:
    house = House()
    house.ms_until_saving()
    assert house.look(CALM, SAVE_MS - 1) == []
    assert isinstance(house.look(CALM, 1)[-1], MoveNodes)


def test_nothing_moves_while_anything_recovers() -> None:
    house = House()
    assert house.look(BUSY, SETTLE_MS_MAX) == []
    house.ms_until_saving()
    assert house.look(BUSY) == [StopFollowing(7, (4,))]
    assert house.homecoming.saving == {}
    # A checkpoint of before says nothing about the state of now.
    assert isinstance(house.look(SAVED)[0], SaveNodes)


def test_nothing_moves_while_the_flow_ends() -> None:
    house = House()
    assert house.look(CALM) == []
    assert house.look(ENDING, SETTLE_MS) == []


def test_nothing_moves_to_a_home_that_is_not_ready() -> None:
    house = House()
    house.roster.assigned.discard(4)
    assert house.look(CALM, SETTLE_MS_MAX) == []
    house.roster.assigned.add(4)
    assert house.look(CALM) == []  # it counts from now on


def test_nodes_that_must_not_move_stay() -> None:
    house = House(movable=frozenset({2, 3}))
    assert [house.look(CALM, SETTLE_MS) for _ in range(5)] == [[]] * 5


def test_another_loss_while_saving_begins_with_other_nodes_anew() -> None:
    house = House()
    house.ms_until_saving()
    fresh = house.lose(3, taker=2)
    assert house.look(CALM) == []  # the first home is still the only one that has settled
    effects = house.look(CALM, SETTLE_MS)
    assert effects == [
        StopFollowing(7, (4,)),
        SaveNodes(7, (1, 3)),
        FollowNodes(7, 4, (1,)),
        FollowNodes(7, fresh, (3,)),
    ]


def test_a_home_that_is_lost_again_after_a_move_must_be_up_for_twice_as_long() -> None:
    house = House()
    waits = []
    for _ in range(8):
        waits.append(house.ms_until_saving() // 1000)
        [*_, move] = house.look(SAVED)
        assert isinstance(move, MoveNodes)
        house.placement.update(move.places)
        house.lose(house.placement[1], taker=2)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_home_that_stayed_up_for_long_is_trusted_again() -> None:
    house = House()
    house.ms_until_saving()
    [*_, move] = house.look(SAVED)
    assert isinstance(move, MoveNodes)
    house.placement.update(move.places)
    house.now_ms += 2 * SETTLE_MS_MAX
    house.lose(4, taker=2)
    assert house.ms_until_saving() == SETTLE_MS + LOOK_MS


def test_a_look_is_due_ten_times_a_second() -> None:
    house = House()
    house.look(CALM)
    assert not house.homecoming.is_due(house.now_ms + LOOK_MS - 1)
    assert house.homecoming.is_due(house.now_ms + LOOK_MS)
