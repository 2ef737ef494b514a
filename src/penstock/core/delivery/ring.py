"""Replicas of a stage watch each other: each pings the next and reports it when it is silent.

Theory of operation
-------------------
The controller says who is next.  A member pings it every ``interval_ms``; a pong within
``deadline_ms`` is a sign of life.  Without one it reports the next to the controller, again and
again until the ring is rewired: reports may be lost, and old news does no harm there.

Loads travel with pings and pongs: each carries what the member knows of all loads, newest beat
first, so that after one round trip per member all know all, and a report brings the controller a
picture of the ring.

A member that was not run for a while (a frozen process, a long pause) suspects itself first: it
starts a new deadline before it reports any other.

Where answers come late now and then, as on a busy machine, the deadline is longer: ``SLACK`` times
the longest gap between two of the last answers, but at most ``RAISED_MAX`` deadlines.

A ring of one has no member to ping; then only the
controller's own leases watch.  Follows Section 4.1 of the DADSTORM paper; loads are its Section 7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["Load", "RingEffect", "RingMember", "SendPing", "SendPong", "TellSilence"]

GAPS = 100
"""Number of gaps between answers that are remembered."""
SLACK = 2
RAISED_MAX = 4


class Load(NamedTuple):
    """What a member had to do at its n-th beat."""

    beat: int
    amount: int


class SendPing(NamedTuple):
    """Ask a member whether it lives."""

    to: int
    beat: int
    loads: Mapping[int, Load]


class SendPong(NamedTuple):
    """Answer a ping."""

    to: int
    beat: int
    loads: Mapping[int, Load]


class TellSilence(NamedTuple):
    """Tell the controller that a member is silent."""

    host: int
    silent_ms: int
    loads: Mapping[int, Load]


RingEffect = SendPing | SendPong | TellSilence


class RingMember:
    """One member's part in the ring.

    >>> one = RingMember(1, interval_ms=50, deadline_ms=150)
    >>> one.rewired(2, now_ms=0)
    >>> [effect.to for effect in one.time_passed(0, load=3)]
    [2]
    >>> effects = [one.time_passed(now, load=3) for now in (50, 100, 150)]
    >>> effects[-1][-1].host, effects[-1][-1].silent_ms
    (2, 150)
    """

    def __init__(self, host: int, interval_ms: int, deadline_ms: int) -> None:
        self.host = host
        self.next: int | None = None
        self.loads: dict[int, Load] = {}
        self._interval_ms = interval_ms
        self._deadline_ms = deadline_ms
        self._beat = 0
        self._heard_ms = 0
        self._pinged_ms: int | None = None
        self._ran_ms = 0
        self._gaps_ms: deque[int] = deque(maxlen=GAPS)

    @property
    def timing(self) -> tuple[int, int]:
        """The interval and the deadline that it was given."""
        return self._interval_ms, self._deadline_ms

    @property
    def deadline_ms(self) -> int:
        """How long the next one may be silent now."""
        usual_ms = SLACK * max(self._gaps_ms, default=0)
        return max(self._deadline_ms, min(usual_ms, RAISED_MAX * self._deadline_ms))

    def rewired(self, next_: int | None, now_ms: int) -> None:
        """The controller says who is next; None: the ring has no other member."""
        if next_ != self.next:
            self.next, self._heard_ms, self._pinged_ms = next_, now_ms, None
            self._ran_ms = now_ms
            self._gaps_ms.clear()

    def time_passed(self, now_ms: int, load: int) -> list[RingEffect]:
        """Called at least once an interval, with the member's load."""
        slept = now_ms - self._ran_ms >= self._deadline_ms
        self._ran_ms = now_ms
        if self.next is None:
            return []
        if slept:
            self._heard_ms = now_ms
        effects: list[RingEffect] = []
        if self._pinged_ms is None or now_ms - self._pinged_ms >= self._interval_ms:
            self._pinged_ms = now_ms
            self._beat += 1
            self.loads[self.host] = Load(self._beat, load)
            effects.append(SendPing(self.next, self._beat, dict(self.loads)))
        silent_ms = now_ms - self._heard_ms
        if silent_ms >= self.deadline_ms:
            self._heard_ms = now_ms
            effects.append(TellSilence(self.next, silent_ms, dict(self.loads)))
        return effects

    def pinged(
        self, sender: int, beat: int, loads: Mapping[int, Load], load: int
    ) -> list[RingEffect]:
        """Another member asks."""
        self._learn(loads)
        self.loads[self.host] = Load(self._beat, load)
        return [SendPong(sender, beat, dict(self.loads))]

    def ponged(self, sender: int, loads: Mapping[int, Load], now_ms: int) -> None:
        """The next one lives."""
        self._learn(loads)
        if sender == self.next:
            self._gaps_ms.append(now_ms - self._heard_ms)
            self._heard_ms = now_ms

    def _learn(self, loads: Mapping[int, Load]) -> None:
        for host, load in loads.items():
            if host == self.host:
                continue
            known = self.loads.get(host)
            if known is None or load.beat >= known.beat:
                self.loads[host] = load
