"""What nodes of a simulated run are told, beside what the recovery machine says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.core.control.recovery import OpenEdge
from penstock.core.control.retention import Low
from penstock.testing.simulator.hosts import Every

__all__ = ["Fence", "KeepLog", "NodeOrder", "Resume"]


class Resume(NamedTuple):
    """Tell a node that all nodes have a checkpoint."""

    epoch: int


class Fence(NamedTuple):
    """Tell a node of a host which nodes have new incarnations."""

    round: int
    host: int
    incarnations: Mapping[int, int]


class KeepLog(NamedTuple):
    """Tell a node whether it keeps a log of what it sent."""

    logged: bool


NodeOrder = OpenEdge | Resume | Every | Fence | Low | KeepLog
