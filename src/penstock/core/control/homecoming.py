"""When nodes go home: what others took over returns to the host in the lost one's place.

Theory of operation
-------------------
    AWAY --home has been up for a while, and nothing recovers--> SAVING --saved--> MOVED
            ^------ a loss, a stop, or another set of nodes ------'

- Saving first keeps the move short: only what came since the checkpoint is worked on again.  It may
  take ``SAVE_MS``; then the nodes move without it.
- A move is a recovery of nodes that live, so a death in the middle of it is one more loss.
- A new home must have been up for ``SETTLE_MS``.  A home that is lost soon after a move must be up
  for twice as long before the next one, up to ``SETTLE_MS_MAX``: a machine that keeps dying should
  not be given work again and again.

Nodes stay where they are while anything recovers, while the flow ends, where a move could lose or
double rows (stages that promise less than exactly once, and all that is connected with them), and
where all nodes would have to go back for it.  The first two are in :class:`Situation`, the third in
``movable``; for the fourth the flow is never ``settled``.

How it is driven: call :meth:`Homecoming.look` whenever :meth:`Homecoming.is_due`, and perform what
it returns.  ``Situation.saved`` is about the nodes in :attr:`Homecoming.saving`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.control.membership_events import (
    FollowNodes,
    MembershipEffect,
    MoveNodes,
    SaveNodes,
    Situation,
    StopFollowing,
)
from penstock.core.control.roster import Roster

__all__ = ["LOOK_MS", "SAVE_MS", "SETTLE_MS", "SETTLE_MS_MAX", "Homecoming"]

LOOK_MS = 100
SETTLE_MS = 1_000
"""How long a new host must be up before nodes go there."""
SETTLE_MS_MAX = 60_000
SAVE_MS = 2_000
"""How long a checkpoint before a move may take."""


@dataclass(frozen=True)
class _Wait:
    """How long the host at a worker's place must be up, until this rule expires."""

    wait_ms: int
    until_ms: int


class Homecoming:
    """Decides when nodes move, and where to.

    >>> roster = Roster(2, standby=0)
    >>> roster.homes, roster.assigned = {7: 1, 8: 2}, {1, 2}
    >>> homecoming = Homecoming(roster, {7: 2, 8: 2}, movable=frozenset({7, 8}))
    >>> quiet = Situation(settled=True, ending=False, saved=True)
    >>> homecoming.look(quiet, now_ms=0, cause=1), homecoming.look(quiet, now_ms=1_000, cause=2)
    ([], [SaveNodes(cause=2, nodes=(7,)), FollowNodes(cause=2, host=1, nodes=(7,))])
    >>> homecoming.look(quiet, now_ms=1_100, cause=3)[-1]
    MoveNodes(cause=3, places={7: 1}, reason='host 1 is up: its nodes go home')
    """

    def __init__(
        self, roster: Roster, placement: Mapping[int, int], movable: frozenset[int]
    ) -> None:
        self.saving: Mapping[int, int] = {}
        """Nodes that save their state before they go, and where they go."""
        self._roster = roster
        self._placement = placement
        self._movable = movable
        self._save_until_ms = 0
        self._since_ms: dict[int, int] = {}
        """When hosts that nodes want to go to were first seen ready."""
        self._waits: dict[int, _Wait] = {}
        """Per place among the workers."""
        self._look_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time for another look."""
        return now_ms >= self._look_ms

    def look(self, situation: Situation, now_ms: int, cause: int) -> list[MembershipEffect]:
        """Take one step."""
        self._look_ms = now_ms + LOOK_MS
        places = self._due(situation, now_ms) if situation.settled else {}
        if not places:
            return self._stop_saving(cause)
        if self.saving != places:
            return [*self._stop_saving(cause), *self._save(places, now_ms, cause)]
        if now_ms >= self._save_until_ms or situation.saved:
            return self._go(places, now_ms, cause)
        return []

    def _due(self, situation: Situation, now_ms: int) -> dict[int, int]:
        """The nodes that could go home now, and where that is."""
        away = {
            node: home
            for node, home in self._roster.homes.items()
            if node in self._movable
            and self._placement[node] != home
            and home in self._roster.assigned
        }
        homes = sorted(set(away.values()))
        self._since_ms = {home: self._since_ms.get(home, now_ms) for home in homes}
        if situation.ending:
            return {}
        ready = {
            home for home in homes if now_ms - self._since_ms[home] >= self._wait_ms(home, now_ms)
        }
        return {node: home for node, home in away.items() if home in ready}

    def _wait_ms(self, home: int, now_ms: int) -> int:
        wait = self._waits.get(self._roster.workers.index(home))
        return SETTLE_MS if wait is None or now_ms >= wait.until_ms else wait.wait_ms

    def _stop_saving(self, cause: int) -> list[MembershipEffect]:
        """Something else comes first; everything begins anew afterwards."""
        homes = _homes(self.saving)
        self.saving = {}
        return [StopFollowing(cause, homes)] if homes else []

    def _save(self, places: Mapping[int, int], now_ms: int, cause: int) -> list[MembershipEffect]:
        self.saving, self._save_until_ms = places, now_ms + SAVE_MS
        follow: list[MembershipEffect] = [
            FollowNodes(cause, home, tuple(node for node, at in places.items() if at == home))
            for home in _homes(places)
        ]
        return [SaveNodes(cause, tuple(places)), *follow]

    def _go(self, places: Mapping[int, int], now_ms: int, cause: int) -> list[MembershipEffect]:
        homes = _homes(places)
        for home in homes:
            wait_ms = min(2 * self._wait_ms(home, now_ms), SETTLE_MS_MAX)
            place = self._roster.workers.index(home)
            self._waits[place] = _Wait(wait_ms, now_ms + 2 * SETTLE_MS_MAX)
        names = " and ".join(map(str, homes))
        reason = f"host {names} is up: its nodes go home"
        return [*self._stop_saving(cause), MoveNodes(cause, places, reason)]


def _homes(places: Mapping[int, int]) -> tuple[int, ...]:
    return tuple(sorted(set(places.values())))
