"""The truth about the hosts of a rough run, and whether the membership does them justice.

A wrong verdict costs a recovery and breaks no guarantee.  So it would never show in what a flow
publishes: that a verdict is right, that nodes are placed where they can run, and that they go home,
is checked here, by what the simulator knows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from penstock.core.control.homecoming import SAVE_MS, SETTLE_MS, SETTLE_MS_MAX
from penstock.core.control.membership import MembershipMachine
from penstock.core.control.membership_events import HostSilent, MembershipEvent, Situation
from penstock.core.control.roster import DRIVER, Roster
from penstock.core.control.suspicion import PATIENCE, ProcessState
from penstock.core.delivery.ring import RAISED_MAX
from penstock.testing.simulator.violations import Violation

__all__ = ["HostMonitor"]

SLACK_MS = 2_000
"""How much later than it could something may be noticed or done."""


class Watched(Protocol):
    """Who decides, and where things are."""

    membership: MembershipMachine
    homes: dict[int, int]
    """Per node: the place among the workers that it is planned for, from 1 on; 0: the driver's."""
    placement: dict[int, int]

    @property
    def now_ms(self) -> int:
        """The driver's clock."""


class HostMonitor:
    """Watches what one driver decides about its hosts."""

    def __init__(self, cluster: Watched, interval_ms: int, beat_ms: int) -> None:
        self._cluster = cluster
        self._interval_ms = interval_ms
        self._beat_ms = beat_ms
        self._spoke_ms: dict[int, int] = {}
        """When hosts said something to the driver, whether it listened or not."""
        self._up_ms: dict[int, int] = {}
        """Since when hosts can take nodes."""
        self._moved_ms: dict[int, list[int]] = {}
        """Per place among the workers: when nodes went there."""
        self._away_ms: dict[int, tuple[int, int]] = {}
        """Nodes that could go home: where to, and since when."""
        self._silent_ms: dict[int, tuple[int, int]] = {}
        """Hosts whose silence could be noticed: by whom, and since when."""

    @property
    def _roster(self) -> Roster:
        return self._cluster.membership.roster

    # -- whom to believe dead --------------------------------------------------------------------

    def spoke(self, host: int) -> None:
        """A host has sent something to the driver."""
        self._spoke_ms[host] = self._cluster.now_ms

    def lost(self, host: int, event: MembershipEvent) -> None:
        """The driver gives a host up."""
        if not isinstance(event, HostSilent):
            return
        now_ms, suspicion = self._cluster.now_ms, self._cluster.membership.suspicion
        quiet_ms = now_ms - self._spoke_ms.get(host, 0)
        patient_ms = PATIENCE * suspicion.timeout_ms - 2 * self._interval_ms - SLACK_MS
        wrong = None
        if quiet_ms < self._beat_ms and event.process is not ProcessState.STOPPED:
            wrong = "the driver hears it"
        elif event.process is ProcessState.RUNNING:
            wrong = "its process runs"
        elif event.process is ProcessState.SLEEPING and quiet_ms < patient_ms:
            wrong = f"it sleeps, and was heard {quiet_ms} ms ago"
        if wrong is not None:
            raise Violation("suspicion", f"host {host} is declared lost, but {wrong}")

    def woke(self) -> None:
        """The driver slept: what it could not see does not count."""
        self._silent_ms.clear()
        self._away_ms.clear()

    def looked(self, silent: Mapping[int, bool], muted: Collection[int], timeout_ms: int) -> None:
        """Time has passed: a host that says nothing to anybody is declared lost soon.

        ``silent`` are the present hosts, and whether they are; who is not watches the next one,
        and says so unless it is ``muted``.
        """
        now_ms = self._cluster.now_ms
        ring = self._roster.ring()
        before, self._silent_ms = self._silent_ms, {}
        for place, host in enumerate(ring):
            by = ring[place - 1] if len(ring) > 1 else DRIVER
            if not silent[host] or (by != DRIVER and (silent[by] or by in muted)):
                continue
            known = before.get(host, (by, now_ms))
            since_ms = known[1] if known[0] == by else now_ms
            self._silent_ms[host] = (by, since_ms)
            if now_ms - since_ms > (RAISED_MAX + PATIENCE) * timeout_ms + SLACK_MS:
                raise Violation("suspicion", f"host {by} watches host {host}, which is silent")

    # -- where nodes go --------------------------------------------------------------------------

    def up(self, host: int) -> None:
        """A host can take nodes."""
        self._up_ms.setdefault(host, self._cluster.now_ms)

    def placed(self, lost: int, takers: Iterable[int], ready: Iterable[int]) -> None:
        """The nodes of a lost host go to others, while these are ready to take some."""
        able = set(ready) - {lost}
        for taker in takers:
            if taker == lost or (able and taker not in able):
                raise Violation("placement", f"nodes of {lost} go to {taker}; {able} are ready")

    # -- going home ------------------------------------------------------------------------------

    def moves(self, places: Mapping[int, int], settled: bool, ending: bool) -> None:
        """Nodes go home."""
        now_ms, movable = self._cluster.now_ms, self._cluster.membership.policy.movable
        for node, host in places.items():
            place = self._cluster.homes[node] - 1
            wrong = None
            if not settled:
                wrong = "others recover"
            elif ending:
                wrong = "the flow ends"
            elif node not in movable:
                wrong = "it could lose or double rows"
            elif self._roster.workers[place] != host:
                wrong = "that is not its home"
            elif host not in self._up_ms:
                wrong = "no node can run there"
            elif now_ms - self._up_ms[host] < self._wait_ms(place):
                wrong = f"that host is up since {self._up_ms[host]} only"
            if wrong is not None:
                raise Violation("home", f"node {node} goes to host {host}, but {wrong}")
        for place in {self._cluster.homes[node] - 1 for node in places}:
            self._moved_ms.setdefault(place, []).append(now_ms)

    def _wait_ms(self, place: int) -> int:
        """How long a home must be up: the longer, the more often nodes went there of late."""
        late_ms = self._cluster.now_ms - 2 * SETTLE_MS_MAX
        moves = 0
        for moved_ms in reversed(self._moved_ms.get(place, ())):
            if moved_ms <= late_ms:
                break
            moves, late_ms = moves + 1, moved_ms - 2 * SETTLE_MS_MAX
        return int(min(SETTLE_MS * 2**moves, SETTLE_MS_MAX))

    def stays(self, situation: Situation) -> None:
        """Nodes that could go home do so before long."""
        now_ms = self._cluster.now_ms
        before, self._away_ms = self._away_ms, {}
        if not situation.settled or situation.ending:
            return
        for node, place in self._cluster.homes.items():
            if place == DRIVER or node not in self._cluster.membership.policy.movable:
                continue
            home = self._roster.workers[place - 1]
            if home not in self._roster.assigned or self._cluster.placement[node] == home:
                continue
            known = before.get(node, (home, now_ms))
            since_ms = known[1] if known[0] == home else now_ms
            self._away_ms[node] = (home, since_ms)
            if now_ms - since_ms > self._wait_ms(place - 1) + 2 * SAVE_MS + SLACK_MS:
                raise Violation("home", f"node {node} does not go home to host {home}")
