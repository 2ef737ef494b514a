"""The replicated part of a simulated flow: what its hosts play, and what is durable of it.

The machines are the real ones.  Hosts, connections and the membership are those of the whole world;
see :mod:`penstock.testing.simulator.hosts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.delivery.ids import ParcelId, Role, member_host
from penstock.core.delivery.messages import HandedOver, Parcel
from penstock.core.delivery.player import RoleState
from penstock.core.progress.marks import EPOCH_END
from penstock.testing.simulator.hosts import TICK, Cluster, Host
from penstock.testing.simulator.roles.agent import Agent
from penstock.testing.simulator.roles.faults import SIBLING
from penstock.testing.simulator.roles.monitor import ReplicaMonitor
from penstock.testing.simulator.roles.packets import HostChannel
from penstock.testing.simulator.roles.shape import ReplicatedShape, Row
from penstock.testing.simulator.roles.source_log import SourceLog, rows_of_read
from penstock.testing.simulator.violations import Violation

if TYPE_CHECKING:
    from penstock.testing.simulator.driver import Choices
    from penstock.testing.simulator.world import World

__all__ = ["ReplicatedPart"]

TICK_STEPS = 30
"""Steps from one look at what can be told together to the next."""


class ReplicatedPart:
    """All replicas of a run, whichever driver's."""

    def __init__(self, world: World, shape: ReplicatedShape, often: bool) -> None:
        self.world = world
        self.shape = shape
        self.often = often
        """Whether hosts tell what has come as soon as there is enough of it."""
        self.monitor = ReplicaMonitor(self)
        self.agents: dict[int, Agent] = {}
        """Per host."""
        stages = shape.stages
        self.logs = {role: SourceLog() for stage in stages.sources for role in stages.of(stage)}
        self.stored_ids: set[ParcelId] = set()
        """The parcels that sinks have published."""
        self.durable = (0, 0)
        """The greatest incarnation and generation that were recorded."""
        self.cut_short: int | None = None
        """A host that dies in the middle of what it does next."""
        self.cut_move: str | None = None
        """Which end of the next hand-over dies during it."""
        self.cut_siblings = 0
        """How many of the next hosts that join a ring lose a sibling while they learn from it."""
        self._doomed: list[tuple[int, Agent]] = []
        """Such siblings, and when they die."""
        self._arrivals: dict[tuple[Role, int, range], dict[ParcelId, Role]] = {}

    @property
    def cluster(self) -> Cluster:
        """The hosts."""
        assert self.world.cluster is not None
        return self.world.cluster

    # -- what can happen -------------------------------------------------------------------------

    def add_choices(self, found: Choices, stores: bool) -> None:
        """Add what can happen at hosts; ``stores``: the store takes writes just now."""
        for agent in self.awake():
            late = agent.hard_of_hearing and self.world.random.random() < 0.85
            if agent.told and not late:
                found.append((self._obey, agent))
            if agent.can_work(stores):
                found.append((self._work if stores else self._work_on, agent))
            if stores and self.world.steps % 3 == 0:
                found += [(self._read, (agent, role)) for role in self.readable(agent)]

    def awake(self) -> list[Agent]:
        """The hosts that do something now."""
        frozen = self.cluster.frozen()
        return [a for a in self.agents.values() if a.alive and a.host not in frozen]

    def readable(self, agent: Agent) -> list[Role]:
        """The source roles of a host that can read on."""
        return agent.readable()

    def _obey(self, agent: Agent) -> None:
        agent.obey(agent.told.popleft())

    def _work(self, agent: Agent) -> None:
        agent.do_work(stores=True)

    def _work_on(self, agent: Agent) -> None:
        agent.do_work(stores=False)

    def _read(self, which: tuple[Agent, Role]) -> None:
        which[0].read(which[1])

    def joins(self, agent: Agent, stage: int, members: Sequence[int]) -> None:
        """A host comes to a ring of others, and learns what they know."""
        others = [self.of(agent, member_host(one)) for one in members if one != agent.member(stage)]
        if self.cut_siblings and others:
            self.cut_siblings -= 1
            self.world.count(SIBLING)
            when = self.world.steps + self.world.random.randint(1, 12)
            self._doomed.append((when, self.world.random.choice(others)))

    def look(self) -> None:
        """What hosts that were given up hold is lost, whatever they have taken in."""
        if self._doomed:
            due = [agent for when, agent in self._doomed if when <= self.world.steps]
            self._doomed = [one for one in self._doomed if one[0] > self.world.steps]
            for agent in due:
                self.kill(agent)
        for agent in self.agents.values():
            if agent.alive and self.cluster.refuses(agent.host):
                self.monitor.hit(agent)

    def tick(self) -> None:
        """Time has passed: each host looks now and then what is to be told."""
        steps = self.world.steps
        for agent in self.awake():
            if (steps + agent.host) % TICK_STEPS < TICK:
                agent.tick()

    def at_rest(self) -> bool:
        """Whether nothing is left to do, even after all hosts had time to tell."""
        rings = self.world.driver.rings
        if rings is None or not rings.at_rest() or any(agent.told for agent in self.awake()):
            return False
        # Between the stages of one host a floor rises by one stage a round, and nobody sees it.
        for _ in range(2 + self.shape.stages.length):
            for agent in self.awake():
                agent.tick()
            if self.world.network.busy() or any(agent.said for agent in self.awake()):
                return False
        return not any(self.readable(agent) for agent in self.awake())

    def ended(self) -> None:
        """The run is over: everything must be published, and at home."""
        if not self.at_rest():
            raise Violation("eventuality", "the replicas do not come to rest")
        rings = self.world.driver.rings
        assert rings is not None
        rings.look_for_ends()
        self.monitor.check_homes()
        self.monitor.check_end()

    # -- hosts -----------------------------------------------------------------------------------

    def add(self, host: Host) -> None:
        """A process has come up."""
        agent = self.agents[host.key] = Agent(self, host)
        agent.hard_of_hearing = self.world.rough and self.world.random.random() < 0.25

    def died(self, host: Host) -> None:
        """A process is gone."""
        agent = self.agents[host.key]
        self.monitor.hit(agent)
        agent.stop()
        for channel in self.world.network.channels.values():
            if isinstance(channel, HostChannel) and agent.host in (
                channel.sender.host,
                channel.host,
            ):
                channel.lose(self.world.random)

    def fenced(self, host: int) -> None:
        """The driver hears a host no more, nor does the host hear the driver."""
        agent = self.agents.get(host)
        if agent is not None:
            self.monitor.hit(agent)
            agent.told.clear()
            agent.said.clear()

    def kill(self, agent: Agent) -> None:
        """A fault in the middle of what a host does ends it; the driver's own is spared."""
        if agent.number:
            self.cluster.kill(agent.process)

    def of(self, agent: Agent, number: int) -> Agent:
        """The host that another one of the same driver calls so."""
        return self.agents[agent.host - agent.number + number]

    def heard_by(self, agent: Agent, number: int) -> Agent | None:
        """Who gets what a host sends to another, if it has a connection."""
        other = self.agents.get(agent.host - agent.number + number)
        return other if other is not None and other.alive and number not in agent.forgot else None

    def living(self) -> list[Agent]:
        """The workers that count."""
        roster = self.cluster.membership.roster
        found = (self.agents.get(self.cluster.key(number)) for number in sorted(roster.hosts))
        return [a for a in found if a is not None and a.alive and a.number in roster.assigned]

    # -- what is durable -------------------------------------------------------------------------

    def rows_of(self, lane: Role) -> int:
        """How many rows a source can read by now."""
        sink = self.shape.reads
        if sink is None:
            return self.shape.rows
        found = sum(map(len, self.world.store.published[sink].values()))
        return len(range(lane.place, found, self.shape.stages.roles[lane.stage]))

    def source_rows(self, lane: Role, places: range) -> list[Row]:
        """Rows of a source: its share of what the sink that it reads has published."""
        sink = self.shape.reads
        if sink is None:
            return [(lane.place, place) for place in places]
        published = self.world.store.published[sink]
        rows = [row for epoch in sorted(published) for row in published[epoch]]
        mine = rows[lane.place :: self.shape.stages.roles[lane.stage]]
        return [(lane.place, place, *mine[place]) for place in places]

    @property
    def _has_all(self) -> bool:
        """Whether nothing more comes that sources could read."""
        sink = self.shape.reads
        return sink is None or EPOCH_END in self.world.store.published[sink]

    def arrivals(self, lane: Role, number: int) -> dict[ParcelId, Role]:
        """The parcels that come to sinks of a read that was noted."""
        rows = rows_of_read(self.logs[lane].ends, number)
        key = lane, number, rows
        if key not in self._arrivals:
            read = self.source_rows(lane, rows)
            self._arrivals[key] = self.shape.arrivals(lane, number, read)
        return self._arrivals[key]

    def published_to(self, lane: Role) -> int:
        """The last read of a source role that need not be made again."""
        reads = len(self.logs[lane].ends)
        if not self.shape.settings.guarantee.loses_nothing:
            return reads
        for number in range(1, reads + 1):
            if not self.arrivals(lane, number).keys() <= self.stored_ids:
                return number - 1
        return reads

    def all_read(self) -> bool:
        """Whether the sources have come to their ends."""
        if not self._has_all:
            return False
        return all(
            (log.ends[-1] if log.ends else 0) >= self.rows_of(lane)
            for lane, log in self.logs.items()
        )

    def publish(self, agent: Agent, parcel: Parcel) -> bool:
        """Make a parcel visible outside, once; hosts of an earlier driver are refused."""
        if self.cluster.is_orphan(agent.host):
            self.world.note("store refuses", agent)
            return False
        if not (self.shape.settings.dedup and parcel.id in self.stored_ids):
            self.world.note(agent, "publishes", parcel)
            self.stored_ids.add(parcel.id)
            self.monitor.published(parcel.payload)
        return True

    def handed_to(self, host: int) -> list[ParcelId]:
        """What is on its way to or from a host because a role was handed over."""
        found: list[ParcelId] = []
        for channel in self.world.network.channels.values():
            if not isinstance(channel, HostChannel):
                continue
            if host not in (channel.sender.host, channel.host):
                continue
            for _, packet in channel.wire:
                source = packet.stage in self.shape.stages.sources
                if isinstance(packet.envelope.body, HandedOver) and not source:
                    state: RoleState = packet.envelope.body.state
                    found += [*state.entries, *state.works]
        return found
