"""Nodes go home: what others took over goes back to the host that came in a lost one's place.

    away --home is up, and all is quiet, for a while--> SAVING --saved--> moved, by a recovery

Saving first keeps the move short: what is worked on again is what came since.  A move is a recovery
of nodes that live (:mod:`.recovery_moves`), so a death in the middle of it is just one more loss.

Nothing is moved while anything recovers, or while the flow stops; nor where a move could lose or
double rows (stages that promise less than exactly once, and what is connected with them), nor where
everybody would have to go back for it (``GlobalCheckpoint``, ``recovery="purge"``).  A home that
is lost again soon after a move has to be up for twice as long before the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.core.progress.marks import EPOCH_END
from penstock.engine.spark.followers import Followers
from penstock.engine.spark.recovery import Recovery
from penstock.engine.spark.roster import Roster

__all__ = ["Reinstatement"]

LOOK_S = 0.1
SETTLE_S = 1.0
"""So long a new host must be up before anything goes there."""
SETTLE_MAX_S = 60.0
SAVE_S = 2.0
"""So long a checkpoint may take; without one more is worked on again."""

Figures = Mapping[int, Mapping[str, Any]]


@dataclass
class _Saving:
    """Nodes that save their state before they go."""

    places: dict[int, int]
    until_s: float


class Reinstatement:
    """Decides when nodes go home; asked now and then, in the controller's thread."""

    def __init__(
        self,
        recovery: Recovery,
        roster: Roster,
        figures: Callable[[], Figures],
        followers: Followers | None,
    ) -> None:
        self._recovery = recovery
        self._roster = roster
        self._figures = figures
        self._followers = followers
        self._since_s: dict[int, float] = {}
        """When hosts that nodes want to go to were first seen ready."""
        self._waits_s: dict[int, tuple[float, float]] = {}
        """Per place among the workers: how long a host must be up there, and until when."""
        self._saving: _Saving | None = None
        self._look_s = 0.0
        graph = recovery.graph
        lax = {graph.regions[node] for node in graph.untraced}
        self._movable = frozenset(n for n in graph.kinds if graph.regions[n] not in lax)

    def look(self, now_s: float) -> None:
        """Go one step, if it is time for one."""
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        places = self._due(now_s) if self._recovery.settled else {}
        saving = self._saving
        if not places:
            self._give_up_saving()
        elif saving is None or saving.places != places:
            self._save(places, now_s)
        elif now_s >= saving.until_s or self._is_saved(places):
            self._go(places, now_s)

    def _due(self, now_s: float) -> dict[int, int]:
        """The nodes that could go home now, and where that is."""
        placement, roster = self._recovery.placement, self._roster
        away = {
            node: home
            for node, home in roster.homes.items()
            if placement[node] != home and home in roster.assigned and node in self._movable
        }
        homes = set(away.values())
        self._since_s = {home: self._since_s.get(home, now_s) for home in sorted(homes)}
        ready = {home for home in homes if now_s - self._since_s[home] >= self._wait_s(home, now_s)}
        if not ready or any(one["epoch"] >= EPOCH_END for one in self._figures().values()):
            return {}
        return {node: home for node, home in away.items() if home in ready}

    def _wait_s(self, home: int, now_s: float) -> float:
        wait_s, until_s = self._waits_s.get(self._roster.workers.index(home), (SETTLE_S, now_s))
        return wait_s if now_s < until_s else SETTLE_S

    def _give_up_saving(self) -> None:
        """Something else comes first; everything begins anew afterwards."""
        saving, self._saving = self._saving, None
        if saving is not None and self._followers is not None:
            for home in sorted(set(saving.places.values())):
                self._followers.end(home)

    def _save(self, places: dict[int, int], now_s: float) -> None:
        self._saving = _Saving(places, now_s + SAVE_S)
        self._recovery.ask_checkpoints_now(places)
        if self._followers is not None:
            for home in sorted(set(places.values())):
                self._followers.begin(home, [n for n, at in places.items() if at == home])

    def _is_saved(self, places: Mapping[int, int]) -> bool:
        followers = self._followers
        current = followers is None or all(map(followers.is_current, set(places.values())))
        return current and self._recovery.have_answered(places)

    def _go(self, places: Mapping[int, int], now_s: float) -> None:
        self._saving = None
        homes = sorted(set(places.values()))
        for home in homes:
            wait_s = min(2 * self._wait_s(home, now_s), SETTLE_MAX_S)
            place = self._roster.workers.index(home)
            self._waits_s[place] = (wait_s, now_s + 2 * SETTLE_MAX_S)
            if self._followers is not None:
                self._followers.end(home)
        names = " and ".join(map(str, homes))
        self._recovery.move(places, f"host {names} is up: its nodes go home")
