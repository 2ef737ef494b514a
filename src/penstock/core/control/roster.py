"""The hosts of a flow: their numbers, which work, which stand by, which replaces which.

Theory of operation
-------------------
A *slot* is a place that one job of the cluster manager fills.  The manager may run a job's task
several times; each attempt is a process of its own and gets a number of its own:

    number = slot + attempt * SLOTS

So a number names one process for ever, and what a process said under an old number is never taken
for the word of its successor.  Slots are never used again either: a host that is launched because
another one was lost gets a new slot.

    launched --registered--> up --ready--> assigned --lost--> gone, a fresh number in its place

- *Workers* run nodes.  Their order is the order of the ring and fixes who follows whom.
- *Spares* are up and run no nodes.  When a worker is lost, the first spare that is ready takes its
  place at once, and the fresh host becomes the spare.
- A node's *home* is the worker that it was planned for, or that worker's replacement.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DRIVER", "SLOTS", "Roster", "RosterEntry", "is_retry"]

DRIVER = 0
"""The number of the driver's own host."""
SLOTS = 10_000
"""The distance between the numbers of two attempts of one task."""


def is_retry(number: int) -> bool:
    """Whether a number is that of a later attempt, which the cluster manager makes by itself."""
    return number >= SLOTS


@dataclass
class RosterEntry:
    """What is known of a host."""

    number: int
    slot: int
    heard_ms: int
    """When the driver heard from it last."""
    address: str = ""
    """Where it listens; empty until it has registered."""
    pid: int | None = None
    silent_since_ms: int = 0
    """When its present silence began, according to the host that watches it."""


class Roster:
    """Numbers, workers, spares and homes.

    >>> roster = Roster(2, standby=1)
    >>> sorted(roster.hosts), roster.spares, roster.workers
    ([1, 2, 3], [3], [1, 2])
    >>> roster.assigned.add(3)
    >>> roster.replace(1, roster.new_number(), now_ms=0), roster.spares
    (3, [4])
    >>> roster.workers
    [3, 2]
    """

    def __init__(self, hosts: int, standby: int, now_ms: int = 0) -> None:
        self.workers = list(range(1, hosts + 1))
        self.spares = list(range(hosts + 1, hosts + 1 + standby))
        self.hosts = {n: RosterEntry(n, n, now_ms) for n in (*self.workers, *self.spares)}
        self.assigned: set[int] = set()
        """Hosts that can take nodes."""
        self.homes: dict[int, int] = {}
        """Per node: the host that it belongs to, wherever it runs now."""
        self._slots = len(self.hosts)

    def new_number(self) -> int:
        """A number, and a slot, that no host has had."""
        self._slots += 1
        return self._slots

    def add(self, number: int, now_ms: int) -> RosterEntry:
        """A host is about to come up."""
        member = self.hosts[number] = RosterEntry(number, number % SLOTS, now_ms)
        return member

    def of_slot(self, slot: int) -> RosterEntry | None:
        """The present host of a slot."""
        return next((one for one in self.hosts.values() if one.slot == slot), None)

    def replace(self, number: int, fresh: int, now_ms: int) -> int | None:
        """Put a fresh host in the place of a lost one; give the spare that steps in at once.

        None: no spare is ready, or the lost host was a spare itself.
        """
        self.hosts.pop(number, None)
        self.assigned.discard(number)
        self.add(fresh, now_ms)
        if number in self.spares:
            self.spares[self.spares.index(number)] = fresh
            return None
        spare = next((spare for spare in self.spares if spare in self.assigned), None)
        if spare is not None:
            self.spares[self.spares.index(spare)] = fresh
        heir = fresh if spare is None else spare
        self.workers[self.workers.index(number)] = heir
        self.homes = {n: heir if at == number else at for n, at in self.homes.items()}
        return spare

    def survivors(self, after: int) -> list[int]:
        """The workers that can take nodes, in the order of the ring, beginning behind one."""
        place = self.workers.index(after)
        ring = (*self.workers[place + 1 :], *self.workers[:place])
        return [host for host in ring if host in self.assigned and host in self.hosts]

    def ring(self) -> list[int]:
        """The hosts that watch each other: every one that can take nodes watches the next."""
        members = (*self.workers, *self.spares)
        return [host for host in members if host in self.assigned and host in self.hosts]
