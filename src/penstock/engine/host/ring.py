"""A host's place in the ring: a thread beside the loop that pings the next host.

The loop may be busy in a user's function for a while; this thread and those of the channels are
not, so a host that works answers, and one that is frozen does not.  What to say and when is decided
by :class:`penstock.core.delivery.ring.RingMember`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import assert_never

from penstock.core.control.host_orders import WatchNext
from penstock.core.control.host_reports import NextFellSilent
from penstock.core.control.messages import RingPing, RingPong
from penstock.core.delivery.ring import (
    Load,
    RingEffect,
    RingMember,
    SendPing,
    SendPong,
    TellSilence,
)
from penstock.engine.host.host import Host

__all__ = ["Ring"]

TICKS = 4
"""How often the thread looks in an interval; a deadline is noticed at most one look late."""

Tell = Callable[[NextFellSilent], None]


class Ring:
    """Pings the next host, answers the one before, and tells the controller of silence."""

    def __init__(self, host: Host, tell: Tell) -> None:
        self._host = host
        self._tell = tell
        self._lock = threading.Lock()
        self._member: RingMember | None = None
        self._interval_s = 0.0
        self._busy = (time.monotonic(), 0)
        self._load = 0
        self._thread: threading.Thread | None = None
        self.frozen = False
        """For drills with hosts that are threads: it neither asks nor answers."""

    def take(self, peer: int, message: WatchNext | RingPing | RingPong) -> None:
        """A message of the ring's; called by the threads of channels."""
        if self.frozen:
            return
        effects: list[RingEffect] = []
        with self._lock:
            member = self._member
            match message:
                case WatchNext():
                    self._rewired(message)
                case RingPing():
                    if member is not None:
                        effects = member.pinged(peer, message.beat, message.loads, self._load)
                case RingPong():
                    if member is not None:
                        member.ponged(peer, message.loads, _now_ms())
                case _:
                    assert_never(message)
        self._perform(effects)

    def loads(self) -> dict[int, Load]:
        """What is known of the load of every host."""
        with self._lock:
            return {} if self._member is None else dict(self._member.loads)

    def _rewired(self, order: WatchNext) -> None:
        for peer, address in order.near.items():
            self._host.transport.connect(peer, address)
        if self._member is None or self._member.timing != (order.interval_ms, order.timeout_ms):
            self._member = RingMember(self._host.number, order.interval_ms, order.timeout_ms)
            self._interval_s = order.interval_ms / 1000
        self._member.rewired(order.next, _now_ms())
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-ring", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._host.ended.wait(self._interval_s / TICKS):
            if self.frozen:
                continue
            self._weigh()
            with self._lock:
                member = self._member
                effects = [] if member is None else member.time_passed(_now_ms(), self._load)
            self._perform(effects)

    def _weigh(self) -> None:
        """How busy the nodes are: thousandths of the time since the last look, smoothed."""
        now = time.monotonic()
        before, busy_ns = self._busy
        if now - before < self._interval_s:
            return
        total = sum(runner.busy_ns for runner in list(self._host.nodes.values()))
        share = max(0, total - busy_ns) / ((now - before) * 1e9)
        self._load = round(0.8 * self._load + 200 * min(1.0, share))
        self._busy = (now, total)

    def _perform(self, effects: Iterable[RingEffect]) -> None:
        for effect in effects:
            match effect:
                case TellSilence():
                    self._tell(NextFellSilent(effect.host, effect.silent_ms, effect.loads))
                case SendPing():
                    self._send(effect.to, RingPing(effect.beat, effect.loads))
                case SendPong():
                    self._send(effect.to, RingPong(effect.beat, effect.loads))
                case _:
                    assert_never(effect)

    def _send(self, to: int, message: RingPing | RingPong) -> None:
        if self._host.transport.outgoing(to) is not None:
            self._host.transport.control(to, message)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
