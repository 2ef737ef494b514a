"""The replicas' side of a host: one machine for each ring that the host is a member of.

The controller decides who plays which role; every host has one agent that does it.  All of it
happens in the host's loop, between two steps of its nodes, and in the order in which things came:
what a message asks for is done before the next one is looked at.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, assert_never

import pyarrow as pa

from penstock.api.regimes import Replicated
from penstock.connectors.driver import DriverSink
from penstock.core.control import host_orders as orders
from penstock.core.control import host_reports as reports
from penstock.core.control.assignment import Assignment, Linger, RecoveryRules
from penstock.core.control.messages import RoleEnvelopes
from penstock.core.delivery.ids import ParcelId, Role, member, member_host, member_stage
from penstock.core.delivery.lane_epochs import SinkEpochs
from penstock.core.delivery.messages import (
    Collect,
    Collected,
    DeliverParcels,
    Doubt,
    Effect,
    Envelope,
    HandedOver,
    Introduced,
    Parcel,
    ProcessParcel,
    Publish,
    Ready,
    Recovered,
    SendEnvelope,
    Share,
    Shared,
    Taken,
)
from penstock.core.delivery.player import RolePlayer
from penstock.core.delivery.records import ReplicaMachine
from penstock.core.delivery.routing import Seat
from penstock.core.node.messages import Message
from penstock.core.node.node import NodeMachine
from penstock.engine.host.build import opened, source_context, wired, wiring_of
from penstock.engine.host.clock import EpochClock
from penstock.engine.host.host import LOCAL, Host
from penstock.engine.host.replicas import cargo
from penstock.engine.host.replicas.node import ReplicaRunner, SinkRunner, SourceRunner
from penstock.engine.host.replicas.source import NumberedSource, numbered, position_at
from penstock.engine.store.durable import Stall
from penstock.engine.store.logs import BoundaryLog, ResumePoint, newest_position
from penstock.errors import PeerError
from penstock.planning.physical import PhysicalPlan
from penstock.planning.replica_plan import node_of, paths_of, replicated_stages, role_of
from penstock.wire.frames import read_batch

__all__ = ["ReplicaAgent"]

log = logging.getLogger(__name__)

UNSAID = 64
"""Number of received parcels that are acknowledged together; fewer only along with settled ones."""
ALL_S = 0.4
"""How often everything is reported, floors rise, and missing parcels are asked for."""
TOGETHER_BYTES = 1 << 20
"""Most bytes sent together, unless a single message is larger."""
LINGER_US = 20_000
"""How long a source gathers rows for a read that would be small."""
KEPT_BYTES = 96 << 20
"""A source that keeps this much reads on only when what it sent is settled.  It still ends its
epochs, since nothing is settled before."""
_SIBLINGS = (Share, Shared, Collect, Collected, Introduced)


class ReplicaAgent:
    """Plays the roles of one host."""

    def __init__(
        self,
        host: Host,
        plan: PhysicalPlan,
        run: Assignment,
        rules: RecoveryRules,
        tell: Callable[[reports.RoleReport | reports.WriterStalled], None],
    ) -> None:
        self.host = host
        self.plan = plan
        self.run = run
        self._rules = rules
        self._stopping = run.sources.stopping
        self._tell = tell
        self.machines: dict[int, ReplicaMachine] = {}
        self.generation = -1
        self._going = False
        self._stages = replicated_stages(plan)
        self._clock = EpochClock(*run.epochs)
        self._played: dict[int, dict[Role, int]] = {}
        """Per stage: the roles that are played here, and their incarnations."""
        self._completed: dict[int, int] = {}
        """Per sink: the last epoch that is known to be published."""
        self._work: deque[tuple[int, Effect | cargo.Arrival]] = deque()
        self._busy = False
        self._waiting: dict[int, list[tuple[int, bytes]]] = {}
        """Per host: what is to be sent there together."""
        self._unknown: dict[int, list[Message | RoleEnvelopes]] = {}
        """What is for hosts whose addresses have not come yet."""
        self._early: list[tuple[int, int, bytes]] = []
        """What came from others before the controller's word that this host is a member."""
        self._full: set[int] = set()
        self._all_s = 0.0
        self._messages: Counter[int] = Counter()
        self._bytes: Counter[int] = Counter()
        self._roles = {
            node: role_of(plan, node)
            for chain in plan.chains
            if chain.index in self._stages.roles
            for node in chain.nodes
        }
        host.on_stray = self._stray
        host.retries.append(self._tick)

    # -- what the controller and other hosts say -------------------------------------------------

    def take(self, message: orders.PlayRoles | RoleEnvelopes) -> None:
        """Do what a message says."""
        match message:
            case RoleEnvelopes():
                generation = message.generation
                for stage, packed in message.envelopes:
                    self._take_in(generation, stage, packed)
                self._drain()
            case orders.PlayRoles():
                for peer, address in message.addresses.items():
                    if peer != self.host.number:
                        self.host.transport.connect(peer, address)
                        for held in self._unknown.pop(peer, ()):
                            self._put(peer, held)
                for order in message.orders:
                    self._obey(order)
                    self._drain()
            case _:
                assert_never(message)

    def _obey(self, order: orders.RoleOrder) -> None:
        """Do one thing that the driver asks for."""
        match order:
            case orders.BeginRings():
                self._begin(order.generation)
            case orders.JoinRing():
                self._join(order)
            case orders.SayJoined():
                self._tell(reports.RingsJoined(order.generation))
            case orders.OpenRings():
                self._going = True
                for runner in self._runners():
                    if isinstance(runner.source, NumberedSource):
                        runner.source.reading = True
            case orders.DropMembers():
                self._drop(order)
            case orders.ChangeMembers(stage, members):
                if stage in self.machines:
                    self._do(stage, self.machines[stage].members_changed(members))
            case orders.TakeRole():
                self._take_role(order)
            case orders.HandOverRole(role, seat):
                self._do(role.stage, self.machines[role.stage].hand_over(role, seat))
            case orders.RewireRole(role, seat, fence):
                self._seat(role, seat)
                for stage, machine in self.machines.items():
                    self._do(stage, machine.rewired(role, seat, fence))
            case _:
                assert_never(order)

    def _begin(self, generation: int) -> None:
        """Everything begins anew, with what follows."""
        for stage in list(self.machines):
            for role in list(self._played.get(stage, ())):
                self._leave(role)
        self.machines.clear()
        self._work.clear()
        self._waiting.clear()
        self.generation, self._going = generation, False
        self._tell(reports.RingsBegun(generation))

    def _join(self, order: orders.JoinRing) -> None:
        """Be a member of a ring."""
        stage = order.stage
        self._completed |= {node_of(self.plan, role): low for role, low in order.lows.items()}
        regime = self.plan.chains[stage].regime
        if not isinstance(regime, Replicated):
            return
        machine = self.machines[stage] = ReplicaMachine(
            member(self.host.number, stage),
            regime.settings(self._rules.stages_in_row or 0),
            self._stages,
            order.seats,
            order.fences,
            order.members,
            joining=order.joining,
            dead=order.lost,
        )
        for role, seat in machine.seats.items():
            self._seat(role, seat)
        for role, player in machine.players.items():
            if player.tables.is_source:
                player.tables.next = self._position(role) + 1
        self._do(stage, machine.join() if order.joining else [])
        early, self._early = self._early, []
        for came in early:
            self._take_in(*came)

    def _take_in(self, generation: int, stage: int, packed: bytes) -> None:
        """Take what another host's role says now, or once this host is a member of the ring."""
        if generation == self.generation and stage in self.machines:
            self._arrived(stage, *cargo.unpack(packed))
        elif generation >= self.generation:
            self._early.append((generation, stage, packed))

    def _drop(self, order: orders.DropMembers) -> None:
        """Members are gone: hear nothing more of their hosts."""
        for host in {member_host(number) for number in order.members}:
            self.host.transport.forget(host)
            self._waiting.pop(host, None)
            self._unknown.pop(host, None)
        for number in order.members:
            for stage, machine in self.machines.items():
                self._do(stage, machine.host_lost(number))
        self._tell(reports.LossHeard(self.generation, order.round))

    def _take_role(self, order: orders.TakeRole) -> None:
        role = order.role
        self._completed[node_of(self.plan, role)] = order.low
        machine = self.machines[role.stage]
        position = 0 if self._stages.parents[role.stage] else self._position(role)
        self._do(role.stage, machine.take(role, order.incarnation, order.fresh, position))

    def truncate(self, lows: Mapping[int, tuple[int, int]]) -> None:
        """Sources need not read again what came up to these epochs."""
        for runner in self._runners():
            if runner.source is not None and runner.node in lows:
                runner.source.committed(lows[runner.node][0])

    def stop_sources(self) -> None:
        """Sources that are started from now on end their streams, too."""
        self._stopping = True

    def _seat(self, role: Role, seat: Seat) -> None:
        if seat.host >= 0:  # its credit counts from now on
            self.host.placement[node_of(self.plan, role)] = member_host(seat.host)

    # -- effects ---------------------------------------------------------------------------------

    def _do(self, stage: int, effects: Iterable[Effect]) -> None:
        """Perform what a machine asks for, after what was asked for before."""
        for effect in effects:
            self._work.append((stage, effect))
        players, played = self.machines[stage].players, self._played.get(stage, {})
        if len(players) != len(played) or any(
            played.get(role) != player.incarnation for role, player in players.items()
        ):
            self._follow(stage, {role: one.incarnation for role, one in players.items()})

    def _drain(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while self._work:
                stage, effect = self._work.popleft()
                self._perform(stage, effect)
        finally:
            self._busy = False

    def _perform(self, stage: int, effect: Effect | cargo.Arrival) -> None:
        match effect:
            case SendEnvelope():
                self._send(stage, effect)
            case ProcessParcel() | Publish():
                self._queue(stage, effect)
            case cargo.Arrival():
                self._arrived(stage, effect.envelope, effect.completed)
            case Taken(role, incarnation):
                self._tell(reports.RoleTaken(self.generation, stage, role, incarnation))
            case Recovered(role, incarnation):
                self._tell(reports.RoleRecovered(self.generation, stage, role, incarnation))
            case Ready():
                self._tell(reports.MemberReady(self.generation, stage))
            case Doubt():
                log.info("%s cannot be had again: %s", effect.role, effect.ids)
            case _:
                assert_never(effect)

    def _arrived(self, stage: int, envelope: Envelope, completed: int | None) -> None:
        if completed is not None and envelope.target is not None:
            self._completed[node_of(self.plan, envelope.target)] = completed
        self._do(stage, self.machines[stage].received(envelope))

    def _queue(self, stage: int, effect: ProcessParcel | Publish) -> None:
        """Work on a parcel when its turn comes."""
        node = node_of(self.plan, effect.role)
        runner = self.host.nodes.get(node)
        if runner is not None:
            here = Envelope(
                self.machines[stage].host,
                None,
                0,
                effect.role,
                effect.incarnation,
                DeliverParcels(()),
            )
            runner.queue.append((LOCAL, cargo.message_of(here, effect.parcel, -1, node)))

    def _send(self, stage: int, effect: SendEnvelope) -> None:
        if effect.host < 0:
            return  # no host plays that role: it is sent again when one does
        host, envelope = member_host(effect.host), effect.envelope
        role = envelope.sender or next(iter(self._played.get(stage, ())), Role(stage, 0))
        node = node_of(self.plan, role)
        if isinstance(envelope.body, DeliverParcels):
            self._messages[node] += len(envelope.body.parcels)
            self._deliver(host, envelope, envelope.body.parcels)
            return
        completed = None
        if isinstance(envelope.body, HandedOver) and envelope.target is not None:
            completed = self._completed.get(node_of(self.plan, envelope.target))
        if host == self.host.number:
            self._work.append((member_stage(effect.host), cargo.Arrival(envelope, completed)))
            return
        packed = cargo.pack(envelope, completed)
        self._messages[node] += 1
        if isinstance(envelope.body, _SIBLINGS):
            self._bytes[node] += len(packed)
        if not self._waiting:
            self.host.call(self._flush)
        self._waiting.setdefault(host, []).append((member_stage(effect.host), packed))

    def _deliver(self, host: int, envelope: Envelope, parcels: Iterable[Parcel]) -> None:
        if envelope.sender is None or envelope.target is None:
            return
        sender, target = (node_of(self.plan, r) for r in (envelope.sender, envelope.target))
        for parcel in parcels:
            message = cargo.message_of(envelope, parcel, sender, target)
            if host == self.host.number:
                self.host.deliver(LOCAL, message)
                continue
            rows = message.payload
            if rows is not None and not isinstance(rows, pa.RecordBatch):
                rows = read_batch(rows, self.plan.links[message.link].schema)
            self._flush_to(host)
            self._put(host, message._replace(payload=rows))

    def _flush(self) -> None:
        """Let what has gathered go."""
        for host in list(self._waiting):
            self._flush_to(host)

    def _flush_to(self, host: int) -> None:
        envelopes = self._waiting.pop(host, None)
        while envelopes:
            size, many = 0, 0
            while many < len(envelopes) and size < TOGETHER_BYTES:
                size += len(envelopes[many][1])
                many += 1
            some, envelopes = envelopes[:many], envelopes[many:]
            self._put(host, RoleEnvelopes(self.generation, tuple(some)))

    def _put(self, host: int, what: Message | RoleEnvelopes) -> None:
        transport = self.host.transport
        if transport.outgoing(host) is None:
            if not transport.forgot(host):
                self._unknown.setdefault(host, []).append(what)
        elif isinstance(what, Message):
            transport.send(host, what)
        else:
            transport.control(host, what)

    # -- for the roles ---------------------------------------------------------------------------

    def arrived(self, runner: ReplicaRunner, message: Message) -> bool:
        """A parcel has come; say whether it is to be worked on."""
        parcel = cargo.parcel_of(message)
        stage = runner.player.role.stage
        effects = self.machines[stage].received(self._envelope(message, parcel))
        fresh = [e for e in effects if isinstance(e, ProcessParcel | Publish)]
        self._do(stage, [e for e in effects if not isinstance(e, ProcessParcel | Publish)])
        self._drain()
        return bool(fresh)

    def _stray(self, message: Message) -> None:
        """A parcel for a role that is not played here: its sender learns where the role went."""
        machine = self.machines.get(self.plan.chain_of[message.target])
        if machine is not None and message.stamp:
            stage = self.plan.chain_of[message.target]
            self._do(stage, machine.received(self._envelope(message, cargo.parcel_of(message))))
            self._drain()

    def _envelope(self, message: Message, parcel: Parcel) -> Envelope:
        return Envelope(
            cargo.sender_of(message),
            self._roles[message.sender],
            message.incarnation,
            self._roles[message.target],
            message.target_incarnation,
            DeliverParcels((parcel,)),
        )

    def processed(self, runner: ReplicaRunner, id_: ParcelId, outputs: Any) -> None:
        """A parcel was turned into others."""
        player = runner.player
        if isinstance(runner, SinkRunner):
            self._completed[runner.node] = runner.epochs.completed
        stage = player.role.stage
        machine = self.machines.get(stage)
        if machine is not None and machine.players.get(player.role) is player:
            self._do(stage, machine.processed(player.role, player.incarnation, id_, outputs))
            self._drain()

    def read(self, runner: ReplicaRunner, outputs: Any) -> None:
        """A source has read what comes next."""
        player = runner.player
        stage = player.role.stage
        machine = self.machines.get(stage)
        if machine is not None and machine.players.get(player.role) is player:
            self._do(stage, machine.read(player.role, outputs))
            self._drain()

    def role_of(self, node: int) -> Role:
        """The role that a node is."""
        return self._roles[node]

    def waits(self, runner: ReplicaRunner) -> bool:
        """Whether a role that it feeds has no player."""
        machine = self.machines.get(runner.player.role.stage)
        if machine is None:
            return True
        for target in runner.targets:
            host = machine.seats[self._roles[target]].host
            if host < 0 or host in machine.dead:
                return True
        return False

    def counted(self, node: int) -> tuple[int, int]:
        """Messages and bytes that a node's protection took."""
        return self._messages[node], self._bytes[node]

    def write_refused(self) -> None:
        """The store has refused what a role wrote: another host plays it now."""
        self.host.transport.refusals.writes += 1

    def _tick(self) -> bool:
        """Now and then: tell what can be told together, and look for what cannot come any more."""
        now = time.monotonic()
        rarely = now >= self._all_s
        if rarely:
            self._all_s = now + ALL_S
        for stage, machine in self.machines.items():
            if rarely:
                self._do(stage, machine.tick())
            elif machine.unsaid[1] or machine.unsaid[0] >= UNSAID:
                self._do(stage, machine.speak())
        self._drain()
        self._full.clear()
        for runner in self._runners():
            if runner.source is not None:
                kept = sum(entry.parcel.size for entry in runner.player.tables.entries.values())
                if kept > KEPT_BYTES:
                    self._full.add(runner.node)
            if not rarely:
                continue
            missing = runner.missing() if isinstance(runner, SinkRunner) else None
            if missing is not None:
                self._tell(reports.ParcelsMissed(self.generation, runner.name, missing))
        return False

    def _runners(self) -> list[ReplicaRunner]:
        return [r for r in list(self.host.nodes.values()) if isinstance(r, ReplicaRunner)]

    # -- roles come and go -----------------------------------------------------------------------

    def _follow(self, stage: int, wanted: dict[Role, int]) -> None:
        """Let nodes run here just as the machine plays their roles."""
        played = self._played.setdefault(stage, {})
        for role in [r for r, number in played.items() if wanted.get(r) != number]:
            self._leave(role)
        for role, number in wanted.items():
            if played.get(role) != number:
                played[role] = number
                self._play(stage, node_of(self.plan, role))

    def _leave(self, role: Role) -> None:
        del self._played[role.stage][role]
        node = node_of(self.plan, role)
        runner = self.host.nodes.get(node)
        if isinstance(runner, ReplicaRunner):
            if isinstance(runner, SinkRunner):
                self._completed[node] = runner.epochs.completed
            self.host.remove(node)
            runner.left()

    def _play(self, stage: int, node: int) -> None:
        chain = self.plan.chain_of_node(node)
        player = self.machines[stage].players[self._roles[node]]
        machine = NodeMachine(wiring_of(self.plan, node, incarnation=player.incarnation))
        try:
            maker = self._maker(node, player)
        except PeerError as error:
            log.info("not played: %s", error)  # another host plays it, and the news is on its way
            self.write_refused()
            return
        runner = wired(self.plan, self.host, machine, maker)
        runner.chain.repeatable = True
        runner.chain.open()
        for planned in chain.stages:
            if isinstance(planned.operator, DriverSink):
                planned.operator.resume(self._completed.get(node, -1) + 1)
        if isinstance(runner, SourceRunner):
            runner.source = self._source(runner, player)
        self.host.placement[node] = self.host.number
        self.host.add(runner)

    def _maker(self, node: int, player: RolePlayer) -> Callable[..., ReplicaRunner]:
        chain = self.plan.chain_of_node(node)
        lanes = {self._roles[source]: n for source, n in paths_of(self.plan, node).items()}
        common: dict[str, Any] = {"agent": self, "player": player, "lanes": lanes}
        stall = Stall(chain.node_name(node), self._rules.store_timeout_s, self._tell)
        if chain.is_source:
            log_ = self._boundaries(player.role)
            log_.claim(player.incarnation)
            surely = not self._rules.one_machine
            return partial(SourceRunner, **common, log=log_, stall=stall, surely=surely)
        if chain.sinks:
            epochs = SinkEpochs(lanes, self._completed.get(node, -1))
            return partial(SinkRunner, **common, epochs=epochs, stall=stall)
        return partial(ReplicaRunner, **common)

    def _boundaries(self, role: Role) -> BoundaryLog:
        stage = self.plan.chains[role.stage].stages[0]
        return BoundaryLog(self._rules.store, stage.name, role.place, self._rules.sync)

    def _position(self, role: Role) -> int:
        """The number after which a source has to be read again."""
        low = self._completed.get(node_of(self.plan, role), -1)
        return position_at(self._boundaries(role).read(), low)

    def _source(self, runner: SourceRunner, player: RolePlayer) -> NumberedSource:
        chain = self.plan.chain_of_node(runner.node)
        stage = chain.stages[0]
        shard = player.role.place
        boundaries = runner.log
        notes = numbered(boundaries.read())
        base = next((note for note in notes if note["number"] == player.tables.next - 1), None)
        operator: Any = stage.operator
        position = None if base is None else base["position"]
        resume = ResumePoint(position, boundaries.resume(None).journal)
        context = source_context(self.run, shard, chain.shards, resume, newest_position(notes))
        driver = NumberedSource(
            stage.name,
            runner.name,
            opened(operator.source, context, stage.name, runner.name),
            runner.chain,
            self._clock,
            runner.cut,
            boundaries,
            grid_us=self.plan.cut_grid_us,
            rows_max=self.run.sources.rows_max,
            linger=Linger(*(max(us, LINGER_US) for us in self.run.sources.linger)),
            leave=runner.leave,
            may_read=lambda: player.tables.may_read and runner.node not in self._full,
            reading=self._going,
            single=player.tables.settings.acknowledged,
        )
        driver.begin(base, [note for note in notes if note["number"] >= player.tables.next])
        if self._stopping:
            driver.stop()
        return driver
