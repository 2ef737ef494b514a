"""Whom to believe dead.

Theory of operation
-------------------
Silence is no proof of death.  Four witnesses speak, and the driver weighs them:

- **The ring.**  Each host pings the next and reports it when no answer came within the ping
  timeout.  The report counts only if the driver itself has not heard the host during that time: two
  hosts that cannot reach each other, but can both reach the driver, are both alive.  Hosts speak to
  the driver only every ``beat_ms``, so it waits for a beat to be missed before it says that it has
  not heard one; unless it sees the process stopped.
- **The machine.**  Where host and driver share a machine, the driver can look at the process.  One
  that runs is alive, whatever the ring says.  One that sleeps gets ``PATIENCE`` ping timeouts: a
  busy machine is slow to wake threads up.  One that is stopped or gone is believed dead.
- **The driver's own ear.**  A host that the driver has not heard for ``host_timeout_ms`` is dead,
  even if no host reports it.  This is the last resort, for rings that are themselves silent.
- **The host itself.**  A host that was declared dead and speaks is refused: others already have its
  nodes.  If it speaks within ``SLOW_MS`` of its loss it was only slow, so the ping timeout doubles,
  up to ``TIMEOUT_MS_MAX``.

The driver suspects itself first.  If it did not run for ``FROZEN_MS`` it could not hear anything,
so that time is not counted as silence of the hosts.  What it finds when it wakes up is old, reports
of silence included, so it believes none before a beat has had time to arrive.

A wrong verdict costs a recovery and nothing else: a host that was declared dead can do no harm,
because everything that it sends or writes afterwards is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from penstock.core.control.roster import RosterEntry

__all__ = [
    "BEAT_MS",
    "FROZEN_MS",
    "PATIENCE",
    "SLOW_MS",
    "TIMEOUT_MS_MAX",
    "ProcessState",
    "Suspicion",
    "Verdict",
]

BEAT_MS = 200
"""How often a host speaks to the driver, if only to say that it lives."""
FROZEN_MS = 1_000
"""A gap this long between two looks means that the driver did not run."""
PATIENCE = 4
"""How many ping timeouts a sleeping process may stay silent."""
SLOW_MS = 1_000
"""A host that speaks again this soon after its loss was only slow."""
TIMEOUT_MS_MAX = 10_000


class ProcessState(Enum):
    """What the driver sees of a host's process."""

    UNSEEN = "on another machine"
    RUNNING = "running"
    SLEEPING = "sleeping"
    STOPPED = "stopped or gone"


class Verdict(Enum):
    """What becomes of a report of silence."""

    HEARD = "the driver hears it"
    ALIVE = "its process lives"
    ASLEEP = "the driver itself did not run"
    DEAD = "dead"


class Suspicion:
    """Judges reports of silence.

    >>> suspicion = Suspicion(interval_ms=50, timeout_ms=150, host_timeout_ms=60_000)
    >>> host = RosterEntry(2, 2, heard_ms=1_000)
    >>> suspicion.judge(host, silent_ms=150, process=ProcessState.UNSEEN, now_ms=1_200)
    <Verdict.HEARD: 'the driver hears it'>
    >>> suspicion.judge(host, silent_ms=400, process=ProcessState.UNSEEN, now_ms=1_500)
    <Verdict.DEAD: 'dead'>
    """

    def __init__(
        self, interval_ms: int, timeout_ms: int, host_timeout_ms: int, beat_ms: int = BEAT_MS
    ) -> None:
        self.interval_ms = interval_ms
        """How often hosts ping each other; 0: they do not."""
        self.timeout_ms = timeout_ms
        self.host_timeout_ms = host_timeout_ms
        self.beat_ms = beat_ms
        self._ran_ms: int | None = None
        self._listens_ms = 0
        """From when on the driver would have heard a host that lives."""

    def judge(
        self, host: RosterEntry, silent_ms: int, process: ProcessState, now_ms: int
    ) -> Verdict:
        """Another host says that this one has been silent for a while."""
        heard_ms = silent_ms - 2 * self.interval_ms
        if process is not ProcessState.STOPPED:
            if now_ms < self._listens_ms:
                return Verdict.ASLEEP
            heard_ms = max(heard_ms, self.beat_ms + self.interval_ms)
        if now_ms - host.heard_ms < heard_ms:
            return Verdict.HEARD
        if process is ProcessState.RUNNING:
            return Verdict.ALIVE
        if process is not ProcessState.SLEEPING:
            return Verdict.DEAD
        if host.silent_since_ms < host.heard_ms:  # a new silence: it was heard since the last one
            host.silent_since_ms = now_ms - silent_ms
        patient_ms = PATIENCE * self.timeout_ms
        return Verdict.ALIVE if now_ms - host.silent_since_ms < patient_ms else Verdict.DEAD

    def unheard(self, hosts: Iterable[RosterEntry], now_ms: int) -> list[RosterEntry]:
        """The hosts that the driver has not heard for longer than the host timeout."""
        return [host for host in hosts if now_ms - host.heard_ms > self.host_timeout_ms]

    def spoke(self, lost_ms: int, now_ms: int) -> bool:
        """A host that was lost because of its silence speaks; whether the timeout grew."""
        before = self.timeout_ms
        if now_ms - lost_ms < SLOW_MS:
            self.timeout_ms = min(2 * self.timeout_ms, TIMEOUT_MS_MAX)
        return self.timeout_ms != before

    def looked(self, hosts: Iterable[RosterEntry], now_ms: int) -> None:
        """The driver runs; forgive the hosts the time in which it did not."""
        gap_ms = 0 if self._ran_ms is None else now_ms - self._ran_ms
        self._ran_ms = now_ms
        if gap_ms > FROZEN_MS:
            self._listens_ms = now_ms + self.beat_ms + self.interval_ms
            for host in hosts:
                host.heard_ms = min(host.heard_ms + gap_ms, now_ms)
