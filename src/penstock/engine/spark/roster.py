"""The hosts of a flow: which there are, which stand by, and who comes in a lost one's place."""

from __future__ import annotations

import socket
import time
from typing import Any
from urllib.parse import urlsplit

from penstock.engine.spark.host_task import SLOTS

__all__ = ["HostInfo", "Roster", "is_gone"]

PROBE_S = 0.5


class HostInfo:
    """What the controller knows of a host."""

    def __init__(self, number: int, slot: int) -> None:
        self.number = number
        self.slot = slot
        self.address = ""
        self.pid: int | None = None
        self.heard_s = time.monotonic()
        self.silent_ms = 0.0
        """Since when it has been silent, as far as another host says so."""
        self.figures: dict[int, dict[str, Any]] = {}


class Roster:
    """Numbers of hosts; every process has one of its own.

    >>> roster = Roster(2, standby=1)
    >>> sorted(roster.hosts), roster.spares, roster.workers
    ([1, 2, 3], [3], [1, 2])
    >>> roster.assigned.add(3)
    >>> roster.replace(1, roster.new_number()), roster.spares
    (3, [4])
    >>> roster.workers
    [3, 2]
    """

    def __init__(self, hosts: int, standby: int) -> None:
        self.workers = list(range(1, hosts + 1))
        self.spares = list(range(hosts + 1, hosts + 1 + standby))
        self.hosts = {n: HostInfo(n, n) for n in (*self.workers, *self.spares)}
        self.assigned: set[int] = set()
        """Hosts that can take nodes."""
        self.homes: dict[int, int] = {}
        """Per node: the host that it belongs to, wherever it is now."""
        self._slots = len(self.hosts)

    def new_number(self) -> int:
        """A number that nobody has had."""
        self._slots += 1
        return self._slots

    def add(self, number: int) -> HostInfo:
        """A host that comes up."""
        info = self.hosts[number] = HostInfo(number, number % SLOTS)
        return info

    def of_slot(self, slot: int) -> HostInfo | None:
        """The present host of a slot."""
        return next((info for info in self.hosts.values() if info.slot == slot), None)

    def replace(self, number: int, fresh: int) -> int | None:
        """A host is gone and another one comes up; give the spare that takes its place at once.

        The new host then becomes the spare.  None: no spare is ready, or the host was one.
        """
        self.hosts.pop(number, None)
        self.assigned.discard(number)
        self.add(fresh)
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
        """Who can take nodes: in the order of the ring, beginning behind a worker."""
        place = self.workers.index(after)
        ring = (*self.workers[place + 1 :], *self.workers[:place])
        return [host for host in ring if host in self.assigned and host in self.hosts]

    def ring(self) -> list[int]:
        """Who watches whom: everybody that can take nodes, each the one that follows."""
        members = (*self.workers, *self.spares)
        return [host for host in members if host in self.assigned and host in self.hosts]


def is_gone(address: str) -> bool:
    """Whether nobody listens at an address any more: then the process has ended."""
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=PROBE_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
