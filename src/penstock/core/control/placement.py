"""Where the nodes of a lost host go.

Theory of operation
-------------------
A lost worker's nodes are placed at once, on the first of these that exists:

1. the spare that steps into the lost worker's place;
2. workers that live, chosen by the flow's :class:`~penstock.core.delivery.takeover.Takeover`;
3. the fresh host that is launched in its place: the nodes then wait for a process to come up.

Loads decide between workers where the policy asks for them.  They travel round the ring, each with
the beat at which it was measured, so that an old figure never replaces a new one.

Nodes on a spare or a fresh host are at home there; nodes on other workers go home later
(:mod:`.homecoming`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.core.control.roster import Roster
from penstock.core.delivery.ring import Load
from penstock.core.delivery.takeover import Takeover, takers

__all__ = ["Placed", "Placement"]


@dataclass(frozen=True)
class Placed:
    """Where everything of a lost host goes."""

    takers: Mapping[int, int]
    """Per node of the lost host: the host that takes it."""
    heir: int | None
    """The host in the lost worker's place; None: a spare was lost."""


class Placement:
    """Chooses takers.

    >>> roster = Roster(3, standby=0)
    >>> roster.assigned |= {1, 2, 3}
    >>> placement = Placement(roster, Takeover.LEAST_LOADED)
    >>> placement.measured({2: Load(1, 90), 3: Load(1, 10)})
    >>> placement.lost(1, roster.new_number(), nodes=[7, 8], now_ms=0)
    Placed(takers={7: 3, 8: 3}, heir=4)
    """

    def __init__(self, roster: Roster, takeover: Takeover) -> None:
        self._roster = roster
        self._takeover = takeover
        self._loads: dict[int, Load] = {}

    def measured(self, loads: Mapping[int, Load]) -> None:
        """How busy some hosts were at some beat."""
        for host, load in loads.items():
            if host in self._roster.hosts and load.beat >= self._loads.get(host, Load(-1, 0)).beat:
                self._loads[host] = load

    def lost(self, host: int, fresh: int, nodes: list[int], now_ms: int) -> Placed:
        """Replace a lost host in the roster and choose who takes its nodes."""
        roster = self._roster
        self._loads.pop(host, None)
        place = roster.workers.index(host) if host in roster.workers else None
        spare = roster.replace(host, fresh, now_ms)
        heir = None if place is None else roster.workers[place]
        if spare is not None:
            return Placed(dict.fromkeys(nodes, spare), heir)
        alive = [] if place is None else roster.survivors(fresh)
        found = takers(nodes, alive, self._takeover, self._load_of)
        return Placed(found or dict.fromkeys(nodes, fresh), heir)

    def _load_of(self, host: int) -> int:
        return self._loads.get(host, Load(0, 0)).amount
