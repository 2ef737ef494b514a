"""foreachBatch: a function of the user's, called on the driver with each epoch's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from penstock.connectors.driver import DriverSink
from penstock.errors import SettingsError, unreachable

__all__ = ["ForeachBatch"]


class ForeachBatch(DriverSink):
    """Calls ``func(rows, epoch)`` once per epoch that has rows, in the order of the epochs.

    The rows of an epoch are in the order of their arrival, which may differ from run to run.  After
    a restart of the driver an epoch may be handed over again, with the same number and the same
    rows: a function that must not act twice remembers the last epoch it has seen.
    """

    kind = "foreach_batch"

    def __init__(self, func: Callable[[pa.Table, int], object]) -> None:
        if not callable(func):
            raise SettingsError(
                f"foreachBatch: expected a function of (rows, epoch), got {type(func).__name__}"
            )
        self.func = func

    def publish(self, epoch: int, rows: pa.Table) -> None:
        self.func(rows, epoch)

    def describe(self) -> str:
        return getattr(self.func, "__qualname__", type(self.func).__name__)

    def __reduce__(self) -> tuple[Any, ...]:
        return ForeachBatch, (_left_on_the_driver,)


def _left_on_the_driver(rows: pa.Table, epoch: int) -> None:
    unreachable("foreachBatch ran outside the driver", epoch=epoch)
