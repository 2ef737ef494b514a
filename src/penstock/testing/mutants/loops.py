"""Mutants of loops: how progress is counted and told, and how epochs are taken in blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.core.control.assignment import UnitProgress
from penstock.core.control.host_orders import MoveFrontier
from penstock.core.control.host_progress import Heard
from penstock.core.control.host_reports import ProgressMade
from penstock.core.node.blocks import BlockEffect, SaveBlock
from penstock.core.node.messages import Deliver
from penstock.core.progress.deltas import Delta, Deltas
from penstock.core.progress.marks import EPOCH_END
from penstock.core.time import Time
from penstock.testing.mutants.mutant import Flows, Mutant, Replacement, mutant

__all__ = ["LOOPS"]

_BLOCKS = "penstock.core.node.blocks:Blocks"
_COUNTS = "penstock.core.node.tracking:NodeCounts"
_EXCHANGE = "penstock.core.progress.exchange"
_GATE_COUNTS = "penstock.core.control.loop_progress:gate_counts"
_HOST = "penstock.core.control.host_progress:HostProgress"
_LOOP = "penstock.core.control.loop_progress:LoopProgress"

# -- counts ----------------------------------------------------------------------------------------


@mutant(
    "positive deltas leave before negative ones (19)",
    f"{_EXCHANGE}:ProgressBuffer.flush",
    flows=Flows.TWO_LOOPS,
)
def negative_deltas_first(real: Replacement, self: Any) -> Deltas:
    deltas: Deltas = real(self)
    if not any(count < 0 for _, _, count in deltas):
        return deltas
    self._net = {(place, time): count for place, time, count in deltas if count > 0}
    return tuple(delta for delta in deltas if delta[2] < 0)


@mutant(
    "what a step sent is counted with what it handled (19)",
    f"{_COUNTS}.sent",
    flows=Flows.TWO_LOOPS,
)
def sends_uncounted_rows(real: Replacement, self: Any, link: int, time: Time) -> None:
    return


@mutant(
    "a buffer sends what it held back once that may move a frontier (19)",
    f"{_EXCHANGE}:ProgressBuffer.recheck",
    flows=Flows.TWO_LOOPS,
)
def holds_counts_for_ever(real: Replacement, self: Any) -> bool:
    return False


@mutant(
    "counts of an older generation are void (20)",
    f"{_LOOP}.receive",
    flows=Flows.MIXED,
    seed=26,
)
def driver_takes_any_generation(
    real: Replacement, self: Any, host: int, made: ProgressMade
) -> list[MoveFrontier]:
    found: list[MoveFrontier] = real(self, host, replace(made, generation=self.generation))
    return found


@mutant(
    "frontiers of another generation are void (20)",
    f"{_HOST}.receive",
    flows=Flows.TWO_LOOPS_ROUGH,
    seed=15,
)
def host_takes_any_generation(real: Replacement, self: Any, moved: MoveFrontier) -> Heard:
    found: Heard = real(self, replace(moved, generation=self.generation))
    return found


# -- restarts --------------------------------------------------------------------------------------


@mutant("every gate is open when a loop restarts (20)", f"{_LOOP}.restart", flows=Flows.TWO_LOOPS)
def forgets_a_gate(real: Replacement, self: Any, epoch: int) -> None:
    gates = self._gate_places
    self._gate_places = dict(list(gates.items())[1:])
    real(self, epoch)
    self._gate_places = gates


@mutant(
    "counts of lost hosts are dropped (20)",
    f"{_EXCHANGE}:Accumulator.restart",
    flows=Flows.TWO_LOOPS,
)
def keeps_lost_counts(real: Replacement, self: Any, counts: list[Delta]) -> Any:
    before = self.tracker.snapshot()
    return real(self, [*before, *counts])


@mutant(
    "a host begins with the frontiers of its loop (20)", f"{_LOOP}.welcome", flows=Flows.TWO_LOOPS
)
def welcomes_without_frontiers(real: Replacement, self: Any) -> UnitProgress:
    welcome: UnitProgress = real(self)
    return welcome._replace(changes=())


@mutant(
    "a welcome says which broadcasts it includes (20)", f"{_LOOP}.welcome", flows=Flows.TWO_LOOPS
)
def welcomes_at_an_old_broadcast(real: Replacement, self: Any) -> UnitProgress:
    welcome: UnitProgress = real(self)
    return welcome._replace(sequence=welcome.sequence - 1)


@mutant(
    "a gate's watermark at the start is its own (20)",
    f"{_LOOP}._closed",
    flows=Flows.TWO_LOOPS_MIXED,
    seed=385,
)
def forgets_watermarks_of_gates(real: Replacement, self: Any, closing: Any) -> Any:
    return [] if closing.epoch <= self._epoch else real(self, closing)


# -- blocks ----------------------------------------------------------------------------------------


@mutant("rows of the next block wait", f"{_BLOCKS}.let_in", flows=Flows.TWO_LOOPS)
def lets_the_next_block_in(real: Replacement, self: Any, rows: Deliver) -> bool:
    return True


@mutant("rows from inside of a loop wait, too", f"{_BLOCKS}.let_in", flows=Flows.TWO_LOOPS, seed=10)
def only_rows_from_outside_wait(real: Replacement, self: Any, rows: Deliver) -> bool:
    inside = self._counts is not None and rows.link in self._counts.tracking.links
    return inside or bool(real(self, rows))


@mutant("rows that wait are counted", f"{_COUNTS}.asked", flows=Flows.TWO_LOOPS)
def waits_uncounted(real: Replacement, self: Any, time: Time) -> None:
    return


@mutant("a block is over when the frontier has passed it", f"{_BLOCKS}.next", flows=Flows.TWO_LOOPS)
def ends_blocks_early(
    real: Replacement, self: Any, least_open: int, completed: int, may_save: bool
) -> list[BlockEffect]:
    found: list[BlockEffect] = real(self, least_open + 1, completed, may_save)
    return found


@mutant(
    "rows after a repeated epoch that senders skip come in",
    f"{_BLOCKS}._goes_on",
    flows=Flows.TWO_LOOPS_MIXED,
    seed=899,
)
def waits_for_skipped_epochs(real: Replacement, self: Any, least_open: int, completed: int) -> bool:
    return bool(real(self, -1, completed))


@mutant(
    "rows after all that a replay repeats wait for the checkpoint",
    f"{_BLOCKS}.__init__",
    flows=Flows.MIXED,
    seed=1066234758,
)
def lets_in_what_is_not_repeated(real: Replacement, self: Any, *args: Any) -> None:
    real(self, *args)
    self._repeats = EPOCH_END


@mutant("the end of a block is saved", f"{_BLOCKS}.next", flows=Flows.MIXED, seed=17)
def passes_over_blocks(real: Replacement, self: Any, *args: Any) -> list[BlockEffect]:
    return [effect for effect in real(self, *args) if not isinstance(effect, SaveBlock)]


@mutant(
    "a hold is flushed when its block is saved",
    f"{_BLOCKS}.may_tell_flushed",
    flows=Flows.MIXED,
    seed=715,
)
def flushes_before_the_block_is_saved(real: Replacement, *_: Any) -> bool:
    return True


LOOPS: tuple[Mutant, ...] = tuple(one for one in globals().values() if isinstance(one, Mutant))
