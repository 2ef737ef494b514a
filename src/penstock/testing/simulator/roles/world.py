"""The world of a simulated run: hosts, a driver, stores, and one random step after another.

The machines are the real ones.  The seed chooses the flow, the schedule and the faults; then the
faults stop, and everything has to come to rest.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from penstock.core.delivery.ids import ParcelId, Role
from penstock.core.delivery.messages import HandedOver, Parcel, Publish
from penstock.core.delivery.player import RoleState
from penstock.testing.simulator.cases import Case
from penstock.testing.simulator.roles.driver import Driver
from penstock.testing.simulator.roles.faults import plan_faults, strike
from penstock.testing.simulator.roles.hosts import INTERVAL_MS, Host
from penstock.testing.simulator.roles.monitor import Monitor
from penstock.testing.simulator.roles.network import Channel, Network
from penstock.testing.simulator.roles.shape import Shape, shape_of
from penstock.testing.simulator.roles.source_log import SourceLog, rows_of_read
from penstock.testing.simulator.violations import Violation

__all__ = ["Host", "World"]

STEPS_MAX = 20_000


class World:
    """One run; everything follows from the seed."""

    def __init__(
        self,
        case: Case,
        trace: list[str] | None = None,
        shape: Shape | None = None,
        faults: tuple[str, ...] | None = None,
    ) -> None:
        self.random = Random(case.seed)
        self.trace = trace
        self.shape = shape or shape_of(self.random)
        self.network = Network(self.random, self.shape.settings.logs)
        self.monitor = Monitor(self.shape)
        self.now_ms = 0
        self.steps = 0
        self.faults: Counter[str] = Counter()
        self.hosts: dict[int, Host] = {}
        self.alive: list[Host] = []
        stages = self.shape.stages
        self.logs = {role: SourceLog() for stage in stages.sources for role in stages.of(stage)}
        self.stored_ids: set[ParcelId] = set()
        """The parcels that sinks have published."""
        self.pending: list[tuple[int, str]] = []
        """Faults to come: when, and what."""
        self.cut_short: int | None = None
        """A host that dies in the middle of what it does next."""
        self.cut_move: str | None = None
        """Which end of the next hand-over dies during it."""
        self.rough = case.rough
        self.often = case.often
        self.store_until = 0
        """Before this step the store refuses writes."""
        self._arrivals: dict[tuple[Role, int, range], dict[ParcelId, Role]] = {}
        self.driver = Driver(self)
        plan_faults(self, faults)

    def start(self, number: int, run: int) -> None:
        """A process of a driver comes up."""
        host = Host(self, number, run)
        if self.rough:
            host.offset_ms = self.random.choice((0, 700, 40_000))
        self.hosts[number] = host
        self.alive.append(host)

    # -- running ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Until everything is at rest; raises a violation."""
        while self.steps < STEPS_MAX:
            if not self._step():
                if self._rest():
                    break
                self.now_ms += INTERVAL_MS
        else:
            raise Violation("eventuality", f"no rest after {STEPS_MAX} steps")
        self.driver.look_for_ends()
        self.monitor.check_homes(self)
        self.monitor.check_end(self)

    def _step(self) -> bool:
        """One thing happens; False if nothing can, but for time to pass."""
        self.steps += 1
        self.now_ms += 1
        while self.pending and self.pending[0][0] <= self.steps:
            strike(self, self.pending.pop(0)[1])
        self._time_passes()
        choices = self._choices()
        if not choices:
            deaf = any(host.told or host.said for host in self.alive)
            waits = self.store_refuses or self.pending or self.network.links.dead
            return bool(deaf or waits)
        what, subject = self.random.choice(choices)
        if isinstance(subject, Channel):
            self._arrive(subject)
        elif isinstance(subject, tuple):
            subject[0].read(subject[1])
        elif what == "told":
            subject.obey(subject.told.popleft())
        elif what == "said":
            self.driver.heard(subject)
        else:
            subject.do_work()
        return True

    def _choices(self) -> list[tuple[str, Channel | Host | tuple[Host, Role]]]:
        hosts, refuses = self.hosts, self.store_refuses
        choices: list[tuple[str, Channel | Host | tuple[Host, Role]]] = [
            ("message", channel)
            for channel in self.network.open
            if channel.wire
            and not hosts[channel.target].frozen
            and self.network.links.passes(channel.source, channel.target)
        ]
        for host in self.alive:
            if host.frozen:
                continue
            if host.told and (host.number in self.driver.up or self.steps % 48 == 0):
                choices.append(("told", host))  # one that was given up hears little
            if host.said:
                choices.append(("said", host))
            if host.work and not (refuses and isinstance(host.work[0], Publish)):
                choices.append(("work", host))
            if self.steps % 3 == 0 and not refuses:
                choices += [("read", (host, role)) for role in self.readable(host)]
        return choices

    def readable(self, host: Host) -> list[Role]:
        """The source roles of a host that can read on."""
        return host.readable()

    def _time_passes(self) -> None:
        """Processes wake up, come up and end; time passes for those that run."""
        if self.rough:
            for pair in self.network.links.mended(self.steps):
                self.network.reconnect(*pair)
        self.driver.try_again()
        for host in list(self.alive):
            if host.lease is not None and self.steps >= host.lease:
                self.kill(host)
            elif host.frozen:
                host.frozen -= 1
                if not host.frozen:
                    self.note(host, "wakes up")
            elif self.now_ms - host.ticked_ms >= INTERVAL_MS:
                host.ticked_ms = self.now_ms
                host.tick()
                host.watch()
            if host.alive and host.number not in self.driver.up:
                self.monitor.hit(host, self)
        self.driver.time_passed()
        if self.steps % 20 == 0:
            self.driver.look_for_ends()

    def _rest(self) -> bool:
        """Whether nothing is left to do, even after all hosts had time to tell."""
        driver = self.driver
        if driver.starting or driver.pending or self.pending or not driver.machine.quiet:
            return False
        if any(host.frozen or host.lease is not None for host in self.alive):
            return False
        if any(self.readable(host) for host in self.alive):
            return False
        for _ in range(2):
            for host in list(self.alive):
                host.tick()
            if any(channel.wire for channel in self.network.channels.values()):
                return False
            if any(host.said for host in self.alive):
                return False
        return all(self.hosts[number].alive for number in driver.up)

    def _arrive(self, channel: Channel) -> None:
        host = self.hosts[channel.target]
        if channel.source in host.forgot:
            channel.wire.clear()
            return
        packet = self.network.take(channel)
        if packet is not None:
            host.arrived(packet)

    # -- what is durable -------------------------------------------------------------------------

    @property
    def store_refuses(self) -> bool:
        """Whether the store takes no writes at the moment."""
        return self.steps < self.store_until

    def arrivals(self, lane: Role, number: int) -> dict[ParcelId, Role]:
        """The parcels that come to sinks of a read that was noted."""
        rows = rows_of_read(self.logs[lane].ends, number)
        key = lane, number, rows
        if key not in self._arrivals:
            self._arrivals[key] = self.shape.arrivals(*key)
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
        return all(log.ends and log.ends[-1] >= self.shape.rows for log in self.logs.values())

    def publish(self, host: Host, parcel: Parcel) -> bool:
        """Make a parcel visible outside, once; hosts of an earlier driver are refused."""
        if host.run != self.driver.run:
            self.note("store refuses", host)
            return False
        if not (self.shape.settings.dedup and parcel.id in self.stored_ids):
            self.note(host, "publishes", parcel)
            self.stored_ids.add(parcel.id)
            self.monitor.published(parcel.payload)
        return True

    # -- processes and words ---------------------------------------------------------------------

    def reaches(self, host: Host, number: int) -> bool:
        """Whether a host has a connection to another."""
        other = self.hosts.get(number)
        return other is not None and other.alive and other.run == host.run

    def living(self) -> list[Host]:
        """The hosts that count."""
        return [host for host in self.alive if host.number in self.driver.up]

    def kill(self, host: Host) -> None:
        """A process is gone."""
        if host.alive:
            self.note(host, "dies")
            self.monitor.hit(host, self)
            host.alive = False
            host.died_ms = self.now_ms
            self.alive.remove(host)
            host.work.clear()
            host.told.clear()
            host.said.clear()
            self.network.died(host.number)

    def handed_to(self, number: int) -> list[ParcelId]:
        """What is on its way to a host because a role was handed over to it."""
        found: list[ParcelId] = []
        for channel in self.network.channels.values():
            for _, packet in channel.wire:
                if isinstance(packet.envelope.body, HandedOver) and number in (
                    channel.source,
                    channel.target,
                ):
                    state: RoleState = packet.envelope.body.state
                    found += [*state.entries, *state.works]
        return found

    def note(self, *words: object) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.steps:5d}  {' '.join(map(str, words))}")
