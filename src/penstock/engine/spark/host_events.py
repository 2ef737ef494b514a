"""What hosts say to the controller, and what becomes of hosts: they come, fall silent, are lost.

Everything here runs in the controller's thread, but for the probes of hosts whose connection broke.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.core.machine.controller import ControllerEffect, ControllerMachine, Phase
from penstock.engine.causal_agent import CausalAgent
from penstock.engine.host import Host
from penstock.engine.spark.followers import Followers
from penstock.engine.spark.host_task import DRIVER, SLOTS
from penstock.engine.spark.launch import Job
from penstock.engine.spark.live_plan import LivePlan
from penstock.engine.spark.recovery import Recovery
from penstock.engine.spark.replicas import Replicas
from penstock.engine.spark.roster import HostInfo, Roster, is_gone
from penstock.errors import HostLostError, PenstockError, TransientError
from penstock.physical import PhysicalPlan
from penstock.replica_plan import replicated_nodes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["HostEvents"]

PROBES_S = (0.0, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
"""The pauses before each look at whether a process is gone."""
LAUNCH_S, LAUNCH_S_MAX = 0.2, 2.0
"""So long after a recovery, and so long at most, a host that comes in another's place waits."""

log = logging.getLogger(__name__)


class HostEvents(ABC):
    """The controller's dealings with hosts."""

    plan: PhysicalPlan
    machine: ControllerMachine
    recovery: Recovery | None
    replicas: Replicas | None
    live_plan: LivePlan | None
    followers: Followers | None
    host: Host
    hosts: dict[int, HostInfo]
    placement: dict[int, int]
    address: str
    _spark: SparkSession
    _roster: Roster
    _jobs: dict[int, Job]
    _launches: dict[int, float]
    """Hosts that come up soon, and by when."""
    _agent: CausalAgent | None

    @abstractmethod
    def _post(self, event: Callable[[], list[ControllerEffect]]) -> None:
        """Let the controller's thread take an event."""

    @abstractmethod
    def _effect(self, effect: ControllerEffect) -> None:
        """Perform an effect."""

    @abstractmethod
    def _launch(self, slot: int) -> None:
        """Have Spark run a host."""

    @abstractmethod
    def _assignment(self) -> dict[str, Any]:
        """What a host must know of the run."""

    @abstractmethod
    def _sink(self, sink: str, node: int, epoch: int, cut_us: int) -> list[ControllerEffect]:
        """An epoch is complete at a node of a sink."""

    @abstractmethod
    def _takers(self, lost: int, fresh: int) -> dict[int, int]:
        """Who takes which node of a lost host, in whose place another one comes."""

    @abstractmethod
    def _rewire(self) -> None:
        """Tell everybody whom to watch."""

    @abstractmethod
    def _reported(self, by: int, body: dict[str, Any]) -> None:
        """Somebody takes a host for dead."""

    @abstractmethod
    def _refused(self, host: int, counts: dict[str, int]) -> None:
        """Something of a host that was given up was refused."""

    @abstractmethod
    def _learn_loads(self, body: dict[str, Any]) -> None:
        """Note how busy hosts are."""

    # -- what they say ---------------------------------------------------------------------------

    def _control(self, peer: int, body: dict[str, Any]) -> list[ControllerEffect]:
        kind = body["kind"]
        if kind == "registered":
            return self._registered(peer, body)
        info = self.hosts.get(peer)
        if info is None:
            return []  # it was given up
        if "figures" in body:
            info.figures = body["figures"]
            self._learn_loads(body)
        if kind == "refused":
            self._refused(body["host"], body["counts"])
            return []
        if kind == "silent":
            self._reported(peer, body)
            return []
        if self.recovery is not None and self._recovery_told(body, peer):
            return []
        if kind == "followed" and self.followers is not None:
            self.followers.followed(body)
            return []
        if kind == "ready":
            return self._ready(peer)
        if kind == "sink":
            return self._sink(body["sink"], body["node"], body["epoch"], body["cut_us"])
        if kind == "finished":
            return self._finished(body["node"])
        if kind == "failed":
            return self.machine.failed(body["error"])
        return []

    def _registered(self, peer: int, body: dict[str, Any]) -> list[ControllerEffect]:
        """A host's process is up: one that was launched, or Spark's next attempt at one."""
        if peer not in self.hosts:
            before = self._roster.of_slot(peer % SLOTS)
            if not self._recovers():
                lost: PenstockError = HostLostError(
                    f"host {peer} was lost: Spark has started its task again"
                )
                if before is not None:
                    lost = self._with_nodes(before.number, lost)
                return self.machine.failed(lost.to_dict())
            if before is not None:
                self._lose(before.number, "Spark has started its task again", peer)
            else:
                self._roster.add(peer)
                self._roster.spares.append(peer)
        info = self.hosts[peer]
        info.address, info.pid = body["address"], body["pid"]
        info.heard_s = time.monotonic()
        self.host.transport.connect(peer, info.address)
        if self.machine.phase is Phase.LAUNCHING:
            return self.machine.registered(peer, info.address)
        if self.machine.phase in (Phase.ENDING, Phase.ENDED):
            self._to_host(peer, {"kind": "end"})
        else:
            self._to_host(peer, self._assignment())
        return []

    def _ready(self, peer: int) -> list[ControllerEffect]:
        """A host has its assignment; nodes follow if there is recovery."""
        recovery = self.recovery
        if recovery is None:
            return self.machine.ready(peer)
        self._roster.assigned.add(peer)
        if self.followers is not None and peer in self._roster.spares:
            self.followers.begin(peer)
        if self.machine.phase is not Phase.PREPARING:
            self._to_host(peer, {"kind": "go"})
            self._introduce(peer)
            recovery.host_ready()
            self._rewire()
            if self.replicas is not None:
                self.replicas.host_ready(peer)
        elif self._roster.assigned >= {DRIVER, *self.hosts}:
            recovery.begin()
            if self.replicas is not None:
                self.replicas.begin()
        return []

    def _introduce(self, peer: int) -> None:
        """Let everybody connect to a new host, so that nobody has to when it takes nodes."""
        addresses = {peer: self.hosts[peer].address}
        for other in self._roster.assigned & self.hosts.keys() - {peer}:
            self._to_host(other, {"kind": "meet", "addresses": addresses})

    def _recovery_told(self, body: dict[str, Any], host: int = DRIVER) -> bool:
        """A host's word on a recovery; when all edges are open for the first time, go."""
        recovery, replicas = self.recovery, self.replicas
        told = replicas is not None and replicas.told(host, body)
        if recovery is None or not (told or recovery.told(body)):
            return False
        if body["kind"] == "saved" and self.live_plan is not None:
            self.live_plan.saved(body)
        if body["kind"] == "saved" and self.followers is not None:
            self.followers.saved(body)
        open_ = recovery.open and (replicas is None or replicas.open)
        if self.machine.phase is Phase.PREPARING and open_:
            for host in (DRIVER, *self.hosts):
                for effect in self.machine.ready(host):
                    self._effect(effect)
            self._rewire()
        return True

    def _job_ended(self, slot: int, error: PenstockError | None) -> None:
        self._post(lambda: self._slot_ended(slot, error))

    def _slot_ended(self, slot: int, error: PenstockError | None) -> list[ControllerEffect]:
        """Spark's word: a host's job is over, and there will be no other attempt."""
        info = self._roster.of_slot(slot)
        if info is None:
            return []  # it was given up before
        if error is not None and self._recovers() and isinstance(error, HostLostError):
            self._lose(info.number, error.message)
            return []
        failure = None if error is None else self._with_nodes(info.number, error).to_dict()
        return self.machine.host_ended(slot, failure)

    # -- lost hosts ------------------------------------------------------------------------------

    def _recovers(self) -> bool:
        """Whether the flow survives the loss of a host now."""
        return self.recovery is not None and self.machine.phase in (Phase.RUNNING, Phase.DRAINING)

    def _lose(self, number: int, reason: str, replacement: int | None = None) -> None:
        """A host is gone, or taken for gone: fence it, and let others have its nodes."""
        info = self.hosts.get(number)
        if info is None or self.recovery is None:
            return
        self.host.transport.forget(number)
        fresh = self._new_host(info) if replacement is None else replacement
        place = self._roster.workers.index(number) if number in self._roster.workers else None
        takers = self._takers(number, fresh)
        heir = None if place is None else self._roster.workers[place]
        if self.followers is not None:
            for host in {number, *takers.values()}:
                self.followers.end(host)
        self.recovery.host_lost(number, takers, reason)
        if self.replicas is not None:
            self._replace_replica(number, heir, reason)
        self._rewire()
        if fresh % SLOTS not in self._jobs:
            # Where one after another is lost, or somebody waits for it, it is needed at once.
            at_once = self._launches or fresh in takers.values()
            due = time.monotonic() + (0.0 if at_once else LAUNCH_S_MAX)
            self._launches = dict.fromkeys([*self._launches, fresh], due)
            self._launch_due()

    def _launch_due(self) -> list[ControllerEffect]:
        """Launch the hosts that come in others' places.

        Unless somebody waits for them not before the recovery is over: a process that comes up
        takes the time of those that recover.
        """
        effects: list[ControllerEffect] = []
        now = time.monotonic()
        for number, by in list(self._launches.items()):
            if self.machine.phase in (Phase.ENDING, Phase.ENDED):
                effects += self.machine.host_ended(number % SLOTS, None)
            elif now >= by:
                self._launch(number)
            else:
                if self.recovery is None or self.recovery.quiet:
                    self._launches[number] = min(by, now + LAUNCH_S)
                continue
            del self._launches[number]
        return effects

    # -- drills ----------------------------------------------------------------------------------

    def sever(self, host: int) -> None:
        """Break every connection of a host, for drills; nothing may be lost by it."""
        peers = [DRIVER, *(number for number in self.hosts if number != host)]
        self.host.transport.control(host, {"kind": "sever", "peers": peers})
        self.host.transport.sever(host)

    def kill(self, host: int) -> None:
        """Let a host's process kill itself, for drills."""
        info = self.hosts.get(host)
        if info is None or not info.address:
            raise TransientError(f"host {host} is not up yet: it cannot be killed", host=host)
        self.host.transport.control(host, {"kind": "kill"})

    # -- replicas --------------------------------------------------------------------------------

    def _make_replicas(self) -> Replicas | None:
        """The rings of replicas, where the flow has any."""
        if self.recovery is None or not replicated_nodes(self.plan):
            return None
        return Replicas(self.plan, self.recovery, self.placement, self._to_host, self._addresses)

    def _addresses(self) -> dict[int, str]:
        """The hosts that have their assignments."""
        hosts = {host: self._address_of(host) for host in (DRIVER, *self.hosts)}
        return {host: address for host, address in hosts.items() if address is not None}

    def _replace_replica(self, lost: int, heir: int | None, reason: str) -> None:
        """Let other replicas have a lost host's roles, until its heir is there."""
        if self.replicas is not None:
            self.replicas.host_lost(lost, heir, reason)
            if heir in self._roster.assigned:
                self.replicas.host_ready(heir)

    def incarnation(self, node: int) -> int:
        """The present incarnation of a node."""
        if self.recovery is None:
            return 0
        taken = None if self.replicas is None else self.replicas.incarnation(node)
        return self.recovery.incarnations()[node] if taken is None else taken

    def _finished(self, node: int) -> list[ControllerEffect]:
        """A node has come to its end; with a replicated part's last sink the part has."""
        ended = [node] if self.replicas is None else self.replicas.finished(node)
        return [effect for one in ended for effect in self.machine.node_finished(one)]

    def _new_host(self, lost: HostInfo) -> int:
        """The number of the host that comes in the place of a lost one."""
        job = self._jobs.get(lost.slot)
        if job is not None and not job.ended.is_set() and self._retries():
            return lost.number + SLOTS  # Spark's next attempt
        number = self._roster.new_number()
        self.machine.replaced(lost.slot, number)
        return number

    def _retries(self) -> bool:
        """Whether Spark starts a lost task again by itself."""
        context = self._spark.sparkContext
        if context.master.startswith("local"):
            return bool(re.match(r"local\[.*,\s*([2-9]|\d\d+)\]", context.master))
        return int(context.getConf().get("spark.task.maxFailures", "4")) > 1

    def _probe(self, number: int, address: str) -> None:
        """A connection broke: perhaps the process is gone, or about to be.

        One that ends closes its connections one after another, the one that it listens on perhaps
        last.
        """
        for wait_s in PROBES_S:
            time.sleep(wait_s)
            if number not in self.hosts:
                return
            if is_gone(address):
                self._post(lambda: self._gone(number))
                return

    def _gone(self, number: int) -> list[ControllerEffect]:
        if number in self.hosts and self._recovers():
            self._lose(number, "its process ended")
        return []

    def _with_nodes(self, host: int, error: PenstockError) -> PenstockError:
        nodes = [self.plan.node_name(n) for n, at in self.placement.items() if at == host]
        info = self.hosts[host]
        if isinstance(error, HostLostError):
            error.message += f" (process {info.pid}; it ran {', '.join(nodes) or 'no node'})"
        error.parameters.update(nodes=", ".join(nodes), pid=info.pid)
        return error

    def _on_broken(self, peer: int, why: str) -> None:
        log.info("channel with host %d broke: %s", peer, why)
        info = self.hosts.get(peer)
        if info is not None and info.address and self._recovers():
            threading.Thread(target=self._probe, args=(peer, info.address), daemon=True).start()

    def _told_here(self, body: dict[str, Any]) -> None:
        """The driver's own agent speaks."""

        def event() -> list[ControllerEffect]:
            self._recovery_told(body)
            return []

        self._post(event)

    def _to_host(self, host: int, body: dict[str, Any]) -> None:
        """Send a message to a host's agent; the driver has one, too."""
        if host != DRIVER:
            self.host.transport.control(host, body)
        elif self._agent is not None:
            agent = self._agent
            self.host.call(lambda: agent.take(body))

    def _address_of(self, host: int) -> str | None:
        """Where a host can be reached, once it has its assignment."""
        if host == DRIVER:
            return self.address
        info = self.hosts.get(host)
        return info.address if info is not None and host in self._roster.assigned else None
