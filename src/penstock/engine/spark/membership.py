"""Who belongs to a running flow: hosts watch each other, and others take what a lost one did.

Everything here runs in the controller's thread, but for the driver's own ping thread.

A host's silence is reported by the one before it in the ring.  The controller believes that unless
it knows better: it has heard the host itself since, or it can see, on its own machine, that the
process runs and is only slow to answer.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.core.delivery.ring import Load
from penstock.core.delivery.takeover import Takeover, takers
from penstock.core.machine.controller import ControllerEffect, Phase
from penstock.engine.clock import now_us
from penstock.engine.ring import Ring, read_loads
from penstock.engine.settings import RunSettings
from penstock.engine.spark.host_events import HostEvents
from penstock.engine.spark.host_task import DRIVER
from penstock.engine.spark.reinstatement import Reinstatement
from penstock.engine.spark.roster import HostInfo
from penstock.errors import HostLostError, PenstockError
from penstock.replica_plan import replicated_nodes

__all__ = ["Membership", "is_running", "is_there"]

log = logging.getLogger(__name__)

SILENT = "silent"
SLOW_US = 1_000_000
"""A host that speaks again so soon after it was given up was only slow."""
TIMEOUT_MS_MAX = 10_000
PATIENCE = 4
"""A process that sleeps and does not answer may do so for so many times pingTimeout."""


class Membership(HostEvents):
    """The controller's part in the ring."""

    settings: RunSettings
    _loads: dict[int, Load]
    _timeout_ms: int
    _own_ring: Ring
    _reinstatement: Reinstatement | None = None

    @abstractmethod
    def figures(self) -> dict[int, dict[str, Any]]:
        """The latest figures of every node."""

    @abstractmethod
    def _fail(self, error: PenstockError) -> None:
        """End the flow because of an error."""

    def _begin_membership(self) -> None:
        """Everybody is at home, and nobody watches anybody yet."""
        self._loads = {}
        roles = replicated_nodes(self.plan)  # these go home by themselves
        self._roster.homes = {
            n: at for n, at in self.placement.items() if at != DRIVER and n not in roles
        }

        def tell(body: dict[str, Any]) -> None:
            def event() -> list[ControllerEffect]:
                self._reported(DRIVER, body)
                return []

            self._post(event)

        self._own_ring = Ring(self.host, tell)
        self._timeout_ms = self.settings.us("pingTimeout") // 1000

        def refused(peer: int, counts: dict[str, int]) -> None:
            def event() -> list[ControllerEffect]:
                self._refused(peer, counts)
                return []

            self._post(event)

        self.host.transport.refusals.on_refused = refused

    @property
    def homes(self) -> dict[int, int]:
        """Per node: the host that it belongs to."""
        return self._roster.homes

    # -- the ring --------------------------------------------------------------------------------

    def _rewire(self) -> None:
        """Tell everybody who is next; the driver itself watches a host that is alone."""
        interval_ms = self.settings.us("pingInterval") // 1000
        if not interval_ms or not self._recovers():
            return
        members = self._roster.ring()
        told: dict[str, Any] = {
            "kind": "ring",
            "interval_ms": interval_ms,
            "timeout_ms": self._timeout_ms,
        }
        addresses = {host: self.hosts[host].address for host in members}
        count = len(members)
        for place, host in enumerate(members):
            around = [members[(place + step) % count] for step in (-1, 1)] if count > 1 else []
            near = {other: addresses[other] for other in around}
            next_ = around[-1] if around else None
            self._to_host(host, {**told, "next": next_, "near": near})
        alone = members[0] if count == 1 else None
        self._own_ring.take(DRIVER, {**told, "next": alone, "near": {}})

    def _reported(self, by: int, body: dict[str, Any]) -> None:
        """A host, or the driver, takes the next one of the ring for dead."""
        host, silent_ms = body["host"], body["silent_ms"]
        self._learn_loads(body)
        info = self.hosts.get(host)
        if info is None or not info.address or not self._recovers():
            return
        slack_ms = 2 * self.settings.us("pingInterval") // 1000
        if (time.monotonic() - info.heard_s) * 1000 < silent_ms - slack_ms:
            log.info("host %d: host %d seems silent, but the driver hears it", by, host)
        elif self._sees_it_live(info, silent_ms):
            log.info("host %d was silent for %d ms, but its process lives", host, silent_ms)
        else:
            self._lose(host, f"{SILENT} for {silent_ms} ms, as {_name(by)} says")

    def _refused(self, host: int, counts: dict[str, int]) -> None:
        """A host that was given up lives; one that lives again so soon was only slow."""
        entry = None if self.recovery is None else self.recovery.loss_of(host)
        if entry is None:
            return
        if not entry.refused:
            log.warning("host %d was given up, and speaks: it is refused", host)
            late_us = now_us() - entry.lost_us
            if entry.reason.startswith(SILENT) and late_us < SLOW_US:
                self._timeout_ms = min(2 * self._timeout_ms, TIMEOUT_MS_MAX)
                log.warning(
                    "it was silent for little more than pingTimeout, which is %d ms from now on",
                    self._timeout_ms,
                )
                self._rewire()
        for key, count in counts.items():
            before = entry.refused.get(key, 0)
            entry.refused[key] = max(before, count) if key == "writes" else before + count

    def _sees_it_live(self, info: HostInfo, silent_ms: int) -> bool:
        """Whether a silent host's process is known to live, on the driver's own machine.

        One that is not stopped is given more time: machines are busy.
        """
        here = urlsplit(self.address).hostname == urlsplit(info.address).hostname
        if not here or info.pid is None:
            return False
        if is_running(info.pid):
            return True
        now_ms = time.monotonic() * 1000
        if info.silent_ms < info.heard_s * 1000:  # it was heard since
            info.silent_ms = now_ms - silent_ms
        return is_there(info.pid) and now_ms - info.silent_ms < PATIENCE * self._timeout_ms

    def _learn_loads(self, body: dict[str, Any]) -> None:
        for host, load in read_loads(body.get("loads", {})).items():
            if host in self.hosts and load.beat >= self._loads.get(host, Load(-1, 0)).beat:
                self._loads[host] = load

    def _lose_silent(self, now: float) -> None:
        """The last resort: hosts that the driver has not heard for very long."""
        for info in list(self.hosts.values()):
            silent_s = now - info.heard_s
            if silent_s <= self.settings.s("hostTimeout"):
                continue
            silent = HostLostError(
                f"host {info.number} was lost: not heard for {silent_s:.0f} s", host=info.number
            )
            if info.address and self._recovers():
                self.kill(info.number)
                self._lose(info.number, silent.message)
            elif info.address or info.number in self.placement.values():
                self._fail(self._with_nodes(info.number, silent))
            # else one that should come in another's place, and nobody waits for it

    def _send_home(self, now: float) -> None:
        """Let nodes go back to where they belong, if it is time for that."""
        if self._reinstatement is None and self.recovery is not None and self.settings.reinstate:
            self._reinstatement = Reinstatement(
                self.recovery, self._roster, self.figures, self.followers
            )
        if self._reinstatement is not None and self.machine.phase is Phase.RUNNING:
            self._reinstatement.look(now)

    # -- taking over -----------------------------------------------------------------------------

    def _takers(self, lost: int, fresh: int) -> dict[int, int]:
        """Who takes the nodes of a lost host: a spare, those that live, or the one that comes."""
        self._loads.pop(lost, None)
        nodes = [node for node, at in self.placement.items() if at == lost]
        was_spare = lost in self._roster.spares
        spare = self._roster.replace(lost, fresh)
        if spare is not None:
            return dict.fromkeys(nodes, spare)
        hosts = [] if was_spare else self._roster.survivors(fresh)
        found = takers(nodes, hosts, Takeover(self.settings.takeover), self._load_of)
        return found or dict.fromkeys(nodes, fresh)

    def _load_of(self, host: int) -> int:
        return self._loads.get(host, Load(0, 0)).amount


def is_running(pid: int) -> bool:
    """Whether a thread of a process runs, or could if it were given a processor.

    A stopped process has none, and one that sleeps would have answered.
    """
    try:
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            if stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "R":
                return True
    except OSError:
        return False
    return False


def is_there(pid: int) -> bool:
    """Whether a process exists and is not stopped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "TtZX"


def _name(host: int) -> str:
    return "the driver" if host == DRIVER else f"host {host}"
