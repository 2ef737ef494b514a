"""Mutants of the membership: which hosts belong to a flow, and where its nodes go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from penstock.core.control.membership_events import FenceHost, RecoverNodes
from penstock.testing.mutants.mutant import Flows, Mutant, Replacement, mutant

__all__ = ["MEMBERSHIP"]

_MACHINE = "penstock.core.control.membership:MembershipMachine"


@mutant(
    "the driver refuses a host that it has given up (14)",
    f"{_MACHINE}._lose",
    flows=Flows.MIXED_ROUGH,
    seed=163,
)
def hears_the_lost(real: Replacement, *args: Any, **more: Any) -> list[Any]:
    return [effect for effect in real(*args, **more) if not isinstance(effect, FenceHost)]


@mutant("the nodes of a lost host are recovered", f"{_MACHINE}._lose", flows=Flows.ROUGH)
def recovers_no_nodes(real: Replacement, *args: Any, **more: Any) -> list[Any]:
    return [effect for effect in real(*args, **more) if not isinstance(effect, RecoverNodes)]


@mutant(
    "the heir of a lost host takes its nodes",
    "penstock.core.control.placement:Placement.lost",
    flows=Flows.ROUGH,
)
def places_nodes_on_the_lost(
    real: Replacement, self: Any, host: int, fresh: int, nodes: Iterable[int], now_ms: int
) -> Any:
    placed = real(self, host, fresh, nodes, now_ms)
    return replace(placed, takers=dict.fromkeys(placed.takers, host))


@mutant(
    "a host is launched in the place of a lost one",
    "penstock.core.control.launches:Launches.due",
    flows=Flows.ROUGH,
    seed=1,
)
def launches_no_host(real: Replacement, *_: Any) -> list[int]:
    return []


MEMBERSHIP: tuple[Mutant, ...] = tuple(one for one in globals().values() if isinstance(one, Mutant))
