"""The handle of a running flow; it reads like PySpark's StreamingQuery."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from penstock.api.progress import FlowProgress, progress_of
from penstock.core.control.controller import FlowPhase
from penstock.core.control.roster import DRIVER
from penstock.core.plan import Method, Plan
from penstock.durations import Duration
from penstock.engine.driver.command_channel import ControlServer
from penstock.engine.driver.controller import Controller
from penstock.engine.driver.drills import Drills
from penstock.engine.driver.launcher import Launcher
from penstock.engine.driver.listeners import FlowListener, Listeners
from penstock.engine.driver.live_plan import LivePlan
from penstock.engine.driver.prepare import PreparedRun
from penstock.engine.driver.requests import serve
from penstock.engine.driver.rollbacks import Rollbacks
from penstock.engine.driver.shipping import memory_sources
from penstock.engine.host.clock import now_us
from penstock.errors import PenstockError, SettingsError, TransientError
from penstock.planning.promises import notes_of

__all__ = ["FlowQuery"]

log = logging.getLogger(__name__)

RECENT = 100
STOP_S = 2.5
DO_S = 10.0
END_S = 20.0
"""How long ``start`` waits for the end of a flow that has failed to start."""
TOLD_S = 0.3
"""How long ``stop`` waits for listeners that are slow to hear of the end."""


class FlowQuery:
    """A flow that was started."""

    def __init__(
        self,
        launcher: Launcher,
        run: PreparedRun,
        driver_address: tuple[str, str],
    ) -> None:
        store = run.store
        self.name = run.flow.name
        self.id = run.flow_id or str(uuid.uuid4())
        self.runId = str(uuid.uuid4())
        self.flow = run.flow
        self._settings = run.settings
        self._store = store
        self._notes = notes_of(run.plan, store is not None)
        self._control: ControlServer | None = None
        self._drills = Drills(self)
        self._recent: deque[FlowProgress] = deque(maxlen=RECENT)
        self._listeners = Listeners()
        self._ended = threading.Event()
        self._error: PenstockError | None = None
        try:
            self._controller = Controller(
                launcher, run, driver_address, self._make_progress, self._on_ended
            )
        except BaseException:
            if store is not None:
                store.close()
            raise
        self._rollbacks = Rollbacks(self._controller, run, self._ended, self.exception)

    def __repr__(self) -> str:
        return f"FlowQuery({self.name!r}, {self.status['message']})"

    def _start(self) -> None:
        """Launch, and wait until the hosts are up or it is clear that they will not be."""
        self._control = serve(self, self._store)
        self._controller.start()
        deadline = time.monotonic() + self._settings.s("startTimeout") + 5
        while self._controller.machine.phase in (FlowPhase.LAUNCHING, FlowPhase.PREPARING):
            if self._ended.wait(0.005):
                break
            if time.monotonic() > deadline:
                raise TransientError("the flow did not start in time", flow=self.name)
        machine = self._controller.machine
        if not machine.has_run and machine.failure is not None:
            self._ended.wait(END_S)
            raise self._error or PenstockError.from_dict(dict(machine.failure))

    # -- StreamingQuery --------------------------------------------------------------------------

    @property
    def isActive(self) -> bool:
        """Whether the flow is not over yet."""
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        """What the flow is doing, in words and flags."""
        phase = self._controller.machine.phase
        failed = self._controller.frames.failures()
        stalled = self._controller.stalls()
        followers = self._controller.followers
        standby = None if followers is None else [one._asdict() for one in followers.status()]
        plain = self._controller.plan.not_replicated
        parts = [phase.value, *(f"stage {name!r} has failed" for name in failed)]
        parts += [
            f"{one['who']} cannot write for {one['seconds']:.0f} s ({one['reason']})"
            for one in stalled[:1]
        ]
        message = "; ".join(parts)
        return {
            "message": message,
            "isDataAvailable": phase is FlowPhase.RUNNING,
            "isTriggerActive": phase in (FlowPhase.RUNNING, FlowPhase.DRAINING),
            **({"promises": self._notes} if self._notes else {}),
            **({"failedStages": failed} if failed else {}),
            **({"stalled": stalled} if stalled else {}),
            **({"notReplicated": dict(plain)} if plain else {}),
            **({} if standby is None else {"standby": standby}),
        }

    @property
    def lastProgress(self) -> FlowProgress | None:
        """The newest progress."""
        return self._recent[-1] if self._recent else None

    @property
    def recentProgress(self) -> list[FlowProgress]:
        """The newest progresses, oldest first."""
        return list(self._recent)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end; raise what made the flow fail. With a timeout: whether it ended."""
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended if timeout is not None else None

    def processAllAvailable(self, timeout: float = 60.0) -> None:
        """Wait until the rows that sources have read, or that were pushed, are in all sinks."""
        deadline = time.monotonic() + timeout
        controller = self._controller
        ends = [(source, source.end) for source in memory_sources(controller.plan)]
        self._wait(lambda: all(source.read_to >= end for source, end in ends), deadline)
        clock = controller.clock
        if clock is None:
            return
        last = clock.epoch(now_us()) + 1  # a shard may be one epoch ahead
        committed = controller.machine.committed
        self._wait(lambda: min(committed.values(), default=last) >= last, deadline)

    def _wait(self, done: Callable[[], bool], deadline: float) -> None:
        """Wait for something, the end of the flow, or a deadline."""
        while not done():
            if self._ended.wait(0.005):
                if self._error is not None:
                    raise self._error
                return
            if time.monotonic() > deadline:
                raise TimeoutError("not everything was processed in time")

    def stop(self) -> None:
        """Drain what is under way and end; returns when all hosts are gone."""
        self._drills.close()
        self._controller.stop()
        if self._ended.wait(STOP_S):
            self._listeners.told.wait(TOLD_S)

    def exception(self) -> PenstockError | None:
        """What made the flow fail, None if nothing did."""
        return self._error

    def explain(self, picture: str | None = None) -> str:
        """The flow's nodes, where they run, and each one's frontier; also printed.

        With ``picture`` the flow is drawn into that file, as SVG, with the frontiers.
        """
        from penstock.planning.explain import draw, explain_plan, frontiers

        controller = self._controller
        moved = frontiers(controller.plan, controller.figures(), controller.frontiers())
        text = explain_plan(controller.plan, controller.placement, moved)
        if self._notes:
            text = "\n".join([text, "", "== Promises ==", *self._notes])
        print(text)
        if picture is not None:
            draw(self.flow, picture, controller.plan, moved)
        return text

    # -- beyond ----------------------------------------------------------------------------------

    @property
    def hosts(self) -> list[dict[str, Any]]:
        """Each host with its process id, address and nodes."""
        controller = self._controller
        return [
            {
                "host": info.number,
                "pid": info.pid,
                "address": info.address,
                "nodes": [
                    controller.plan.node_name(node)
                    for node, at in controller.placement.items()
                    if at == info.number
                ],
            }
            for info in list(controller.hosts.values())  # the controller adds to them
        ]

    def nodes(self) -> list[dict[str, Any]]:
        """Each node with host, process, incarnation, kind (what it would lose), part and regime.

        ``home`` is the host that it belongs to, and goes back to when others have taken it over.
        """
        controller = self._controller
        recovery = controller.recovery
        found = []
        for chain in controller.plan.chains:
            for node in chain.nodes:
                host = controller.placement[node]
                info = controller.hosts.get(host)
                found.append(
                    {
                        "node": node,
                        "name": chain.node_name(node),
                        "stage": chain.name,
                        "host": host,
                        "home": controller.homes.get(node, host),
                        "pid": os.getpid() if host == DRIVER else info and info.pid,
                        "incarnation": controller.incarnation(node),
                        "kind": None if recovery is None else recovery.graph.kinds[node].value,
                        "loop": bool(chain.loops),
                        "part": chain.part,
                        "regime": chain.regime.name,
                    }
                )
        return found

    @property
    def recoveries(self) -> list[dict[str, Any]]:
        """The recoveries of this run, oldest first: who was lost, who restarted, and when."""
        return self._history(moved=False)

    @property
    def moves(self) -> list[dict[str, Any]]:
        """Nodes that moved though no host was lost, oldest first, in the form of recoveries."""
        return self._history(moved=True)

    def _history(self, moved: bool) -> list[dict[str, Any]]:
        recovery, replicas = self._controller.recovery, self._controller.replicas
        entries = [] if recovery is None else list(recovery.history)
        if replicas is not None:
            entries = sorted([*entries, *replicas.history], key=lambda entry: entry.lost_us)
        return [entry.to_dict() for entry in entries if entry.moved == moved]

    def measured(self) -> dict[str, Any]:
        """What each operator receives, costs, keeps and loses, as ``penstock plan`` reads it.

        An operator is a chain of fused stages, or a loop; times are in seconds, sizes in bytes.
        """
        return self._live_plan().measured()

    def plan(self, maxOverhead: float = 0.05, method: Method = "exact") -> Plan:
        """Where to log and how often to checkpoint, for the flow as it was measured."""
        return self._live_plan().plan(maxOverhead, method)

    def apply(self, plan: Plan) -> None:
        """Put a plan into force, without a restart; it stays in the store, as ``plan.json``."""
        live = self._live_plan()
        self._do(lambda: live.apply(plan))

    def _live_plan(self) -> LivePlan:
        live = self._controller.live_plan
        if live is None:
            raise SettingsError("a flow without recovery has nothing to plan")
        return live

    def _do(self, function: Callable[[], None]) -> None:
        """Do something in the controller's thread and wait for it; raise what it raises."""
        done, raised = threading.Event(), list[PenstockError]()

        def act() -> None:
            try:
                function()
            except PenstockError as error:
                raised.append(error)
            done.set()

        self._controller.events.later(act)
        if not done.wait(DO_S) and not self._ended.is_set():
            raise TransientError(f"the controller has not answered within {DO_S:g} s")
        if raised:
            raise raised[0]

    # -- checkpoints and rollbacks by hand -------------------------------------------------------

    def checkpoint(self, timeout: float = 30.0) -> dict[str, int]:
        """Let every stage with state save it now; wait until all is durable.

        Gives, per stage, the epoch whose end it can go back to: the same for all where sources end
        their epochs by the clock.
        """
        return self._rollbacks.checkpoint(timeout)

    def rollback(
        self, to: int, dryRun: bool = False, timeout: float = 60.0
    ) -> list[dict[str, Any]]:
        """Let the whole flow go back to the end of an epoch, and on from there.

        Each stage with state restarts from its newest checkpoint at or before the epoch; sources
        read again; what sinks have published stays, and is not published again.  Gives one row per
        stage that says from where it goes to where, what it restores, how many bytes that is, and
        what is worked on again.  With ``dryRun`` that is all that happens.
        """
        return self._rollbacks.rollback(to, dryRun, timeout)

    def preview(self, *lost: int | str) -> list[dict[str, Any]]:
        """Who would restart if these nodes were lost now: one row per node, with the reason.

        ``to`` is the epoch that a node would go back to, None for one that has no state.
        """
        return self._rollbacks.preview(lost)

    def spans(self) -> list[dict[str, Any]]:
        """Per node: the epochs that it can go back to, and its low-watermark.

        ``low`` is the epoch behind which no failure takes the node; ``heldBy`` names the node that
        keeps the others from forgetting more.
        """
        return self._rollbacks.spans()

    # -- drills and listeners --------------------------------------------------------------------

    def kill(self, node: int | str) -> dict[str, Any]:
        """Kill the process that runs a node (``kill -9``), as a drill; give what was killed.

        A node is given by its number or name; that of any stage fused into it will do.
        """
        known = self.nodes()
        aliases = {
            f"{stage.name}[{number - chain.first_node}]": number
            for chain in self._controller.plan.chains
            for stage in chain.stages
            for number in chain.nodes
        }
        wanted = aliases.get(node) if isinstance(node, str) else node
        found = next((one for one in known if one["node"] == wanted), None)
        if found is None:
            names = ", ".join(one["name"] for one in known)
            raise SettingsError(f"kill: there is no node {node!r}; the nodes are {names}")
        if found["host"] == DRIVER:
            raise SettingsError(f"kill: node {found['name']} runs in the driver's own process")
        self._controller.links.kill(found["host"])
        return {key: found[key] for key in ("node", "name", "host", "pid")}

    def freeze(self, node: int | str, seconds: float | None = None) -> list[dict[str, Any]]:
        """Stop the process that runs a node (or all nodes of a stage), as a drill.

        It goes on after ``seconds``, or when ``unfreeze`` is called; others take the nodes of one
        that is silent for longer than ``pingTimeout``.
        """
        return self._drills.freeze(node, seconds)

    def unfreeze(self, node: int | str | None = None) -> list[dict[str, Any]]:
        """Let a frozen process go on; without a node, all of them."""
        return self._drills.unfreeze(node)

    def slow(self, node: int | str, delay: Duration) -> list[dict[str, Any]]:
        """Let a node (or all of a stage) wait after each batch, as a drill; 0 ends it."""
        return self._drills.slow(node, delay)

    def severConnections(self, host: int) -> None:
        """Break all connections of a host, as a drill; they are made again and nothing is lost."""
        self._controller.links.sever(host)

    def addListener(self, listener: FlowListener) -> None:
        """Call a listener from now on."""
        self._listeners.add(listener, self)

    def removeListener(self, listener: FlowListener) -> None:
        """Call a listener no more."""
        self._listeners.remove(listener)

    # -- from the controller ---------------------------------------------------------------------

    def _make_progress(self) -> None:
        controller = self._controller
        progress = progress_of(
            self.id,
            self.runId,
            self.name,
            datetime.now(UTC),
            controller.plan,
            controller.figures(),
            dict(controller.machine.committed),
            dict(controller.sink_latency_us),
            self.lastProgress,
        )
        frames = controller.frames.figures()
        if frames:
            progress["sparkStages"] = frames
        self._recent.append(progress)
        self._listeners.progressed(progress)

    def _on_ended(self, error: PenstockError | None) -> None:
        self._error = error
        self._drills.close()
        if self._control is not None:
            self._control.close()
        self._ended.set()
        self._listeners.ended(self, error)
