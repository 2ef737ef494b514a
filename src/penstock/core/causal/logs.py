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

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.core.causal.clocks import Floor, Position
from penstock.core.causal.diffs import Diff, pairs
from penstock.core.causal.times import ZERO, Stamp
from penstock.core.node.messages import MARK
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

    >>> from penstock.core.causal.diffs import DiffLink
    >>> log = DiffLog()
    >>> log.append((DiffLink(2, (1,), 0), DiffLink(1, (3,), 0)))
    >>> log.append((DiffLink(2, (2,), 1), DiffLink(1, (5,), 1)))
    >>> log.compact(0)
    >>> log.facts, len(log.diffs)
    ((Fact(node=2, stamp=(1,), parent=1, handled=(3,)),), 1)
    """

    diffs: deque[Diff] = field(default_factory=deque)
    """In the order of arrival."""
    minimum: dict[tuple[int, int], Fact] = field(default_factory=dict)

    def append(self, diff: Diff) -> None:
        """Remember the diff of a message that was handled."""
        self.diffs.append(diff)

    def compact(self, epoch: int) -> None:
        """Fold what belongs to epochs up to this one into facts, up to the first that does not."""
        while self.diffs and self.diffs[0][0].epoch <= epoch:
            for link, made_from in pairs(self.diffs.popleft()):
                if made_from is None or made_from.node < 0:
                    continue
                key = (link.node, made_from.node)
                fact = Fact(link.node, link.stamp, made_from.node, made_from.stamp)
                if key not in self.minimum or self.minimum[key].stamp < fact.stamp:
                    self.minimum[key] = fact

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
    """Bundles for one child, numbered in the order of the log."""

    bundles: dict[int, Bundle] = field(default_factory=dict)
    first: int = 0
    end: int = 0
    cursor: int = 0
    """The first bundle that was not sent (or passed over) on the present connection."""
    floor: Floor = field(default_factory=Floor)
    stated: dict[int, Part] = field(default_factory=dict)
    """Per link, the newest mark that was truncated."""

    def all(self) -> Iterator[Bundle]:
        """What is logged, and first the marks that stand for what is not."""
        if self.stated:
            yield Bundle(ZERO, (), tuple(self.stated[link] for link in sorted(self.stated)))
        for number in range(self.first, self.end):
            yield self.bundles[number]


class PayloadLog:
    """What a node sent to each child and may have to send again.

    Every call but :meth:`marks_at`, :meth:`snapshot` and :meth:`restore` takes constant time per
    bundle that it adds, gives or drops.
    """

    def __init__(self, children: Iterable[int], budget_bytes: int | None = None) -> None:
        self._outgoing = {child: _Outgoing() for child in children}
        self.budget_bytes = budget_bytes
        self.bytes = 0
        """Size of what is logged, in memory or not."""
        self.memory_bytes = 0
        self._in_memory: deque[tuple[int, int]] = deque()
        """(child, number) of bundles with payloads in memory, oldest first; some may be gone."""
        self._spilling: dict[tuple[int, Stamp], int] = {}
        """Numbers of the bundles that are being moved out of memory."""
        self._spilling_bytes = 0

    def append(self, child: int, bundle: Bundle) -> None:
        """Log what a step sends a child."""
        outgoing = self._outgoing[child]
        outgoing.bundles[outgoing.end] = bundle
        self.bytes += sum(part.size for part in bundle.parts)
        held = _memory_bytes(bundle)
        if held:
            self.memory_bytes += held
            self._in_memory.append((child, outgoing.end))
        outgoing.end += 1

    def rewind(self, child: int) -> None:
        """Start over on a new connection."""
        self._outgoing[child].cursor = self._outgoing[child].first

    def take(self, child: int) -> Bundle | None:
        """The next bundle that was not sent on this connection, if there is one."""
        outgoing = self._outgoing[child]
        return outgoing.bundles.get(outgoing.cursor)

    def taken(self, child: int) -> None:
        """The bundle that :meth:`take` gave is on its way, or need not go."""
        self._outgoing[child].cursor += 1

    def floors(self) -> dict[int, Floor]:
        """How far back the log reaches, per child."""
        return {child: self._outgoing[child].floor for child in sorted(self._outgoing)}

    def set_floor(self, child: int, floor: Floor) -> None:
        """A restarted node's log begins here."""
        self._outgoing[child].floor = floor

    def raise_floor(self, child: int, floor: Floor) -> None:
        """Something before here is missing, too."""
        known = self._outgoing[child].floor
        self._outgoing[child].floor = Floor(
            max(known.stamp, floor.stamp),
            max(known.epoch, floor.epoch),
            max(known.horizon, floor.horizon),
        )

    def truncate(self, child: int, position: Position) -> None:
        """Forget what lies at or before a position that the child never goes back behind.

        It stops at the first bundle that lies beyond: the few that came early go the next time.
        """
        outgoing = self._outgoing[child]
        if not outgoing.floor.reaches(position):
            return
        horizon = max(outgoing.floor.horizon, position.epoch)
        while outgoing.first < outgoing.end:
            bundle = outgoing.bundles[outgoing.first]
            if any(
                position.beyond(bundle.stamp, part.time.epoch, part.kind == MARK)
                for part in bundle.parts
            ):
                break
            horizon = max(horizon, *(part.time.epoch for part in bundle.parts))
            self._drop_first(child, outgoing)
        outgoing.cursor = max(outgoing.cursor, outgoing.first)
        outgoing.floor = Floor(position.stamp, position.epoch, horizon)
        self._tidy()

    def forget_sent(self, child: int, through: int | None = None) -> None:
        """Forget what is on its way on the present connection; the floor says so.

        With ``through``, only what belongs to epochs up to that one: then a child that has
        completed the epoch of the floor can be served, whatever it has handled of later ones.
        """
        outgoing = self._outgoing[child]
        stamp, epoch, horizon = outgoing.floor
        while outgoing.first < outgoing.cursor:
            bundle = outgoing.bundles[outgoing.first]
            newest = max(part.time.epoch for part in bundle.parts)
            if through is None:
                stamp, horizon = max(stamp, bundle.stamp), max(horizon, newest)
                marks = (part.time.epoch for part in bundle.parts if part.kind == MARK)
                epoch = max(epoch, *marks, -1)
            elif newest <= through:
                epoch = max(epoch, newest)
            else:
                break
            self._drop_first(child, outgoing)
        outgoing.floor = Floor(stamp, epoch, horizon)
        self._tidy()

    def marks_at(self, child: int, epoch: int) -> dict[int, Part]:
        """Per link, the newest mark at or before an epoch."""
        found: dict[int, Part] = {}
        for bundle in self._outgoing[child].all():
            for part in bundle.parts:
                if part.kind == MARK and part.time.epoch <= epoch:
                    known = found.get(part.link)
                    if known is None or known.time.epoch < part.time.epoch:
                        found[part.link] = part
        return found

    def forgotten_marks(self, child: int) -> tuple[Part, ...]:
        """Per link, the newest mark of those that the log does not hold any more."""
        stated = self._outgoing[child].stated
        return tuple(stated[link] for link in sorted(stated))

    def over_budget(self) -> list[tuple[int, Bundle]]:
        """(child, bundle) to move out of memory until the rest fits the budget, oldest first.

        Each is given once; :meth:`spilled` must follow.
        """
        chosen: list[tuple[int, Bundle]] = []
        if self.budget_bytes is None:
            return chosen
        while self._in_memory and self.memory_bytes - self._spilling_bytes > self.budget_bytes:
            child, number = self._in_memory.popleft()
            bundle = self._outgoing[child].bundles.get(number)
            if bundle is not None:
                self._spilling[child, bundle.stamp] = number
                self._spilling_bytes += _memory_bytes(bundle)
                chosen.append((child, bundle))
        return chosen

    def spilled(self, child: int, stamp: Stamp, references: tuple[object, ...]) -> None:
        """A bundle's payloads were moved out of memory; these are their references."""
        number = self._spilling.get((child, stamp))
        if number is None:
            return
        outgoing = self._outgoing[child]
        bundle = outgoing.bundles[number]
        self._let_go(child, bundle)
        parts = zip(bundle.parts, references, strict=True)
        outgoing.bundles[number] = bundle._replace(
            parts=tuple(
                part._replace(payload=Spilled(reference)) if _held(part) else part
                for part, reference in parts
            )
        )

    def snapshot(self) -> dict[int, tuple[Bundle, ...]]:
        """The bundles of each child, for a checkpoint."""
        return {child: tuple(self._outgoing[child].all()) for child in sorted(self._outgoing)}

    def restore(self, bundles: Mapping[int, tuple[Bundle, ...]]) -> None:
        """Take the log of a checkpoint."""
        for child, logged in bundles.items():
            for bundle in logged:
                self.append(child, bundle)

    def _drop_first(self, child: int, outgoing: _Outgoing) -> None:
        """Forget the oldest bundle, but for its marks."""
        bundle = outgoing.bundles.pop(outgoing.first)
        for part in bundle.parts:
            self.bytes -= part.size
            known = outgoing.stated.get(part.link)
            if part.kind == MARK and (known is None or known.time.epoch < part.time.epoch):
                outgoing.stated[part.link] = part
        self._let_go(child, bundle)
        outgoing.first += 1

    def _tidy(self) -> None:
        while self._in_memory and self._gone(*self._in_memory[0]):
            self._in_memory.popleft()

    def _let_go(self, child: int, bundle: Bundle) -> None:
        """A bundle's payloads leave memory."""
        held = _memory_bytes(bundle)
        self.memory_bytes -= held
        if self._spilling.pop((child, bundle.stamp), None) is not None:
            self._spilling_bytes -= held

    def _gone(self, child: int, number: int) -> bool:
        return number not in self._outgoing[child].bundles


@dataclass(frozen=True)
class Spilled:
    """A payload that was moved out of memory; the engine reads it again before it sends it."""

    reference: object


def _held(part: Part) -> bool:
    return part.size > 0 and not isinstance(part.payload, Spilled)


def _memory_bytes(bundle: Bundle) -> int:
    return sum(part.size for part in bundle.parts if _held(part))
