"""A host's place in the ring: a thread beside the loop that pings the next host.

The loop may be busy in somebody's function for a while; this thread and those of the channels are
not, so a host that works answers, and one that is frozen does not.  What to say and when is decided
by :class:`penstock.core.delivery.ring.RingMember`.

    {"kind": "ring", "next": 3, "near": {2: address, 3: address}, …}   from the controller
    {"kind": "ring ping", "beat": 7, "loads": {...}}                   to the next one
    {"kind": "ring pong", "beat": 7, "loads": {...}}                   and back
    {"kind": "silent", "host": 3, "silent_ms": 210, "loads": {...}}    to the controller
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.core.delivery.ring import Load, Report, RingEffect, RingMember, SendPing
from penstock.engine.host import Host

__all__ = ["RING_KINDS", "Ring", "plain_loads", "read_loads"]

RING_KINDS = frozenset({"ring", "ring ping", "ring pong"})
TICKS = 4
"""The thread looks so often in an interval: a deadline is noticed that much later at most."""

Tell = Callable[[dict[str, Any]], None]


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

    def take(self, peer: int, body: dict[str, Any]) -> None:
        """A message of the ring's; called by the threads of channels."""
        if self.frozen:
            return
        kind = body["kind"]
        with self._lock:
            if kind == "ring":
                self._rewired(body)
                return
            member = self._member
            if member is None:
                return
            loads = read_loads(body["loads"])
            effects: list[RingEffect] = []
            if kind == "ring ping":
                effects = member.pinged(peer, body["beat"], loads, self._load)
            else:
                member.ponged(peer, loads, _now_ms())
        self._perform(effects)

    def loads(self) -> dict[int, list[int]]:
        """What is known of everybody's load."""
        with self._lock:
            return {} if self._member is None else plain_loads(self._member.loads)

    def _rewired(self, body: dict[str, Any]) -> None:
        for peer, address in body["near"].items():
            self._host.transport.connect(peer, address)
        if self._member is None or self._member.timing != (body["interval_ms"], body["timeout_ms"]):
            self._member = RingMember(self._host.number, body["interval_ms"], body["timeout_ms"])
            self._interval_s = body["interval_ms"] / 1000
        self._member.rewired(body["next"], _now_ms())
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
            loads = plain_loads(effect.loads)
            if isinstance(effect, Report):
                self._tell(
                    {
                        "kind": "silent",
                        "host": effect.host,
                        "silent_ms": effect.silent_ms,
                        "loads": loads,
                    }
                )
                continue
            kind = "ring ping" if isinstance(effect, SendPing) else "ring pong"
            if self._host.transport.outgoing(effect.to) is not None:
                body = {"kind": kind, "beat": effect.beat, "loads": loads}
                self._host.transport.control(effect.to, body)


def plain_loads(loads: Mapping[int, Load]) -> dict[int, list[int]]:
    """Loads for the wire."""
    return {host: [load.beat, load.amount] for host, load in loads.items()}


def read_loads(plain: Mapping[int, Any]) -> dict[int, Load]:
    """Loads from the wire."""
    return {host: Load(int(beat), int(amount)) for host, (beat, amount) in plain.items()}


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
