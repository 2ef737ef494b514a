"""A flow's recoveries told in plain English: who was lost, who restarts from where, and why.

What the membership machine decides on a loss and what the recovery machine has done become lines of
the store's ``story.log``; ``penstock explain-recovery`` reads them.  Nothing here decides anything,
and nothing is told while nothing recovers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import assert_never

from penstock.core.causal.graph import CausalGraph, NodeKind
from penstock.core.causal.reports import Start
from penstock.core.control.host_reports import NodeCaughtUp
from penstock.core.control.membership import Effect
from penstock.core.control.membership_events import (
    HostAssigned,
    HostCameUp,
    LaunchHost,
    MembershipEvent,
    MoveNodes,
    RecoverNodes,
    StartAllNodes,
)
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
    RecoveryRecord,
    Refuse,
    StartNode,
    Widen,
)
from penstock.core.control.roster import DRIVER
from penstock.core.progress.marks import EPOCH_END
from penstock.engine.host.clock import now_us
from penstock.engine.store.story_log import StoryLine, StoryLog

__all__ = ["RecoveryStory"]

NAMES_MAX = 8


class RecoveryStory:
    """Finds words for what happens; everything but the writing is in the controller's thread."""

    def __init__(
        self, log: StoryLog, graph: CausalGraph, name: Callable[[int], str], record: RecoveryRecord
    ) -> None:
        self._log = log
        self._graph = graph
        self._name = name
        self._round = record.recoveries
        self._cause: int | None = None
        """The membership event that led to the newest recovery."""
        self._decided = False
        """Whether that recovery has not begun yet."""
        self._unfinished: frozenset[int] = frozenset()
        """Nodes that are recovering."""
        self._why: dict[int, str] = {}
        """Why nodes restart, in the recovery under way."""
        self._catching_up: set[int] = set()
        """Nodes of the newest plan that have not caught up; none after a start of the flow."""
        self._widened: str | None = None
        self._opening = False

    def close(self) -> None:
        """The flow is over."""
        self._log.close()

    # -- hosts -----------------------------------------------------------------------------------

    def decided(self, cause: int, event: MembershipEvent, effects: Sequence[Effect]) -> None:
        """The membership machine's decisions on an event, before they are performed."""
        for effect in effects:
            match effect:
                case StartAllNodes():
                    self._begins(cause, (), "")
                    self._tell("begin", "the flow starts: every node does", self._round + 1)
                case RecoverNodes(_, lost, takers, reason):
                    nodes = [node for node in takers if node in self._graph.kinds]
                    reason = reason.removeprefix(f"host {lost} was lost: ")
                    text = f"host {lost} was lost ({reason}); "
                    if nodes:
                        self._begins(cause, nodes, "host lost")
                        places = self._places({node: takers[node] for node in nodes})
                        self._tell(
                            "lost", f"{text}its nodes start again: {places}", self._round + 1
                        )
                    elif self._unfinished:
                        self._tell("note", f"{text}it ran no nodes")
                case MoveNodes(_, places, reason):
                    self._begins(cause, places, "it moves to another host")
                    text = f"nodes move ({reason}): {self._places(places)}"
                    self._tell("moved", text, self._round + 1)
                case LaunchHost(_, host) if self._unfinished:
                    self._tell("note", f"host {host} is launched")
                case _:
                    pass
        if self._unfinished and isinstance(event, HostCameUp | HostAssigned):
            happened = "is up" if isinstance(event, HostCameUp) else "can take nodes"
            self._tell("note", f"host {event.host} {happened}")

    def _begins(self, cause: int, nodes: Iterable[int], why: str) -> None:
        self._cause, self._decided = cause, True
        self._why.update(dict.fromkeys(nodes, why))

    def fenced(self, round_: int, host: int) -> None:
        """A host has stopped the old incarnations, and refuses them."""
        if round_ == self._round:
            self._tell("fenced", f"{_host(host)} has stopped the old nodes and refuses them")

    # -- nodes -----------------------------------------------------------------------------------

    def performed(self, effect: RecoveryEffect) -> None:
        """An effect of the recovery machine was performed."""
        match effect:
            case PersistRecord(record):
                self._recorded(record)
            case FenceStore(incarnations):
                self._note_nodes("the store refuses writes of the old {}", incarnations)
            case FenceHosts(_, hosts, _):
                told = ", ".join(map(_host, hosts)) or "no host"
                self._tell("note", f"told of the fence: {told}")
            case ReadStates(nodes):
                self._note_nodes("read the newest checkpoints of {}", nodes)
            case FenceSources(incarnations):
                self._note_nodes("the logs of sources take nothing of the old {}", incarnations)
            case CollectStored(_, nodes):
                self._note_nodes("read what is durable of {}", nodes)
            case Refuse(reason):
                said = self.with_names(reason)
                self._tell("note", f"the checkpoints that were asked for are gone ({said})")
            case Widen(reason, node):
                found = "there is no plan for less" if node is None else "known steps contradict"
                self._widened = f"{found} ({self.with_names(reason)})"
                self._tell("note", f"more nodes must restart: {self._widened}")
            case GiveUp(reason):
                self._tell("note", f"the flow cannot be recovered: {self.with_names(reason)}")
            case StartNode() | OpenEdge():
                pass  # told together: planned, opening
            case _:
                assert_never(effect)

    def planned(self, starts: Sequence[StartNode]) -> None:
        """The plan is made: who restarts, from where and why."""
        self._tell("planned", f"the plan is made; nodes that start: {len(starts)}")
        self._catching_up = {effect.node for effect in starts if effect.node in self._why}
        alike: dict[str, list[int]] = {}
        for effect in starts:
            why = self._why.get(effect.node)
            where = self._where(effect.start) + (f"; why: {why}" if why else "")
            alike.setdefault(where, []).append(effect.node)
        for where, nodes in alike.items():
            self._tell("note", f"{self._names(nodes)} from {where}")

    def opening(self, edges: Sequence[OpenEdge]) -> None:
        """All nodes have started."""
        self._opening = True
        self._tell("started", f"all nodes have started; {len(edges)} edges are being opened")

    def opened(self) -> None:
        """Every edge is open."""
        if self._opening:
            self._opening = False
            self._tell("opened", "all edges are open: what was lost on the way was sent again")

    def caught_up(self, report: NodeCaughtUp) -> None:
        """A node has completed again what it had completed when it was lost."""
        if report.node not in self._catching_up:
            return
        self._catching_up.discard(report.node)
        self._tell(
            "note",
            f"{self._name(report.node)} has caught up: {report.restore_s * 1000:.0f} ms to restore "
            f"its state, {report.replay_s * 1000:.0f} ms to replay {report.rows} rows",
        )

    def _recorded(self, record: RecoveryRecord) -> None:
        """A new round begins, or nodes have recovered; that is durable."""
        before, self._unfinished = self._unfinished, record.unfinished
        if record.recoveries != self._round:
            if not before and not self._decided:
                self._cause = None
            self._decided = False
            self._round, self._opening = record.recoveries, False
            self._note_round(record, before)
        elif done := before - record.unfinished:
            left = len(record.unfinished)
            after = f"nodes left: {left}" if left else "the recovery is over"
            self._tell("note" if left else "recovered", f"recovered: {self._names(done)}; {after}")
            if not left:
                self._why = {}

    def _note_round(self, record: RecoveryRecord, before: frozenset[int]) -> None:
        """Say who restarts; of nodes that were not lost, also why."""
        explained = self._why or self._widened or before
        others = record.unfinished - before - self._why.keys() if explained else frozenset()
        why = "log does not reach back to where the others restart"
        if not before:
            why = "goes back together with the lost ones"
        if self._widened:
            why, self._widened = self._widened, None
        self._why.update(dict.fromkeys(others, why))
        names = self._names(record.unfinished)
        limit = f", at or before epoch {min(record.limits.values())}" if record.limits else ""
        joined = f"; not lost: {self._names(others)}; why: {why}" if others else ""
        self._tell("note", f"new incarnations: {names}{limit}{joined}")

    # -- words -----------------------------------------------------------------------------------

    def _tell(self, step: str, text: str, round_: int | None = None) -> None:
        number = self._round if round_ is None else round_
        self._log.add(StoryLine(now_us(), self._cause, number, step, text))

    def _note_nodes(self, text: str, nodes: Iterable[int]) -> None:
        names = self._names(nodes)
        if names:
            self._tell("note", text.format(names))

    def _names(self, nodes: Iterable[int]) -> str:
        names = [self._name(node) for node in sorted(nodes)]
        more = len(names) - NAMES_MAX
        return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")

    def _places(self, takers: Mapping[int, int]) -> str:
        """Which host runs which nodes from now on."""
        hosts = {host: [n for n, at in takers.items() if at == host] for host in takers.values()}
        return ", ".join(f"{self._names(nodes)} on {_host(h)}" for h, nodes in hosts.items())

    def with_names(self, reason: str) -> str:
        """A machine's words, with the names of nodes instead of their numbers."""
        return re.sub(r"\bnode (\d+)", lambda found: f"node {self._name(int(found[1]))}", reason)

    def _where(self, start: Start) -> str:
        """Where a node starts."""
        epoch = start.completed
        after = "the end of its input" if epoch >= EPOCH_END else f"the end of epoch {epoch}"
        known = f" (repeats {len(start.targets)} known steps)" if start.targets else ""
        match self._graph.kinds[start.node]:
            case _ if epoch < 0:
                return f"the beginning{known}"
            case NodeKind.SOURCE:
                return f"{after}, where it reads on{known}"
            case NodeKind.SINK:
                return f"{after}, the last one published{known}"
            case NodeKind.STATELESS:
                return f"{after}, without state{known}"
            case _:
                return f"its checkpoint of {after.removeprefix('the end of ')}{known}"


def _host(host: int) -> str:
    return "the driver" if host == DRIVER else f"host {host}"
