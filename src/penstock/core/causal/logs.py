"""What a node remembers for others: diffs of what it received, payloads of what it sent.

The **diff log** holds the diffs above the watermark; older ones are folded into one fact per edge
of the graph ("when X had made x it had handled Y up to y"): the thesis's min clock.  Law, for every
edge: the newest of (facts + diffs) is what the max clock says.

The **payload log** holds references to what was sent, per child, and hands out what lies beyond a
position.  It counts bytes; past its budget it says which payloads to move out of memory, oldest
first, and goes on with the references that it gets back.  It never forgets the newest mark at or
before what was truncated, per child and link: who starts behind it must be told of its watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import Diff, pairs
from penstock.core.causal.times import Stamp
from penstock.core.machine.messages import MARK
from penstock.core.time import Time

__all__ = ["Bundle", "DiffLog", "Fact", "Part", "PayloadLog", "Spilled"]


class Fact(NamedTuple):
    """When ``node`` had made ``stamp`` it had handled ``parent`` up to ``handled``."""

    node: int
    stamp: Stamp
    parent: int
    handled: Stamp


@dataclass
class DiffLog:
    """The diffs of everything that a node received and that a plan could ask for.

    >>> from penstock.core.causal.diffs import Link
    >>> log = DiffLog()
    >>> log.append((Link(2, (1,), 0), Link(1, (3,), 0)))
    >>> log.append((Link(2, (2,), 1), Link(1, (5,), 1)))
    >>> log.compact(0)
    >>> log.facts, len(log.diffs)
    ((Fact(node=2, stamp=(1,), parent=1, handled=(3,)),), 1)
    """

    diffs: list[Diff] = field(default_factory=list)
    minimum: dict[tuple[int, int], Fact] = field(default_factory=dict)

    def append(self, diff: Diff) -> None:
        """Remember the diff of a message that was handled."""
        self.diffs.append(diff)

    def compact(self, epoch: int) -> None:
        """Fold what belongs to epochs up to this one into facts."""
        kept = []
        for diff in self.diffs:
            if diff[0].epoch > epoch:
                kept.append(diff)
                continue
            for link, made_from in pairs(diff):
                if made_from is None or made_from.node < 0:
                    continue
                key = (link.node, made_from.node)
                fact = Fact(link.node, link.stamp, made_from.node, made_from.stamp)
                if key not in self.minimum or self.minimum[key].stamp < fact.stamp:
                    self.minimum[key] = fact
        self.diffs = kept

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The min clock."""
        return tuple(self.minimum[key] for key in sorted(self.minimum))


class Part(NamedTuple):
    """One message of a step to one child, before it is numbered for a connection."""

    kind: int
    link: int
    time: Time
    watermark_us: int | None = None
    cut_us: int = 0
    payload: object = None
    size: int = 0


class Bundle(NamedTuple):
    """All that one step sends one child: received whole or not at all."""

    stamp: Stamp
    diff: Diff
    parts: tuple[Part, ...]


@dataclass
class _Outgoing:
    bundles: list[Bundle] = field(default_factory=list)
    cursor: int = 0
    """How many of the bundles were sent (or passed over) on the present connection."""
    floor: Floor = field(default_factory=Floor)


class PayloadLog:
    """What a node sent to each child and may have to send again."""

    def __init__(self, children: Iterable[int], budget_bytes: int | None = None) -> None:
        self._outgoing = {child: _Outgoing() for child in children}
        self.budget_bytes = budget_bytes
        self.bytes = 0
        """Size of what is logged, in memory or not."""
        self.memory_bytes = 0

    def append(self, child: int, bundle: Bundle) -> None:
        """Log what a step sends a child."""
        self._outgoing[child].bundles.append(bundle)
        size = sum(part.size for part in bundle.parts)
        self.bytes += size
        self.memory_bytes += size

    def rewind(self, child: int) -> None:
        """Start over on a new connection."""
        self._outgoing[child].cursor = 0

    def take(self, child: int) -> Bundle | None:
        """The next bundle that was not sent on this connection, if there is one."""
        outgoing = self._outgoing[child]
        if outgoing.cursor == len(outgoing.bundles):
            return None
        return outgoing.bundles[outgoing.cursor]

    def taken(self, child: int) -> None:
        """The bundle that :meth:`take` gave is on its way, or need not go."""
        self._outgoing[child].cursor += 1

    def floors(self) -> dict[int, Floor]:
        """How far back the log reaches, per child."""
        return {child: self._outgoing[child].floor for child in sorted(self._outgoing)}

    def set_floor(self, child: int, floor: Floor) -> None:
        """A restarted node's log begins here."""
        self._outgoing[child].floor = floor

    def truncate(self, child: int, position: Position) -> None:
        """Forget what lies at or before a position that the child never goes back behind."""
        outgoing = self._outgoing[child]
        if not outgoing.floor.reaches(position):
            return
        horizon = max(outgoing.floor.horizon, position.epoch)
        newest: dict[int, int] = {}
        for bundle in outgoing.bundles:
            for part in bundle.parts:
                if part.kind == MARK and part.time.epoch <= position.epoch:
                    newest[part.link] = max(newest.get(part.link, -1), part.time.epoch)
        kept: list[Bundle] = []
        cursor = outgoing.cursor
        for number, bundle in enumerate(outgoing.bundles):
            if any(
                position.beyond(bundle.stamp, part.time.epoch, part.kind == MARK)
                for part in bundle.parts
            ):
                kept.append(bundle)
                continue
            horizon = max([horizon, *(part.time.epoch for part in bundle.parts)])
            self.bytes -= sum(part.size for part in bundle.parts)
            self.memory_bytes -= _in_memory(bundle)
            marks = tuple(
                part
                for part in bundle.parts
                if part.kind == MARK and newest.get(part.link) == part.time.epoch
            )
            if marks:
                kept.append(bundle._replace(parts=marks))
            elif number < outgoing.cursor:
                cursor -= 1
        outgoing.bundles, outgoing.cursor = kept, cursor
        outgoing.floor = Floor(position.stamp, position.epoch, horizon)

    def marks_at(self, child: int, epoch: int) -> dict[int, Part]:
        """Per link, the newest mark at or before an epoch."""
        found: dict[int, Part] = {}
        for bundle in self._outgoing[child].bundles:
            for part in bundle.parts:
                if part.kind == MARK and part.time.epoch <= epoch:
                    known = found.get(part.link)
                    if known is None or known.time.epoch < part.time.epoch:
                        found[part.link] = part
        return found

    def over_budget(self) -> list[tuple[int, Bundle]]:
        """(child, bundle) to move out of memory until the rest fits the budget, oldest first."""
        if self.budget_bytes is None or self.memory_bytes <= self.budget_bytes:
            return []
        excess = self.memory_bytes - self.budget_bytes
        chosen: list[tuple[int, Bundle]] = []
        candidates = sorted(
            (bundle.stamp, child, index)
            for child, outgoing in self._outgoing.items()
            for index, bundle in enumerate(outgoing.bundles[: outgoing.cursor])
            if _in_memory(bundle)
        )
        for _, child, index in candidates:
            if excess <= 0:
                break
            bundle = self._outgoing[child].bundles[index]
            excess -= _in_memory(bundle)
            chosen.append((child, bundle))
        return chosen

    def spilled(self, child: int, stamp: Stamp, references: tuple[object, ...]) -> None:
        """A bundle's payloads were moved out of memory; these are their references."""
        outgoing = self._outgoing[child]
        for index, bundle in enumerate(outgoing.bundles):
            if bundle.stamp != stamp or not _in_memory(bundle):
                continue
            self.memory_bytes -= _in_memory(bundle)
            parts = zip(bundle.parts, references, strict=True)
            outgoing.bundles[index] = bundle._replace(
                parts=tuple(
                    part._replace(payload=Spilled(reference)) if part.size else part
                    for part, reference in parts
                )
            )
            return

    def snapshot(self) -> dict[int, tuple[Bundle, ...]]:
        """The bundles of each child, for a checkpoint."""
        return {child: tuple(self._outgoing[child].bundles) for child in sorted(self._outgoing)}

    def restore(self, bundles: Mapping[int, tuple[Bundle, ...]]) -> None:
        """Take the log of a checkpoint."""
        for child, logged in bundles.items():
            for bundle in logged:
                self.append(child, bundle)


@dataclass(frozen=True)
class Spilled:
    """A payload that was moved out of memory; the engine reads it again before it sends it."""

    reference: object


def _in_memory(bundle: Bundle) -> int:
    return sum(part.size for part in bundle.parts if not isinstance(part.payload, Spilled))
