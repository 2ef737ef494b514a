"""The machine of the rings: generations, the barrier, vacant slots, fences, ends."""

from collections.abc import Iterable

from penstock.core.control.host_orders import (
    BeginRings,
    ChangeMembers,
    DropMembers,
    HandOverRole,
    JoinRing,
    OpenRings,
    RewireRole,
    RoleOrder,
    SayJoined,
    TakeRole,
)
from penstock.core.control.host_reports import (
    LossHeard,
    MemberReady,
    ParcelsMissed,
    RingsBegun,
    RingsJoined,
    RoleRecovered,
    RoleTaken,
)
from penstock.core.control.ring_record import (
    FenceSourceRoles,
    PersistRings,
    RingsEffect,
    TellHost,
    WarnMissed,
)
from penstock.core.control.rings import GenerationPhase, RingsMachine
from penstock.core.delivery.ids import Role, member
from penstock.core.delivery.routing import Seat, Stages

STAGES = Stages({0: 2, 1: 2}, {0: (1,)})
SOURCE, SINK = Role(0, 0), Role(1, 0)
RINGS = {0: (1, 2), 1: (2, 3)}
HOMES = {SOURCE: 0, Role(0, 1): 1, SINK: 0, Role(1, 1): 1}
LOWS = dict.fromkeys(HOMES, 7)


class Driver:
    """A store that works, and the orders that each host has got."""

    def __init__(self, incarnation: int = 0, generation: int = 0) -> None:
        self.machine = RingsMachine(STAGES, RINGS, HOMES, incarnation, generation)
        self.told: dict[int, list[RoleOrder]] = {}
        self.done: list[str] = []
        self.holds = False
        """Whether the store takes nothing at the moment."""
        self.held: list[RingsEffect] = []

    def perform(self, effects: Iterable[RingsEffect]) -> None:
        work = list(effects)
        while work:
            effect = work.pop(0)
            if self.holds and isinstance(effect, PersistRings | FenceSourceRoles):
                self.held.append(effect)
                continue
            self.done.append(type(effect).__name__)
            if isinstance(effect, PersistRings):
                work += self.machine.stored(effect.number)
            elif isinstance(effect, FenceSourceRoles):
                self.fences = dict(effect.fences)
                work += self.machine.fenced(effect.number, LOWS)
            elif isinstance(effect, TellHost):
                self.told.setdefault(effect.host, []).extend(effect.orders)

    def release(self) -> None:
        """The store takes writes again."""
        self.holds = False
        held, self.held = self.held, []
        self.perform(held)

    def orders(self, host: int, kind: type) -> list[RoleOrder]:
        return [order for order in self.told.get(host, ()) if isinstance(order, kind)]

    def all_begun(self) -> None:
        for host in sorted(self.machine.hosts):
            self.perform(self.machine.told(host, RingsBegun(self.machine.generation)))

    def all_joined(self) -> None:
        for host in sorted(self.machine.hosts):
            self.perform(self.machine.told(host, RingsJoined(self.machine.generation)))

    def all_heard(self) -> None:
        for host in sorted(self.machine.hosts):
            for order in self.orders(host, DropMembers):
                assert isinstance(order, DropMembers)
                heard = LossHeard(self.machine.generation, order.round)
                self.perform(self.machine.told(host, heard))

    def opened(self) -> "Driver":
        self.perform(self.machine.begin([1, 2, 3]))
        self.all_begun()
        self.all_joined()
        assert self.machine.is_open
        self.forget()
        return self

    def forget(self) -> None:
        self.told.clear()
        self.done.clear()


def record_of(machine: RingsMachine) -> dict[Role, Seat]:
    assert machine.record is not None
    return dict(machine.record.seats)


# -- a generation begins ---------------------------------------------------------------------------


def test_rings_open_when_all_have_stopped_the_store_knows_and_all_have_joined() -> None:
    driver = Driver(incarnation=4, generation=2)
    machine = driver.machine
    driver.perform(machine.begin([1, 2, 3]))
    assert all(driver.told[host] == [BeginRings(3)] for host in (1, 2, 3))
    driver.forget()
    driver.all_begun()
    assert driver.done[:2] == ["PersistRings", "FenceSourceRoles"]
    assert driver.fences == {SOURCE: 5, Role(0, 1): 5}
    assert [type(order) for order in driver.told[2]] == [JoinRing, JoinRing, SayJoined]
    [join] = driver.orders(1, JoinRing)
    assert isinstance(join, JoinRing)
    assert (join.lows[SOURCE], join.joining, join.seats[SINK]) == (7, False, Seat(member(2, 1), 5))
    assert not driver.orders(1, OpenRings)
    driver.all_joined()
    assert machine.is_open
    assert all(driver.orders(host, OpenRings) for host in (1, 2, 3))


def test_reports_of_earlier_generations_and_of_lost_hosts_are_ignored() -> None:
    driver = Driver()
    machine = driver.machine
    driver.perform(machine.begin([1, 2, 3]))
    driver.perform(machine.host_lost(3, heir=4))
    assert machine.generation == 2
    for host in (1, 2):
        assert machine.told(host, RingsBegun(1)) == []
    assert machine.told(3, RingsBegun(2)) == []
    assert machine.phase is GenerationPhase.STOPPING


def test_a_loss_before_the_rings_are_open_begins_another_generation() -> None:
    driver = Driver()
    machine = driver.machine
    driver.perform(machine.begin([1, 2, 3]))
    driver.all_begun()
    driver.perform(machine.host_lost(3, heir=4))
    assert (machine.phase, machine.generation) == (GenerationPhase.STOPPING, 2)
    assert not driver.orders(1, DropMembers)
    driver.all_begun()
    driver.all_joined()
    assert machine.is_open
    assert record_of(machine)[Role(1, 1)] == Seat(member(2, 1), 2)


def test_a_stage_without_hosts_is_waited_for_and_answers_count_for_nothing_then() -> None:
    driver = Driver()
    machine = driver.machine
    driver.perform(machine.begin([1, 2, 3]))
    for host in (3, 2):
        driver.perform(machine.told(host, RingsBegun(1)))
    driver.perform(machine.host_lost(3, heir=4))
    for host in (2, 1):
        driver.perform(machine.told(host, RingsBegun(machine.generation)))
    driver.all_joined()
    assert machine.is_open
    driver.perform(machine.told(1, ParcelsMissed(machine.generation, "sink", "read 3")))
    driver.perform(machine.host_lost(2, heir=5))
    assert machine.phase is GenerationPhase.WAITING
    driver.all_begun()
    driver.all_joined()
    assert machine.phase is GenerationPhase.WAITING
    driver.perform(machine.host_ready(5))
    driver.all_begun()
    driver.all_joined()
    assert machine.is_open
    assert record_of(machine)[SINK].host == member(5, 1)


def test_what_is_missed_begins_all_anew_once() -> None:
    driver = Driver().opened()
    machine = driver.machine
    effects = machine.told(3, ParcelsMissed(1, "sink[0]", "read 3"))
    assert effects[0] == WarnMissed("sink[0]", "read 3")
    driver.perform(effects)
    assert machine.told(2, ParcelsMissed(1, "sink[1]", "read 3")) == []
    assert machine.generation == 2
    driver.all_begun()
    assert driver.fences == {SOURCE: 2, Role(0, 1): 2}


def test_a_host_without_a_slot_does_not_disturb_a_beginning() -> None:
    driver = Driver()
    machine = driver.machine
    driver.perform(machine.begin([1, 2, 3]))
    driver.perform(machine.host_ready(9))
    assert machine.generation == 1
    assert driver.told[9] == [BeginRings(1)]
    for host in (1, 2, 3):
        driver.perform(machine.told(host, RingsBegun(1)))
    assert machine.phase is GenerationPhase.JOINING


def test_a_host_that_is_lost_before_the_rings_begin_leaves_its_slots_to_its_heir() -> None:
    driver = Driver()
    assert driver.machine.host_lost(1, heir=6) == []
    driver.perform(driver.machine.begin([2, 3, 6]))
    driver.all_begun()
    assert record_of(driver.machine)[SOURCE].host == member(6, 0)


# -- a host is lost --------------------------------------------------------------------------------


def test_a_role_is_taken_when_all_hosts_have_heard_of_the_loss() -> None:
    driver = Driver().opened()
    machine = driver.machine
    driver.perform(machine.host_lost(1, heir=4))
    assert driver.orders(3, DropMembers) == [DropMembers((member(1, 0),), 1)]
    driver.perform(machine.told(2, LossHeard(1, 1)))
    assert not driver.orders(2, TakeRole)
    driver.perform(machine.told(3, LossHeard(1, 1)))
    assert driver.fences == {SOURCE: 2}
    assert driver.orders(2, TakeRole) == [TakeRole(SOURCE, 2, fresh=False, low=7)]
    assert driver.done.index("FenceSourceRoles") > driver.done.index("PersistRings")


def test_another_loss_begins_another_round() -> None:
    driver = Driver().opened()
    machine = driver.machine
    driver.perform(machine.host_ready(9))
    driver.perform(machine.host_lost(1, heir=4))
    driver.perform(machine.host_lost(3, heir=5))
    for host in (2, 9):
        driver.perform(machine.told(host, LossHeard(1, 1)))
    assert not driver.orders(2, TakeRole)
    driver.all_heard()
    taken = {order.role for order in driver.orders(2, TakeRole) if isinstance(order, TakeRole)}
    assert taken == {SOURCE, Role(1, 1)}


def test_roles_whose_taker_is_lost_behind_the_barrier_go_on_to_the_next() -> None:
    driver = Driver().opened()
    machine = driver.machine
    driver.perform(machine.host_lost(1, heir=4))
    driver.perform(machine.host_ready(4))
    driver.perform(machine.host_lost(2, heir=5))
    driver.all_heard()
    assert TakeRole(SOURCE, 3, fresh=True, low=7) in driver.orders(4, TakeRole)
    assert driver.fences == {SOURCE: 3, Role(0, 1): 2}


def test_nothing_is_told_that_the_store_does_not_know() -> None:
    driver = Driver().opened()
    machine = driver.machine
    driver.holds = True
    driver.perform(machine.host_lost(1, heir=4))
    driver.all_heard()
    assert not driver.orders(2, ChangeMembers)
    driver.release()
    assert driver.orders(2, ChangeMembers) == [ChangeMembers(0, (member(2, 0),))]
    assert driver.orders(2, TakeRole)


def test_a_fence_that_another_loss_overtakes_is_made_again() -> None:
    driver = Driver().opened()
    machine = driver.machine
    driver.perform(machine.host_lost(1, heir=4))
    driver.perform(machine.told(2, LossHeard(1, 1)))
    driver.holds = True
    driver.perform(machine.told(3, LossHeard(1, 1)))
    driver.perform(machine.host_lost(3, heir=5))
    driver.release()
    assert not driver.orders(2, TakeRole)
    driver.all_heard()
    assert len(driver.orders(2, TakeRole)) == 2


def test_an_answer_of_the_store_to_an_earlier_generation_is_ignored() -> None:
    driver = Driver().opened()
    machine = driver.machine
    driver.holds = True
    driver.perform(machine.host_lost(1, heir=4))
    driver.perform(machine.told(2, ParcelsMissed(1, "sink", "read 3")))
    driver.release()
    assert machine.phase is GenerationPhase.STOPPING
    assert not driver.orders(2, ChangeMembers)


# -- heirs -----------------------------------------------------------------------------------------


def test_an_heir_joins_and_gets_the_roles_back_when_it_is_ready() -> None:
    driver = Driver().opened()
    machine = driver.machine
    driver.perform(machine.host_lost(1, heir=4))
    driver.all_heard()
    driver.perform(machine.told(2, RoleTaken(1, 0, SOURCE, 2)))
    assert RewireRole(SOURCE, Seat(member(2, 0), 2), 2) in driver.orders(3, RewireRole)
    driver.perform(machine.host_ready(4))
    assert [type(order) for order in driver.told[4]] == [
        BeginRings,
        JoinRing,
        ChangeMembers,
        OpenRings,
    ]
    driver.perform(machine.told(4, MemberReady(1, 0)))
    assert driver.orders(2, HandOverRole) == [HandOverRole(SOURCE, Seat(member(4, 0), 3))]
    driver.perform(machine.told(4, RoleTaken(1, 0, SOURCE, 3)))
    assert machine.quiet


def test_an_heir_that_is_lost_leaves_its_slots_to_its_own_heir() -> None:
    driver = Driver().opened()
    machine = driver.machine
    driver.perform(machine.host_lost(1, heir=4))
    assert machine.host_lost(4, heir=5) == []
    driver.perform(machine.host_ready(5))
    assert machine.record is not None
    assert machine.record.rings[0] == {0: member(5, 0), 1: member(2, 0)}


def test_the_present_player_says_that_a_role_has_recovered() -> None:
    driver = Driver().opened()
    machine = driver.machine
    for host, heir in ((2, 4), (3, 5)):
        driver.perform(machine.host_lost(host, heir))
    driver.perform(machine.host_ready(5))
    driver.all_heard()
    for role in (SINK, Role(1, 1)):
        driver.perform(machine.told(5, RoleTaken(1, 1, role, record_of(machine)[role].incarnation)))
    driver.perform(machine.told(5, MemberReady(1, 1)))
    driver.perform(machine.host_ready(4))
    driver.perform(machine.told(4, MemberReady(1, 1)))
    before = record_of(machine)[SINK]
    driver.perform(machine.told(4, RoleTaken(1, 1, SINK, before.incarnation + 1)))
    assert machine.record is not None
    assert SINK in machine.record.fresh
    driver.perform(machine.told(5, RoleRecovered(1, 1, SINK, before.incarnation)))
    assert SINK in machine.record.fresh
    driver.perform(machine.told(4, RoleRecovered(1, 1, SINK, before.incarnation + 1)))
    assert SINK not in machine.record.fresh


# -- ends ------------------------------------------------------------------------------------------


def test_a_part_ends_with_the_last_of_its_sinks() -> None:
    stages = Stages({0: 1, 1: 2, 5: 1, 6: 1}, {0: (1,), 5: (6,)})
    machine = RingsMachine(stages, {}, {})
    assert machine.node_ended(Role(0, 0)) == []
    assert machine.node_ended(Role(1, 1)) == []
    assert sorted(machine.node_ended(Role(1, 0))) == [Role(0, 0), Role(1, 0), Role(1, 1)]
    assert machine.node_ended(Role(6, 0)) == [Role(6, 0), Role(5, 0)]
