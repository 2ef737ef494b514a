"""The driver of a simulated run: the machines that a real driver runs, and what they ask for.

What the store refuses is tried again, as by a real driver; between any two effects it may die.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, assert_never

from penstock.core.causal.codec import record_from, to_plain
from penstock.core.causal.graph import NodeKind
from penstock.core.causal.reports import Stored
from penstock.core.control.global_hold import GlobalHold
from penstock.core.control.going_back import GoingBack, newest_epoch
from penstock.core.control.planned_logs import Logging, PlannedLogs
from penstock.core.control.recovery import (
    CollectStored,
    FenceHosts,
    FenceSources,
    FenceStore,
    GiveUp,
    OpenEdge,
    PersistRecord,
    ReadStates,
    RecoveryEffect,
    RecoveryMachine,
    Refuse,
    StartNode,
    Widen,
)
from penstock.core.control.retention import RetentionMachine
from penstock.core.node.causal_effects import Flushed
from penstock.testing.simulator.orders import Fence, KeepLog, Resume
from penstock.testing.simulator.roles.rings import Rings
from penstock.testing.simulator.violations import Violation

if TYPE_CHECKING:
    from penstock.testing.simulator.process import Process
    from penstock.testing.simulator.world import World

__all__ = ["Choices", "Driver"]

SLACK = 2
"""How many epochs nodes may be ahead of what they said last."""

Choices = list[tuple[Callable[[Any], None], Any]]
"""What can happen next."""


def _on_store(effect: RecoveryEffect) -> bool:
    return isinstance(
        effect, PersistRecord | FenceStore | ReadStates | FenceSources | CollectStored
    )


class Driver:
    """Decides about nodes and replicas; lives in the driver's process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.hold: GlobalHold | None = None
        self._hold_everybody({})
        self.to_controller: deque[tuple[str, int, int, Any]] = deque()
        """What nodes and hosts have told it."""
        self.controller_steps: int | None = None
        """After how many more effects it dies."""
        self.collected: dict[int, int] = {}
        """Per node: the newest incarnation for which what is durable was read."""
        self._stalled: list[RecoveryEffect] = []
        """What it could not do because the store refused."""
        self._wanted_logs: dict[int, bool] = {}
        """The present plan: which nodes are to keep logs, where that was changed."""
        self._early: dict[int, Stored] = {}
        """What it has read before all hosts had heard of its fence."""
        self._unfenced: dict[tuple[int, int], set[int]] = {}
        """Per round and host: the nodes there that have not heard of a fence."""
        self._answers: list[tuple[int, int]] = []
        """Rounds, and hosts that have no nodes and have not heard of them."""
        self._has_begun = True
        """Whether what is durable of all nodes is known: at first it is nothing."""
        self._asked: Mapping[int, int] = {}
        """Where a person wants nodes to start, as was recorded last."""
        self.controller: RecoveryMachine | None = self._new_controller()
        self.rings = self._new_rings()
        """What it does for replicas, where the flow has any."""

    def add_choices(self, found: Choices, stores: bool) -> None:
        """Add what can happen here; ``stores``: the store takes writes just now."""
        world = self._world
        if world.cluster is not None and world.cluster.driver_sleeps:
            return
        if self.rings is not None:
            self.rings.add_choices(found, stores)
        if not stores:
            if self.to_controller and self.controller is not None:
                found.append((self._hear, None))
            return
        if self.controller is None:
            found.append((self._restart_controller, None))
            return
        random = world.random
        if self._stalled:
            found.append((self._try_again, None))
        if self.to_controller:
            found.append((self._hear, None))
            found.append((self._hear, None))
        for number in range(len(world.detections)):
            found.append((self._detect, number))
        if found and random.random() < world.truncate_share:
            found.append((self._truncate, None))
        # Each change of the plan gives nodes something to do: it stays when all have ended.
        can_switch = (
            bool(world.shape.switched)
            and found
            and not all(process.machine.finished for process in world.processes.values())
        )
        if can_switch and random.random() < world.switch_share:
            found.append((self._switch, random.choice(sorted(world.shape.switched))))
        if can_switch and random.random() < world.settle_share:
            found.append((self._settle_logs, None))
        cluster = world.cluster
        if cluster is not None:
            answers = [one for one in self._answers if cluster.answers(one[1])]
            found += [(self._answer_fence, one) for one in answers]

    # -- what happens ----------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether no node is still recovering."""
        return self.controller is not None and self.controller.quiet

    def tell(self, what: str, process: Process, value: Any) -> None:
        """A node's word to the controller, who refuses those that it has declared lost."""
        if self._world.cluster is not None and self._world.cluster.refuses(process.host):
            return
        self.to_controller.append((what, process.node, process.incarnation, value))

    def _hear(self, _: None) -> None:
        what, node, incarnation, value = self.to_controller.popleft()
        controller = self.controller
        if controller is None:
            return
        self._world.note(f"controller hears {what} of {node}#{incarnation}")
        if what == "report":
            if controller.record.incarnations[node] == incarnation:
                self.control(controller.reported(node, *value))
        elif what == "opened":
            self.control(controller.opened(node, incarnation, *value))
        elif what == "flushed":
            if controller.record.incarnations[node] == incarnation:
                self._flushed(node, value)
        elif what == "started":
            self.control(controller.started(node, incarnation))
        elif what == "contradicted":
            self.control(controller.contradicted(node, incarnation, value))
        elif what == "fenced":
            self.control(controller.host_fenced(value, node))
        elif what == "unreadable":
            self.control(controller.lost({node: incarnation}))
        elif what == "saved":
            if controller.record.incarnations[node] == incarnation:
                self.retention.checkpoint_saved(node, *value)
        elif what == "published":
            self.retention.sink_published(node, value)
        else:
            self.control(controller.recovered(node, incarnation))

    def _detect(self, number: int) -> None:
        node, incarnation = self._world.detections.pop(number)
        if self.controller is not None:
            self._world.note(f"controller finds {node}#{incarnation} lost")
            self.control(self.controller.lost({node: incarnation}))
            self._recovery_begun()

    def lose_host(self, host: int, nodes: Collection[int]) -> None:
        """A host is lost, with the present incarnations of some nodes."""
        if nodes:
            self.lose(nodes)
        elif self.controller is not None:
            self.control(self.controller.host_gone(host))

    def lose(self, nodes: Iterable[int]) -> None:
        """The present incarnations of some nodes are lost, or have to move."""
        if self.controller is not None:
            self._foresee(sorted(nodes))
            now = self.controller.record.incarnations
            self.control(self.controller.lost({node: now[node] for node in nodes}))
            self._recovery_begun()

    def _foresee(self, lost: list[int]) -> None:
        """Who would restart, as people are told: all that fail, none behind its low-watermark."""
        if not self._has_begun:
            return
        watch, processes = self.retention.watch, self._world.processes
        reached = {node: one.machine.completed_epoch for node, one in processes.items()}
        found = {would.node: would for would in watch.if_failed(lost, reached)}
        missing = self._world.shape.graph.closure(lost) - found.keys()
        behind = [w for w in found.values() if w.to is not None and w.to < watch.low(w.node)]
        if missing or behind:
            raise Violation("foresight", f"{lost} fail: {missing} would not restart, {behind}")
        for node in lost:
            holding = watch.held_by(node)
            if watch.low(holding) > watch.low(node):
                raise Violation("foresight", f"{holding} holds nobody back, least of all {node}")

    def _recovery_begun(self) -> None:
        """A fault that waited for a recovery happens soon."""
        if self._world.waiting:
            what = self._world.waiting.pop(0)
            when = self._world.steps + self._world.random.randint(1, 60)
            self._world.pending = sorted([*self._world.pending, (when, what)])

    def rollback(self) -> bool:
        """A person wants the flow to go back."""
        if self.controller is None or not self._has_begun:
            return False
        stored, lows = self._world.store.stored_of_all(), self.retention.gone_before()
        together = self._world.shape.global_every is not None
        back = GoingBack(self._world.shape.graph, stored, lows, together)
        oldest = back.oldest_epoch()
        if oldest is None:
            return False
        to = self._world.random.randint(oldest, max(newest_epoch(stored), oldest))
        self._world.note(f"a person rolls the flow back to {to}")
        self.control(self.controller.rollback(to, lows))
        return True

    def _begin_retention(self) -> None:
        """What is durable of all nodes was read."""
        self._has_begun = True
        for sink, epochs in self._world.store.published.items():
            self.retention.sink_published(sink, max(epochs, default=-1))
        self.retention.begun()

    def _truncate(self, _: None) -> None:
        if self.controller is None:
            return
        due = self.retention.due(going_back=bool(self.controller.record.limits))
        if due is None:
            return
        self._world.monitor.truncated(due.lows, self._world.store.stored_of_all())
        self._world.store.begun = self._world.store.begun.union(due.begun)
        for node, low in due.lows.items():
            if low != self.retention.lows.get(node):
                self._world.tell_node(node, low)
        self.retention.forgotten(due)

    def _switch(self, node: int) -> None:
        """Another plan: a node is to keep a log, or not."""
        self._wanted_logs[node] = not self._wanted_logs.get(node, True)
        self._world.note(f"plan: {node} keeps {'a' if self._wanted_logs[node] else 'no'} log")
        self.logs.want(self._wanted_logs)
        self._tell_logs()

    def _settle_logs(self, _: None) -> None:
        """The controller looks whether logs may go, or are whole."""
        said = {
            node: Logging(process.machine.completed_epoch, process.machine.logged)
            for node, process in self._world.processes.items()
            if process.alive
        }
        if self.logs.settle(said, SLACK, self.quiet):
            self._tell_logs()

    def _tell_logs(self) -> None:
        for node in sorted(self._world.shape.switched):
            self._world.tell_node(node, KeepLog(self.logs.told[node]))

    def _hold_everybody(self, starts: Mapping[int, int]) -> None:
        """All nodes hold their input after the next multiple."""
        every = self._world.shape.global_every
        if every is not None:
            kinds = self._world.shape.graph.kinds
            fed = [node for node, kind in kinds.items() if kind is not NodeKind.SOURCE]
            ahead = {node: starts.get(node, -1) for node in fed}
            self.hold = GlobalHold(fed, every, min(ahead.values()), ahead)

    def _flushed(self, node: int, said: Flushed) -> None:
        following = None if self.hold is None else self.hold.flushed(node, said)
        if following is not None:
            self._world.note(f"controller lets all nodes go on to {following}")
            for other in self._world.shape.graph.order:
                self._world.tell_node(other, Resume(following))

    def _new_controller(self) -> RecoveryMachine:
        together = self._world.shape.global_every is not None
        record = self._world.store.record
        self.retention = RetentionMachine(self._world.shape.graph, forgotten=record.forgotten)
        self.logs = PlannedLogs(self.retention)
        self.logs.want(self._wanted_logs)
        graph = self._world.shape.graph
        return RecoveryMachine(
            graph, record, self._reachable, together, lambda: self.retention.watch.logless
        )

    def _new_rings(self) -> Rings | None:
        return None if self._world.replicas is None else Rings(self._world.replicas)

    def _reachable(self) -> list[int]:
        """The hosts that have to hear of a fence; without hosts, the nodes that were not lost."""
        if self._world.cluster is not None:
            return self._world.cluster.reachable()
        failed = self.controller.failed if self.controller is not None else frozenset()
        return [node for node in self._world.shape.graph.order if node not in failed]

    def _restart_controller(self, _: None) -> None:
        self._world.note("controller restarts")
        self.controller = self._new_controller()
        self._has_begun = False
        self._hold_everybody({})
        self._world.loops.begin()
        self.rings = self._new_rings()
        if self._world.cluster is not None:
            self._world.cluster.begin()
        if self.controller is not None:  # it may die while it begins
            self.control(self.controller.lost(self.controller.record.incarnations))

    def lose_controller(self) -> None:
        """The controller ends; what it had not sent is never sent."""
        self._world.note("controller dies")
        self.controller = self.rings = None
        self.controller_steps = None
        self.to_controller.clear()
        self._world.loops.lose_driver()
        self._stalled.clear()
        if self._world.cluster is not None:
            self._world.cluster.orphan()
        self._world.starting = [
            start for start in self._world.starting if self._world.random.random() < 0.5
        ]

    def control(self, effects: list[RecoveryEffect]) -> None:
        """Perform the controller's effects; it may die between any two of them."""
        if self._stalled or (self._store_refuses and any(map(_on_store, effects))):
            self._stalled += effects
            return
        starts = [effect for effect in effects if isinstance(effect, StartNode)]
        if starts:
            self._hold_everybody({e.node: e.start.completed for e in starts})
            records = [effect.record for effect in effects if isinstance(effect, PersistRecord)]
            self._world.monitor.planned(starts, (records or [self._world.store.record])[-1].limits)
            self._world.loops.planned(starts)
        for effect in effects:
            if not self.survives() or self.controller is None:
                return
            self._perform(effect, self.controller)

    def survives(self) -> bool:
        """Whether it lives on to perform one more effect."""
        if self.controller_steps is not None:
            self.controller_steps -= 1
            if self.controller_steps <= 0:
                self.lose_controller()
        return self.controller is not None

    def _perform(self, effect: RecoveryEffect, controller: RecoveryMachine) -> None:
        match effect:
            case PersistRecord():
                self._world.store.record = record_from(to_plain(effect.record))
                self._asked = effect.record.limits or self._asked
            case FenceStore() | FenceSources():
                self._world.note("store refuses all but", dict(effect.incarnations))
                self._world.store.fence(effect.incarnations)
            case FenceHosts():
                self._fence_hosts(effect)
            case ReadStates():
                self._early = self._world.store.stored(effect.nodes)
            case CollectStored():
                stored = {**self._world.store.stored(effect.nodes), **self._early}
                self._stop_the_rest(effect)
                whole = [node for node, newest in effect.nodes.items() if newest is None]
                self.retention.stored_read(stored, whole)
                if not self._has_begun:
                    self._begin_retention()
                gone = self.retention.gone_before()
                self.control(controller.stored(effect.round, stored, gone))
            case StartNode():
                self.retention.node_restarted(effect.node, effect.start.completed)
                self._world.starting.append(effect)
                self._world.loops.order(effect.node, effect.incarnation)
            case OpenEdge():
                self._world.tell_node(effect.sender, effect)
            case Refuse():
                self._refused(effect.reason, controller)
            case GiveUp():
                raise Violation("Eventuality", f"the controller gave up: {effect.reason}")
            case Widen():
                if effect.node is None:
                    raise Violation("Eventuality", f"there was no plan: {effect.reason}")
            case _:
                assert_never(effect)

    def _refused(self, reason: str, controller: RecoveryMachine) -> None:
        """What was possible when it was asked for may be gone: but then it is, by what is durable.

        While some nodes have recovered already it is their reports that count, and not only that.
        """
        world = self._world
        world.note(f"a rollback was refused: {reason}")
        graph, epochs = world.shape.graph, set(self._asked.values())
        if not controller.failed.issuperset(graph.order) or len(epochs) != 1:
            return
        together = world.shape.global_every is not None
        lows = self.retention.gone_before()
        back = GoingBack(graph, world.store.stored_of_all(), lows, together)
        if back.plan(*epochs) is not None:
            raise Violation("rollback", f"refused, but there is a way back: {reason}")

    def _try_again(self, _: None) -> None:
        effects, self._stalled = self._stalled, []
        self.control(effects)

    @property
    def _store_refuses(self) -> bool:
        return self._world.steps < self._world.store_until and not self._world.store_slow

    def _stop_the_rest(self, effect: CollectStored) -> None:
        """Nodes without state and sinks of hosts that were given up come to nothing from now on."""
        now = {node: self._world.store.record.incarnations[node] for node in effect.nodes}
        kinds = self._world.shape.graph.kinds
        self._world.store.fence(
            {n: i for n, i in now.items() if kinds[n] in (NodeKind.STATELESS, NodeKind.SINK)}
        )
        self.collected.update(now)

    def _fence_hosts(self, effect: FenceHosts) -> None:
        """Every node of these hosts hears of the fence."""
        self._unfenced.clear()
        self._answers.clear()
        living = [p for p in (*self._world.processes.values(), *self._world.zombies) if p.alive]
        for host in effect.hosts:
            key = host if self._world.cluster is None else self._world.cluster.key(host)
            here = [process for process in living if process.host == key]
            if self._world.cluster is None:
                here = [self._world.processes[host]]
            waiting = self._unfenced[effect.round, host] = {process.node for process in here}
            for process in here:
                order = Fence(effect.round, host, effect.incarnations)
                self._world.to_nodes[process.node].append((process.incarnation, order))
            if not waiting:
                self._answers.append((effect.round, host))

    def _answer_fence(self, answer: tuple[int, int]) -> None:
        """A host without nodes hears of a fence."""
        self._answers.remove(answer)
        round_, host = answer
        self.to_controller.append(("fenced", host, 0, round_))

    def heard_of_fence(self, node: int, order: Fence) -> None:
        """A node, or its host in its stead, has heard of a fence."""
        waiting = self._unfenced.get((order.round, order.host), set())
        waiting.discard(node)
        if not waiting:
            self.to_controller.append(("fenced", order.host, 0, order.round))
