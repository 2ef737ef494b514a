"""What a node under causal recovery knows of its senders, and what it does for others' recoveries.

A node keeps, per sender, the last stamp that it handled and the last epoch that was marked, and the
diffs of what it received.  Reports and checkpoints are made of these:

    fence({node: incarnation}, round)      refuse the old ones, close edges to them, report
    open(child, incarnation, position)     send again what lies beyond the position, then go on
    truncate(positions, epoch)             nobody goes back behind these
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.core.causal.clocks import Position
from penstock.core.causal.logs import DiffLog
from penstock.core.causal.reports import Report
from penstock.core.causal.times import ZERO, Stamp
from penstock.core.machine.causal_effects import (
    CausalEffect,
    Checkpoint,
    Retire,
    TellOpened,
    TellReport,
)
from penstock.core.machine.causal_output import CausalOutput, Item
from penstock.core.machine.messages import Message
from penstock.core.machine.node import Outlet
from penstock.core.machine.tracking import NodeTracking
from penstock.core.time import Time
from penstock.errors import InvariantError, require

__all__ = ["CausalPeers"]


class CausalPeers(CausalOutput):
    """Clocks, diffs, reports, fences."""

    def __init__(
        self,
        node: int,
        inputs: Mapping[int, Sequence[int]],
        outlets: Iterable[Outlet],
        incarnation: int,
        incarnations: Mapping[int, int] | None,
        completed: int,
        determined: bool,
        is_open: bool,
        budget_bytes: int | None,
        inside: frozenset[int],
        tracking: NodeTracking | None,
        clean: bool,
        logged: bool,
        stateful: bool,
        eager: bool,
        traced: bool,
    ) -> None:
        super().__init__(
            node,
            inputs,
            outlets,
            incarnation,
            incarnations,
            completed,
            determined,
            is_open,
            budget_bytes,
            inside,
            tracking,
            logged,
            stateful=stateful,
            clean=clean,
            eager=eager,
            traced=traced,
        )
        self.senders = sorted(
            {sender for link, ids in inputs.items() if link not in inside for sender in ids}
        )
        self.watermark_us: int | None = None
        """After the completed epoch."""
        self.diffs = DiffLog()
        self._clock: dict[int, Stamp] = dict.fromkeys(self.senders, ZERO)
        self._base = dict(self._clock)
        """Clocks as the present connections began: what they bring again was handled before."""
        self._marked = dict.fromkeys(self.senders, completed)
        self._partial: dict[int, list[Message]] = {}
        self._queue: deque[Item] = deque()
        self._held: dict[int, deque[Item]] = {}
        """Per sender: what waits behind the epoch after which input is held."""

    @property
    def clock(self) -> Mapping[int, Stamp]:
        """Per sender: the last stamp that was handled."""
        return self._clock

    def produced(  # type: ignore[override]
        self, link: int, parts: Iterable[tuple[int, object, int]], time: Time
    ) -> list[CausalEffect]:
        """The vertices made output in this step; it leaves with the end of the step."""
        if self.clean and self._step is not None and self._step.turn.item is not None:
            raise InvariantError(
                f"node {self.node}: output of epoch {time.epoch} leaves before the epoch is "
                "complete; hold it back"
            )
        return super().produced(link, parts, time)

    def incarnation_of(self, sender: int) -> int:
        """The incarnation of a sender that counts here."""
        return self._incarnations[sender]

    # -- durable things --------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """The node as it is between two steps; its vertices' state belongs to it.

        A clean one has nothing of epochs after the completed one, and neither must that state: all
        of it comes again.  So clean nodes make output only when they complete an epoch.
        """
        require(self._step is None, f"node {self.node}: no checkpoint inside a step")
        report = self.report()
        epoch = self.completed_epoch
        # Marks beyond the completed epoch are asked for again: no need to keep the aligner.
        clock = {sender: Position(stamp, epoch) for sender, stamp in self._clock.items()}
        if not self.clean:
            return Checkpoint(replace(report, clock=clock), self.log.snapshot())
        report = replace(
            report,
            clock={sender: Position(ZERO, epoch) for sender in self.senders},
            diffs=tuple(diff for diff in report.diffs if diff[0].epoch <= epoch),
        )
        return Checkpoint(report, self.log.snapshot())

    def truncate(self, positions: Mapping[int, Position], epoch: int) -> None:
        """Nobody goes back behind these positions, nor behind this epoch."""
        for child, position in positions.items():
            self.log.truncate(child, position)
        self.diffs.compact(epoch)

    def truncate_to(self, epoch: int) -> None:
        """Nobody goes back behind an epoch."""
        self.truncate(dict.fromkeys(self.children, Position(ZERO, epoch)), epoch)

    # -- recovery of others ----------------------------------------------------------------------

    def report(self) -> Report:
        """What this node knows now."""
        return Report(
            self.node,
            self.stamp,
            self.completed_epoch,
            self.newest,
            {s: Position(self._clock[s], self._marked[s]) for s in self.senders},
            self.log.floors(),
            tuple(self.diffs.diffs),
            self.diffs.facts,
            self.watermark_us,
            self.newest_rows,
        )

    def fence(self, fences: Mapping[int, int], round_: int) -> list[CausalEffect]:
        """These nodes have new incarnations: refuse the old ones, send them nothing, report."""
        if fences.get(self.node, self.incarnation) > self.incarnation:
            return [Retire()]
        for node, incarnation in fences.items():
            if node in self._clock:
                self._incarnations[node] = incarnation
                self._base[node] = self._clock[node]
                self._partial.pop(node, None)
                self._queue = deque(item for item in self._queue if item[0].sender != node)
                self._held.pop(node, None)
                for key in self._received:
                    if key[1] == node:
                        self._received[key] = 0
            if node in self._open:
                self._open[node] = False
                self.peers[node] = incarnation
        report = self.report()
        about = tuple(
            diff for diff in report.diffs if any(link.node in fences for link in diff)
        )  # a plan asks for nothing else
        return [TellReport(round_, replace(report, diffs=about))]

    def open(self, child: int, incarnation: int, position: Position) -> list[CausalEffect]:
        """Send again what lies beyond a position, then go on; one atomic step."""
        if self._open[child] or self.peers[child] != incarnation:
            return []
        self.positions[child] = position
        self._open[child] = True
        for key in self._sent:
            if key[1] == child:
                self._sent[key] = 0
        self.log.rewind(child)
        if position.epoch >= 0:
            self._unstated.add(child)
        return [*self._flush(child), TellOpened(child, incarnation)]
