"""Mutants of what may be forgotten: low epochs, checkpoints that go, logs that are switched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.core.control.retention import Forget, Low
from penstock.testing.mutants.mutant import Flows, Mutant, Replacement, mutant

__all__ = ["RETENTION"]

_RETENTION = "penstock.core.control.retention"
_MACHINE = f"{_RETENTION}:RetentionMachine"
_LOGS = "penstock.core.control.planned_logs:PlannedLogs"
_WATCH = "penstock.core.rollback.watch:SpanWatch"


def _changed(due: Forget | None, lows: Mapping[int, Low]) -> Forget | None:
    return None if due is None else replace(due, lows=lows)


# -- low epochs ------------------------------------------------------------------------------------


@mutant("one watermark (12)", f"{_MACHINE}.due")
def truncates_too_far(real: Replacement, *args: Any, **more: Any) -> Forget | None:
    due: Forget | None = real(*args, **more)
    lows = {} if due is None else due.lows
    return _changed(due, {n: Low(low.region + 1, low.own + 1) for n, low in lows.items()})


@mutant("low epochs are by region", f"{_MACHINE}.due", flows=Flows.MIXED, seed=5)
def low_epoch_of_others(real: Replacement, *args: Any, **more: Any) -> Forget | None:
    due: Forget | None = real(*args, **more)
    lows = {} if due is None else due.lows
    top = max((low.region for low in lows.values()), default=-1)
    return _changed(due, {node: Low(top, low.own) for node, low in lows.items()})


@mutant("sinks hold their region back", f"{_WATCH}.published", flows=Flows.MIXED, seed=1)
def counts_the_open_epoch(real: Replacement, self: Any, node: int, epoch: int) -> None:
    real(self, node, epoch + 1)


@mutant(
    "what a restart made void does not count", f"{_WATCH}.restarted", flows=Flows.MIXED, seed=137
)
def counts_void_checkpoints(real: Replacement, *_: Any) -> None:
    return None


@mutant(
    "low epochs fall where a node is taken back by hand",
    f"{_MACHINE}.node_restarted",
    flows=Flows.MIXED,
    seed=137,
)
def low_epochs_never_fall(real: Replacement, self: Any, node: int, epoch: int) -> None:
    self.watch.restarted(node, epoch)


# -- logs ------------------------------------------------------------------------------------------


@mutant(
    "a checkpoint counts when its log reaches back to its children (12)",
    f"{_RETENTION}:serves_from",
    flows=Flows.ROUGH,
    seed=121,
)
def counts_short_logs(real: Replacement, *_: Any) -> int:
    return -1


@mutant(
    "checkpoints are kept as without a log before the log goes",
    f"{_LOGS}._announce",
    flows=Flows.ROUGH_LONG,
    seed=15,
)
def drops_logs_unannounced(real: Replacement, *_: Any) -> None:
    return None


# -- checkpoints -----------------------------------------------------------------------------------


@mutant(
    "every checkpoint that may be asked for is kept",
    f"{_RETENTION}:oldest_kept",
    flows=Flows.MIXED,
    seed=25,
)
def keeps_one_too_few(
    real: Replacement, epochs: Mapping[int, int], low: int, *more: Any
) -> int | None:
    keys = list(epochs)
    return keys[-1] if keys and real(epochs, low, 1) is not None else None


RETENTION: tuple[Mutant, ...] = tuple(one for one in globals().values() if isinstance(one, Mutant))
